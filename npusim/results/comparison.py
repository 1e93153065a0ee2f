"""Two calls side by side: what changed in time, waits and traffic, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from npusim.base.errors import ArgumentError
from npusim.results.facts.comparison import OF_CALL, TIMES, CallDifferences, Side
from npusim.results.facts.differences import facts_of, labels_of
from npusim.results.result import Result
from npusim.results.saved import Answer
from npusim.results.shown.comparison import calls_figure
from npusim.results.shown.report import Report, Section
from npusim.results.writers import comparison_text
from npusim.results.writers.plots import Axes, draw


@dataclass(frozen=True, kw_only=True)
class Comparison(CallDifferences, Answer):
    """Differences between two calls in time, waits and traffic, kernel by kernel."""

    __repr__ = CallDifferences.__repr__

    def text(self) -> str:
        """The comparison for people, at most 80 columns wide."""
        return comparison_text.of_calls(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the kernels of both, one bar below the other, by what their busiest pipe did.

        A bar has the launch, then the mean over the cores that run, in us, so that it is as long
        as the kernel takes.
        """
        return draw(calls_figure(self), ax)

    def as_report(self) -> Report:
        """The report as data: the text, the table, and the kernels of both as a figure."""
        report = super().as_report()
        about = "kernels of both by what their busiest pipe did"
        section = Section("Kernels of both", [calls_figure(self, about=about)])
        return replace(report, sections=(section,))

    def save_trace(self, path: str | Path) -> None:
        """Write both timelines to one file for ui.perfetto.dev; ``.json.gz`` compresses it.

        ``ArgumentError`` where one side is a file, or kept no timeline.
        """
        from npusim.results.writers import perfetto  # noqa: PLC0415

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


def side(given: Result | str | Path, label: str) -> Side:
    """A result, or the file of one.

    Raises ``ArgumentError`` for what is neither.
    """
    if isinstance(given, Result):
        return Side(label=label, facts=given.to_json(), result=given)
    if not isinstance(given, (str, Path)):
        raise ArgumentError(
            f"{label} is {given!r}; it is a Result, or a file that `npusim run --json` wrote; "
            "npusim.compare_networks takes networks"
        )
    facts = facts_of(given, label)
    lacking = [name for name in (*OF_CALL, "kernels", "pipes", "traffic", *TIMES)
               if name not in facts]  # fmt: skip
    if lacking:
        raise ArgumentError(
            f"{given} is no result of a call: it lacks {', '.join(lacking[:3])}; write one with "
            "`npusim run ... --json`"
        )
    return Side(label=label, facts=facts)
