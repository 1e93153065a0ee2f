"""The vendor library's tiling of the input gradient of a 2-D layer (see ``library_910``).

M = blocks of positions of dx of one image, N = ci1, K = co1 * taps; A is dy, B the weights. Cores
share out parts of the batch, of ci1 and of M. The rule is that of
``conv2d_bp_input_cache_tiling.cc``, without its test of UB, which pictures of usual widths pass.
With a stride zeros are inserted into dy, but of a 1x1 layer without padding dy is multiplied as it
is and dx is zero between. That kernel is tiled like the general one here, as its own tilings come
from what is not public.
"""

from __future__ import annotations

from itertools import product
from math import lcm
from typing import NamedTuple

from npusim.base.records import replace
from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.vendor.library_910 import Piece, Rule, Tile, divisors, lowered, product_tiling
from npusim.language import Device, ceil_div
from npusim.problem.convolution import Convolution


class Parts(NamedTuple):
    """Parts of the batch, of N and of M, of which each core takes one."""

    batch: int
    n: int
    m: int


class Pieces(NamedTuple):
    """AL1 and BL1."""

    a: Piece
    b: Piece


class _Candidate(NamedTuple):
    """Pieces, and the elements that a core loads with them."""

    loads: int
    a: Piece
    b: Piece

    @property
    def pieces(self) -> Pieces:
        return Pieces(self.a, self.b)


class _Share(NamedTuple):
    """A core's work with so many parts: its loops, all cores used, and elements loaded."""

    loops: int
    used: int
    loads: int
    parts: Parts

    def before(self, best: _Share) -> bool:
        """True if the rule takes it in place of the ``best`` so far.

        With as many cores fewer loads are enough, whatever the loops.
        """
        if self.loops < best.loops or (self.loops == best.loops and self.used > best.used):
            return True
        cost = self.loads, -self.parts.batch * self.parts.n
        return self.used == best.used and cost < (best.loads, -best.parts.batch * best.parts.n)


