"""Does a better device ever make a fixed program slower? Random pairs of a program and a figure.

``python -m tests.machine.timing.better_figures [COUNT]`` prints the worst of the first COUNT pairs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from random import Random

from npusim.base.dtypes import FP16
from npusim.base.errors import NpusimError
from npusim.base.quantities import format_quantity
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.tiling import Tiling
from npusim.kernels.vector.stream import Elementwise, StreamTiling
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.reuse.launches import Again, figures_behind

DEVICES = ("ascend910b2", "ascend910c", "ascend950pr", "ascend910")

#: Pairs of one program, and instructions above which a program is left out.
PER_PROGRAM, MOST = 10, 60_000

#: Kinds of figures that are speeds or times, and whether more of them is better.
_MORE_IS_BETTER = {"rate": True, "cycles": False, "fraction_cycles": False, "duration": False}

#: Figures that nearly every program rests on: half of the pairs are of these.
_STRONG = re.compile(
    r"(l2|main_memory|links)\.|paths\.GM->(L1\.nd2nz|UB)\.|paths\.L1->L0[AB]\.(rate|startup|conflict)|"
    r"paths\.L0C->GM\.nz2nd\.rate|cube\.idle_head"
)

#: Figures that are no speeds: how far apart cores start, and the clock, which changes everything.
_NEITHER = ("launch.skew", "clock")


@dataclass(frozen=True)
class Pair:
    """A program, a better figure, and the share by which it made the program slower."""

    program: str
    figure: str
    before: str
    after: str
    slower: float


def pairs(first: int, count: int) -> Iterator[Pair]:
    """Pairs of the programs number ``first`` to ``first + count``, a pure function of these."""
    for number in range(first, first + count):
        yield from _of_program(number)


def _of_program(number: int) -> Iterator[Pair]:
    rng = Random(f"program {number}")
    device = load_device(rng.choice(DEVICES))
    groups = tuple(range(rng.choice((1, 4, device.groups, device.groups, device.groups))))
    kernel, title = _kernel(rng, device)
    try:
        program = build(kernel, device, groups)
    except NpusimError:
        return  # a tiling that does not fit; the next number has another
    if program.instructions > MOST:
        return
    behind = [name for name in figures_behind(device, program) if _is_speed(device, name)]
    again = Again((kernel,), tuple(behind), groups, "fast", device)
    before = again.time_us(device)
    strong = [name for name in behind if _STRONG.match(name)]
    half = PER_PROGRAM // 2
    chosen = rng.sample(strong, min(half, len(strong))) + rng.sample(behind, min(half, len(behind)))
    for name in dict.fromkeys(chosen):
        old, new, better = _better(rng, device, name)
        slower = again.time_us(better) / before - 1
        yield Pair(f"{number}: {title} on {len(groups)} of {device.name}", name, old, new, slower)


@cache
def _kinds(name: str) -> dict[str, str]:
    return {path: figure.kind for path, figure in figures(load_device(name)).items()}


def _is_speed(device: Device, name: str) -> bool:
    if _kinds(device.name).get(name) not in _MORE_IS_BETTER or name in _NEITHER:
        return False
    return not isinstance(figures(device)[name].value, tuple)


def _better(rng: Random, device: Device, name: str) -> tuple[str, str, Device]:
    """The old and the new value as text, and the device with it."""
    figure = figures(device)[name]
    factor = Fraction(rng.choice((105, 110, 125, 150, 200)), 100)
    more = _MORE_IS_BETTER[figure.kind]
    value = Fraction(figure.value) * (factor if more else 1 / factor)  # type: ignore[arg-type]
    if figure.kind in ("cycles", "duration"):
        value = Fraction(int(value))
    old = format_quantity(figure.value, figure.kind)
    new = format_quantity(value, figure.kind)
    if name == "launch.core":  # no less than the part of it between two starts
        value = max(value, Fraction(device.launch.skew_cycles))
        new = format_quantity(value, figure.kind)
    return old, new, device.replace(name, new)


def _kernel(rng: Random, device: Device) -> tuple[Kernel, str]:
    make = rng.choice((_matmul, _matmul, _matmul, _stream, _conversion))
    return make(rng, device)


def _matmul(rng: Random, device: Device) -> tuple[Kernel, str]:
    m, k, n = (rng.choice((128, 384, 512, 1000, 1024, 2048, 3072, 4096)) for _ in range(3))
    base = [rng.choice((64, 128, 128, 256)), rng.choice((64, 64, 128)), rng.choice((128, 256))]
    slots = rng.choice((1, 2, 2, 2))
    tiling = Tiling(
        base_m=base[0],
        base_k=base[1],
        base_n=base[2],
        step_ka=(step := rng.choice((1, 2, 4))),
        step_kb=step,
        l1a_slots=slots,
        l1b_slots=slots,
        l0_slots=rng.choice((1, 2, 2)),
        unit_flag=device.cube is not None and device.cube.unit_flag and rng.random() < 0.3,
    )
    a, b = Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16)
    title = f"matmul {m} x {k} x {n}, {'x'.join(map(str, base))}, {step} steps, {slots} slots"
    return Matmul(tiling, a, b, Tensor("c", (m, n), FP16, "out")), title


def _stream(rng: Random, _: Device) -> tuple[Kernel, str]:
    size = (rng.choice((64, 512, 2048)), rng.choice((1000, 2048, 8192)))
    tiling = StreamTiling(piece=rng.choice((512, 2048, 4096)), slots=rng.choice((1, 2)), cores=None)
    operands = tuple(Tensor(f"x{i}", size, FP16) for i in range(2))
    return Elementwise("add", tiling, operands, Tensor("z", size, FP16, "out")), f"add {size}"


def _conversion(rng: Random, _: Device) -> tuple[Kernel, str]:
    n, c1 = rng.choice((1, 2, 8)), rng.choice((2, 4, 16))
    h = rng.choice((14, 28, 31, 56))
    plain, blocked = (n, c1 * 16, h, h), (n, 1, c1, h, h, 16)
    source, target = Tensor("x", plain, FP16), Tensor("y", blocked, FP16, "out")
    return TransData(Conversion(kind="to_blocked", c0=16), source, target), f"to_blocked {plain}"


def main() -> None:
    """Print how many pairs there are, and the worst."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    found: list[Pair] = []
    number = 0
    while len(found) < count:
        found += pairs(number, 1)
        number += 1
    found = sorted(found[:count], key=lambda pair: -pair.slower)
    for bound in (0.0, 0.005, 0.01, 0.02, 0.05):
        print(f"{sum(p.slower > bound for p in found)} of {len(found)} slower by over {bound:.1%}")
    for pair in found[:20]:
        print(f"{pair.slower:+.2%}  {pair.program}  {pair.figure} {pair.before} -> {pair.after}")


if __name__ == "__main__":
    main()
