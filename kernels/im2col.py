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

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.windows import WindowCut, window_cuts
from npusim.kernels.tilings.im2col import Tiling, elements
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    BLOCK_BYTES,
    ArgumentError,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_runs,
)
from npusim.shapes.convolution import Convolution

__all__ = ["Im2col", "Tiling"]


class Piece(NamedTuple):
    """The number of a pattern (see ``Im2col.patterns``), in so many planes."""

    pattern: int
    planes: int


class Side(NamedTuple):
    """What the program of a piece depends on along one axis: windows, pixels, and per tap both."""

    size: int
    span: int
    taps: tuple[tuple[int, int, int], ...]


class Image(NamedTuple):
    """Pixels in UB: the slot, the first of them, and how many make a row."""

    slot: Slot
    first: int
    width: int


@dataclass(frozen=True)
class Im2col(Spread):
    """The kernel for one shape."""

    shape: Convolution
    tiling: Tiling
    x: Tensor
    out: Tensor

    name: ClassVar[str] = "im2col"

    @property
    def anywhere(self) -> bool:
        return self.shape.cin * self.x.dtype.bytes % BLOCK_BYTES != 0  # of a pixel

    @property
    def needed_bytes(self) -> dict[str, int]:
        return {self.x.name: self.shape.used("inputs", self.x.size_bytes)}

    def __post_init__(self) -> None:
        s, t = self.shape, self.tiling
        if t.at_once and (t.rows < s.out[0] or t.columns < s.out[1]):
            raise ArgumentError(
                f"tiling is {t.rows}x{t.columns} windows at once of {s.out}; at_once needs whole "
                "images: raise rows and columns or set at_once=False"
            )
        for tensor, each in ((self.x, _pixels(s)), (self.out, _patches(s))):
            want = s.n * each * tensor.dtype.bytes
            if tensor.size_bytes != want or tensor.dtype != self.x.dtype:
                raise ArgumentError(
                    f"im2col: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; {s} makes "
                    f"it {self.x.dtype} of {s.n} x {each} elements"
                )

    @cached_property
    def pieces(self) -> list[tuple[WindowCut, WindowCut]]:
        """The pieces of the windows, row by row: a cut of their rows and one of their columns."""
        s, t = self.shape, self.tiling
        return list(product(window_cuts(s, 0, t.rows), window_cuts(s, 1, t.columns)))

    @cached_property
    def patterns(self) -> list[tuple[Side, Side]]:
        """Pieces that look alike share a pattern: same sizes, and same taps after their base."""
        return list(dict.fromkeys(map(_pattern, self.pieces)))

    def stream(self, device: Device, cores: int) -> Stream:
        read, written = self.x.size_bytes, self.out.size_bytes
        held = ceil_div(2 * (read + written), device.memory("UB").size_bytes)
        return Stream(
            read=read,
            written=written,
            tasks=np.maximum(np.arange(1, cores + 1), held),
            vector=(("muls", written),),
            loads=1 if self.tiling.image else self.shape.taps,
        )

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        return Plan(self._tasks(cores), _Nest(self, k).emit)

    def _tasks(self, cores: int) -> Tasks[Piece]:
        s, t, e = self.shape, self.tiling, self.x.dtype.bytes
        whole = (0, 0) if t.at_once else None  # then whole planes are loaded, from pixel 0 on
        number = {pattern: i for i, pattern in enumerate(self.patterns)}
        pattern = np.array([number[_pattern(piece)] for piece in self.pieces], np.int64)
        bases = [whole or (r.base, c.base) for r, c in self.pieces]
        pixel = np.array([y * s.spatial[1] + x for y, x in bases], np.int64)
        window = np.array([r.start * s.out[1] + c.start for r, c in self.pieces], np.int64)
        total = ceil_div(s.n, t.planes) * len(self.pieces)
        piece = np.arange(total) % len(self.pieces)
        plane = np.arange(total) // len(self.pieces) * t.planes
        return Tasks(
            in_runs(total, cores),
            Piece,
            {"pattern": pattern[piece], "planes": np.minimum(t.planes, s.n - plane)},
            {
                "x": (plane * _pixels(s) + pixel[piece] * s.cin) * e,
                "out": (plane * _patches(s) + window[piece] * s.cin) * e,
            },
        )


