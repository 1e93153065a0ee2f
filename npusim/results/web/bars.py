"""What the interactive timeline shows, as plain arrays: bars of work and of waiting, and kernels.

Where instructions are too many for a page, those of one kind that lie close together become one
bar, however far one zooms in; the page says from which gap on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.reasons import REASONS
from npusim.results import gantt, metrics, palette
from npusim.results.record import Record
from npusim.results.tables import call_timeline
from npusim.timing.trace import KernelRun, Timeline

#: Bars on a page.
MAX_BARS = 40_000
#: Bars closer than this share of the call are the first to become one.
_FIRST_GAP = 1 / 40_000

Ints = npt.NDArray[np.int32]


class Bars(NamedTuple):
    """Bars of one kind, in cycles of the call; ``number`` instructions are in each.

    ``op`` and ``line`` are places in the tuples of ``Picture``; of waits they are those of the
    instruction that waited.
    """

    name: str
    colour: str
    waits: bool
    track: Ints
    left: Ints
    right: Ints
    op: Ints
    line: Ints
    bytes: Ints
    number: Ints


class Span(NamedTuple):
    """A kernel or its launch, in cycles of the call; ``short`` stands on it where it fits."""

    name: str
    short: str
    left: int
    right: int
    colour: str
    launch: bool = False


class Picture(NamedTuple):
    """A whole timeline; ``gap`` cycles are the longest that are not drawn, 0 where all are."""

    tracks: tuple[str, ...]
    bars: tuple[Bars, ...]
    spans: tuple[Span, ...]
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    cycles: int
    us_per_cycle: float
    gap: int


def picture(result: Record, cores: Sequence[str] | None = None) -> Picture:
    """The timeline of ``cores``, by default the first and the slowest of each kernel."""
    call = call_timeline(result.operator, result.runs)
    chosen = gantt.default_cores(result.runs) if cores is None else cores
    tracks = gantt.tracks(call.rows, chosen)
    whole = max(1, result.cycles)
    bars, gap = _bars(call.rows, tracks, 0), 0
    while sum(len(one.left) for one in bars) > MAX_BARS:
        gap = 2 * gap or max(1, round(whole * _FIRST_GAP))
        bars = _bars(call.rows, tracks, gap)
    return Picture(
        tracks=tuple(track.label for track in tracks),
        bars=bars,
        spans=spans(result.runs),
        ops=call.rows.ops,
        lines=call.rows.lines,
        cycles=whole,
        us_per_cycle=1e6 / result.device.clock_hz,
        gap=gap,
    )


def spans(runs: Sequence[KernelRun]) -> tuple[Span, ...]:
    """Launches and kernels one after another, named."""
    found = []
    names, starts = metrics.titles(runs), metrics.kernel_starts(runs)
    for run, name, start in zip(runs, names, starts, strict=True):
        if run.launch_cycles:
            found.append(launch(name, start - run.launch_cycles, start))
        found.append(Span(name, name, start, start + run.cycles, palette.KERNEL))
    return tuple(found)


def launch(name: str, left: int, right: int) -> Span:
    """The launch of the kernel ``name``."""
    return Span(f"launch of {name}", "launch", left, right, palette.LAUNCH, True)


def _bars(rows: Timeline, tracks: Sequence[gantt.Track], gap: int) -> tuple[Bars, ...]:
    """Work by what it does, then waits by reason; kinds that do not occur are left out."""
    parts: dict[tuple[str, bool], list[Ints]] = {}
    for part in gantt.parts(rows, tracks):
        if len(part.chosen):
            parts.setdefault((part.name, part.waits), []).append(_merged(rows, part, gap))
    kinds = [(name, False) for name in palette.CLASS_COLOURS] + [(name, True) for name in REASONS]
    return tuple(
        Bars(name, _colour(name, waits), waits, *np.concatenate(parts[name, waits], axis=1))
        for name, waits in kinds
        if (name, waits) in parts
    )


def _colour(name: str, waits: bool) -> str:
    return palette.REASON_COLOURS[name] if waits else palette.CLASS_COLOURS[name]


def _merged(rows: Timeline, part: gantt.Part, gap: int) -> Ints:
    """The columns of ``Bars`` from ``track`` on, shape (7, bars)."""
    left, right, chosen = part.start, part.end, part.chosen
    begins = np.ones(len(left), dtype=bool)
    if gap:
        begins[1:] = left[1:] - np.maximum.accumulate(right)[:-1] > gap
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, len(left)))
    columns = (
        np.full(len(first), part.place),
        left[first],
        np.maximum.reduceat(right, first),
        rows.op[chosen][first],
        rows.line[chosen][first],
        np.minimum(np.add.reduceat(rows.bytes[chosen], first), np.iinfo(np.int32).max),
        sizes,
    )
    return np.stack(columns).astype(np.int32)
