"""The cube: matrix multiply-accumulate in L0, and the ways out of its accumulators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import FP32, INT32, DType
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div
from npusim.base.records import Record
from npusim.base.rounding import round_hf32, round_to
from npusim.machine.device.parts import Cube, CubeRate, Path
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import (
    CONFLICT,
    STARTUP,
    Cost,
    Instruction,
    MemoryView,
    Move,
    Numbers,
    Told,
    move_cost,
    transfer_cycles,
)
from npusim.machine.isa.operands import FRACTAL_BYTES, GmRegion, Region, SlotRegion, moved

#: Largest extent of an mmad, in elements: a field of 12 bits.
MMAD_FIELD = 4095

#: Most matrices that one drain writes, and elements from one to the next: fields of 16 bits
#: (vendor documentation).
MATRICES_APART = 65535

#: Bytes of a row of a fractal of sums (vendor documentation).
_ROW_BYTES = 64

#: Bytes of L0C that the unit flag hands over at a time (vendor documentation).
UNIT_FLAG_BYTES = 512


class Mmad(Instruction, Record, frozen=True):
    """C (L0C, NZ) = A (L0A, Zz) @ B (L0B, Zn), added to C unless ``init``.

    ``m``, ``k``, ``n`` are elements; what lies beyond them in the last fractals is ignored.
    Products of block-scaled types also read ``scales``; they are timed only. With ``bias``, ``n``
    numbers in BT of the type of their buffer, C begins as a row of these in each of its rows; what
    that takes is not published, and nothing is added to the time (``cmatrixSource`` in the
    vendor's documentation).
    C is fp32, of integers int32 (which wraps around). One sum per mmad is added to it: mmads
    accumulate in program order.
    """

    c: SlotRegion
    a: SlotRegion
    b: SlotRegion
    m: int
    k: int
    n: int
    dtype: DType
    init: bool
    hf32_bits: int = 0  # > 0: fp32 operands are rounded to this many mantissa bits on the way in
    scales: tuple[SlotRegion, ...] = ()  # of A and of B, for block-scaled types
    bias: SlotRegion | None = None

    pipe = "M"
    unit: ClassVar[str] = "cube"
    additions: ClassVar[tuple[tuple[str, str], ...]] = (
        (CONFLICT, "odd_block_conflict"),
        (STARTUP, "startup_cycles"),
    )

    @staticmethod
    def cycles(cube: Cube, rate: CubeRate, m: Numbers, k: Numbers, n: Numbers) -> Numbers:
        """Cycles of an mmad of ``m`` x ``k`` x ``n`` blocks of a rate; see ``Numbers``.

        A cube that says so pays for odd numbers of blocks along m or n where there are several
        along k.
        """
        cycles = Mmad.cycles_of_blocks(cube, rate, m, k, n)
        if cube.odd_block_conflict:
            odd = (m % 2 > 0) | (n % 2 > 0)
            cycles = cycles + (k > 1) * odd * (k - 2)
        return cycles

    @staticmethod
    def cycles_of_blocks(cube: Cube, rate: CubeRate, m: Numbers, k: Numbers, n: Numbers) -> Numbers:
        """Cycles of ``Mmad.cycles`` without conflicts: at least so many, of means of blocks too."""
        return cube.startup_cycles + m * k * n * rate.cycles

    @property
    def math(self) -> str:
        """Name of the cube's rate it runs at."""
        return "hf32" if self.hf32_bits else self.dtype.name

    def reads(self) -> tuple[Region, ...]:
        operands = (self.a, self.b, *self.scales, *([self.bias] if self.bias else []))
        return operands if self.init else (*operands, self.c)

    def writes(self) -> tuple[Region, ...]:
        return (self.c,)

    def typed(self, told: Told) -> list[tuple[Region, DType]]:
        return [(self.c, self._sums), (self.a, self.dtype), (self.b, self.dtype)]

    @property
    def _sums(self) -> DType:
        """The type in which it adds up."""
        return INT32 if self.dtype.kind == "int" else FP32

    @staticmethod
    @lru_cache(maxsize=4096)
    def sizes(m: int, k: int, n: int, dtype: DType) -> tuple[int, int, int]:
        """Bytes of C, A and B in whole fractals.

        Raises ``ProgramError`` for extents that the instruction's fields cannot hold.
        """
        for name, extent in (("m", m), ("k", k), ("n", n)):
            if not 1 <= extent <= MMAD_FIELD:
                raise ProgramError(f"mmad {name} is {extent}; the field holds 1 to {MMAD_FIELD}")
        m1, k1, n1 = ceil_div(m, 16), ceil_div(k, 32 // dtype.bytes), ceil_div(n, 16)
        return m1 * n1 * 256 * FP32.bytes, m1 * k1 * FRACTAL_BYTES, k1 * n1 * FRACTAL_BYTES

    @property
    def about(self) -> str:
        return f"m {self.m:,}, k {self.k:,}, n {self.n:,}"

    def check(self, device: Device) -> None:
        sizes = self.sizes(self.m, self.k, self.n, self.dtype)
        operands = ((self.c, "L0C"), (self.a, "L0A"), (self.b, "L0B"))
        for (region, memory), size in zip(operands, sizes, strict=True):
            if region.memory != memory or region.size != size:
                self._need_memory(memory, region)
                self._need_size(region, size)
        if not 0 <= self.hf32_bits < 23:
            raise ProgramError(f"{self}: hf32_bits is {self.hf32_bits}; at most 22")
        if self.bias is not None:
            self._need_memory("BT", self.bias)
            if not self.init:
                raise ProgramError(f"{self}: C begins with a bias, and is not added to: give init")

    def cost(self, device: Device) -> Cost:
        cube = device.cube
        if cube is None or self.math not in cube.rates:
            have = ", ".join(cube.rates) if cube else "no cube unit"
            raise ProgramError(f"{device.name} has no {self.math} mmad (it has: {have})")
        rate = cube.rates[self.math]
        depth = self.k * self.dtype.values
        m, k, n = ceil_div(self.m, rate.m), ceil_div(depth, rate.k), ceil_div(self.n, rate.n)
        cycles = Mmad.cycles(cube, rate, m, k, n)
        return Cost(
            cycles=cycles,
            idle_head=cube.idle_head_cycles,
            issue=cube.issue_cycles,
            macs=self.m * depth * self.n,
            # Under the unit flag: not into a piece before it is drained; the last fractal after.
            lag_start=_first_piece_out(device) if self._follows else 0,
            lag_end=min(cycles, k * rate.cycles) if self._follows else 0,
        )

    @property
    def _follows(self) -> bool:
        """Tell whether drains of its accumulator and it follow each other under the unit flag."""
        return self.c.slot.buffer.unit_flag

    def figures(self) -> tuple[str, ...]:
        drain = ("paths.L0C->GM",) if self._follows else ()
        return ("cube", f"cube.rates.{self.math}", *drain)

    def execute(self, memory: MemoryView) -> None:
        left, right = self._operands(memory)
        sums = self._sums
        product = np.matmul(row_major(left), row_major(right)).astype(sums.numpy, copy=False)
        if self.bias is not None:
            kind = self.bias.slot.buffer.dtype or sums
            product = product + memory.read(self.bias, kind, (1, self.n), wide=sums is FP32)
        m1, n1 = ceil_div(self.m, 16), ceil_div(self.n, 16)
        if (self.m, self.n) != (m1 * 16, n1 * 16):
            c = _accumulator(memory, self.c, m1, n1, sums).copy()
            part = c[:, : self.m, : self.n]
            part[...] = product if self.init else part + product
            product = c
        elif not self.init:
            np.add(_accumulator(memory, self.c, m1, n1, sums), product, out=product)
        memory.write(self.c, product.reshape(-1, m1 * 16, n1, 16).swapaxes(1, 2), sums)

    def _operands(self, memory: MemoryView) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """A, (batch, m, k), and B, (batch, k, n), in the type in which products are exact."""
        c0 = 32 // self.dtype.bytes
        m1, k1, n1 = ceil_div(self.m, 16), ceil_div(self.k, c0), ceil_div(self.n, 16)
        a = memory.read(self.a, self.dtype, (m1, k1, 16, c0), wide=True)
        b = memory.read(self.b, self.dtype, (k1, n1, 16, c0), wide=True)
        a = a.swapaxes(2, 3).reshape(-1, m1 * 16, k1 * c0)
        b = b.transpose(0, 1, 4, 2, 3).reshape(-1, k1 * c0, n1 * 16)
        left = a[:, : self.m, : self.k]
        right = b[:, : self.k, : self.n]
        if self.hf32_bits:
            left = round_hf32(left, self.hf32_bits)
            right = round_hf32(right, self.hf32_bits)
        if self._sums is INT32:  # sums of products are exact in float64
            left = left.astype(np.float64)
            right = right.astype(np.float64)
        return left, right


def _first_piece_out(device: Device) -> int:
    """Cycles until a drain to GM has left the first piece of its source."""
    path = device.path("L0C", "GM")
    return path.startup_cycles + int(transfer_cycles(path, UNIT_FLAG_BYTES))


def row_major(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``matrices`` as BLAS takes them, rows behind each other; a copy where they lie otherwise.

    BLAS need not give the same bits for transposed matrices, and NumPy multiplies what BLAS does
    not take, and vectors, in loops of its own.
    """
    (rows, columns), (pitch, step) = matrices.shape[1:], matrices.strides[1:]
    item = matrices.itemsize
    fits = step == item and pitch >= columns * item and pitch % item == 0 and min(rows, columns) > 1
    return matrices if fits and matrices.flags.aligned else np.ascontiguousarray(matrices)


def _accumulator(
    memory: MemoryView, region: SlotRegion, m1: int, n1: int, sums: DType
) -> npt.NDArray[Any]:
    """An L0C region (NZ) as ordinary matrices of m1*16 x n1*16."""
    blocks = memory.read(region, sums, (n1, m1 * 16, 16))
    return blocks.swapaxes(1, 2).reshape(-1, m1 * 16, n1 * 16)


class Drain(Move, Record, frozen=True):
    """Move an ``m`` x ``n`` accumulator tile out of L0C, converting fp32 or int32 to ``dtype``.

    ``path`` says where: L0C->GM is the FIX pipe of the 910B (plain keeps NZ columns, ``nz2nd``
    writes matrix rows); L0C->UB runs on V and keeps NZ. One destination row is one NZ column of
    ``m`` x ``c0`` elements (16, or 8 with channel split), or one matrix row of ``n`` elements.
    ``nz2nd`` may write several such ``matrices`` at once, of which ``dst`` is the first and each
    lies ``apart`` bytes behind the one before; in L0C they are columns of fractals behind each
    other (``ndNum`` and its two strides in the vendor's ``FixpipeParams``).
    ``zero_nan`` as in ``round_to``.
    """

    begins: ClassVar[Mapping[str, int]] = {"L0C": _ROW_BYTES}

    dst: Region
    src: SlotRegion
    m: int
    n: int
    path: Path
    dtype: DType
    atomic: bool = False
    c0: int = 16
    zero_nan: bool = False
    matrices: int = 1
    apart: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.matrices <= self.src.size // _ROW_BYTES:  # ``writes`` makes one of each
            raise ProgramError(
                f"drain of {self.matrices} matrices from {self.src}, which has room for 1 to "
                f"{self.src.size // _ROW_BYTES}, of {_ROW_BYTES} B and more each; drain fewer"
            )

    def writes(self) -> tuple[Region, ...]:
        if self.matrices == 1:
            return (self.dst,)
        return tuple(moved(self.dst, i * self.apart) for i in range(self.matrices))

    def typed(self, told: Told) -> list[tuple[Region, DType]]:
        return [(self.src, self._sums), (self.dst, self.dtype)]

    @property
    def _sums(self) -> DType:
        """The type of the sums in L0C, as their buffer says."""
        return INT32 if INT32 in (self.dtype, self.src.slot.buffer.dtype) else FP32

    def check(self, device: Device) -> None:
        self._need_memory("L0C", self.src)
        nd = self.path.variant == "nz2nd"
        self._check_matrices(nd=nd)
        if self.c0 not in (8, 16):
            raise ProgramError(f"{self}: c0 is {self.c0}; it is 16, or 8 with channel split")
        rows, row = (self.m, self.n) if nd else (ceil_div(self.n, self.c0), self.m * self.c0)
        if (self.dst.rows, self.dst.row_bytes) != (rows, row * self.dtype.bytes):
            raise ProgramError(
                f"{self}: a {self.m} x {self.n} tile leaves as {rows} rows of "
                f"{row * self.dtype.bytes} B, not as {self.dst.rows} of {self.dst.row_bytes} B"
            )
        columns = ceil_div(self.n, 16) * self.matrices
        if self.src.size != columns * self.m * 16 * FP32.bytes:  # part of each column
            self._need_size(self.src, columns * ceil_div(self.m, 16) * 256 * FP32.bytes)

    def _check_matrices(self, *, nd: bool) -> None:
        """Raise unless the fields of the instruction hold how several matrices lie."""
        if self.matrices == 1:
            return
        if not nd or not isinstance(self.dst, GmRegion):
            raise ProgramError(f"{self}: only nz2nd drains to GM write several matrices at once")
        elements, each = divmod(self.apart, self.dtype.bytes)
        if each or not 1 <= elements <= MATRICES_APART or self.matrices > MATRICES_APART:
            raise ProgramError(
                f"{self}: {self.matrices} matrices {self.apart} B apart; the fields hold up to "
                f"{MATRICES_APART} matrices and elements from one to the next: drain them singly"
            )

    def figures(self) -> tuple[str, ...]:
        return (*super().figures(), *(("cube",) if self.src.slot.buffer.unit_flag else ()))

    def cost(self, device: Device) -> Cost:
        size = self.matrices * self.dst.size
        if isinstance(self.dst, SlotRegion):  # L0C->UB reads whole fp32 fractals
            size = max(size, self.src.size)
        alone = move_cost(self.path, size, self.matrices * self.dst.rows, place=self.dst)
        if device.cube is None or not self.src.slot.buffer.unit_flag:
            return alone
        # Under the unit flag: not before the first piece is there; the last piece after it.
        last = int(transfer_cycles(self.path, UNIT_FLAG_BYTES))
        lag_start, lag_end = device.cube.startup_cycles, min(alone.cycles, last)
        return alone._replace(lag_start=lag_start, lag_end=lag_end)

    def execute(self, memory: MemoryView) -> None:
        n1 = ceil_div(self.n, 16)
        columns = memory.read(self.src, self._sums, (self.matrices, n1, -1, 16))[:, :, :, : self.m]
        store = memory.add if self.atomic else memory.write
        for i, target in enumerate(self.writes()):
            values = columns[:, i]
            if self.path.variant == "nz2nd":
                values = values.swapaxes(1, 2).reshape(-1, self.m, n1 * 16)[..., : self.n]
            elif self.c0 != 16:
                split = values.reshape(-1, n1, self.m, 16 // self.c0, self.c0).swapaxes(2, 3)
                values = split.reshape(memory.batch, -1, self.m * self.c0)[:, : self.dst.rows]
            store(target, round_to(values, self.dtype, zero_nan=self.zero_nan), self.dtype)
