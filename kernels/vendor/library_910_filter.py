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

from math import gcd, isqrt

from npusim.kernels.filter_gradient.tiling import Tiling, cut_plane
from npusim.kernels.vendor.cann_rule import rows_of
from npusim.kernels.vendor.library_910 import Piece, Rule, Tile, around, divisors, lowered
from npusim.language import Device, ceil_div
from npusim.problem.convolution import Convolution


class Filter(Rule):
    """The rule for a layer on a chip."""

    @property
    def whole(self) -> Tile:
        """All that there is to add up, of K of one image."""
        plan, (_, ho, wo) = self.c.plan, self.c.out
        return Tile(plan.cout_g // 16, plan.cin1_g * self.c.taps, ceil_div(ho * wo, 16))

    def x(self, blocks: int, n: int) -> int:
        """Elements of the rows of x that so many position blocks read, of all planes of ``n``."""
        rows = (rows_of(16 * blocks, self.c.out[2]) - 1) * self.c.step(1) + self.c.kernel[1]
        return rows * self.c.spatial[2] * 16 * ceil_div(n, self.c.taps)

    def fits(self, t: Tile, dy: Piece, x: Piece) -> bool:
        """Whether L1 holds both pieces."""
        return dy.k * t.m * 256 * dy.slots + self.x(x.k, t.n) * x.slots <= self.l1

    def tile(self, b: Tile) -> tuple[Tile, int] | None:
        """The tile of L0 and the buffers of L0C: two, unless one does more."""
        double, single = (self._proposed(b, slots) for slots in (2, 1))
        if not (double and single):
            return None
        (loads, one), (loads_single, other) = double, single
        more = other.m * other.n > 2 * one.m * one.n or loads_single < loads
        return (other, 1) if more else (one, 2)

    def _proposed(self, b: Tile, slots: int) -> tuple[int, Tile] | None:
        """The tile of least loads, of these the largest, with so many buffers of L0C."""
        c, most = self.c, self.l0c // slots
        best: tuple[int, tuple[int, int], Tile] | None = None
        row = (c.step(1) + c.kernel[1]) * c.spatial[2] * 16
        deep = min(self.l0, (self.l1 - row) // 256)
        high = min(deep, (self.ub - 2048 - 128 * c.spatial[2]) // 2048, most // c.kernel[2])
        for m in around(b.m, isqrt(most), high):
            cap = min(most // m, self.l0, c.taps * ((self.l1 - 256 * m) // row))
            for n in around(b.n, cap, cap, c.taps) or [c.kernel[2]]:
                left = (self.l1 - row * ceil_div(n, c.taps)) // (256 * m)
                cap = min(deep // m, self.l0 // n, left)
                for k in around(b.k, cap, cap):
                    loads = b.m * b.n // m + b.m * b.n // n
                    size = m * n * k, m * n * m * n * k
                    larger = best and size[0] > best[1][0] and size[1] >= best[1][1]
                    if not best or loads < best[0] or (loads == best[0] and larger):
                        best = loads, size, Tile(m, n, k)
        return (best[0], best[2]) if best else None

    def pieces(self, b: Tile, t: Tile) -> tuple[Piece, Piece] | None:
        """AL1 and BL1: first x as deep as fits, then dy, then two buffers; None if nothing fits."""
        dy = x = Piece(t.k)
        if not self.fits(t, dy, x):
            return None
        depths = [Piece(t.k * d) for d in divisors(b.k // t.k)]
        x = [one for one in depths if self.fits(t, dy, one)][-1]
        dy = [one for one in depths if self.fits(t, one, x)][-1]
        x = x._replace(slots=1 + self.fits(t, dy, x._replace(slots=2)))
        dy = dy._replace(slots=1 + self.fits(t, dy._replace(slots=2), x))
        small, large = sorted((dy.k, x.k))
        if large % small:
            large = small * lowered(b.k // small, large // small)
        return dy._replace(k=min(dy.k, large)), x._replace(k=min(x.k, large))


def filter_tiling(c: Convolution, device: Device, cores: int) -> Tiling | None:
    """The tiling of the filter gradient of ``c``; None where the rule finds nothing."""
    rule = Filter(c, device, cores)
    b = rule.whole
    found = rule.tile(b)
    pieces = found and rule.pieces(b, found[0])
    if not (found and pieces):
        return None
    tiles = b.m // found[0].m * (b.n // found[0].n)
    return _kernel(rule, *found, *pieces, cores // gcd(cores, tiles))


def _kernel(rule: Filter, t: Tile, slots: int, dy: Piece, x: Piece, parts: int) -> Tiling:
    """The rule's tiling as the kernel's, whose slabs are whole rows; larger pieces are several."""
    small = min(dy.k, x.k)
    plane = cut_plane(rule.c, 16 * small)
    of_dy = t.m * 16 * ceil_div(plane.most_positions, 16) * 16
    of_x = ceil_div(t.n, rule.c.taps) * 16 * plane.most_pixels
    many = [dy.slots * dy.k // small, x.slots * x.k // small]
    # Slabs one by one read the rows between them twice.
    while of_dy * many[0] + of_x * many[1] > rule.l1 and max(many) > 1:
        many[many[0] == 1 or of_x * many[1] >= of_dy * many[0]] -= 1
    return Tiling(
        base_m=16 * t.m,
        base_n=16 * t.n,
        base_k=16 * t.k,
        slab_k=16 * small,
        l0c_slots=slots,
        k_parts=parts,
        dy_slots=many[0],
        x_slots=many[1],
    )
