"""Sums of the columns of a matrix of many rows, such as the gradient of a linear layer's bias.

    db[q] = sum over rows r of dy[r, q]

Layouts: dy (R, C) and db (C) of one float type, or db fp32; the workspace (parts, C) is fp32. Each
part of the rows lies together, so that a core reads whole rows one behind the other, where
``bias_grad`` would read few columns of every row. Sums are fp32, rounded once at the end. Their
order is fixed by the shape and the number of cores: there are no atomic adds.

for run of rows of this core's part, for each piece of their columns:    # one task each
    UB dy tile <- GM, as fp32                                            # MTE2, V
    UB acc += tile, row by row of the tile                               # V
    UB acc <- its upper half added to its lower one, until one row is left   # V
    row of the workspace <- acc                                          # MTE3
all cores meet
for piece of the columns of this core:
    UB rows <- that piece of all parts; halved as above; db <- the last  # MTE2, V, MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.hand_over import joined
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import converted, piece
from npusim.language import (
    FP32,
    ArgumentError,
    CapacityError,
    Device,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    grid,
    in_runs,
    round_down,
    round_up,
)

#: Largest tile in elements: its load has full bandwidth.
TILE = 16 * 1024
#: Rows of a part, below which another one costs more than it saves.
LEAST_ROWS = 64
#: Rows of a matrix below which ``bias_grad``, whose cores share the columns, takes no longer. With
#: 512 x 3072 it takes 8.6 us on a 910 and 6.3 us on a 910B2, this kernel 10.1 and 7.9 us; with
#: 1024 x 96 it takes 7.1 and 5.0 us, this kernel 3.3 and 2.5 us.
MANY_ROWS = 1024
#: Rows in UB begin at multiples of so many elements: whole blocks in any type.
GRAIN = 16


def row_parts(rows: int, cores: int) -> int:
    """Into how many parts, summed on different cores, so many rows are worth cutting.

    1 where ``bias_grad`` is as fast.
    """
    if rows < MANY_ROWS:
        return 1
    return min(cores, rows // LEAST_ROWS)


class Run(NamedTuple):
    """Some rows and columns of a part, the ``first`` or ``last`` run of these columns.

    With ``parts`` it is what follows the meeting of all cores: so many parts of these columns are
    summed, none where a core has no columns left.
    """

    rows: int
    columns: int
    first: bool
    last: bool
    parts: int


@dataclass(frozen=True)
class RowSums(Spread):
    """Sum the rows of ``dy`` (R, C) into ``db`` (C,) by way of ``partial`` (parts, C) fp32.

    There are at most as many parts as cores. ``saturate`` keeps fp16 results finite (see
    ``Device.saturates``).
    """

    dy: Tensor
    db: Tensor
    partial: Tensor
    saturate: bool = False

    name: ClassVar[str] = "row_sums"
    computes: ClassVar[str] = "bias"

    def __post_init__(self) -> None:
        dy = self.dy
        db = self.db
        partial = self.partial
        if len(dy.shape) != 2 or min(dy.shape) < 1 or dy.dtype.kind != "float":
            raise ArgumentError(
                f"row_sums: {dy.name} is {dy.dtype} of shape {dy.shape}; it must be floats (R, C) "
                "with both sizes at least 1"
            )
        if db.shape != dy.shape[1:] or db.dtype not in (dy.dtype, FP32):
            raise ArgumentError(
                f"row_sums: {db.name} is {db.dtype} of shape {db.shape}; {dy.name} makes it "
                f"{dy.dtype} of shape {dy.shape[1:]}, or fp32"
            )
        if (
            partial.shape[1:] != db.shape
            or not 1 <= partial.shape[0] <= dy.shape[0]
            or partial.dtype != FP32
        ):
            raise ArgumentError(
                f"row_sums: {partial.name} is {partial.dtype} of shape {partial.shape}; it must be "
                f"fp32 (parts, {dy.shape[1]}) with 1 to {dy.shape[0]} parts"
            )

    @property
    def tiling_text(self) -> str:
        return f"tile up to {TILE}, {self.partial.shape[0]} parts of the rows"

    def stream(self, device: Device, cores: int) -> Stream:
        rows, channels = self.dy.shape
        count = rows * channels
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(count, TILE))
        vector = (("cast", 4 * count), ("add", 4 * count))
        return Stream(self.dy.size_bytes, self.partial.size_bytes, tasks, vector)

    def plan(self, k: Language, cores: int) -> Plan[Run]:
        nest = _Nest(self, k)
        return Plan(joined(self._runs(nest, cores), self._gathered(nest, cores)), nest.emit)

    # -- who computes what -----------------------------------------------------------------

    def _runs(self, nest: _Nest, cores: int) -> Tasks[Run]:
        """The runs of every part, those of the same columns one after another."""
        rows, channels = self.dy.shape
        parts = self.partial.shape[0]
        most = ceil_div(rows, parts)
        part, column, within = grid(
            np.arange(parts), np.arange(0, channels, nest.columns), np.arange(0, most, nest.rows)
        )
        begin = part * rows // parts
        size = (part + 1) * rows // parts - begin
        exists = within < size
        part, column, within, begin, size = (
            numbers[exists] for numbers in (part, column, within, begin, size)
        )
        columns = {
            "rows": np.minimum(nest.rows, size - within),
            "columns": np.minimum(nest.columns, channels - column),
            "first": within == 0,
            "last": within + nest.rows >= size,
            "parts": np.zeros(len(part), np.int64),
        }
        bases = {
            "dy": ((begin + within) * channels + column) * self.dy.dtype.bytes,
            "partial": (part * channels + column) * FP32.bytes,
        }
        return Tasks(part * min(cores, parts) // parts, Run, columns, bases)

    def _gathered(self, nest: _Nest, cores: int) -> Tasks[Run]:
        """The meeting of all cores, each of which then sums the parts of some columns."""
        channels = self.db.shape[0]
        step = min(nest.gathered, round_up(ceil_div(channels, cores), GRAIN))
        column = np.arange(0, channels, step)
        core = in_runs(len(column), cores)
        idle = np.arange(len(np.unique(core)), cores)
        core = np.append(core, idle)
        extent = np.append(np.minimum(step, channels - column), np.zeros(len(idle), np.int64))
        column = np.append(column, np.zeros(len(idle), np.int64))
        columns = {
            "rows": np.zeros(len(core), np.int64),
            "columns": extent,
            "first": np.diff(core, prepend=-1) != 0,
            "last": extent > 0,
            "parts": np.full(len(core), self.partial.shape[0]),
        }
        bases = {"partial": column * FP32.bytes, "db": column * self.db.dtype.bytes}
        return Tasks(core, Run, columns, bases)


class _Nest:
    """The program of a run, on the buffers of one core."""

    def __init__(self, kernel: RowSums, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        dtype = kernel.dy.dtype
        result = kernel.db.dtype
        parts, channels = kernel.partial.shape
        element = 2 * dtype.bytes + FP32.bytes  # two tiles and the accumulator
        if dtype != FP32:
            element += FP32.bytes  # a tile as fp32
        if result != FP32:
            element += result.bytes
        tile = piece(k, kernel.name, TILE, element, multiple=GRAIN)
        self.columns = min(channels, tile)
        self.rows = min(ceil_div(kernel.dy.shape[0], parts), tile // self._pitch(self.columns))
        #: Columns of which all parts have room in the accumulator.
        self.gathered = round_down(tile // parts, GRAIN)
        if not self.gathered:
            raise CapacityError(
                f"row_sums: {k.device_name} has room for {tile} numbers of fp32 in a tile, {parts} "
                f"parts of {GRAIN} columns need {parts * GRAIN}; use fewer parts"
            )
        self.dy = k.buffer("UB", (tile,), dtype, slots=2, name="dy_ub")
        self.acc = k.buffer("UB", (tile,), FP32, name="acc_ub")
        self.wide = None
        if dtype != FP32:
            self.wide = k.buffer("UB", (tile,), FP32, name="fp32_ub")
        self.db = None
        if result != FP32:
            self.db = k.buffer("UB", (self.gathered,), result, name="db_ub")

    @staticmethod
    def _pitch(columns: int) -> int:
        """Elements from one row in UB to the next."""
        return round_up(columns, GRAIN)

    def emit(self, u: Run) -> None:
        """Add a run of rows to the sums, or sum the parts behind the meeting."""
        if u.parts:
            if u.first:
                self.k.core_barrier()
            if u.columns:
                self._gather(u)
            return
        pitch = self._pitch(u.columns) * FP32.bytes
        size = u.columns * FP32.bytes
        acc = self.acc.next() if u.first else self.acc.last()
        if u.first:
            self.k.vec_dup(acc.at(0, self.rows * pitch), 0.0, FP32)
        target = acc.at(0, size, rows=u.rows, pitch=pitch)
        tile = self._load(u).at(0, size, rows=u.rows, pitch=pitch)
        self.k.vec_binary("add", target, target, tile, FP32)
        if u.last:
            self._halve(acc, self.rows, u.columns)
            place = self.kernel.partial.at(0, size, base="partial")
            self.k.data_move(place, acc.at(0, size), FP32)

    def _load(self, u: Run) -> Slot:
        """The run's rows as fp32."""
        dy = self.kernel.dy
        element = dy.dtype.bytes
        size = u.columns * element
        pitch = self._pitch(u.columns)
        tile = self.dy.next()
        rows = tile.at(0, size, rows=u.rows, pitch=pitch * element)
        source = dy.at(0, size, base="dy", rows=u.rows, pitch=dy.shape[1] * element)
        self.k.data_move(rows, source, dy.dtype)
        if self.wide is None:
            return tile
        wide = self.wide.next()
        target = wide.at(0, u.columns * FP32.bytes, rows=u.rows, pitch=pitch * FP32.bytes)
        self.k.vec_cast(target, rows, dy.dtype, FP32)
        return wide

    def _halve(self, slot: Slot, rows: int, columns: int) -> None:
        """Add rows in a slot to one another until the first is the sum of all."""
        pitch = self._pitch(columns) * FP32.bytes
        size = columns * FP32.bytes
        while rows > 1:
            kept = ceil_div(rows, 2)
            upper = rows - kept
            target = slot.at(0, size, rows=upper, pitch=pitch)
            addend = slot.at(kept * pitch, size, rows=upper, pitch=pitch)
            self.k.vec_binary("add", target, target, addend, FP32)
            rows = kept

    def _gather(self, u: Run) -> None:
        """Sum the parts of some columns and write them to db, rounded once."""
        k = self.k
        kernel = self.kernel
        size = u.columns * FP32.bytes
        acc = self.acc.next()
        rows = acc.at(0, size, rows=u.parts, pitch=self._pitch(u.columns) * FP32.bytes)
        pitch = kernel.partial.shape[1] * FP32.bytes
        source = kernel.partial.at(0, size, base="partial", rows=u.parts, pitch=pitch)
        k.data_move(rows, source, FP32)
        self._halve(acc, u.parts, u.columns)
        total = acc.at(0, size)
        result = converted(k, total, FP32, kernel.db.dtype, self.db, saturate=kernel.saturate)
        k.data_move(kernel.db.at(0, result.size, base="db"), result, kernel.db.dtype)
