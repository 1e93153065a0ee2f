"""Does a better machine ever make a matrix product with its automatic tiling slower?

``python -m tools.tilings.better_machines [COUNT] [SEED]`` tries a table of well-known sizes on a
910B2, and COUNT products, chips and figures drawn at random. It prints those that are slower by
more than ``LIMIT``, the worst, and how the ratios of the times lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from npusim.base.errors import NpusimError
from npusim.base.quantities import Quantity
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from tools.tilings.larger_machines import Product, automatic, kernel_of

#: By how much a better machine may make a product slower.
LIMIT = 1.005

#: What is better: the figures that grow together, with words for them.
FIGURES = {
    "cores": ("groups",),
    "L1": ("memories.L1.size",),
    "L2": ("l2.size",),
    "HBM": ("main_memory.read", "main_memory.write", "links.hbm.rate"),
    "clock": ("clock",),
    "cube": ("cube.rates.fp16",),
}

#: The table: sizes, and factors of figures, on the chip whose sizes they are.
CHIP = "ascend910b2"
PRODUCTS = (
    Product(4096, 4096, 4096),
    Product(2048, 2048, 2048),
    Product(6144, 512, 6144),
    Product(3072, 1024, 3072),
    Product(8192, 1024, 2048),
    Product(1024, 1024, 1024),
    Product(4096, 1024, 1024),
)
BETTER = (
    ("cube", "2"),
    ("cores", "5/4"),
    ("L1", "2"),
    ("L2", "2"),
    ("HBM", "3/2"),
    ("clock", "6/5"),
    ("clock", "3/2"),
)

#: Of random ones: chips, sides, factors, and the shares of a figure that a chip may have before.
CHIPS = (
    *("ascend910b2", "ascend910b2", "ascend910", "ascend310p", "ascend910b4", "ascend950pr"),
    "tiny",
)
SIDES = (64, 100, 128, 196, 256, 384, 512, 768, 1000, 1024, 1536, 2048, 3000, 3136, 4096)
SHARES = ("1/2", "3/4", "1", "1")
FACTORS = ("5/4", "3/2", "2", "3")
#: So many multiply-adds at most: larger ones take long and tell little more.
MOST_MACS = 2**34


@dataclass(frozen=True)
class Better:
    """A product on a chip with what is better, and its times in us and tilings before and after."""

    product: Product
    chip: str
    what: str
    small: str
    large: str
    times: tuple[float, float]
    tilings: tuple[str, str]

    @property
    def ratio(self) -> float:
        """The time on the better machine over the time on the other."""
        return self.times[1] / self.times[0]

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.product))
        before, after = self.times
        return (
            f"{self.ratio:.4f} {sizes}, {self.chip}, {self.what} {self.small} -> {self.large}: "
            f"{before:.2f} -> {after:.2f} us | {' | '.join(self.tilings)}"
        )


def machine(device: Device, what: str, factor: Fraction) -> Device:
    """``device`` with so many times of ``what``; raises ``NpusimError`` where it cannot be."""
    known = figures(device)
    for figure in FIGURES[what]:
        if figure not in known:
            continue
        device = device.replace(figure, _larger(known[figure].value, what, factor))
    return device


def _larger(value: Quantity, what: str, factor: Fraction) -> str | int | Fraction:
    """A figure so many times as large; of a cube its rows are."""
    if isinstance(value, tuple):
        m, k, n = (int(side) for side in value[:3])
        return f"{int(m * factor)}x{k}x{n}"
    if what == "HBM":
        return Fraction(value) * factor
    larger = int(Fraction(value) * factor)
    return larger - larger % (1 << 20) if what == "L2" else larger


def can_be(device: Device, what: str) -> bool:
    """True if a device has such a figure at all."""
    return any(figure in figures(device) for figure in FIGURES[what])


def compared(
    product: Product, chip: str, what: str, shares: tuple[Fraction, Fraction]
) -> Better | None:
    """A product with two shares of a figure, the smaller first; None where one cannot be."""
    device = load_device(chip)
    times: list[float] = []
    tilings: list[str] = []
    for share in shares:
        try:
            changed = machine(device, what, share)
            kernel: Any
            cycles, kernel = automatic(kernel_of(product), changed)
        except NpusimError:  # too small for any tiling, or a figure that others bound
            return None
        times.append(cycles / changed.clock_hz * 1e6)
        tilings.append(f"{kernel.tiling_text} cores {kernel.tiling.cores}")
    small, large = (str(share) for share in shares)
    return Better(product, chip, what, small, large, (times[0], times[1]), (tilings[0], tilings[1]))


def table() -> Iterator[Better]:
    """Every product of the table with every figure of it."""
    for product in PRODUCTS:
        for what, factor in BETTER:
            found = compared(product, CHIP, what, (Fraction(1), Fraction(factor)))
            if found is not None:
                yield found


def drawn(count: int, seed: int) -> Iterator[Better]:
    """``count`` random ones, a pure function of the seed."""
    rng = Random(f"better machines {seed}")
    while count:
        product = Product(*(rng.choice(SIDES) for _ in range(3)))
        chip, what = rng.choice(CHIPS), rng.choice([*FIGURES])
        share, factor = Fraction(rng.choice(SHARES)), Fraction(rng.choice(FACTORS))
        if product.m * product.k * product.n > MOST_MACS or not can_be(load_device(chip), what):
            continue
        if what == "cube":  # whole blocks
            share, factor = Fraction(1), Fraction(2)
        found = compared(product, chip, what, (share, share * factor))
        if found is not None:
            count -= 1
            yield found


def main(count: int = 400, seed: int = 0) -> None:
    """Print what is slower, the worst, and how all lie."""
    for name, every in (("table", table()), ("drawn", drawn(count, seed))):
        ratios: list[float] = []
        slower = 0
        for one in every:
            ratios.append(one.ratio)
            if one.ratio > LIMIT:
                slower += 1
                print(one, flush=True)
        ratios.sort()
        shares = ", ".join(
            f"{part} % at most {ratios[min(len(ratios) - 1, len(ratios) * part // 100)]:.4f}"
            for part in (25, 50, 75, 90, 95, 99)
        )
        print(
            f"{name}: {slower} of {len(ratios)} slower by more than {100 * (LIMIT - 1):.1f} %, "
            f"{sum(ratio > 1 for ratio in ratios)} slower at all; the worst ratio is "
            f"{ratios[-1]:.4f}; {shares}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
