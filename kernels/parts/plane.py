"""How kernels cut an output plane into slabs: runs of rows times runs of columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from npusim.convolution import Axis, Run
from npusim.language import IntArray, round_down


@dataclass(frozen=True)
class Plane:
    """Slabs in row-major order; each is one of ``rows`` by one of ``columns``.

    A slab is whole rows of the plane, or part of one. What holds for all slabs follows from the
    runs alone, because planes of 10^4 slabs are common among the candidates of a tiling.
    """

    rows: tuple[Run, ...]
    columns: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    def live(self) -> Plane:
        """The slabs that read any real input."""
        rows, columns = (tuple(r for r in axis if r.real) for axis in (self.rows, self.columns))
        return Plane(rows, columns)

    @property
    def positions(self) -> int:
        """Output positions of all slabs."""
        return sum(r.count for r in self.rows) * sum(c.count for c in self.columns)

    @property
    def pixels(self) -> int:
        """Real input positions all slabs read, counted as often as they are read."""
        return sum(r.real for r in self.rows) * sum(c.real for c in self.columns)

    @property
    def most_positions(self) -> int:
        """Output positions of the largest slab, 1 without slabs."""
        return _most(r.count for r in self.rows) * _most(c.count for c in self.columns) or 1

    @property
    def most_pixels(self) -> int:
        """Virtual input positions of the slab that reads most, at least 1."""
        return _most(r.size for r in self.rows) * _most(c.size for c in self.columns) or 1

    def table(self) -> dict[str, IntArray]:
        """What a kernel needs to know of each slab: of its rows, then of its columns.

        Place and extent among the outputs, what is read of the virtual inputs with padding on
        either side, and of the real ones.
        """
        rows = np.repeat(_table(self.rows), len(self.columns), axis=0)
        columns = np.tile(_table(self.columns), (len(self.rows), 1))
        names = (
            *("row", "rows", "h_start", "h", "top", "bottom", "real_row", "real_h", "skip_h"),
            *("column", "columns", "w_start", "w", "left", "right"),
            *("real_column", "real_w", "skip_w"),
        )
        return dict(zip(names, (*rows.T, *columns.T), strict=True))


def _table(runs: tuple[Run, ...]) -> IntArray:
    return np.array([list(vars(run).values()) for run in runs], np.int64).reshape(-1, 9)


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)


def cut_plane(h: Axis, w: Axis, slab: int, height: int = 0, multiple: int = 1) -> Plane:
    """Cut one output plane into slabs of at most ``slab`` positions: whole rows, or parts of one.

    Parts are of a ``multiple`` of positions where ``slab`` has room for one. With ``height`` no
    slab goes across a multiple of so many rows.
    """
    columns = w.out if w.out <= slab else round_down(slab, multiple) or slab
    return Plane(h.runs(max(1, slab // w.out), height), w.runs(columns))
