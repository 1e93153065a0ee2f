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
from functools import cached_property
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.windows import Cut, cuts
from npusim.kernels.tilings.im2col_backward import Tiling, elements, patches, pixels
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    BLOCK_BYTES,
    FP32,
    ArgumentError,
    DType,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_runs,
)
from npusim.shapes.convolution import Convolution

__all__ = ["Im2colBackward", "Tiling"]


class Piece(NamedTuple):
    """The number of a pattern (see ``Im2colBackward.patterns``), in so many planes."""

    pattern: int
    planes: int


#: What the program of a piece depends on: sizes and taps along both axes.
Pattern = tuple[int, tuple[tuple[int, int, int], ...], int, tuple[tuple[int, int, int], ...]]


@dataclass(frozen=True)
class Im2colBackward(Spread):
    """The kernel for one shape; sums are of type ``sums``: the tensors' or fp32.

    ``saturate`` keeps fp16 sums finite (see ``Device.saturates``).
    """

    shape: Convolution
    tiling: Tiling
    grad: Tensor
    out: Tensor
    sums: DType
    saturate: bool = False

    name: ClassVar[str] = "im2col_backward"

    @property
    def anywhere(self) -> bool:
        return self.shape.cin * self.grad.dtype.bytes % BLOCK_BYTES != 0  # of a pixel

    @property
    def needed_bytes(self) -> dict[str, int]:
        s = self.shape
        elements = self.grad.size_bytes // prod(s.kernel + s.out)
        return {self.grad.name: elements * prod(use.pairs for use in s.uses)}

    def __post_init__(self) -> None:
        shape, tiling, grad = self.shape, self.tiling, self.grad
        h, w = shape.spatial
        if tiling.at_once and (tiling.rows < h or tiling.columns < w):
            raise ArgumentError(
                f"tiling is {tiling} of an image of {shape.spatial}; at_once needs whole images: "
                "raise rows and columns or set at_once=False"
            )
        for tensor, each in ((grad, patches(shape)), (self.out, pixels(shape))):
            want = shape.n * each * tensor.dtype.bytes
            if tensor.size_bytes != want or tensor.dtype != grad.dtype:
                raise ArgumentError(
                    f"im2col_backward: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; "
                    f"{shape} makes it {grad.dtype} of {shape.n} x {each} elements"
                )

    @cached_property
    def pieces(self) -> list[tuple[Cut, Cut]]:
        """The pieces of an image, row by row: a cut of its rows and one of its columns."""
        s, t = self.shape, self.tiling
        return list(product(cuts(s, 0, t.rows), cuts(s, 1, t.columns)))

    @cached_property
    def patterns(self) -> list[Pattern]:
        """Pieces that look alike share a pattern: same size, and same taps after their base."""
        return list(dict.fromkeys(_pattern(piece) for piece in self.pieces))

    def stream(self, device: Device, cores: int) -> Stream:
        read, written = self.grad.size_bytes, self.out.size_bytes
        held = ceil_div(2 * (read + written), device.memory("UB").size_bytes)
        summed = read // self.grad.dtype.bytes * self.sums.bytes
        return Stream(
            read=read,
            written=written,
            tasks=np.maximum(np.arange(1, cores + 1), held),
            vector=(("add", summed),),
            loads=1 if self.tiling.at_once else self.shape.taps,
        )

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        return Plan(self._tasks(cores), _Nest(self, k).emit)

    def _tasks(self, cores: int) -> Tasks[Piece]:
        s, e = self.shape, self.grad.dtype.bytes
        number = {pattern: i for i, pattern in enumerate(self.patterns)}
        pattern = np.array([number[_pattern(piece)] for piece in self.pieces], np.int64)
        window = np.array([r.base * s.out[1] + c.base for r, c in self.pieces], np.int64)
        pixel = np.array([r.start * s.spatial[1] + c.start for r, c in self.pieces], np.int64)
        total = ceil_div(s.n, self.tiling.planes) * len(self.pieces)
        piece = np.arange(total) % len(self.pieces)
        plane = np.arange(total) // len(self.pieces) * self.tiling.planes
        return Tasks(
            in_runs(total, cores),
            Piece,
            {
                "pattern": pattern[piece],
                "planes": np.minimum(self.tiling.planes, s.n - plane),
            },
            {
                "grad": (plane * patches(s) + window[piece] * s.cin) * e,
                "out": (plane * pixels(s) + pixel[piece] * s.cin) * e,
            },
        )


