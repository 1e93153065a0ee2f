"""Who worked and who waited: the timeline of a call, as a picture and as what zooms on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ArgumentError
from npusim.base.integers import IntArray
from npusim.base.reasons import DONE, REASONS
from npusim.machine.timing.trace import KernelRun, Timeline
from npusim.results.facts import metrics
from npusim.results.facts.call import CallFacts
from npusim.results.facts.number_text import bytes_text, percent_text, us_text
from npusim.results.facts.tables import call_timeline
from npusim.results.shown import palette
from npusim.results.shown.figure import Bars, Coded, Figure, FigureAxis, Span, Spans

#: Cores a timeline shows when none are asked for.
MAX_CORES = 4

#: Instructions of one track in view from which it shows shares of time instead of each bar.
DENSE_FROM = 350
#: Bins of a dense track over the width of the plot.
BINS = 500

#: Share of the kernels' time that a launch takes in a picture at most.
LAUNCH_SHARE = 0.03

#: Bars on a page, and the share of the call below which a gap between bars is the first to go.
MAX_BARS, _FIRST_GAP = 40_000, 1 / 40_000

#: What a page tells of the amount of work of a bar, by its class.
_AMOUNTS = {
    **dict.fromkeys(("load", "feed", "store"), ", @bytes{0,0} B"),
    "cube": ", @macs{0,0} multiply-adds",
}

#: Half the heights of bars of work and of waits.
_WORK, _WAIT = 0.4, 0.17

#: Pixels of a track, and of what surrounds them.
TRACK, AROUND = 24, 84

#: Columns of bars from left to right, from low to high, and what a page tells of them.
_Columns = npt.NDArray[np.float64]


class Track(NamedTuple):
    """One row of the plot: its label, its pipe and its instructions' places in the timeline."""

    label: str
    pipe: str
    rows: npt.NDArray[np.intp]


def default_cores(runs: Sequence[KernelRun]) -> tuple[str, ...]:
    """The first and the slowest core of each kernel, at most ``MAX_CORES`` in all.

    One of them where every pipe of the two was busy, and waited, for as long.
    """
    chosen: dict[str, None] = {}
    for run in sorted(runs, key=lambda run: -run.cycles):
        rows: dict[str, dict[str, tuple[int, ...]]] = {}
        for row in run.pipes:
            if metrics.working(row):
                rows.setdefault(row.core, {})[row.pipe] = row.cycles
        idle = {core: min(cycles[DONE] for cycles in of.values()) for core, of in rows.items()}
        first, *others = sorted(idle, key=metrics.core_key) or [""]
        slowest = min(others, key=lambda name: idle[name], default=first)
        if first:
            chosen[first] = None
            if rows[slowest] != rows[first]:
                chosen[slowest] = None
    return tuple(sorted(list(chosen)[:MAX_CORES], key=metrics.core_key))


def checked_window(whole_us: float, window: tuple[float, float] | None) -> tuple[float, float]:
    """``window`` in us, or the whole call; raises ArgumentError where it would show nothing."""
    call_us = max(whole_us, 1e-6)
    first, last = (0.0, call_us) if window is None else window
    if not (first < last and first < call_us and last > 0):
        raise ArgumentError(
            f"window {first:g} to {last:g} us shows nothing; the call lasts from 0 "
            f"to {call_us:.3f} us, give (start, end) within it with start < end"
        )
    return first, last


def tracks(rows: Timeline, cores: Sequence[str]) -> list[Track]:
    """The pipes of ``cores`` that executed anything, in hardware order.

    Raises ArgumentError for a core that did not run.
    """
    ran = sorted(rows.cores, key=metrics.core_key)
    shown = []
    for core in cores:
        if core not in ran:
            raise ArgumentError(
                f"plot_timeline: core {core!r} did not run; the timeline has {len(ran)} cores, "
                f"{ran[0]} to {ran[-1]}; name some of them, or none for the default"
            )
        on_core = rows.core == rows.cores.index(core)
        for pipe in sorted(rows.pipes, key=metrics.pipe_key):
            places = np.flatnonzero(on_core & (rows.pipe == rows.pipes.index(pipe)))
            if len(places):
                shown.append(Track(f"{core} {pipe}", pipe, places))
    return shown


