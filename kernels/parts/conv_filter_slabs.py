"""How the filter gradient cuts an output plane into slabs: runs of rows times runs of columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npusim.convolution import Convolution, Span

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Consecutive output rows (or columns) and the input rows (columns) they read."""

    first: int
    count: int
    reads: Span


@dataclass(frozen=True)
class Cut:
    """Slabs in row-major order; each is one of ``rows`` by one of ``columns``.

    A slab is whole rows of the plane, or part of one. What holds for all slabs follows from the
    runs alone, because planes of 10^4 slabs are common among the candidates of a tiling.
    """

    rows: tuple[Run, ...]
    columns: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def positions(self) -> int:
        """Output positions of all slabs."""
        return sum(r.count for r in self.rows) * sum(c.count for c in self.columns)

    @property
    def pixels(self) -> int:
        """Input positions all slabs read, counted as often as they are read."""
        return sum(r.reads.size for r in self.rows) * sum(c.reads.size for c in self.columns)

    @property
    def most_positions(self) -> int:
        """Output positions of the largest slab, 0 without slabs."""
        return _most(r.count for r in self.rows) * _most(c.count for c in self.columns)

    @property
    def most_pixels(self) -> int:
        """Input positions the slab reads that reads most, 0 without slabs."""
        return _most(r.reads.size for r in self.rows) * _most(c.reads.size for c in self.columns)

    def table(self) -> dict[str, IntArray]:
        """What a unit needs to know of its slab, one entry per slab."""
        rows = np.repeat(_table(self.rows), len(self.columns), axis=0)
        columns = np.tile(_table(self.columns), (len(self.rows), 1))
        names = (
            *("row", "rows", "h_start", "h", "top", "bottom"),
            *("column", "columns", "w_start", "w", "left", "right"),
        )
        return dict(zip(names, (*rows.T, *columns.T), strict=True))


def _table(runs: tuple[Run, ...]) -> IntArray:
    """Runs as rows: place and extent among the outputs, then what they read."""
    rows = [
        (run.first, run.count, run.reads.start, run.reads.size, run.reads.before, run.reads.after)
        for run in runs
    ]
    return np.array(rows, np.int64).reshape(-1, 6)


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)


def cut_plane(shape: Convolution, slab_k: int, height: int = 0) -> Cut:
    """Cut one output plane into slabs of about ``slab_k`` positions, dropping padding-only ones.

    With ``height`` no slab goes across a multiple of so many rows.
    """
    _, ho, wo = shape.out
    columns = wo if wo <= slab_k else slab_k // 16 * 16 or slab_k
    rows = _runs(shape, 1, max(1, slab_k // wo), height or ho)
    return Cut(rows, _runs(shape, 2, columns, wo))


def _runs(shape: Convolution, axis: int, step: int, block: int) -> tuple[Run, ...]:
    """An output axis in runs of ``step`` inside blocks, without those that read nothing."""
    size = shape.out[axis]
    counts = (
        (first, min(step, start + block - first, size - first))
        for start in range(0, size, block)
        for first in range(start, min(start + block, size), step)
    )
    runs = (Run(first, count, shape.reach(axis, first, count)) for first, count in counts)
    return tuple(run for run in runs if run.reads.size)
