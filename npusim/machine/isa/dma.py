"""Moves between global memory, L1, L0 and UB: plain, fractal by fractal, and img2col."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import gcd
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from npusim.base.dtypes import DType
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div
from npusim.base.records import Record
from npusim.machine.device.parts import Path
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Cost, MemoryView, Move, move_cost
from npusim.machine.isa.operands import FRACTAL_BYTES, Region, SlotRegion


class DataMove(Move, Record, frozen=True):
    """Copy rows of bytes; source and destination have equal rows of equal length.

    ``dtype`` matters only for ``atomic`` (GM += data).
    """

    begins: ClassVar[Mapping[str, int]] = {"SM": 1, "AM": 1}  # the DMA of a DSP counts elements

    dst: Region
    src: Region
    path: Path
    dtype: DType
    atomic: bool = False

    def check(self, device: Device) -> None:
        if self.src.size != self.dst.size:
            raise ProgramError(
                f"{self}: {self.src.size} B into {self.dst.size} B; both sides must name equally "
                "many bytes"
            )
        if self.atomic and self.dst.memory != "GM":
            raise ProgramError(f"{self}: an atomic add goes to GM, not into a buffer")
        self._need_elements(self.dtype, self.src, self.dst)

    def row_step(self, region: Region) -> int:
        """Also where one piece meets rows of the other side: each is a burst of its own.

        Variants of a path may arrange rows, as that of block-scaled operands' scales does.
        """
        other, step = self.src if region is self.dst else self.dst, super().row_step(region)
        row = region.row_bytes if step else region.size
        cut = not self.path.variant and super().row_step(other) and other.row_bytes < row
        return gcd(step, other.row_bytes if cut else 0)

    def cost(self, device: Device) -> Cost:
        return move_cost(self.path, self.src.size, max(self.src.rows, self.dst.rows))

    def execute(self, memory: MemoryView) -> None:
        if self.atomic:
            memory.add(self.dst, memory.read(self.src, self.dtype), self.dtype)
        else:
            memory.move(self.dst, self.src, self.dtype)


class Nd2nz(Move, Record, frozen=True):
    """Load a row-major matrix and store it as NZ: columns of C0 elements, rows padded to 16.

    Destination [ceil(cols / C0)][ceil(rows / 16) * 16][C0]; a short last column is zero-filled.
    """

    dst: SlotRegion
    src: Region  # one region row per matrix row
    path: Path
    dtype: DType

    def check(self, device: Device) -> None:
        columns, rows = ceil_div(self.src.row_bytes, 32), ceil_div(self.src.rows, 16)
        self._need_size(self.dst, columns * rows * FRACTAL_BYTES)
        self._need_elements(self.dtype, self.src)

    def cost(self, device: Device) -> Cost:
        return move_cost(self.path, self.src.size, self.src.rows, place=self.src)

    def execute(self, memory: MemoryView) -> None:
        c0, m = 32 // self.dtype.bytes, self.src.rows
        columns = self.src.row_bytes // self.dtype.bytes
        n1 = ceil_div(columns, c0)

        def blocks(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if columns % c0:
                rows = np.pad(rows, ((0, 0), (0, 0), (0, n1 * c0 - columns)))
            return rows.reshape(-1, m, n1, c0).swapaxes(1, 2)

        # The rows that pad each column to 16 keep what they hold.
        dst = SlotRegion(
            self.dst.slot, self.dst.offset, n1, m * 32, ceil_div(m, 16) * FRACTAL_BYTES
        )
        memory.move(dst, self.src, self.dtype, (m, columns), blocks)


def _shares_bank(src: SlotRegion) -> bool:
    """Tell whether what is read lies in the bank that another slot's load is being written to."""
    return src.slot.buffer.slots > 1 and not src.slot.buffer.own_banks


def _elements(size: int, dtype: DType) -> int:
    """Elements of ``dtype`` in ``size`` bytes."""
    return size // dtype.bytes * dtype.values


