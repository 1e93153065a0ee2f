"""Tiled matrix product C[M, N] = A[M, K] @ B[K, N].

A is row-major (``ND``) or ``NZ``; B is K x N row-major (``ND``), stored N x K (``ND_nk``), or
``NZ`` of K x N; C is row-major, or (parts, M, N) with one partial sum per part of K.

for tile (m, n), part of K, of this core:                      # one *unit*
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

from dataclasses import dataclass
from functools import partial
from math import lcm
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.dtypes import FP32, INT8, MX_BLOCK
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.dma import Window
from npusim.isa.operands import FRACTAL_BYTES, Slot, SlotRegion, Tensor
from npusim.kernels.parts.matmul_operands import Feed, Operand, Scales, Shared, Source
from npusim.kernels.parts.tile_order import Order, successors, tiles
from npusim.kernels.tilings.checks import check_tiling
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language
from npusim.program.recorder import BufferHandle


@dataclass(frozen=True, kw_only=True)
class Tiling(Order):
    """One mmad is base_m x base_k x base_n; a slab brings step_ka (B: step_kb) blocks to L1.

    ``unit_flag`` overlaps a tile's last mmad with its drain, and the drain with the next tile.
    ``preload`` asks for each slab one slab ahead; ``b_before_a`` copies B first; ``full_load_a``
    keeps all of K of A in L1 while the rows stay the same. ``stagger_k`` lets every core begin its
    walk along K elsewhere. ``barrier`` drains all pipes after each tile. ``through_ub`` stores over
    UB. ``l1_halves`` puts the slots of an operand into different halves of L1. One copy of scales
    serves ``step_scale`` base blocks (0: as many as a slab of A). ``paired`` puts the slabs of A
    and B into one slot, handed over as one.
    """

    base_m: int
    base_n: int
    base_k: int
    step_ka: int = 4
    step_kb: int = 4
    l1a_slots: int = 2
    l1b_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    unit_flag: bool = False
    preload: bool = False
    b_before_a: bool = False
    full_load_a: bool = False
    stagger_k: bool = False
    barrier: bool = False
    through_ub: bool = False
    l1_halves: bool = False
    step_scale: int = 0
    paired: bool = False

    def __post_init__(self) -> None:
        check_tiling(
            self,
            sixteens=("base_m", "base_n", "base_k"),
            positive=(
                *("step_ka", "step_kb", "l1a_slots", "l1b_slots", "l0_slots", "l0c_slots"),
                *("tail_m", "tail_n"),
            ),
        )
        self.check_order("step_scale")
        if self.preload and min(self.l1a_slots, self.l1b_slots) < 2:
            raise ArgumentError(
                f"tiling preload with {self.l1a_slots} slots for A and {self.l1b_slots} for B: the "
                "slab in use would be overwritten; give both 2 slots"
            )
        if self.paired and (self.step_ka, self.l1a_slots) != (self.step_kb, self.l1b_slots):
            raise ArgumentError(
                f"tiling paired with steps {self.step_ka}+{self.step_kb} and slots "
                f"{self.l1a_slots}+{self.l1b_slots}: A and B share slots; give both the same"
            )
        alone = self.preload or self.stagger_k or self.paired or self.single_core_k
        if self.full_load_a and alone:
            raise ArgumentError(
                "tiling full_load_a keeps all of K of A in one slab: it goes with none of preload, "
                "stagger_k, paired and single_core_k"
            )

    def __str__(self) -> str:
        switches = (
            *("unit_flag", "preload", "b_before_a", "full_load_a", "stagger_k", "barrier"),
            *("through_ub", "l1_halves", "paired"),
        )
        on = "".join(f", {name.replace('_', ' ')}" for name in switches if getattr(self, name))
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, step {self.step_ka}+{self.step_kb}, "
            f"slots L1 {self.l1a_slots}+{self.l1b_slots} L0 {self.l0_slots} L0C {self.l0c_slots}"
            f"{on}"
        )


#: How an operand may lie in GM.
LAYOUTS_A, LAYOUTS_B = ("ND", "NZ"), ("ND", "ND_nk", "NZ")


class Matmul(Kernel):
    """The kernel for tensors ``a``, ``b``, ``c``; M and N are those of ``c``.

    Where K is split, parts add atomically into a cleared ``c`` of two axes, or each writes its own
    (M, N) of a ``c`` of three. ``scales`` are the bytes of block-scaled A (M, K / block) and B
    (N, K / block); such products can be timed only. Raises ``ArgumentError`` for layouts and tile
    sizes that do not fit the type.
    """

    name: ClassVar[str] = "matmul"
    role: ClassVar[str] = "cube"

    def __init__(
        self,
        tiling: Tiling,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        *,
        layouts: tuple[str, str] = ("ND", "ND"),
        scales: tuple[Tensor, ...] = (),
    ) -> None:
        if layouts[0] not in LAYOUTS_A or layouts[1] not in LAYOUTS_B:
            raise ArgumentError(
                f"matmul operands are {layouts}; A is one of {', '.join(LAYOUTS_A)}, B of "
                f"{', '.join(LAYOUTS_B)}"
            )
        self.tiling, self.a, self.b, self.c, self.scales = tiling, a, b, c, scales
        self.m, self.n = c.shape[-2:]
        self.dtype, self.layouts = a.dtype, layouts
        self.k = self._depth()
        self.c0, self.group = 32 // self.dtype.bytes, MX_BLOCK // self.dtype.values
        self._check_blocks()
        self.tiling_text, self.sources = str(tiling), self._sources()
        self.atomic = 0 < tiling.single_core_k < self.k and len(c.shape) == 2

    def _depth(self) -> int:
        """K, from an operand that is not blocked if there is one."""
        if self.layouts[0] == "ND":
            return self.a.shape[1]
        if self.layouts[1] == "NZ":
            return self.a.shape[0] * (32 // self.dtype.bytes)
        return self.b.shape[0 if self.layouts[1] == "ND" else 1]

    def _check_blocks(self) -> None:
        """Blocks begin at whole columns of 32 bytes, and in NZ at whole fractals."""
        t, c0 = self.tiling, self.c0
        units = {"base_k": c0}
        if self.layouts[0] == "NZ":
            units["single_core_m"] = 16
        if self.layouts[1] == "NZ":
            units |= {"base_n": c0, "single_core_n": c0}
        for name, unit in units.items():
            if getattr(t, name) % unit:
                raise ArgumentError(
                    f"tiling {name} is {getattr(t, name)}; for {self.dtype} as "
                    f"{' and '.join(self.layouts)} it must be a multiple of {unit}"
                )
        if t.single_core_k % t.base_k:
            raise ArgumentError(
                f"tiling single_core_k is {t.single_core_k}; it must be a multiple of base_k = "
                f"{t.base_k}"
            )

    def _sources(self) -> dict[str, Source]:
        """The operands in the order in which their slabs are asked for."""
        t = self.tiling
        nk = self.layouts[1] == "ND_nk"
        rows, columns = (self.n, self.k) if nk else (self.k, self.n)
        a = Operand(self.a, "a", self.m, self.k, self.layouts[0] == "NZ")
        b = Operand(self.b, "b", rows, columns, self.layouts[1] == "NZ")
        depth = _up(self.k, t.base_k) if t.full_load_a else t.step_ka * t.base_k
        both = {
            "a": Source(a, "m", depth, t.l1a_slots),
            "b": Source(b, "n", t.step_kb * t.base_k, t.l1b_slots, k_rows=not nk),
        }
        step = (t.step_scale or t.step_ka) * t.base_k
        scales = {
            f"scale_{extent}": Source(
                Scales(tensor, f"scale_{extent}", self.group), extent, step, slots
            )
            for extent, tensor, slots in zip(
                "mn", self.scales, (t.l1a_slots, t.l1b_slots), strict=False
            )
        }
        order = ("b", "a") if t.b_before_a else ("a", "b")
        return scales | {name: both[name] for name in order}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.a, self.b, *self.scales, self.c)

    # -- units -----------------------------------------------------------------------------

    def units(self, cores: int) -> Units:
        t = self.tiling
        table = tiles((self.m, self.k, self.n), (t.base_m, t.base_n), t, cores)
        signature = {"m": table.m, "n": table.n, "k": table.k}
        if t.stagger_k:
            unit = lcm(t.step_ka, t.step_kb)
            signature["start"] = table.core % -(-table.k // (unit * t.base_k)) * unit
        bases = {name: source.first(table) for name, source in self.sources.items()}
        into = table.m0 * self.n + table.n0
        if len(self.c.shape) == 3:
            into = into + table.part * self.m * self.n
        bases["c"] = into * self.c.dtype.bytes
        later = successors(table.core)
        before = np.flatnonzero(later >= 0)
        if t.full_load_a:
            rows = np.stack([table.m0, table.m])
            signature["kept"] = np.zeros_like(later)
            signature["kept"][later[before]] = (rows[:, before] == rows[:, later[before]]).all(0)
        if t.preload:
            following = {name: np.where(later < 0, 0, signature[name][later]) for name in signature}
            signature |= {f"next_{name}": column for name, column in following.items()}
            signature["ahead"] = np.zeros_like(later)
            signature["ahead"][later[before]] = 1
            bases |= {f"next_{name}": bases[name][later] for name in self.sources}
        return Units(table.core, signature, bases)

    # -- buffers ---------------------------------------------------------------------------

    def buffers(self, k: Language) -> None:
        t, pad = self.tiling, max(16, self.c0)
        depth = min(t.single_core_k or self.k, self.k)
        base_k = min(t.base_k, _up(depth, pad))
        m, n = min(t.base_m, _up(self.m, 16)), min(t.base_n, _up(self.n, 16))
        self.l1 = self._slab_buffers(k, {"m": m, "n": _up(n, pad)}, _up(depth, pad))
        self.a0 = k.buffer("L0A", (m, base_k), self.dtype, slots=t.l0_slots, name="a_l0a")
        self.b0 = k.buffer("L0B", (base_k, n), self.dtype, slots=t.l0_slots, name="b_l0b")
        width = ceil_div(base_k, self.group)
        self.s0 = [
            k.buffer(memory, (rows, width), INT8, slots=t.l0_slots, name=f"{scales.name}_l0")
            for rows, memory, scales in zip((m, n), ("L0A_MX", "L0B_MX"), self.scales, strict=False)
        ]
        self.acc = k.buffer(
            "L0C", (m, n), FP32, slots=t.l0c_slots, name="c_l0c", unit_flag=t.unit_flag
        )
        self.staging = self._staging(k, m, n)

    def _slab_buffers(
        self, k: Language, size: dict[str, int], depth: int
    ) -> dict[str, BufferHandle | Shared]:
        """L1 by operand; ``size`` are the padded extents across K, ``depth`` all of K."""
        shapes = {}
        for name, source in self.sources.items():
            slab, scale = min(source.depth, depth), isinstance(source.operand, Scales)
            shape = (size[source.extent], ceil_div(slab, self.group) if scale else slab)
            shapes[name] = shape, INT8 if scale else self.dtype
        first, second = list(shapes)[-2:]  # A and B come after scales
        (rows, slab), kind = shapes[first]
        if self.tiling.paired:
            shapes[first] = (rows + shapes.pop(second)[0][0], slab), kind
        found = {
            name: k.buffer(
                "L1",
                shape,
                kind,
                slots=self.sources[name].slots,
                name=f"{name}_l1",
                own_banks=self.tiling.l1_halves,
            )
            for name, (shape, kind) in shapes.items()
        }
        if self.tiling.paired:
            return {**found, second: Shared(found[first], rows * slab * self.dtype.bytes)}
        return dict(found)

    def _staging(self, k: Language, m: int, n: int) -> BufferHandle | None:
        """Where a tile stops on its way out: pieces of rows, or of columns where FIX is missing."""
        if not self.tiling.through_ub:
            return k.fixpipe_staging(m, self.c.dtype, columns=n // 16)
        row = n * self.c.dtype.bytes
        fit = k.device.memories["UB"].size_bytes // 2 // row // 16 * 16
        return k.buffer("UB", (min(m, max(16, fit)), n), self.c.dtype, slots=2, name="c_ub")

    # -- one tile --------------------------------------------------------------------------

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        t = self.tiling
        count = ceil_div(unit.k, t.base_k)
        start = unit.start if t.stagger_k else 0
        walk = [(start + i) % count * t.base_k for i in range(count)]
        feeds = {name: self._feed(k, unit, name, walk) for name in self.sources}
        c = self.acc.next()
        for place, k0 in enumerate(walk):
            for feed in feeds.values():
                feed.take(place)
            for feed in feeds.values():
                feed.ask(place)
            self._multiply(k, c, unit, feeds, (k0, min(t.base_k, unit.k - k0)), init=not place)
        self._store(k, c, unit)
        if t.barrier:
            k.pipe_barrier()

    def _feed(self, k: Language, unit: SimpleNamespace, name: str, walk: list[int]) -> Feed:
        """The slabs of an operand in this tile, and with preload the first of the next one."""
        source, t = self.sources[name], self.tiling
        following = None
        if t.preload and unit.next_m:
            first = unit.next_start * t.base_k if t.stagger_k else 0
            following = source.slab(first, unit.next_k, ahead=True)
        return Feed(
            self.l1[name],
            source.begins(walk, unit.k),
            partial(source.load, k, unit),
            preload=t.preload,
            following=following,
            present=bool(unit.ahead if t.preload else name == "a" and t.full_load_a and unit.kept),
        )

    def _multiply(
        self,
        k: Language,
        c: Slot,
        unit: SimpleNamespace,
        feeds: dict[str, Feed],
        block: tuple[int, int],
        *,
        init: bool,
    ) -> None:
        """One base block along K, ``block`` = (first element, extent): L1 to L0, and the mmad."""
        a0, b0 = self.a0.next(), self.b0.next()
        self._load_a(k, a0, feeds["a"], unit.m, block)
        self._load_b(k, b0, feeds["b"], unit.n, block)
        scales = tuple(
            self._load_scales(k, handle.next(), feeds[f"scale_{extent}"], extents, block)
            for handle, extent, extents in zip(self.s0, "mn", (unit.m, unit.n), strict=False)
        )
        k.mmad(c, a0, b0, unit.m, block[1], unit.n, self.dtype, init=init, scales=scales)

    def _load_a(self, k: Language, a0: Slot, feed: Feed, m: int, block: tuple[int, int]) -> None:
        """A block of NZ columns to L0A: a load3d with a 1x1 filter walks rows as positions."""
        m16 = _up(m, 16)
        count = ceil_div(block[1], self.c0)
        k.load3d(
            a0.at(0, m16 * count * 32),
            feed.slot.at(0, ceil_div(feed.slab.size, self.c0) * m16 * 32),
            Window(h=1, w=m16),
            self.dtype,
            m=(0, m),
            k=(block[0] - feed.slab.k0, block[1]),
        )

    def _load_b(self, k: Language, b0: Slot, feed: Feed, n: int, block: tuple[int, int]) -> None:
        """A block to L0B: of N x K its fractals as they lie, of K x N a load3d along positions."""
        first, count = block[0] - feed.slab.k0, ceil_div(block[1], self.c0)
        n1 = ceil_div(n, 16)
        if not self.sources["b"].k_rows:
            start = first // self.c0 * n1
            k.load2d(b0, feed.slot.fractals(start, count * n1), self.dtype)
            return
        rows = _up(feed.slab.size, 16)
        k.load3d(
            b0.at(0, n1 * count * FRACTAL_BYTES),
            feed.slot.at(0, ceil_div(n, self.c0) * rows * 32),
            Window(h=1, w=rows),
            self.dtype,
            m=(first, block[1]),
            k=(0, n),
        )

    def _load_scales(
        self, k: Language, slot: Slot, feed: Feed, rows: int, block: tuple[int, int]
    ) -> SlotRegion:
        group = self.group
        width, pitch = ceil_div(block[1], group), ceil_div(feed.slab.size, group)
        held = slot.at(0, width, rows=rows, pitch=width)
        first = (block[0] - feed.slab.k0) // group
        k.data_move(held, feed.slot.at(first, width, rows=rows, pitch=pitch), INT8)
        return held

    def _store(self, k: Language, c: Slot, unit: SimpleNamespace) -> None:
        e, size, kind, staging = self.c.dtype.bytes, (unit.m, unit.n), self.c.dtype, self.staging
        out = self.c.at(0, unit.n * e, base="c", rows=unit.m, pitch=self.n * e)
        if self.tiling.through_ub and staging is not None:
            k.fixpipe_through_ub(out, c, *size, kind, staging=staging, atomic=self.atomic)
            return
        k.fixpipe(out, c, *size, kind, staging=staging, nd=True, atomic=self.atomic)


def _up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit
