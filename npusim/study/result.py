"""What a study found: a row per point, as a data frame, a file, a plot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import ArgumentError
from npusim.results.answer import Answer
from npusim.study.space import Study
from npusim.study.store import Measured
from npusim.study.subject import Row, Setting, option_names
from npusim.written import write
from npusim.yamltree import suggest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Columns after the varied names; a promise to users. Those of gradients are a network's.
COLUMNS = (
    *(
        "time_us",
        "cycles",
        "launch_us",
        "output_us",
        "input_us",
        "weight_us",
        "bias_us",
        "other_us",
        "layout_us",
        "elementwise_us",
    ),
    *("energy_uj", "dynamic_uj", "static_uj", "area_mm2", "buffer_bytes"),
    *("bottleneck", "bottleneck_saves", "retiled", "error"),
)

#: Those that are whole numbers, which they stay beside points that failed and have none.
_COUNTS = ("cycles", "buffer_bytes")


class Tabled(Answer, ABC):
    """A result that is one table, as a data frame and as a file."""

    @property
    @abstractmethod
    def table(self) -> pd.DataFrame:
        """What was found, a row each."""

    @property
    def frame(self) -> pd.DataFrame:
        """``table`` by its older name."""
        return self.table

    @abstractmethod
    def rows(self) -> list[Row]:
        """``table`` as plain values."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {"rows": self.rows()}


@dataclass(frozen=True, kw_only=True)
class SweepResult(Tabled):
    """Every point of a study and what was measured there, in the study's order."""

    study: Study
    measured: tuple[Measured, ...]

    def __repr__(self) -> str:
        """One line: what was varied, how many points, how many of them failed."""
        what = self.study.fixed.get("network") or self.study.fixed.get("operator", "")
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<SweepResult {what} over {', '.join(self.study.varied)}: {len(self)}{failed}>"

    def __len__(self) -> int:
        """Number of points."""
        return len(self.measured)

    @property
    def failed(self) -> tuple[Measured, ...]:
        """Points without a time."""
        return tuple(one for one in self.measured if one.error)

    def rows(self) -> list[Row]:
        """A row per point: the varied names as texts, times, what changed its tiling, its error.

        ``retiled`` names the layers and kernels that ran with other tile sizes than at the first
        point with the same options, that is, on another design.
        """
        first: dict[tuple[str, ...], Row] = {}
        rows = []
        for setting, one in zip(self.study.points(), self.measured, strict=True):
            known = option_names(setting)
            options = tuple(f"{n}={v}" for n, v in setting.items() if n in known)
            tilings = one.row.get("tilings", {})
            before = first.setdefault(options, tilings) if not one.error else tilings
            changed = [n for n in {**before, **tilings} if before.get(n) != tilings.get(n)]
            row = {name: setting[name] for name in self.study.varied if name in setting}
            values = {name: one.row[name] for name in COLUMNS if name in one.row}
            rows.append({**row, **values, "retiled": ", ".join(changed), "error": one.error})
        return rows

    @cached_property
    def table(self) -> pd.DataFrame:
        """``rows`` as a data frame, with the columns that any point has."""
        import pandas as pd  # noqa: PLC0415  # it takes time to import

        rows = self.rows()
        held = {name for row in rows for name in row}
        made = pd.DataFrame(rows, columns=[*self.study.varied, *(n for n in COLUMNS if n in held)])
        counts = [name for name in _COUNTS if name in made]
        return made.astype(dict.fromkeys(counts, "Int64")) if self.failed else made

    def report(self, path: str | Path) -> None:
        """Write one self-contained web page."""
        from npusim.results.web import study  # noqa: PLC0415  # it takes time to import

        write(path, study.render(self.study.fixed, self.study.varied, self.rows()))

    def plot(self, x: str = "", y: str = "", kind: str = "", ax: Axes | None = None) -> Axes:
        """Time over what was varied, on ``ax`` or a figure of its own.

        ``kind`` is "line" (a line per combination of the other names), "heat" (over ``x`` and
        ``y``) or "pareto" (time against ``x``, with the points that none beats in both); without
        one it is a line, or a heat map of two longer axes. Raises ``ArgumentError`` for names that
        were not varied.
        """
        from npusim.study.plots import Drawn, draw  # noqa: PLC0415  # plots are drawn when asked for

        for name in (x, y):
            if name and name not in self.study.varied:
                raise ArgumentError(f"{name} was not varied{suggest(name, self.study.varied)}")
        return draw(Drawn(self.study, tuple(self.times())), x, y, kind, ax)

    def times(self) -> Iterator[tuple[Setting, float]]:
        """The settings that have a time, with it, in microseconds."""
        for setting, one in zip(self.study.points(), self.measured, strict=True):
            if not one.error:
                yield setting, one.row["time_us"]