class Load2d(Move, Record, frozen=True):
    """Copy ``repeat`` fractals of 512 B from L1 to L0, source fractals ``stride`` apart.

    Destination fractals are contiguous; ``transpose`` swaps the two axes inside each fractal.
    """

    dst: SlotRegion
    src: SlotRegion  # repeat rows of 512 B
    path: Path
    dtype: DType
    transpose: bool = False

    def check(self, device: Device) -> None:
        if not 1 <= self.src.rows <= 255:
            raise ProgramError(
                f"load2d repeat is {self.src.rows}; the field holds 1 to 255: split it"
            )
        if self.src.row_bytes != FRACTAL_BYTES:
            raise ProgramError(
                f"{self}: rows of {self.src.row_bytes} B; the source is one row of "
                f"{FRACTAL_BYTES} B per fractal, as slot.fractals() gives it"
            )
        self._need_size(self.dst, self.src.size)
        if self.transpose and self.dtype.bytes != 2:
            raise ProgramError(
                f"{self}: only 2-byte types are transposed by load2d, not {self.dtype}"
            )

    def cost(self, device: Device) -> Cost:
        size = self.dst.size
        elements = _elements(size, self.dtype)
        return move_cost(self.path, size, elements=elements, conflict=_shares_bank(self.src))

    def execute(self, memory: MemoryView) -> None:
        if self.transpose:
            memory.move(self.dst, self.src, self.dtype, (-1, 16, 16), lambda x: x.swapaxes(2, 3))
        else:
            memory.move(self.dst, self.src, self.dtype)


#: Fields of load3d by the values they hold.
_WINDOW_FIELDS = {
    (1, 32767): ("h", "w"),
    (0, 255): ("pad_left", "pad_right", "pad_top", "pad_bottom"),
    (1, 63): ("stride_h", "stride_w"),
    (1, 255): ("kernel_h", "kernel_w", "dilation_h", "dilation_w"),
}


class Window(Struct, frozen=True):
    """Geometry of img2col: a map [c1][h][w][C0], its padding, and the sliding filter."""

    h: int
    w: int
    pad_left: int = 0
    pad_right: int = 0
    pad_top: int = 0
    pad_bottom: int = 0
    kernel_h: int = 1
    kernel_w: int = 1
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1

    @property
    def out_h(self) -> int:
        """Output rows."""
        reach = self.dilation_h * (self.kernel_h - 1) + 1
        return (self.h + self.pad_top + self.pad_bottom - reach) // self.stride_h + 1

    @property
    def out_w(self) -> int:
        """Output columns."""
        reach = self.dilation_w * (self.kernel_w - 1) + 1
        return (self.w + self.pad_left + self.pad_right - reach) // self.stride_w + 1

    def check(self) -> None:
        """Raise ``ProgramError`` for what the fields of load3d cannot hold, or without outputs."""
        for (low, high), names in _WINDOW_FIELDS.items():
            for name in names:
                value = getattr(self, name)
                if not low <= value <= high:
                    raise ProgramError(f"load3d {name} is {value}; the field holds {low} to {high}")
        if min(self.out_h, self.out_w) < 1:
            raise ProgramError(
                f"load3d: the filter reaches past the padded map of {self.h} x {self.w}; "
                "no position is left, enlarge the map or the padding"
            )

    @property
    def plain(self) -> bool:
        """Tell whether positions are read once, one after the other: a 1x1 filter at stride 1."""
        filters = (self.kernel_h, self.kernel_w, self.stride_h, self.stride_w)
        pads = self.pad_left + self.pad_right + self.pad_top + self.pad_bottom
        return filters == (1, 1, 1, 1) and not pads

    def fetches(self, m_start: int, m_ext: int, fetcher: Fetcher) -> int:
        """Cycles to read one C0-column of the window for ``m_ext`` positions from ``m_start`` on.

        Positions go in groups of 16, row by row.
        """
        return _fetches(self.out_w, self.stride_w, m_start, m_ext, fetcher)


class Fetcher(NamedTuple):
    """The way img2col loads of a path read their map: ``window_bytes`` of a row in a cycle."""

    window_bytes: int

    @classmethod
    def of(cls, path: Path) -> Fetcher:
        """The figures of a path on which this rests."""
        return cls(path.window_bytes)

    def cycles(self, points: int, stride: int) -> int:
        """Cycles to read so many positions of one map row, ``stride`` pixels apart.

        Strides other than 1, 2 and 4 fetch every position alone.
        """
        if stride not in (1, 2, 4):
            return points
        return ceil_div(((points - 1) * stride + 1) * 32, self.window_bytes)