class TimelinePart(NamedTuple):
    """Work of one class on a track, or its waits for one reason: instructions, and their spans.

    ``place`` is that of the track, ``chosen`` are places in the timeline; spans are in cycles.
    """

    place: int
    name: str
    waits: bool
    chosen: npt.NDArray[np.intp]
    start: IntArray
    end: IntArray


def parts(rows: Timeline, shown: Sequence[Track]) -> Iterator[TimelinePart]:
    """Parts of tracks: their work by class, then the cycles waited before it by reason."""
    for place, track in enumerate(shown):
        classes = np.asarray([palette.op_class(op, track.pipe) for op in rows.ops], dtype=object)
        of_row = classes[rows.op[track.rows]]
        for name in dict.fromkeys(classes.tolist()):
            chosen = track.rows[of_row == name]
            yield TimelinePart(place, name, False, chosen, rows.start[chosen], rows.end[chosen])
        waited = rows.waited[track.rows] > 0
        for number in np.unique(rows.reason[track.rows][waited]).tolist():
            chosen = track.rows[waited & (rows.reason[track.rows] == number)]
            end = rows.start[chosen]
            yield TimelinePart(place, REASONS[number], True, chosen, end - rows.waited[chosen], end)


def plotted(
    result: CallFacts, cores: Sequence[str] | None = None, window: tuple[float, float] | None = None
) -> Figure:
    """A row per core and pipe over time in us; ``window`` (us of the call) zooms in.

    Launches are drawn short, so that they do not fill the picture. Where bars of their own would be
    too narrow to see, a track has bars as high as the share of the time in which it works, from its
    bottom, and waits, from its top; what is left blank there is before or after work. Raises
    ArgumentError for a core that did not run, a window that is empty or outside the call, or a
    timeline that was not kept.
    """
    rows = call_timeline(result.operator, result.runs).rows
    us = 1e6 / result.device.clock_hz
    first, last = checked_window(result.time_us, window)
    shown = tracks(rows, default_cores(result.runs) if cores is None else cores)
    seen = [_seen(rows, track, (first / us, last / us)) for track in shown]
    dense = any(count > DENSE_FROM for count in seen)
    filled: dict[tuple[int, bool], npt.NDArray[np.float64]] = {}

    def cut(part: TimelinePart) -> _Columns:
        if seen[part.place] <= DENSE_FROM:
            columns = _span_bars(part)
            return columns[:, (columns[1] > first / us) & (columns[0] < last / us)]
        used = filled.setdefault((part.place, part.waits), np.zeros(BINS))
        return _shares(part, np.linspace(first / us, last / us, BINS + 1), used)

    note = "; height of a bar: share of that time, blank: before or after work" * dense
    label = f"time (us, launches included but drawn short){note}"
    return Figure(
        x=FigureAxis(label=label, ends=(first, last), unit=us, knots=_knots(result.runs, us)),
        y=_names([track.label for track in shown]),
        marks=[*_bars(rows, shown, cut), Spans(y=0, spans=spans(result.runs, us))],
        at="below",
        inches=(11, 2.0 + 0.27 * max(4, len(shown))),
    )


