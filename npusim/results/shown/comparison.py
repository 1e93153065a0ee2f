"""Two calls or networks side by side: figures of both, and the report of two networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from npusim.results.facts.comparison import CallDifferences, KernelFacts
from npusim.results.facts.network_comparison import NetworkDifferences, Times
from npusim.results.facts.number_text import rate_text, signed_text, us_or_none, us_text
from npusim.results.shown import palette
from npusim.results.shown.figure import Figure
from npusim.results.shown.figures import stacks
from npusim.results.shown.figures.stacks import Stack
from npusim.results.shown.report import Cell, Items, Report, Section, Table
from npusim.version import __version__

#: Rows that a notebook shows.
_BRIEF = 10

#: Pairs of bars in the figure of two networks; all others are one pair.
MAX_BARS = 14


# -- calls -------------------------------------------------------------------------------------


def calls_figure(compared: CallDifferences) -> Figure:
    """The kernels of both, one bar below the other, by what their busiest pipe did."""
    sides = (("A", compared.a), ("B", compared.b))
    bars = [
        _stack(f"{name}  {letter}", side.kernels[name])
        for name in compared.names
        for letter, side in sides
        if name in side.kernels
    ]
    titles = []
    for letter, side in sides:
        what = compared.about(side.facts) if side.label == letter else side.label
        titles.append(f"{letter}  {what}: {us_text(side.facts['time_us'])} us")
    looks = {"launch": palette.LAUNCH, **palette.REASON_COLOURS}
    label = "us; the launch, then what the busiest pipe of the kernel did"
    return stacks.stacked(bars, looks, label, 10, title="\n".join(titles), at="beside")


def _stack(name: str, kernel: KernelFacts) -> Stack:
    """One kernel's stretches."""
    called = f"{name} ({kernel.busiest})" if kernel.busiest else name
    lengths = {"launch": kernel.row["launch_us"], **kernel.waits.get(kernel.busiest, {})}
    return Stack(called, us_text(kernel.row["time_us"]), lengths)


# -- networks ----------------------------------------------------------------------------------


def compared(of: NetworkDifferences) -> Report:
    """The report of two networks: a notebook has the largest changes, the page all."""
    parts = list(of.times_of_parts())
    title, unit, times = parts[0]
    title = title.capitalize()
    changed = [row for row in times if row[1] != row[2]]
    more = f"the {_BRIEF} of {len(changed):,} that change most" if len(changed) > _BRIEF else ""
    brief = ", ".join(part for part in (unit, more) if part)
    side_a, side_b = network_sides(of)
    return Report(
        title=f"A  {side_a}",
        about=[f"B  {side_b}"],
        lead=_verdict(of),
        cards=[*_cards(of)],
        sections=(
            Section(f"{title}: {brief}", [_table(changed[:_BRIEF])], brief=True),
            Section(f"{title} of both", [networks_figure(of, about=f"times of {title.lower()}")]),
            *(
                Section(
                    f"All {part.title.lower()}: {part.unit}", [_table(part.times)], opened=False
                )
                for part in parts
            ),
            Section("What differs besides", [Items(differing_besides(of))]),
        ),
        origin=f"npusim {__version__}",
    )


def network_sides(of: NetworkDifferences) -> tuple[str, str]:
    """Description of each side, and its speed."""
    texts = []
    for letter, (label, facts), rate in zip("AB", of.sides, of.rates, strict=True):
        what = of.about(facts) if label == letter else label
        texts.append(f"{what}: {us_text(facts['time_us'])} us, {rate_text(rate)} images/s")
    return texts[0], texts[1]


def networks_figure(of: NetworkDifferences, **more: Any) -> Figure:
    """Bars of both for the kinds of operations of a step, or the layers of a network.

    Those that changed most have a pair of bars each; others are one pair. ``more`` is as of a
    figure.
    """
    _, unit, times = next(of.times_of_parts())
    bars = [(name, a or 0.0, b or 0.0) for name, a, b in times[:MAX_BARS]]
    rest = times[MAX_BARS:]
    if rest:
        sum_a = sum(a or 0.0 for _, a, _ in rest)
        sum_b = sum(b or 0.0 for _, _, b in rest)
        bars.append((f"{len(rest):,} others", sum_a, sum_b))
    return stacks.pairs(bars, unit, **more)


def differing_besides(of: NetworkDifferences) -> list[str]:
    """Other differences of both as a whole: ``"batch: 2 -> 8"``."""
    rows = [row for row in of.rows if row["part"] == "network" and row["what"] != "time_us"]
    return [of.besides_text(row) for row in rows]


def _verdict(of: NetworkDifferences) -> str:
    """Which of the two is faster; by images a second where their numbers differ."""
    if of.empty:
        return "No difference."
    if of.speedup is None or of.speedup == 1:
        return "As fast as each other."
    side = "B" if of.speedup > 1 else "A"
    times = max(of.speedup, 1 / of.speedup)
    per_image = " per image" if of.per_image else ""
    return f"{side} is {times:.2f} times as fast{per_image}."


def _cards(of: NetworkDifferences) -> Iterator[tuple[str, str]]:
    """The speed of both, and their times."""
    a, b = of.rates
    yield f"{rate_text(a)} \u2192 {rate_text(b)}", f"images/s, {signed_text(b / a - 1)}"
    a, b = of.times
    yield f"{us_text(a)} \u2192 {us_text(b)}", f"\u00b5s in all, {signed_text(b / a - 1)}"


def _table(times: Sequence[Times]) -> Table:
    """Times of both, and the change."""
    columns: dict[str, Callable[[Times], Any]] = {
        "": lambda row: row[0],
        "A": lambda row: Cell(us_or_none(row[1]), row[1]),
        "B": lambda row: Cell(us_or_none(row[2]), row[2]),
        "change": lambda row: _change(row[1], row[2]),
        "of A": lambda row: _share(row[1], row[2]),
    }
    return Table.of(columns, times)


def _change(a: float | None, b: float | None) -> Cell:
    if a is None or b is None:
        return Cell("")
    return Cell(f"{b - a:+,.1f}", b - a)


def _share(a: float | None, b: float | None) -> Cell:
    if not a or b is None:
        return Cell("")
    return Cell(signed_text(b / a - 1), b / a)
