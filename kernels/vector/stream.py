"""Streams through a core's buffers: copies in, element-wise kernels, ND to NZ, all in pieces.

``CopyIn`` reads a row-major matrix tile by tile and does nothing with it, to UB or (``CopyInNz``)
as NZ to L1: what such a kernel takes is what reading costs.

    for band of columns, pass, tile of rows and columns of this core:      # one task each
        UB or L1 <- tile                                                   # MTE2

``Elementwise`` computes z = f(x) or f(x, y); cores take contiguous runs of whole rows.

    for piece of this core:                                                # one task each
        UB <- x piece, y piece                                             # MTE2
        UB <- f                                                            # V
        z piece <- UB                                                      # MTE3

``NdToNz`` converts a row-major matrix [m][n] to NZ [n div C0][m][n mod C0] in UB.

    for tile of this core:                                                 # one task each
        UB <- rows                                                         # MTE2
        UB <- one column of C0 elements after the other                    # V
        NZ columns <- UB                                                   # MTE3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.checks import check_tiling
from npusim.kernels.vector.expression import Step
from npusim.language import (
    BLOCK_BYTES,
    ArgumentError,
    BufferHandle,
    GmRegion,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    grid,
    in_pieces,
    in_runs,
    round_up,
)
from npusim.problem.work import LAYOUT

# -- copies in ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CopyTiling:
    """The walk of cores through the matrix, in tiles of ``rows`` x ``columns`` elements.

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
        who = "rows divided"
        if self.shared:
            who = "rotated" if self.rotated else "lockstep"
        return (
            f"tile {self.rows}x{self.columns}, {self.bands} bands x {self.passes} passes, {who}, "
            f"slots {self.slots}"
        )


class Tile(NamedTuple):
    """Extents in elements."""

    rows: int
    columns: int