def interactive(result: CallFacts) -> Figure:
    """The same for a page: the whole call, the longest kernel is seen first.

    Where instructions are too many for a page, those of one kind that lie close together become one
    bar, however far one zooms in; the caption says from which gap on.
    """
    rows = call_timeline(result.operator, result.runs).rows
    us, cycles = 1e6 / result.device.clock_hz, max(1, result.cycles)
    shown = tracks(rows, default_cores(result.runs))
    gap = 0
    marks = _bars(rows, shown, partial(_merged, rows, 0))
    while sum(len(mark.left) for mark in marks) > MAX_BARS:
        gap = 2 * gap or max(1, round(cycles * _FIRST_GAP))
        marks = _bars(rows, shown, partial(_merged, rows, gap))
    every = spans(result.runs, us)
    kernels = [span for span in every if not span.upright]
    longest = max(kernels, key=lambda mark: mark.right - mark.left, default=(0, 0, 0, cycles))
    edge = 0.02 * (longest[3] - longest[2])
    caption = (
        "Drag to move; zoom with the buttons, with Ctrl and the wheel, or by dragging the frame in "
        "the strip of all kernels. Waits are the low bars before what waited. Shown are the first "
        "and the slowest core of each kernel; a row without bars is idle while that kernel runs."
    )
    if gap:
        caption += (
            f" Gaps below {gap * us * 1000:,.0f} ns between alike instructions are not drawn."
        )
    jumps = [("whole call", 0.0, cycles * us)]
    jumps += [(k.name, k.left * us, k.right * us) for k in kernels if len(every) > 1]
    return Figure(
        x=FigureAxis(label="time (\u00b5s)", ends=(0.0, cycles * us), unit=us),
        y=_names([track.label for track in shown]),
        marks=[*marks, Spans(y=0, spans=every)] if marks else [],
        pixels=TRACK * (len(shown) + 1) + AROUND,
        place="timeline",
        about="timeline by core and pipe",
        caption=caption,
        zoom="width",
        toggles=True,
        jumps=jumps,
        view=(max(0, longest[2] - edge) * us, min(cycles, longest[3] + edge) * us),
    )


class Piece(NamedTuple):
    """Work under one name: its kernels with their titles and colours, and its own colour.

    So many are ``alike`` and are drawn as one. It ends ``waiting_cycles`` after its last kernel.
    ``details`` are lines of its tooltip.
    """

    name: str
    kernels: Sequence[tuple[KernelRun, str, str]]
    alike: int = 1
    colour: str = palette.KERNEL
    details: str = ""
    waiting_cycles: int = 0

    @property
    def cycles(self) -> int:
        """Cycles of all that are alike, with launches, and ``waiting_cycles``."""
        kernels = sum(run.launch_cycles + run.cycles for run, _, _ in self.kernels)
        return self.alike * kernels + self.waiting_cycles


def in_turn(pieces: Sequence[Piece], us: float) -> tuple[list[Span], list[Span]]:
    """Pieces of work one after another, and their launches and kernels.

    ``us`` microseconds are a cycle.
    """
    all_cycles = sum(piece.cycles for piece in pieces)
    now = 0
    wholes: list[Span] = []
    kernels: list[Span] = []
    for piece in pieces:
        first = now
        for run, title, colour in piece.kernels:
            start = now + piece.alike * run.launch_cycles
            if run.launch_cycles:
                kernels.append(launch(title, now, start, us))
            now = start + piece.alike * run.cycles
            details = [share_text(now - start, all_cycles, us), f"{bytes_text(run.gm_bytes)} of GM"]
            if piece.alike > 1:
                details[1] += " each"
            name = f"{title} of {piece.name}"
            kernels.append(Span(name, title, start, now, colour, details="\n".join(details)))
        now += piece.waiting_cycles
        share = share_text(now - first, all_cycles, us)
        details_of_piece = f"{piece.details}\n{share}" if piece.details else share
        wholes.append(
            Span(piece.name, piece.name, first, now, piece.colour, details=details_of_piece)
        )
    return wholes, kernels


def share_text(cycles: float, all_cycles: float, us: float) -> str:
    """Microseconds of some cycles, and their share of all."""
    return f"{us_text(cycles * us)} \u00b5s, {percent_text(cycles / all_cycles, 1)}"


