"""The way of a matrix product's operands into L1: where they lie in GM, and slab after slab."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from typing import NamedTuple

from msgspec import Struct

from npusim.base.integers import Number
from npusim.kernels.parts.tile_order import Tiles
from npusim.kernels.parts.transposed import NzColumns, load_transposed
from npusim.language import (
    FRACTAL_BYTES,
    INT8,
    ArgumentError,
    BufferHandle,
    DType,
    IntArray,
    Language,
    Slot,
    SlotRegion,
    Tensor,
    Window,
    ceil_div,
    round_up,
)

#: How an operand may lie in GM.
LAYOUTS_A = ("ND", "ND_km", "NZ")
LAYOUTS_B = ("ND", "ND_nk", "NZ", "NZ_nk")


def steps(layouts: tuple[str, str], c0: int) -> dict[str, int]:
    """The multiples that sizes of a tiling have to be; ``ArgumentError`` for unknown layouts."""
    if layouts[0] not in LAYOUTS_A or layouts[1] not in LAYOUTS_B:
        raise ArgumentError(
            f"matmul operands are {layouts}; A is one of {', '.join(LAYOUTS_A)}, B of "
            f"{', '.join(LAYOUTS_B)}"
        )
    multiples = {"base_k": c0}
    if layouts[0] == "NZ":
        multiples["single_core_m"] = 16
    if layouts[1] == "NZ":
        multiples |= {"base_n": c0, "single_core_n": c0}
    elif layouts[1] == "NZ_nk":
        multiples |= {"base_n": 16, "single_core_n": 16}
    return multiples


class Tile(NamedTuple):
    """Extents of a tile and of the one after it on its core; ``start`` is where K begins.

    ``present`` says that the first slabs (with ``full_load_a`` that of A) are in L1 already,
    ``waits`` that the block in which it is handed over was used before, ``first`` that its part of
    K is the first, which adds the bias. A tile without rows stands
    for the end of the product, where all cores meet.
    """

    m: int
    n: int
    k: int
    start: int
    next_m: int
    next_n: int
    next_k: int
    next_start: int
    present: bool
    waits: bool
    first: bool

    def extent(self, axis: str, *, ahead: bool) -> int:
        """The extent along "m" or "n", of this tile or the one after it."""
        return int(getattr(self, f"next_{axis}" if ahead else axis))


class Operand(Struct, frozen=True):
    """A matrix of ``rows`` x ``columns`` elements in GM: row-major, or blocked as NZ.

    Its blocks come to L1 as NZ: columns of 32 bytes, rows padded to 16. ``base`` names the task
    column that says where a tile's first element lies.
    """

    tensor: Tensor
    base: str
    rows: int
    columns: int
    blocked: bool = False

    @property
    def c0(self) -> int:
        """Elements in a column of NZ."""
        return 32 // self.tensor.dtype.bytes

    def offset(self, row: Number, column: Number) -> Number:
        """Bytes from the tensor's start to an element; of NZ the column is a multiple of C0."""
        if self.blocked:
            return (column // self.c0 * round_up(self.rows, 16) + row) * 32
        return (row * self.columns + column) * self.tensor.dtype.bytes

    def load(
        self, k: Language, dst: Slot, base: str, at: tuple[int, int], size: tuple[int, int]
    ) -> None:
        """Bring ``size`` = (rows, columns) to L1, from ``at`` = (row, column) after ``base``.

        One copy, except that devices without nd2nz take one per column of NZ.
        """
        rows, columns = size
        dtype = self.tensor.dtype
        offset = self.offset(*at)
        count = ceil_div(columns, self.c0)
        column = ceil_div(rows, 16) * FRACTAL_BYTES
        if self.blocked:
            pitch = ceil_div(self.rows, 16) * FRACTAL_BYTES
            source = self.tensor.at(offset, column, base=base, rows=count, pitch=pitch)
            k.data_move(dst, source, dtype)
            return
        pitch = self.columns * dtype.bytes
        if k.has_path("GM", "L1", "nd2nz"):
            row = columns * dtype.bytes
            source = self.tensor.at(offset, row, base=base, rows=rows, pitch=pitch)
            k.nd2nz(dst, source, dtype)
            return
        for j in range(count):
            width = min(self.c0, columns - j * self.c0) * dtype.bytes
            source = self.tensor.at(offset + j * 32, width, base=base, rows=rows, pitch=pitch)
            k.data_move(dst.at(j * column, width, rows=rows, pitch=32), source, dtype)


class Scales(Struct, frozen=True):
    """The scales of a block-scaled operand in GM: (rows, columns / group), a byte each.

    ``group`` elements along K of a row share one. In L1 groups lie behind each other.
    """

    tensor: Tensor
    base: str
    group: int

    def offset(self, row: Number, column: Number) -> Number:
        """Bytes from the tensor's start to the scale of an element."""
        return row * self.tensor.shape[1] + column // self.group

    def load(
        self, k: Language, dst: Slot, base: str, at: tuple[int, int], size: tuple[int, int]
    ) -> None:
        """Bring the scales of ``size`` = (rows, columns) elements to L1, as ``Operand.load``."""
        rows = size[0]
        width = ceil_div(size[1], self.group)
        pitch = self.tensor.shape[1]
        source = self.tensor.at(self.offset(*at), width, base=base, rows=rows, pitch=pitch)
        k.data_move(scales_in(dst, 0, width, rows), source, self.tensor.dtype, variant="scale")


def scales_in(slot: Slot, first: int, groups: int, rows: int) -> SlotRegion:
    """The scales of ``rows`` of some groups, from the ``first`` of a slot on.

    Those of a group begin at a multiple of 32 B, as moves between L1 and L0 ask.
    """
    pitch = round_up(rows, 32)
    if pitch == rows:
        return slot.at(first * rows, groups * rows)
    return slot.at(first * pitch, rows, rows=groups, pitch=pitch)


def scale_slots(
    k: Language, scales: tuple[Tensor, ...], extents: tuple[int, int], groups: int, slots: int
) -> list[BufferHandle]:
    """So many slots of L0 for so many groups of the scales of A and of B, where there are any."""
    memories = ("L0A_MX", "L0B_MX")
    return [
        k.buffer(memory, (round_up(rows, 32), groups), INT8, slots=slots, name=f"{scale.name}_l0")
        for scale, rows, memory in zip(scales, extents, memories, strict=False)
    ]


class Slab(NamedTuple):
    """A piece of K in one slot of L1: first element and extent, of this tile or the next one."""

    k0: int
    size: int
    ahead: bool = False


class Source(Struct, frozen=True):
    """An operand's way into L1: slabs of ``depth`` elements along K, ``slots`` of them.

    ``extent`` is the axis of the other extent: "m" or "n". With ``k_rows`` K runs
    along the operand's rows, else along its columns.
    """

    operand: Operand | Scales
    extent: str
    depth: int
    slots: int
    k_rows: bool = False

    def first(self, table: Tiles) -> IntArray:
        """Byte offset of each tile's first element."""
        across = table.m0 if self.extent == "m" else table.n0
        return self.operand.offset(*self._turned(across, table.k0))

    def offset_along(self, k0: int) -> int:
        """Bytes from element 0 along K to element ``k0``."""
        return int(self.operand.offset(*self._turned(0, k0)))

    def slab(self, k0: int, k: int, *, ahead: bool = False) -> Slab:
        """The slab with element ``k0`` of a part of K of ``k`` elements."""
        start = k0 // self.depth * self.depth
        return Slab(start, min(self.depth, k - start), ahead)

    def begins(self, walk: list[int], k: int) -> dict[int, Slab]:
        """The slabs of a ``walk`` (first elements of base blocks), by the place they begin at."""
        slabs = [self.slab(k0, k) for k0 in walk]
        return {i: slab for i, slab in enumerate(slabs) if not i or slab != slabs[i - 1]}

    def load(self, k: Language, tile: Tile, slot: Slot, slab: Slab) -> None:
        """Bring a slab of the tile, or of the one after it, to L1."""
        prefix = "next_" if slab.ahead else ""
        extent = tile.extent(self.extent, ahead=slab.ahead)
        first = self._turned(0, slab.k0)
        size = self._turned(extent, slab.size)
        self.operand.load(k, slot, prefix + self.operand.base, first, size)

    def _turned(self, across: Number, along: Number) -> tuple[Number, Number]:
        """(row, column) of what lies across K and along it."""
        return (along, across) if self.k_rows else (across, along)


class Shared:
    """The slots of another operand's buffer: what comes second lies ``offset`` bytes into them."""

    def __init__(self, handle: BufferHandle, offset: int) -> None:
        self.handle = handle
        self.offset = offset

    def next(self) -> Slot:
        """The slot that the first operand took last."""
        return self.last()

    def last(self) -> Slot:
        """The same: the first operand takes the turns."""
        return self.handle.last().behind(self.offset)


class Feed:
    """The slabs of one operand as a tile's walk along K uses them.

    ``begins`` maps places in the walk to the slabs that begin there. With ``preload`` the next slab
    is asked for when one comes into use, after the last that of the next tile (``following``).
    ``present`` says that the first slab is in L1 already.
    """

    def __init__(
        self,
        handle: BufferHandle | Shared,
        begins: dict[int, Slab],
        load: Callable[[Slot, Slab], None],
        *,
        preload: bool = False,
        following: Slab | None = None,
        present: bool = False,
    ) -> None:
        self.handle = handle
        self.load = load
        self.begins = begins
        slabs = [*begins.values(), following]
        self.next = dict(zip(begins, slabs[1:], strict=True)) if preload else {}
        self.pending = present

    def take(self, place: int) -> None:
        """Bring the slab that begins here into use, loading it unless it is on its way."""
        slab = self.begins.get(place)
        if slab is not None:
            self.slab = slab
            self.slot = self.handle.last() if self.pending else self._loaded(slab)
            self.pending = False

    def ask(self, place: int) -> None:
        """Ask for the slab after the one that begins here."""
        slab = self.next.get(place)
        if slab is not None:
            self._loaded(slab)
            self.pending = True

    def _loaded(self, slab: Slab) -> Slot:
        slot = self.handle.next()
        self.load(slot, slab)
        return slot

    def scales(
        self, k: Language, slot: Slot, rows: int, block: tuple[int, int], group: int
    ) -> SlotRegion:
        """Bring the scales of ``rows`` and a block of K, (first element, extent), to L0."""
        k0, depth = block
        groups = ceil_div(depth, group)
        target = scales_in(slot, 0, groups, rows)
        first = (k0 - self.slab.k0) // group
        k.data_move(target, scales_in(self.slot, first, groups, rows), INT8)
        return target


def periods(
    walk: list[int], period: int, base_k: int, k: int, *, ahead: bool
) -> Iterator[tuple[int, int]]:
    """Places in a ``walk`` along K at which periods begin, and how many from there are alike.

    A period is so many base blocks of ``base_k`` of ``k`` elements. Those that are alike bring the
    same slabs, do not begin the sum, and lie one behind the other; where slabs are asked for
    ``ahead``, so does the one after them.
    """
    depth = period * base_k
    places = range(0, len(walk), period)
    # The first element of each period that is whole and does not begin the sum, -1 of others.
    starts = []
    for place in places:
        k0 = walk[place]
        end = walk[min(place + period, len(walk)) - 1]
        regular = place and end - k0 == depth - base_k and not k0 % depth and k0 + depth <= k
        starts.append(k0 if regular else -1)
    follows = [0 <= a == b - depth for a, b in pairwise(starts)]
    number = 0
    while number < len(starts):
        followed = sum(1 for _ in takewhile(bool, follows[number:]))
        many = max(1, followed if ahead else followed + 1)
        yield places[number], many
        number += many


def load_left(
    k: Language, a0: Slot, feed: Feed, m: int, block: tuple[int, int], dtype: DType, *, k_rows: bool
) -> None:
    """A block of NZ columns to L0A: a load3d with a 1x1 filter walks rows as positions."""
    k0, depth = block
    start = k0 - feed.slab.k0
    if k_rows:
        columns = NzColumns(feed.slot, 0, feed.slab.size)
        load_transposed(k, a0, columns, m, start, depth, dtype)
        return
    rows = round_up(m, 16)
    slab = feed.slot.at(0, ceil_div(feed.slab.size, 32 // dtype.bytes) * rows * 32)
    k.load3d(a0, slab, Window(h=1, w=rows), dtype, m=(0, m), k=(start, depth))


def load_right(
    k: Language, b0: Slot, feed: Feed, n: int, block: tuple[int, int], dtype: DType, *, k_rows: bool
) -> None:
    """A block to L0B: of N x K its fractals as they lie, of K x N a load3d along positions."""
    k0, depth = block
    start = k0 - feed.slab.k0
    c0 = 32 // dtype.bytes
    if k_rows:
        rows = round_up(feed.slab.size, 16)
        slab = feed.slot.at(0, ceil_div(n, c0) * rows * 32)
        k.load3d(b0, slab, Window(h=1, w=rows), dtype, m=(start, depth), k=(0, n))
        return
    n1 = ceil_div(n, 16)
    fractals = feed.slot.fractals(start // c0 * n1, ceil_div(depth, c0) * n1)
    k.load2d(b0, fractals, dtype)
