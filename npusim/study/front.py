"""What an exploration found: every point it looked at, and those that none beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import ArgumentError
from npusim.study.result import COLUMNS, Tabled
from npusim.study.space import Study
from npusim.study.store import Measured
from npusim.study.subject import Row, Setting
from npusim.yamltree import suggest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Values = tuple[float, ...]


def unbeaten(points: Sequence[Values]) -> list[bool]:
    """Which points none is at least as small as in all values and smaller in one."""
    order = sorted(range(len(points)), key=lambda i: points[i])
    front: list[Values] = []
    kept = [False] * len(points)
    for i in order:  # whoever beats a point comes before it
        one = points[i]
        kept[i] = not any(
            other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in front
        )
        if kept[i]:
            front.append(one)
    return kept


@dataclass(frozen=True, kw_only=True)
class Exploration(Tabled):
    """Points in the order in which they were looked at; all ``goals`` are better when smaller.

    ``searched`` is the ``optuna.Study`` behind it, for Optuna's own plots and tools.
    """

    study: Study
    goals: tuple[str, ...]
    points: tuple[tuple[Setting, Measured], ...]
    searched: Any

    def __repr__(self) -> str:
        """One line: what was looked for over what, in how many points."""
        what = self.study.fixed.get("network") or self.study.fixed.get("operator", "")
        return (
            f"<Exploration {what}: {', '.join(self.goals)} over {', '.join(self.study.varied)}: "
            f"{len(self.points)} of {len(self.study):,} points, {sum(self.on_front)} unbeaten>"
        )

    @property
    def failed(self) -> tuple[Measured, ...]:
        """Points without values."""
        return tuple(one for _, one in self.points if one.error)

    @cached_property
    def on_front(self) -> tuple[bool, ...]:
        """Which points none beats."""
        measured = [i for i, (_, one) in enumerate(self.points) if not one.error]
        kept = unbeaten([values_of(self.points[i][1].row, self.goals) for i in measured])
        front = {i for i, on in zip(measured, kept, strict=True) if on}
        return tuple(i in front for i in range(len(self.points)))

    def rows(self) -> list[Row]:
        """A row per point: the varied names, what was measured, ``front`` and ``error``."""
        return [
            {name: setting[name] for name in self.study.varied}
            | {name: one.row[name] for name in COLUMNS if name in one.row}
            | {"front": on, "error": one.error}
            for (setting, one), on in zip(self.points, self.on_front, strict=True)
        ]

    @cached_property
    def table(self) -> pd.DataFrame:
        """``rows`` as a data frame."""
        import pandas as pd  # noqa: PLC0415  # it takes time to import

        rows = self.rows()
        held = [name for name in COLUMNS if any(name in row for row in rows)]
        held.insert(-1, "front")
        return pd.DataFrame(rows, columns=[*self.study.varied, *held])

    @property
    def front(self) -> pd.DataFrame:
        """The points that none beats, by the first goal; several may have the same values."""
        return self.table[self.table["front"]].sort_values(list(self.goals), ignore_index=True)

    def report(self, path: str | Path) -> None:
        """Write one self-contained web page."""
        from npusim.results.web import exploration  # noqa: PLC0415  # it takes time to import

        study = self.study
        varied = {axis.name: axis.values for axis in study.axes}
        told = exploration.Explored(study.fixed, varied, self.goals, self.rows(), len(study))
        exploration.save(told, Path(path))

    def plot(self, x: str = "", y: str = "", ax: Axes | None = None) -> Axes:
        """The points over two goals (the second and the first), with the front.

        With one goal, the best so far over the points. Raises ``ArgumentError`` for names that are
        no goals.
        """
        from npusim.study.plots import draw_front  # noqa: PLC0415  # drawn when asked for

        for name in (x, y):
            if name and name not in self.goals:
                raise ArgumentError(f"{name} is no goal{suggest(name, self.goals)}")
        rows = [row for row in self.rows() if not row["error"]]
        if not rows:
            raise ArgumentError("nothing to draw: no point has values")
        return draw_front(self.study, self.goals, rows, (x, y), ax)


def values_of(row: Row, goals: Sequence[str]) -> Values:
    """The goals of a measured row."""
    return tuple(float(row[goal]) for goal in goals)
