"""The vendor library's tiling of the forward pass of a 2-D layer (see ``library_910``).

M = blocks of positions of one image, N = co1, K = ci1 * taps; A is x, B the weights. Cores share
out parts of the batch, of co1 and of M. The rule is that of ``conv2d_fast_tiling.cc``. Left out is
that a product of 32 bits wraps in the cost of cores; kept as written are that the terms of this
cost are added, and that the last move is taken back. The kernel here brings weights to L1 where
the rule goes past it to L0B, and loads every x by img2col.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.vendor.library_910 import Piece, Rule, Tile, divisors, lowered, product_tiling
from npusim.language import Device, ceil_div
from npusim.problem.convolution import Convolution


class Forward(Rule):
    """The rule for a layer on a chip."""

    @property
    def whole(self) -> tuple[int, int, int]:
        """Blocks of M of an image, of N and of K without taps, of a real group."""
        c = self.c
        return ceil_div(c.out[1] * c.out[2], 16), c.plan.cout_g // 16, c.plan.cin1_g

    def cores_used(self) -> dict[str, int]:
        """Parts of batch (b), N, M and groups (g): moves as the cost falls, less the last."""
        (m, n, _), steps, best = self.whole, divisors(self.cores), inf
        limits = {"b": self.c.n, "n": n, "m": m, "g": self.c.plan.real_groups}
        at = before = dict.fromkeys("bnmg", 1)
        while prod(at.values()) <= self.cores:
            cost, x, w = self._cost(at["b"], at["n"], at["m"])
            higher = {name: [d for d in steps if at[name] < d <= limits[name]] for name in at}
            moves = [name for name in ("gbmn" if x > w else "gn") if higher[name]]
            if cost >= best or not moves:
                break
            best, before = cost, at
            at = at | {moves[0]: higher[moves[0]][0]}
        return before

    def _cost(self, b: int, n: int, m: int) -> tuple[int, int, int]:
        """The rule's cost of so many parts, and a core's bytes of x and of the weights."""
        c, plan, (of_l1, of_a, of_b, of_c, out) = self.c, self.c.plan, self.rates
        x = c.n * c.cin1 * c.spatial[1] * c.spatial[2] * 32
        w = plan.real_groups * plan.cin1_g * plan.cout_g * c.taps * 32
        y = c.n * c.cout1 * c.out[1] * c.out[2] * 32
        cost = w * y // c.cout // (b * n * m) // 8192
        x = int(x * (1 + (c.kernel[1] - 1) * (m - 1) / c.spatial[1]) / (b * m))
        w, y = w // n, y // (b * n * m)
        cost += 6 * (x // 256) + 2 * (w // 256) + x * n // of_l1 + w * b * m // of_l1
        return cost + x // of_a + w // of_b + 2 * y // of_c + y // out, x, w

    def pieces(self, at: Mapping[str, int]) -> tuple[int, int]:
        """Blocks of M and N that L1 holds, with all of K: both grow as long as half of L1 does."""
        (m, n, _), i, j = self.whole, 0, 0
        ms, ns = divisors(4096, ceil_div(m, at["m"])), divisors(ceil_div(n, at["n"]))
        while (x := self.x(ms[i])) <= self.l1:
            w = self.w(ns[j])
            along_n = j + 1 < len(ns) and x + w * ns[j + 1] / ns[j] < self.l1
            along_m = i + 1 < len(ms) and w + x * ms[i + 1] / ms[i] < self.l1
            if not (along_n or along_m):
                break
            i, j = i + along_m, j + along_n
        return ms[i], ns[j]

    def x(self, m: int) -> int:
        """Bytes of the rows that so many blocks of positions read."""
        c, (_, h, w) = self.c, self.c.spatial
        reach = (c.kernel[1] - 1) * c.dilation[1] + 1
        rows = ceil_div(16 * m, c.out[2]) * c.step(1) + reach
        return self.whole[2] * min(rows, h) * w * 32

    def w(self, n: int) -> int:
        """Bytes of the weights of so many blocks of co1."""
        return self.whole[2] * self.c.taps * n * 512

    def tile(self, m: int, n: int, *, resident: bool) -> Tile | None:
        """The tile of L0 for so many blocks in L1; None where the rule rejects what it finds."""
        c, planes = self.c, self.whole[2]
        pixels = c.taps == 1 == max(c.stride) and not any(map(any, c.padding)) and c.spatial[1] > 1
        sides = {
            "k": [d * c.taps for d in divisors(planes)],
            "n": divisors(n),
            "m": [d for d in divisors(m) if pixels or d % 2 == 0] or [1],
        }
        order = "kmn" if sides["m"][0] == 1 else "knm"
        tile, moved = {axis: values.pop(0) for axis, values in sides.items()}, True

        def fits(k: int, n: int, m: int) -> bool:
            return max(k * m, k * n) <= self.l0 and m * n <= self.l0c

        while moved:
            moved = False
            for axis in order:
                if sides[axis] and fits(**(tile | {axis: sides[axis][0]})):
                    tile[axis], moved = sides[axis].pop(0), True
        past_l1 = resident and tile["n"] == 1 and not sides["k"]
        return None if past_l1 or not fits(**tile) else Tile(**tile)


def forward_tiling(c: Convolution, device: Device, cores: int) -> tuple[Tiling, bool]:
    """The tiling of the forward pass of ``c``, and whether it is the rule's or the default one."""
    rule = Forward(c, device, cores)
    at, (_, all_n, planes), (_, ho, wo) = rule.cores_used(), rule.whole, c.out
    m, n = rule.pieces(at)
    resident = at["n"] == 1 and n == all_n
    tile = rule.tile(m, n, resident=resident) if set(c.dilation) == {1} else None
    if tile and 2 * rule.x(m) + rule.w(n) <= 2 * rule.l1:
        a, b = Piece(planes, m // tile.m, 2), Piece(planes, n // tile.n)
        share = ceil_div(ho, at["m"]) * wo, ceil_div(all_n, at["n"]), ceil_div(c.n, at["b"])
        order = {"resident": True, "n_slowest": not resident}
        return product_tiling(tile, a, b, c.taps, share, **order), True
    most = next((t for t in range(32, 0, -1) if 2 * rule.x(t) < 2 * rule.l1 * planes), 1)
    share = ho * wo, all_n, c.n // lowered(c.n, cores)
    least = Tile(most, min(2, all_n), 1), Piece(1), Piece(1)
    return product_tiling(*least, 1, share, l0_slots=1), False
