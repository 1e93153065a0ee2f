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

from npusim.kernels.parts.ub_room import UbBuffer
from npusim.kernels.windows.im2col_backward_tiling import Tiling, elements
from npusim.kernels.windows.patches import Grid, Nest, Patches, Piece, rectangles
from npusim.kernels.windows.windows import Tap
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
        dtype = self.read.dtype
        pixels, patches = elements(self.shape, self.tiling)
        if dtype == self.sums:
            buffers = {"grad": UbBuffer(dtype, patches, 2), "acc": UbBuffer(dtype, pixels, 2)}
        else:
            buffers = {
                "grad": UbBuffer(dtype, patches, 2),
                "acc": UbBuffer(self.sums, pixels, 1),
                "wide": UbBuffer(self.sums, patches),
                "out": UbBuffer(dtype, pixels, 2),
            }
        return Plan(self.tasks(cores), _Nest(self, k, buffers).emit)


class _Nest(Nest):
    """The program of a piece."""

    kernel: Im2colBackward

    def emit(self, piece: Piece) -> None:
        """Clear the piece, add every tap of every plane, write it."""
        kernel = self.kernel
        rows, columns = kernel.patterns[piece.pattern]
        high, wide = kernel.shape.out
        sums = self.buffers["acc"].next()
        whole = sums.at(0, piece.planes * rows.size * columns.size * self.pixel)
        self.k.vec_dup(whole, 0.0, self.wide)
        patches = None
        if kernel.tiling.at_once:
            patches = self._load(0, (piece.planes * kernel.shape.taps * high, wide))
        for plane in range(piece.planes):
            for tap, (down, across) in enumerate(product(rows.taps, columns.taps)):
                if not down[2] or not across[2]:
                    continue
                window = (plane * kernel.shape.taps + tap) * high * wide
                source = self._windows_of_tap(patches, window, down, across)
                first = (plane * rows.size + down[0]) * columns.size + across[0]
                stride_h, stride_w = kernel.shape.stride
                target = Grid(sums, first, stride_h * columns.size, stride_w)
                self._add(target, source, (down[2], across[2]))
        self.store(whole, (piece.planes * rows.size, columns.size))

    def _windows_of_tap(self, patches: Slot | None, window: int, down: Tap, across: Tap) -> Grid:
        """The windows that a tap gives, ``window`` its first: of all ``patches``, or loaded."""
        wide = self.kernel.shape.out[1]
        first = window + down[1] * wide + across[1]
        if patches is not None:
            return Grid(patches, first, wide, 1)
        return Grid(self._load(first, (down[2], across[2])), 0, across[2], 1)

    def _add(self, target: Grid, source: Grid, extent: tuple[int, int]) -> None:
        """Add (rows, columns) of windows to the pixels that they were cut from."""
        for pixels, windows in rectangles(target, source, extent, self.pixel):
            self.k.vec_binary(
                "add", pixels, pixels, windows, self.wide, saturate=self.kernel.saturate
            )

    def _load(self, first: int, extent: tuple[int, int]) -> Slot:
        """(rows, windows) of grad from window ``first`` on, in the sums' type."""
        return self.load("grad", self.kernel.lines(self.kernel.read, first, extent))