class _Nest:
    """The program of a piece, on the buffers of one core."""

    def __init__(self, kernel: Im2col, k: Language) -> None:
        self.kernel, self.k = kernel, k
        image, patches = elements(kernel.shape, kernel.tiling)
        self.image = k.buffer("UB", (image,), kernel.x.dtype, slots=2, name="image_ub")
        self.patch = k.buffer("UB", (patches,), kernel.x.dtype, slots=2, name="patch_ub")

    def emit(self, piece: Piece) -> None:
        """Load the image, cut the patches of every tap, write them."""
        kernel, s = self.kernel, self.kernel.shape
        rows, columns = kernel.patterns[piece.pattern]
        if kernel.tiling.at_once:
            self._at_once(rows, columns, piece.planes)
            return
        whole = None
        if kernel.tiling.image and rows.span and columns.span:
            whole = self._load((0, 0), (rows.span, columns.span))
        for tap, (down, across) in enumerate(product(rows.taps, columns.taps)):
            patch = self.patch.next()
            image = whole
            if whole is not None:
                image = whole._replace(first=down[1] * whole.width + across[1])
            elif down[2] and across[2]:
                image = self._load_tap(down, across)
            self._cut((patch, 0), (rows.size, columns.size), image, (down, across))
            self._store(patch, tap * prod(s.out), rows.size, columns.size)

    def _at_once(self, rows: Side, columns: Side, planes: int) -> None:
        """Whole planes: their images in one move, and all their patches in one."""
        s, x = self.kernel.shape, self.kernel.x
        (lh, lw), width, patch = s.out, s.spatial[1], self.patch.next()
        image, size = self.image.next(), planes * _pixels(s) * x.dtype.bytes
        self.k.data_move(image, x.at(0, size, base="x"), x.dtype)
        top = self.kernel.pieces[0][0].base * width + self.kernel.pieces[0][1].base
        taps = list(enumerate(product(rows.taps, columns.taps)))
        for plane, (tap, (down, across)) in product(range(planes), taps):
            first = plane * prod(s.spatial) + top + down[1] * width + across[1]
            place = (patch, (plane * s.taps + tap) * lh * lw)
            self._cut(place, (lh, lw), Image(image, first, width), (down, across))
        self._store(patch, 0, planes * s.taps * lh, lw)

    def _load(self, at: tuple[int, int], extent: tuple[int, int], step: int = 1) -> Image:
        """Every ``step``-th of so many rows of pixels from (row, column) on, after the base."""
        x, s = self.kernel.x, self.kernel.shape
        pixel, image = s.cin * x.dtype.bytes, self.image.next()
        (row, column), (rows, wide), width = at, extent, s.spatial[1]
        first, pitch, length = (row * width + column) * pixel, step * width * pixel, wide * pixel
        if length == pitch:  # rows follow each other
            rows, length = 1, rows * length
        source = x.at(first, length, base="x", rows=rows, pitch=pitch)
        self.k.data_move(image, source, x.dtype)
        return Image(image, 0, wide)

    def _load_tap(self, down: tuple[int, int, int], across: tuple[int, int, int]) -> Image:
        """The rows that one tap reads, from its first column to its last."""
        (_, row, high), (_, column, count), (sh, sw) = down, across, self.kernel.shape.stride
        return self._load((row, column), (high, (count - 1) * sw + 1), sh)

    def _cut(
        self,
        place: tuple[Slot, int],
        extent: tuple[int, int],
        image: Image | None,
        taps: tuple[tuple[int, int, int], tuple[int, int, int]],
    ) -> None:
        """The patch of one tap, at a place (slot, first window): zeros, and pixels of the image."""
        s, dtype, (patch, at) = self.kernel.shape, self.kernel.x.dtype, place
        pixel, (rows, columns), ((y, _, high), (x, _, wide)) = s.cin * dtype.bytes, extent, taps
        if high < rows or wide < columns:
            self.k.vec_dup(patch.at(at * pixel, rows * columns * pixel), 0.0, dtype)
        if image is None or not high or not wide:
            return
        (sh, sw), to = s.stride, at + y * columns + x
        step = sh if self.kernel.tiling.image else 1  # rows of a tap of its own lie together
        hop = step * image.width
        if sw == 1 or wide == 1:  # the pixels of a row touch: all rows in one instruction
            moves = [(to, image.first, high, wide * pixel, columns * pixel, hop * pixel)]
        else:  # one instruction per row, hopping over the pixels in between
            moves = [
                (to + i * columns, image.first + i * hop, wide, pixel, pixel, sw * pixel)
                for i in range(high)
            ]
        for first, source, count, size, pitch, jump in moves:
            target = patch.at(first * pixel, size, rows=count, pitch=pitch)
            pixels = image.slot.at(source * pixel, size, rows=count, pitch=jump)
            self.k.vec_scalar("muls", target, pixels, 1.0, dtype)

    def _store(self, patch: Slot, window: int, rows: int, columns: int) -> None:
        """Write rows of windows, from window ``window`` after the base on."""
        s, out = self.kernel.shape, self.kernel.out
        pixel, width = s.cin * out.dtype.bytes, s.out[1]
        count, size = (1, rows * columns * pixel) if columns == width else (rows, columns * pixel)
        place = out.at(window * pixel, size, base="out", rows=count, pitch=width * pixel)
        self.k.data_move(place, patch.at(0, rows * columns * pixel), out.dtype)


def _pattern(piece: tuple[WindowCut, WindowCut]) -> tuple[Side, Side]:
    rows, columns = piece
    return Side(rows.size, rows.span, rows.taps), Side(columns.size, columns.span, columns.taps)


def _pixels(shape: Convolution) -> int:
    """Elements of x in one plane."""
    return shape.cin * prod(shape.spatial)


def _patches(shape: Convolution) -> int:
    """Elements of out in one plane."""
    return shape.cout * prod(shape.out)