def spans(runs: Sequence[KernelRun], us: float) -> list[Span]:
    """Launches and kernels one after another, named; ``us`` microseconds are a cycle."""
    drawn = []
    names, starts = metrics.titles(runs), metrics.kernel_starts(runs)
    for run, name, start in zip(runs, names, starts, strict=True):
        if run.launch_cycles:
            drawn.append(launch(name, start - run.launch_cycles, start, us))
        drawn.append(Span(name, name, start, start + run.cycles, palette.KERNEL))
    return drawn


def launch(name: str, start: int, end: int, us: float) -> Span:
    """The launch of the kernel ``name``."""
    text = f"launch of {name}, {us_text((end - start) * us)} us"
    return Span(text, "launch", start, end, palette.LAUNCH, upright=True)


def _names(labels: Sequence[str]) -> FigureAxis:
    """Kernels above the tracks."""
    return FigureAxis(names=("kernel", *labels), ends=(len(labels) + 0.6, -0.6))


def _seen(rows: Timeline, track: Track, view: tuple[float, float]) -> int:
    """How many instructions of a track are in view, in cycles."""
    start, end = rows.start[track.rows], rows.end[track.rows]
    return int(((end > view[0]) & (start < view[1])).sum())


def _knots(runs: Sequence[KernelRun], us: float) -> tuple[list[float], list[float]]:
    """Times in us, and where they are drawn: launches short, all else as it is."""
    most = LAUNCH_SHARE * max(1, sum(run.cycles for run in runs))
    real, drawn = [0.0], [0.0]
    for run in runs:
        real += [real[-1] + run.launch_cycles, real[-1] + run.launch_cycles + run.cycles]
        drawn += [drawn[-1] + min(run.launch_cycles, most)]
        drawn += [drawn[-1] + run.cycles]
    far = 1.0 + real[-1] * us
    first, second = (
        [-far, *(us * cycle for cycle in of), us * of[-1] + far] for of in (real, drawn)
    )
    return first, second


def _bars(
    rows: Timeline, shown: Sequence[Track], cut: Callable[[TimelinePart], _Columns]
) -> list[Bars]:
    """Work by what it does, then waits by reason, as ``cut`` makes bars of them.

    Kinds that do not occur are left out.
    """
    by_kind: dict[tuple[str, bool], list[_Columns]] = {}
    for part in parts(rows, shown):
        columns = cut(part)
        if columns.size:
            by_kind.setdefault((part.name, part.waits), []).append(columns)
    kinds = [(name, False) for name in palette.CLASS_COLOURS] + [(name, True) for name in REASONS]
    names = [track.label for track in shown]
    return [
        _mark(rows, names, kind, np.concatenate(by_kind[kind], axis=1))
        for kind in kinds
        if kind in by_kind
    ]


def _mark(rows: Timeline, names: Sequence[str], kind: tuple[str, bool], columns: _Columns) -> Bars:
    """Bars of one kind with what a page tells of them."""
    (name, waits), (left, right, low, high, *more) = kind, columns
    columns_of_tip: dict[str, Any] = {}
    if more:
        op, line, about, size, macs, number = (column.astype(np.int32) for column in more)
        track = np.round((low + high) / 2).astype(np.int16)
        columns_of_tip = {
            "op": Coded(rows.ops, op.astype(np.int16)),
            "line": Coded(rows.lines, line.astype(np.int16)),
            "track": Coded(("", *names), track),
            "about": Coded(rows.abouts, about.astype(np.int16)),
            "bytes": size,
            "macs": macs,
            "number": number,
        }
    what = f"waits for {name}: before " if waits else ""
    amount = ""
    if not waits:
        amount = _AMOUNTS.get(name, "")
    return Bars(
        name=f"waits: {name}" if waits else name,
        colour=palette.REASON_COLOURS[name] if waits else palette.CLASS_COLOURS[name],
        left=left,
        right=right,
        low=low,
        high=high,
        more=columns_of_tip,
        tip=f"<div><b>{what}@op{{custom}}</b><br>@track{{custom}}, @left{{0,0.000}} to "
        "@right{0,0.000} \u00b5s<br>@number{0,0} \u00d7 at @line{custom}<br>@about{custom}"
        f"{amount}</div>",
    )


