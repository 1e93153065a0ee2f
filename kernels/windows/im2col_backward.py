"""Backward of im2col (fold): windows of patches are added back into the image they came from.

    out[p, h, w] = sum over taps (kh, kw) of grad[p, kh * KW + kw, oh * Lw + ow]
                   where h = oh * sH - padH + kh * dH and w = ow * sW - padW + kw * dW

Layouts: grad (planes, KH * KW, Lh * Lw, block) and out (planes, H, W, block), fp16 or fp32. A
plane is a channel with block 1 (framework layout) or a block of 16 channels (5HD). The shape is the
convolution that would cut the patches: ``n`` planes of ``cin`` elements, a channel out per tap.

A core gathers whole pieces of the image, so that nobody else adds into them. Taps are added in
order, kh outer, kw inner, in the tensor's type; or in fp32 with one rounding at the end.

for (run of planes, piece of the image) of this core:                 # one task
    UB acc <- 0                                                       # V
    UB patches of all taps <- GM, if they fit at once                 # MTE2
    for kh, kw:
        UB patches of the tap that fall into the piece <- GM          # MTE2, unless at once
        UB acc[every sH-th row, every sW-th column] += patches        # V
    out piece <- acc                                                  # (V), MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar

from npusim.kernels.parts.ub_room import Held
from npusim.kernels.windows.im2col_backward_tiling import Tiling, elements
from npusim.kernels.windows.patches import Grid, Nest, Patches, Piece, rectangles
from npusim.language import DType, Language, Plan, Slot

__all__ = ["Im2colBackward", "Tiling"]


@dataclass(frozen=True)
class Im2colBackward(Patches):
    """The kernel for one shape; sums are of type ``sums``: the tensors' or fp32.

    ``saturate`` keeps fp16 sums finite (see ``Device.saturates``).
    """

    sums: DType
    saturate: bool = False

    name: ClassVar[str] = "im2col_backward"
    base: ClassVar[str] = "grad"
    cuts_image: ClassVar[bool] = False

    @property
    def needed_bytes(self) -> dict[str, int]:
        s = self.shape
        elements = self.read.size_bytes // prod(s.kernel + s.out)
        return {self.read.name: elements * prod(use.pairs for use in s.uses)}

    @property
    def streamed(self) -> dict[str, Any]:
        summed = self.read.size_bytes // self.read.dtype.bytes * self.sums.bytes
        loads = 1 if self.tiling.at_once else self.shape.taps
        return {"vector": (("add", summed),), "loads": loads}

    @property
    def wide(self) -> DType:
        return self.sums

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        dtype, sums, mixed = self.read.dtype, self.sums, self.read.dtype != self.sums
        pixels, patches = elements(self.shape, self.tiling)
        held = {"grad": Held(dtype, patches, 2), "acc": Held(sums, pixels, 1 if mixed else 2)}
        if mixed:
            held |= {"wide": Held(sums, patches), "out": Held(dtype, pixels, 2)}
        return Plan(self.tasks(cores), _Nest(self, k, held).emit)


class _Nest(Nest):
    """The program of a piece."""

    kernel: Im2colBackward

    def emit(self, piece: Piece) -> None:
        """Clear the piece, add every tap of every plane, write it."""
        (rows, _, row_taps, _), (columns, _, column_taps, _) = self.kernel.patterns[piece.pattern]
        s, (lh, lw), kernel = self.kernel.shape, self.kernel.shape.out, self.kernel
        acc, loaded = self.held["acc"].next(), None
        whole = acc.at(0, piece.planes * rows * columns * self.pixel)
        self.k.vec_dup(whole, 0.0, self.wide)
        if self.kernel.tiling.at_once:
            loaded = self._load(0, (piece.planes * s.taps * lh, lw))
        for plane in range(piece.planes):
            for tap, (down, across) in enumerate(product(row_taps, column_taps)):
                (y, oh, high), (x, ow, wide) = down, across
                if not high or not wide:
                    continue
                at = ((plane * s.taps + tap) * lh + oh) * lw + ow
                if loaded is None:
                    source = Grid(self._load(at, (high, wide)), 0, wide, 1)
                else:
                    source = Grid(loaded, at, lw, 1)
                first = (plane * rows + y) * columns + x
                target = Grid(acc, first, s.stride[0] * columns, s.stride[1])
                for place, patch in rectangles(target, source, (high, wide), self.pixel):
                    self.k.vec_binary(
                        "add", place, place, patch, self.wide, saturate=kernel.saturate
                    )
        self.store(whole, (piece.planes * rows, columns))

    def _load(self, at: int, extent: tuple[int, int]) -> Slot:
        """(rows, windows) of grad from window ``at`` on, in the sums' type."""
        return self.load("grad", self.kernel.lines(self.kernel.read, at, extent))
