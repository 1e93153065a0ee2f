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
from typing import NamedTuple

from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.vendor.library_910 import (
    COVERAGE,
    Piece,
    Rule,
    Tile,
    divisors,
    lowered,
    product_tiling,
)
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
        m, n, _ = self.whole
        steps = divisors(self.cores)
        limits = {"b": self.c.n, "n": n, "m": m, "g": self.c.plan.real_groups}
        least = inf
        parts = dict.fromkeys("bnmg", 1)
        before = parts
        while prod(parts.values()) <= self.cores:
            cost, x, w = self._cost(parts["b"], parts["n"], parts["m"])
            axes = "gbmn" if x > w else "gn"
            higher = {axis: _next_step(steps, parts[axis], limits[axis]) for axis in axes}
            move = next((axis for axis, step in higher.items() if step), None)
            if cost >= least or move is None:
                break
            least = cost
            before = parts
            parts = parts | {move: higher[move]}
        return before

    def _cost(self, b: int, n: int, m: int) -> tuple[int, int, int]:
        """The rule's cost of so many parts, and a core's bytes of x and of the weights."""
        c = self.c
        plan = c.plan
        gm_to_l1, l1_to_l0a, l1_to_l0b, l0c_to_ub, ub_to_gm = self.rates
        x = c.n * c.cin1 * c.spatial[1] * c.spatial[2] * 32
        w = plan.real_groups * plan.cin1_g * plan.cout_g * c.taps * 32
        y = c.n * c.cout1 * c.out[1] * c.out[2] * 32
        cost = w * y // c.cout // (b * n * m) // 8192
        halo = (c.kernel[1] - 1) * (m - 1) / c.spatial[1]
        x = int(x * (1 + halo) / (b * m))
        w = w // n
        y = y // (b * n * m)
        cost += 6 * (x // 256) + 2 * (w // 256)
        cost += x * n // gm_to_l1 + w * b * m // gm_to_l1
        cost += x // l1_to_l0a + w // l1_to_l0b + 2 * y // l0c_to_ub + y // ub_to_gm
        return cost, x, w

    def pieces(self, parts: Mapping[str, int]) -> tuple[int, int]:
        """Blocks of M and N that L1 holds, with all of K: both grow as long as half of L1 does."""
        m, n, _ = self.whole
        ms = divisors(4096, ceil_div(m, parts["m"]))
        ns = divisors(ceil_div(n, parts["n"]))
        i = 0
        j = 0
        while self.x(ms[i]) <= self.l1:
            x = self.x(ms[i])
            w = self.w(ns[j])
            along_n = j + 1 < len(ns) and x + w * ns[j + 1] / ns[j] < self.l1
            along_m = i + 1 < len(ms) and w + x * ms[i + 1] / ms[i] < self.l1
            if not (along_n or along_m):
                break
            i += along_m
            j += along_n
        return ms[i], ns[j]

    def x(self, m: int) -> int:
        """Bytes of the rows that so many blocks of positions read."""
        c = self.c
        _, h, w = c.spatial
        reach = (c.kernel[1] - 1) * c.dilation[1] + 1
        rows = ceil_div(16 * m, c.out[2]) * c.step(1) + reach
        return self.whole[2] * min(rows, h) * w * 32

    def w(self, n: int) -> int:
        """Bytes of the weights of so many blocks of co1."""
        return self.whole[2] * self.c.taps * n * 512

    def tile(self, m: int, n: int, *, resident: bool) -> Tile | None:
        """The tile of L0 for so many blocks in L1; None where the rule rejects what it finds."""
        c = self.c
        pixels = c.taps == 1 == max(c.stride) and not any(map(any, c.padding)) and c.spatial[1] > 1
        sides = {
            "k": [d * c.taps for d in divisors(self.whole[2])],
            "n": divisors(n),
            "m": [d for d in divisors(m) if pixels or d % 2 == 0] or [1],
        }
        order = "kmn" if sides["m"][0] == 1 else "knm"
        tile = Tile(**{axis: larger.pop(0) for axis, larger in sides.items()})
        grows = True
        while grows:
            grows = False
            for axis in order:
                if not sides[axis]:
                    continue
                larger = tile._replace(**{axis: sides[axis][0]})
                if self._in_l0(larger):
                    tile = larger
                    sides[axis].pop(0)
                    grows = True
        past_l1 = resident and tile.n == 1 and not sides["k"]
        return None if past_l1 or not self._in_l0(tile) else tile

    def _in_l0(self, t: Tile) -> bool:
        """True if halves of L0A and L0B, and L0C, hold a tile."""
        return max(t.k * t.m, t.k * t.n) <= self.l0 and t.m * t.n <= self.l0c


def _next_step(steps: list[int], part: int, limit: int) -> int:
    """The least of the steps above ``part`` up to the limit; 0 for none."""
    return next((step for step in steps if part < step <= limit), 0)


class ForwardTiling(NamedTuple):
    """The tiling of a forward pass: the rule's, or by default.

    ``beyond`` says why it is extrapolated, "" where the rule covers it.
    """

    tiling: Tiling
    by_rule: bool
    beyond: str = ""


def forward_tiling(c: Convolution, device: Device, cores: int) -> ForwardTiling:
    """The tiling of the forward pass of ``c``, a layer for the rules of the library."""
    coverage = COVERAGE["output"]
    beyond = coverage.missed(c)
    rule = Forward(c, device, cores)
    if max(c.dilation) > coverage.dilation:  # the rule fails; of large pictures it finds a tile
        return ForwardTiling(_default(rule), by_rule=False, beyond=beyond)
    parts = rule.cores_used()
    _, all_n, planes = rule.whole
    _, high, wide = c.out
    m, n = rule.pieces(parts)
    resident = parts["n"] == 1 and n == all_n
    tile = rule.tile(m, n, resident=resident)
    if tile is None:
        beyond = "the rule rejects the tile of L0 that it finds"
        return ForwardTiling(_default(rule), by_rule=False, beyond=beyond)
    least = rule.x(m) + rule.w(n)
    if rule.x(m) + least > 2 * rule.l1:
        beyond = _room_text(m, n, rule.x(m) + least, 2 * rule.l1, "with two buffers of x")
        return ForwardTiling(_default(rule), by_rule=False, beyond=beyond)
    share = (
        ceil_div(high, parts["m"]) * wide,
        ceil_div(all_n, parts["n"]),
        ceil_div(c.n, parts["b"]),
    )
    tiling = product_tiling(
        tile,
        Piece(planes, m // tile.m, 2),
        Piece(planes, n // tile.n),
        c.taps,
        share,
        resident=True,
        n_slowest=not resident,
        whole_rows=True,
    )
    if least > rule.l1:  # the search begins beyond its own limit, and ends there
        beyond = _room_text(m, n, least, rule.l1, "of the half that the rule shares out")
    return ForwardTiling(tiling, by_rule=True, beyond=beyond)


def _room_text(m: int, n: int, size: int, room: int, why: str) -> str:
    """Pieces of x and weights that take more than the room in L1, in words."""
    return (
        f"{16 * m} positions and {16 * n} filters, with all channels, take {ceil_div(size, 1024):,}"
        f" KiB of L1, of {room // 1024:,} KiB {why}"
    )


def _default(rule: Forward) -> Tiling:
    """The library's default tiling: cores by images alone, K in steps of 16, single buffers."""
    c = rule.c
    _, all_n, planes = rule.whole
    _, high, wide = c.out
    rows = next((t for t in range(32, 0, -1) if 2 * rule.x(t) < 2 * rule.l1 * planes), 1)
    share = (high * wide, all_n, c.n // lowered(c.n, rule.cores))
    tile = Tile(rows, min(2, all_n), 1)
    return product_tiling(tile, Piece(1), Piece(1), 1, share, l0_slots=1, whole_rows=True)
