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
from math import inf, lcm

from npusim.base.records import replace
from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.vendor.library_910 import Piece, Rule, Tile, divisors, lowered, product_tiling
from npusim.language import Device, ceil_div
from npusim.problem.convolution import Convolution

#: Parts of the batch, of N and of M.
Cores = tuple[int, int, int]


class Input(Rule):
    """The rule for a layer on a chip."""

    @property
    def m(self) -> int:
        """Blocks of positions of an image."""
        return ceil_div(self.c.spatial[1] * self.c.spatial[2], 16)

    def _even(self, blocks: int) -> bool:
        """Whether the last of pieces of so many blocks has a whole block, or none is cut."""
        area = self.c.spatial[1] * self.c.spatial[2]
        return area % 16 == 0 or area <= 16 or not 0 < area % (16 * blocks) < 16

    def cores_used(self) -> Cores:
        """What the cores share: the fewest loops, then most cores, then the least loads."""
        c, (_, h, w), planes, most = self.c, self.c.spatial, self.c.cin1, self.cores
        if c.n * self.m * planes < most:
            return c.n, planes, 1
        read = c.taps * h * w if (c.kernel[1] - 1) // c.step(1) <= 1 else c.out[1] * c.out[2]
        best: tuple[float, int, tuple[float, int], Cores] = inf, 0, (inf, 0), (1, 1, 1)
        for n, b in product(divisors(planes, most)[::-1], divisors(c.n, most)[::-1]):
            if b * n > most:
                continue
            m = min(most // (b * n), self.m)
            rows, columns, used = ceil_div(self.m, m), planes // n, b * n * m
            loops = c.n // b * rows * columns // min(rows * columns, 128)
            if columns == 1:
                loops = c.n // b * ceil_div(rows, min(rows, 64))
            load = c.cout1 * (b * m * planes * c.taps * 256 + n * c.n * 16 * read), -b * n
            less = loops < best[0] or (loops == best[0] and used > best[1])
            uncut = self._even(rows) and (rows > 1 or h * w % 16 == 0 or h * w <= 16)
            if uncut and (less or (used == best[1] and load < best[2])):
                best = loops, used, load, (b, n, m)
        return best[3]

    def tile(self, at: Cores) -> Tile:
        """The tile of L0 that loads least; of equals the largest, then the least square."""
        ms, nn, found = ceil_div(self.m, at[2]), self.c.cin1 // at[1], []
        depths = divisors(self.c.cout1 * self.c.taps, self.l0)[::-1]
        for n, k in product(divisors(nn, self.l0)[::-1], depths):
            most = min(self.l0 // k, self.l0c // 2 // n, ms) if n * k <= self.l0 else 0
            tiles = (Tile(m, n, k) for m in range(most, 0, -1))
            fit = (t for t in tiles if self._even(t.m) and self._least(t, 1, 1))
            found += [t for t in [next(fit, None)] if t]
        found = found or [Tile(1, 1, 1)]
        loads = [ceil_div(ms, t.m) * nn + ceil_div(nn, t.n) * ms for t in found]
        size = [(-t.m * t.n * t.k, -(max(t.m, t.k) // min(t.m, t.k))) for t in found]
        return min(zip(loads, size, found, strict=True), key=lambda one: one[:2])[2]

    def _dy(self, positions: int) -> int:
        """Elements of the rows of a block of co1, zeros inserted, for so many positions of dx."""
        c, w = self.c, self.c.spatial[2]
        rows = c.kernel[1] - 1 + positions // w + 2 * (positions % w > 0)
        return min(rows, c.out[1] * c.step(1)) * 16 * c.out[2] * c.step(2)

    def _least(self, t: Tile, slots_a: int, slots_b: int) -> bool:
        """Whether the smallest pieces of both operands fit L1."""
        least = lcm(t.k, self.c.taps) // self.c.taps
        weights = least * self.c.taps * t.n * 256 * slots_b
        return least * self._dy(16 * t.m) * slots_a + weights <= self.l1

    def pieces(self, at: Cores, t: Tile) -> tuple[Piece, Piece] | None:
        """AL1 and BL1 that load the fewest elements; None where nothing fits."""
        c, found = self.c, list[tuple[int, Piece, Piece]]()
        depths = [d for d in divisors(c.cout1) if d * c.taps % t.k == 0]
        slots_a = 1 + self._least(t, 2, 2)
        slots_b = 1 + self._least(t, slots_a, 2)
        for k_b, k_a in product(depths, depths):
            if max(k_a, k_b) % min(k_a, k_b) == 0:
                whole = (Piece(k_a, 1, slots_a), Piece(k_b, 1, slots_b))
                tiles = divisors(c.cin1 // at[1] // t.n) if k_b == c.cout1 else [1]
                found += [self._grown(at, t, whole[0], whole[1]._replace(tiles=n)) for n in tiles]
        fit = [one for one in found if one[1].k]
        return min(fit, key=lambda one: (one[0], -one[1].k, -one[2].k))[1:] if fit else None

    def _grown(self, at: Cores, t: Tile, a: Piece, b: Piece) -> tuple[int, Piece, Piece]:
        """Elements loaded with such pieces, and these: dy of all channels in as many rows as fit.

        A whole operand has one buffer. Of what does not fit nothing is left of dy.
        """
        c, (_, h, w), kh = self.c, self.c.spatial, self.c.kernel[1]
        ms, nn, row = ceil_div(self.m, at[2]), c.cin1 // at[1], 16 * c.out[2] * c.step(2)
        whole_b = b.k == c.cout1 and b.tiles * t.n == nn
        b = b._replace(slots=1) if whole_b else b
        left = self.l1 - b.k * c.taps * b.tiles * t.n * 256 * b.slots
        if a.k == c.cout1:
            rows = left // a.slots // (c.cout1 * row)
            positions = (rows - kh) * w - 1 if rows > kh + 1 else w
            tiles = lowered(ceil_div(h * w, at[2] * 16 * t.m), positions // (16 * t.m))
            a = a._replace(tiles=tiles)
        whole_a = a.k == c.cout1 and t.m * a.tiles >= ms
        need = min(ceil_div(ceil_div(16 * ms, w) + kh - 1, c.step(1)), c.out[1])
        of_a, of_b = need * c.cout1 * c.out[2] * 16, c.cout1 * c.taps * 256 * nn
        piece = self._dy(16 * t.m * a.tiles)
        cost = of_a + of_b
        if whole_a and not whole_b:
            a = a._replace(slots=1)
        elif not whole_b:
            steps = ceil_div(need, ceil_div(piece // row, c.step(1)))
            cost = steps * of_b + ceil_div(nn, b.tiles * t.n) * of_a
        return cost, a if a.k * piece * a.slots <= left else Piece(0), b


def input_tiling(c: Convolution, device: Device, cores: int) -> Tiling | None:
    """The tiling of the input gradient of ``c``; None where the rule finds nothing."""
    scattered = c.taps == 1 < max(c.stride) and not any(map(any, c.padding))
    shape = replace(c, spatial=c.out, stride=(1, 1, 1), outputs=None) if scattered else c
    rule = Input(shape, device, cores)
    at = rule.cores_used()
    tile = rule.tile(at)
    found = rule.pieces(at, tile)
    made = _kernel(rule, at, tile, *found, scattered=scattered) if found else None
    picture = 16 * tile.m // c.out[2] * c.step(1) * c.spatial[2]  # positions, in two buffers each
    room = scattered and 64 * (16 * tile.m + picture) <= rule.ub
    return replace(made, zeros=room) if made else None


def _kernel(rule: Input, at: Cores, t: Tile, a: Piece, b: Piece, *, scattered: bool) -> Tiling:
    """The rule's tiling as the kernel's."""
    c, (_, h, w), n = rule.c, rule.c.spatial, rule.c.cin1 // at[1]
    deep_a, deep_b = a.k == c.cout1, b.k == c.cout1
    m_steps, n_steps = ceil_div(ceil_div(rule.m, at[2]), t.m * a.tiles), n // (t.n * b.tiles)
    m_slowest = c.taps == 1 and deep_a >= deep_b and (deep_a > deep_b or n_steps >= m_steps)
    share = 0 if scattered else ceil_div(h, at[2]) * w, n, c.n // at[0]
    a = a._replace(tiles=1) if scattered else a
    return product_tiling(
        *(t, a, b, c.taps, share),
        form="phases" if scattered else "window",
        l0c_slots=2,
        resident=deep_b and (not m_slowest or n_steps == 1),
        resident_input=deep_a and (m_slowest or m_steps == 1),
        n_slowest=not m_slowest and min(n_steps, m_steps) > 1,
    )
