"""The way out of L0C: one word of the kernel language for two kinds of chip.

Where a device moves L0C to GM itself a drain is one instruction of the FIX pipe; where it does not,
it is pieces through UB, which the vector pipe fills and MTE3 stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import gcd
from typing import NamedTuple

from msgspec import Struct

from npusim.base.dtypes import DType
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div, round_up
from npusim.base.records import replace
from npusim.machine.device.parts import Path
from npusim.machine.isa.cube import MATRICES_APART, Drain
from npusim.machine.isa.dma import DataMove
from npusim.machine.isa.operands import GmRegion, Slot, SlotRegion
from npusim.machine.isa.vector import VecDup
from npusim.machine.program.recorder import Recorder
from npusim.machine.program.units import BufferHandle


class Line(NamedTuple):
    """``rows`` matrix rows of a tile from ``first`` on, and where they go: ``pitch`` B apart.

    ``offset`` is how far behind matrix row 0 the first one goes, in bytes.
    """

    first: int
    rows: int
    offset: int
    pitch: int


class Fixpipe(Recorder):
    """Drains of an accumulator tile."""

    def fixpipe_staging(
        self, m: int, dtype: DType, *, slots: int = 2, columns: int = 0
    ) -> BufferHandle | None:
        """The UB buffer ``fixpipe`` needs where L0C drains through UB; None where it does not.

        Holds as many NZ columns of ``m`` x 16 elements as fit (at most ``columns``, if given).
        """
        if self.has_path("L0C", "GM"):
            return None
        column = ceil_div(m, 16) * 256 * dtype.bytes
        fit = self._device.memory("UB").size_bytes // slots // column
        return self.buffer(
            "UB",
            (max(1, min(fit, columns or fit)), column // dtype.bytes),
            dtype,
            slots=slots,
            name="fixpipe_ub",
        )

    def fixpipe(
        self,
        dst: GmRegion,
        c: Slot,
        m: int,
        n: int,
        dtype: DType,
        *,
        staging: BufferHandle | None,
        nd: bool = False,
        atomic: bool = False,
        c0: int = 16,
    ) -> None:
        """Drain an ``m`` x ``n`` tile of L0C to GM, converted to ``dtype``.

        With ``c0`` 8 every NZ column is split into two of 8 elements (FIX pipe only).
        ``dst`` has one row per NZ column of 16 matrix columns, or with ``nd`` one per matrix
        row. One FIX instruction where the device has L0C->GM, else L0C->UB (V) and UB->GM
        (MTE3) in pieces of the ``staging`` buffer.
        """
        tile = ceil_div(m, 16) * 1024
        if staging is None:
            path = self._path("L0C", "GM", "nz2nd" if nd else "")
            source = c.at(0, tile * ceil_div(n, 16))
            self._issue(self._drain(dst, source, m, n, path, dtype, atomic, c0))
            return
        if c0 != 16:
            raise ProgramError(
                f"fixpipe with C0 = {c0}: only a FIX pipe splits columns, and "
                f"{self._device.name} drains L0C through UB; use c0=16"
            )
        for first, count, ub in self._staged(c, m, n, dtype, staging=staging):
            for target, source in _store_pieces(dst, ub, first, count, m, n, dtype, nd=nd):
                path = self._path("UB", "GM")
                self._issue(DataMove(target, source, path, dtype, atomic))

    @property
    def _drain(self) -> Callable[..., Drain]:
        """Makes drains with the rounding of the device."""
        return partial(Drain, zero_nan=self._device.saturates)

    def fixpipe_scatter(
        self,
        dst: GmRegion,
        lines: Sequence[Line],
        c: Slot,
        m: int,
        n: int,
        dtype: DType,
        staging: BufferHandle | None,
        picture: BufferHandle | None = None,
        *,
        c0: int = 16,
    ) -> None:
        """Drain an ``m`` x ``n`` tile whose matrix rows go to places apart from each other.

        ``dst`` has one row per block of ``c0`` columns, where those of matrix row 0 go; ``lines``
        say where the others do. A FIX pipe drains a line row by row or, of columns of 16 or a
        single one of 8, as matrix rows, all columns at once or, where they lie too far apart,
        column by column, whichever takes less time; without one MTE3 stores it from UB. With a
        ``picture`` there, rows of ``dst`` are all that lies around the lines, stored as zeros with
        them.
        """
        if staging is not None:
            self._scatter_through_ub(dst, lines, c, (m, n), dtype, staging, picture)
            return
        paths = self._path("L0C", "GM"), self._path("L0C", "GM", "nz2nd")
        tile = _Tile(partial(self._drain, dtype=dtype), dst, c, (m, n), *paths, c0, dtype.bytes)
        for line in lines:
            if line.pitch == c0 * dtype.bytes or line.rows == 1:
                self._issue(tile.rows(line.first, line.rows, line.offset))
                continue
            way = min(tile.ways(line), key=self._way_cycles)
            for i in range(way.drains):
                self._issue(way.drain(i))

    def _way_cycles(self, way: _Way) -> int:
        """Cycles of all drains of a way; those whose places lie alike take as long."""
        period = min(way.drains, way.align // gcd(way.pitch, way.align))
        return sum(
            len(range(i, way.drains, period)) * self._cycles([way.drain(i)]) for i in range(period)
        )

    def _scatter_through_ub(
        self,
        dst: GmRegion,
        lines: Sequence[Line],
        c: Slot,
        size: tuple[int, int],
        dtype: DType,
        staging: BufferHandle,
        picture: BufferHandle | None,
    ) -> None:
        """The tile goes to UB in pieces of whole columns, and line by line from there.

        Into a picture lines go one by one, and it is stored at once.
        """
        (m, n), block, row = size, 16 * dtype.bytes, dst.row_bytes
        path, column = self._path("UB", "GM"), m * block
        most = picture.buffer.slot_bytes // row if picture else n
        for first, count, ub in self._staged(c, m, n, dtype, staging=staging, most=most):
            if picture is not None:
                canvas = picture.next().at(0, row, rows=count, pitch=row)
                self._issue(VecDup(canvas, 0.0, dtype, False))
                for j, line in product(range(count), lines):
                    offset = j * row + line.offset
                    place = canvas.slot.at(offset, block, rows=line.rows, pitch=line.pitch)
                    source = ub.at(j * column + line.first * block, line.rows * block)
                    self._issue(DataMove(place, source, self._path("UB", "UB"), dtype))
                target = _moved(dst, first * dst.pitch, count, row, dst.pitch)
                self._issue(DataMove(target, canvas, path, dtype))
                continue
            for line in lines:
                offset, source_offset = line.offset + first * dst.pitch, line.first * block
                if line.pitch == block or line.rows == 1:
                    width = line.rows * block
                    target = _moved(dst, offset, count, width, dst.pitch)
                    source = ub.at(source_offset, width, rows=count, pitch=column)
                    self._issue(DataMove(target, source, path, dtype))
                    continue
                for j in range(count):
                    target = _moved(dst, offset + j * dst.pitch, line.rows, block, line.pitch)
                    source = ub.at(j * column + source_offset, block, rows=line.rows, pitch=block)
                    self._issue(DataMove(target, source, path, dtype))

    def _staged(
        self, c: Slot, m: int, n: int, dtype: DType, *, staging: BufferHandle, most: int = 0
    ) -> Iterator[tuple[int, int, Slot]]:
        """Bring the columns of a tile to UB: the first of each piece, how many, and where.

        A piece has at most so many, if given.
        """
        tile, column = ceil_div(m, 16) * 1024, m * 16 * dtype.bytes
        piece = min(staging.buffer.slot_bytes // column, most or n)
        if not piece:
            raise ProgramError(
                f"{staging.buffer.name} holds {staging.buffer.slot_bytes} B, a column of {m} x 16 "
                f"{dtype} needs {column} B; declare the staging for this m"
            )
        for first in range(0, ceil_div(n, 16), piece):
            count = min(piece, ceil_div(n, 16) - first)
            ub = staging.next()
            target = ub.at(0, column, rows=count, pitch=column)
            self.fixpipe_to_ub(target, c.at(first * tile, count * tile), m, count * 16, dtype)
            yield first, count, ub

    def fixpipe_to_ub(self, dst: SlotRegion, c: SlotRegion, m: int, n: int, dtype: DType) -> None:
        """Drain ``m`` rows of a tile to UB, where V does so: a row of ``dst`` per NZ column.

        ``c`` is whole NZ columns, or a row for the part of each.
        """
        self._issue(self._drain(dst, c, m, n, self._path("L0C", "UB"), dtype))

    def fixpipe_through_ub(
        self,
        dst: GmRegion,
        c: Slot,
        m: int,
        n: int,
        dtype: DType,
        *,
        staging: BufferHandle,
        atomic: bool = False,
    ) -> None:
        """Drain an ``m`` x ``n`` tile as matrix rows over UB: FIX fills it, MTE3 stores from it.

        ``dst`` has one row per matrix row. Each piece is as many rows, a multiple of 16, as a slot
        of ``staging`` holds.
        """
        row, column = n * dtype.bytes, ceil_div(m, 16) * 1024
        pitch = round_up(row, staging.buffer.align)
        step = staging.buffer.slot_bytes // pitch // 16 * 16
        if not step:
            raise ProgramError(
                f"{staging.buffer.name} holds {staging.buffer.slot_bytes} B, 16 rows of {n} "
                f"{dtype} need {16 * pitch} B; declare a larger staging buffer"
            )
        path, out = self._path("L0C", "UB", "nz2nd"), self._path("UB", "GM")
        for first in range(0, m, step):
            rows = min(step, m - first)
            piece = ceil_div(rows, 16) * 1024
            source = c.at(first * 64, piece, rows=ceil_div(n, 16), pitch=column)
            staged = staging.next().at(0, row, rows=rows, pitch=pitch)
            self._issue(self._drain(staged, source, rows, n, path, dtype))
            target = _moved(dst, first * dst.pitch, rows, row, dst.pitch)
            self._issue(DataMove(target, staged, out, dtype, atomic))


class _Way(NamedTuple):
    """``drains`` of one size, whose places in GM are ``pitch`` bytes apart; these matter
    modulo ``align`` bytes."""

    drain: Callable[[int], Drain]
    drains: int
    pitch: int
    align: int


class _Tile(Struct, frozen=True):
    """A tile of L0C whose lines leave singly: ``drain`` makes an instruction of its operands."""

    drain: Callable[..., Drain]
    dst: GmRegion
    c: Slot
    size: tuple[int, int]
    plain: Path
    as_rows: Path
    c0: int
    element: int

    def ways(self, line: Line) -> list[_Way]:
        """Ways in which a line may leave whose rows lie apart."""
        blocks, apart = ceil_div(self.size[1], 16), self.dst.pitch
        ways = [_Way(partial(self._row, line), line.rows, line.pitch, self.plain.align_bytes)]
        if self.c0 == 16 or self.size[1] <= self.c0:  # a block begins where a column does
            align = self.as_rows.align_bytes
            ways.append(_Way(partial(self._column, line), blocks, apart, align))
        if self.c0 == 16 and blocks > 1 and 0 < apart <= MATRICES_APART * self.element:
            ways.append(_Way(partial(self._columns, line), 1, 0, 1))
        return ways

    def rows(self, first: int, count: int, offset: int) -> Drain:
        """The drain of rows that follow each other in GM, too."""
        size = count * self.c0 * self.element
        out = _moved(self.dst, offset, self.dst.rows, size, self.dst.pitch)
        return self.drain(
            out, self._source(first, count), count, self.size[1], self.plain, c0=self.c0
        )

    def _source(self, first: int, count: int) -> SlotRegion:
        pitch = ceil_div(self.size[0], 16) * 1024
        return self.c.at(first * 64, count * 64, rows=ceil_div(self.size[1], 16), pitch=pitch)

    def _row(self, line: Line, i: int) -> Drain:
        return self.rows(line.first + i, 1, line.offset + i * line.pitch)

    def _column(self, line: Line, j: int) -> Drain:
        offset, block = line.offset + j * self.dst.pitch, self.c0 * self.element
        out = _moved(self.dst, offset, line.rows, block, line.pitch)
        source_offset = j * ceil_div(self.size[0], 16) * 1024 + line.first * 64
        return self.drain(
            out, self.c.at(source_offset, line.rows * 64), line.rows, self.c0, self.as_rows
        )

    def _columns(self, line: Line, _: int) -> Drain:
        out = _moved(self.dst, line.offset, line.rows, self.c0 * self.element, line.pitch)
        source = self._source(line.first, line.rows)
        drain = self.drain(out, source, line.rows, self.c0, self.as_rows)
        return replace(drain, matrices=source.rows, apart=self.dst.pitch)


def _moved(dst: GmRegion, offset: int, rows: int, row_bytes: int, pitch: int) -> GmRegion:
    """Rows that begin ``offset`` bytes behind a region."""
    return GmRegion(dst.tensor, dst.base, dst.offset + offset, rows, row_bytes, pitch)


def _store_pieces(
    dst: GmRegion, ub: Slot, first: int, count: int, m: int, n: int, dtype: DType, *, nd: bool
) -> list[tuple[GmRegion, SlotRegion]]:
    """UB->GM pieces of ``count`` NZ columns in UB: whole columns, or short pieces of rows."""
    column, block = m * 16 * dtype.bytes, 16 * dtype.bytes
    if not nd:
        target = _moved(dst, first * dst.pitch, count, column, dst.pitch)
        return [(target, ub.at(0, column, rows=count, pitch=column))]
    pieces = []
    for j in range(count):
        width = min(16, n - (first + j) * 16) * dtype.bytes
        target = _moved(dst, (first + j) * block, m, width, dst.pitch)
        pieces.append((target, ub.at(j * column, width, rows=m, pitch=block)))
    return pieces
