"""Tiled matrix product C[M, N] = A[M, K] @ B[K, N].

A is row-major (``ND``), stored K x M (``ND_km``), or ``NZ``; B is K x N row-major (``ND``), stored
N x K (``ND_nk``), or ``NZ`` of K x N or of N x K (``NZ_nk``); C is row-major, (parts, M, N) with
one partial sum per part of K, or blocks in which tiles are handed over to vector cores.

for tile (m, n), part of K, of this core:                      # one task
    for base block along K:
        at the first of a slab of A:  L1 <- A slab             # MTE2, as NZ
        at the first of a slab of B:  L1 <- B slab
        L0A <- A block   L0B <- B block                        # MTE1
        L0C += L0A @ L0B                                       # M
    C tile <- L0C                                              # FIX (or V, MTE3)

With ``preload`` a slab is asked for one slab ahead, across tiles too. Slots make it a serial or an
overlapped schedule: one everywhere is a library's simplest template, two its pipelined ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from math import lcm, prod
from typing import ClassVar, cast

import numpy as np

from npusim.base.records import replace, with_values
from npusim.kernels.estimate.costs import in_l2
from npusim.kernels.estimate.fit import no_tile
from npusim.kernels.estimate.pipeline import foreseen, leading_here
from npusim.kernels.matmul.bias_table import BiasTable
from npusim.kernels.matmul.lesser import lesser
from npusim.kernels.matmul.operands import (
    Feed,
    Operand,
    Scales,
    Shared,
    Source,
    Tile,
    load_left,
    load_right,
    periods,
    scale_slots,
    steps,
)
from npusim.kernels.matmul.space import Products
from npusim.kernels.matmul.tiling import Shape, Tiling, order_of
from npusim.kernels.parts.hand_over import HandOver, with_meeting
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.parts.tile_order import ORDERS, Tiles, successors, tiles
from npusim.kernels.parts.tiled import Tiled
from npusim.language import (
    FP32,
    INT8,
    INT32,
    MX_BLOCK,
    ArgumentError,
    BufferHandle,
    Column,
    Device,
    DType,
    IntArray,
    Kernel,
    Language,
    Least,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    round_up,
)
from npusim.problem.work import PRODUCT

__all__ = ["Matmul", "Tiling"]


@dataclass(frozen=True)
class Matmul(Tiled):
    """The kernel for tensors ``a``, ``b``, ``c``; M and N are those of ``c``.

    Where K is split, parts add atomically into a cleared ``c`` of two axes, or each writes its own
    (M, N) of a ``c`` of three. ``scales`` are the bytes of block-scaled A (M, K / block) and B
    (N, K / block); such products can be timed only. With ``handed`` a tile is left in a block of
    ``c`` (blocks, rows, columns) for vector cores; with ``meets`` all cores meet at the end: parts
    of kernels on both kinds of cores. ``groups`` equal products follow each other: A, B and C of
    each lie behind those of the one before, along the first axis. ``hf32`` rounds fp32 operands on
    their way into the cube. C begins as ``bias`` (N,), fp16, fp32 or, of integers, int32. With
    ``whole_k`` no tiling is chosen that splits K, so that sums are the same in every run. Raises
    ``ArgumentError`` for layouts and sizes unfit for the type.
    """

    tiling: Tiling
    a: Tensor
    b: Tensor
    c: Tensor
    layouts: tuple[str, str] = ("ND", "ND")
    scales: tuple[Tensor, ...] = ()
    handed: HandOver | None = None
    meets: bool = False
    groups: int = 1
    hf32: bool = False
    bias: Tensor | None = None
    whole_k: bool = False

    name: ClassVar[str] = "matmul"
    library: ClassVar[tuple[str, ...]] = ("MatMul",)

    def __post_init__(self) -> None:
        """Blocks begin at whole columns of 32 bytes, and in NZ at whole fractals."""
        t = self.tiling
        for name, step in steps(self.layouts, self.c0).items():
            if getattr(t, name) % step:
                raise ArgumentError(
                    f"tiling {name} is {getattr(t, name)}; for {self.dtype} as "
                    f"{' and '.join(self.layouts)} it must be a multiple of {step}"
                )
        if t.single_core_k % t.base_k:
            raise ArgumentError(
                f"tiling single_core_k is {t.single_core_k}; it must be a multiple of base_k = "
                f"{t.base_k}"
            )

    @cached_property
    def ran(self) -> Tiling:
        """The tiling with the sizes that the product leaves of it."""
        t = self.tiling
        depth = min(t.single_core_k or self.k, self.k)
        base_k = min(t.base_k, round_up(depth, max(16, self.c0)))
        steps = ceil_div(depth, base_k)
        return with_values(
            t,
            base_m=min(t.base_m, round_up(self.m // self.groups, 16)),
            base_n=min(t.base_n, round_up(self.n, 16)),
            base_k=base_k,
            # What takes all of K is no part of it, and base_k may have become smaller.
            single_core_k=t.single_core_k if t.single_core_k < self.k else 0,
            step_ka=min(t.step_ka, steps),
            step_kb=min(t.step_kb, steps),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        operands = [self.a, self.b, *self.scales]
        if self.bias:
            operands.append(self.bias)
        return (*operands, self.c)

    @property
    def dtype(self) -> DType:
        """Type of A and B."""
        return self.a.dtype

    @property
    def c0(self) -> int:
        """Elements in a column of NZ."""
        return 32 // self.dtype.bytes

    @property
    def group(self) -> int:
        """Elements of a block-scaled type that share a scale."""
        return MX_BLOCK // self.dtype.values

    @property
    def m(self) -> int:
        """Rows of C."""
        return self.handed.m if self.handed is not None else self.c.shape[-2]

    @property
    def n(self) -> int:
        """Columns of C."""
        return self.handed.n if self.handed is not None else self.c.shape[-1]

    @cached_property
    def k(self) -> int:
        """K, from an operand that is not blocked if there is one."""
        if self.layouts[0] == "ND":
            return self.a.shape[1]
        if self.layouts[0] == "ND_km":
            return self.a.shape[0] // self.groups
        if self.layouts[1].startswith("NZ"):
            return self.a.shape[0] * self.c0
        return self.b.shape[1] if self.layouts[1] == "ND_nk" else self.b.shape[0] // self.groups

    @property
    def useful_macs(self) -> int:
        return self.m * self.k * self.dtype.values * self.n

    @property
    def work_class(self) -> str:
        return PRODUCT

    @property
    def needed_bytes(self) -> dict[str, int]:
        return {self.c.name: self.m * self.n * self.c.dtype.bytes}

    @property
    def sums(self) -> DType:
        """Type in which the cube adds up."""
        return INT32 if self.dtype.kind == "int" else FP32

    @property
    def atomic(self) -> bool:
        """True if parts of K add into one C."""
        return 0 < self.tiling.single_core_k < self.k and len(self.c.shape) == 2

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The operands in the order in which their slabs are asked for."""
        t = self.tiling
        sources: dict[str, Source] = {}
        step = (t.step_scale or t.step_ka) * t.base_k
        sides = zip("mn", self.scales, (t.l1a_slots, t.l1b_slots), strict=False)
        for side, tensor, slots in sides:
            name = f"scale_{side}"
            sources[name] = Source(Scales(tensor, name, self.group), side, step, slots)
        if t.b_before_a:
            return {**sources, "b": self._source_b(), "a": self._source_a()}
        return {**sources, "a": self._source_a(), "b": self._source_b()}

    def _source_a(self) -> Source:
        """The way of A into L1."""
        t = self.tiling
        k_rows = self.layouts[0] == "ND_km"
        rows, columns = (self.k, self.m // self.groups) if k_rows else (self.m, self.k)
        a = Operand(self.a, "a", rows, columns, self.layouts[0] == "NZ")
        depth = round_up(self.k, t.base_k) if t.full_load_a else t.step_ka * t.base_k
        return Source(a, "m", depth, t.l1a_slots, k_rows=k_rows)

    def _source_b(self) -> Source:
        """The way of B into L1."""
        t = self.tiling
        k_rows = not self.layouts[1].endswith("nk")
        rows, columns = (self.k, self.n) if k_rows else (self.n, self.k)
        b = Operand(self.b, "b", rows, columns, self.layouts[1].startswith("NZ"))
        return Source(b, "n", t.step_kb * t.base_k, t.l1b_slots, k_rows=k_rows)

    # -- tuning ----------------------------------------------------------------------------

    @property
    def before(self) -> tuple[Kernel, ...]:
        return (MemSet(self.c, few=True),) if self.atomic else ()

    @property
    def shape(self) -> Shape:
        """One of its products, as tilings are made for it."""
        math = "hf32" if self.hf32 else self.dtype.name
        out = self.c.dtype
        groups = self.groups
        # Parts add up as they are, in a result that a vector core clears.
        splits = out is self.sums and groups == 1 and len(self.c.shape) == 2 and not self.whole_k
        sizes = self.m // groups, self.k, self.n
        biased = self.bias is not None
        (a, b) = self.layouts
        lie = (a == "ND_km", b.endswith("nk")), a[:2] == b[:2] == "NZ"
        return Shape(*sizes, self.dtype, out, math, groups, splits, biased, None, *lie)

    def spaces(self, device: Device, cores: int, held: tuple[bool, ...]) -> list[Products]:
        # Where there is no way from UB nothing could clear the result.
        shape = self.shape._replace(splits=self.shape.splits and device.has_path("UB", "GM"))
        space = Products(device, cores, held[:2], shape)
        if not len(space.rows["cores"]):
            raise no_tile(device)
        return [space]

    def contenders(
        self, device: Device, cores: int, few: int, warm: Collection[str] = ()
    ) -> tuple[Iterable[tuple[float, Kernel]], Iterable[tuple[float, Kernel]]]:
        """See ``Kernel.contenders``."""
        (space,) = self.spaces(device, cores, in_l2(device, warm, *self.tensors))
        leaders = leading_here(space, few)
        if not leaders:
            return [], []
        time, leader = leaders[0]
        return self._all_with(leaders), self._all_with(lesser(space, leader, time))

    def as_with_less_l2(self, device: Device) -> Iterable[Kernel]:
        """By windows of tiles, where a quarter of the L2 cannot hold the operands."""
        tiling = replace(self.tiling, **order_of(self.shape, device, 0.25))
        return () if tiling == self.tiling else (replace(self, tiling=tiling),)

    def foreseen(
        self, alike: Sequence[Kernel], device: Device, cores: int
    ) -> list[tuple[float, Least] | None]:
        if any(layout.startswith("NZ") for layout in self.layouts) or not alike:
            return [None] * len(alike)
        space = Products(device, cores, (False, False), self.shape)
        t = space.given([cast(Matmul, kernel).ran for kernel in alike])
        columns = t["fits"].tolist(), t["cores"].tolist(), *foreseen(space, t)
        return [
            (time, Least(int(least), used, kernel.before)) if fits else None
            for kernel, fits, used, time, least in zip(alike, *columns, strict=True)
        ]

    def variants(self, tiling: Tiling, cores: int) -> Iterator[Tiling]:
        """Orders of tiles, where a core has several, and slabs that are asked for ahead."""
        tiles = self.groups * ceil_div(self.m // self.groups, tiling.base_m)
        several = tiles * ceil_div(self.n, tiling.base_n) > cores
        for order, ahead in product(ORDERS if several else ORDERS[:1], (False, True)):
            yield replace(tiling, **ORDERS[0] | order, preload=ahead)

    # -- who computes what -----------------------------------------------------------------

    def tasks(self, cores: int) -> Tasks[Tile]:
        """The tiles of every core, each with what it needs to know of the next."""
        t = self.tiling
        table = self.table(cores)
        count = len(table.core)
        bases = self._bases(table)
        waits: Column = np.zeros(count, np.bool_)
        if self.handed is not None:
            waits = self.handed.places(table.core)[1]
        later = successors(table.core)
        followed = np.flatnonzero(later >= 0)
        present = np.zeros(count, np.bool_)
        if t.full_load_a:
            rows = np.stack([table.m0, table.m])
            same = (rows[:, followed] == rows[:, later[followed]]).all(0)
            present[later[followed]] = same
        tile = {"m": table.m, "n": table.n, "k": table.k, "start": np.zeros_like(table.k)}
        if t.stagger_k:
            step = lcm(t.step_ka, t.step_kb)
            tile["start"] = table.core % ceil_div(table.k, step * t.base_k) * step
        following = {f"next_{name}": np.zeros_like(column) for name, column in tile.items()}
        if t.preload:
            for name, column in tile.items():
                following[f"next_{name}"] = np.where(later >= 0, column[later], 0)
            present[later[followed]] = True
            bases |= {f"next_{name}": bases[name][later] for name in self.sources}
        columns = {
            **tile,
            **following,
            "present": present,
            "waits": waits,
            "first": table.k0 == 0,
        }
        tasks = Tasks(table.core, Tile, columns, bases)
        return with_meeting(tasks, cores, last=True) if self.meets else tasks

    def _bases(self, table: Tiles) -> dict[str, IntArray]:
        """Byte offsets of each tile's first elements."""
        bases = {name: source.first(table) for name, source in self.sources.items()}
        group = table.m0 // (self.m // self.groups)
        bases["b"] += group * (self.b.size_bytes // self.groups)
        if self.layouts[0] == "ND_km":  # rows of all groups are no rows of A
            across = self.m // self.groups * self.dtype.bytes
            bases["a"] += group * (self.a.size_bytes // self.groups - across)
        if self.handed is not None:
            element = self.handed.places(table.core)[0] * prod(self.c.shape[1:])
        else:
            element = table.m0 * self.n + table.n0
            if len(self.c.shape) == 3:
                element = element + table.part * self.m * self.n
        bases["c"] = element * self.c.dtype.bytes
        if self.bias is not None:
            bases["bias"] = table.n0 * self.bias.dtype.bytes
        return bases

    def table(self, cores: int) -> Tiles:
        """The tiles and their cores."""
        t = self.tiling
        shape = self.m // self.groups, self.k, self.n
        return tiles(shape, (t.base_m, t.base_n), t, cores, self.groups)

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        return Plan(self.tasks(cores), _Nest(self, k).emit)


class _Nest:
    """The program of a tile, on the buffers of one core."""

    def __init__(self, kernel: Matmul, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        t = kernel.tiling
        dtype = kernel.dtype
        m = kernel.ran.base_m
        n = kernel.ran.base_n
        base_k = kernel.ran.base_k
        #: Base blocks after which all operands begin a new slab, and the way from one to the next.
        sources = kernel.sources.values()
        self.period = lcm(*(ceil_div(source.depth, t.base_k) for source in sources))
        self.strides = {s.operand.base: s.offset_along(self.period * t.base_k) for s in sources}
        self.l1 = self._slab_buffers()
        self.a0 = k.buffer("L0A", (m, base_k), dtype, slots=t.l0_slots, name="a_l0a")
        self.b0 = k.buffer("L0B", (base_k, n), dtype, slots=t.l0_slots, name="b_l0b")
        width = ceil_div(base_k, kernel.group)
        self.s0 = scale_slots(k, kernel.scales, (m, n), width, t.l0_slots)
        self.acc = k.buffer(
            "L0C", (m, n), kernel.sums, slots=t.l0c_slots, name="c_l0c", unit_flag=t.unit_flag
        )
        self.staging = self._staging(m, n)
        self.table = BiasTable(k, kernel.bias, n) if kernel.bias else None

    def _across(self, side: str) -> int:
        """The extent of a slab across K, along "m" or "n", padded where L1 needs it."""
        pad = max(16, self.kernel.c0)
        if side == "n":
            return round_up(self.kernel.ran.base_n, pad)
        m = self.kernel.ran.base_m
        return round_up(m, pad) if self.kernel.layouts[0] == "ND_km" else m

    def _slab_buffers(self) -> dict[str, BufferHandle | Shared]:
        """The buffers in L1 by operand; with ``paired`` A and B share one."""
        kernel = self.kernel
        t = kernel.tiling
        pad = max(16, kernel.c0)
        all_k = round_up(min(t.single_core_k or kernel.k, kernel.k), pad)
        buffers: dict[str, BufferHandle | Shared] = {}
        slabs: dict[str, tuple[int, int]] = {}
        for name, source in kernel.sources.items():
            depth = min(source.depth, all_k)
            across = self._across(source.extent)
            if isinstance(source.operand, Scales):
                shape = (round_up(across, 32), ceil_div(depth, kernel.group))
                buffers[name] = self._slab_buffer(name, shape, INT8)
            else:
                slabs[name] = across, depth
        if not t.paired:
            for name, shape in slabs.items():
                buffers[name] = self._slab_buffer(name, shape, kernel.dtype)
            return buffers
        first, second = slabs
        rows, depth = slabs[first]
        shared = self._slab_buffer(first, (rows + slabs[second][0], depth), kernel.dtype)
        buffers[first] = shared
        buffers[second] = Shared(shared, rows * depth * kernel.dtype.bytes)
        return buffers

    def _slab_buffer(self, name: str, shape: tuple[int, int], dtype: DType) -> BufferHandle:
        """The slots of an operand in L1."""
        return self.k.buffer(
            "L1",
            shape,
            dtype,
            slots=self.kernel.sources[name].slots,
            name=f"{name}_l1",
            own_banks=self.kernel.tiling.l1_halves,
        )

    def _staging(self, m: int, n: int) -> BufferHandle | None:
        """The buffer of a tile on its way out: pieces of rows, or columns where FIX is missing."""
        dtype = self.kernel.c.dtype
        if not self.kernel.tiling.through_ub:
            return self.k.fixpipe_staging(m, dtype, columns=n // 16)
        fit = self.k.memory("UB").size_bytes // 2 // (n * dtype.bytes) // 16 * 16
        return self.k.buffer("UB", (min(m, max(16, fit)), n), dtype, slots=2, name="c_ub")

    def emit(self, tile: Tile) -> None:
        """Sum a tile along K and store it; one without rows is where all cores meet."""
        if not tile.m:
            self.k.core_barrier()
            return
        t = self.kernel.tiling
        count = ceil_div(tile.k, t.base_k)
        walk = [(tile.start + i) % count * t.base_k for i in range(count)]
        feeds = {name: self._feed(tile, name, walk) for name in self.kernel.sources}
        c = self.acc.next()
        self.bias = self.table.load(tile.n) if self.table and tile.first else None
        for first, many in periods(walk, self.period, t.base_k, tile.k, ahead=t.preload):
            for _ in self.k.loop(many, **self.strides):
                for place in range(first, min(first + self.period, count)):
                    self._block(c, tile, feeds, place, walk[place])
        self._store(c, tile)
        if t.barrier:
            self.k.pipe_barrier()

    def _block(self, c: Slot, tile: Tile, feeds: dict[str, Feed], place: int, k0: int) -> None:
        """Sum the base block at a place of the walk along K, which begins at element ``k0``."""
        for feed in feeds.values():
            feed.take(place)
        for feed in feeds.values():
            feed.ask(place)
        block = k0, min(self.kernel.tiling.base_k, tile.k - k0)
        self._multiply(c, tile, feeds, block, init=not place)

    def _feed(self, tile: Tile, name: str, walk: list[int]) -> Feed:
        """The slabs of an operand in this tile, and with preload the first of the next one."""
        source = self.kernel.sources[name]
        t = self.kernel.tiling
        following = None
        if t.preload and tile.next_m:
            following = source.slab(tile.next_start * t.base_k, tile.next_k, ahead=True)
        return Feed(
            self.l1[name],
            source.begins(walk, tile.k),
            partial(source.load, self.k, tile),
            preload=t.preload,
            following=following,
            present=tile.present and (t.preload or name == "a"),
        )

    def _multiply(
        self, c: Slot, tile: Tile, feeds: dict[str, Feed], block: tuple[int, int], *, init: bool
    ) -> None:
        """One base block along K, ``block`` = (first element, extent): L1 to L0, and the mmad."""
        k = self.k
        kernel = self.kernel
        sources = kernel.sources
        a0 = self.a0.next()
        b0 = self.b0.next()
        load_left(k, a0, feeds["a"], tile.m, block, kernel.dtype, k_rows=sources["a"].k_rows)
        load_right(k, b0, feeds["b"], tile.n, block, kernel.dtype, k_rows=sources["b"].k_rows)
        scales = tuple(
            feeds[f"scale_{axis}"].scales(k, buffer.next(), extent, block, kernel.group)
            for buffer, axis, extent in zip(self.s0, "mn", (tile.m, tile.n), strict=False)
        )
        k.mmad(
            c,
            a0,
            b0,
            tile.m,
            block[1],
            tile.n,
            kernel.dtype,
            init=init,
            hf32=kernel.hf32,
            scales=scales,
            bias=self.bias if init else None,
        )

    def _store(self, c: Slot, tile: Tile) -> None:
        """C <- the tile, or its block for vector cores."""
        kernel = self.kernel
        dtype = kernel.c.dtype
        staging = self.staging
        pitch = kernel.c.shape[-1] * dtype.bytes
        out = kernel.c.at(0, tile.n * dtype.bytes, base="c", rows=tile.m, pitch=pitch)
        if tile.waits and kernel.handed is not None:
            kernel.handed.reuse(self.k)
        if kernel.tiling.through_ub and staging is not None:
            self.k.fixpipe_through_ub(
                out, c, tile.m, tile.n, dtype, staging=staging, atomic=kernel.atomic
            )
            return
        self.k.fixpipe(
            out, c, tile.m, tile.n, dtype, staging=staging, nd=True, atomic=kernel.atomic
        )
        if kernel.handed is not None:
            kernel.handed.give(self.k)
