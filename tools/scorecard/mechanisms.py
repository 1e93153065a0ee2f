"""Kernels, calls and steps, predicted by choices that were made without them.

``python -m tools.scorecard.mechanisms`` prints the errors; it takes a few CPU minutes.

Some of what the model says of a chip was chosen by looking at measured rows: figures of the device,
mechanisms, and how the launches of a call are read. ``CHOICES`` lists them with what else they
could be and the rows that decide them. Rows are left out a group at a time: calls of one family,
one chip and one power of ten of work, scored kernels of one shape, steps of one network. The
choices are made again on all other rows that decide them, and what was left out is predicted with
them. The first alternative of a choice is what one would take without any measured row; it stands
where no other row tells.

**To add a choice**, add a row to ``CHOICES``: its name, the chip, the families of calls or of
streaming kernels that decide it (``SCORED`` for the scored kernels of a chip, ``STEPS`` for its
steps), and its alternatives, the one without measurements first, the one that ships last. An
alternative changes figures of the device (``_figures``), or names of modules and classes
(``_names``); a figure between two ends is a ``line``. Choices of a chip that the same sort of row
decides are made together. Figures that ``fit.yaml`` has need no row: ``python -m tools.scorecard``
fits them again. ``--only WORD`` makes the choices whose names have the word, with all others as
they ship.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

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
from npusim.results.facts.spread import LeftOutRow
from npusim.silicon import call_rows
from npusim.silicon.rows import CallRow, NetworkRow, Row
from npusim.silicon.score import is_scored, time_error
from npusim.silicon.sheet import shipped_sheets, shipped_steps
from npusim.silicon.simulate import simulate_row
from tools.scorecard.evidence import FILE, Group, group_of, left_out_row, renew, work_of

#: Families of calls that the headline is about. Transposes are no layers, and nobody listed the
#: kernels of KernelBench's calls.
FAMILIES = ("CONV2D-FWD", "DW-CONV2D-FWD", "DW3D", "GEMM")
_CONVOLUTIONS = ("CONV2D-FWD", "DW-CONV2D-FWD", "DW3D")

#: Families without calls on a chip.
_UNMEASURED = {("950PR", "DW-CONV2D-FWD"), ("950PR", "GEMM")}

#: Sorts of rows that decide a choice. Choices name calls and streaming kernels by their families;
#: all scored kernels, and all steps, have one name.
KERNELS, CALLS, STEPS = "kernels", "calls", "steps"
SCORED = "scored kernels"
_STREAMS = ("ASC-ADD", "ASC-GELU", "ASC-COPY", "ASC-ND2NZ")
_SORTS = {SCORED: KERNELS, **dict.fromkeys(_STREAMS, KERNELS), STEPS: STEPS}

Places = tuple[int, ...]


@dataclass(frozen=True)
class Alternative:
    """One way to choose: figures of the device, names replaced, kernels not counted."""

    name: str
    figures: Mapping[str, str] | None = None
    patches: Sequence[tuple[Any, str, Any]] = ()
    uncounted: str = ""


@dataclass(frozen=True)
class Choice:
    """A choice for a chip that rows of some families decide.

    ``line`` chooses between its two alternatives, too.
    """

    name: str
    chip: str
    decided_by: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    line: bool = False

    @property
    def sort(self) -> str:
        """The sort of rows that decide it: kernels, calls or steps."""
        (sort,) = {_SORTS.get(name, CALLS) for name in self.decided_by}
        return sort

    @property
    def places(self) -> int:
        """How many ways to choose are looked at."""
        return POINTS if self.line else len(self.alternatives)

    @property
    def free(self) -> int:
        """The place that stands where no row tells."""
        return POINTS // 2 if self.line else 0


#: Points of a straight line that are looked at, its ends included.
POINTS = 13

#: What a core alone gets of main memory: of a move to L1 and L0, and to UB.
_ALONE = (
    *(f"paths.{path}.memory_rate" for path in ("GM->L1", "GM->L1.nd2nz", "GM->L0A", "GM->L0B")),
    "paths.GM->UB.memory_rate",
)


def _memory(chip: str, decided_by: tuple[str, ...], streams: tuple[str, ...]) -> tuple[Choice, ...]:
    """What a core alone gets of main memory, and what turning its bus around takes."""
    most = ("10TB/s",) * len(_ALONE)  # more than any path brings
    alone = (*("155GB/s",) * (len(_ALONE) - 1), "96GB/s")
    rates = (
        Alternative("no limit", dict(zip(_ALONE, most, strict=True))),
        Alternative("155GB/s", dict(zip(_ALONE, alone, strict=True))),
    )
    return (
        Choice("main memory of a core alone", chip, decided_by, rates),
        Choice(
            "turnaround of the bus",
            chip,
            streams,
            _figures(["links.hbm.turnaround"], ["0.01%"], ["11%"]),
        ),
    )


_IMG2COL = "paths.L1->L0B.load3d.window", "paths.L1->L0A.load3d_transpose.rate"


def _figures(paths: Iterable[str], *values: Sequence[str]) -> tuple[Alternative, ...]:
    """Alternatives that give each of some figures a value."""
    return tuple(
        Alternative(" ".join(texts), dict(zip(paths, texts, strict=True))) for texts in values
    )


def _launches(chip: str, least: str, most: str) -> tuple[Choice, Choice]:
    """The cost of a launch: of each core, and of a tiling computed at run time."""
    core = _figures(["launch.core"], [least], [most])
    tiling = _figures(["launch.tiling"], ["0us"], ["1.3us"])
    families = tuple(family for family in FAMILIES if (chip, family) not in _UNMEASURED)
    return (
        Choice("launch.core", chip, families, core, line=True),
        Choice("launch.tiling", chip, families, tiling),
    )


def _names(attribute: str, *values: tuple[str, Any], of: Any = call_rows) -> Any:
    """Alternatives that give a name of a module or a class a value."""
    return tuple(Alternative(name, patches=((of, attribute, value),)) for name, value in values)


def _cores(chip: str, families: tuple[str, ...]) -> Choice:
    """The least bound of a tiling of the library, with the launch of each core in it or without."""
    with_cores = lambda work, _: busy_cycles(work) + work.beside  # noqa: E731
    values = ("counts", with_cores), ("does not count", library._weighed)
    alternatives = _names("_weighed", *values, of=library)
    return Choice("launch of cores in tilings", chip, families, alternatives)


_CAST = call_rows._cast_of_bias


def _empty_cast(row: CallRow, device: Device) -> list[KernelRun]:
    """A cast of the bias that launches and has nothing to do."""
    launch = device.launch.cycles("vector", device.count("vector"))
    return [replace(run, cycles=0, launch_cycles=launch) for run in _CAST(row, device)]


CHOICES = (
    *_memory("910B1", (SCORED, "ASC-ADD", "ASC-COPY"), ("ASC-ADD", "ASC-COPY")),
    *_memory("950PR", (SCORED,), ("ASC-ADD", "ASC-GELU", "ASC-COPY")),
    *_launches("910B2", "0.05us", "0.2us"),
    Choice(
        "img2col into L0B, transposed into L0A",
        "910B2",
        ("DW3D",),
        _figures(
            _IMG2COL,
            *(("128B", "256B/cycle"), ("64B", "256B/cycle"), ("64B", "128B/cycle")),
            *(("64B", "64B/cycle"), ("128B", "64B/cycle")),
        ),
    ),
    Choice(
        "launches of a call with groups",
        "910B2",
        ("CONV2D-FWD", "DW-CONV2D-FWD"),
        _names("_GROUPED", ("those here", 0), ("six", 6), ("seven", 7)),
    ),
    Choice(
        "weights in groups",
        "910B2",
        ("CONV2D-FWD", "DW-CONV2D-FWD"),
        _names(
            "LibraryGroups",
            ("as without", TransData),
            ("group by group", LibraryGroups),
            of=conv_launch,
        ),
    ),
    Choice(
        "pieces of a move inside UB",
        "910B2",
        ("CONV2D-FWD", "DW-CONV2D-FWD"),
        _figures(["paths.UB->UB.row"], ["0cycle"], ["2cycle"]),
    ),
    Choice(
        "conversions of images",
        "910B2",
        ("CONV2D-FWD", "DW-CONV2D-FWD"),
        _names(
            "LibraryMaps",
            ("turned once", TransData),
            ("turned twice", LibraryMaps),
            of=conv_launch,
        ),
    ),
    Choice(
        "cast of a forward convolution",
        "910B2",
        ("CONV2D-FWD",),
        (
            *_names("_cast_of_bias", ("empty", _empty_cast)),
            *_names("_cast_of_bias", ("of the bias", _CAST)),
            Alternative("none", uncounted="Cast"),
        ),
    ),
    Choice(
        "MemSet of a forward convolution",
        "910B2",
        ("CONV2D-FWD",),
        (Alternative("empty"), Alternative("none", uncounted="MemSet")),
    ),
    Choice(
        "tiling of convolutions whose rule is not known",
        "910B2",
        _CONVOLUTIONS,
        _names("_LIBRARY_TILING", ("auto", "auto"), ("library", "library")),
    ),
    _cores("910B2", _CONVOLUTIONS),
    *_launches("950PR", "0.03us", "0.1us"),
    Choice(
        "window of img2col into L0B",
        "950PR",
        ("DW3D",),
        _figures(["paths.L1->L0B.load3d.window"], ["256B"], ["128B"], ["64B"]),
    ),
    Choice(
        "tiling of convolutions whose rule is not known",
        "950PR",
        ("CONV2D-FWD",),
        _names("_LIBRARY_TILING", ("auto", "auto"), ("library", "library")),
    ),
    _cores("950PR", ("CONV2D-FWD", "DW3D")),
)


@dataclass(frozen=True)
class Prediction:
    """A row, its group, and its simulated over its measured time less 1, chosen without it."""

    row: Row
    group: Group
    error: float


@dataclass(frozen=True)
class Study:
    """The errors of rows that are left out, and by group the choice made without it."""

    predictions: tuple[Prediction, ...]
    chosen: Mapping[Group, tuple[str, ...]]


def rows(chip: str, families: Collection[str] = FAMILIES) -> list[Row]:
    """The measured rows of a chip that decide choices of some families."""
    sheets = (*shipped_sheets(), shipped_steps())
    known = [row for sheet in sheets for row in sheet.rows if isinstance(row, Row)]
    measured = [row for row in known if row.chip == chip and row.time_us]
    return [row for row in measured if _family(row) in families]


def calls(chip: str) -> list[CallRow]:
    """The measured calls of a chip that the headline is about."""
    return [row for row in rows(chip) if isinstance(row, CallRow)]


def _family(row: Row) -> str:
    """The word by which choices name the rows that decide them."""
    if isinstance(row, CallRow):
        return row.family
    if not work_of(row):
        return ""
    if isinstance(row, NetworkRow):
        return STEPS
    return SCORED if is_scored(row) else row.family


def simulated(row: Row, alternatives: Sequence[Alternative]) -> float:
    """The time of a row in microseconds under one alternative of every choice."""
    figures: dict[str, str] = {}
    with ExitStack() as stack:
        for alternative in alternatives:
            figures |= alternative.figures or {}
            for place, name, value in alternative.patches:
                stack.enter_context(patch.object(place, name, value))
            if (
                alternative.uncounted
                and isinstance(row, CallRow)
                and row.call == call_rows._FORWARD
            ):
                kernels = row.kernels
                counted = tuple(k for k in kernels if not k.startswith(alternative.uncounted))
                row = replace(row, kernels=counted)
        outcome = simulate_row(row, figures)
    assert outcome.simulated is not None, outcome.reason
    return outcome.simulated.time_us


class Errors:
    """Simulated over measured time less 1 of a row, by the places of the choices made.

    ``moves`` says which choices matter to the row: one of their alternatives moves it, all else as
    it comes first or all else as it comes last. A time is simulated when it is first asked for;
    between the ends of a line times lie on a line.
    """

    def __init__(self, row: Row, choices: Sequence[Choice]) -> None:
        self.row = row
        self.choices = choices
        self.times_us: dict[Places, float] = {}
        self.errors: dict[Places, float] = {}
        self.moves = tuple(True for _ in choices)
        self.moves = tuple(self._moves(i) for i in range(len(choices)))

    def at(self, places: Places) -> float:
        """The error where each choice is at its place."""
        assert self.row.time_us
        mattering = tuple(
            place if moves else 0 for place, moves in zip(places, self.moves, strict=True)
        )
        if mattering not in self.errors:
            self.errors[mattering] = self._time_us(mattering) / float(self.row.time_us) - 1
        return self.errors[mattering]

    def _moves(self, i: int) -> bool:
        for end in (0, -1):
            corner = [range(len(choice.alternatives))[end] for choice in self.choices]
            times_us = []
            for place in range(len(self.choices[i].alternatives)):
                corner[i] = place
                times_us.append(self._corner_us(tuple(corner)))
            if max(times_us) > (1 + 1e-6) * min(times_us):
                return True
        return False

    def _time_us(self, places: Places) -> float:
        """The time between the corners around ``places``."""
        corners: dict[Places, float] = {(): 1.0}
        for choice, place in zip(self.choices, places, strict=True):
            share = place / (POINTS - 1)
            ends = {0: 1 - share, 1: share} if choice.line else {place: 1.0}
            corners = {
                (*corner, end): weight * part
                for corner, weight in corners.items()
                for end, part in ends.items()
                if part
            }
        return sum(weight * self._corner_us(corner) for corner, weight in corners.items())

    def _corner_us(self, alternatives: Places) -> float:
        """The time of one alternative of every choice; those that do not matter are the first."""
        corner = tuple(
            place if moves else 0 for place, moves in zip(alternatives, self.moves, strict=True)
        )
        if corner not in self.times_us:
            pairs = zip(self.choices, corner, strict=True)
            taken = [choice.alternatives[place] for choice, place in pairs]
            self.times_us[corner] = simulated(self.row, taken)
        return self.times_us[corner]


def study(table: Mapping[Row, Errors], choices: Sequence[Choice]) -> Study:
    """Choose without each group, and predict it; ``table`` has the errors of rows of one chip."""
    predictions: list[Prediction] = []
    chosen: dict[Group, tuple[str, ...]] = {}
    for group in dict.fromkeys(map(group_of, table)):
        others = [errors for row, errors in table.items() if group_of(row) != group]
        places = best(others, choices)
        pairs = zip(choices, places, strict=True)
        chosen[group] = tuple(named(choice, place) for choice, place in pairs)
        for row, errors in table.items():
            if group_of(row) == group:
                predictions.append(Prediction(row, group, errors.at(places)))
    return Study(tuple(predictions), chosen)


def best(rows_to_suit: Sequence[Errors], choices: Sequence[Choice]) -> Places:
    """The places with the least mean absolute error over some rows.

    Every two choices in turn take their best places, the first of equals, until none moves; begun
    with the last alternatives and one or no choice elsewhere, of which the best end counts. (One
    choice after the other ends in places that are best for neither: calls of two families were then
    left out with 13.3 and 23.3 %, by all combinations with 10.5 and 15.5 %.) A choice that matters
    to none of the rows has the place that stands without any.
    """
    last = tuple(
        choice.places - 1 if any(errors.moves[i] for errors in rows_to_suit) else choice.free
        for i, choice in enumerate(choices)
    )
    starts = [last]
    for i, choice in enumerate(choices):
        if last[i] != choice.free or not choice.line:
            ends = (0, choice.free) if choice.line else range(choice.places)
            starts += [_with(last, i, place) for place in ends]
    ends_of_descents = [_descended(start, rows_to_suit, choices) for start in starts]
    return min(ends_of_descents, key=lambda places: _total_error(rows_to_suit, places))


#: Rounds after which a descent ends wherever it is.
_ROUNDS = 10


def _descended(start: Places, rows_to_suit: Sequence[Errors], choices: Sequence[Choice]) -> Places:
    """The places from which no two choices get better."""
    mattering = [i for i in range(len(choices)) if any(errors.moves[i] for errors in rows_to_suit)]
    pairs = [*combinations(mattering, 2)] or [(i, i) for i in mattering]
    places = start
    for _ in range(_ROUNDS):
        before = places
        for i, j in pairs:
            moved = [errors for errors in rows_to_suit if errors.moves[i] or errors.moves[j]]
            ways = [
                _with(_with(places, i, first), j, second)
                for first in range(choices[i].places)
                for second in range(choices[j].places)
            ]
            better = min(ways, key=lambda way: _total_error(moved, way))
            if _total_error(moved, better) < _total_error(moved, places):
                places = better
        if places == before:
            break
    return places


def _with(places: Places, i: int, place: int) -> Places:
    """Places of which choice ``i`` has another."""
    return (*places[:i], place, *places[i + 1 :])


def _total_error(rows_to_suit: Iterable[Errors], places: Places) -> float:
    return sum(abs(errors.at(places)) for errors in rows_to_suit)


def named(choice: Choice, place: int) -> str:
    """The alternative at a place; of a line how far it is from one end to the other."""
    if not choice.line:
        return choice.alternatives[place].name
    low, high = (parts_of(alternative.name) for alternative in choice.alternatives)
    return f"{low[0] + (high[0] - low[0]) * place / (POINTS - 1):.4g}{low[1]}"


def parts_of(quantity: str) -> tuple[float, str]:
    """Number and unit of a quantity such as ``0.2us``."""
    number = re.match(r"[\d.]+", quantity)
    assert number is not None, quantity
    return float(number[0]), quantity[number.end() :]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errors of every family, and what was chosen."""
    parser = argparse.ArgumentParser(prog="python -m tools.scorecard.mechanisms")
    parser.add_argument("--only", default="", metavar="WORD", help="choices with it in their names")
    parser.add_argument("--evidence", action="store_true", help=f"write the calls of {FILE.name}")
    options = parser.parse_args(arguments)
    chosen_choices = [choice for choice in CHOICES if options.only in choice.name]
    errors_rows: list[tuple[str, ...]] = []
    chosen_rows: list[tuple[str, ...]] = []
    predicted: dict[Row, LeftOutRow] = {}
    for chip, sort in dict.fromkeys((choice.chip, choice.sort) for choice in chosen_choices):
        choices = [c for c in chosen_choices if (c.chip, c.sort) == (chip, sort)]
        families = {family for choice in choices for family in choice.decided_by}
        table = {
            row: Errors(row, choices)
            for row in rows(chip, families)
            if simulate_row(row, {}).simulated is not None
        }
        found = study(table, choices)
        errors_rows += _errors_of_families(chip, found)
        chosen_rows += _chosen(chip, choices, found, best([*table.values()], choices))
        for prediction in found.predictions:
            time_us = (1 + prediction.error) * (prediction.row.time_us or 0.0)
            evidence = left_out_row(prediction.row, time_us)
            if evidence is not None and sort == CALLS:
                predicted[prediction.row] = evidence
    print("Left out by mechanism: absolute error of time\n")
    head = ("family", "chip", "rows", "groups", "as shipped", "median", "left out", "median")
    print_table(head, errors_rows, 2)
    print("\nWhat was chosen by looking at rows, with all of them and without each group\n")
    columns = ("choice", "chip", "decided by", "with all", "without a group (how often)")
    print_table(columns, chosen_rows, 5)
    if options.evidence:
        renew(predicted.values(), [row.id for row in predicted])


