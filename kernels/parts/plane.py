"""Slabs of an output plane: runs of rows times runs of columns."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from msgspec import Struct

from npusim.language import IntArray, round_down
from npusim.problem.axis import WIDEST_FILTER, Axis, Runs


class Plane(Struct, frozen=True, eq=False, dict=True):
    """Slabs in row-major order; each is one run of ``rows`` by one of ``columns``.

    A slab is whole rows of the plane, or part of one. Where an axis is the sum of parts, several
    pairs of runs add up to one slab. What holds for all slabs follows from the runs alone, because
    planes of 10^4 slabs are common among the candidates of a tiling.
    """

    rows: Runs
    columns: Runs

    @cached_property
    def slabs(self) -> int:
        """Number of slabs."""
        return self.rows.slabs * self.columns.slabs

    @property
    def reads(self) -> int:
        """Number of pairs of runs."""
        return len(self.rows) * len(self.columns)

    def live(self) -> Plane:
        """Without the pairs that read no real input."""
        return Plane(*(axis.where(axis.real > 0) for axis in (self.rows, self.columns)))

    def filled(self, height: int) -> bool:
        """True if whole rows of one phase and the rows behind each make up ``height`` rows."""
        apart = {row.outputs_apart * self.rows.outputs for row in self.rows.readings[0]}
        begins = (*self.rows.first[:1], *self.columns.first)
        return begins == (0, 0) and apart == {height}

    @cached_property
    def positions(self) -> int:
        """Output positions of all slabs."""
        return self.rows.outputs * self.columns.outputs

    @cached_property
    def pixels(self) -> int:
        """Real input positions all pairs read, counted as often as they are read."""
        return int(self.rows.real.sum()) * int(self.columns.real.sum())

    @cached_property
    def products(self) -> int:
        """Taps times output positions, of all pairs."""
        rows = int((self.rows.count * self.rows.kernel).sum())
        columns = int((self.columns.count * self.columns.kernel).sum())
        return rows * columns

    @property
    def most_positions(self) -> int:
        """Output positions of the largest slab, 1 without slabs."""
        return self.rows.most("count") * self.columns.most("count") or 1

    @property
    def most_pixels(self) -> int:
        """Virtual input positions of the pair that reads most, at least 1."""
        return self.rows.most("size") * self.columns.most("size") or 1

    @property
    def most_taps(self) -> int:
        """Taps of the pair that has most, at least 1."""
        return self.rows.most("kernel") * self.columns.most("kernel") or 1

    def table(self) -> dict[str, IntArray]:
        """The numbers of each pair that a kernel needs: of its rows, then of its columns.

        Place and extent among the outputs, extent of what is read of the virtual inputs, padding
        on either side, place among the real ones, and taps.
        """
        rows = np.repeat(np.arange(len(self.rows)), len(self.columns))
        columns = np.tile(np.arange(len(self.columns)), len(self.rows))
        return {
            "row": self.rows.first[rows],
            "rows": self.rows.count[rows],
            "h": self.rows.size[rows],
            "top": self.rows.before[rows],
            "bottom": self.rows.after[rows],
            "real_row": self.rows.first_real[rows],
            "high": self.rows.kernel[rows],
            "column": self.columns.first[columns],
            "columns": self.columns.count[columns],
            "w": self.columns.size[columns],
            "left": self.columns.before[columns],
            "right": self.columns.after[columns],
            "real_column": self.columns.first_real[columns],
            "wide": self.columns.kernel[columns],
        }


@lru_cache(maxsize=8)  # planes of huge layers take a second to cut and many megabytes
def cut_plane(
    h: Axis,
    w: Axis,
    slab: int,
    height: int = 0,
    multiple: int = 1,
    form: str = "window",
    widest: tuple[int, int] = (WIDEST_FILTER, WIDEST_FILTER),
    *,
    whole_rows: bool = False,
) -> Plane:
    """Cut one output plane into slabs of at most ``slab`` positions: whole rows, or parts of one.

    Parts are of a ``multiple`` of positions where ``slab`` has room for one. With ``height`` no
    slab goes across a multiple of so many rows. Axes are taken in parts of ``form``; of "rows" the
    rows are tap by tap, the columns under a window; of "bands" both are under windows of at most
    the rows and columns of the ``widest``. With ``whole_rows`` part of a row reads the whole rows
    of the input behind it, where ``reads_whole_rows``.
    """
    down = form
    across = form
    if form == "rows":
        down = "taps"
        across = "window"
    elif form == "bands":
        down = "window"
        across = "window"
    out = w.longest(across)
    columns = out
    if out > slab:
        columns = round_down(slab, multiple) or slab
    rows = h.runs(max(1, slab // out), height, down, widest[0])
    whole = whole_rows and columns < out and reads_whole_rows(w, form, columns)
    return Plane(rows, w.runs(columns, form=across, widest=widest[1], whole=whole))


def reads_whole_rows(w: Axis, form: str, columns: int) -> bool:
    """True if img2col loads may take so many outputs of a row from whole rows of the input in L1.

    These loads begin at multiples of 16 outputs.
    """
    begins = columns % 16 == 0 and w.before >= 0
    return begins and form == "window" and w.insert == 1 and w.fits_window(whole=True)


def numbered(*columns: IntArray) -> IntArray:
    """One number for each row that puts them in the order of ``columns``, the first slowest."""
    place = np.zeros_like(columns[0])
    for column in columns:
        place = place * (int(column.max(initial=0)) + 1) + column
    return place
