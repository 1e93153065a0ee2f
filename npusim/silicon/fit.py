"""Fitting constants to measured kernels: a model of broken lines, and a descent on it.

Every kernel is simulated with the shipped figures and with every constant of its device at both
ends of its range; in between, its time and busy times are taken as sums of one broken line per
constant. Each family and shape weighs the same, however many switches of it were measured; busy
times of MTE2 count where it is the busiest pipe, for elsewhere they show how cores fall into step.

Do constants fitted without some kernels predict them? Kernels are left out a family at a time, a
family's shape at a time, and a switch at a time: all kernels with the same shape, or the same word,
at once; calls one by one. The constants are fitted to the others, and those left out are then
simulated with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from npusim.silicon import score
from npusim.silicon.constants import STEPS, Constant, stated
from npusim.silicon.rows import CallRow, Declined, KernelRow, Measured
from npusim.silicon.score import (
    ADDRESS_WORDS,
    SCORED_PIPES,
    WAITING_WORDS,
    busiest,
    shape_of,
)
from npusim.silicon.simulate import Outcome, Task, device_name

#: Simulates tasks in their order.
Simulate = Callable[[Sequence[Task]], list[Outcome]]

Array = npt.NDArray[np.float64]

#: Trust of the rows that a fit may use.
_FITTED_TO = ("A", "B")

#: Loss per row that another turn of the descent has to gain.
_GAIN = 1e-6

#: Share of a row's time or busy time that a constant's range must move for the row to tell of it,
#: and rows that must tell of a constant for it to be more than a hypothesis.
TELLING, ENOUGH = 0.02, 3


def is_usable(outcome: Outcome, constants: Sequence[Constant]) -> bool:
    """Whether a fit may use a row: a trusted one that runs on a device of a constant."""
    row = outcome.row
    return (
        isinstance(row, KernelRow | CallRow)
        and row.trust in _FITTED_TO
        and outcome.simulated is not None
        and any(device_of(outcome) in constant.devices for constant in constants)
    )


def tells(outcome: Outcome) -> bool:
    """Whether constants are fitted to a usable row, which may also be there to be predicted only.

    A kernel that measures what the model leaves out would pull constants away from what they mean,
    and so would transposes, which no convolution or product launches.
    """
    row = outcome.row
    return getattr(row, "call", "") != "transpose" and not ADDRESS_WORDS & row.words


def device_of(outcome: Outcome) -> str:
    """Return the device of a row's chip, "" where there is none."""
    row = outcome.row
    try:
        return device_name(row)[0] if isinstance(row, KernelRow | CallRow) else ""
    except Declined:
        return ""


def linked(devices: set[str], constants: Sequence[Constant]) -> list[int]:
    """Return the constants, by number, that share devices with ``devices``, however indirectly."""
    reached, found = set(devices), -1
    while found < len(reached):
        found = len(reached)
        for constant in constants:
            if reached & set(constant.devices):
                reached |= set(constant.devices)
    return [i for i, constant in enumerate(constants) if reached & set(constant.devices)]


@dataclass(frozen=True)
class _Figures:
    """The measured figures of a row, the simulated ones, and their weights, as vectors."""

    measured: Array
    simulated: Array
    weight: Array


def _figures(outcome: Outcome, like: Outcome) -> _Figures:
    """Time, and a kernel's busy times that are measured and that ``like`` simulates, in its order.

    All busy times together weigh as much as the time.
    """
    row, simulated, first = outcome.row, outcome.simulated, like.simulated
    assert simulated is not None
    assert first is not None
    pairs = [(row.time_us, simulated.time_us)] if row.time_us else []
    times = len(pairs)
    pairs += [
        (row.busy_us[pipe], simulated.busy_us.get(pipe) or 0.0)
        for pipe in _telling(row)
        if row.busy_us.get(pipe) and first.busy_us.get(pipe)
    ]
    busy = len(pairs) - times
    weight = [1.0] * times + [1.0 / busy if busy else 0.0] * busy
    measured, found = np.array(pairs, dtype=float).reshape(-1, 2).T
    return _Figures(measured, found, np.array(weight))


def _telling(row: Measured) -> list[str]:
    """The pipes whose busy times a fit looks at."""
    waits = {"fixpipe"} if WAITING_WORDS & row.words else set()
    if busiest(row) != "mte2":
        waits.add("mte2")
    return [pipe for pipe in SCORED_PIPES if pipe not in waits]


