"""The words and parts that the vendor library's rules for 2-D layers on a 910, 310 and 310P share.

``tiling="library"`` of these chips (``Device.library_rules``) follows the rules by which the
operator library of April 2022 tiles kernels of dynamic shape when they are launched
(ops/built-in/op_tiling, of which a copy is public: dengguojie/vue-element-admin at 0981a3f0),
retold. Static kernels get tilings from a repository and a cost model that are not public, for which
these rules stand in. Its words, here and in the three modules of the rules, in blocks of 16:

=============  ======================================================================
co1, ci1       blocks of output and of input channels
taps           kh * kw
m, n, k        the tile of L0: rows of L0A and L0C, columns of L0B and L0C, their inner side
AL1, BL1       the pieces of both operands in L1; two buffers of one are a ping-pong
resident       a whole operand in L1, which takes one buffer
=============  ======================================================================

Steps divide what they cut, and no buffer has three slots. The library's constants are those of a
910. Where the device has the figure itself (cores, sizes of L1, L0 and UB, the rates of moves), its
own is taken, so that a 310 and a 310P are tiled as the rule would have it with their cores. A
forward pass whose rule rejects what it finds gets the library's default tiling.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from npusim.kernels.estimate.fit import cube_sizes
from npusim.kernels.implicit_gemm.tiling import Tiling as GemmTiling
from npusim.language import Device
from npusim.problem.convolution import Convolution

#: Sizes of pictures that the rules of both gradients know.
_SIDES = range(2, 4097)

#: The moves whose rates the rule of the forward pass knows.
_MOVES = (("GM", "L1"), ("L1", "L0A"), ("L1", "L0B"), ("L0C", "UB"), ("UB", "GM"))


class Tile(NamedTuple):
    """Blocks of M, N and K: the tile of L0, or what it cuts."""

    m: int
    n: int
    k: int


class Piece(NamedTuple):
    """An operand's part in L1: blocks of K (of channels, without taps), tiles, buffers."""

    k: int
    tiles: int = 1
    slots: int = 1


class Rule:
    """The layer ``c`` and what rules know of ``device`` with so many ``cores`` in use.

    ``l1`` are elements of 16 bits, ``ub`` bytes, ``l0`` the fractals in half of L0A or L0B, ``l0c``
    those of sums in L0C.
    """

    def __init__(self, c: Convolution, device: Device, cores: int) -> None:
        sizes = cube_sizes(device)
        self.c = c
        self.cores = cores
        self.ub = device.memory("UB").size_bytes
        self.l1 = sizes["L1"] // 2
        self.l0c = sizes["L0C"] // 1024
        self.l0 = min(sizes["L0A"], sizes["L0B"]) // 1024
        self.rates = [int(device.path(*move).rate) for move in _MOVES]


def knows(device: Device, c: Convolution, *, gradient: bool) -> bool:
    """True if the library of ``device`` tiles the 3-D ``c`` by these rules.

    It has no depth, and an img2col load can slide over it; that of a ``gradient`` also has one
    group, no dilation and a picture of usual sides.
    """
    flat = c.out[0] == c.spatial[0] == c.kernel[0] == 1 and c.c0 == 16
    plain = c.groups == 1 and set(c.dilation) == {1}
    plain = plain and all(side in _SIDES for side in (*c.spatial[1:], *c.out[1:]))
    slides = all(c.axis(i).fits_window(whole=True) for i in (1, 2))
    return device.library_rules and flat and slides and (plain or not gradient)


def divisors(number: int, most: int = 0) -> list[int]:
    """All of them up to ``most`` (0: all), ascending."""
    return [d for d in range(1, min(number, most or number) + 1) if number % d == 0]


def lowered(total: int, most: int) -> int:
    """The largest divisor of ``total`` that is not above ``most``, at least 1."""
    return divisors(total, max(1, most))[-1]


def around(total: int, base: int, cap: int, multiple: int = 1) -> list[int]:
    """Up to two divisors of ``total``: the first above ``base`` up to ``cap``, then downwards.

    Of a ``multiple`` only.
    """
    if cap <= 0:
        return []
    candidates = [d for d in divisors(total, cap) if d % multiple == 0]
    above = [d for d in candidates if d > base]
    below = [d for d in reversed(candidates) if d <= base]
    return [*above[:1], *below][:2]


def product_tiling(
    t: Tile, a: Piece, b: Piece, taps: int, share: tuple[int, int, int], **more: Any
) -> GemmTiling:
    """The tiling of a forward pass or an input gradient: a core's ``share`` are positions, blocks
    of N and images; ``more`` are other fields."""
    return GemmTiling(
        base_m=16 * t.m,
        base_n=16 * t.n,
        base_k=16 * t.k,
        step_m=a.tiles,
        step_n=b.tiles,
        step_planes=a.k,
        step_columns=b.k * taps,
        l1_slots=a.slots,
        weight_slots=b.slots,
        single_core_m=share[0],
        single_core_n=16 * share[1],
        single_core_images=share[2],
        **more,
    )
