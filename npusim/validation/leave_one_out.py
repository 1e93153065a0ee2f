"""Do constants fitted without a family of kernels predict it?

All points are simulated with the shipped figures and with every constant at both ends of its
range; in between, their times and busy times are taken as sums of one broken line per constant. On
that model a coordinate descent finds the constants that suit all families but one best, and that
one is then simulated, in truth, with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from npusim.validation.constants import STEPS, Constant
from npusim.validation.rows import Declined, KernelRow
from npusim.validation.score import SCORED_PIPES, WAITING_WORDS, mean_time_error
from npusim.validation.simulate import Outcome, device_name
from npusim.validation.workers import Task

#: Simulates tasks in their order.
Simulate = Callable[[Sequence[Task]], list[Outcome]]

Array = npt.NDArray[np.float64]

#: Trust of the rows that a fit may use.
_FITTED_TO = ("A", "B")

#: Loss per row that another turn of the descent has to gain.
_GAIN = 1e-6


@dataclass(frozen=True)
class LeftOut:
    """A family that no constant was fitted to: mean absolute errors of time, and the constants.

    ``shipped`` is the error with the figures of the device files, ``predicted`` that with the
    constants fitted to the ``others`` rows of the other families; ``values`` are those constants
    as text, in the order they were given.
    """

    family: str
    rows: int
    others: int
    shipped: float | None
    predicted: float | None
    values: tuple[str, ...]


def leave_one_out(
    outcomes: Sequence[Outcome], constants: Sequence[Constant], simulate: Simulate
) -> list[LeftOut]:
    """Return what becomes of every family of kernels on the devices of the ``constants``.

    ``outcomes`` are those with the shipped figures; rows that were not simulated or are not to be
    trusted take no part.
    """
    base = [outcome for outcome in outcomes if _usable(outcome, constants)]
    slopes = _slopes(base, constants, simulate)
    return [
        _left_out(family, base, constants, slopes, simulate)
        for family in dict.fromkeys(outcome.row.family for outcome in base)
    ]


def _usable(outcome: Outcome, constants: Sequence[Constant]) -> bool:
    row = outcome.row
    return (
        isinstance(row, KernelRow)
        and row.trust in _FITTED_TO
        and outcome.simulated is not None
        and any(_device(outcome) in constant.devices for constant in constants)
    )


def _device(outcome: Outcome) -> str:
    row = outcome.row
    try:
        return device_name(row)[0] if isinstance(row, KernelRow) else ""
    except Declined:
        return ""


@dataclass(frozen=True)
class _Figures:
    """The measured figures of a row, the simulated ones, and their weights, as vectors."""

    measured: Array
    simulated: Array
    weight: Array


def _figures(outcome: Outcome, like: Outcome) -> _Figures:
    """Time, and the busy times that are measured and that ``like`` simulates, in its order.

    All busy times together weigh as much as the time.
    """
    row, simulated, first = outcome.row, outcome.simulated, like.simulated
    assert isinstance(row, KernelRow)
    assert simulated is not None
    assert first is not None
    pairs = [(row.time_us, simulated.time_us)] if row.time_us else []
    times = len(pairs)
    for pipe in SCORED_PIPES:
        waits = pipe == "fixpipe" and WAITING_WORDS & set(row.switches)
        if row.busy_us.get(pipe) and first.busy_us.get(pipe) and not waits:
            pairs.append((row.busy_us[pipe], simulated.busy_us.get(pipe) or 0.0))
    busy = len(pairs) - times
    weight = [1.0] * times + [1.0 / busy if busy else 0.0] * busy
    measured, found = np.array(pairs, dtype=float).reshape(-1, 2).T
    return _Figures(measured, found, np.array(weight))


#: Change of a row's figures, by row and constant, at each level of the range.
_Slopes = list[list[Array]]


def _slopes(base: Sequence[Outcome], constants: Sequence[Constant], simulate: Simulate) -> _Slopes:
    """Simulate every row with every constant of its device at both ends of its range."""
    wanted = [
        (place, number, end)
        for place, outcome in enumerate(base)
        for number, constant in enumerate(constants)
        if _device(outcome) in constant.devices
        for end in ("low", "high")
    ]
    tasks = []
    for place, number, end in wanted:
        constant = constants[number]
        tasks.append((base[place].row, {constant.path: constant.text(getattr(constant, end))}))
    ends = dict(zip(wanted, simulate(tasks), strict=True))
    return [
        [
            _levels(
                outcome,
                constant,
                ends.get((place, number, "low")),
                ends.get((place, number, "high")),
            )
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


def _left_out(
    family: str,
    base: Sequence[Outcome],
    constants: Sequence[Constant],
    slopes: _Slopes,
    simulate: Simulate,
) -> LeftOut:
    """Fit without ``family``, then simulate it."""
    inside = [place for place, outcome in enumerate(base) if outcome.row.family != family]
    steps = _descend([base[i] for i in inside], [slopes[i] for i in inside], len(constants))
    values = [c.text(c.level(step)) for c, step in zip(constants, steps, strict=True)]
    own = [outcome for outcome in base if outcome.row.family == family]
    tasks = []
    for outcome in own:
        device = _device(outcome)
        changed = zip(constants, values, strict=True)
        tasks.append((outcome.row, {c.path: text for c, text in changed if device in c.devices}))
    predicted = mean_time_error(simulate(tasks))
    shipped = mean_time_error(own)
    return LeftOut(family, len(own), len(inside), shipped, predicted, tuple(values))


def _descend(base: Sequence[Outcome], slopes: _Slopes, count: int) -> list[int]:
    """Return the level of every constant that suits the rows best, as far as a descent finds it.

    It begins in the middle of every range, so that nothing of the shipped values is left, and
    moves two constants at a time: one alone finds no way along a valley.
    """
    steps = [STEPS // 2] * count
    if not base:
        return steps
    parts = [_figures(outcome, outcome) for outcome in base]
    measured = np.concatenate([part.measured for part in parts])
    weight = np.concatenate([part.weight for part in parts]) / len(base)
    middle = np.concatenate([part.simulated for part in parts])
    change = [np.concatenate([row[c] for row in slopes], axis=1) for c in range(count)]

    def losses(moved: tuple[int, ...]) -> Array:
        """The loss at all levels of the moved constants, an axis each, the others as they stand."""
        found = sum((change[c][steps[c]] for c in range(count) if c not in moved), middle)
        for c in moved:
            found = found[..., np.newaxis, :] + change[c]
        loss: Array = np.abs(found / measured - 1) @ weight
        return loss

    best = np.inf
    while True:
        for moved in combinations(range(count), min(2, count)):
            found = losses(moved)
            if found.min() < found[tuple(steps[c] for c in moved)]:
                for c, step in zip(
                    moved, np.unravel_index(found.argmin(), found.shape), strict=True
                ):
                    steps[c] = int(step)
        if not best - found.min() > _GAIN:
            return steps
        best = float(found.min())