class Input(Rule):
    """The rule for a layer on a chip."""

    @property
    def m(self) -> int:
        """Blocks of positions of an image."""
        return ceil_div(self.c.spatial[1] * self.c.spatial[2], 16)

    def _even(self, blocks: int) -> bool:
        """True if the last of pieces of so many blocks has a whole block, or none is cut."""
        return self._uncut or not 0 < self._area % (16 * blocks) < 16

    @property
    def _area(self) -> int:
        """Positions of an image."""
        return self.c.spatial[1] * self.c.spatial[2]

    @property
    def _uncut(self) -> bool:
        """True if no block of positions is cut."""
        return self._area % 16 == 0 or self._area <= 16

    def cores_used(self) -> Parts:
        """The parts that cores share: the fewest loops, then most cores, then the least loads."""
        c = self.c
        if c.n * self.m * c.cin1 < self.cores:
            return Parts(c.n, c.cin1, 1)
        parts = [
            Parts(batch, n, min(self.cores // (batch * n), self.m))
            for n in reversed(divisors(c.cin1, self.cores))
            for batch in reversed(divisors(c.n, self.cores))
            if batch * n <= self.cores
        ]
        best: _Share | None = None
        for candidate in filter(self._legal, parts):
            share = self._share(candidate)
            if best is None or share.before(best):
                best = share
        return best.parts if best else Parts(1, 1, 1)

    def _legal(self, parts: Parts) -> bool:
        """True if a core's rows of blocks are cut as the rule allows."""
        rows = ceil_div(self.m, parts.m)
        return self._even(rows) and (rows > 1 or self._uncut)

    def _share(self, parts: Parts) -> _Share:
        """The cost of so many parts."""
        c = self.c
        images = c.n // parts.batch
        rows = ceil_div(self.m, parts.m)
        columns = c.cin1 // parts.n
        if columns == 1:
            loops = images * ceil_div(rows, min(rows, 64))
        else:
            loops = images * rows * columns // min(rows * columns, 128)
        overlap = (c.kernel[1] - 1) // c.step(1) <= 1
        read = c.taps * self._area if overlap else c.out[1] * c.out[2]
        weights = parts.batch * parts.m * c.cin1 * c.taps * 256
        dy = parts.n * c.n * 16 * read
        used = parts.batch * parts.n * parts.m
        return _Share(loops, used, c.cout1 * (weights + dy), parts)

    def tile(self, parts: Parts) -> Tile:
        """The tile of L0 that loads least; of equals the largest, then the least square."""
        rows = ceil_div(self.m, parts.m)
        columns = self.c.cin1 // parts.n
        depths = divisors(self.c.cout1 * self.c.taps, self.l0)
        highest = [
            self._highest(n, k, rows)
            for n, k in product(reversed(divisors(columns, self.l0)), reversed(depths))
        ]
        tiles = [tile for tile in highest if tile] or [Tile(1, 1, 1)]

        def cost(t: Tile) -> tuple[int, int, int]:
            loads = ceil_div(rows, t.m) * columns + ceil_div(columns, t.n) * rows
            return loads, -t.m * t.n * t.k, -(max(t.m, t.k) // min(t.m, t.k))

        return min(tiles, key=cost)

    def _highest(self, n: int, k: int, rows: int) -> Tile | None:
        """The tile of so many columns and depth with most of ``rows``; None where none fits."""
        if n * k > self.l0:
            return None
        for m in range(min(self.l0 // k, self.l0c // 2 // n, rows), 0, -1):
            tile = Tile(m, n, k)
            if self._even(m) and self._least(tile, 1, 1):
                return tile
        return None

    def _dy(self, positions: int) -> int:
        """Elements of the rows of a block of co1, zeros inserted, for so many positions of dx."""
        c = self.c
        width = c.spatial[2]
        rows = c.kernel[1] - 1 + positions // width
        if positions % width:
            rows += 2
        return min(rows, c.out[1] * c.step(1)) * self._row

    @property
    def _row(self) -> int:
        """Elements of a row of a block of co1, zeros inserted."""
        return 16 * self.c.out[2] * self.c.step(2)

    def _least(self, t: Tile, slots_a: int, slots_b: int) -> bool:
        """True if the smallest pieces of both operands fit L1."""
        least = lcm(t.k, self.c.taps) // self.c.taps
        weights = least * self.c.taps * t.n * 256 * slots_b
        return least * self._dy(16 * t.m) * slots_a + weights <= self.l1

    def pieces(self, parts: Parts, t: Tile) -> Pieces | None:
        """AL1 and BL1 that load the fewest elements; None where nothing fits."""
        c = self.c
        depths = [d for d in divisors(c.cout1) if d * c.taps % t.k == 0]
        slots_a = 2 if self._least(t, 2, 2) else 1
        slots_b = 2 if self._least(t, slots_a, 2) else 1
        candidates: list[_Candidate] = []
        for k_b, k_a in product(depths, depths):
            if max(k_a, k_b) % min(k_a, k_b):
                continue
            a = Piece(k_a, 1, slots_a)
            for tiles in divisors(c.cin1 // parts.n // t.n) if k_b == c.cout1 else [1]:
                candidate = self._grown(parts, t, a, Piece(k_b, tiles, slots_b))
                if candidate is not None:
                    candidates.append(candidate)
        if not candidates:
            return None
        return min(candidates, key=lambda each: (each.loads, -each.a.k, -each.b.k)).pieces

    def _grown(self, parts: Parts, t: Tile, a: Piece, b: Piece) -> _Candidate | None:
        """Such pieces with the elements loaded: dy of all channels in as many rows as fit.

        A whole operand has one buffer. None where dy does not fit beside the weights.
        """
        c = self.c
        columns = c.cin1 // parts.n
        whole_b = b.k == c.cout1 and b.tiles * t.n == columns
        if whole_b:
            b = b._replace(slots=1)
        room = self.l1 - b.k * c.taps * b.tiles * t.n * 256 * b.slots
        if a.k == c.cout1:
            a = a._replace(tiles=self._tiles_of_dy(parts, t, room // a.slots))
        whole_a = a.k == c.cout1 and t.m * a.tiles >= ceil_div(self.m, parts.m)
        loads = self._loads(parts, t, a, b, whole=whole_a or whole_b)
        if whole_a and not whole_b:
            a = a._replace(slots=1)
        if a.k * self._dy(16 * t.m * a.tiles) * a.slots > room:
            return None
        return _Candidate(loads, a, b)

    def _tiles_of_dy(self, parts: Parts, t: Tile, room: int) -> int:
        """Tiles along M whose rows of dy, of all channels, fit in so many elements of L1."""
        c = self.c
        width = c.spatial[2]
        high = c.kernel[1]
        rows = room // (c.cout1 * self._row)
        positions = (rows - high) * width - 1 if rows > high + 1 else width
        return lowered(ceil_div(self._area, parts.m * 16 * t.m), positions // (16 * t.m))

    def _loads(self, parts: Parts, t: Tile, a: Piece, b: Piece, *, whole: bool) -> int:
        """Elements of both operands that a core loads; once each where one of them is ``whole``."""
        c = self.c
        columns = c.cin1 // parts.n
        rows = ceil_div(16 * ceil_div(self.m, parts.m), c.spatial[2]) + c.kernel[1] - 1
        need = min(ceil_div(rows, c.step(1)), c.out[1])
        dy = need * c.cout1 * c.out[2] * 16
        weights = c.cout1 * c.taps * 256 * columns
        if whole:
            return dy + weights
        rows_in_l1 = self._dy(16 * t.m * a.tiles) // self._row
        steps = ceil_div(need, ceil_div(rows_in_l1, c.step(1)))
        return steps * weights + ceil_div(columns, b.tiles * t.n) * dy


def input_tiling(c: Convolution, device: Device, cores: int) -> Tiling | None:
    """The tiling of the input gradient of ``c``; None where the rule finds nothing."""
    scattered = c.taps == 1 < max(c.stride) and not any(map(any, c.padding))
    shape = replace(c, spatial=c.out, stride=(1, 1, 1), outputs=None) if scattered else c
    rule = Input(shape, device, cores)
    parts = rule.cores_used()
    tile = rule.tile(parts)
    pieces = rule.pieces(parts, tile)
    if pieces is None:
        return None
    tiling = _kernel(rule, parts, tile, pieces, scattered=scattered)
    picture = 16 * tile.m // c.out[2] * c.step(1) * c.spatial[2]  # positions, in two buffers each
    zeros = scattered and 64 * (16 * tile.m + picture) <= rule.ub
    return replace(tiling, zeros=zeros)


def _kernel(rule: Input, parts: Parts, t: Tile, pieces: Pieces, *, scattered: bool) -> Tiling:
    """The rule's tiling as the kernel's."""
    c = rule.c
    _, h, w = c.spatial
    a = pieces.a
    b = pieces.b
    n = c.cin1 // parts.n
    deep_a = a.k == c.cout1
    deep_b = b.k == c.cout1
    m_steps = ceil_div(ceil_div(rule.m, parts.m), t.m * a.tiles)
    n_steps = n // (t.n * b.tiles)
    m_slowest = c.taps == 1 and deep_a >= deep_b and (deep_a > deep_b or n_steps >= m_steps)
    positions = ceil_div(h, parts.m) * w
    if scattered:
        a = a._replace(tiles=1)
        positions = 0
    return product_tiling(
        t,
        a,
        b,
        c.taps,
        (positions, n, c.n // parts.batch),
        form="phases" if scattered else "window",
        whole_rows=not scattered,
        l0c_slots=2,
        resident=deep_b and (not m_slowest or n_steps == 1),
        resident_input=deep_a and (m_slowest or m_steps == 1),
        n_slowest=not m_slowest and min(n_steps, m_steps) > 1,
    )
