"""Simulated time over what ranks tilings: ``python -m tools.tilings.ratios [COUNT]``.

Of COUNT products on each of three devices twelve tilings are simulated, with most of their fields
drawn at random; of gradients of ResNet-50, whose bounds from programs rank them, candidates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.rank import MEASURED_ON, Ranked, Ranking, rank
from npusim.call.tilings.problem import TuningProblem
from npusim.compat.tuners import product as tuned
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from tools.tilings.larger_machines import SIDES, Gradient, kernel_of, layers

#: Of operands: one value a byte or less, two bytes each, and four.
DTYPES = ("fp16", "bf16", "fp32", "int8", "mxfp8", "mxfp4")

#: Fields of a product's tiling, and what is drawn for them.
FIELDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("base_m", "base_n", "base_k"), (16, 32, 64, 128, 256)),
    **dict.fromkeys(("step_ka", "step_kb"), (1, 2, 4, 8)),
    **dict.fromkeys(("l0_slots", "l1a_slots", "l1b_slots"), (1, 2, 2, 3)),
    **dict.fromkeys(("n_fastest", "n_inner", "strided", "b_before_a"), (False, True)),
    **dict.fromkeys(("l1_halves", "unit_flag"), (False, True)),
    "l0c_slots": (1, 1, 2),
    "window": (0, 2, 4),
    "cores": (0, 0, 0, 8, 20),
    "single_core_k": (0, 0, 0, 256, 512),
    "single_core_m": (0, 0, 256),
    "single_core_n": (0, 0, 512),
    "barrier": (False, False, False, True),
    **dict.fromkeys(("tail_m", "tail_n"), (1, 1, 1, 2)),
}


def tilings(kernel: Any, draw: Random, count: int) -> list[Any]:
    """So many random tilings of a product, of which some do not fit."""
    found: list[Any] = []
    while len(found) < count:
        fields = {name: draw.choice(values) for name, values in FIELDS.items()}
        with suppress(ArgumentError):
            found.append(replace(kernel.tiling, **fields))
    return found


def product(draw: Random) -> tuple[Kernel, Device]:
    """A random product on a random device."""
    device = load_device(draw.choice(MEASURED_ON))
    kinds = [one for one in DTYPES if one in device.dtypes]
    m, k, n = (draw.choice(SIDES) for _ in range(3))
    return tuned(m, k, n, draw.choice(kinds)), device


def simulated(ranking: Ranking, draw: Random, count: int) -> Iterator[tuple[Ranked, int]]:
    """Some rows of a ranking, with their simulated cycles."""
    device = ranking.device
    problem = TuningProblem(ranking.kernel, device, tuple(range(device.groups)))
    for row in draw.sample(ranking.rows, min(count, len(ranking.rows))):
        kernel = replace(ranking.kernel, tiling=row.tiling)
        yield row, problem.time(kernel).cycles


def main(count: int = 30) -> None:
    """Print quantiles of the ratios, and the bound that is nearest to its time."""
    draw = Random("ratios")
    for what in ("estimates", "programs"):
        ratios, nearest = list[float](), 0.0
        for turn in range(3 * count):
            if what == "estimates":
                kernel, device = product(draw)
                some = tilings(kernel, draw, 40)
            else:
                device = load_device(MEASURED_ON[turn % 3])
                layer, shape = draw.choice([*layers("resnet50").items()])
                which = draw.choice(("dx", "dw"))
                kernel = kernel_of(Gradient(layer, replace(shape, n=4), which))
                cores = device.count(kernel.role)
                few = [one for _, one in kernel.ranked(device, cores, 64)]
                some = [one.tiling for one in draw.sample(few, min(8, len(few)))]  # type: ignore[attr-defined]
            for row, cycles in simulated(rank(kernel, some, device), draw, 12):
                ratios.append(cycles / row.cycles)
                nearest = max(nearest, row.least / cycles)
        ratios.sort()
        shown = [ratios[int(share * (len(ratios) - 1))] for share in (0, 0.05, 0.5, 0.95, 1)]
        print(what, len(ratios), [round(one, 3) for one in shown], f"bound {nearest:.4f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