#: Change of a row's figures, by row and constant, at each level of the range.
Slopes = list[list[Array]]


def simulated_slopes(
    base: Sequence[Outcome], constants: Sequence[Constant], simulate: Simulate
) -> Slopes:
    """Simulate every row with every constant of its device at both ends of its range."""
    wanted = [
        (place, number, end)
        for place, outcome in enumerate(base)
        for number, constant in enumerate(constants)
        if device_of(outcome) in constant.devices
        for end in ("low", "high")
    ]
    tasks = [
        (base[place].row, constants[number].figures(getattr(constants[number], end)))
        for place, number, end in wanted
    ]
    ends = dict(zip(wanted, simulate(tasks), strict=True))
    return [
        [
            _levels(outcome, constant, *(ends.get((place, number, end)) for end in ("low", "high")))
            for number, constant in enumerate(constants)
        ]
        for place, outcome in enumerate(base)
    ]


def _levels(base: Outcome, constant: Constant, low: Outcome | None, high: Outcome | None) -> Array:
    """Return the change of a row's figures, one line per level; zeros where nothing depends."""
    middle = _figures(base, base).simulated
    places, changes = [constant.shipped], [np.zeros_like(middle)]
    for value, outcome in ((constant.low, low), (constant.high, high)):
        # An end at which the row cannot be simulated says nothing; the line goes on level.
        if value != constant.shipped and outcome is not None and outcome.simulated is not None:
            places.append(value)
            changes.append(_figures(outcome, base).simulated - middle)
    # The time of what a rate bounds is straight in the rate's inverse.
    scale = np.reciprocal if constant.kind == "rate" else np.asarray
    x = scale(np.array(places, dtype=float))
    order = np.argsort(x)
    x, y = x[order], np.array(changes)[order]
    at = scale(np.array([constant.level(step) for step in range(STEPS + 1)], dtype=float))
    columns = [np.interp(at, x, y[:, column]) for column in range(len(middle))]
    return np.array(columns).T.reshape(STEPS + 1, len(middle))


@dataclass(frozen=True)
class Lines:
    """Rows as sums of broken lines, one per constant of ``numbers``; figures in one vector.

    ``change[c]`` is the change at each level of the constant ``numbers[c]``.
    """

    numbers: tuple[int, ...]
    measured: Array
    middle: Array
    weight: Array
    change: tuple[Array, ...]

    @classmethod
    def of(cls, base: Sequence[Outcome], slopes: Slopes, numbers: Sequence[int]) -> Lines:
        """Return the model of the rows ``base``, at least one, around what was simulated."""
        parts = [_figures(outcome, outcome) for outcome in base]
        shapes = [shape_of(outcome.row) for outcome in base]
        alike = Counter(shapes)
        each = [part.weight / alike[shape] for part, shape in zip(parts, shapes, strict=True)]
        return cls(
            tuple(numbers),
            np.concatenate([part.measured for part in parts]),
            np.concatenate([part.simulated for part in parts]),
            np.concatenate(each) / len(alike),
            tuple(np.concatenate([row[c] for row in slopes], axis=1) for c in numbers),
        )

    def losses(self, steps: Sequence[int], moved: tuple[int, ...]) -> Array:
        """The loss at all levels of the ``moved`` constants, an axis each, others at ``steps``."""
        count = range(len(self.numbers))
        found = sum((self.change[c][steps[c]] for c in count if c not in moved), self.middle)
        for c in moved:
            found = found[..., np.newaxis, :] + self.change[c]
        loss: Array = np.abs(found / self.measured - 1) @ self.weight
        return loss


def loss(base: Sequence[Outcome], outcomes: Sequence[Outcome]) -> float:
    """Return the loss of simulations of the rows of ``base``; infinite where one is missing."""
    if any(outcome.simulated is None for outcome in outcomes):
        return np.inf
    model = Lines.of(base, [], ())
    pairs = zip(outcomes, base, strict=True)
    found = np.concatenate([_figures(outcome, like).simulated for outcome, like in pairs])
    return float(np.abs(found / model.measured - 1) @ model.weight)


