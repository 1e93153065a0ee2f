"""Operands an instruction accepts: memories, sizes and field widths, checked as it is issued.

Every check raises ``ProgramError`` with the limit and the way out; ``build`` adds the kernel line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.dtypes import FP32, DType
from npusim.errors import ProgramError
from npusim.integers import ceil_div
from npusim.isa import (
    CoreWaitFlag,
    DataMove,
    Drain,
    Instruction,
    Load2d,
    Load3d,
    Mmad,
    Nd2nz,
    VecBinary,
    VecCast,
    VecDup,
    VecReduce,
    VecScalar,
)
from npusim.isa.base import FRACTAL_BYTES
from npusim.isa.dma import Window
from npusim.isa.operands import GmRegion, Region
from npusim.isa.vector import BINARY

#: Fields of load3d by the values they hold.
_WINDOW_FIELDS = {
    (1, 32767): ("h", "w"),
    (0, 255): ("pad_left", "pad_right", "pad_top", "pad_bottom"),
    (1, 63): ("stride_h", "stride_w"),
    (1, 255): ("kernel_h", "kernel_w", "dilation_h", "dilation_w"),
}

_SCALAR = ("adds", "muls", "maxs", "mins")
_REDUCE = ("add", "max")


def check_operands(instruction: Instruction) -> None:
    """Raise unless the instruction's memories, sizes and operation fit each other."""
    for region in (*instruction.reads(), *instruction.writes()):
        _check_region(region)
    check = _CHECKS.get(type(instruction))
    if check is not None:
        check(instruction)


def _check_region(region: Region) -> None:
    if isinstance(region, GmRegion) and min(region.row_bytes, region.rows) < 1:
        raise ProgramError(f"{region} names no bytes; rows and bytes per row must be at least 1")
    if region.pitch < 0:
        raise ProgramError(f"{region} has a pitch of {region.pitch} B; it cannot be negative")


def _in_memory(i: Instruction, memory: str, *regions: Region) -> None:
    for region in regions:
        if region.memory != memory:
            raise ProgramError(
                f"{i}: {region} lies in {region.memory}, this operand must be in {memory}"
            )


def _has_size(i: Instruction, region: Region, want: int) -> None:
    if region.size != want:
        raise ProgramError(f"{i}: {region} has {region.size} B, it must have {want} B")


def _has_whole_elements(i: Instruction, region: Region, dtype: DType) -> None:
    if region.row_bytes % dtype.bytes:
        raise ProgramError(f"{i}: rows of {region.row_bytes} B are not whole {dtype} elements")


def _has_operation(i: Instruction, operation: str, known: tuple[str, ...]) -> None:
    if operation not in known:
        raise ProgramError(
            f"{i}: there is no operation {operation!r}; it is one of {', '.join(known)}"
        )


def _data_move(i: DataMove) -> None:
    if i.src.size != i.dst.size:
        raise ProgramError(
            f"{i}: {i.src.size} B into {i.dst.size} B; both sides must name equally many bytes"
        )
    if i.is_atomic and i.dst.memory != "GM":
        raise ProgramError(f"{i}: an atomic add goes to GM, not into a buffer")
    for region in (i.src, i.dst):
        _has_whole_elements(i, region, i.dtype)


def _nd2nz(i: Nd2nz) -> None:
    columns, rows = ceil_div(i.src.row_bytes, 32), ceil_div(i.src.rows, 16)
    _has_size(i, i.dst, columns * rows * FRACTAL_BYTES)
    _has_whole_elements(i, i.src, i.dtype)


def _load2d(i: Load2d) -> None:
    if i.transpose and i.dtype.bytes != 2:
        raise ProgramError(f"{i}: only 2-byte types are transposed by load2d, not {i.dtype}")


