"""Sensitivities: how far each varied name moves a goal, from one end of its values to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.base.errors import ArgumentError
from npusim.device.catalog import figure_text, load_device
from npusim.device.config import figures
from npusim.results.tables import frame
from npusim.study.formula import goal as goal_of
from npusim.study.result import SweepResult, Tabled
from npusim.study.runner import Progress, study_of, sweep
from npusim.study.space import Axis, Study, check_goals
from npusim.study.subject import DEVICE, NETWORK, OPERATOR, Row, Setting, option_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def sensitivities(
    study: Study | str | Path | None = None,
    *,
    network: Any = None,
    operator: str | None = None,
    device: str | None = None,
    vary: Mapping[str, Any] | None = None,
    goal: str = "time_us",
    store: str | Path | None = "",
    jobs: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sensitivities:
    """Move each varied name to its first and to its last value, the others as they are.

    As they are is the device's own figure, of an option the middle one of its values. A study is
    given, measured and kept as by ``npusim.sweep``; ``goal`` is one of ``npusim.explore``.
    """
    made = study_of(study, network, operator, device, vary, "grid", options)
    check_goals((goal,))
    names = [axis for axis in made.axes if axis.name not in (NETWORK, OPERATOR, DEVICE)]
    if len(names) < len(made.axes) or not names:
        raise ArgumentError("sensitivities are of figures and options: vary some, and no device")
    base = _base(made.fixed, names)
    ends = [
        {**base, axis.name: value} for axis in names for value in (axis.values[0], axis.values[-1])
    ]
    listed = replace(made, axes=(), listed=(base, *ends))
    result = sweep(listed, store=store, jobs=jobs, progress=progress)
    if not set(goal_of(goal).names) <= result.measured[0].row.keys():
        raise ArgumentError(f"nothing moves {goal}: {result.measured[0].error or 'no figures'}")
    own = [_own(made.fixed, base, axis.name) for axis in names]
    return Sensitivities(goal=goal, axes=tuple(names), own=tuple(own), result=result)


def _base(fixed: Setting, axes: list[Axis]) -> Setting:
    """What options are where they are not moved; figures are the device's."""
    options = option_names(fixed)
    return {axis.name: axis.values[len(axis.values) // 2] for axis in axes if axis.name in options}


def _own(fixed: Setting, base: Setting, name: str) -> str:
    """The value a name has where it is not moved, as text."""
    if name in base or DEVICE not in fixed:
        return base.get(name, "")
    device = load_device(fixed[DEVICE])
    return figure_text(figures(device)[name], device.clock_hz)


@dataclass(frozen=True, kw_only=True)
class Sensitivities(Tabled):
    """A goal with every name at its ends; ``result`` has the points that were measured."""

    goal: str
    axes: tuple[Axis, ...]
    own: tuple[str, ...]
    result: SweepResult

    def __repr__(self) -> str:
        """One line: the goal, and the name that moves it most."""
        most = self.rows()[0]["name"]
        return f"<Sensitivities of {self.goal} to {len(self.axes)} names, most to {most}>"

    @property
    def base(self) -> float:
        """The goal with nothing moved."""
        return goal_of(self.goal).value(self.result.measured[0].row)

    def rows(self) -> list[Row]:
        """A row per name, the one that moves the goal most first; failed ends have no value."""
        found = []
        measured = self.result.measured[1:]
        for i, (axis, own) in enumerate(zip(self.axes, self.own, strict=True)):
            first, last = measured[2 * i : 2 * i + 2]
            formula = goal_of(self.goal)
            at = [None if one.error else formula.value(one.row) for one in (first, last)]
            known = [value for value in (*at, self.base) if value is not None]
            found.append(
                {
                    "name": axis.name,
                    "own": own,
                    "first": axis.values[0],
                    "last": axis.values[-1],
                    f"{self.goal} first": at[0],
                    f"{self.goal} last": at[1],
                    "swing": max(known) - min(known),
                    "error": first.error or last.error,
                }
            )
        return sorted(found, key=lambda row: -row["swing"])

    @cached_property
    def table(self) -> pd.DataFrame:
        """``rows`` as a data frame."""
        rows = self.rows()
        return frame(rows, list(rows[0]))

    def plot(self, ax: Axes | None = None) -> Axes:
        """A tornado: a bar per name from the goal at its first to that at its last value."""
        from npusim.results.figures import studies  # noqa: PLC0415  # drawn when asked for
        from npusim.results.plots import draw  # noqa: PLC0415

        return draw(studies.tornado(self.goal, self.base, self.rows()), ax)
