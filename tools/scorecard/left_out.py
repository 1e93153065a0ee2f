"""Kernels and calls predicted with constants that were fitted without them.

Kernels are left out a family at a time, a family's shape at a time, and a switch at a time: all
kernels with the same shape, or the same word, at once; calls one by one. The constants are fitted
to the others (``npusim.silicon.fit``), and those left out are then simulated with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from npusim.silicon import score
from npusim.silicon.constants import STEPS, Constant, stated
from npusim.silicon.fit import (
    Determined,
    Simulate,
    Slopes,
    descend,
    determination,
    device_of,
    is_usable,
    linked,
    simulated_slopes,
    tells,
)
from npusim.silicon.rows import CallRow, KernelRow
from npusim.silicon.simulate import RowOutcome

#: How kernels are left out.
FAMILY, SHAPE, SWITCH, CALL = "family", "shape", "switch", "call"

#: Share of the scored kernels above which a word is no switch: nothing would be left to fit to.
_COMMON = 0.5


@dataclass(frozen=True)
class LeftOut:
    """Kernels that no constant was fitted to: mean absolute errors of time, and the constants.

    ``shipped`` is the error with the figures of the device files, ``predicted`` that with the
    constants fitted to the ``others`` rows; ``values`` are those constants as text, in the order
    they were given. ``outcomes`` are the predictions.
    """

    kind: str
    name: str
    rows: int
    others: int
    shipped: float | None
    predicted: float | None
    values: tuple[str, ...]
    outcomes: tuple[RowOutcome, ...] = ()


@dataclass(frozen=True)
class Predicted:
    """Errors of scored kernels left out by shape and by switch, each family and shape counted once.

    ``mean`` and ``median`` are over shapes; ``pairs`` are those of which both rows were left out
    together.
    """

    shapes: int
    mean: float | None
    median: float | None
    pairs: tuple[score.RowPair, ...]


@dataclass(frozen=True)
class Study:
    """Predictions of what was left out, and the rows that determine each constant."""

    left_out: tuple[LeftOut, ...]
    determined: tuple[Determined, ...]

    @property
    def predicted(self) -> Predicted:
        """The error to expect of a kernel that nobody fitted."""
        folds = [fold for fold in self.left_out if fold.kind in (SHAPE, SWITCH)]
        scored = [o for fold in folds for o in fold.outcomes if score.is_scored(o.row)]
        shapes, mean, median = score.spread(score.by_shape(scored))
        pairs: list[score.RowPair] = []
        for fold in folds:
            if fold.kind == SHAPE:
                pairs += score.pairs([o for o in fold.outcomes if score.is_scored(o.row)])
        return Predicted(shapes, mean, median, tuple(pairs))


class Fold(NamedTuple):
    """Rows left out together, by their places among the usable ones."""

    kind: str
    name: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class _Fits:
    """The usable rows, and how each of them changes with each constant."""

    base: Sequence[RowOutcome]
    constants: Sequence[Constant]
    slopes: Slopes
    simulate: Simulate


def leave_one_out(
    outcomes: Sequence[RowOutcome],
    constants: Sequence[Constant],
    simulate: Simulate,
    rows: type[KernelRow] | type[CallRow] = KernelRow,
) -> Study:
    """Fit without kernels, or calls, on the devices of the ``constants``, and predict these.

    ``outcomes`` are those with the shipped figures; rows that were not simulated or are not to be
    trusted take no part.
    """
    base = [o for o in outcomes if isinstance(o.row, rows) and is_usable(o, constants)]
    slopes = simulated_slopes(base, constants, simulate)
    fits = _Fits(base, constants, slopes, simulate)
    folds = _folds_of_kernels(base) if rows is KernelRow else _folds_of_calls(base)
    left_out = tuple(_left_out(fits, fold) for fold in folds)
    telling = [place for place, outcome in enumerate(base) if tells(outcome)]
    determined = determination(
        [base[place] for place in telling], constants, [slopes[place] for place in telling]
    )
    return Study(left_out, tuple(determined))


def _folds_of_kernels(base: Sequence[RowOutcome]) -> Iterator[Fold]:
    """Families, then shapes, then switches, the latter two of scored kernels alone."""
    families = [outcome.row.family for outcome in base]
    for name in dict.fromkeys(families):
        members = (place for place, family in enumerate(families) if family == name)
        yield Fold(FAMILY, name, tuple(members))
    scored = [place for place, outcome in enumerate(base) if score.is_scored(outcome.row)]
    shapes = {place: score.shape_of(base[place].row) for place in scored}
    for shape in dict.fromkeys(shapes.values()):
        family, chip, *sizes = shape
        name = f"{family} {chip} {'x'.join(map(str, sizes))}"
        yield Fold(SHAPE, name, tuple(place for place in scored if shapes[place] == shape))
    words = {place: base[place].row.words for place in scored}
    for word in sorted({word for words_of_row in words.values() for word in words_of_row}):
        members_with_word = tuple(place for place in scored if word in words[place])
        if len(members_with_word) <= _COMMON * len(scored):
            yield Fold(SWITCH, word, members_with_word)


def _folds_of_calls(base: Sequence[RowOutcome]) -> Iterator[Fold]:
    """Every call alone."""
    for place, outcome in enumerate(base):
        yield Fold(CALL, outcome.row.id, (place,))


def _left_out(fits: _Fits, fold: Fold) -> LeftOut:
    """Fit without the members of a fold, then simulate them."""
    base, constants = fits.base, fits.constants
    members = [base[place] for place in fold.members]
    numbers = linked({device_of(outcome) for outcome in members}, constants)
    near = {device for number in numbers for device in constants[number].devices}
    others = [
        place
        for place, outcome in enumerate(base)
        if place not in fold.members and device_of(outcome) in near and tells(outcome)
    ]
    fitted = [base[place] for place in others]
    slopes = [fits.slopes[place] for place in others]
    hypotheses: list[int] = []
    if fold.kind != CALL:
        # Where too few rows tell of a constant of kernels it would follow their errors.
        determined = determination(fitted, constants, slopes)
        hypotheses = [number for number, row in enumerate(determined) if row.is_hypothesis]
    levels = dict.fromkeys(range(len(constants)), STEPS // 2)
    levels |= descend(fitted, slopes, numbers, hypotheses)
    values = [(constants[number], constants[number].level(step)) for number, step in levels.items()]
    predicted = fits.simulate([
        (member.row, stated(pair for pair in values if device_of(member) in pair[0].devices))
        for member in members
    ])  # fmt: skip
    return LeftOut(
        kind=fold.kind,
        name=fold.name,
        rows=len(members),
        others=len(others),
        shipped=score.mean_time_error(members),
        predicted=score.mean_time_error(predicted),
        values=tuple(constant.text(value) for constant, value in values),
        outcomes=tuple(predicted),
    )
