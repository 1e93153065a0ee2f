"""Streams through a core's buffers: copies in, element-wise kernels, ND to NZ, all in pieces.

``CopyIn`` reads a row-major matrix tile by tile and does nothing with it, to UB or (``CopyInNz``)
as NZ to L1: what such a kernel takes is what reading costs.

    for band of columns, pass, tile of rows and columns of this core:      # one *unit* each
        UB or L1 <- tile                                                   # MTE2

``Elementwise`` computes z = f(x) or f(x, y); cores take contiguous runs of whole rows.

    for piece of this core:                                                # one *unit* each
        UB <- x piece, y piece                                             # MTE2
        UB <- f                                                            # V
        z piece <- UB                                                      # MTE3

``NdToNz`` converts a row-major matrix [m][n] to NZ [n div C0][m][n mod C0] in UB.

    for tile of this core:                                                 # one *unit* each
        UB <- rows                                                         # MTE2
        UB <- one column of C0 elements after the other                    # V
        NZ columns <- UB                                                   # MTE3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar, Protocol

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import GmRegion, SlotRegion, Tensor
from npusim.isa.vector import BLOCK_BYTES
from npusim.kernels.parts.conversion import grid_of, runs
from npusim.kernels.tilings.checks import check_tiling
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

# -- copies in ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CopyTiling:
    """How cores walk the matrix, in tiles of ``rows`` x ``columns`` elements.

    The columns are cut into ``bands``; each band is read ``passes`` times before the next. Cores
    divide the tiles of rows, or, ``shared``, every core reads all of them: in lockstep, or
    ``rotated``, each starting an equal share further down.
    """

    rows: int
    columns: int
    bands: int = 1
    passes: int = 1
    shared: bool = False
    rotated: bool = False
    slots: int = 1

    def __post_init__(self) -> None:
        check_tiling(self, sixteens=(), positive=("rows", "columns", "bands", "passes", "slots"))

    def __str__(self) -> str:
        who = "rows divided" if not self.shared else "rotated" if self.rotated else "lockstep"
        return (
            f"tile {self.rows}x{self.columns}, {self.bands} bands x {self.passes} passes, {who}, "
            f"slots {self.slots}"
        )


class CopyIn(Kernel):
    """Read ``x`` (rows, columns), at least one element, into UB."""

    name: ClassVar[str] = "copy_in"
    role: ClassVar[str] = "vector"
    memory: ClassVar[str] = "UB"

    def __init__(self, tiling: CopyTiling, x: Tensor) -> None:
        if len(x.shape) != 2 or not x.size_bytes:
            raise ArgumentError(f"copy_in: {x.name} has shape {x.shape}; it must be a matrix")
        self.tiling, self.x = tiling, x
        self.tiling_text = str(tiling)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x,)

    def buffers(self, k: Language) -> None:
        t, c0 = self.tiling, BLOCK_BYTES // self.x.dtype.bytes
        rows, columns = ceil_div(t.rows, 16) * 16, ceil_div(t.columns, c0) * c0
        self.tile = k.buffer(self.memory, (rows, columns), self.x.dtype, slots=t.slots, name="tile")

    def units(self, cores: int) -> Units:
        """Tiles in the order in which each core reads them."""
        (m, n), t = self.x.shape, self.tiling
        height, width = ceil_div(m, t.rows), ceil_div(n, t.bands)
        readers = np.arange(cores if t.shared else 1)
        core, band, _, row, at = grid_of(
            readers,
            np.arange(t.bands),
            np.arange(t.passes),
            np.arange(height),
            np.arange(0, width, t.columns),
        )
        if not t.shared:
            core = runs(height, cores)[row]
        elif t.rotated:
            row = (row + core * height // cores) % height
        row, column = row * t.rows, band * width + at
        end = np.minimum((band + 1) * width, n)
        columns = np.minimum(t.columns, end - column)
        some = columns > 0  # the last bands may be narrower than the others, or empty
        return Units(
            core[some],
            {"rows": np.minimum(t.rows, m - row)[some], "columns": columns[some]},
            {"x": ((row * n + column) * self.x.dtype.bytes)[some]},
        )

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        e, pitch = self.x.dtype.bytes, self.x.shape[1] * self.x.dtype.bytes
        row = unit.columns * e
        source = self.x.at(0, row, base="x", rows=unit.rows, pitch=pitch)
        self._copy(k, source, unit.rows, row)

    def _copy(self, k: Language, source: GmRegion, rows: int, row: int) -> None:
        blocks = ceil_div(row, BLOCK_BYTES) * BLOCK_BYTES
        k.data_move(self.tile.next().at(0, row, rows=rows, pitch=blocks), source, self.x.dtype)


class CopyInNz(CopyIn):
    """Read ``x`` into L1, converted to NZ on the way."""

    name: ClassVar[str] = "copy_in_nz"
    role: ClassVar[str] = "cube"
    memory: ClassVar[str] = "L1"

    def _copy(self, k: Language, source: GmRegion, rows: int, row: int) -> None:
        size = ceil_div(row, BLOCK_BYTES) * ceil_div(rows, 16) * 16 * BLOCK_BYTES
        k.nd2nz(self.tile.next().at(0, size), source, self.x.dtype)


# -- element-wise ------------------------------------------------------------------------------


class Operation(Protocol):
    """Issues the instructions of one piece: ``z`` from the regions of the inputs."""

    def __call__(
        self, k: Language, z: SlotRegion, inputs: tuple[SlotRegion, ...], dtype: DType
    ) -> None: ...


def _add(k: Language, z: SlotRegion, inputs: tuple[SlotRegion, ...], dtype: DType) -> None:
    x, y = inputs
    k.vec_binary("add", z, x, y, dtype)


def _relu(k: Language, z: SlotRegion, inputs: tuple[SlotRegion, ...], dtype: DType) -> None:
    k.vec_scalar("maxs", z, inputs[0], 0.0, dtype)


def _gate(k: Language, z: SlotRegion, inputs: tuple[SlotRegion, ...], dtype: DType) -> None:
    k.vec_scalar("muls", z, inputs[0], 0.25, dtype)
    k.vec_scalar("adds", z, z, 0.5, dtype)
    k.vec_scalar("maxs", z, z, 0.0, dtype)
    k.vec_scalar("mins", z, z, 1.0, dtype)
    k.vec_binary("mul", z, z, inputs[0], dtype)


#: What ``Elementwise`` computes, with the number of its inputs: x + y; max(x, 0); and
#: x * clip(x / 4 + 1/2, 0, 1), which is GELU with a gate of straight lines.
OPERATIONS: Mapping[str, tuple[Operation, int]] = {
    "add": (_add, 2),
    "relu": (_relu, 1),
    "gated": (_gate, 1),
}


@dataclass(frozen=True, kw_only=True)
class StreamTiling:
    """Pieces of ``piece`` elements in ``slots`` of UB per operand, on at most ``cores`` cores."""

    piece: int
    slots: int = 2
    cores: int | None = None

    def __post_init__(self) -> None:
        check_tiling(self, sixteens=("piece",), positive=("slots",))

    def __str__(self) -> str:
        return f"piece {self.piece}, slots {self.slots}"


class Elementwise(Kernel):
    """``z`` = ``operation`` of ``inputs``, all of one shape (rows, ...) and type."""

    name: ClassVar[str] = "elementwise"
    role: ClassVar[str] = "vector"

    def __init__(
        self, operation: str, tiling: StreamTiling, inputs: tuple[Tensor, ...], z: Tensor
    ) -> None:
        run, count = OPERATIONS[operation]
        if len(inputs) != count or any((x.shape, x.dtype) != (z.shape, z.dtype) for x in inputs):
            raise ArgumentError(
                f"{operation}: it takes {count} inputs of the shape {z.shape} and type {z.dtype} "
                f"of {z.name}, got {', '.join(f'{x.name} {x.shape} {x.dtype}' for x in inputs)}"
            )
        self.run, self.tiling, self.inputs, self.z = run, tiling, inputs, z
        self.tiling_text = f"{operation}, {tiling}"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.inputs, self.z)

    def buffers(self, k: Language) -> None:
        shape, slots = (self.tiling.piece,), self.tiling.slots
        self.pieces = [
            k.buffer("UB", shape, t.dtype, slots=slots, name=f"{t.name}_ub") for t in self.tensors
        ]

    def units(self, cores: int) -> Units:
        """Pieces of every core's rows; the last of a core may be shorter."""
        rows, piece = self.z.shape[0], self.tiling.piece
        row = self.z.size_bytes // self.z.dtype.bytes // rows
        used = min(cores, rows, self.tiling.cores or cores)
        first = np.arange(used + 1) * rows // used * row
        core, at = grid_of(np.arange(used), np.arange(0, int(np.diff(first).max()), piece))
        start = first[core] + at
        size = np.minimum(piece, first[core + 1] - start)
        some = size > 0
        base = start[some] * self.z.dtype.bytes
        return Units(core[some], {"size": size[some]}, {t.name: base for t in self.tensors})

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        size, dtype = unit.size * self.z.dtype.bytes, self.z.dtype
        *sources, target = (handle.next().at(0, size) for handle in self.pieces)
        for tensor, source in zip(self.inputs, sources, strict=True):
            k.data_move(source, tensor.at(0, size, base=tensor.name), dtype)
        self.run(k, target, tuple(sources), dtype)
        k.data_move(self.z.at(0, size, base=self.z.name), target, dtype)