def descend(
    base: Sequence[Outcome], slopes: Slopes, numbers: Sequence[int], held: Collection[int] = ()
) -> dict[int, int]:
    """Return the level of each constant of ``numbers`` that suits the rows best, by number.

    This is as far as a descent finds it. It begins in the middle of every range, so that nothing of
    the shipped values is left, and there stay the constants ``held``. Two move at a time: one alone
    finds no way along a valley.
    """
    steps, best = [STEPS // 2] * len(numbers), np.inf
    free = [place for place, number in enumerate(numbers) if number not in held]
    model = Lines.of(base, slopes, numbers) if base and free else None
    while model is not None:
        for moved in combinations(free, min(2, len(free))):
            losses = model.losses(steps, moved)
            least = losses.min()
            if least < losses[tuple(steps[c] for c in moved)]:
                found = np.unravel_index(losses.argmin(), losses.shape)
                for c, step in zip(moved, found, strict=True):
                    steps[c] = int(step)
        if not best - least > _GAIN:
            break
        best = float(least)
    return dict(zip(numbers, steps, strict=True))


@dataclass(frozen=True)
class Determined:
    """The rows that tell of a constant: those whose figures its range moves by ``TELLING``."""

    constant: Constant
    rows: tuple[str, ...]

    @property
    def is_hypothesis(self) -> bool:
        """Whether fewer than ``ENOUGH`` rows tell of it."""
        return len(self.rows) < ENOUGH


def determination(
    base: Sequence[Outcome], constants: Sequence[Constant], slopes: Slopes
) -> list[Determined]:
    """Return which rows determine each constant, by finite differences over its range."""
    found = []
    for number, constant in enumerate(constants):
        rows = []
        for outcome, lines in zip(base, slopes, strict=True):
            figures = _figures(outcome, outcome)
            moved = np.ptp(lines[number], axis=0) / figures.measured
            if moved.size and moved.max() > TELLING:
                rows.append(outcome.row.id)
        found.append(Determined(constant, tuple(rows)))
    return found


# -- kernels left out ------------------------------------------------------------------------------


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
    determined: tuple[Determined, ...]

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
    simulate: Simulate,
    rows: type[KernelRow] | type[CallRow] = KernelRow,
) -> Study:
    """Return what becomes of kernels, or calls, on the devices of the ``constants`` when left out.

    ``outcomes`` are those with the shipped figures; rows that were not simulated or are not to be
    trusted take no part.
    """
    base = [o for o in outcomes if isinstance(o.row, rows) and is_usable(o, constants)]
    slopes = simulated_slopes(base, constants, simulate)
    found = [
        _left_out(kind, name, members, base, constants, slopes, simulate)
        for kind, name, members in (_folds(base) if rows is KernelRow else _each(base))
    ]
    told = [i for i, outcome in enumerate(base) if tells(outcome)]
    telling = [base[i] for i in told], constants, [slopes[i] for i in told]
    return Study(tuple(found), tuple(determination(*telling)))


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
    words = {i: base[i].row.words for i in scored}
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
    slopes: Slopes,
    simulate: Simulate,
) -> LeftOut:
    """Fit without the ``members`` of ``base``, then simulate them."""
    own = [base[i] for i in members]
    numbers = linked({device_of(outcome) for outcome in own}, constants)
    near = {device for n in numbers for device in constants[n].devices}
    out = set(members)
    inside = [i for i, o in enumerate(base) if i not in out and device_of(o) in near and tells(o)]
    fitted = [base[i] for i in inside], [slopes[i] for i in inside]
    # Where too few rows tell of a constant of kernels it would follow their errors.
    told = determination(fitted[0], constants, fitted[1]) if kind != CALL else []
    held = [number for number, one in enumerate(told) if one.is_hypothesis]
    levels = dict.fromkeys(range(len(constants)), STEPS // 2) | descend(*fitted, numbers, held)
    values = [(constants[n], constants[n].level(step)) for n, step in levels.items()]
    tasks = [(o.row, stated(one for one in values if device_of(o) in one[0].devices)) for o in own]
    predicted = simulate(tasks)
    texts = tuple(one.text(value) for one, value in values)
    errors = score.mean_time_error(own), score.mean_time_error(predicted)
    return LeftOut(kind, name, len(own), len(inside), *errors, texts, tuple(predicted))
