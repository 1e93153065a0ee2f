"""Do constants fitted without some kernels predict them?

Kernels are left out a family at a time, a family's shape at a time, and a switch at a time: all
kernels with the same shape, or the same word, at once; calls one by one. The constants are fitted
to the others (``npusim.validation.fit``), and those left out are then simulated with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npusim.validation import fit, score
from npusim.validation.constants import STEPS, Constant, stated
from npusim.validation.rows import CallRow, KernelRow
from npusim.validation.simulate import Outcome

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
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Predicted:
    """Errors of scored kernels left out by shape and by switch, each family and shape counted once.

    ``mean`` and ``median`` are over shapes; ``pairs`` are those of which both rows were left out
    together.
    """

    shapes: int
    mean: float | None
    median: float | None
    pairs: tuple[score.Pair, ...]


@dataclass(frozen=True)
class Study:
    """What leaving kernels out shows, and which rows determine which constant."""

    left_out: tuple[LeftOut, ...]
    determined: tuple[fit.Determined, ...]

    @property
    def predicted(self) -> Predicted:
        """The error to expect of a kernel that nobody fitted."""
        folds = [one for one in self.left_out if one.kind in (SHAPE, SWITCH)]
        scored = [o for fold in folds for o in fold.outcomes if score.is_scored(o.row)]
        told = tuple(
            pair
            for fold in folds
            if fold.kind == SHAPE
            for pair in score.pairs([o for o in fold.outcomes if score.is_scored(o.row)])
        )
        return Predicted(*score.spread(score.by_shape(scored)), told)


def leave_one_out(
    outcomes: Sequence[Outcome],
    constants: Sequence[Constant],
    simulate: fit.Simulate,
    rows: type[KernelRow] | type[CallRow] = KernelRow,
) -> Study:
    """Return what becomes of kernels, or calls, on the devices of the ``constants`` when left out.

    ``outcomes`` are those with the shipped figures; rows that were not simulated or are not to be
    trusted take no part.
    """
    base = [o for o in outcomes if isinstance(o.row, rows) and fit.is_usable(o, constants)]
    slopes = fit.simulated_slopes(base, constants, simulate)
    found = [
        _left_out(kind, name, members, base, constants, slopes, simulate)
        for kind, name, members in (_folds(base) if rows is KernelRow else _each(base))
    ]
    told = [i for i, outcome in enumerate(base) if fit.tells(outcome)]
    telling = [base[i] for i in told], constants, [slopes[i] for i in told]
    return Study(tuple(found), tuple(fit.determination(*telling)))


def _folds(base: Sequence[Outcome]) -> Iterator[tuple[str, str, list[int]]]:
    """(kind, name, places in ``base``) of what is left out together."""
    families = [outcome.row.family for outcome in base]
    for name in dict.fromkeys(families):
        yield FAMILY, name, [i for i, family in enumerate(families) if family == name]
    scored = [i for i, outcome in enumerate(base) if score.is_scored(outcome.row)]
    shapes = {i: score.shape_of(base[i].row) for i in scored}
    for shape in dict.fromkeys(shapes.values()):
        name = f"{shape[0]} {shape[1]} {'x'.join(map(str, shape[2:]))}"
        yield SHAPE, name, [i for i in scored if shapes[i] == shape]
    words = {i: base[i].row.told for i in scored}
    for word in sorted({word for some in words.values() for word in some}):
        members = [i for i in scored if word in words[i]]
        if len(members) <= _COMMON * len(scored):
            yield SWITCH, word, members


def _each(base: Sequence[Outcome]) -> Iterator[tuple[str, str, list[int]]]:
    """The same of calls: every one alone."""
    return ((CALL, outcome.row.id, [i]) for i, outcome in enumerate(base))


def _left_out(
    kind: str,
    name: str,
    members: Sequence[int],
    base: Sequence[Outcome],
    constants: Sequence[Constant],
    slopes: fit.Slopes,
    simulate: fit.Simulate,
) -> LeftOut:
    """Fit without the ``members`` of ``base``, then simulate them."""
    own = [base[i] for i in members]
    numbers = fit.linked({fit.device_of(outcome) for outcome in own}, constants)
    near = {device for n in numbers for device in constants[n].devices}
    out = set(members)
    inside = [
        i for i, o in enumerate(base) if i not in out and fit.device_of(o) in near and fit.tells(o)
    ]
    fitted = [base[i] for i in inside], [slopes[i] for i in inside]
    # Where too few rows tell of a constant of kernels it would follow their errors.
    told = fit.determination(fitted[0], constants, fitted[1]) if kind != CALL else []
    held = [number for number, one in enumerate(told) if one.is_hypothesis]
    levels = dict.fromkeys(range(len(constants)), STEPS // 2) | fit.descend(*fitted, numbers, held)
    values = [(constants[n], constants[n].level(step)) for n, step in levels.items()]
    tasks = [
        (o.row, stated(one for one in values if fit.device_of(o) in one[0].devices)) for o in own
    ]
    predicted = simulate(tasks)
    texts = tuple(one.text(value) for one, value in values)
    errors = score.mean_time_error(own), score.mean_time_error(predicted)
    return LeftOut(kind, name, len(own), len(inside), *errors, texts, tuple(predicted))
