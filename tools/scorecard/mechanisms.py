"""Calls of the library, predicted by choices that were made without them.

``python -m tools.scorecard.mechanisms`` prints the errors; it takes minutes.

Some of what the model says of the library was chosen by looking at measured calls: figures of the
device, and how the launches of a call are read. ``CHOICES`` lists them with what else they could
be. Calls are left out a group at a time, those of one family, one chip and one power of ten of
work; the choices are made again on all other calls of the chip, as the combination with the least
mean absolute error, and the calls left out are then predicted with it. The first alternative of a
choice is what one would take without any measured call; it stands where no other call tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import log10
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import numpy as np

from npusim.base.records import replace
from npusim.cli.files import print_table
from npusim.kernels.estimate.tile import busy_cycles
from npusim.kernels.layout.library_maps import LibraryMaps
from npusim.kernels.layout.library_trans_data import LibraryGroups
from npusim.kernels.layout.trans_data import TransData
from npusim.kernels.vendor import library
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.ops import conv_launch
from npusim.silicon import call_rows
from npusim.silicon.rows import CallRow
from npusim.silicon.score import time_error
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import simulate_row

#: Families of calls that the headline is about. Transposes are no layers, and nobody listed the
#: kernels of KernelBench's calls.
FAMILIES = ("CONV2D-FWD", "DW-CONV2D-FWD", "DW3D", "GEMM")

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Alternative:
    """One way to choose: figures of the device, names of a module replaced, kernels not counted."""

    name: str
    figures: Mapping[str, str] | None = None
    patches: Sequence[tuple[Any, str, Any]] = ()
    uncounted: str = ""


@dataclass(frozen=True)
class Choice:
    """A choice made by looking at calls of a chip; ``line`` chooses between its two ends, too."""

    name: str
    chip: str
    alternatives: tuple[Alternative, ...]
    line: bool = False


#: Points of a straight line that are looked at, its ends included.
POINTS = 13

_IMG2COL = "paths.L1->L0B.load3d.window", "paths.L1->L0A.load3d_transpose.rate"


def _figures(paths: Iterable[str], *values: Sequence[str]) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(" ".join(texts), dict(zip(paths, texts, strict=True))) for texts in values
    )


def _launches(chip: str, least: str, most: str) -> tuple[Choice, Choice]:
    """The cost of a launch: of each core, and of a tiling computed at run time."""
    core = _figures(["launch.core"], [least], [most])
    tiling = _figures(["launch.tiling"], ["0us"], ["1.3us"])
    return Choice("launch.core", chip, core, line=True), Choice("launch.tiling", chip, tiling)


def _modules(attribute: str, *values: tuple[str, Any], of: Any = call_rows) -> Any:
    return tuple(Alternative(name, patches=((of, attribute, value),)) for name, value in values)


def _cores(chip: str) -> Choice:
    """The least bound of a tiling of the library, with the launch of each core in it or without."""
    with_cores = lambda work, _: busy_cycles(work) + work.beside  # noqa: E731
    values = ("counts", with_cores), ("does not count", library._weighed)
    return Choice("launch of cores in tilings", chip, _modules("_weighed", *values, of=library))


_CAST = call_rows._cast_of_bias


def _empty_cast(row: CallRow, device: Device) -> list[KernelRun]:
    """A cast of the bias that launches and has nothing to do."""
    launch = device.launch.cycles("vector", device.count("vector"))
    return [replace(run, cycles=0, launch_cycles=launch) for run in _CAST(row, device)]


CHOICES = (
    *_launches("910B2", "0.05us", "0.2us"),
    Choice(
        "img2col into L0B, transposed into L0A",
        "910B2",
        _figures(
            _IMG2COL,
            *(("128B", "256B/cycle"), ("64B", "256B/cycle"), ("64B", "128B/cycle")),
            *(("64B", "64B/cycle"), ("128B", "64B/cycle")),
        ),
    ),
    Choice(
        "launches of a call with groups",
        "910B2",
        _modules("_GROUPED", ("those here", 0), ("six", 6), ("seven", 7)),
    ),
    Choice(
        "weights in groups",
        "910B2",
        _modules(
            "LibraryGroups",
            ("as without", TransData),
            ("group by group", LibraryGroups),
            of=conv_launch,
        ),
    ),
    Choice(
        "pieces of a move inside UB",
        "910B2",
        _figures(["paths.UB->UB.row"], ["0cycle"], ["2cycle"]),
    ),
    Choice(
        "conversions of images",
        "910B2",
        _modules(
            "LibraryMaps",
            ("turned once", TransData),
            ("turned twice", LibraryMaps),
            of=conv_launch,
        ),
    ),
    Choice(
        "cast of a forward convolution",
        "910B2",
        (
            *_modules("_cast_of_bias", ("empty", _empty_cast)),
            *_modules("_cast_of_bias", ("of the bias", _CAST)),
            Alternative("none", uncounted="Cast"),
        ),
    ),
    Choice(
        "MemSet of a forward convolution",
        "910B2",
        (Alternative("empty"), Alternative("none", uncounted="MemSet")),
    ),
    Choice(
        "tiling of convolutions whose rule is not known",
        "910B2",
        _modules("_LIBRARY_TILING", ("auto", "auto"), ("library", "library")),
    ),
    _cores("910B2"),
    *_launches("950PR", "0.03us", "0.1us"),
    Choice(
        "window of img2col into L0B",
        "950PR",
        _figures(["paths.L1->L0B.load3d.window"], ["256B"], ["128B"], ["64B"]),
    ),
    Choice(
        "tiling of convolutions whose rule is not known",
        "950PR",
        _modules("_LIBRARY_TILING", ("auto", "auto"), ("library", "library")),
    ),
    _cores("950PR"),
)


@dataclass(frozen=True)
class Prediction:
    """A call, its group, and its simulated over its measured time less 1, chosen without it."""

    row: CallRow
    group: tuple[str, str, int]
    error: float


@dataclass(frozen=True)
class Study:
    """The errors of calls that are left out, and by group the choice made without it."""

    predictions: tuple[Prediction, ...]
    chosen: Mapping[tuple[str, str, int], tuple[str, ...]]


def group_of(row: CallRow) -> tuple[str, str, int]:
    """The family, the chip and the power of ten of the work: what is left out together."""
    assert row.work
    return row.family, row.chip, int(log10(row.work))


def rows(chip: str) -> list[CallRow]:
    """The measured calls of a chip that the headline is about."""
    found = [row for sheet in shipped_sheets() for row in sheet.rows if isinstance(row, CallRow)]
    return [row for row in found if row.chip == chip and row.family in FAMILIES]


def simulated(row: CallRow, alternatives: Sequence[Alternative]) -> float:
    """The time of a call in microseconds under one alternative of every choice."""
    figures: dict[str, str] = {}
    with ExitStack() as stack:
        for one in alternatives:
            figures |= one.figures or {}
            for place, name, value in one.patches:
                stack.enter_context(patch.object(place, name, value))
            if one.uncounted and row.call == call_rows._FORWARD:
                kept = tuple(text for text in row.kernels if not text.startswith(one.uncounted))
                row = replace(row, kernels=kept)
        outcome = simulate_row(row, figures)
    assert outcome.simulated is not None, outcome.reason
    return outcome.simulated.time_us


def errors(row: CallRow, choices: Sequence[Choice]) -> Array:
    """Simulated over measured time less 1, by the place of every choice; 1 place if none matters.

    A choice matters to a call if one of its alternatives moves it, all else as it comes first or
    all else as it comes last.
    """
    sizes = []
    for i, choice in enumerate(choices):
        moved = False
        for end in (0, -1):
            around = [other.alternatives[end] for other in choices]
            times_us = [
                simulated(row, [*around[:i], one, *around[i + 1 :]]) for one in choice.alternatives
            ]
            moved |= max(times_us) > (1 + 1e-6) * min(times_us)
        sizes.append(len(choice.alternatives) if moved else 1)
    times = np.empty(sizes)
    for place in product(*map(range, sizes)):
        taken = [choice.alternatives[i] for choice, i in zip(choices, place, strict=True)]
        times[place] = simulated(row, taken)
    for axis, choice in enumerate(choices):
        if choice.line and sizes[axis] > 1:
            low, high = (np.take(times, [i], axis) for i in (0, 1))
            share = np.linspace(0, 1, POINTS).reshape(-1, *(1,) * (len(choices) - axis - 1))
            times = low + (high - low) * share
    assert row.time_us
    return times / float(row.time_us) - 1


def study(table: Mapping[CallRow, Array], choices: Sequence[Choice]) -> Study:
    """Choose without each group, and predict it; ``table`` has the errors of calls of one chip."""
    predictions, chosen = [], {}
    for group in dict.fromkeys(map(group_of, table)):
        places = best([array for row, array in table.items() if group_of(row) != group], choices)
        names = zip(choices, places, strict=True)
        chosen[group] = tuple(named(choice, place) for choice, place in names)
        for row, array in table.items():
            if group_of(row) == group:
                at = tuple(min(i, n - 1) for i, n in zip(places, array.shape, strict=True))
                predictions.append(Prediction(row, group, float(array[at])))
    return Study(tuple(predictions), chosen)


def best(arrays: Iterable[Array], choices: Sequence[Choice]) -> tuple[int, ...]:
    """The places with the least mean absolute error over some calls, the first of equals.

    A choice that matters to none of them has the place that stands without any call.
    """
    total: Array = np.zeros((1,) * len(choices))
    for array in arrays:
        total = total + abs(array)
    places = np.unravel_index(int(total.argmin()), total.shape)
    free = [POINTS // 2 if choice.line else 0 for choice in choices]
    return tuple(
        int(place) if size > 1 else other
        for place, size, other in zip(places, total.shape, free, strict=True)
    )


def named(choice: Choice, place: int) -> str:
    """The alternative at a place; of a line how far it is from one end to the other."""
    if not choice.line:
        return choice.alternatives[place].name
    ends = [float(one.name.removesuffix("us")) for one in choice.alternatives]
    return f"{ends[0] + (ends[1] - ends[0]) * place / (POINTS - 1):.4g}us"


def main() -> None:
    """Print the errors of every family, and what was chosen."""
    errors_rows, chosen_rows = [], []
    for chip in dict.fromkeys(choice.chip for choice in CHOICES):
        choices = [choice for choice in CHOICES if choice.chip == chip]
        table = {row: errors(row, choices) for row in rows(chip)}
        found = study(table, choices)
        for family in dict.fromkeys(row.family for row in table):
            own = [one for one in found.predictions if one.row.family == family]
            shipped = [abs(shipped_error(one.row)) for one in own]
            left_out = [abs(one.error) for one in own]
            groups = len({one.group for one in own})
            figures = (f"{100 * f(e):.1f} %" for e in (shipped, left_out) for f in (fmean, median))
            errors_rows.append((family, chip, str(len(own)), str(groups), *figures))
        everywhere = best(table.values(), choices)
        for i, choice in enumerate(choices):
            counts = Counter(names[i] for names in found.chosen.values()).most_common()
            without = ", ".join(f"{name} ({count})" for name, count in counts)
            chosen_rows.append((choice.name, chip, named(choice, everywhere[i]), without))
    print("Calls left out by mechanism: absolute error of time\n")
    head = ("family", "chip", "calls", "groups", "as shipped", "median", "left out", "median")
    print_table(head, errors_rows, 2)
    print("\nWhat was chosen by looking at calls, with all of them and without each group\n")
    print_table(("choice", "chip", "with all", "without a group (how often)"), chosen_rows, 4)


def shipped_error(row: CallRow) -> float:
    """Simulated over measured time less 1, as the program ships."""
    found = time_error(simulate_row(row, {}))
    assert found is not None
    return found


if __name__ == "__main__":
    main()
