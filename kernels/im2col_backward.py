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

from npusim.kernels.parts.patches import Grid, Patches, Piece, rectangles
from npusim.kernels.parts.windows import Cut, cuts
from npusim.kernels.tilings.im2col_backward import Tiling, elements
from npusim.language import FP32, DType, Language, Plan, Slot

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

    def cut(self, axis: int, step: int) -> list[Cut]:
        return cuts(self.shape, axis, step)

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

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        return Plan(self.tasks(cores), _Nest(self, k).emit)


class _Nest:
    """The program of a piece, on the buffers of one core."""

    def __init__(self, kernel: Im2colBackward, k: Language) -> None:
        self.kernel, self.k = kernel, k
        dtype, sums = kernel.read.dtype, kernel.sums
        pixels, patches = elements(kernel.shape, kernel.tiling)
        mixed = dtype != sums
        self.grad = k.buffer("UB", (patches,), dtype, slots=2, name="grad_ub")
        self.acc = k.buffer("UB", (pixels,), sums, slots=1 if mixed else 2, name="acc_ub")
        self.wide = k.buffer("UB", (patches,), sums, name="wide_ub") if mixed else None
        self.out = k.buffer("UB", (pixels,), dtype, slots=2, name="out_ub") if mixed else None

    def emit(self, piece: Piece) -> None:
        """Clear the piece, add every tap of every plane, write it."""
        (rows, _, row_taps, _), (columns, _, column_taps, _) = self.kernel.patterns[piece.pattern]
        s, (lh, lw), sums = self.kernel.shape, self.kernel.shape.out, self.kernel.sums
        acc, loaded = self.acc.next(), None
        size = piece.planes * rows * columns * s.cin
        self.k.vec_dup(acc.at(0, size * sums.bytes), 0.0, sums)
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
                self._add(
                    Grid(acc, first, s.stride[0] * columns, s.stride[1]), source, (high, wide)
                )
        self._store(acc, piece.planes * rows, columns)

    def _load(self, at: int, extent: tuple[int, int]) -> Slot:
        """(rows, windows) of grad from window ``at`` on, in the sums' type."""
        kernel, grad = self.kernel, self.grad.next()
        source = kernel.lines(kernel.read, at, extent)
        self.k.data_move(grad, source, kernel.read.dtype)
        if self.wide is None:
            return grad
        wide = self.wide.next()
        self.k.vec_cast(wide, grad.at(0, source.size), kernel.read.dtype, kernel.sums)
        return wide

    def _add(self, target: Grid, source: Grid, extent: tuple[int, int]) -> None:
        """Add a rectangle of windows."""
        sums, saturate = self.kernel.sums, self.kernel.saturate
        pixel = self.kernel.shape.cin * sums.bytes
        for place, patch in rectangles(target, source, extent, pixel):
            self.k.vec_binary("add", place, place, patch, sums, saturate=saturate)

    def _store(self, acc: Slot, rows: int, columns: int) -> None:
        """Round the sums if they are wider, and write ``rows`` rows of the piece."""
        kernel, place = self.kernel, self.kernel.lines(self.kernel.out, 0, (rows, columns))
        dtype, sums = kernel.out.dtype, kernel.sums
        if self.out is not None:
            wide = acc.at(0, place.size // dtype.bytes * FP32.bytes)
            acc = self.out.next()
            self.k.vec_cast(acc, wide, sums, dtype, saturate=kernel.saturate)
        self.k.data_move(place, acc, dtype)
