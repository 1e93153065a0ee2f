"""Element-wise programs on the vector unit: an expression is data, sums over channels go with it.

    r = op(a, b)                        for every element, step after step
    s[C0 * c1 + c0] += r[n, c1, p, c0]  over all images and positions, for values that are summed

Layouts: maps (N, C1, positions, C0) or flat, all of one shape; vectors (C1 * C0), numbers for each
channel, or (G * C1 * C0), those for each of G groups of images that follow each other, of floats,
sums in fp32; masks, one bit for each element, as int8 of an eighth of the elements. Values are
computed in fp32 (or fp16 where ``compute`` says so) and rounded once, when they are stored.

for (c1, group, run of images, run of positions) of this core:     # one task
    UB vectors <- GM, then those made of them (when these change)  # MTE2, V
    UB maps and masks <- GM                                        # MTE2
    UB values <- steps, one vector instruction each                # V
    UB sums += values; halved until one position is left           # V
    GM maps, masks and numbers of rows <- UB                       # MTE3
    GM sums += UB (before c1 or the group changes)                 # MTE3, atomic

Sums in UB follow the tiles, whose order shape, device and number of cores fix; cores that share
channels add atomically, here in the order of the cores, on a chip as they arrive. ``before`` clears
the sums. Sums of channels that only fill up C0 are those of the zeros there. Rows that are reduced
are those of any map; C0 is then the elements of a row, any number where there are no vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import piece
from npusim.kernels.vector.expression import (
    GRAIN,
    REDUCED,
    Bench,
    Expression,
    Places,
    Span,
    Step,
    bits_of,
    is_mask,
)
from npusim.language import (
    FP32,
    ArgumentError,
    Device,
    GmRegion,
    Kernel,
    Language,
    Plan,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
    round_up,
)
from npusim.machine.isa.vector_math import COMPARE

__all__ = ["Elementwise", "Step"]

#: Largest tile in elements: its loads have full bandwidth.
TILE = 16 * 1024


class Tile(NamedTuple):
    """``positions`` of some images; ``first`` and ``last`` of a core's run over one c1 and group.

    Sums of that run hold ``width`` elements.
    """

    images: int
    positions: int
    first: bool
    last: bool
    width: int


@dataclass(frozen=True)
class _Called(Spread):
    """The first field of ``Elementwise``: what reports and errors call it."""

    called: str


@dataclass(frozen=True)
class Elementwise(Expression, _Called):
    """Run ``steps`` over the maps; a tensor is called in the steps by its own name.

    ``called`` names it in reports and errors; the other fields are those of ``Expression``, with
    ``sums`` of role "inout". Raises ``ArgumentError`` where shapes or types do not fit, or steps
    cannot be done.
    """

    name: ClassVar[str] = "elementwise"

    def __post_init__(self) -> None:
        whole = next((one for one in self.maps if not is_mask(one)), None)
        if whole is None or not whole.size_bytes:
            raise ArgumentError(f"{self.called}: it needs a map of at least one element")
        for one in self.maps:
            count = ceil_div(self.count, 8) if is_mask(one) else self.count
            if prod(one.shape) != count:
                raise ArgumentError(
                    f"{self.called}: {one.name} has shape {one.shape}; beside {whole.name} of "
                    f"shape {whole.shape} it has {count} elements"
                )
        images, blocks, rows, c0 = self.sizes
        if self.width and self.count % self.width:
            raise ArgumentError(f"{self.called}: {whole.name} has no rows of {self.width} elements")
        free = self.width == c0 and not (self.vectors or self.sums)
        if self.sizes != (1, 1, self.count, 1) and c0 % 8 and not free:
            raise ArgumentError(f"{self.called}: C0 of {whole.name} is {c0}; it must be 8 or 16")
        for one in self.rows:
            if prod(one.shape) != rows or one.dtype != FP32 or not self.width:
                raise ArgumentError(
                    f"{self.called}: {one.name} is {one.dtype} of shape {one.shape}; numbers of "
                    f"{rows} rows are fp32, one for each"
                )
        for one in (*self.vectors, *self.sums):
            known = one.dtype == FP32 or (one not in self.sums and one.dtype.kind == "float")
            shapes = [(n * blocks * c0,) for n in (1, self.groups) if images % n == 0]
            if c0 == 1 or one.shape not in shapes or not known:
                raise ArgumentError(
                    f"{self.called}: {one.name} is {one.dtype} of shape {one.shape}; maps of shape "
                    f"{whole.shape} take vectors of shape {(blocks * c0,)}, or of as many for each "
                    "group of images, sums in fp32, and 4 sizes (N, C1, positions, C0)"
                )
        self.check(self.called)

    @property
    def maps(self) -> tuple[Tensor, ...]:
        """What has a number or a bit for each element."""
        return (*self.reads, *self.writes)

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Images, blocks of channels, positions, and channels to a block; (1, 1, n, 1) flat.

        Rows that are reduced are positions with as many channels.
        """
        shape = self._shape
        if self.width:
            return 1, 1, self.count // self.width, self.width
        if len(shape) != 4:
            return 1, 1, self.count, 1
        return shape[0], shape[1], shape[2], shape[3]

    @cached_property
    def groups(self) -> int:
        """Groups of images that have vectors of their own."""
        _, blocks, _, c0 = self.sizes
        each = blocks * c0
        return max((prod(one.shape) // each for one in (*self.vectors, *self.sums)), default=1) or 1

    @property
    def count(self) -> int:
        """Elements of a map."""
        return prod(self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        return next(one.shape for one in self.maps if not is_mask(one))

    @property
    def tiling_text(self) -> str:
        return f"{self.called}, tile up to {TILE}"

    @property
    def before(self) -> tuple[Kernel, ...]:
        """Clears the sums."""
        return (MemSet(self.sums[0], few=True, more=self.sums[1:]),) if self.sums else ()

    def stream(self, device: Device, cores: int) -> Stream:
        order, count = self.order, self.count
        names = dict.fromkeys(COMPARE, "compare") | {"spread": "transpose"}
        names |= {name: f"reduce_{one}" for name, one in REDUCED.items()}
        few = {one for one, value in order.values.items() if value.kind in ("vector", "row")}
        vector = [
            (names.get(s.operation, s.operation), count * s.dtype.bytes)
            for s in order.steps
            if s.dtype and (s.result not in few or s.operation in REDUCED)
        ]
        stored = sum(order.last[one.name] not in order.kept for one in self.writes)
        return Stream(
            read=sum(one.size_bytes for one in self.reads),
            written=sum(one.size_bytes for one in (*self.writes, *self.rows)),
            tasks=np.maximum(np.arange(1, cores + 1), ceil_div(count, TILE)),
            vector=(*vector, ("cast", stored * count * 4), ("add", len(self.sums) * count * 4)),
            loads=len(self.reads),
            stores=len(self.writes) + len(self.rows),
            cold=any(one.role == "in" for one in self.reads),
        )

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        for one in self.tensors:
            if one.dtype.kind == "float" and one.dtype.name not in k.dtypes:
                raise ArgumentError(
                    f"{self.called}: {one.name} is {one.dtype}, which {k.device_name} does not "
                    f"know (it has {', '.join(k.dtypes)})"
                )
        nest = _Nest(self, k)
        return Plan(self._tasks(nest.most, cores), nest.emit)

    def _tasks(self, most: int, cores: int) -> Tasks[Tile]:
        """Tiles of ``most`` elements, channels outermost: a core rarely changes its vectors."""
        images, blocks, everywhere, c0 = self.sizes
        grouped = images // self.groups
        share, grain = min(most, ceil_div(self.count, cores)), max(1, GRAIN // c0)
        pieces = ceil_div(everywhere, round_up(ceil_div(share, c0), grain))
        positions = min(everywhere, round_up(ceil_div(everywhere, pieces), grain), most // c0)
        run = 1
        # Sums are halved by positions, so that images have to lie whole positions apart.
        aligned = not self.sums or round_up(everywhere * c0, GRAIN) % c0 == 0
        if positions == everywhere and aligned:
            run = max(1, min(grouped, share // round_up(everywhere * c0, GRAIN)))
        axes = (blocks, 1), (self.groups, 1), (grouped, run), (everywhere, positions)
        (c1, group, image, position), (_, _, some, extent) = in_pieces(*axes)
        core = in_runs(len(c1), cores)
        changes = [np.diff(one, prepend=-1) != 0 for one in (core, c1, group)]
        begins = np.logical_or.reduce(changes)
        start = (((group * grouped + image) * blocks + c1) * everywhere + position) * c0
        columns = {
            "images": some,
            "positions": extent,
            "first": begins,
            "last": np.append(begins[1:], True),
        }
        summed = round_up(positions * c0, GRAIN) * (some - 1) + extent * c0
        widest = np.maximum.reduceat(summed, np.flatnonzero(begins))
        width = widest[np.cumsum(begins) - 1] if self.sums else np.zeros_like(start)
        bases = {f"map{bits}": start * bits // 8 for bits in {bits_of(one) for one in self.maps}}
        for one in (*self.vectors, *self.sums):
            block = c1 + group * blocks * (one.shape[0] > blocks * c0)
            bases[one.name] = block * c0 * one.dtype.bytes
        bases |= {one.name: start // c0 * one.dtype.bytes for one in self.rows}
        return Tasks(core, Tile, {**columns, "width": width}, bases)


class _Nest:
    """The program of a tile, on the buffers of one core."""

    def __init__(self, kernel: Elementwise, k: Language) -> None:
        self.kernel, self.k = kernel, k
        self.c0 = kernel.sizes[3]
        each = ceil_div(kernel.each_bits, 8) + 4 * len(kernel.sums)
        vectors = sum(one.kind == "vector" for one in kernel.order.values.values())
        besides = vectors * 2 * self.c0 * 4 + 8 * 32 * len(kernel.maps)
        whole = round_up(kernel.count, GRAIN)
        row = round_up(kernel.width, GRAIN)
        most = min(max(TILE, row), whole)
        self.most = piece(k, kernel.called, most, each, multiple=GRAIN, least=row, besides=besides)
        self.bench = Bench(kernel, k, self.most, self.most, self.c0)
        self.sums = [
            k.buffer("UB", (self.most,), FP32, name=f"{one.name}_ub") for one in kernel.sums
        ]

    def emit(self, u: Tile) -> None:
        """Load, compute step by step, add to the sums, store."""
        k, kernel, bench = self.k, self.kernel, self.bench
        places: Places = {}
        apart = round_up(u.positions * self.c0, GRAIN)
        span = Span(u.images, u.positions * self.c0, apart, apart)
        for one in kernel.reads:
            places[one.name] = span.of(bench.reads[one.name].next(), bits_of(one))
            k.data_move(places[one.name], self._outside(one, u), one.dtype)
        self._load_vectors(u)
        places |= bench.repeated(0, self.c0, span)
        outputs = {name: buffer.next() for name, buffer in bench.writes.items()}
        bench.run(span, places, outputs)
        self._add(u, span, places)
        for one in kernel.writes:
            held = span.of(outputs[one.name], bits_of(one))
            k.data_move(self._outside(one, u), held, one.dtype)
        for one in kernel.rows:
            numbers = outputs[one.name].at(0, u.positions * one.dtype.bytes)
            k.data_move(one.at(0, numbers.size, base=one.name), numbers, one.dtype)

    def _load_vectors(self, u: Tile) -> None:
        """Bring the vectors of another c1 or group, and make those that rest on them."""
        if u.first:
            for one in self.kernel.vectors:
                row = self.c0 * one.dtype.bytes
                target = self.bench.vectors[one.name].next().at(0, row)
                self.k.data_move(target, one.at(0, row, base=one.name), one.dtype)
            self.bench.prepare(self.c0)

    def _outside(self, tensor: Tensor, u: Tile) -> GmRegion:
        """The elements of a tile in global memory."""
        bits, row = bits_of(tensor), u.positions * self.c0
        _, blocks, everywhere, _ = self.kernel.sizes
        pitch = blocks * everywhere * self.c0 * bits // 8
        size = ceil_div(row * bits, 8)
        return tensor.at(0, size, base=f"map{bits}", rows=u.images, pitch=pitch)

    def _add(self, u: Tile, span: Span, places: Places) -> None:
        """Add values to the sums; behind the last tile halve these and add them to memory."""
        k, row, last = self.k, self.c0 * 4, self.kernel.order.last
        everything = zip(self.kernel.summed, self.kernel.sums, self.sums, strict=True)
        for name, tensor, buffer in everything:
            held = buffer.next() if u.first else buffer.last()
            if u.first:
                k.vec_dup(held.at(0, u.width * 4), 0.0, FP32)
            some = span.of(held, 32)
            k.vec_binary("add", some, some, places[last[name]], FP32)
            left = u.width // self.c0
            while u.last and left > 1:
                half = left // 2
                ahead, behind = held.at(0, half * row), held.at((left - half) * row, half * row)
                k.vec_binary("add", ahead, ahead, behind, FP32)
                left -= half
            if u.last:
                total = held.at(0, row)
                k.data_move(tensor.at(0, row, base=tensor.name), total, FP32, atomic=True)
