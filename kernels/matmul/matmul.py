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

from npusim.base.records import replace
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
        t, depth = self.tiling, min(self.tiling.single_core_k or self.k, self.k)
        base_k = min(t.base_k, round_up(depth, max(16, self.c0)))
        steps = ceil_div(depth, base_k)
        return replace(
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
        return (self.a, self.b, *self.scales, *([self.bias] if self.bias else []), self.c)

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
    def needed_bytes(self) -> dict[str, int]:
        return {self.c.name: self.m * self.n * self.c.dtype.bytes}

    @property
    def sums(self) -> DType:
        """Type in which the cube adds up."""
        return INT32 if self.dtype.kind == "int" else FP32

    @property
    def atomic(self) -> bool:
        """Whether parts of K add into one C."""
        return 0 < self.tiling.single_core_k < self.k and len(self.c.shape) == 2

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The operands in the order in which their slabs are asked for."""
        t = self.tiling
        km, nk = self.layouts[0] == "ND_km", self.layouts[1].endswith("nk")
        rows, columns = (self.n, self.k) if nk else (self.k, self.n)
        down, along = (self.k, self.m // self.groups) if km else (self.m, self.k)
        a = Operand(self.a, "a", down, along, self.layouts[0] == "NZ")
        b = Operand(self.b, "b", rows, columns, self.layouts[1].startswith("NZ"))
        depth = round_up(self.k, t.base_k) if t.full_load_a else t.step_ka * t.base_k
        both = {
            "a": Source(a, "m", depth, t.l1a_slots, k_rows=km),
            "b": Source(b, "n", t.step_kb * t.base_k, t.l1b_slots, k_rows=not nk),
        }
        step = (t.step_scale or t.step_ka) * t.base_k
        slots = t.l1a_slots, t.l1b_slots
        scales = {
            f"scale_{side}": Source(Scales(one, f"scale_{side}", self.group), side, step, count)
            for side, one, count in zip("mn", self.scales, slots, strict=False)
        }
        order = ("b", "a") if t.b_before_a else ("a", "b")
        return scales | {name: both[name] for name in order}

    # -- tuning ----------------------------------------------------------------------------

    @property
    def before(self) -> tuple[Kernel, ...]:
        return (MemSet(self.c, few=True),) if self.atomic else ()

    @property
    def shape(self) -> Shape:
        """One of its products, as tilings are made for it."""
        math = "hf32" if self.hf32 else self.dtype.name
        out, groups = self.c.dtype, self.groups
        # Parts add up as they are, in a result that a vector core clears.
        splits = out is self.sums and groups == 1 and len(self.c.shape) == 2 and not self.whole_k
        sizes = self.m // groups, self.k, self.n
        biased, (a, b) = self.bias is not None, self.layouts
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
        other = replace(self.tiling, **order_of(self.shape, device, 0.25))
        return () if other == self.tiling else (replace(self, tiling=other),)

    def foreseen(
        self, alike: Sequence[Kernel], device: Device, cores: int
    ) -> list[tuple[float, Least] | None]:
        if any(layout.startswith("NZ") for layout in self.layouts) or not alike:
            return [None] * len(alike)
        space = Products(device, cores, (False, False), self.shape)
        t = space.given([cast(Matmul, one).ran for one in alike])
        columns = t["fits"].tolist(), t["cores"].tolist(), *foreseen(space, t)
        return [
            (time, Least(int(least), used, one.before)) if fits else None
            for one, fits, used, time, least in zip(alike, *columns, strict=True)
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
        t, table = self.tiling, self.table(cores)
        own = {"m": table.m, "n": table.n, "k": table.k, "start": np.zeros_like(table.k)}
        if t.stagger_k:
            step = lcm(t.step_ka, t.step_kb)
            own["start"] = table.core % ceil_div(table.k, step * t.base_k) * step
        bases = {name: source.first(table) for name, source in self.sources.items()}
        group = table.m0 // (self.m // self.groups)
        bases["b"] += group * (self.b.size_bytes // self.groups)
        if self.layouts[0] == "ND_km":  # rows of all groups are no rows of A
            across = self.m // self.groups * self.dtype.bytes
            bases["a"] += group * (self.a.size_bytes // self.groups - across)
        into = table.m0 * self.n + table.n0
        waits: Column = np.zeros(len(into), np.bool_)
        if self.handed is not None:
            block, waits = self.handed.places(table.core)
            into = block * prod(self.c.shape[1:])
        elif len(self.c.shape) == 3:
            into = into + table.part * self.m * self.n
        bases["c"] = into * self.c.dtype.bytes
        if self.bias is not None:
            bases["bias"] = table.n0 * self.bias.dtype.bytes
        later = successors(table.core)
        before = np.flatnonzero(later >= 0)
        present = np.zeros(len(later), np.bool_)
        if t.full_load_a:
            rows = np.stack([table.m0, table.m])
            present[later[before]] = (rows[:, before] == rows[:, later[before]]).all(0)
        seen = later >= 0 if t.preload else np.zeros_like(present)
        following = {f"next_{name}": np.where(seen, own[name][later], 0) for name in own}
        if t.preload:
            present[later[before]] = True
            bases |= {f"next_{name}": bases[name][later] for name in self.sources}
        columns = {**own, **following, "present": present, "waits": waits, "first": table.k0 == 0}
        found = Tasks(table.core, Tile, columns, bases)
        return with_meeting(found, cores, last=True) if self.meets else found

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
        self.kernel, self.k = kernel, k
        t, pad, dtype = kernel.tiling, max(16, kernel.c0), kernel.dtype
        depth = min(t.single_core_k or kernel.k, kernel.k)
        m, n, base_k = kernel.ran.base_m, kernel.ran.base_n, kernel.ran.base_k
        km = kernel.layouts[0] == "ND_km"
        across = {"m": round_up(m, pad) if km else m, "n": round_up(n, pad)}
        sources = kernel.sources.values()
        #: Base blocks after which all operands begin a new slab, and the way from one to the next.
        self.period = lcm(*(ceil_div(source.depth, t.base_k) for source in sources))
        self.strides = {s.operand.base: s.offset_along(self.period * t.base_k) for s in sources}
        self.l1 = self._slab_buffers(across, round_up(depth, pad))
        self.a0 = k.buffer("L0A", (m, base_k), dtype, slots=t.l0_slots, name="a_l0a")
        self.b0 = k.buffer("L0B", (base_k, n), dtype, slots=t.l0_slots, name="b_l0b")
        width = ceil_div(base_k, kernel.group)
        self.s0 = scale_slots(k, kernel.scales, (m, n), width, t.l0_slots)
        self.acc = k.buffer(
            "L0C", (m, n), kernel.sums, slots=t.l0c_slots, name="c_l0c", unit_flag=t.unit_flag
        )
        self.staging = self._staging(m, n)
        self.table = BiasTable(k, kernel.bias, n) if kernel.bias else None

    def _slab_buffers(self, size: dict[str, int], depth: int) -> dict[str, BufferHandle | Shared]:
        """L1 by operand; ``size`` are the padded extents across K, ``depth`` all of K."""
        shapes = {}
        for name, source in self.kernel.sources.items():
            slab, across = min(source.depth, depth), size[source.extent]
            shapes[name] = (across, slab), self.kernel.dtype
            if isinstance(source.operand, Scales):
                groups = ceil_div(slab, self.kernel.group)
                shapes[name] = (round_up(across, 32), groups), INT8
        first, second = list(shapes)[-2:]  # A and B come after scales
        (rows, slab), dtype = shapes[first]
        if self.kernel.tiling.paired:
            shapes[first] = (rows + shapes.pop(second)[0][0], slab), dtype
        found = {
            name: self.k.buffer(
                "L1",
                shape,
                dtype,
                slots=self.kernel.sources[name].slots,
                name=f"{name}_l1",
                own_banks=self.kernel.tiling.l1_halves,
            )
            for name, (shape, dtype) in shapes.items()
        }
        if self.kernel.tiling.paired:
            return {**found, second: Shared(found[first], rows * slab * self.kernel.dtype.bytes)}
        return dict(found)

    def _staging(self, m: int, n: int) -> BufferHandle | None:
        """Where a tile stops on its way out: pieces of rows, or of columns where FIX is missing."""
        if not self.kernel.tiling.through_ub:
            return self.k.fixpipe_staging(m, self.kernel.c.dtype, columns=n // 16)
        row = n * self.kernel.c.dtype.bytes
        fit = self.k.memory("UB").size_bytes // 2 // row // 16 * 16
        return self.k.buffer(
            "UB", (min(m, max(16, fit)), n), self.kernel.c.dtype, slots=2, name="c_ub"
        )

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
                    self._block(c, tile, feeds, (place, walk[place]))
        self._store(c, tile)
        if t.barrier:
            self.k.pipe_barrier()

    def _block(self, c: Slot, tile: Tile, feeds: dict[str, Feed], at: tuple[int, int]) -> None:
        """Sum the base block at a place of the walk along K, which begins at an element."""
        place, k0 = at
        for feed in feeds.values():
            feed.take(place)
        for feed in feeds.values():
            feed.ask(place)
        block = k0, min(self.kernel.tiling.base_k, tile.k - k0)
        self._multiply(c, tile, feeds, block, init=not place)

    def _feed(self, tile: Tile, name: str, walk: list[int]) -> Feed:
        """The slabs of an operand in this tile, and with preload the first of the next one."""
        source, t = self.kernel.sources[name], self.kernel.tiling
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
        a0, b0 = self.a0.next(), self.b0.next()
        dtype, of = self.kernel.dtype, self.kernel.sources
        load_left(self.k, a0, feeds["a"], tile.m, block, dtype, k_rows=of["a"].k_rows)
        load_right(self.k, b0, feeds["b"], tile.n, block, dtype, k_rows=of["b"].k_rows)
        scales = tuple(
            feeds[f"scale_{axis}"].scales(self.k, handle.next(), extent, block, self.kernel.group)
            for handle, axis, extent in zip(self.s0, "mn", (tile.m, tile.n), strict=False)
        )
        hf32, bias = self.kernel.hf32, self.bias if init else None
        sizes = tile.m, block[1], tile.n
        self.k.mmad(c, a0, b0, *sizes, dtype, init=init, hf32=hf32, scales=scales, bias=bias)

    def _store(self, c: Slot, tile: Tile) -> None:
        kernel, dtype, staging = self.kernel, self.kernel.c.dtype, self.staging
        e, atomic = dtype.bytes, kernel.atomic
        out = kernel.c.at(0, tile.n * e, base="c", rows=tile.m, pitch=kernel.c.shape[-1] * e)
        if tile.waits and kernel.handed is not None:
            kernel.handed.reuse(self.k)
        if kernel.tiling.through_ub and staging is not None:
            self.k.fixpipe_through_ub(out, c, tile.m, tile.n, dtype, staging=staging, atomic=atomic)
            return
        self.k.fixpipe(out, c, tile.m, tile.n, dtype, staging=staging, nd=True, atomic=atomic)
        if kernel.handed is not None:
            kernel.handed.give(self.k)
