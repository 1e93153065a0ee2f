"""What instructions read and write: global tensors, and private memories of cores side by side.

Cores with the same templates run together, one core to a lane; arrays have a leading axis for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import BF16, FP16, DType
from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.base.rounding import round_to
from npusim.isa.operands import GmRegion, Region, SlotRegion
from npusim.numerics.slots import Content, PhysicalSlot, content_of, extent, place_of, widen
from npusim.program.program import Program, Template

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


class GlobalMemory:
    """Tensors by name, as bytes; no instruction stores into those of ``constant``."""

    def __init__(
        self, tensors: Mapping[str, Bytes], constant: frozenset[str] = frozenset()
    ) -> None:
        self.tensors, self.constant = tensors, constant
        self._wide: dict[tuple[str, DType], Bytes] = {}
        self._widening = Lock()  # or every thread would begin with all of it

    def load(self, region: GmRegion, offsets: IntArray, dtype: DType) -> Content:
        """What lies at each of the byte ``offsets``: (batch, rows, elements per row)."""
        name, (_, rows, row, pitch) = region.tensor.name, place_of(region)
        data, scale = self.tensors[name], 4 // dtype.bytes

        def narrow() -> Array:
            view, index = _windows(data, (rows, row, pitch), offsets, dtype.numpy)
            return view[index]

        if name not in self.constant:  # it may change before it is asked for
            return content_of(narrow())
        misfit = (data.size | pitch) % dtype.bytes or (offsets % dtype.bytes).any()
        if dtype not in (FP16, BF16) or misfit:
            return Content(lambda wide: widen(narrow()) if wide else narrow())

        def make(wide: bool) -> Array:
            if not wide:
                return narrow()
            shape = (rows, row * scale, pitch * scale)
            floats = self._widened(name, dtype)
            view, index = _windows(floats, shape, offsets * scale, np.dtype(np.float32))
            return view[index]

        return Content(make)

    def _widened(self, name: str, dtype: DType) -> Bytes:
        """A whole tensor as the bytes of its elements in fp32."""
        key = (name, dtype)
        with self._widening:
            if key not in self._wide:
                self._wide[key] = widen(self.tensors[name].view(dtype.numpy)).view(np.uint8)
        return self._wide[key]

    def store(
        self, region: GmRegion, offsets: IntArray, values: Array, dtype: DType, *, atomic: bool
    ) -> None:
        """Write ``values`` (batch, ...) to the region at ``offsets``, or add them to it."""
        shape = place_of(region)[1:]
        view, index = _windows(self.tensors[region.tensor.name], shape, offsets, dtype.numpy)
        values = values.reshape(len(offsets), *view.shape[1:])
        if atomic:
            wide = np.dtype(np.float32) if dtype.kind == "float" else dtype.numpy
            values = round_to(view[index].astype(wide) + values.astype(wide), dtype)
        view[index] = values


def _windows(
    data: Bytes, shape: tuple[int, int, int], offsets: IntArray, dtype: np.dtype[Any]
) -> tuple[Array, IntArray]:
    """Every place of a shape (rows, bytes per row, pitch) in ``data``, and which lie at offsets."""
    rows, row, pitch = shape
    item = dtype.itemsize
    step = 1 if (offsets % item).any() else item
    count = (data.size - extent((0, *shape))) // step + 1
    view: Array = np.ndarray((count, rows, row // item), dtype, data, 0, (step, pitch, item))
    return view, offsets // step


class CoreMemory:
    """Private memories of a batch of cores and the tensors, as the running tasks name them.

    Stores into the tensors of ``ordered`` are kept in ``stores``, for ``catch_up``.
    """

    def __init__(
        self,
        program: Program,
        gm: GlobalMemory,
        cores: Sequence[int] = (0,),
        ordered: frozenset[str] = frozenset(),
    ) -> None:
        self.program, self.gm, self.cores, self.ordered = program, gm, cores, ordered
        self.batch = batch = len(cores)
        self.slots = [
            [PhysicalSlot(batch, b.slot_bytes) for _ in range(b.slots)] for b in program.buffers
        ]
        self.turns = [0] * len(program.buffers)  # from where those of this unit count
        self.seen = [0] * len(program.buffers)  # taken so far, also inside this unit
        self.bases: dict[str, IntArray] = {}
        self.stores: list[tuple[GmRegion, IntArray, Array, DType, bool]] = []

    def units(self) -> Iterator[Template]:
        """Enter unit after unit of the cores, which run the same templates; the template of each.

        What instructions name are from then on GM bases of the unit, and turns from its start.
        """
        program, turns = self.program, list(self.turns)
        tables = [program.cores[i].bases for i in self.cores]
        for unit, variant in enumerate(program.cores[self.cores[0]].variants):
            template = program.templates[program.variants[variant].template]
            bases, lowered = np.array([table[unit] for table in tables]), template.lowered
            self.bases = dict(zip(program.base_names, bases.T, strict=True))
            self.turns = [a - b for a, b in zip(turns, lowered.starts, strict=True)]
            turns = [a + b for a, b in zip(turns, lowered.turns, strict=True)]
            yield template

    def read(
        self, region: Region, dtype: DType, shape: tuple[int, ...] = (), *, wide: bool = False
    ) -> Array:
        """Elements of a region as (batch, *shape), by default (batch, rows, elements per row)."""
        values = self._content(region, dtype).get(wide=wide)
        return values.reshape(self.batch, *(shape or (region.rows, -1)))

    def write(self, region: Region, values: Array, dtype: DType) -> None:
        """Store elements row by row; ``values`` (batch, ...) must not change from now on."""
        values = np.asarray(values, dtype.numpy)
        if isinstance(region, GmRegion):
            self._store(region, values, dtype, atomic=False)
        else:
            values = values.reshape(self.batch, -1) if len(values) != self.batch else values
            self._slot(region).put(place_of(region), dtype, content_of(values))

    def move(
        self,
        dst: Region,
        src: Region,
        dtype: DType,
        shape: tuple[int, ...] = (),
        arrange: Callable[[Array], Array] | None = None,
    ) -> None:
        """dst = arrange(src as (batch, *shape)), in which elements only change places.

        Zeros may come in. As nothing is computed it can be done later, and on wider elements.
        """
        content = source = self._content(src, dtype)
        if arrange is not None:
            full = (self.batch, *shape)
            content = Content(lambda wide: arrange(source.get(wide=wide).reshape(full)))
        if isinstance(dst, GmRegion):
            self._store(dst, content.get(), dtype, atomic=False)
        else:
            self._slot(dst).put(place_of(dst), dtype, content)

    def add(self, region: Region, values: Array, dtype: DType) -> None:
        """GM += values, rounded to ``dtype``; integers wrap around."""
        assert isinstance(region, GmRegion)
        self._store(region, values, dtype, atomic=True)

    def catch_up(self, lane: int) -> None:
        """Do the ``stores`` of one of the cores."""
        at = slice(lane, lane + 1)
        for region, offsets, values, dtype, atomic in self.stores:
            self.gm.store(region, offsets[at], values[at], dtype, atomic=atomic)

    def _content(self, region: Region, dtype: DType) -> Content:
        if isinstance(region, GmRegion):
            return self.gm.load(region, self._offsets(region), dtype)
        return self._slot(region).get(place_of(region), dtype)

    def _store(self, region: GmRegion, values: Array, dtype: DType, *, atomic: bool) -> None:
        offsets, values = self._offsets(region), values.reshape(self.batch, -1)
        if region.tensor.name in self.ordered:
            self.stores.append((region, offsets, values, dtype, atomic))
        else:
            self.gm.store(region, offsets, values, dtype, atomic=atomic)

    def _offsets(self, region: GmRegion) -> IntArray:
        """Byte offsets of a region, one per core; an error where it leaves its tensor."""
        size = self.gm.tensors[region.tensor.name].size
        base = self.bases[region.base] if region.base else np.zeros(self.batch, np.int64)
        starts, length = base + region.offset, extent(place_of(region))
        outside = (starts < 0) | (starts + length > size)
        if outside.any():
            start = int(starts[outside][0])
            raise ProgramError(
                f"bytes {start}..{start + length} of {region} lie outside its {size} B; check the "
                "task's base offset and extents"
            )
        return starts

    def _slot(self, region: SlotRegion) -> PhysicalSlot:
        buffer = region.slot.buffer
        turn = self.turns[buffer.index] + region.slot.turn
        slots = self.slots[buffer.index]
        while self.seen[buffer.index] <= turn:
            slots[self.seen[buffer.index] % buffer.slots].take()
            self.seen[buffer.index] += 1
        return slots[turn % buffer.slots]
