"""The vendor library's tiling of the filter gradient of a 2-D layer (see ``library_910``).

M = co1, N = ci1 * taps, K = blocks of positions of one image; A is dy, B is img2col of x. Tiles of
L0 and what L1 holds are those of ``dw_cache_tiling.cc``, whose slip here (a cost that is never
above that of the candidate before) is in what is left out: how cores share out dw. By the rule up
to twice as many blocks as there are cores, most of them parts of the batch and of the positions,
each add a whole dw in memory: 600 MB for a 7x7 layer of 512 channels, several times as long as
such kernels take. Here all tiles of dw are shared out, in as few parts of K as give every core as
many. Also left out are layouts of L1 with a whole operand, which are for blocks of one image.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, isqrt
from typing import NamedTuple

from npusim.kernels.filter_gradient.tiling import Tiling, cut_plane
from npusim.kernels.vendor.cann_rule import rows_of
from npusim.kernels.vendor.library_910 import Piece, Rule, Tile, around, divisors, lowered
from npusim.language import Device, ceil_div
from npusim.problem.convolution import Convolution


class _Proposal(NamedTuple):
    """A tile of L0, and the blocks that all tiles load with it."""

    loads: int
    tile: Tile

    def before(self, best: _Proposal) -> bool:
        """True if it loads less than the ``best`` so far, or as much and is larger."""
        if self.loads != best.loads:
            return self.loads < best.loads
        m, n, k = self.tile
        other_m, other_n, other_k = best.tile
        if m * n * k <= other_m * other_n * other_k:
            return False
        return m * n * m * n * k >= other_m * other_n * other_m * other_n * other_k


class Filter(Rule):
    """The rule for a layer on a chip."""

    @property
    def whole(self) -> Tile:
        """All that there is to add up, of K of one image."""
        plan = self.c.plan
        (_, ho, wo) = self.c.out
        return Tile(plan.cout_g // 16, plan.cin1_g * self.c.taps, ceil_div(ho * wo, 16))

    def x(self, blocks: int, n: int) -> int:
        """Elements of the rows of x that so many position blocks read, of all planes of ``n``."""
        rows = (rows_of(16 * blocks, self.c.out[2]) - 1) * self.c.step(1) + self.c.kernel[1]
        return rows * self.c.spatial[2] * 16 * ceil_div(n, self.c.taps)

    def fits(self, t: Tile, dy: Piece, x: Piece) -> bool:
        """True if L1 holds both pieces."""
        return dy.k * t.m * 256 * dy.slots + self.x(x.k, t.n) * x.slots <= self.l1

    def tile(self, b: Tile) -> tuple[Tile, int] | None:
        """The tile of L0 and the buffers of L0C: two, unless one does more."""
        double = self._least_loads(b, 2)
        single = self._least_loads(b, 1)
        if double is None or single is None:
            return None
        larger = single.tile.m * single.tile.n > 2 * double.tile.m * double.tile.n
        if larger or single.loads < double.loads:
            return single.tile, 1
        return double.tile, 2

    def _least_loads(self, b: Tile, slots: int) -> _Proposal | None:
        """The tile of least loads, of these the largest, with so many buffers of L0C."""
        best: _Proposal | None = None
        for tile in self._tiles(b, self.l0c // slots):
            loads = b.m * b.n // tile.m + b.m * b.n // tile.n
            proposal = _Proposal(loads, tile)
            if best is None or proposal.before(best):
                best = proposal
        return best

    def _tiles(self, b: Tile, most: int) -> Iterator[Tile]:
        """The tiles that the rule compares, of at most so many fractals of sums."""
        c = self.c
        row = (c.step(1) + c.kernel[1]) * c.spatial[2] * 16
        deep = min(self.l0, (self.l1 - row) // 256)
        in_ub = (self.ub - 2048 - 128 * c.spatial[2]) // 2048
        for m in around(b.m, isqrt(most), min(deep, in_ub, most // c.kernel[2])):
            widest = min(most // m, self.l0, c.taps * ((self.l1 - 256 * m) // row))
            for n in around(b.n, widest, widest, c.taps) or [c.kernel[2]]:
                in_l1 = (self.l1 - row * ceil_div(n, c.taps)) // (256 * m)
                deepest = min(deep // m, self.l0 // n, in_l1)
                for k in around(b.k, deepest, deepest):
                    yield Tile(m, n, k)

    def pieces(self, b: Tile, t: Tile) -> tuple[Piece, Piece] | None:
        """AL1 and BL1: first x as deep as fits, then dy, then two buffers; None if nothing fits."""
        dy = Piece(t.k)
        x = Piece(t.k)
        if not self.fits(t, dy, x):
            return None
        depths = [Piece(t.k * d) for d in divisors(b.k // t.k)]
        x = [piece for piece in depths if self.fits(t, dy, piece)][-1]
        dy = [piece for piece in depths if self.fits(t, piece, x)][-1]
        if self.fits(t, dy, x._replace(slots=2)):
            x = x._replace(slots=2)
        if self.fits(t, dy._replace(slots=2), x):
            dy = dy._replace(slots=2)
        small, large = sorted((dy.k, x.k))
        if large % small:
            large = small * lowered(b.k // small, large // small)
        return dy._replace(k=min(dy.k, large)), x._replace(k=min(x.k, large))


def filter_tiling(c: Convolution, device: Device, cores: int) -> Tiling | None:
    """The tiling of the filter gradient of ``c``; None where the rule finds nothing."""
    rule = Filter(c, device, cores)
    b = rule.whole
    proposal = rule.tile(b)
    if proposal is None:
        return None
    tile, slots = proposal
    pieces = rule.pieces(b, tile)
    if pieces is None:
        return None
    tiles = b.m // tile.m * (b.n // tile.n)
    return _kernel(rule, tile, slots, *pieces, cores // gcd(cores, tiles))


def _kernel(rule: Filter, t: Tile, slots: int, dy: Piece, x: Piece, parts: int) -> Tiling:
    """The rule's tiling as the kernel's, whose slabs are whole rows; larger pieces are several."""
    small = min(dy.k, x.k)
    plane = cut_plane(rule.c, 16 * small)
    dy_slab = t.m * 16 * ceil_div(plane.most_positions, 16) * 16
    x_slab = ceil_div(t.n, rule.c.taps) * 16 * plane.most_pixels
    dy_slots = dy.slots * dy.k // small
    x_slots = x.slots * x.k // small
    # Slabs one by one read the rows between them twice.
    while dy_slab * dy_slots + x_slab * x_slots > rule.l1 and max(dy_slots, x_slots) > 1:
        if dy_slots == 1 or x_slab * x_slots >= dy_slab * dy_slots:
            x_slots -= 1
        else:
            dy_slots -= 1
    return Tiling(
        base_m=16 * t.m,
        base_n=16 * t.n,
        base_k=16 * t.k,
        slab_k=16 * small,
        l0c_slots=slots,
        k_parts=parts,
        dy_slots=dy_slots,
        x_slots=x_slots,
    )
