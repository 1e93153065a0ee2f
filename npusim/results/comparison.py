"""Two calls side by side, with the ways of showing what differs."""

# Each way of showing a comparison is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npusim.base.errors import ArgumentError
from npusim.results.compared import Compared, labels_of, side
from npusim.results.lines import counted
from npusim.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Comparison(Compared):
    """What differs between two calls in time, waits and traffic, kernel by kernel."""

    def __repr__(self) -> str:
        """One line: how many things differ, and both times."""
        a, b = self.times
        return f"<Comparison: {counted(len(self.rows), 'difference')}, {a:.3f} and {b:.3f} us>"

    def text(self) -> str:
        """The comparison for people, at most 80 columns wide."""
        from npusim.results.comparison_text import render

        return render(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the kernels of both, one bar below the other, by what their busiest pipe did."""
        from npusim.results.figures import comparison
        from npusim.results.plots import draw

        return draw(comparison.comparison(self), ax)

    def save_trace(self, path: str | Path) -> None:
        """Write both timelines to one file for ui.perfetto.dev; ``.json.gz`` compresses it.

        ``ArgumentError`` where one side is a file, or kept no timeline.
        """
        from npusim.results import perfetto

        if self.a.result is None or self.b.result is None:
            file = self.a.label if self.a.result is None else self.b.label
            raise ArgumentError(
                f"{file} is a file of results, which has no rows per instruction; a trace needs "
                "both calls themselves, with timeline=True"
            )
        perfetto.save_both(self.a.result, self.b.result, Path(path))


def compare(
    a: Result | str | Path, b: Result | str | Path, *, labels: tuple[str, str] | None = None
) -> Comparison:
    """Compare two calls: results, or files that ``npusim run --json`` wrote.

    They may differ in anything: tilings, devices, versions, even operators. ``labels`` call them
    something better than A and B, or than their files.
    """
    first, second = labels_of(a, b, labels)
    return Comparison(a=side(a, first), b=side(b, second))
