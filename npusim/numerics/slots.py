"""Contents of regions, and the physical slots of buffers that hold them.

Arrays have a leading axis of *lanes*: cores that run the same program side by side. A content is
worked out when first asked for, so that a region which is loaded, rearranged and multiplied is an
array and views of it; it becomes bytes only where regions overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import FP16, DType
from npusim.isa.operands import Region

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
