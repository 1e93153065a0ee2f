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

from npusim.kernels.parts.ub_room import Held
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
        sizes = zip(("image", "patch"), elements(self.shape, self.tiling), strict=True)
        held = {name: Held(self.read.dtype, size, 2) for name, size in sizes}
        return Plan(self.tasks(cores), _Nest(self, k, held).emit)


class _Nest(Nest):
    """The program of a piece."""

    kernel: Im2col

    def emit(self, piece: Piece) -> None:
        """Load the image, cut the patches of every tap, write them."""
        kernel, s = self.kernel, self.kernel.shape
        rows, columns = kernel.patterns[piece.pattern]
        if kernel.tiling.at_once:
            self._at_once(rows, columns, piece.planes)
            return
        (_, sw), whole = s.stride, None
        if kernel.tiling.image and rows.span and columns.span:
            whole = self._load((0, 0), (rows.span, columns.span))
        for tap, (down, across) in enumerate(product(rows.taps, columns.taps)):
            patch = self.held["patch"].next()
            image = whole
            if whole is not None:
                image = whole._replace(first=down[1] * whole.pitch + across[1])
            elif down[2] and across[2]:
                # The rows that the tap reads, from its first column to its last.
                extent = down[2], (across[2] - 1) * sw + 1
                image = self._load((down[1], across[1]), extent, s.stride[0])
            self._cut((patch, 0), (rows.size, columns.size), image, (down, across))
            self._store(patch, tap * prod(s.out), (rows.size, columns.size))

    def _at_once(self, rows: Side, columns: Side, planes: int) -> None:
        """Whole planes: their images in one move, and all their patches in one."""
        s, x = self.kernel.shape, self.kernel.read
        (lh, lw), width, patch = s.out, s.spatial[1], self.held["patch"].next()
        each, _ = self.kernel.sides[0]
        image = self.load("image", x.at(0, planes * each * x.dtype.bytes, base="x"))
        top = self.kernel.pieces[0][0].base * width + self.kernel.pieces[0][1].base
        taps = list(enumerate(product(rows.taps, columns.taps)))
        for plane, (tap, (down, across)) in product(range(planes), taps):
            first = plane * prod(s.spatial) + top + down[1] * width + across[1]
            place = (patch, (plane * s.taps + tap) * lh * lw)
            self._cut(place, (lh, lw), Grid(image, first, width, s.stride[1]), (down, across))
        self._store(patch, 0, (planes * s.taps * lh, lw))

    def _load(self, at: tuple[int, int], extent: tuple[int, int], step: int = 1) -> Grid:
        """Every ``step``-th of so many rows of pixels from (row, column) on, after the base."""
        kernel, s, (row, column) = self.kernel, self.kernel.shape, at
        pixels = kernel.lines(kernel.read, row * s.spatial[1] + column, extent, step)
        return Grid(self.load("image", pixels), 0, extent[1], s.stride[1])

    def _cut(
        self,
        place: tuple[Slot, int],
        extent: tuple[int, int],
        image: Grid | None,
        taps: tuple[Tap, Tap],
    ) -> None:
        """The patch of one tap, at a place (slot, first window): zeros, and pixels of the image."""
        s, (patch, at) = self.kernel.shape, place
        pixel, (rows, columns), ((y, _, high), (x, _, wide)) = self.pixel, extent, taps
        if high < rows or wide < columns:
            self.k.vec_dup(patch.at(at * pixel, rows * columns * pixel), 0.0, self.dtype)
        if image is None or not high or not wide:
            return
        step = s.stride[0] if self.kernel.tiling.image else 1  # rows of a tap of its own touch
        windows = Grid(patch, at + y * columns + x, columns, 1)
        read = image._replace(pitch=step * image.pitch)
        for target, pixels in rectangles(windows, read, (high, wide), pixel):
            self.k.vec_scalar("muls", target, pixels, 1.0, self.dtype)

    def _store(self, patch: Slot, window: int, extent: tuple[int, int]) -> None:
        """Write rows of windows, from window ``window`` after the base on."""
        self.store(patch.at(0, prod(extent) * self.pixel), extent, at=window)
