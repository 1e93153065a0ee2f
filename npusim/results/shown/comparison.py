"""Two calls or networks side by side: figures of both, and the report of two networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.results.facts.comparison import CallDifferences, KernelFacts
from npusim.results.facts.launched import LAUNCHED_TIMES, conversions, kernels
from npusim.results.facts.network_comparison import (
    ComparedTimes,
    LaunchedNumber,
    NetworkDifferences,
    PartTimes,
)
from npusim.results.facts.number_text import rate_text, signed_text, us_or_none, us_text
from npusim.results.shown import palette
from npusim.results.shown.figure import Figure
from npusim.results.shown.figures import stacks
from npusim.results.shown.figures.stacks import Stack
from npusim.results.shown.report import Cell, Items, Note, Report, Section, Table
from npusim.version import __version__

#: Rows that a notebook shows.
_BRIEF = 10

#: Pairs of bars in the figure of two networks; all others are one pair.
MAX_BARS = 14


# -- calls -------------------------------------------------------------------------------------


def calls_figure(compared: CallDifferences, **more: Any) -> Figure:
    """The kernels of both, one bar below the other, by what their busiest pipe did.

    ``more`` is as of a figure.
    """
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
    return stacks.stacked(bars, looks, label, 10, title="\n".join(titles), at="beside", **more)


def _stack(name: str, kernel: KernelFacts) -> Stack:
    """One kernel's stretches."""
    called = f"{name} ({kernel.busiest})" if kernel.busiest else name
    lengths = {"launch": kernel.row["launch_us"], **kernel.waits.get(kernel.busiest, {})}
    return Stack(called, us_text(kernel.row["time_us"]), lengths)


# -- networks ----------------------------------------------------------------------------------


def compared(of: NetworkDifferences) -> Report:
    """The report of two networks: a notebook has the largest changes, the page all."""
    parts = list(of.times_of_parts())
    title = parts[0].title.capitalize()
    changed = [row for row in parts[0].times if row.a != row.b]
    more = f"the {_BRIEF} of {len(changed):,} that change most" if len(changed) > _BRIEF else ""
    brief = ", ".join(part for part in (parts[0].unit, more) if part)
    side_a, side_b = network_sides(of)
    sections = [
        Section(f"{title}: {brief}", [*_table(parts[0], changed[:_BRIEF])], brief=True),
        Section(f"{title} of both", [times_figure(of, about=f"times of {title.lower()}")]),
    ]
    if of.of_steps:
        launched = _launched_sections(of)
        sections = [*launched, *sections] if of.modes_differ else [*sections, *launched]
    for part in parts:
        all_of_them = f"All {part.title.lower()}: {part.unit}"
        sections.append(Section(all_of_them, [*_table(part, part.times)], opened=False))
    besides = [of.besides_text(row) for row in of.besides]
    sections.append(Section("What differs besides", [Items(besides)]))
    return Report(
        title=f"A  {side_a}",
        about=[f"B  {side_b}"],
        lead=_verdict(of),
        cards=[*_cards(of)],
        sections=sections,
        origin=f"npusim {__version__}",
    )


def _launched_sections(of: NetworkDifferences) -> list[Section]:
    """What two steps launch, as a figure and a table, which a notebook shows if modes differ."""
    note = "\u00b5s: launches of all kernels, and kernels without them; they add up to the time."
    return [
        Section("Time by what is launched", [launched_figure(of, about="what is launched")]),
        Section("What is launched", [_launched_table(of), Note(note)], brief=of.modes_differ),
    ]


def network_sides(of: NetworkDifferences) -> tuple[str, str]:
    """Description of each side, and its speed."""
    texts = []
    for letter, (label, facts), rate in zip("AB", of.sides, of.rates, strict=True):
        what = of.about(facts) if label == letter else label
        texts.append(f"{what}: {us_text(facts['time_us'])} us, {rate_text(rate)} images/s")
    return texts[0], texts[1]


def networks_figure(of: NetworkDifferences, what: str, **more: Any) -> Figure:
    """The figure of two networks that suits what differs, or the one that is asked for.

    ``what`` is "times" (bars of both by kind of operation, or by layer), "launched" (what two steps
    launch) or "" for the one that suits: "launched" where modes, layouts or fusions differ. Raises
    ``ArgumentError`` for another word, and for "launched" of layers by themselves.
    """
    if what not in ("", "times", "launched"):
        raise ArgumentError(f"what is {what!r}; it is one of times, launched")
    if what == "launched" and not of.of_steps:
        raise ArgumentError(
            "what is 'launched', which is drawn of whole steps, and these are layers by "
            "themselves; give both a mode (npusim.step, --mode), or take what='times'"
        )
    if what == "launched" or (not what and of.modes_differ):
        return launched_figure(of, **more)
    return times_figure(of, **more)


