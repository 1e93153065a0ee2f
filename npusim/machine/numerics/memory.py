"""The memory of instructions: global tensors, and private memories of cores side by side.

Cores with the same templates run together, one core to a *lane*; arrays have a leading axis for
them. Contents of regions lie in the physical slots of buffers. A content is worked out when first
asked for, so that a region which is loaded, rearranged and multiplied is an array and views of it;
it becomes bytes only where regions overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import BF16, FP16, DType
from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.base.rounding import round_to
from npusim.machine.isa.operands import GmRegion, Region, SlotRegion
from npusim.machine.program.program import Program, Template

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
#: Bytes of a slot or tensor: offset, rows, bytes per row, pitch. Rows without gaps are one row.
Place = tuple[int, int, int, int]

POISON = 0xFF

#: Pieces of a slot that are joined again at each read after a store. Of more, what was joined for
#: the last read becomes one piece: stores and reads in turn cost their own bytes, not all before.
_MANY = 8

#: Elements widened at a time: the indices that NumPy makes of them (8 B each) stay in the cache.
_PIECE = 1 << 15


class Content:
    """An array (batch, ...) that is worked out once and never changed.

    ``make`` gives it in its own type or, told so, widened to fp32.
    """

    def __init__(self, make: Callable[[bool], Array]) -> None:
        self.make = make
        self.known: dict[bool, Array] = {}

    def get(self, *, wide: bool = False) -> Array:
        """The elements, with ``wide`` as fp32."""
        if wide not in self.known:
            self.known[wide] = self.make(wide)
        return self.known[wide]


def content_of(values: Array) -> Content:
    """``values`` as a content."""
    return Content(lambda wide: widen(values) if wide else values)


def widen(values: Array) -> Array:
    """``values`` as fp32; looking fp16 up is faster than NumPy's conversion, a piece at a time."""
    if values.dtype == FP16.numpy:
        if values.size <= _PIECE or not values.flags.c_contiguous:
            return _fp16_values().take(values.view(np.uint16))
        wide = np.empty(values.shape, np.float32)
        flat, bits = wide.reshape(-1), values.reshape(-1).view(np.uint16)
        for first in range(0, flat.size, _PIECE):
            piece = slice(first, first + _PIECE)
            flat[piece] = _fp16_values().take(bits[piece])
        return wide
    return values.astype(np.float32, copy=False)


