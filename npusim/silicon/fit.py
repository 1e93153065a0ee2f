"""Fitting constants to measured kernels: a model of broken lines, and a descent on it.

Every kernel is simulated with the shipped figures and with every constant of its device at both
ends of its range; in between, its time and busy times are taken as sums of one broken line per
constant. Each family and shape weighs the same, however many switches of it were measured; busy
times of MTE2 count where it is the busiest pipe, for elsewhere they show how cores fall into step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from npusim.silicon.constants import STEPS, Constant
from npusim.silicon.rows import CallRow, Declined, KernelRow, Measured
from npusim.silicon.score import (
    ADDRESS_WORDS,
    SCORED_PIPES,
    WAITING_WORDS,
    busiest,
    shape_of,
)
from npusim.silicon.simulate import RowOutcome, Task, device_name

#: Simulates tasks in their order.
Simulate = Callable[[Sequence[Task]], list[RowOutcome]]

Array = npt.NDArray[np.float64]

#: Trust of the rows that a fit may use.
_FITTED_TO = ("A", "B")

#: Loss per row that another turn of the descent has to gain.
_GAIN = 1e-6

#: Share of a row's time or busy time that a constant's range must move for the row to tell of it,
#: and rows that must tell of a constant for it to be more than a hypothesis.
TELLING, ENOUGH = 0.02, 3


def is_usable(outcome: RowOutcome, constants: Sequence[Constant]) -> bool:
    """True if a fit may use a row: a trusted one that runs on a device of a constant."""
    row = outcome.row
    return (
        isinstance(row, KernelRow | CallRow)
        and row.trust in _FITTED_TO
        and outcome.simulated is not None
        and any(device_of(outcome) in constant.devices for constant in constants)
    )


def tells(outcome: RowOutcome) -> bool:
    """True if constants are fitted to a usable row, which may also be there to be predicted only.

    A kernel that measures what the model leaves out would pull constants away from what they mean,
    and so would transposes, which no convolution or product launches.
    """
    row = outcome.row
    return getattr(row, "call", "") != "transpose" and not ADDRESS_WORDS & row.words


def device_of(outcome: RowOutcome) -> str:
    """Return the device of a row's chip, "" where there is none."""
    row = outcome.row
    try:
        return device_name(row)[0] if isinstance(row, KernelRow | CallRow) else ""
    except Declined:
        return ""


def linked(devices: set[str], constants: Sequence[Constant]) -> list[int]:
    """Return the constants, by number, that share devices with ``devices``, however indirectly."""
    reached, count = set(devices), -1
    while count < len(reached):
        count = len(reached)
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


def _figures(outcome: RowOutcome, like: RowOutcome) -> _Figures:
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
    measured, simulated_values = np.array(pairs, dtype=float).reshape(-1, 2).T
    return _Figures(measured, simulated_values, np.array(weight))


def _telling(row: Measured) -> list[str]:
    """The pipes whose busy times a fit looks at."""
    waits = {"fixpipe"} if WAITING_WORDS & row.words else set()
    if busiest(row) != "mte2":
        waits.add("mte2")
    return [pipe for pipe in SCORED_PIPES if pipe not in waits]


#: Change of a row's figures, by row and constant, at each level of the range.
Slopes = list[list[Array]]


def simulated_slopes(
    base: Sequence[RowOutcome], constants: Sequence[Constant], simulate: Simulate
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


def _levels(
    base: RowOutcome, constant: Constant, low: RowOutcome | None, high: RowOutcome | None
) -> Array:
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
    levels = scale(np.array([constant.level(step) for step in range(STEPS + 1)], dtype=float))
    columns = [np.interp(levels, x, y[:, column]) for column in range(len(middle))]
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
    def of(cls, base: Sequence[RowOutcome], slopes: Slopes, numbers: Sequence[int]) -> Lines:
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
        changed = sum((self.change[c][steps[c]] for c in count if c not in moved), self.middle)
        for c in moved:
            changed = changed[..., np.newaxis, :] + self.change[c]
        loss: Array = np.abs(changed / self.measured - 1) @ self.weight
        return loss


def loss(base: Sequence[RowOutcome], outcomes: Sequence[RowOutcome]) -> float:
    """Return the loss of simulations of the rows of ``base``; infinite where one is missing."""
    if any(outcome.simulated is None for outcome in outcomes):
        return np.inf
    model = Lines.of(base, [], ())
    pairs = zip(outcomes, base, strict=True)
    values = np.concatenate([_figures(outcome, like).simulated for outcome, like in pairs])
    return float(np.abs(values / model.measured - 1) @ model.weight)


def descend(
    base: Sequence[RowOutcome], slopes: Slopes, numbers: Sequence[int], fixed: Collection[int] = ()
) -> dict[int, int]:
    """Return the level of each constant of ``numbers`` that suits the rows best, by number.

    This is as far as a descent finds it. It begins in the middle of every range, so that nothing of
    the shipped values is left, and there stay the constants that are ``fixed``. Two move at a time:
    one alone finds no way along a valley.
    """
    steps, best = [STEPS // 2] * len(numbers), np.inf
    free = [place for place, number in enumerate(numbers) if number not in fixed]
    model = Lines.of(base, slopes, numbers) if base and free else None
    while model is not None:
        for moved in combinations(free, min(2, len(free))):
            losses = model.losses(steps, moved)
            least = losses.min()
            if least < losses[tuple(steps[c] for c in moved)]:
                best_steps = np.unravel_index(losses.argmin(), losses.shape)
                for c, step in zip(moved, best_steps, strict=True):
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
        """True if fewer than ``ENOUGH`` rows tell of it."""
        return len(self.rows) < ENOUGH


def determination(
    base: Sequence[RowOutcome], constants: Sequence[Constant], slopes: Slopes
) -> list[Determined]:
    """Return which rows determine each constant, by finite differences over its range."""
    determined = []
    for number, constant in enumerate(constants):
        rows = []
        for outcome, lines in zip(base, slopes, strict=True):
            figures = _figures(outcome, outcome)
            moved = np.ptp(lines[number], axis=0) / figures.measured
            if moved.size and moved.max() > TELLING:
                rows.append(outcome.row.id)
        determined.append(Determined(constant, tuple(rows)))
    return determined
