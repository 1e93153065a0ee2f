"""A matrix product that cube and vector cores compute together, in one kernel.

    out = (gate of) (A @ B) (times a factor per row and a factor per column), rounded once

Layouts: those of ``matmul``; out is row-major.

cube core:  for tile of this core:                    # one task
                L0C <- A tile @ B tile                # as in matmul
                block of GM <- L0C                    # FIX, once its readers have done with it
                flag to the vector cores of the group

vector core: for tile of its group's cube core:       # one task: its share of the rows
                 wait for the flag
                 for some rows:
                     UB <- block                      # MTE2, mostly from the L2
                     UB <- scaled, gated, narrowed    # V
                     out <- UB                        # MTE3
                 flag back: the block may be used again

``MatmulSum`` is the other form: K is split over cores, which leave their parts in GM; all cores
meet, and then the vector cores add the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.parts.hand_over import HandOver
from npusim.kernels.parts.sum_parts import SumParts
from npusim.kernels.parts.ub_room import converted
from npusim.language import (
    BLOCK_BYTES,
    FP32,
    ArgumentError,
    Kernel,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    round_up,
)

#: fp32 numbers in a block of 32 bytes, in which a factor of a row is repeated.
PER_BLOCK = BLOCK_BYTES // FP32.bytes
#: Rows of a piece are multiples of so many numbers: whole blocks in 16 bits, too.
PER_ROW = 2 * PER_BLOCK


class Share(NamedTuple):
    """The ``rows`` of a tile of ``n`` columns that one vector core finishes, none for some."""

    rows: int
    n: int


@dataclass(frozen=True)
class MatmulFinish(Kernel):
    """``product`` hands its tiles over; vector cores write ``out``, (M, N).

    ``factors`` are none, or those of rows, (M, 8) fp32 with each repeated over 32 bytes, and of
    columns, (N,) fp32. ``gated`` multiplies by clip(x / 4 + 1/2, 0, 1), a GELU of straight lines.
    ``whole`` says that the blocks hold integers, which are converted first. A vector core takes
    ``step`` rows at a time (0: as many as its memory holds twice).
    """

    product: Matmul
    out: Tensor
    factors: tuple[Tensor, ...] = ()
    gated: bool = False
    whole: bool = False
    step: int = 0

    name: ClassVar[str] = "matmul_finish"
    partners: ClassVar[tuple[str, ...]] = ("vector",)

    def __post_init__(self) -> None:
        shapes = [tensor.shape for tensor in self.factors]
        m, n = self.out.shape
        if shapes not in ([], [(m, PER_BLOCK), (n,)]):
            raise ArgumentError(
                f"factors have shapes {shapes}; for {m} x {n} they must be {(m, PER_BLOCK)} and "
                f"{(n,)}, fp32, or none"
            )
        if (self.hand_over.m, self.hand_over.n) != (m, n) or self.product.c.dtype is not FP32:
            raise ArgumentError(
                f"the product hands over {self.product.c.dtype} of "
                f"{self.hand_over.m} x {self.hand_over.n}, out is {m} x {n}; it must be fp32 of "
                "the same size"
            )

    @property
    def hand_over(self) -> HandOver:
        """The hand-over of the product's tiles."""
        if self.product.handed is None:
            raise ArgumentError("the product hands nothing over; give it 'handed'")
        return self.product.handed

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.product.tensors, *self.factors, self.out)

    @property
    def tiling_text(self) -> str:
        blocks = self.hand_over.slots
        readers = self.hand_over.readers
        return f"{self.product.tiling_text}, {blocks} blocks to {readers} vector cores"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        if k.role == "cube":
            needed = cores * self.hand_over.slots
            if self.product.c.shape[0] < needed:
                raise ArgumentError(
                    f"{self.product.c.name} has {self.product.c.shape[0]} blocks; {cores} cores "
                    f"with {self.hand_over.slots} each need {needed}"
                )
            return self.product.plan(k, cores)
        if self.hand_over.readers > k.kind.per_group:
            raise ArgumentError(
                f"{self.hand_over.readers} readers; a group has {k.kind.per_group} vector cores"
            )
        return Plan(self._shares(k, cores), _Finish(self, k).emit)

    def _shares(self, k: Language, cores: int) -> Tasks[Share]:
        """The shares of every vector core, in the order of the tiles."""
        table = self.product.table(ceil_div(cores, k.kind.per_group))  # a cube core to a group
        block, _ = self.hand_over.places(table.core)
        tile, reader, first, rows = self.hand_over.shares(table)
        _, height, width = self.product.c.shape
        row = table.m0[tile] + first
        column = table.n0[tile]
        bases = {
            "work": (block[tile] * height + first) * width * FP32.bytes,
            "out": (row * self.out.shape[1] + column) * self.out.dtype.bytes,
            "rows": row * BLOCK_BYTES,
            "columns": column * FP32.bytes,
        }
        core = table.core[tile] * k.kind.per_group + reader
        return Tasks(core, Share, {"rows": rows, "n": table.n[tile]}, bases)


