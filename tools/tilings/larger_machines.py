"""Does more hardware ever make an automatically tiled kernel slower? Random enlargements.

``python -m tools.tilings.larger_machines [COUNT] [SEED]`` prints those slower by more than 2 % and
the worst of COUNT.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from random import Random
from typing import NamedTuple

from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import NpusimError
from npusim.base.records import replace
from npusim.call.tilings.choice import chosen
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.matmul import Tiling as MatmulTiling
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.machine.timing.run import new_l2, time_program
from npusim.machine.timing.trace import KernelRun
from npusim.problem.convolution import Convolution
from npusim.workloads import load_workload

DEVICES = ("ascend910b2", "ascend910b2", "ascend910", "ascend950pr", "ascend310p")
NETWORKS = ("resnet50", "resnet50", "vgg16")
BATCHES = (1, 1, 2, 4, 8, 32)

#: M, K and N of products; of all that is drawn so many are products.
SIDES = (64, 196, 384, 512, 768, 1000, 1024, 1536, 2048, 3136)
PRODUCTS = 0.25

#: What is enlarged, each from a share of what the device has, by a factor.
FIGURES = (
    *(f"memories.{name}.size" for name in ("L1", "L0A", "L0B", "L0C", "UB")),
    *("l2.size", "l2.read", "l2.write", "main_memory.read", "paths.GM->L1.rate", "groups"),
    "clock",
)
SHARES = ("1/4", "1/2", "3/4", "1")
FACTORS = ("5/4", "3/2", "2", "2", "4")

#: By how much more hardware may make a kernel slower.
LIMIT = 1.02


class Gradient(NamedTuple):
    """A gradient of a layer: "dx" or "dw"."""

    layer: str
    shape: Convolution
    which: str

    def __str__(self) -> str:
        return f"{self.which} of {self.layer}, batch {self.shape.n}"


class Product(NamedTuple):
    """C[m, n] = A[m, k] @ B[k, n]."""

    m: int
    k: int
    n: int


@dataclass(frozen=True)
class Enlargement:
    """A problem on a device with a figure enlarged, and its cycles before and after."""

    problem: Gradient | Product
    device: str
    figure: str
    small: str
    large: str
    before: int
    after: int
    tilings: tuple[str, str]
    #: The clock with more over that with less.
    clock: float = 1.0

    @property
    def ratio(self) -> float:
        """The time with more over the time with less."""
        return self.after / self.before / self.clock

    def __str__(self) -> str:
        return (
            f"{self.ratio:.3f} {self.problem}, {self.device}, {self.figure} {self.small} -> "
            f"{self.large}: {self.before} -> {self.after} | {' | '.join(self.tilings)}"
        )


def kernel_of(problem: Gradient | Product) -> Kernel:
    """The kernel of a problem, fp16, before a tiling is chosen."""
    if isinstance(problem, Product):
        m, k, n = problem
        a, b = Tensor("a", (m, k), FP16, "in"), Tensor("b", (k, n), FP16, "in")
        start = MatmulTiling(base_m=16, base_n=16, base_k=16)
        return Matmul(start, a, b, Tensor("c", (m, n), FP32, "out"))
    return kernel_of_gradient(problem)


def kernel_of_gradient(gradient: Gradient) -> Kernel:
    """The kernel of a gradient, fp16, before a tiling is chosen."""
    shape, p = gradient.shape, gradient.shape.plan
    blocks = shape.kernel[0] * p.cin1_g * shape.taps
    x = Tensor("x", (shape.n, shape.spatial[0], shape.cin1, *shape.spatial[1:], 16), FP16, "in")
    dy = Tensor("dy", (shape.n, shape.out[0], shape.cout1, *shape.out[1:], 16), FP16, "in")
    if gradient.which == "dw":
        dw = Tensor("dw", (p.real_groups, blocks, p.cout_g, 16), FP32, "out")
        any_tiling = FilterTiling(base_m=16, base_n=16, base_k=16, slab_k=1, form="taps")
        return ConvBackpropFilter(shape, any_tiling, x, dy, dw)
    weights = Tensor("w", (p.real_groups * blocks, p.cout_g // 16, 16, 16), FP16, "in")
    dx = Tensor("dx", x.shape, FP16, "out")
    anyhow = GemmTiling(base_m=1, base_n=16, base_k=1, form="taps")
    return ConvBackpropInput(shape, anyhow, dy, weights, dx)


@cache
def layers(network: str) -> dict[str, Convolution]:
    """The convolutions of a network by name, for one image."""
    found = (one for one in load_workload(network).layers if isinstance(one, Convolution))
    return {one.name: replace(one, n=1).lifted() for one in found}


def runs_of(kernel: Kernel, device: Device) -> list[KernelRun]:
    """A kernel and what its tiling needs before it, from an empty L2."""
    groups, l2 = tuple(range(device.groups)), new_l2(device, "fast")
    programs = (build(one, device, groups) for one in (*kernel.before, kernel))
    return [time_program(program, l2, timeline=False) for program in programs]


def cycles_of(kernel: Kernel, device: Device) -> int:
    """Their cycles with launches."""
    return sum(run.cycles + run.launch_cycles for run in runs_of(kernel, device))


def automatic(kernel: Kernel, device: Device) -> tuple[int, Kernel]:
    """Cycles with launches of a kernel and what its tiling needs before it, and the chosen one."""
    best = chosen(kernel, device, tuple(range(device.groups)))
    return cycles_of(best, device), best


def enlarged(
    problem: Gradient | Product, device: Device, figure: str, sizes: tuple[Fraction, Fraction]
) -> Enlargement | None:
    """A problem with two shares of a figure, the smaller first; None where one is too little."""
    base = figures(device)[figure].value
    assert not isinstance(base, tuple)
    texts: list[str] = []
    clocks: list[int] = []
    cycles: list[int] = []
    tilings: list[str] = []
    for share in sizes:
        size = Fraction(base) * share
        if figure == "l2.size":
            size -= size % (1 << 20)
        value = size if figure.endswith((".read", ".write", ".rate")) else max(1, int(size))
        try:
            machine = device.replace(figure, value)
            found, kernel = automatic(kernel_of(problem), machine)
        except NpusimError:  # too small for any tiling, or a figure that others bound
            return None
        texts.append(f"{float(value):,.0f}")
        clocks.append(machine.clock_hz)
        cycles.append(found)
        tilings.append(kernel.tiling_text)
    return Enlargement(
        *(problem, device.name, figure, texts[0], texts[1]),
        *(cycles[0], cycles[1], (tilings[0], tilings[1]), clocks[1] / clocks[0]),
    )


def random_enlargements(count: int, seed: int) -> Iterator[Enlargement]:
    """``count`` of them, a pure function of the seed."""
    rng = Random(f"larger machines {seed}")
    while count:
        network = rng.choice(NETWORKS)
        name, shape = rng.choice(list(layers(network).items()))
        shape = replace(shape, n=rng.choice(BATCHES))
        device = load_device(rng.choice(DEVICES))
        figure, share, factor = rng.choice(FIGURES), rng.choice(SHARES), rng.choice(FACTORS)
        problem: Gradient | Product = Gradient(name, shape, rng.choice(("dx", "dw")))
        if rng.random() < PRODUCTS:
            problem = Product(*(rng.choice(SIDES) for _ in range(3)))
        if figure not in figures(device):
            continue
        small = Fraction(share)
        one = enlarged(problem, device, figure, (small, small * Fraction(factor)))
        if one is not None:
            count -= 1
            yield one


def main(count: int = 100, seed: int = 0) -> None:
    """Print those slower than allowed, then the worst."""
    worst, slower = 0.0, 0
    for one in random_enlargements(count, seed):
        worst = max(worst, one.ratio)
        if one.ratio > LIMIT:
            slower += 1
            print(one, flush=True)
    print(f"{slower} of {count} slower by more than 2 %; the worst ratio is {worst:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
