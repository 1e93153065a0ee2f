"""Moves between global memory, L1, L0 and UB: plain, fractal by fractal, and img2col."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from npusim.device.spec import Device, Path
from npusim.dtypes import DType
from npusim.isa.base import Cost, MemoryView, Move, ceil_div, move_cost
from npusim.isa.operands import Region, SlotRegion


@dataclass(frozen=True)
class DataMove(Move):
    """Copy rows of bytes; source and destination have equal rows of equal length.

    ``dtype`` matters only for ``atomic`` (GM += data).
    """

    dst: Region
    src: Region
    path: Path
    dtype: DType
    is_atomic: bool = False

    @property
    def atomic(self) -> bool:
        return self.is_atomic

    def cost(self, device: Device) -> Cost:
        return move_cost(self.path, self.src.size, max(self.src.rows, self.dst.rows))

    def execute(self, memory: MemoryView) -> None:
        values = memory.read(self.src, self.dtype)
        (memory.add if self.is_atomic else memory.write)(self.dst, values, self.dtype)


@dataclass(frozen=True)
class Nd2nz(Move):
    """Load a row-major matrix and store it as NZ: columns of C0 elements, rows padded to 16.

    Destination [ceil(cols / C0)][ceil(rows / 16) * 16][C0]; a short last column is zero-filled.
    """

    dst: SlotRegion
    src: Region  # one region row per matrix row
    path: Path
    dtype: DType

    def cost(self, device: Device) -> Cost:
        return move_cost(self.path, self.src.size, self.src.rows)

    def execute(self, memory: MemoryView) -> None:
        rows = memory.read(self.src, self.dtype)
        c0 = 32 // self.dtype.bytes
        n1, m = ceil_div(rows.shape[1], c0), rows.shape[0]
        out = memory.read(self.dst, self.dtype).reshape(n1, ceil_div(m, 16) * 16, c0)
        padded = np.zeros((m, n1 * c0), rows.dtype)
        padded[:, : rows.shape[1]] = rows
        out[:, :m] = padded.reshape(m, n1, c0).swapaxes(0, 1)
        memory.write(self.dst, out, self.dtype)


@dataclass(frozen=True)
class Load2d(Move):
    """Copy ``repeat`` fractals of 512 B from L1 to L0, source fractals ``stride`` apart.

    Destination fractals are contiguous; ``transpose`` swaps the two axes inside each fractal.
    """

    dst: SlotRegion
    src: SlotRegion  # repeat rows of 512 B
    path: Path
    dtype: DType
    transpose: bool = False

    def cost(self, device: Device) -> Cost:
        return move_cost(self.path, self.dst.size)

    def execute(self, memory: MemoryView) -> None:
        fractals = memory.read(self.src, self.dtype)
        if self.transpose:
            fractals = fractals.reshape(-1, 16, 16).swapaxes(1, 2)
        memory.write(self.dst, fractals, self.dtype)


@dataclass(frozen=True)
class Window:
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

    def fetches(self, m_start: int, m_ext: int, window_bytes: int) -> int:
        """Cycles to read one C0-column of the window: groups of 16 positions, row by row.

        Positions on one map row within ``window_bytes`` are fetched together; strides other
        than 1, 2 and 4 fetch every position alone.
        """
        return _fetches(self.out_w, self.stride_w, m_start, m_ext, window_bytes)


@lru_cache(maxsize=4096)
def _fetches(out_w: int, stride: int, m_start: int, m_ext: int, window_bytes: int) -> int:
    total = 0
    for first in range(m_start, m_start + m_ext, 16):
        p, end = first, min(first + 16, m_start + m_ext)
        while p < end:
            points = min(end, (p // out_w + 1) * out_w) - p
            alone = stride not in (1, 2, 4)
            total += points if alone else ceil_div(((points - 1) * stride + 1) * 32, window_bytes)
            p += points
    return total


@dataclass(frozen=True)
class Load3d(Move):
    """Cut ``m_ext`` x ``k_ext`` at (``m_start``, ``k_start``) out of the img2col matrix into L0.

    Matrix row m is an output position, column k runs C1, filter row, filter column, C0. As an
    L0A operand the window is A, or with ``transpose`` its transpose is; as an L0B operand the
    positions are the contraction axis. Outside the map, and beyond the last position, is 0.
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

    def cost(self, device: Device) -> Cost:
        columns = ceil_div(self.k_ext, 32 // self.dtype.bytes)
        ticks = columns * self.window.fetches(self.m_start, self.m_ext, self.path.window_bytes)
        return move_cost(self.path, self.dst.size, cycles=ticks)

    def execute(self, memory: MemoryView) -> None:
        c0 = 32 // self.dtype.bytes
        w = self.window
        planes = memory.read(self.src, self.dtype).reshape(-1, w.h, w.w, c0)
        cut = self._cut(planes, c0)
        if self.dst.memory == "L0B":  # Zn: contraction blocks outside, column-major inside
            fractals = to_fractals(cut.T, c0).swapaxes(0, 1)
        else:
            fractals = to_fractals(cut.T if self.transpose else cut, c0)
        memory.write(self.dst, fractals, self.dtype)

    def _cut(self, planes: npt.NDArray[np.generic], c0: int) -> npt.NDArray[np.generic]:
        """The window as (positions, columns rounded up to C0), zero outside the map."""
        w = self.window
        m = np.arange(self.m_start, min(self.m_start + self.m_ext, w.out_h * w.out_w))
        column = np.arange(self.k_start // c0, ceil_div(self.k_start + self.k_ext, c0))
        tap_h, tap_w = column // w.kernel_w % w.kernel_h, column % w.kernel_w
        y = (m // w.out_w * w.stride_h - w.pad_top)[:, None] + tap_h * w.dilation_h
        x = (m % w.out_w * w.stride_w - w.pad_left)[:, None] + tap_w * w.dilation_w
        inside = (y >= 0) & (y < w.h) & (x >= 0) & (x < w.w)
        plane = column // (w.kernel_h * w.kernel_w)
        values = planes[plane[None], y.clip(0, w.h - 1), x.clip(0, w.w - 1)]
        out = np.zeros((self.m_ext, len(column), c0), planes.dtype)
        out[: len(m)] = np.where(inside[..., None], values, planes.dtype.type(0))
        return out.reshape(len(out), -1)


def to_fractals(matrix: npt.NDArray[np.generic], c0: int) -> npt.NDArray[np.generic]:
    """(rows, k) as Zz fractals [rows / 16][k / C0][16][C0], zero-padded to whole fractals."""
    rows, k = matrix.shape
    r1, k1 = ceil_div(rows, 16), ceil_div(k, c0)
    if (rows, k) != (r1 * 16, k1 * c0):
        matrix = np.pad(matrix, ((0, r1 * 16 - rows), (0, k1 * c0 - k)))
    return matrix.reshape(r1, 16, k1, c0).swapaxes(1, 2)


@dataclass(frozen=True)
class Fill(Move):
    """Write an immediate into L1 (``create_cbuf_matrix``)."""

    dst: SlotRegion
    value: float
    path: Path
    dtype: DType

    def reads(self) -> tuple[Region, ...]:
        return ()

    def cost(self, device: Device) -> Cost:
        return move_cost(self.path, self.dst.size)

    def execute(self, memory: MemoryView) -> None:
        count = self.dst.size // self.dtype.bytes
        memory.write(self.dst, np.full(count, self.value, self.dtype.numpy), self.dtype)