class _Finish:
    """The program of a share, on the buffers of one vector core."""

    def __init__(self, kernel: MatmulFinish, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        _, height, width = kernel.product.c.shape
        most = ceil_div(height, kernel.hand_over.readers)
        self.step = min(most, kernel.step or most, self._rows_in_ub(most, width))
        shape = (self.step, width)
        self.work = k.buffer("UB", shape, FP32, slots=2, name="work_ub")
        self.gate = None
        self.narrow = None
        if kernel.gated:
            self.gate = k.buffer("UB", shape, FP32, name="gate_ub")
        if kernel.out.dtype is not FP32:
            self.narrow = k.buffer("UB", shape, kernel.out.dtype, slots=2, name="out_ub")
        if kernel.factors:
            self.rows = k.buffer("UB", (most, PER_BLOCK), FP32, name="rows_ub")
            self.columns = k.buffer("UB", (width,), FP32, name="columns_ub")

    def _rows_in_ub(self, most: int, width: int) -> int:
        """Rows that UB has room for beside the factors of ``most`` rows; at least 1."""
        kernel = self.kernel
        row = 2 * width * FP32.bytes
        if kernel.out.dtype is not FP32:
            row += 2 * width * kernel.out.dtype.bytes
        if kernel.gated:
            row += width * FP32.bytes
        factors = len(kernel.factors) * (width * FP32.bytes + most * BLOCK_BYTES)
        return max(1, (self.k.memory("UB").size_bytes - factors) // row)

    def emit(self, share: Share) -> None:
        """Finish a share, some rows at a time."""
        k = self.k
        kernel = self.kernel
        factors = self._factors(share) if kernel.factors and share.rows else None
        kernel.hand_over.take(k)
        for first in range(0, share.rows, self.step):
            count = min(self.step, share.rows - first)
            piece = self._load(first, count, share.n)
            if kernel.whole:
                k.vec_scalar("muls", piece, piece, 1.0, FP32)  # costs what a conversion does
            if factors is not None:
                rows, columns = factors
                self._scale(piece, rows, columns, first, count)
            if self.gate is not None:
                self._gate(piece, self.gate.next().at(0, piece.size))
            self._store(piece, first, count, share.n)
        kernel.hand_over.leave(k)

    def _factors(self, share: Share) -> tuple[Slot, Slot]:
        """The factors of the share's rows and columns."""
        rows = self.rows.next()
        columns = self.columns.next()
        of_rows, of_columns = self.kernel.factors
        size = share.rows * BLOCK_BYTES
        self.k.data_move(rows.at(0, size), of_rows.at(0, size, base="rows"), FP32)
        size = share.n * FP32.bytes
        self.k.data_move(columns.at(0, size), of_columns.at(0, size, base="columns"), FP32)
        return rows, columns

    def _load(self, first: int, count: int, n: int) -> SlotRegion:
        """Rows of the block, packed to whole blocks of 32 bytes; the piece as one row."""
        work = self.kernel.product.c
        pitch = work.shape[2] * FP32.bytes
        size = n * FP32.bytes
        width = round_up(n, PER_ROW) * FP32.bytes
        slot = self.work.next()
        source = work.at(first * pitch, size, base="work", rows=count, pitch=pitch)
        self.k.data_move(slot.at(0, size, rows=count, pitch=width), source, FP32)
        return slot.at(0, count * width)

    def _scale(self, piece: SlotRegion, rows: Slot, columns: Slot, first: int, count: int) -> None:
        """Multiply by the factors of columns, all rows at once, and of rows, one at a time."""
        width = piece.size // count
        repeated = columns.at(0, width, rows=count, pitch=0)
        self.k.vec_binary("mul", piece, piece, repeated, FP32)
        for row in range(count):
            line = piece.slot.at(row * width, width)
            factor = rows.at((first + row) * BLOCK_BYTES, BLOCK_BYTES, rows=width // BLOCK_BYTES)
            self.k.vec_binary("mul", line, line, factor, FP32)

    def _gate(self, piece: SlotRegion, gate: SlotRegion) -> None:
        """Multiply by the gate, clip(x / 4 + 1/2, 0, 1)."""
        k = self.k
        k.vec_scalar("muls", gate, piece, 0.25, FP32)
        k.vec_scalar("adds", gate, gate, 0.5, FP32)
        k.vec_scalar("maxs", gate, gate, 0.0, FP32)
        k.vec_scalar("mins", gate, gate, 1.0, FP32)
        k.vec_binary("mul", piece, piece, gate, FP32)

    def _store(self, piece: SlotRegion, first: int, count: int, n: int) -> None:
        """Narrow a piece and write its rows."""
        out = self.kernel.out
        piece = converted(self.k, piece, FP32, out.dtype, self.narrow)
        size = n * out.dtype.bytes
        pitch = out.shape[1] * out.dtype.bytes
        target = out.at(first * pitch, size, base="out", rows=count, pitch=pitch)
        rows = piece.slot.at(0, size, rows=count, pitch=piece.size // count)
        self.k.data_move(target, rows, out.dtype)


@dataclass(frozen=True)
class MatmulSum(Kernel):
    """``product`` leaves parts of K in GM; once all cores have, ``total`` adds them."""

    product: Matmul
    total: SumParts

    name: ClassVar[str] = "matmul_sum"
    partners: ClassVar[tuple[str, ...]] = ("vector",)

    def __post_init__(self) -> None:
        if not (self.product.meets and self.total.meets):
            raise ArgumentError("product and total must meet; give both meets=True")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.product.tensors, self.total.out)

    @property
    def tiling_text(self) -> str:
        return f"{self.product.tiling_text}; {self.total.tiling_text}"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        return (self.product if k.role == "cube" else self.total).plan(k, cores)