def _load3d(i: Load3d) -> None:
    c0, w = 32 // i.dtype.bytes, i.window
    _check_window(w)
    starts_well = i.m_start % 16 == 0 and i.k_start % c0 == 0 and min(i.m_start, i.k_start) >= 0
    if not starts_well or min(i.m_ext, i.k_ext) < 1:
        raise ProgramError(
            f"load3d starts at position {i.m_start}, column {i.k_start} for {i.m_ext} x "
            f"{i.k_ext}; starts must be multiples of 16 and {c0}, and both extents positive"
        )
    columns = ceil_div(i.k_ext, c0)
    # The contraction axis is cut by C0, the other by 16: positions contract in L0B and A^T.
    turned = i.transpose or i.dst.memory == "L0B"
    blocks = (i.k_ext, i.m_ext) if turned else (i.m_ext, i.k_ext)
    _has_size(i, i.dst, ceil_div(blocks[0], 16) * ceil_div(blocks[1], c0) * FRACTAL_BYTES)
    plane = w.h * w.w * 32
    planes = ceil_div(i.k_start // c0 + columns, w.kernel_h * w.kernel_w)
    if i.src.size % plane or i.src.size < planes * plane:
        raise ProgramError(
            f"{i}: {i.src} has {i.src.size} B; columns {i.k_start} to {i.k_start + i.k_ext} need "
            f"{planes} whole planes of {w.h} x {w.w} x 32 B = {planes * plane} B"
        )


def _check_window(window: Window) -> None:
    """The field widths of load3d."""
    for (low, high), names in _WINDOW_FIELDS.items():
        for name in names:
            value = getattr(window, name)
            if not low <= value <= high:
                raise ProgramError(f"load3d {name} is {value}; the field holds {low} to {high}")
    if min(window.out_h, window.out_w) < 1:
        raise ProgramError(
            f"load3d: the filter reaches past the padded map of {window.h} x {window.w}; "
            "no position is left, enlarge the map or the padding"
        )


def _mmad(i: Mmad) -> None:
    for region, memory in ((i.c, "L0C"), (i.a, "L0A"), (i.b, "L0B")):
        _in_memory(i, memory, region)


def _drain(i: Drain) -> None:
    _in_memory(i, "L0C", i.src)
    nd = i.path.variant == "nz2nd"
    rows, row = (i.m, i.n) if nd else (ceil_div(i.n, i.c0), i.m * i.c0)
    if (i.dst.rows, i.dst.row_bytes) != (rows, row * i.dtype.bytes):
        raise ProgramError(
            f"{i}: a {i.m} x {i.n} tile leaves as {rows} rows of {row * i.dtype.bytes} B, not as "
            f"{i.dst.rows} of {i.dst.row_bytes} B"
        )
    _has_size(i, i.src, ceil_div(i.n, 16) * ceil_div(i.m, 16) * 256 * FP32.bytes)


def _vec_binary(i: VecBinary) -> None:
    _in_memory(i, "UB", i.dst, i.a, i.b)
    _has_operation(i, i.operation, tuple(BINARY))
    _has_whole_elements(i, i.dst, i.dtype)
    for region in (i.a, i.b):
        _has_size(i, region, i.dst.size)
        _has_whole_elements(i, region, i.dtype)


def _vec_scalar(i: VecScalar) -> None:
    _in_memory(i, "UB", i.dst, i.a)
    _has_operation(i, i.operation, _SCALAR)
    _has_size(i, i.a, i.dst.size)
    for region in (i.dst, i.a):
        _has_whole_elements(i, region, i.dtype)


def _vec_cast(i: VecCast) -> None:
    _in_memory(i, "UB", i.dst, i.src)
    _has_whole_elements(i, i.src, i.dtype)
    _has_whole_elements(i, i.dst, i.to)
    _has_size(i, i.dst, i.src.size // i.dtype.bytes * i.to.bytes)


def _vec_reduce(i: VecReduce) -> None:
    _in_memory(i, "UB", i.dst, i.src)
    _has_operation(i, i.operation, _REDUCE)
    _has_size(i, i.src, i.rows * i.columns * i.dtype.bytes)
    _has_size(i, i.dst, i.rows * i.dtype.bytes)
    for region in (i.dst, i.src):
        _has_whole_elements(i, region, i.dtype)


def _vec_dup(i: VecDup) -> None:
    _in_memory(i, "UB", i.dst)
    _has_whole_elements(i, i.dst, i.dtype)


def _core_wait_flag(i: CoreWaitFlag) -> None:
    if i.count < 1:
        raise ProgramError(f"{i}: the count must be at least 1")


_CHECKS: dict[type[Instruction], Callable[[Any], None]] = {
    DataMove: _data_move,
    Nd2nz: _nd2nz,
    Load2d: _load2d,
    Load3d: _load3d,
    Mmad: _mmad,
    Drain: _drain,
    VecBinary: _vec_binary,
    VecScalar: _vec_scalar,
    VecCast: _vec_cast,
    VecReduce: _vec_reduce,
    VecDup: _vec_dup,
    CoreWaitFlag: _core_wait_flag,
}