def _errors_of_families(chip: str, found: Study) -> list[tuple[str, ...]]:
    """A row for each family of a study: errors as shipped and left out."""
    rows_of_table = []
    for family in dict.fromkeys(_family(one.row) for one in found.predictions):
        of_family = [one for one in found.predictions if _family(one.row) == family]
        shipped = [abs(shipped_error(one.row)) for one in of_family]
        left_out = [abs(one.error) for one in of_family]
        groups = len({one.group for one in of_family})
        cells = [
            f"{100 * value(errors):.1f} %"
            for errors in (shipped, left_out)
            for value in (fmean, median)
        ]
        rows_of_table.append((family, chip, str(len(of_family)), str(groups), *cells))
    return rows_of_table


def _chosen(
    chip: str, choices: Sequence[Choice], found: Study, everywhere: Places
) -> list[tuple[str, ...]]:
    """A row for each choice: what all rows choose, and the others of each group."""
    rows_of_table: list[tuple[str, ...]] = []
    for i, choice in enumerate(choices):
        counts = Counter(names[i] for names in found.chosen.values()).most_common()
        without = ", ".join(f"{name} ({count})" for name, count in counts)
        families = " ".join(choice.decided_by)
        with_all = named(choice, everywhere[i])
        rows_of_table.append((choice.name, chip, families, with_all, without))
    return rows_of_table


def shipped_error(row: Row) -> float:
    """Simulated over measured time less 1, as the program ships."""
    found = time_error(simulate_row(row, {}))
    assert found is not None
    return found


if __name__ == "__main__":
    main()
