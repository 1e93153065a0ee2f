"""im2col (unfold): the patches that a sliding window cuts out of an image, tap by tap.

    out[p, kh * KW + kw, oh * Lw + ow] = x[p, h, w], 0 outside the image,
        where h = oh * sH - padH + kh * dH and w = ow * sW - padW + kw * dW

Layouts: x (planes, H, W, block) and out (planes, KH * KW, Lh * Lw, block), fp16 or fp32. A plane is
a channel with block 1 (framework layout) or a block of 16 channels (5HD). The shape is the
convolution whose windows these are: ``n`` planes of ``cin`` elements, a channel out per tap.

for (run of planes, piece of the windows) of this core:               # one task
    UB image <- the pixels that the piece reads, if they fit          # MTE2
    for kh, kw:
        UB image <- the pixels that this tap reads, unless at once    # MTE2
        UB patch <- 0 where windows read padding                      # V
        UB patch <- image * 1, every sH-th row, every sW-th column    # V
        out piece of the tap <- patch; or all taps in one move        # MTE3

The product with one copies every value as it is. Where whole planes fit, the images of several
come and the patches of all taps leave in one move each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar

from npusim.kernels.parts.ub_room import UbBuffer
from npusim.kernels.windows.im2col_tiling import Tiling, elements
from npusim.kernels.windows.patches import Grid, Nest, Patches, Piece, Side, rectangles
from npusim.kernels.windows.windows import Tap
from npusim.language import Language, Plan, Slot

__all__ = ["Im2col", "Tiling"]


@dataclass(frozen=True)
class Im2col(Patches):
    """The kernel for one shape."""

    name: ClassVar[str] = "im2col"
    uses: ClassVar[Mapping[str, str]] = {"read": "inputs"}
    base: ClassVar[str] = "x"
    cuts_image: ClassVar[bool] = True

    @property
    def streamed(self) -> dict[str, Any]:
        loads = 1 if self.tiling.image else self.shape.taps
        return {"vector": (("muls", self.out.size_bytes),), "loads": loads}

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        image, patch = elements(self.shape, self.tiling)
        dtype = self.read.dtype
        buffers = {"image": UbBuffer(dtype, image, 2), "patch": UbBuffer(dtype, patch, 2)}
        return Plan(self.tasks(cores), _Nest(self, k, buffers).emit)


class _Nest(Nest):
    """The program of a piece."""

    kernel: Im2col

    def emit(self, piece: Piece) -> None:
        """Load the image, cut the patches of every tap, write them."""
        rows, columns = self.kernel.patterns[piece.pattern]
        if self.kernel.tiling.at_once:
            self._whole_planes(rows, columns, piece.planes)
            return
        whole = None
        if self.kernel.tiling.image and rows.span and columns.span:
            whole = self._load(0, 0, (rows.span, columns.span))
        extent = rows.size, columns.size
        for tap, (down, across) in enumerate(product(rows.taps, columns.taps)):
            patch = self.buffers["patch"].next()
            image = self._image_of_tap(whole, down, across)
            self._cut(Grid(patch, 0, columns.size, 1), extent, image, down, across)
            self._store(patch, tap * prod(self.kernel.shape.out), extent)

    def _image_of_tap(self, whole: Grid | None, down: Tap, across: Tap) -> Grid | None:
        """The pixels that a tap reads, of a ``whole`` image or loaded for it; None for none."""
        if whole is not None:
            return whole._replace(first=down[1] * whole.pitch + across[1])
        if not down[2] or not across[2]:
            return None
        stride_h, stride_w = self.kernel.shape.stride
        # The rows that the tap reads, from its first column to its last.
        extent = down[2], (across[2] - 1) * stride_w + 1
        return self._load(down[1], across[1], extent, stride_h)

    def _whole_planes(self, rows: Side, columns: Side, planes: int) -> None:
        """Whole planes: their images in one move, and all their patches in one."""
        s = self.kernel.shape
        x = self.kernel.read
        high, wide = s.out
        row = s.spatial[1]
        size = planes * self.kernel.sides[0].elements * x.dtype.bytes
        patch = self.buffers["patch"].next()
        image = self.load("image", x.at(0, size, base="x"))
        top, left = self.kernel.pieces[0]
        for plane in range(planes):
            corner = plane * prod(s.spatial) + top.base * row + left.base
            for tap, (down, across) in enumerate(product(rows.taps, columns.taps)):
                pixels = Grid(image, corner + down[1] * row + across[1], row, s.stride[1])
                windows = Grid(patch, (plane * s.taps + tap) * high * wide, wide, 1)
                self._cut(windows, (high, wide), pixels, down, across)
        self._store(patch, 0, (planes * s.taps * high, wide))

    def _load(self, row: int, column: int, extent: tuple[int, int], step: int = 1) -> Grid:
        """Every ``step``-th of so many rows of pixels from a row and column on, after the base."""
        kernel = self.kernel
        first = row * kernel.shape.spatial[1] + column
        pixels = kernel.lines(kernel.read, first, extent, step)
        return Grid(self.load("image", pixels), 0, extent[1], kernel.shape.stride[1])

    def _cut(
        self, windows: Grid, extent: tuple[int, int], image: Grid | None, down: Tap, across: Tap
    ) -> None:
        """The patch of one tap, (rows, columns) of ``windows``: zeros, and pixels of the image."""
        rows, columns = extent
        y, _, high = down
        x, _, wide = across
        if high < rows or wide < columns:
            patch = windows.slot.at(windows.first * self.pixel, rows * columns * self.pixel)
            self.k.vec_dup(patch, 0.0, self.dtype)
        if image is None or not high or not wide:
            return
        # Rows of an image that was loaded for its tap touch.
        step = self.kernel.shape.stride[0] if self.kernel.tiling.image else 1
        inside = windows._replace(first=windows.first + y * columns + x)
        read = image._replace(pitch=step * image.pitch)
        for target, pixels in rectangles(inside, read, (high, wide), self.pixel):
            self.k.vec_scalar("muls", target, pixels, 1.0, self.dtype)

    def _store(self, patch: Slot, window: int, extent: tuple[int, int]) -> None:
        """Write rows of windows, from window ``window`` after the base on."""
        self.store(patch.at(0, prod(extent) * self.pixel), extent, first=window)
