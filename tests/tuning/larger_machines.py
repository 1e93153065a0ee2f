"""Does more hardware ever make an automatically tiled gradient slower? Random enlargements.

``python -m tests.tuning.larger_machines [COUNT] [SEED]`` prints those slower by more than 2 % and
the worst of COUNT.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import NamedTuple

from npusim.call.choice import chosen
from npusim.convolution import Convolution
from npusim.device.catalog import load_device
from npusim.device.config import figures
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32
from npusim.errors import NpusimError
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter
from npusim.kernels.conv_backprop_filter import Tiling as FilterTiling
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import Tiling as GemmTiling
from npusim.program.build import build
from npusim.program.kernel import Kernel
from npusim.timing.run import new_l2, time_program
from npusim.workloads import load_workload

DEVICES = ("ascend910b2", "ascend910b2", "ascend910", "ascend950pr", "ascend310p")
NETWORKS = ("resnet50", "resnet50", "vgg16")
BATCHES = (1, 1, 2, 4, 8, 32)

#: What is enlarged, each from a share of what the device has, by a factor.
FIGURES = (
    *(f"memories.{name}.size" for name in ("L1", "L0A", "L0B", "L0C", "UB")),
    *("l2.size", "l2.read", "l2.write", "main_memory.read", "paths.GM->L1.rate", "groups"),
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


@dataclass(frozen=True)
class Enlargement:
    """A gradient on a device with a figure enlarged, and its cycles before and after."""

    gradient: Gradient
    device: str
    figure: str
    small: str
    large: str
    before: int
    after: int
    tilings: tuple[str, str]

    @property
    def ratio(self) -> float:
        """Cycles with more over cycles with less."""
        return self.after / self.before

    def __str__(self) -> str:
        return (
            f"{self.ratio:.3f} {self.gradient}, {self.device}, {self.figure} {self.small} -> "
            f"{self.large}: {self.before} -> {self.after} | {' | '.join(self.tilings)}"
        )


def kernel_of(gradient: Gradient) -> Kernel:
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


def automatic(kernel: Kernel, device: Device) -> tuple[int, Kernel]:
    """Cycles with launches of a kernel and what its tiling needs before it, and the chosen one."""
    groups = tuple(range(device.groups))
    best = chosen(kernel, device, groups)
    l2 = new_l2(device, "fast")
    programs = (build(one, device, groups) for one in (*best.before, best))
    runs = [time_program(program, l2, timeline=False) for program in programs]
    return sum(run.cycles + run.launch_cycles for run in runs), best


def enlarged(
    gradient: Gradient, device: Device, figure: str, sizes: tuple[Fraction, Fraction]
) -> Enlargement | None:
    """A gradient with two shares of a figure, the smaller first; None where one is too little."""
    base = figures(device)[figure].value
    assert not isinstance(base, tuple)
    texts: list[str] = []
    cycles: list[int] = []
    tilings: list[str] = []
    for share in sizes:
        size = Fraction(base) * share
        if figure == "l2.size":
            size -= size % (1 << 20)
        value = size if figure.endswith((".read", ".write", ".rate")) else max(1, int(size))
        try:
            machine = device.replace(figure, value)
            found, kernel = automatic(kernel_of(gradient), machine)
        except NpusimError:  # too small for any tiling, or a figure that others bound
            return None
        texts.append(f"{float(value):,.0f}")
        cycles.append(found)
        tilings.append(kernel.tiling_text)
    return Enlargement(
        *(gradient, device.name, figure, texts[0], texts[1]),
        *(cycles[0], cycles[1], (tilings[0], tilings[1])),
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
        gradient = Gradient(name, shape, rng.choice(("dx", "dw")))
        if figure not in figures(device):
            continue
        small = Fraction(share)
        one = enlarged(gradient, device, figure, (small, small * Fraction(factor)))
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