@dataclass(frozen=True)
class CopyIn(Kernel):
    """Read ``x`` (rows, columns), at least one element, into UB."""

    tiling: CopyTiling
    x: Tensor

    name: ClassVar[str] = "copy_in"
    role: ClassVar[str] = "vector"
    memory: ClassVar[str] = "UB"

    @property
    def work_class(self) -> str:
        return LAYOUT

    def __post_init__(self) -> None:
        if len(self.x.shape) != 2 or not self.x.size_bytes:
            raise ArgumentError(
                f"{self.name}: {self.x.name} has shape {self.x.shape}; it must be a matrix"
            )

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        t = self.tiling
        element = self.x.dtype.bytes
        pitch = self.x.shape[1] * element
        shape = (round_up(t.rows, 16), round_up(t.columns, BLOCK_BYTES // element))
        tiles = k.buffer(self.memory, shape, self.x.dtype, slots=t.slots, name="tile")

        def emit(tile: Tile) -> None:
            source = self.x.at(0, tile.columns * element, base="x", rows=tile.rows, pitch=pitch)
            self._copy(k, tiles.next(), source)

        return Plan(self.tasks(cores), emit)

    def tasks(self, cores: int) -> Tasks[Tile]:
        """Tiles in the order in which each core reads them."""
        t = self.tiling
        m, n = self.x.shape
        height = ceil_div(m, t.rows)
        width = ceil_div(n, t.bands)
        core, band, _, tile_row, offset = grid(
            np.arange(cores if t.shared else 1),
            np.arange(t.bands),
            np.arange(t.passes),
            np.arange(height),
            np.arange(0, width, t.columns),
        )
        if not t.shared:
            core = in_runs(height, cores)[tile_row]
        elif t.rotated:
            tile_row = (tile_row + core * height // cores) % height
        row = tile_row * t.rows
        column = band * width + offset
        end = np.minimum((band + 1) * width, n)
        columns = np.minimum(t.columns, end - column)
        real = columns > 0  # the last bands may be narrower than the others, or empty
        return Tasks(
            core[real],
            Tile,
            {"rows": np.minimum(t.rows, m - row)[real], "columns": columns[real]},
            {"x": ((row * n + column) * self.x.dtype.bytes)[real]},
        )

    def _copy(self, k: Language, slot: Slot, source: GmRegion) -> None:
        row = source.row_bytes
        pitch = round_up(source.row_bytes, BLOCK_BYTES)
        k.data_move(slot.at(0, row, rows=source.rows, pitch=pitch), source, self.x.dtype)


@dataclass(frozen=True)
class CopyInNz(CopyIn):
    """Read ``x`` into L1, converted to NZ on the way."""

    name: ClassVar[str] = "copy_in_nz"
    role: ClassVar[str] = "cube"
    memory: ClassVar[str] = "L1"

    def _copy(self, k: Language, slot: Slot, source: GmRegion) -> None:
        k.nd2nz(slot, source, self.x.dtype)


# -- element-wise ------------------------------------------------------------------------------


#: What ``Elementwise`` computes, step by step in place: x + y; max(x, 0); and
#: x * clip(x / 4 + 1/2, 0, 1), which is GELU with a gate of straight lines.
OPERATIONS: Mapping[str, tuple[Step, ...]] = {
    "add": (Step("z", "add", "x", "y"),),
    "relu": (Step("z", "maxs", "x", 0.0),),
    "gated": (
        Step("z", "muls", "x", 0.25),
        Step("z", "adds", "z", 0.5),
        Step("z", "maxs", "z", 0.0),
        Step("z", "mins", "z", 1.0),
        Step("z", "mul", "z", "x"),
    ),
}


def inputs_of(operation: str) -> tuple[str, ...]:
    """The names that steps have for the inputs of an operation."""
    read = {name for step in OPERATIONS[operation] for name in step.reads}
    return tuple(name for name in ("x", "y") if name in read)


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


class Piece(NamedTuple):
    """``size`` elements."""

    size: int


@dataclass(frozen=True)
class Elementwise(Kernel):
    """``z`` = ``operation`` of ``inputs``, all of one shape (rows, ...) and type."""

    operation: str
    tiling: StreamTiling
    inputs: tuple[Tensor, ...]
    z: Tensor

    name: ClassVar[str] = "elementwise"
    role: ClassVar[str] = "vector"

    def __post_init__(self) -> None:
        count = len(inputs_of(self.operation))
        z = self.z
        wrong = any((x.shape, x.dtype) != (z.shape, z.dtype) for x in self.inputs)
        if len(self.inputs) != count or wrong:
            inputs = ", ".join(f"{x.name} {x.shape} {x.dtype}" for x in self.inputs)
            raise ArgumentError(
                f"{self.operation}: it takes {count} inputs of the shape {z.shape} and type "
                f"{z.dtype} of {z.name}, got {inputs}"
            )

    @property
    def tiling_text(self) -> str:
        return f"{self.operation}, {self.tiling}"

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        shape = (self.tiling.piece,)
        slots = self.tiling.slots
        pieces = [
            k.buffer("UB", shape, t.dtype, slots=slots, name=f"{t.name}_ub") for t in self.tensors
        ]
        return Plan(self._tasks(cores), lambda piece: self._emit(k, pieces, piece))

    def _emit(self, k: Language, pieces: list[BufferHandle], piece: Piece) -> None:
        """Load the inputs, compute step by step, store."""
        dtype = self.z.dtype
        size = piece.size * dtype.bytes
        regions = [buffer.next().at(0, size) for buffer in pieces]
        for tensor, region in zip(self.inputs, regions[:-1], strict=True):
            k.data_move(region, tensor.at(0, size, base=tensor.name), dtype)
        target = regions[-1]
        places = dict(zip((*inputs_of(self.operation), "z"), regions, strict=True))
        for step in OPERATIONS[self.operation]:
            a = places[step.a]
            if isinstance(step.b, str):
                k.vec_binary(step.operation, target, a, places[step.b], dtype)
            else:
                k.vec_scalar(step.operation, target, a, step.b, dtype)
        k.data_move(self.z.at(0, size, base=self.z.name), target, dtype)

    def _tasks(self, cores: int) -> Tasks[Piece]:
        """Pieces of every core's rows; the last of a core may be shorter."""
        element = self.z.dtype.bytes
        rows = self.z.shape[0]
        piece = self.tiling.piece
        row = self.z.size_bytes // element // rows
        used = min(cores, rows, self.tiling.cores or cores)
        first = np.arange(used + 1) * rows // used * row
        core, offset = grid(np.arange(used), np.arange(0, int(np.diff(first).max()), piece))
        start = first[core] + offset
        size = np.minimum(piece, first[core + 1] - start)
        real = size > 0
        base = start[real] * element
        return Tasks(core[real], Piece, {"size": size[real]}, {t.name: base for t in self.tensors})


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


@dataclass(frozen=True)
class NdToNz(Kernel):
    """``y`` (n div C0, m, C0) from ``x`` (m, n), where C0, 32 bytes, divides n."""

    tiling: NzTiling
    x: Tensor
    y: Tensor

    name: ClassVar[str] = "nd_to_nz"
    role: ClassVar[str] = "vector"

    @property
    def work_class(self) -> str:
        return LAYOUT

    def __post_init__(self) -> None:
        x = self.x
        y = self.y
        m, n = x.shape
        if n % self.c0 or y.shape != (n // self.c0, m, self.c0) or x.dtype != y.dtype:
            raise ArgumentError(
                f"nd_to_nz: {x.name} {x.shape} {x.dtype} does not become {y.name} {y.shape} "
                f"{y.dtype}; the columns must be whole blocks of {self.c0}, one per NZ column"
            )

    @property
    def c0(self) -> int:
        """Elements in a block of 32 bytes."""
        return BLOCK_BYTES // self.x.dtype.bytes

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        t = self.tiling
        dtype = self.x.dtype
        m, n = self.x.shape
        as_nd = k.buffer("UB", (t.rows, t.columns), dtype, slots=t.slots, name="nd")
        shape = (t.columns // self.c0, t.pitch, self.c0)
        as_nz = k.buffer("UB", shape, dtype, slots=t.slots, name="nz")
        (row, column), (rows, columns) = in_pieces((m, t.rows), (n, t.columns))
        tasks = Tasks(
            in_runs(len(row), cores),
            Tile,
            {"rows": rows, "columns": columns},
            {
                "x": (row * n + column) * dtype.bytes,
                "y": (column // self.c0 * m + row) * BLOCK_BYTES,
            },
        )
        return Plan(tasks, lambda tile: self._emit(k, as_nd, as_nz, tile))

    def _emit(self, k: Language, as_nd: BufferHandle, as_nz: BufferHandle, tile: Tile) -> None:
        """Load a tile, copy it block by block, store its NZ columns."""
        dtype = self.x.dtype
        m, n = self.x.shape
        nd = as_nd.next()
        nz = as_nz.next()
        size = tile.columns * dtype.bytes
        pitch = self.tiling.pitch * BLOCK_BYTES
        blocks = tile.columns // self.c0
        column = tile.rows * BLOCK_BYTES
        source = self.x.at(0, size, base="x", rows=tile.rows, pitch=n * dtype.bytes)
        k.data_move(nd, source, dtype)
        for block in range(blocks):
            rows = nd.at(block * BLOCK_BYTES, BLOCK_BYTES, rows=tile.rows, pitch=size)
            k.vec_scalar("muls", nz.at(block * pitch, column), rows, 1.0, dtype)
        target = self.y.at(0, column, base="y", rows=blocks, pitch=m * BLOCK_BYTES)
        k.data_move(target, nz.at(0, column, rows=blocks, pitch=pitch), dtype)