# -- ND to NZ in UB ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NzTiling:
    """Tiles of ``rows`` x ``columns`` elements; NZ columns start ``pitch`` rows apart in UB."""

    rows: int
    columns: int
    pitch: int
    slots: int = 2

    def __post_init__(self) -> None:
        check_tiling(self, sixteens=("columns",), positive=("rows", "slots"))
        if self.pitch < self.rows:
            raise ArgumentError(f"tiling pitch is {self.pitch}; it must be at least {self.rows}")

    def __str__(self) -> str:
        return f"tile {self.rows}x{self.columns}, pitch {self.pitch}, slots {self.slots}"


class NdToNz(Kernel):
    """``y`` (n div C0, m, C0) from ``x`` (m, n), where C0, 32 bytes, divides n."""

    name: ClassVar[str] = "nd_to_nz"
    role: ClassVar[str] = "vector"

    def __init__(self, tiling: NzTiling, x: Tensor, y: Tensor) -> None:
        m, n = x.shape
        self.c0 = BLOCK_BYTES // x.dtype.bytes
        if n % self.c0 or y.shape != (n // self.c0, m, self.c0) or x.dtype != y.dtype:
            raise ArgumentError(
                f"nd_to_nz: {x.name} {x.shape} {x.dtype} does not become {y.name} {y.shape} "
                f"{y.dtype}; the columns must be whole blocks of {self.c0}, one per NZ column"
            )
        self.tiling, self.x, self.y = tiling, x, y
        self.tiling_text = str(tiling)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, self.y)

    def buffers(self, k: Language) -> None:
        t, blocks = self.tiling, self.tiling.columns // self.c0
        self.nd = k.buffer("UB", (t.rows, t.columns), self.x.dtype, slots=t.slots, name="nd")
        shape = (blocks, t.pitch, self.c0)
        self.nz = k.buffer("UB", shape, self.x.dtype, slots=t.slots, name="nz")

    def units(self, cores: int) -> Units:
        """Tiles row by row, in contiguous runs per core."""
        (m, n), t, e = self.x.shape, self.tiling, self.x.dtype.bytes
        row, column = grid_of(np.arange(0, m, t.rows), np.arange(0, n, t.columns))
        return Units(
            runs(len(row), cores),
            {"rows": np.minimum(t.rows, m - row), "columns": np.minimum(t.columns, n - column)},
            {"x": (row * n + column) * e, "y": (column // self.c0 * m + row) * BLOCK_BYTES},
        )

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        dtype, (m, n) = self.x.dtype, self.x.shape
        nd, nz, size = self.nd.next(), self.nz.next(), unit.columns * self.x.dtype.bytes
        blocks, column = unit.columns // self.c0, unit.rows * BLOCK_BYTES
        pitch = self.tiling.pitch * BLOCK_BYTES
        k.data_move(
            nd.at(0, unit.rows * size),
            self.x.at(0, size, base="x", rows=unit.rows, pitch=n * dtype.bytes),
            dtype,
        )
        for block in range(blocks):
            rows = nd.at(block * BLOCK_BYTES, BLOCK_BYTES, rows=unit.rows, pitch=size)
            k.vec_scalar("muls", nz.at(block * pitch, column), rows, 1.0, dtype)
        k.data_move(
            self.y.at(0, column, base="y", rows=blocks, pitch=m * BLOCK_BYTES),
            nz.at(0, column, rows=blocks, pitch=pitch),
            dtype,
        )
