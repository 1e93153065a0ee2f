"""The worth of each mechanism of the choice of tilings.

``python -m tools.tilings.ablation`` switches each off alone, simulates the kernels that are then
chosen, and writes the table that docs/model/tilings.md shows: the geometric mean and the worst of
the time over that of the choice as it is, the CPU seconds of all choices over those it takes, and
how many random enlargements are slower by more than 2 %.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from npusim.base.errors import CapacityError
from npusim.base.records import replace
from npusim.call.tilings import choice
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.pipeline import chosen
from npusim.kernels.filter_gradient.space import Space as Filters
from npusim.kernels.implicit_gemm.space import Products
from npusim.machine.device.catalog import load_device
from npusim.reuse.launches import RUNS
from npusim.reuse.programs import LONG_PROGRAMS, PROGRAMS
from tests.documents.tilings_table import ABLATION
from tools.tilings.larger_machines import (
    LIMIT,
    Gradient,
    cycles_of,
    kernel_of,
    layers,
    random_enlargements,
)

DEVICES = ("ascend910b2", "ascend910", "ascend950pr", "ascend310p")

#: Networks and images; the last has the depth-wise layers.
NETWORKS = (("resnet50", 32), ("vgg16", 4), ("mobilenet_v2", 8))

#: Random enlargements that each mechanism is held to.
ENLARGEMENTS, SEED = 100, 3

#: Answers of a process.
KEPT: Any = (choice.CHOICES, choice.TRIED, PROGRAMS, LONG_PROGRAMS, RUNS)

Switch = Callable[[pytest.MonkeyPatch], None]


def simulated(count: int) -> Switch:
    """At most so many candidates are simulated."""
    return lambda patch: patch.setattr(choice, "MOST_SIMULATED", count)


def without(**plain: int) -> Switch:
    """Only candidates in which each of these fields, where they have it, has the usual value."""

    def narrow(patch: pytest.MonkeyPatch) -> None:
        for space in (Products, Filters):

            def spread(self: Any, rows: Any, whole: Any = space.spread) -> Any:
                t = whole(self, rows)
                keep = np.all([t[name] == plain[name] for name in plain.keys() & t.keys()], axis=0)
                return chosen(t, np.flatnonzero(keep)) if np.any(keep) else t

            patch.setattr(space, "spread", spread)

    return narrow


def all_in_l2(patch: pytest.MonkeyPatch) -> None:
    """The L2 lacks none of the operands."""
    for space in (Products, Filters):
        lacking = space._lacking

        def none_lacking(self: Any, *sizes: Any, lacking: Any = lacking) -> Any:
            return tuple(fields | {"until": 0} for fields in lacking(self, *sizes))

        patch.setattr(space, "_lacking", none_lacking)


def unblocked(patch: pytest.MonkeyPatch) -> None:
    """Moves of a tile on their way out never hold the scalar pipe back."""
    drain = Products._drain
    patch.setattr(Products, "_drain", lambda self, sizes: drain(self, sizes)._replace(blocked=0))


def write_backs(patch: pytest.MonkeyPatch) -> None:
    """Reads have main memory alone."""
    patch.setattr(costs, "main_rate", lambda device, read, written: device.main_read_rate)


def mean_columns(patch: pytest.MonkeyPatch) -> None:
    """Each core has the mean of the columns."""
    patch.setattr(Products, "_most_n", Products._mean_n)


SWITCHES: dict[str, Switch] = {
    "the best estimate alone, not simulated": simulated(1),
    "three simulated": simulated(3),
    "two that are alike in all but slots": lambda patch: patch.setattr(
        choice, "_shape", lambda kernel: kernel
    ),
    "half of the cores": lambda patch: patch.setattr(
        "npusim.kernels.estimate.pipeline._on_half", lambda *_: []
    ),
    "other slots of L0 than two": without(l0_slots=2),
    "the unit flag": without(unit_flag=0),
    "parts of K": without(parts=1),
    "groups of tiles that share an operand": without(group=1, passes=1),
    "an input that stays": without(resident_input=0),
    "weights that stay": without(resident=0),
    "what the L2 lacks": all_in_l2,
    "write-backs": write_backs,
    "several moves of a tile on their way out": unblocked,
    "the core with most columns": mean_columns,
}


@contextmanager
def switched(switch: Switch | None) -> Iterator[None]:
    """Choices as they are without a mechanism; nothing that was chosen before is kept."""
    with pytest.MonkeyPatch.context() as patch:
        if switch:
            switch(patch)
        for kept in KEPT:
            kept.clear()
        yield
    for kept in KEPT:
        kept.clear()


def measured(switch: Switch | None) -> tuple[list[int], float, int]:
    """Cycles of each gradient on each device, CPU seconds of choices, enlargements over 2 %."""
    found: list[int] = []
    seconds = 0.0
    with switched(switch):
        for device in map(load_device, DEVICES):
            for gradient in gradients():
                kernel, start = kernel_of(gradient), time.process_time()
                with suppress(CapacityError):  # the same for each mechanism
                    best = choice.chosen(kernel, device, tuple(range(device.groups)))
                    seconds += time.process_time() - start
                    found.append(cycles_of(best, device))
        slower = sum(one.ratio > LIMIT for one in random_enlargements(ENLARGEMENTS, SEED))
    return found, seconds, slower


def gradients() -> Iterator[Gradient]:
    """Both gradients of each layer."""
    for network, images in NETWORKS:
        for name, shape in layers(network).items():
            for which in ("dx", "dw"):
                yield Gradient(name, replace(shape, n=images), which)


def main() -> None:
    """Write the table."""
    list(random_enlargements(1, SEED))  # what a process does once
    plain, seconds, slower = measured(None)
    row: dict[str, Any] = {"without": "nothing: as it is", "mean": 1.0, "worst": 1.0, "cpu": 1.0}
    rows = [row | {"slower": slower, "gradients": len(plain)}]
    for name, switch in SWITCHES.items():
        cycles, own, slower = measured(switch)
        ratios = np.array(cycles) / plain
        mean, worst = float(np.exp(np.log(ratios).mean())), float(ratios.max())
        rows.append({"without": name, "mean": round(mean, 4), "worst": round(worst, 3),
                     "cpu": round(own / seconds, 2), "slower": slower})  # fmt: skip
        print(rows[-1], flush=True)
        ABLATION.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
