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
own is taken, so that a 310 and a 310P are tiled as the rule would have it with their cores.

``COVERAGE`` has the layers that each rule is published for. A forward pass outside of it, or of
which the rule rejects what it finds, gets the library's default tiling. In the library that comes
last: behind a repository and a cost model for static kernels, and never for dynamic ones, which are
refused. Such a tiling is *extrapolated*: results say so, and why.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from npusim.kernels.estimate.fit import cube_sizes
from npusim.kernels.implicit_gemm.tiling import Tiling as GemmTiling
from npusim.language import Device
from npusim.problem.convolution import Convolution

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


class Coverage(NamedTuple):
    """Layers that the published rule of a kernel covers, as its source checks them.

    At most so many ``groups`` (None: any) and taps ``dilation`` elements apart; input and output
    are pictures of ``least_side`` rows and columns up to ``height`` and ``width``.
    """

    groups: int | None
    dilation: int
    least_side: int
    height: int
    width: int

    def missed(self, c: Convolution) -> str:
        """The first property of the 3-D ``c`` that is outside, in words; "" where none is."""
        if self.groups is not None and c.groups > self.groups:
            return f"{c.groups} groups, of at most {self.groups}"
        if max(c.dilation) > self.dilation:
            return f"dilation {max(c.dilation)}, of at most {self.dilation}"
        for height, width in (c.spatial[1:], c.out[1:]):
            high = self.least_side <= height <= self.height
            wide = self.least_side <= width <= self.width
            if not (high and wide):
                most = f"{self.height:,}x{self.width:,}"
                least = f"{self.least_side}x{self.least_side}"
                return f"a picture of {height:,}x{width:,}, of {least} to {most}"
        return ""


#: Coverage of the rules by what their kernels compute: ``conv2d_fast_tiling.cc`` ("output"),
#: ``conv2d_bp_input_cache_tiling.cc`` ("input") and ``dw_cache_tiling.cc`` ("weight"), with the
#: checks of the operators that call them. With taps apart the rule of the forward pass fails.
COVERAGE = {
    "output": Coverage(groups=None, dilation=1, least_side=1, height=100_000, width=4096),
    "input": Coverage(groups=1, dilation=1, least_side=2, height=4096, width=4096),
    "weight": Coverage(groups=1, dilation=1, least_side=2, height=4096, width=4096),
}


def other_form(c: Convolution) -> str:
    """The reason why the 3-D ``c`` is no layer for any of these rules, "" where it is one.

    They are for layers of 16 bits without depth over which an img2col load can slide.
    """
    if max(c.out[0], c.spatial[0], c.kernel[0]) > 1:
        return "it has a depth"
    if c.c0 != 16:
        return "its type has no 16 bits"
    if not all(c.axis(i).fits_window(whole=True) for i in (1, 2)):
        return "img2col loads do not slide over it"
    return ""


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
