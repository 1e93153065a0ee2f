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
import numpy.typing as npt

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
    BufferHandle,
    Device,
    GmRegion,
    IntArray,
    Kernel,
    Language,
    Plan,
    SlotRegion,
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
    """The first field of ``Elementwise``: its name in reports and errors."""

    called: str


@dataclass(frozen=True)
class Elementwise(Expression, _Called):
    """Run ``steps`` over the maps; a tensor is called in the steps by its own name.

    ``called`` names it in reports and errors, ``tile`` is the most elements of a tile; other
    fields are those of ``Expression``, with ``sums`` of role "inout". Raises ``ArgumentError``
    where shapes or types do not fit, or steps cannot be done.
    """

    tile: int = TILE

    name: ClassVar[str] = "elementwise"

    def __post_init__(self) -> None:
        first = next((tensor for tensor in self.maps if not is_mask(tensor)), None)
        if first is None or not first.size_bytes:
            raise ArgumentError(f"{self.called}: it needs a map of at least one element")
        for tensor in self.maps:
            count = ceil_div(self.count, 8) if is_mask(tensor) else self.count
            if prod(tensor.shape) != count:
                raise ArgumentError(
                    f"{self.called}: {tensor.name} has shape {tensor.shape}; beside {first.name} "
                    f"of shape {first.shape} it has {count} elements"
                )
        if self.width and self.count % self.width:
            raise ArgumentError(f"{self.called}: {first.name} has no rows of {self.width} elements")
        c0 = self.sizes[3]
        free = self.width == c0 and not (self.vectors or self.sums)
        if self.sizes != (1, 1, self.count, 1) and c0 % 8 and not free:
            raise ArgumentError(f"{self.called}: C0 of {first.name} is {c0}; it must be 8 or 16")
        for tensor in self.rows:
            self._check_row(tensor)
        for tensor in (*self.vectors, *self.sums):
            self._check_vector(tensor, first)
        self.check(self.called)

    def _check_row(self, tensor: Tensor) -> None:
        """Raise ``ArgumentError`` unless a tensor has a number for each row."""
        rows = self.sizes[2]
        if prod(tensor.shape) != rows or tensor.dtype != FP32 or not self.width:
            raise ArgumentError(
                f"{self.called}: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; numbers "
                f"of {rows} rows are fp32, one for each"
            )

    def _check_vector(self, tensor: Tensor, first: Tensor) -> None:
        """Raise ``ArgumentError`` unless a tensor has a number for each channel, or group's too."""
        images, blocks, _, c0 = self.sizes
        legal = tensor.dtype == FP32
        if tensor not in self.sums:
            legal = tensor.dtype.kind == "float"
        shapes = [(n * blocks * c0,) for n in (1, self.groups) if images % n == 0]
        if c0 == 1 or tensor.shape not in shapes or not legal:
            raise ArgumentError(
                f"{self.called}: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; maps of "
                f"shape {first.shape} take vectors of shape {(blocks * c0,)}, or of as many for "
                "each group of images, sums in fp32, and 4 sizes (N, C1, positions, C0)"
            )

    @property
    def maps(self) -> tuple[Tensor, ...]:
        """Tensors with a number or a bit for each element."""
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
        vectors = (*self.vectors, *self.sums)
        return max((prod(tensor.shape) // (blocks * c0) for tensor in vectors), default=1) or 1

    @property
    def count(self) -> int:
        """Elements of a map."""
        return prod(self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        return next(tensor.shape for tensor in self.maps if not is_mask(tensor))

    @property
    def tiling_text(self) -> str:
        return f"{self.called}, tile up to {self.tile}"

    @property
    def before(self) -> tuple[Kernel, ...]:
        """Clears the sums."""
        return (MemSet(self.sums[0], few=True, more=self.sums[1:]),) if self.sums else ()

    def stream(self, device: Device, cores: int) -> Stream:
        order = self.order
        count = self.count
        results = [tensor.name for tensor in self.writes]
        rounded = sum(order.last[name] not in order.unrounded for name in results)
        return Stream(
            read=sum(tensor.size_bytes for tensor in self.reads),
            written=sum(tensor.size_bytes for tensor in (*self.writes, *self.rows)),
            tasks=np.maximum(np.arange(1, cores + 1), ceil_div(count, self.tile)),
            vector=(
                *self._instructions(),
                ("cast", rounded * count * 4),
                ("add", len(self.sums) * count * 4),
            ),
            loads=len(self.reads),
            stores=len(self.writes) + len(self.rows),
            cold=any(tensor.role == "in" for tensor in self.reads),
        )

    def _instructions(self) -> list[tuple[str, int]]:
        """Instructions of the steps over all elements, and the bytes that each works on."""
        names = dict.fromkeys(COMPARE, "compare")
        names["spread"] = "transpose"
        names |= {name: f"reduce_{operation}" for name, operation in REDUCED.items()}
        values = self.order.values
        small = {name for name, value in values.items() if value.kind in ("vector", "row")}
        return [
            (names.get(step.operation, step.operation), self.count * step.dtype.bytes)
            for step in self.order.steps
            if step.dtype and (step.result not in small or step.operation in REDUCED)
        ]

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        for tensor in self.tensors:
            if tensor.dtype.kind == "float" and tensor.dtype.name not in k.dtypes:
                raise ArgumentError(
                    f"{self.called}: {tensor.name} is {tensor.dtype}, which {k.device_name} does "
                    f"not know (it has {', '.join(k.dtypes)})"
                )
        nest = _Nest(self, k)
        return Plan(self._tasks(nest.most, cores), nest.emit)

    def _tasks(self, most: int, cores: int) -> Tasks[Tile]:
        """Tiles of ``most`` elements, channels outermost: a core rarely changes its vectors."""
        images, blocks, positions, c0 = self.sizes
        grouped = images // self.groups
        tile_images, tile_positions = self._extents(most, cores)
        (c1, group, image, position), (_, _, run, extent) = in_pieces(
            (blocks, 1), (self.groups, 1), (grouped, tile_images), (positions, tile_positions)
        )
        core = in_runs(len(c1), cores)
        begins = _changes(core) | _changes(c1) | _changes(group)
        start = (((group * grouped + image) * blocks + c1) * positions + position) * c0
        width = np.zeros_like(start)
        if self.sums:
            summed = round_up(tile_positions * c0, GRAIN) * (run - 1) + extent * c0
            widest = np.maximum.reduceat(summed, np.flatnonzero(begins))
            width = widest[np.cumsum(begins) - 1]
        columns = {
            "images": run,
            "positions": extent,
            "first": begins,
            "last": np.append(begins[1:], True),
            "width": width,
        }
        bases = {f"map{bits}": start * bits // 8 for bits in {bits_of(t) for t in self.maps}}
        for tensor in (*self.vectors, *self.sums):
            block = c1
            if tensor.shape[0] > blocks * c0:
                block = c1 + group * blocks
            bases[tensor.name] = block * c0 * tensor.dtype.bytes
        for tensor in self.rows:
            bases[tensor.name] = start // c0 * tensor.dtype.bytes
        return Tasks(core, Tile, columns, bases)

    def _extents(self, most: int, cores: int) -> tuple[int, int]:
        """Images and positions of a tile of ``most`` elements."""
        images, _, positions, c0 = self.sizes
        share = min(most, ceil_div(self.count, cores))
        grain = max(1, GRAIN // c0)
        pieces = ceil_div(positions, round_up(ceil_div(share, c0), grain))
        extent = min(positions, round_up(ceil_div(positions, pieces), grain), most // c0)
        # Sums are halved by positions, so that images have to lie whole positions apart.
        image = round_up(positions * c0, GRAIN)
        aligned = not self.sums or image % c0 == 0
        if extent < positions or not aligned:
            return 1, extent
        return max(1, min(images // self.groups, share // image)), extent


def _changes(column: IntArray) -> npt.NDArray[np.bool_]:
    """Rows whose entry differs from the one before; the first."""
    changes: npt.NDArray[np.bool_] = np.diff(column, prepend=-1) != 0
    return changes


class _Nest:
    """The program of a tile, on the buffers of one core."""

    def __init__(self, kernel: Elementwise, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        self.c0 = kernel.sizes[3]
        self.most = self._most()
        self.bench = Bench(kernel, k, self.most, self.most, self.c0)
        self.sums = [
            k.buffer("UB", (self.most,), FP32, name=f"{tensor.name}_ub") for tensor in kernel.sums
        ]

    def _most(self) -> int:
        """Elements of the largest tile that UB has room for beside the vectors."""
        kernel = self.kernel
        element = ceil_div(kernel.each_bits, 8) + 4 * len(kernel.sums)
        vectors = sum(value.kind == "vector" for value in kernel.order.values.values())
        besides = vectors * 2 * self.c0 * 4 + 8 * 32 * len(kernel.maps)
        row = round_up(kernel.width, GRAIN)
        most = min(max(kernel.tile, row), round_up(kernel.count, GRAIN))
        return piece(
            self.k, kernel.called, most, element, multiple=GRAIN, least=row, besides=besides
        )

    def emit(self, u: Tile) -> None:
        """Load, compute step by step, add to the sums, store."""
        k = self.k
        kernel = self.kernel
        bench = self.bench
        row = u.positions * self.c0
        apart = round_up(row, GRAIN)
        span = Span(u.images, row, apart, apart)
        places: Places = {}
        for tensor in kernel.reads:
            place = span.of(bench.reads[tensor.name].next(), bits_of(tensor))
            k.data_move(place, self._outside(tensor, u), tensor.dtype)
            places[tensor.name] = place
        self._load_vectors(u)
        places |= bench.repeated(0, self.c0, span)
        outputs = {name: buffer.next() for name, buffer in bench.writes.items()}
        bench.run(span, places, outputs)
        for name, tensor, buffer in zip(kernel.summed, kernel.sums, self.sums, strict=True):
            self._add(u, span, tensor, buffer, places[kernel.order.last[name]])
        for tensor in kernel.writes:
            place = span.of(outputs[tensor.name], bits_of(tensor))
            k.data_move(self._outside(tensor, u), place, tensor.dtype)
        for tensor in kernel.rows:
            numbers = outputs[tensor.name].at(0, u.positions * tensor.dtype.bytes)
            k.data_move(tensor.at(0, numbers.size, base=tensor.name), numbers, tensor.dtype)

    def _load_vectors(self, u: Tile) -> None:
        """Bring the vectors of another c1 or group, and make those that rest on them."""
        if not u.first:
            return
        for tensor in self.kernel.vectors:
            row = self.c0 * tensor.dtype.bytes
            target = self.bench.vectors[tensor.name].next().at(0, row)
            self.k.data_move(target, tensor.at(0, row, base=tensor.name), tensor.dtype)
        self.bench.prepare(self.c0)

    def _outside(self, tensor: Tensor, u: Tile) -> GmRegion:
        """The elements of a tile in global memory."""
        bits = bits_of(tensor)
        _, blocks, positions, _ = self.kernel.sizes
        pitch = blocks * positions * self.c0 * bits // 8
        size = ceil_div(u.positions * self.c0 * bits, 8)
        return tensor.at(0, size, base=f"map{bits}", rows=u.images, pitch=pitch)

    def _add(
        self, u: Tile, span: Span, tensor: Tensor, buffer: BufferHandle, values: SlotRegion
    ) -> None:
        """Add values to a sum; behind the last tile halve it and add it to memory."""
        k = self.k
        row = self.c0 * 4
        sums = buffer.next() if u.first else buffer.last()
        if u.first:
            k.vec_dup(sums.at(0, u.width * 4), 0.0, FP32)
        target = span.of(sums, 32)
        k.vec_binary("add", target, target, values, FP32)
        if not u.last:
            return
        positions = u.width // self.c0
        while positions > 1:
            half = positions // 2
            ahead = sums.at(0, half * row)
            behind = sums.at((positions - half) * row, half * row)
            k.vec_binary("add", ahead, ahead, behind, FP32)
            positions -= half
        k.data_move(tensor.at(0, row, base=tensor.name), sums.at(0, row), FP32, atomic=True)
