"""The sizes of an implicit matrix product: axes, virtual positions, slabs of the output plane."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.convolution import Span
from npusim.integers import ceil_div


@dataclass(frozen=True, kw_only=True)
class Axis:
    """How outputs of one plane axis (H or W) read the virtual input."""

    size: int  # real input positions
    out: int
    kernel: int
    stride: int
    before: int  # may be negative: the load then starts later
    dilation: int
    insert: int = 1

    @property
    def virtual(self) -> int:
        """Virtual input positions: the real ones with zeros between."""
        return (self.size - 1) * self.insert + 1

    def reach(self, first: int, count: int) -> Span:
        """Virtual positions outputs ``first``..``first + count - 1`` touch, clipped."""
        low = first * self.stride - self.before
        high = (first + count - 1) * self.stride - self.before
        high += (self.kernel - 1) * self.dilation + 1
        start, stop = max(low, 0), min(high, self.virtual)
        return Span(start, max(0, stop - start), start - low, max(0, high - max(stop, start)))

    def real(self, span: Span) -> tuple[int, int, int]:
        """(first real position, how many, offset of the first) inside a virtual span."""
        first = ceil_div(span.start, self.insert)
        last = (span.start + span.size - 1) // self.insert
        return first, max(0, last - first + 1), first * self.insert - span.start


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The product's sizes. Channel counts are per real group, in blocks ("planes") of C0."""

    images: int
    depth_in: int
    depth_out: int
    h: Axis
    w: Axis
    kernel_d: int
    live: tuple[tuple[tuple[int, int], ...], ...]  # per output depth: (kd, input depth) pairs
    groups: int
    c0: int
    planes_in: int  # per real group
    planes_out: int
    all_in: int  # of the whole tensor
    all_out: int

    @property
    def taps(self) -> int:
        """Filter positions in the plane."""
        return self.h.kernel * self.w.kernel


@dataclass(frozen=True)
class Slab:
    """A rectangle of output positions: whole rows, or part of one."""

    row: int
    rows: int
    column: int
    columns: int
    h: Span
    w: Span
    real_h: tuple[int, int, int]
    real_w: tuple[int, int, int]
    unit: int  # slabs of one are computed together

    @property
    def live(self) -> bool:
        """Whether any real input position is in reach."""
        return self.h.size > 0 and self.w.size > 0 and self.real_h[1] > 0 and self.real_w[1] > 0

    @property
    def positions(self) -> int:
        """Output positions."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Run:
    """Consecutive outputs of an axis, and the virtual and real input positions they read."""

    first: int
    count: int
    reads: Span
    real: tuple[int, int, int]


def runs(geometry: Geometry, base_m: int, height: int = 0) -> tuple[list[Run], list[Run]]:
    """Runs of rows and runs of columns: slabs of at most ``base_m`` positions, row-major.

    With ``height`` no run goes across a multiple of so many rows.
    """
    h, w = geometry.h, geometry.w
    return _runs(h, max(1, base_m // w.out), height or h.out), _runs(w, min(w.out, base_m), w.out)


def _runs(axis: Axis, step: int, block: int) -> list[Run]:
    """All outputs of an axis in runs of ``step`` inside blocks of ``block``."""
    counts = [
        (first, min(step, start + block - first, axis.out - first))
        for start in range(0, axis.out, block)
        for first in range(start, min(start + block, axis.out), step)
    ]
    reads = [axis.reach(*run) for run in counts]
    return [Run(*run, span, axis.real(span)) for run, span in zip(counts, reads, strict=True)]


def slabs(geometry: Geometry, base_m: int, unit_m: int = 0) -> list[Slab]:
    """Cut the output plane into slabs of at most ``base_m`` positions.

    Each is a unit of its own, or with ``unit_m`` those of so many positions in whole rows are.
    """
    height = max(1, unit_m // geometry.w.out) if unit_m else 0
    rows, columns = runs(geometry, base_m, height)
    pairs = [(r, c) for r in rows for c in columns]
    return [
        Slab(
            *(r.first, r.count, c.first, c.count, r.reads, c.reads, r.real, c.real),
            unit=r.first // height if height else i,
        )
        for i, (r, c) in enumerate(pairs)
    ]


def weight_loads(
    plane: int, planes: int, all_planes: int, steps: tuple[int, int, int]
) -> list[tuple[range, range]]:
    """Columns in each L1 slot of weights, and those that ``planes`` of the input use of it.

    ``steps`` are the columns of a whole load of the input, those a slot of weights may hold, and
    those of a plane. A slot holds whole planes, of one load of the input or of several, or part
    of one plane's taps.
    """
    chunk, step, taps = steps
    first, last, total = plane * taps, (plane + planes) * taps, all_planes * taps
    if step >= min(total, 2 * chunk):
        size = total if step >= total else step // chunk * chunk
        start = first // size * size
        return [(range(start, min(start + size, total)), range(first, last))]
    if step >= taps:
        size = step // taps * taps
        loads = [range(j, min(j + size, last)) for j in range(first, last, size)]
    else:
        loads = [
            range(j, min(j + step, start + taps))
            for start in range(first, last, taps)
            for j in range(start, start + taps, step)
        ]
    return [(columns, columns) for columns in loads]
