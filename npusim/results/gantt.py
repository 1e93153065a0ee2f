"""What a timeline plot shows, as plain corner points: which tracks, which bars, which waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ArgumentError
from npusim.base.integers import IntArray
from npusim.base.reasons import DONE, REASONS
from npusim.results import metrics, palette
from npusim.timing.trace import KernelRun, Timeline

#: Cores a timeline shows when none are asked for.
MAX_CORES = 4

#: Bars as corner points, shape (n, 4, 2), from bottom left against the clock.
Boxes = npt.NDArray[np.float64]

#: Instructions of one track in view from which it shows shares of time instead of each bar.
DENSE_FROM = 350
#: Bins of a dense track over the width of the plot.
BINS = 500

_BAR_HEIGHT = 0.78


class Track(NamedTuple):
    """One row of the plot: its label, its pipe and its instructions' places in the timeline."""

    label: str
    pipe: str
    rows: npt.NDArray[np.intp]


class View(NamedTuple):
    """The stretch of time shown, in us, and how many us a cycle lasts."""

    first: float
    last: float
    us_per_cycle: float

    @property
    def cycles(self) -> tuple[float, float]:
        """The stretch in cycles."""
        return self.first / self.us_per_cycle, self.last / self.us_per_cycle

    def dense(self, rows: Timeline, track: Track) -> bool:
        """Whether bars of their own would be too narrow to see, and would alias."""
        first, last = self.cycles
        start, end = rows.start[track.rows], rows.end[track.rows]
        return int(((end > first) & (start < last)).sum()) > DENSE_FROM


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
    whole = max(whole_us, 1e-6)
    first, last = (0.0, whole) if window is None else window
    if not (first < last and first < whole and last > 0):
        raise ArgumentError(
            f"window {first:g} to {last:g} us shows nothing; the call lasts from 0 "
            f"to {whole:.3f} us, give (start, end) within it with start < end"
        )
    return first, last


def tracks(rows: Timeline, cores: Sequence[str]) -> list[Track]:
    """The pipes of ``cores`` that executed anything, in hardware order.

    Raises ArgumentError for a core that did not run.
    """
    known = sorted(rows.cores, key=metrics.core_key)
    found = []
    for core in cores:
        if core not in known:
            raise ArgumentError(
                f"plot_timeline: core {core!r} did not run; the timeline has {len(known)} cores, "
                f"{known[0]} to {known[-1]}; name some of them, or none for the default"
            )
        on_core = rows.core == rows.cores.index(core)
        for pipe in sorted(rows.pipes, key=metrics.pipe_key):
            places = np.flatnonzero(on_core & (rows.pipe == rows.pipes.index(pipe)))
            if len(places):
                found.append(Track(f"{core} {pipe}", pipe, places))
    return found


class Part(NamedTuple):
    """Work of one class on a track, or its waits for one reason: instructions, and their spans.

    ``place`` is that of the track, ``chosen`` are places in the timeline; spans are in cycles.
    """

    place: int
    name: str
    waits: bool
    chosen: npt.NDArray[np.intp]
    start: IntArray
    end: IntArray


def parts(rows: Timeline, shown: Sequence[Track]) -> Iterator[Part]:
    """What tracks show: their work by class, then the cycles waited before it by reason."""
    for place, track in enumerate(shown):
        classes = np.asarray([palette.op_class(op, track.pipe) for op in rows.ops], dtype=object)
        of_row = classes[rows.op[track.rows]]
        for name in dict.fromkeys(classes.tolist()):
            chosen = track.rows[of_row == name]
            yield Part(place, name, False, chosen, rows.start[chosen], rows.end[chosen])
        waited = rows.waited[track.rows] > 0
        for number in np.unique(rows.reason[track.rows][waited]).tolist():
            chosen = track.rows[waited & (rows.reason[track.rows] == number)]
            end = rows.start[chosen]
            yield Part(place, REASONS[number], True, chosen, end - rows.waited[chosen], end)


def boxes(
    rows: Timeline, shown: Sequence[Track], view: View
) -> tuple[Mapping[str, Boxes], Mapping[str, Boxes]]:
    """Bars of the instructions by class, and of the waits before them by reason.

    In a dense track work grows from its bottom and waits hang from its top; what is left blank
    there is before or after work.
    """
    batches: dict[tuple[str, bool], list[Boxes]] = {}
    spans: dict[tuple[int, bool], _Spans] = {}
    for part in parts(rows, shown):
        dense = view.dense(rows, shown[part.place])
        empty = _Spans(part.place, dense, np.zeros(BINS), part.waits)
        drawn = spans.setdefault((part.place, part.waits), empty).boxes(part.start, part.end, view)
        if len(drawn):
            batches.setdefault((part.name, part.waits), []).append(drawn)
    work, waits = (
        {name: np.concatenate(batches[name, kind]) for name in names if (name, kind) in batches}
        for names, kind in ((palette.CLASS_COLOURS, False), (REASONS, True))
    )
    return work, waits


class _Spans(NamedTuple):
    """Turns spans of one track into bars; ``filled`` is the height already used per bin."""

    place: int
    dense: bool
    filled: npt.NDArray[np.float64]
    from_top: bool = False

    def boxes(self, start: IntArray, end: IntArray, view: View) -> Boxes:
        """Bars of full height, or one per bin as high as the share of its time covered."""
        top, bottom = self.place - _BAR_HEIGHT / 2, self.place + _BAR_HEIGHT / 2
        first, last = view.cycles
        if not self.dense:
            seen = (end > first) & (start < last)
            count = int(seen.sum())
            left, right = start[seen] * view.us_per_cycle, end[seen] * view.us_per_cycle
            return _boxes(left, right, np.full(count, top), np.full(count, bottom))
        edges = np.linspace(first, last, BINS + 1)
        heights = covered(start, end, edges) * _BAR_HEIGHT
        if self.from_top:
            low = top + self.filled
            high = low + heights
        else:
            high = bottom - self.filled
            low = high - heights
        self.filled[:] += heights
        used = heights > 0
        edges = edges * view.us_per_cycle
        return _boxes(edges[:-1][used], edges[1:][used], low[used], high[used])


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


def _boxes(left: Any, right: Any, low: Any, high: Any) -> Boxes:
    corners = [(left, low), (right, low), (right, high), (left, high)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