def _ends(part: TimelinePart) -> tuple[float, float]:
    """The middle of a part's track, and half the height of its bars."""
    return part.place + 1.0, _WAIT if part.waits else _WORK


def _span_bars(part: TimelinePart) -> _Columns:
    """A bar for each span."""
    (middle, half), ones = _ends(part), np.ones(len(part.start))
    return np.stack((part.start, part.end, (middle - half) * ones, (middle + half) * ones))


def _shares(
    part: TimelinePart, edges: npt.NDArray[np.float64], used: npt.NDArray[np.float64]
) -> _Columns:
    """A bar for each stretch between ``edges``, above the heights that are ``used`` there."""
    heights = 2 * _WORK * covered(part.start, part.end, edges)
    if part.waits:
        low = part.place + 1 - _WORK + used
        high = low + heights
    else:
        high = part.place + 1 + _WORK - used
        low = high - heights
    used += heights
    seen = heights > 0
    return np.stack((edges[:-1], edges[1:], low, high))[:, seen]


def _merged(rows: Timeline, gap: int, part: TimelinePart) -> _Columns:
    """Bars of spans that lie at most ``gap`` cycles apart: what the first is, and bytes of all."""
    left, right, chosen = part.start, part.end, part.chosen
    if not len(left):
        return np.empty((10, 0))
    begins = np.ones(len(left), dtype=bool)
    if gap:
        begins[1:] = left[1:] - np.maximum.accumulate(right)[:-1] > gap
    first = np.flatnonzero(begins)
    (middle, half), ones = _ends(part), np.ones(len(first))
    columns = (
        left[first],
        np.maximum.reduceat(right, first),
        (middle - half) * ones,
        (middle + half) * ones,
        rows.op[chosen][first],
        rows.line[chosen][first],
        rows.about[chosen][first],
        _sums(rows.bytes[chosen], first),
        _sums(rows.macs[chosen], first),
        np.diff(np.append(first, len(left))),
    )
    return np.stack([np.asarray(column, float) for column in columns])


def _sums(column: IntArray, first: IntArray) -> IntArray:
    """Sums of the pieces of a column that begin at ``first``, as far as 32 bits hold them."""
    sums = np.add.reduceat(column.astype(np.int64), first)
    return np.minimum(sums, np.iinfo(np.int32).max)


def covered(
    start: IntArray, end: IntArray, edges: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Share of each bin between ``edges`` that spans, sorted and disjoint, cover."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    total = np.cumsum(end - start)
    knots = np.stack([start, end], axis=1).ravel()
    sums = np.stack([total - (end - start), total], axis=1).ravel()
    return np.asarray(np.diff(np.interp(edges, knots, sums)) / np.diff(edges))


def whole_in_rows(
    what: str, rows: Mapping[str, Sequence[Span]], us: float, named: Sequence[Span], caption: str
) -> Figure:
    """Rows of work one after another, ``us`` microseconds a cycle.

    Buttons show the whole and what is ``named``; a strip below has the first row.
    """
    wholes, *_ = rows.values()
    last_us = wholes[-1].right * us
    jumps = [(f"whole {what}", 0.0, last_us)]
    jumps += [(span.name, span.left * us, span.right * us) for span in named]
    return Figure(
        x=FigureAxis(label="time (\u00b5s)", ends=(0.0, last_us), unit=us),
        y=FigureAxis(names=tuple(rows), ends=(len(rows) - 0.4, -0.6)),
        marks=[Spans(y=row, spans=spans) for row, spans in enumerate(rows.values())],
        pixels=2 * TRACK * len(rows) + AROUND,
        place="timeline",
        about=f"timeline of {', '.join(f'{name}s' for name in rows)}",
        caption=f"{caption} Drag to move; zoom with the buttons, with Ctrl and the wheel, or by "
        f"dragging the frame in the strip of {next(iter(rows))}s.",
        zoom="width",
        jumps=jumps,
        view=(0.0, last_us),
    )