class _Nest:
    """The program of a piece, on the buffers of one core."""

    def __init__(self, kernel: Im2colBackward, k: Language) -> None:
        self.kernel, self.k = kernel, k
        dtype, sums = kernel.grad.dtype, kernel.sums
        pixels, patches = elements(kernel.shape, kernel.tiling)
        mixed = dtype != sums
        self.grad = k.buffer("UB", (patches,), dtype, slots=2, name="grad_ub")
        self.acc = k.buffer("UB", (pixels,), sums, slots=1 if mixed else 2, name="acc_ub")
        self.wide = k.buffer("UB", (patches,), sums, name="wide_ub") if mixed else None
        self.out = k.buffer("UB", (pixels,), dtype, slots=2, name="out_ub") if mixed else None

    def emit(self, piece: Piece) -> None:
        """Clear the piece, add every tap of every plane, write it."""
        rows, row_taps, columns, column_taps = self.kernel.patterns[piece.pattern]
        s, (lh, lw), sums = self.kernel.shape, self.kernel.shape.out, self.kernel.sums
        acc, loaded = self.acc.next(), None
        size = piece.planes * rows * columns * s.cin
        self.k.vec_dup(acc.at(0, size * sums.bytes), 0.0, sums)
        if self.kernel.tiling.at_once:
            loaded = self._load(0, 1, piece.planes * patches(s))
        for plane in range(piece.planes):
            for tap, (down, across) in enumerate(product(row_taps, column_taps)):
                (y, oh, high), (x, ow, wide) = down, across
                if not high or not wide:
                    continue
                at = ((plane * s.taps + tap) * lh + oh) * lw + ow
                if loaded is None:
                    source = (self._load(at, high, wide * s.cin), 0, wide)
                else:
                    source = (loaded, at, lw)
                self._add((acc, (plane * rows + y) * columns + x, columns), source, (high, wide))
        self._store(acc, piece.planes * rows, columns)

    def _load(self, at: int, rows: int, row: int) -> Slot:
        """``rows`` pieces of ``row`` elements of grad from window ``at``, in the sums' type."""
        s, dtype, sums = self.kernel.shape, self.kernel.grad.dtype, self.kernel.sums
        e, width = dtype.bytes, s.out[1] * s.cin
        if row == width:  # rows follow each other in GM
            rows, row = 1, rows * row
        grad = self.grad.next()
        source = self.kernel.grad.at(
            at * s.cin * e, row * e, base="grad", rows=rows, pitch=width * e
        )
        self.k.data_move(grad, source, dtype)
        if self.wide is None:
            return grad
        wide = self.wide.next()
        self.k.vec_cast(wide, grad.at(0, source.size), dtype, sums)
        return wide

    def _add(
        self, target: tuple[Slot, int, int], source: tuple[Slot, int, int], extent: tuple[int, int]
    ) -> None:
        """Add a rectangle of windows; both sides are (slot, first pixel, pixels in a row)."""
        (acc, to, columns), (grad, at, width), (high, wide) = target, source, extent
        s, sums, saturate = self.kernel.shape, self.kernel.sums, self.kernel.saturate
        (sh, sw), pixel = s.stride, s.cin * sums.bytes
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
            self.k.vec_binary("add", place, place, patch, sums, saturate=saturate)

    def _store(self, acc: Slot, rows: int, columns: int) -> None:
        """Round the sums if they are wider, and write ``rows`` rows of the piece."""
        s, dtype, sums = self.kernel.shape, self.kernel.out.dtype, self.kernel.sums
        e, saturate = dtype.bytes, self.kernel.saturate
        count, row, width = rows * columns * s.cin, columns * s.cin, s.spatial[1] * s.cin
        if self.out is not None:
            wide, acc = acc.at(0, count * FP32.bytes), self.out.next()
            self.k.vec_cast(acc, wide, sums, dtype, saturate=saturate)
        if row == width:
            rows, row = 1, count
        place = self.kernel.out.at(0, row * e, base="out", rows=rows, pitch=width * e)
        self.k.data_move(place, acc, dtype)


def _pattern(piece: tuple[Cut, Cut]) -> Pattern:
    rows, columns = piece
    return rows.size, rows.taps, columns.size, columns.taps
