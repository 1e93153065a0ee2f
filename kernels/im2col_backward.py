"""Backward of im2col (fold): windows of patches are added back into the image they came from.

    out[p, h, w] = sum over taps (kh, kw) of grad[p, kh * KW + kw, oh * Lw + ow]
                   where h = oh * sH - padH + kh * dH and w = ow * sW - padW + kw * dW

Layouts: grad (planes, KH * KW, Lh * Lw, block) and out (planes, H, W, block), fp16 or fp32. A
plane is a channel with block 1 (framework layout) or a block of 16 channels (5HD).

A core gathers whole pieces of the image, so that nobody else adds into them. Taps are added in
order, kh outer, kw inner, in the tensor's type; or in fp32 with one rounding at the end.

for (run of planes, piece of the image) of this core:                 # one *unit*
    UB acc <- 0                                                       # V
    UB patches of all taps <- GM, if they fit at once                 # MTE2
    for kh, kw:
        UB patches of the tap that fall into the piece <- GM          # MTE2, unless at once
        UB acc[every sH-th row, every sW-th column] += patches        # V
    out piece <- acc                                                  # (V), MTE3
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.dtypes import FP32, DType
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Slot, Tensor
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

#: Smallest piece of a plane, in bytes, worth giving to a core of its own.
LEAST_PIECE = 4 * 1024


@dataclass(frozen=True, kw_only=True)
class FoldShape:
    """The geometry; pairs are (height, width), ``block`` elements lie at every pixel."""

    planes: int
    block: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]

    @property
    def windows(self) -> tuple[int, int]:
        """(Lh, Lw): positions of the kernel; below 1 where it reaches past the padded image."""
        lh, lw = (
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                self.image, self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        )
        return lh, lw

    @property
    def taps(self) -> int:
        """Places in the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def patches(self) -> int:
        """Elements of grad in one plane."""
        lh, lw = self.windows
        return self.taps * lh * lw * self.block

    @property
    def pixels(self) -> int:
        """Elements of out in one plane."""
        return self.image[0] * self.image[1] * self.block


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A unit makes ``rows`` x ``columns`` pixels of ``planes`` planes.

    ``at_once`` brings all taps to UB in one move; only for whole images, and needed for several
    planes.
    """

    rows: int
    columns: int
    planes: int = 1
    at_once: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "planes"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"tiling {name} is {getattr(self, name)}; it must be >= 1")
        if self.planes > 1 and not self.at_once:
            raise ArgumentError(
                f"tiling planes is {self.planes} without at_once; only planes whose taps are "
                "loaded at once can share a unit: set at_once or planes=1"
            )

    def __str__(self) -> str:
        load = f"{self.planes} planes at once" if self.at_once else "tap by tap"
        return f"{self.rows}x{self.columns} pixels, {load}"


@dataclass(frozen=True)
class Cut:
    """A piece of one image axis and, per tap, what falls into it.

    ``taps`` are (first pixel in the piece, first window after ``base``, windows).
    """

    start: int
    size: int
    base: int
    taps: tuple[tuple[int, int, int], ...]


def cuts(shape: FoldShape, axis: int, step: int) -> list[Cut]:
    """Axis 0 (rows) or 1 (columns) of the image in pieces of ``step`` pixels."""
    size, windows, stride = shape.image[axis], shape.windows[axis], shape.stride[axis]
    pieces = []
    for start in range(0, size, step):
        count, base, taps = min(step, size - start), start // stride, []
        for k in range(shape.kernel[axis]):
            shift = k * shape.dilation[axis] - shape.padding[axis]  # window o reads o*stride+shift
            low = max(0, ceil_div(start - shift, stride))
            high = min(windows, ceil_div(start + count - shift, stride))
            inside = (low * stride + shift - start, low - base, high - low)
            taps.append(inside if high > low else (0, 0, 0))
        pieces.append(Cut(start, count, base, tuple(taps)))
    return pieces


def ub_bytes(shape: FoldShape, tiling: Tiling, kind: DType, sums: DType) -> int:
    """Bytes of UB a tiling takes, up to the alignment of its buffers."""
    pixels, patches = _elements(shape, tiling)
    if kind == sums:
        return 2 * kind.bytes * (pixels + patches)
    return (2 * kind.bytes + sums.bytes) * (pixels + patches)


def auto_tiling(shape: FoldShape, kind: DType, sums: DType, cores: int, ub: int) -> Tiling:
    """Whole planes at once where they fit ``ub`` bytes and keep all cores busy, else pieces."""
    room = ub - 1024  # for the alignment of six buffers
    (h, w), (sh, sw) = shape.image, shape.stride
    worth = max(1, shape.pixels * kind.bytes // LEAST_PIECE)
    pieces = min(ceil_div(cores, shape.planes), worth)
    whole = Tiling(rows=h, columns=w, at_once=True)
    size = ub_bytes(shape, whole, kind, sums)
    if pieces == 1 and size <= room:
        fit = min(room // size, ceil_div(shape.planes, cores))
        return replace(whole, planes=fit)
    tiling = Tiling(rows=_rounded(ceil_div(h, pieces), sh, h), columns=w)
    while ub_bytes(shape, tiling, kind, sums) > room:
        if tiling.rows > 1:
            tiling = replace(tiling, rows=_rounded(ceil_div(tiling.rows, 2), sh, tiling.rows - 1))
        elif tiling.columns > 1:
            half = ceil_div(tiling.columns, 2)
            tiling = replace(tiling, columns=_rounded(half, sw, tiling.columns - 1))
        else:
            break  # one pixel at a time: the buffers say what is missing
    return tiling


def _rounded(value: int, multiple: int, most: int) -> int:
    """``value`` up to a multiple, if that is at most ``most``: then all pieces look alike."""
    up = ceil_div(value, multiple) * multiple
    return up if up <= most else min(value, most)


def _elements(shape: FoldShape, tiling: Tiling) -> tuple[int, int]:
    """Elements of out and of grad that a unit holds in one buffer slot."""
    rows, columns = min(tiling.rows, shape.image[0]), min(tiling.columns, shape.image[1])
    pixels = tiling.planes * rows * columns * shape.block
    if tiling.at_once:
        return pixels, tiling.planes * shape.patches
    (lh, lw), (sh, sw) = shape.windows, shape.stride
    return pixels, min(lh, ceil_div(rows, sh)) * min(lw, ceil_div(columns, sw)) * shape.block


class Im2colBackward(Kernel):
    """The kernel for one shape; sums are of type ``sums``: the tensors' or fp32.

    ``saturate`` keeps fp16 sums finite (see ``Device.saturates``).
    """

    name: ClassVar[str] = "im2col_backward"
    role: ClassVar[str] = "vector"

    def __init__(
        self,
        shape: FoldShape,
        tiling: Tiling,
        grad: Tensor,
        out: Tensor,
        sums: DType,
        *,
        saturate: bool = False,
    ) -> None:
        h, w = shape.image
        if tiling.at_once and (tiling.rows < h or tiling.columns < w):
            raise ArgumentError(
                f"tiling is {tiling} of an image of {shape.image}; at_once needs whole images: "
                "raise rows and columns or set at_once=False"
            )
        for tensor, each in ((grad, shape.patches), (out, shape.pixels)):
            want = shape.planes * each * tensor.dtype.bytes
            if tensor.size_bytes != want or tensor.dtype != grad.dtype:
                raise ArgumentError(
                    f"im2col_backward: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; "
                    f"{shape} makes it {grad.dtype} of {shape.planes} x {each} elements"
                )
        self.shape, self.tiling, self.grad, self.out = shape, tiling, grad, out
        self.kind, self.sums, self.saturate = grad.dtype, sums, saturate
        self.tiling_text = str(tiling)
        rows, columns = cuts(shape, 0, tiling.rows), cuts(shape, 1, tiling.columns)
        self.pieces = list(product(rows, columns))
        # Pieces that look alike share a pattern: same size, and same taps after their base.
        self.patterns = list(dict.fromkeys(_pattern(piece) for piece in self.pieces))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.grad, self.out)

    def units(self, cores: int) -> Units:
        s, e = self.shape, self.kind.bytes
        number = {pattern: i for i, pattern in enumerate(self.patterns)}
        pattern = np.array([number[_pattern(piece)] for piece in self.pieces], np.int64)
        window = np.array([r.base * s.windows[1] + c.base for r, c in self.pieces], np.int64)
        pixel = np.array([r.start * s.image[1] + c.start for r, c in self.pieces], np.int64)
        total = -(-s.planes // self.tiling.planes) * len(self.pieces)
        piece = np.arange(total) % len(self.pieces)
        plane = np.arange(total) // len(self.pieces) * self.tiling.planes
        return Units(
            np.arange(total) * min(cores, total) // total,
            {
                "pattern": pattern[piece],
                "planes": np.minimum(self.tiling.planes, s.planes - plane),
            },
            {
                "grad": (plane * s.patches + window[piece] * s.block) * e,
                "out": (plane * s.pixels + pixel[piece] * s.block) * e,
            },
        )

    # -- the program -----------------------------------------------------------------------

    def buffers(self, k: Language) -> None:
        pixels, patches = _elements(self.shape, self.tiling)
        mixed = self.kind != self.sums
        self.grad_ub = k.buffer("UB", (patches,), self.kind, slots=2, name="grad_ub")
        self.acc_ub = k.buffer("UB", (pixels,), self.sums, slots=1 if mixed else 2, name="acc_ub")
        if mixed:
            self.wide_ub = k.buffer("UB", (patches,), self.sums, name="wide_ub")
            self.out_ub = k.buffer("UB", (pixels,), self.kind, slots=2, name="out_ub")

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        rows, row_taps, columns, column_taps = self.patterns[unit.pattern]
        s, (lh, lw) = self.shape, self.shape.windows
        acc = self.acc_ub.next()
        size = unit.planes * rows * columns * s.block
        k.vec_dup(acc.at(0, size * self.sums.bytes), 0.0, self.sums)
        loaded = self._load(k, 0, 1, unit.planes * s.patches) if self.tiling.at_once else None
        for plane in range(unit.planes):
            for tap, (down, across) in enumerate(product(row_taps, column_taps)):
                (y, oh, high), (x, ow, wide) = down, across
                if not high or not wide:
                    continue
                at = ((plane * s.taps + tap) * lh + oh) * lw + ow
                source = (loaded, at, lw)
                if loaded is None:
                    source = (self._load(k, at, high, wide * s.block), 0, wide)
                self._add(k, (acc, (plane * rows + y) * columns + x, columns), source, (high, wide))
        self._store(k, acc, unit.planes * rows, columns)

    def _load(self, k: Language, at: int, rows: int, row: int) -> Slot:
        """``rows`` pieces of ``row`` elements of grad from window ``at``, in the sums' type."""
        e, width = self.kind.bytes, self.shape.windows[1] * self.shape.block
        if row == width:  # rows follow each other in GM
            rows, row = 1, rows * row
        grad = self.grad_ub.next()
        size = rows * row * e
        source = self.grad.at(
            at * self.shape.block * e, row * e, base="grad", rows=rows, pitch=width * e
        )
        k.data_move(grad.at(0, size), source, self.kind)
        if self.kind == self.sums:
            return grad
        wide = self.wide_ub.next()
        k.vec_cast(wide.at(0, rows * row * self.sums.bytes), grad.at(0, size), self.kind, self.sums)
        return wide

    def _add(
        self,
        k: Language,
        target: tuple[Slot, int, int],
        source: tuple[Slot | None, int, int],
        extent: tuple[int, int],
    ) -> None:
        """Add a rectangle of windows; both sides are (slot, first pixel, pixels in a row)."""
        (acc, to, columns), (grad, at, width), (high, wide) = target, source, extent
        assert grad is not None
        (sh, sw), pixel = self.shape.stride, self.shape.block * self.sums.bytes
        if sw == 1 or wide == 1:  # the pixels of a row touch: all rows in one instruction
            moves = [(to, at, high, wide * pixel, sh * columns * pixel, width * pixel)]
        else:  # one instruction per row, hopping over the pixels in between
            moves = [
                (to + i * sh * columns, at + i * width, wide, pixel, sw * pixel, pixel)
                for i in range(high)
            ]
        for to, at, rows, row, hop, step in moves:
            place = acc.at(to * pixel, row, rows=rows, pitch=hop)
            patch = grad.at(at * pixel, row, rows=rows, pitch=step)
            k.vec_binary("add", place, place, patch, self.sums, saturate=self.saturate)

    def _store(self, k: Language, acc: Slot, rows: int, columns: int) -> None:
        """Round the sums if they are wider, and write ``rows`` rows of the piece."""
        s, e = self.shape, self.kind.bytes
        count, row, width = rows * columns * s.block, columns * s.block, s.image[1] * s.block
        if self.kind != self.sums:
            wide, acc = acc.at(0, count * FP32.bytes), self.out_ub.next()
            k.vec_cast(acc.at(0, count * e), wide, self.sums, self.kind, saturate=self.saturate)
        if row == width:
            rows, row = 1, count
        place = self.out.at(0, row * e, base="out", rows=rows, pitch=width * e)
        k.data_move(place, acc.at(0, count * e), self.kind)


def _pattern(
    piece: tuple[Cut, Cut],
) -> tuple[int, tuple[tuple[int, int, int], ...], int, tuple[tuple[int, int, int], ...]]:
    """What the program of a unit depends on: sizes and taps along both axes."""
    rows, columns = piece
    return rows.size, rows.taps, columns.size, columns.taps