@lru_cache(maxsize=4096)
def _fetches(out_w: int, stride: int, m_start: int, m_ext: int, fetcher: Fetcher) -> int:
    total = 0
    for first in range(m_start, m_start + m_ext, 16):
        position = first
        end = min(first + 16, m_start + m_ext)
        while position < end:
            points = min(end, (position // out_w + 1) * out_w) - position
            total += fetcher.cycles(points, stride)
            position += points
    return total


class Load3d(Move, Record, frozen=True):
    """Cut ``m_ext`` x ``k_ext`` at (``m_start``, ``k_start``) out of the img2col matrix into L0.

    Matrix row m is an output position, column k runs C1, filter row, filter column, C0. As an
    L0A operand the window is A, or with ``transpose`` its transpose is; as an L0B operand the
    positions are the contraction axis. In UB, where a chip has that path, fractals lie as in L0A.
    Outside the map, and beyond the last position, is ``padding``.
    """

    dst: SlotRegion
    src: SlotRegion
    path: Path
    dtype: DType
    window: Window
    m_start: int
    m_ext: int
    k_start: int
    k_ext: int
    transpose: bool = False
    padding: float = 0.0

    @staticmethod
    @lru_cache(maxsize=4096)
    def sizes(
        memory: str,
        window: Window,
        m: tuple[int, int],
        k: tuple[int, int],
        dtype: DType,
        *,
        transpose: bool = False,
    ) -> tuple[int, int]:
        """Bytes of the destination in ``memory``, and of the planes that the columns lie in.

        Raises ``ProgramError`` for a window or a cut that the instruction cannot do.
        """
        window.check()
        (m_start, m_ext), (k_start, k_ext), c0 = m, k, 32 // dtype.bytes
        starts_well = m_start % 16 == 0 and k_start % c0 == 0 and min(m_start, k_start) >= 0
        if not starts_well or min(m_ext, k_ext) < 1:
            raise ProgramError(
                f"load3d starts at position {m_start}, column {k_start} for {m_ext} x {k_ext}; "
                f"starts must be multiples of 16 and {c0}, and both extents positive"
            )
        # The contraction axis is cut by C0, the other by 16: positions contract in L0B and A^T.
        rows, columns = (k_ext, m_ext) if transpose or memory == "L0B" else (m_ext, k_ext)
        last = k_start // c0 + ceil_div(k_ext, c0)
        planes = ceil_div(last, window.kernel_h * window.kernel_w)
        size = ceil_div(rows, 16) * ceil_div(columns, c0) * FRACTAL_BYTES
        return size, planes * window.h * window.w * 32

    def check(self, device: Device) -> None:
        w = self.window
        m = (self.m_start, self.m_ext)
        k = (self.k_start, self.k_ext)
        size, need = self.sizes(self.dst.memory, w, m, k, self.dtype, transpose=self.transpose)
        self._need_size(self.dst, size)
        plane = w.h * w.w * 32
        if self.src.size % plane or self.src.size < need:
            raise ProgramError(
                f"{self}: {self.src} has {self.src.size} B; columns {k[0]} to {sum(k)} need "
                f"{need // plane} whole planes of {w.h} x {w.w} x 32 B = {need} B"
            )

    def cost(self, device: Device) -> Cost:
        fetch = 0
        if not self.window.plain:
            columns = ceil_div(self.k_ext, 32 // self.dtype.bytes)
            fetcher = Fetcher.of(self.path)
            fetch = columns * self.window.fetches(self.m_start, self.m_ext, fetcher)
        return move_cost(
            self.path,
            self.dst.size,
            fetch=fetch,
            elements=_elements(self.dst.size, self.dtype),
            conflict=_shares_bank(self.src),
        )

    def execute(self, memory: MemoryView) -> None:
        c0, w = 32 // self.dtype.bytes, self.window
        in_l0b = self.dst.memory == "L0B"
        turned = self.transpose or in_l0b  # the positions are contracted
        pads = (c0, 16) if turned else (16, c0)
        cut = _cut(w, (self.m_start, self.m_ext), (self.k_start, self.k_ext), pads, c0)

        def fractals(planes: npt.NDArray[Any]) -> npt.NDArray[Any]:
            matrix = _img2col(planes, w, cut, c0, self.padding)
            positions = len(cut.pixel)
            if not turned:
                blocks = matrix.reshape(len(planes), positions // 16, 16, -1, c0)
                return blocks.transpose(0, 1, 3, 2, 4)
            columns = ceil_div(self.k_ext, 16) * 16  # of C0 32 whole blocks
            rows = matrix.reshape(len(planes), positions, -1).swapaxes(1, 2)[:, :columns]
            blocks = rows.reshape(len(rows), rows.shape[1] // 16, 16, rows.shape[2] // c0, c0)
            # In L0B contraction blocks are outside.
            return blocks.transpose((0, 3, 1, 2, 4) if in_l0b else (0, 1, 3, 2, 4))

        memory.move(self.dst, self.src, self.dtype, (-1, w.h * w.w, c0), fractals)


def _img2col(
    planes: npt.NDArray[Any], w: Window, cut: _Cut, c0: int, padding: float
) -> npt.NDArray[Any]:
    """The cut of the img2col matrix of (batch, planes, pixels, C0): batch, positions, columns, C0.

    Where the window cuts a piece out of the planes nothing is looked up.
    """
    if cut.piece is not None:
        m, k = cut.piece
        positions, columns = cut.pixel.shape
        maps = planes.reshape(len(planes), -1, w.h * w.w, c0)
        return maps[:, k : k + columns, m : m + positions].swapaxes(1, 2)
    matrix = planes.reshape(len(planes), -1, c0).take(cut.pixel, axis=1)
    matrix[cut.outside] = padding
    return matrix


class _Cut(NamedTuple):
    """The window by index: the pixel behind each (position, column), and those outside."""

    pixel: npt.NDArray[np.intp]  # plane, row and column of the map in one number
    outside: tuple[Any, ...]  # as an index behind the batch axis
    piece: tuple[int, int] | None  # first position and plane where the window cuts a piece out


@lru_cache(maxsize=1024)
def _cut(
    w: Window, m_cut: tuple[int, int], k_cut: tuple[int, int], pads: tuple[int, int], c0: int
) -> _Cut:
    """(start, extent) of positions and elements, padded to multiples of ``pads``.

    What pads them counts as outside the map.
    """
    m_start, m_ext = m_cut
    k_start, k_ext = k_cut
    positions = ceil_div(m_ext, pads[0]) * pads[0]
    columns = ceil_div(ceil_div(k_ext, pads[1]) * pads[1], c0)
    m = np.arange(m_start, m_start + positions)
    column = k_start // c0 + np.arange(columns)
    tap_h = column // w.kernel_w % w.kernel_h
    tap_w = column % w.kernel_w
    y = (m // w.out_w * w.stride_h - w.pad_top)[:, None] + tap_h * w.dilation_h
    x = (m % w.out_w * w.stride_w - w.pad_left)[:, None] + tap_w * w.dilation_w
    real = m < min(m_start + m_ext, w.out_h * w.out_w)
    inside = (y >= 0) & (y < w.h) & (x >= 0) & (x < w.w)
    inside &= real[:, None] & (column < ceil_div(k_start + k_ext, c0))
    plane = column // (w.kernel_h * w.kernel_w)
    pixel = np.where(inside, (plane * w.h + y) * w.w + x, 0)
    piece = None
    if w.plain and inside.all():
        piece = (m_start, int(plane[0]))
    return _Cut(pixel, (slice(None), *np.nonzero(~inside)), piece)


class Fill(Move, Record, frozen=True):
    """Write an immediate into L1 (``create_cbuf_matrix``)."""

    begins: ClassVar[Mapping[str, int]] = DataMove.begins

    dst: SlotRegion
    value: float
    path: Path
    dtype: DType

    def reads(self) -> tuple[Region, ...]:
        return ()

    def cost(self, device: Device) -> Cost:
        return move_cost(self.path, self.dst.size)

    def execute(self, memory: MemoryView) -> None:
        shape = (memory.batch, self.dst.size // self.dtype.bytes)
        memory.write(self.dst, np.full(shape, self.value, self.dtype.numpy), self.dtype)