def times_figure(of: NetworkDifferences, **more: Any) -> Figure:
    """Bars of both for the kinds of operations of a step, or the layers of a network.

    Those that changed most have a pair of bars each; others are one pair. ``more`` is as of a
    figure.
    """
    part = next(of.times_of_parts())
    bars = [(row.name, row.a or 0.0, row.b or 0.0) for row in part.times[:MAX_BARS]]
    rest = part.times[MAX_BARS:]
    if rest:
        sum_a = sum(row.a or 0.0 for row in rest)
        sum_b = sum(row.b or 0.0 for row in rest)
        bars.append((f"{len(rest):,} others", sum_a, sum_b))
    return stacks.pairs(bars, part.unit, **more)


def launched_figure(of: NetworkDifferences, **more: Any) -> Figure:
    """A bar of each step: its launches, its kernels by what they are for, and the exchange.

    Behind a bar is how many kernels and conversions are launched. ``more`` is as of a figure.
    """
    numbers = {number.fact.name: number for number in of.launched()}
    bars = []
    for letter, (_, facts), side in zip("AB", of.sides, ("a", "b"), strict=True):
        lengths = {}
        details = {}
        for fact in LAUNCHED_TIMES:
            us = getattr(numbers[fact.name], side)
            lengths[fact.title] = us
            details[fact.title] = fact.text(us)
        told = f"{kernels(facts):,} kernels, {conversions(facts):,} conversions"
        bars.append(Stack(f"{letter}  {facts['mode']}", told, lengths, details))
    looks = {fact.title: palette.LAUNCHED_COLOURS[fact.name] for fact in LAUNCHED_TIMES}
    each = " an image" if of.per_image else ""
    label = f"us{each}; launches, then kernels without them"
    return stacks.stacked(bars, looks, label, 9, at="below", place="launched", **more)


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
    """The speed of both, their times, of one image where the numbers differ, and the kernels."""
    a, b = of.rates
    yield f"{rate_text(a)} \u2192 {rate_text(b)}", f"images/s, {signed_text(b / a - 1)}"
    a, b = of.times
    images_a, images_b = of.images if of.per_image else (1, 1)
    a, b = a / images_a, b / images_b
    what = "an image" if of.per_image else "in all"
    yield f"{us_text(a)} \u2192 {us_text(b)}", f"\u00b5s {what}, {signed_text(b / a - 1)}"
    if of.launched_differs:
        count_a, count_b = kernels(of.a), kernels(of.b)
        share = signed_text(count_b / count_a - 1)
        yield f"{count_a:,} \u2192 {count_b:,}", f"kernels launched, {share}"


def _table(part: PartTimes, times: Sequence[ComparedTimes]) -> Iterator[Table | Note]:
    """Times of both, the change, and how many kernels each launches where that differs."""
    columns: dict[str, Callable[[ComparedTimes], Any]] = {
        "": lambda row: row.name,
        "A": lambda row: _us_cell(row.a),
        "B": lambda row: _us_cell(row.b),
        "change": lambda row: _change(row.a, row.b),
        "of A": lambda row: _share(row.a, row.b),
    }
    if part.launches_differ:
        columns["#A"] = lambda row: Cell(f"{row.launches_a:,}", row.launches_a)
        columns["#B"] = lambda row: Cell(f"{row.launches_b:,}", row.launches_b)
    yield Table.of(columns, times)
    if part.launches_differ:
        yield Note("#A, #B: kernels launched.")


def _launched_table(of: NetworkDifferences) -> Table:
    """How much two steps launch, and what their times go to."""
    each = " an image" if of.per_image else ""

    def title(number: LaunchedNumber) -> str:
        unit = f", \u00b5s{each}" if number.fact.unit else ""
        return f"{number.fact.title}{unit}"

    def change(number: LaunchedNumber) -> Cell:
        if number.a == number.b:
            return Cell("", 0.0)
        digits = 1 if number.fact.unit else 0
        return Cell(f"{number.b - number.a:+,.{digits}f}", number.b - number.a)

    def share(number: LaunchedNumber) -> Cell:
        return _share(number.a, number.b) if number.a != number.b else Cell("")

    columns: dict[str, Callable[[LaunchedNumber], Any]] = {
        "": title,
        "A": lambda number: Cell(number.fact.number(number.a), number.a),
        "B": lambda number: Cell(number.fact.number(number.b), number.b),
        "change": change,
        "of A": share,
    }
    return Table.of(columns, [number for number in of.launched() if number.a or number.b])


def _us_cell(us: float | None) -> Cell:
    """Microseconds; a dash where nothing is launched, or no time is known."""
    return Cell("-" if us == 0.0 else us_or_none(us), us)


def _change(a: float | None, b: float | None) -> Cell:
    if a is None or b is None:
        return Cell("")
    return Cell(f"{b - a:+,.1f}", b - a)


def _share(a: float | None, b: float | None) -> Cell:
    if not a or b is None:
        return Cell("")
    return Cell(signed_text(b / a - 1), b / a)
