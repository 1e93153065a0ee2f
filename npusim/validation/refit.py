"""A fit whose proposals are simulated.

The broken lines of ``npusim.validation.fit`` add up what each constant does alone. Where two of
them act on one pipe the sum is wrong, so what the lines propose is simulated, and they begin again
from the best values simulated so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from npusim.validation.constants import STEPS, Constant
from npusim.validation.fit import (
    Lines,
    Simulate,
    Slopes,
    determination,
    device_of,
    loss,
    simulated_figures,
    walk,
)
from npusim.validation.simulate import Outcome

#: Simulations of all rows after the first, and the steps of a range, on either side, that the lines
#: look at from then on; half as many after each proposal that was no better.
_ROUNDS, _REACH = 4, STEPS // 4


def refit(
    base: Sequence[Outcome],
    slopes: Slopes,
    constants: Sequence[Constant],
    numbers: Sequence[int],
    simulate: Simulate,
) -> dict[int, int]:
    """Return the level of each constant of ``numbers`` that suits the rows best, by number.

    It begins in the middle of every range, so that nothing of the shipped values is left, and there
    stays a constant of which too few rows tell: it would follow their errors.
    """
    told = determination(base, constants, slopes)
    held = [place for place, n in enumerate(numbers) if told[n].is_hypothesis]
    steps = [STEPS // 2] * len(numbers)
    if len(held) == len(numbers):
        return dict(zip(numbers, steps, strict=True))
    lines = Lines.of(base, slopes, numbers)
    steps = walk(lines, steps, held=held)
    best, least, model, reach = steps, None, lines, _REACH
    for left in range(_ROUNDS, -1, -1):
        levels = dict(zip(numbers, steps, strict=True))
        found = simulate([(o.row, figures(o, constants, levels)) for o in base])
        here = loss(base, found)
        if least is None or here < least:
            best, least = steps, here
            model = _through(lines, steps, base, found)
        else:
            reach //= 2
        steps = walk(model, best, reach, held)
        if steps == best or not left:
            break
    return dict(zip(numbers, best, strict=True))


def figures(
    outcome: Outcome, constants: Sequence[Constant], levels: Mapping[int, int]
) -> dict[str, str]:
    """Return the figures of a row's device with constants, by number, at their levels."""
    found: dict[str, str] = {}
    for number, level in levels.items():
        constant = constants[number]
        if device_of(outcome) in constant.devices:
            found |= constant.figures(constant.level(level))
    return found


def _through(
    lines: Lines, steps: Sequence[int], base: Sequence[Outcome], found: Sequence[Outcome]
) -> Lines:
    """The lines, moved so that they say at ``steps`` what was simulated there."""
    if any(outcome.simulated is None for outcome in found):
        return lines
    away = sum(change[step] for change, step in zip(lines.change, steps, strict=True))
    return replace(lines, middle=simulated_figures(base, found) - away)