@cache
def _fp16_values() -> npt.NDArray[np.float32]:
    """Every fp16 as fp32, by its bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def place_of(region: Region) -> Place:
    """Where a region lies, without regard to how it is cut if there are no gaps."""
    if region.rows == 1 or region.pitch == region.row_bytes:
        return region.offset, 1, region.size, region.size
    return region.offset, region.rows, region.row_bytes, region.pitch


def extent(place: Place) -> int:
    """Bytes from the first to the last of a place."""
    return (place[1] - 1) * place[3] + place[2]


class PhysicalSlot:
    """A physical slot of each core: contents by place, and bytes once these are not enough."""

    def __init__(self, batch: int, size: int) -> None:
        self.batch, self.size = batch, size
        self.bytes: Bytes | None = None
        self.take()

    def take(self) -> None:
        """Acquire it: old content is gone."""
        self.fresh = True  # no bytes were needed since
        self.pending: dict[Place, tuple[DType, Content]] = {}  # not in bytes, in order of stores
        self.known: dict[tuple[Place, str], Content] = {}
        self.hull: tuple[int, DType, Content] | None = None  # what is pending up to an end

    def get(self, place: Place, dtype: DType) -> Content:
        """The content of a place."""
        found = self.known.get((place, dtype.name))
        if found is None:
            found = self._cut(place, dtype) if self.fresh else None
            found = found or content_of(self.view(place, dtype.numpy).copy())
            self.known[place, dtype.name] = found
        return found

    def put(self, place: Place, dtype: DType, content: Content) -> None:
        """Replace the content of a place."""
        if self.hull is not None and len(self.pending) > _MANY:
            end, kind, whole = self.hull
            self.pending = {(0, 1, end, end): (kind, content_of(whole.get()))}
        self._forget(place)
        self.pending.pop(place, None)
        self.pending[place] = dtype, content
        self.known[place, dtype.name] = content

    def _forget(self, place: Place) -> None:
        """Drop what is known of bytes that are about to change."""
        start, end = place[0], place[0] + extent(place)
        for key in [k for k in self.known if k[0][0] < end and start < k[0][0] + extent(k[0])]:
            del self.known[key]
        self.hull = None

    def _cut(self, place: Place, dtype: DType) -> Content | None:
        """A place as part of all that is pending, if elements of ``dtype`` are all there is."""
        end = place[0] + extent(place)
        if self.hull is None or self.hull[0] < end:
            numbers = [n for at in (place, *self.pending) for n in (at[0], at[2], at[3])]
            alike = all(kind is dtype for kind, _ in self.pending.values())
            if not alike or not self.pending or any(n % dtype.bytes for n in numbers):
                return None
            end = max(end, *(at[0] + extent(at) for at in self.pending))
            self.hull = end, dtype, self._join(end, dtype)
        _, kind, whole = self.hull
        if kind is not dtype or (place[0] | place[2] | place[3]) % dtype.bytes:
            return None
        return Content(lambda wide: _part(whole.get(wide=wide), place, dtype.bytes))

    def _join(self, end: int, dtype: DType) -> Content:
        """All that is pending, as the elements before ``end``; POISON where there is none."""
        pieces = [(place, content) for place, (_, content) in self.pending.items()]
        shape = (self.batch, end // dtype.bytes)

        def make(wide: bool) -> Array:
            if pieces[0][0][:3] == (0, 1, end) and len(pieces) == 1:
                return np.ascontiguousarray(pieces[0][1].get(wide=wide).reshape(shape))
            poison = np.full(dtype.bytes, POISON, np.uint8).view(dtype.numpy)
            poison = widen(poison) if wide else poison
            out = np.full(shape, poison[0], poison.dtype)
            for place, content in pieces:
                _fill(_part(out, place, dtype.bytes), content.get(wide=wide))
            return out

        return Content(make)

    def view(self, place: Place, dtype: np.dtype[Any]) -> Array:
        """The bytes of a place as elements, (batch, rows, elements per row), up to date."""
        if self.bytes is None:
            self.bytes = np.empty((self.batch, self.size), np.uint8)
        if self.fresh:
            self.bytes.fill(POISON)
            self.fresh = False
        for at, (kind, content) in self.pending.items():
            _fill(_elements(self.bytes, at, kind.numpy), content.get())
        self.pending.clear()
        return _elements(self.bytes, place, dtype)


def _elements(data: Array, place: Place, dtype: np.dtype[Any]) -> Array:
    """A place in each row of ``data`` as (batch, rows, elements per row), a view."""
    offset, rows, row, pitch = place
    shape = (len(data), rows, row // dtype.itemsize)
    strides = (data.strides[0], pitch, dtype.itemsize)
    return np.ndarray(shape, dtype, data.view(np.uint8), offset, strides)


def _part(data: Array, place: Place, item: int) -> Array:
    """A place, counted in elements of ``item`` bytes, of rows of other elements, a view."""
    offset, rows, row, pitch = place
    if rows == 1:
        return data[:, None, offset // item : (offset + row) // item]
    scale = data.itemsize // item
    return _elements(data, (offset * scale, rows, row * scale, pitch * scale), data.dtype)


def _fill(target: Array, values: Array) -> None:
    """target = values, element by element; both begin with the batch."""
    if target.shape[1] == 1:  # one row splits into any shape without a copy
        target.reshape(values.shape)[...] = values
    else:
        target[...] = values.reshape(target.shape)


# -- memories ---------------------------------------------------------------------------------


class GlobalMemory:
    """Tensors by name, as bytes; no instruction stores into those of ``constant``."""

    def __init__(
        self, tensors: Mapping[str, Bytes], constant: frozenset[str] = frozenset()
    ) -> None:
        self.tensors, self.constant = tensors, constant
        self._wide: dict[tuple[str, DType], Bytes] = {}
        self._widening = Lock()  # or every thread would begin with all of it

    def load(self, region: GmRegion, offsets: IntArray, dtype: DType) -> Content:
        """The elements at each of the byte ``offsets``: (batch, rows, elements per row)."""
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
