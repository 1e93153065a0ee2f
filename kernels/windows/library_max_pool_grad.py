"""The gradient of maximum pooling as the vendor's library runs it: MaxPoolGradWithArgmax.

    dx[n, c1, h, w] = sum over taps (kh, kw) of dy[n, c1, oh, ow] where the mask has a 1
                      where h = oh * sH - padH + kh and w = ow * sW - padW + kw

Layouts: maps (N, C1, H, W, 16) in fp16; the mask (KH * KW, windows) in bits, as int8, as
``LibraryMaxPool`` writes it. A *plane* is one of the N * C1 blocks of channels.

A core has some planes; where there are fewer planes than cores and many rows, it has rows of one.
A step takes as many rows of dy as leave room in UB for their image, whose columns are widened to a
multiple of 16 windows. Where windows overlap, the last row of a step is done again by the next one,
so that each step stores pixels that nobody else adds to.

for step of this core:
    UB image <- 0, fp32; UB dy <- 0, then the rows of dy              # V, MTE2
    for tap:
        UB mask <- GM, a move for each row: 32 B or more              # MTE2
        UB taken <- dy where the mask has a 1, else 0                 # V, 128 elements at a time
        UB wide <- taken in fp32                                      # V
        UB image += wide at the pixels of the tap, by col2img         # V
    GM dx <- UB <- image in fp16                                      # V, MTE3

Windows that reach over more than two of their neighbours (3 x 3 at stride 1) go one row at a time:
the image is that of one row, of which what the next row adds to is moved up.

Pooling 112 x 112 to 56 x 56 with windows of 3 x 3, as in ResNet-50, has a kernel of its own: seven
steps of eight rows for a plane, with an fp16 image to which each row of a tap is added, and one
load for the masks of all taps; the next step is loaded while one is computed.

Source: the operators max_pool_grad_with_argmax*.py of the library (CANN 8.1, opp/built-in, impl),
retold. Not public, and chosen here: a barrier stands behind every vector instruction; masks of the
next tap are loaded while those of one are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.windows.library_windows import (
    LibraryWindows,
    Ordered,
    Span,
    is_resnet50,
)
from npusim.language import (
    FP16,
    FP32,
    INT8,
    Device,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Window,
    ceil_div,
    in_runs,
    round_up,
)
from npusim.problem.convolution import Convolution

#: Bytes of a pixel in fp16, and of its word of the mask.
_PIXEL = 32
_WORD = 2
#: Rows of dy in a step of the kernel for ResNet-50.
_ROWS = 8
#: Most rows of a plane that one core does alone where there are fewer planes than cores.
_FEW_ROWS = 32


def room_of_image(s: Convolution, room: int) -> int:
    """Bytes that the fp16 image of a step has, of so much UB: fewer the smaller the stride."""
    stride = s.stride[0] * s.stride[1]
    if stride >= 4:
        share = 4
    elif stride >= 2:
        share = 6
    else:
        share = 8
    return (room - 256) // share


class Geometry(NamedTuple):
    """Sizes of a step: windows of a row with those added to fill 16, and columns of the image."""

    windows: int
    columns: int

    @classmethod
    def of(cls, s: Convolution) -> Geometry:
        """The sizes for windows."""
        windows = round_up(s.out[1], 16)
        if s.kernel[1] <= s.stride[1]:
            return cls(windows, windows * s.stride[1])
        return cls(windows, (windows - 1) * s.stride[1] + s.kernel[1])


def row_by_row(s: Convolution) -> bool:
    """Tell whether windows reach over more than two neighbours, so that rows go one at a time."""
    return s.kernel[0] > 2 * s.stride[0] or s.kernel[1] > 2 * s.stride[1]


def rows_in_step(s: Convolution, room: int) -> int:
    """The rows of dy in a step, with so many bytes of UB; 0 where there is no room for a row."""
    limit = room_of_image(s, room)
    columns = max(Geometry.of(s).columns, s.spatial[1])
    rows = 0
    while rows < s.out[0] and (rows * s.stride[0] + s.kernel[0]) * columns * _PIXEL < limit:
        rows += 1
    return rows


class Step(NamedTuple):
    """Rows of dy from ``first`` on, so many; ``top`` and ``bottom`` are the padded image's rows
    that are whole behind it.
    """

    first: int
    rows: int
    top: int
    bottom: int


def steps_of(s: Convolution, rows: int, first: int, end: int) -> list[Step]:
    """The steps for the pixels of the rows of dy from ``first`` to before ``end``."""
    overlap = s.kernel[0] > s.stride[0]
    steps = []
    done = first
    while done < end:
        again = 1 if overlap and done else 0
        count = min(rows - again, end - done)
        bottom = (done + count - 1) * s.stride[0] + s.kernel[0]
        if done + count < s.out[0]:  # what is below is left to the next step
            bottom = min(bottom, (done + count) * s.stride[0])
        steps.append(Step(done - again, count + again, done * s.stride[0], bottom))
        done += count
    return steps


class Group(NamedTuple):
    """The rows of dy of a plane that a core has."""

    first: int
    end: int


@dataclass(frozen=True)
class LibraryMaxPoolGrad(LibraryWindows):
    """The gradient ``out`` of a map, of that of its windows (``read``) and their ``mask``.

    Raises ``ArgumentError`` for windows and tensors that the library's kernel does not take.
    """

    name: ClassVar[str] = "max_pool_grad_with_argmax"
    library: ClassVar[tuple[str, ...]] = ("MaxPoolGradWithArgmax",)

    @classmethod
    def runs_on(cls, device: Device) -> bool:
        return "col2img" in device.vector.ops

    @classmethod
    def fits(cls, s: Convolution, device: Device) -> bool:
        if is_resnet50(s):
            return True
        rows = rows_in_step(s, device.memory("UB").size_bytes)
        overlap = s.kernel[0] > s.stride[0] and not row_by_row(s) and s.out[0] > 1
        return rows > (1 if overlap else 0)

    @property
    def windows_are(self) -> str:
        return "read"

    @property
    def tiling_text(self) -> str:
        if is_resnet50(self.shape):
            return f"library, ResNet-50, {_ROWS} rows of windows"
        if row_by_row(self.shape):
            return "library, a row of windows at a time"
        return "library, rows of windows that UB has room for"

    @property
    def before(self) -> tuple[Kernel, ...]:
        """The clearing of ``out`` where there are pixels that no window reads."""
        s = self.shape
        rows = Span.of(s, 0, 0, s.out[0])
        columns = Span.of(s, 1, 0, s.out[1])
        read = (rows.size, columns.size) == s.spatial and s.kernel[0] >= s.stride[0]
        return () if read else (MemSet(self.out),)

    def plan(self, k: Language, cores: int) -> Plan[Group]:
        s = self.shape
        if is_resnet50(s):
            return Plan(self._tasks(cores, 1), _ResNet(self, k).emit)
        if row_by_row(s):
            return Plan(self._tasks(cores, 1), _RowByRow(self, k).emit)
        groups = 1
        if s.n < cores and s.out[0] > _FEW_ROWS:
            groups = cores // s.n
        rows = rows_in_step(s, k.memory("UB").size_bytes)
        return Plan(self._tasks(cores, groups), _Rows(self, k, rows).emit)

    def _tasks(self, cores: int, groups: int) -> Tasks[Group]:
        """Planes in equal runs for each core, each in so many groups of rows."""
        s = self.shape
        high = s.out[0]
        each = ceil_div(high, groups)
        groups = ceil_div(high, each)
        plane = np.repeat(np.arange(s.n), groups)
        first = np.tile(np.arange(groups) * each, s.n)
        pixels = s.spatial[0] * s.spatial[1]
        windows = high * s.out[1]
        return Tasks(
            in_runs(s.n * groups, cores),
            Group,
            {"first": first, "end": np.minimum(first + each, high)},
            {
                "dy": plane * windows * _PIXEL,
                "out": plane * pixels * _PIXEL,
                "mask": plane * windows * _WORD,
            },
        )


class _Nest:
    """The program of a plane, on the buffers of one core."""

    def __init__(self, kernel: LibraryMaxPoolGrad, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        self.v = Ordered(k)
        self.sizes = Geometry.of(kernel.shape)

    def load(self, dy: Slot, first: int, rows: int) -> None:
        """Rows of dy, each with as many windows as fill 16."""
        wide = self.kernel.shape.out[1]
        line = wide * _PIXEL
        source = self.kernel.read.at(first * line, line, base="dy", rows=rows, pitch=line)
        pitch = self.sizes.windows * _PIXEL
        self.k.data_move(dy.at(0, line, rows=rows, pitch=pitch), source, FP16)

    def load_mask(self, mask: Slot, tap: int, first: int, rows: int) -> None:
        """The mask of a tap for rows of windows, a move for each row."""
        line = self.kernel.shape.out[1] * _WORD
        pitch = self.sizes.windows * _WORD
        for row in range(rows):
            source = self.kernel.mask_of(tap, (first + row) * line, line)
            self.k.data_move(mask.at(row * pitch, line), source, INT8)

    def store(self, values: Slot, top: int, bottom: int, begin: int) -> None:
        """Rows of the padded image from ``top`` to before ``bottom``; ``begin`` is its first."""
        s = self.kernel.shape
        up = s.padding[0][0]
        first = max(top, up)
        end = min(bottom, up + s.spatial[0])
        if end <= first:
            return
        columns = Span.of(s, 1, 0, s.out[1])
        pitch = self.sizes.columns * _PIXEL
        size = columns.size * _PIXEL
        place = (first - begin) * pitch + s.padding[1][0] * _PIXEL
        line = s.spatial[1] * _PIXEL
        rows = end - first
        target = self.kernel.out.at((first - up) * line, size, base="out", rows=rows, pitch=line)
        self.k.data_move(target, values.at(place, size, rows=rows, pitch=pitch), FP16)

    def window(self, rows: int) -> Window:
        """The windows of so many rows of dy in their image, whose padding is part of it."""
        s = self.kernel.shape
        return Window(
            h=(rows - 1) * s.stride[0] + s.kernel[0],
            w=self.sizes.columns,
            kernel_h=s.kernel[0],
            kernel_w=s.kernel[1],
            stride_h=s.stride[0],
            stride_w=s.stride[1],
        )


class _Rows(_Nest):
    """Several rows of dy in a step."""

    def __init__(self, kernel: LibraryMaxPoolGrad, k: Language, rows: int) -> None:
        super().__init__(kernel, k)
        s = kernel.shape
        self.rows = rows
        windows = rows * self.sizes.windows
        pixels = ((rows - 1) * s.stride[0] + s.kernel[0]) * self.sizes.columns
        self.image = k.buffer("UB", (pixels * 16,), FP32, name="image_ub")
        self.dy = k.buffer("UB", (windows * 16,), FP16, name="dy_ub")
        self.mask = k.buffer("UB", (windows * _WORD,), None, name="mask_ub")
        self.taken = k.buffer("UB", (windows * 16,), FP16, name="taken_ub")
        self.wide = k.buffer("UB", (windows * 16,), FP32, name="wide_ub")
        self.dx = k.buffer("UB", (pixels * 16,), FP16, name="dx_ub")

    def emit(self, group: Group) -> None:
        """The steps of a core's rows of a plane, one after another."""
        for step in steps_of(self.kernel.shape, self.rows, group.first, group.end):
            self._step(step)

    def _step(self, step: Step) -> None:
        """Add every tap of some rows of dy to their image, and store what is whole."""
        s = self.kernel.shape
        window = self.window(step.rows)
        pixels = window.h * window.w
        windows = step.rows * self.sizes.windows
        image = self.image.next()
        self.v.vec_dup(image.at(0, pixels * 64), 0.0, FP32)
        dy = self.dy.next()
        if self.sizes.windows > s.out[1]:
            self.v.vec_dup(dy.at(0, windows * _PIXEL), 0.0, FP16)
        self.load(dy, step.first, step.rows)
        for tap in range(s.taps):
            mask = self.mask.next()
            self.load_mask(mask, tap, step.first, step.rows)
            taken = self.taken.next().at(0, windows * _PIXEL)
            self.v.vec_select(taken, mask, dy, 0.0, FP16)
            wide = self.wide.next().at(0, windows * 64)
            self.v.vec_cast(wide, taken, FP16, FP32)
            self.v.col2img(image, wide, window, tap, FP32)
        dx = self.dx.next()
        self.v.vec_cast(dx.at(0, pixels * _PIXEL), image.at(0, pixels * 64), FP32, FP16)
        self.store(dx, step.top, step.bottom, step.first * s.stride[0])


class _RowByRow(_Nest):
    """One row of dy at a time; what the next row adds to is moved up in the image."""

    def __init__(self, kernel: LibraryMaxPoolGrad, k: Language) -> None:
        super().__init__(kernel, k)
        windows = self.sizes.windows
        pixels = kernel.shape.kernel[0] * self.sizes.columns
        self.image = k.buffer("UB", (pixels * 16,), FP32, name="image_ub")
        self.dy = k.buffer("UB", (windows * 16,), FP16, name="dy_ub")
        self.mask = k.buffer("UB", (windows * _WORD,), None, name="mask_ub")
        self.taken = k.buffer("UB", (windows * 16,), FP16, name="taken_ub")
        self.wide = k.buffer("UB", (windows * 16,), FP32, name="wide_ub")
        self.dx = k.buffer("UB", (pixels * 16,), FP16, name="dx_ub")

    def emit(self, group: Group) -> None:
        """All rows of a plane."""
        s = self.kernel.shape
        window = self.window(1)
        row = window.w * 64
        high = s.kernel[0]
        kept = max(0, high - s.stride[0])
        image = self.image.next()
        self.v.vec_dup(image, 0.0, FP32)
        for first in range(group.first, group.end):
            self._add(image, window, first)
            dx = self.dx.next()
            self.v.vec_cast(dx, image, FP32, FP16)
            top = first * s.stride[0]
            last = first + 1 == s.out[0]
            self.store(dx, top, top + (high if last else min(high, s.stride[0])), top)
            if not last:
                if kept:
                    self.v.data_move(
                        image.at(0, kept * row), image.at((high - kept) * row, kept * row), FP32
                    )
                self.v.vec_dup(image.at(kept * row, (high - kept) * row), 0.0, FP32)

    def _add(self, image: Slot, window: Window, first: int) -> None:
        """Add every tap of a row of dy to the image."""
        s = self.kernel.shape
        windows = self.sizes.windows
        dy = self.dy.next()
        if windows > s.out[1]:
            self.v.vec_dup(dy, 0.0, FP16)
        self.load(dy, first, 1)
        for tap in range(s.taps):
            mask = self.mask.next()
            self.load_mask(mask, tap, first, 1)
            taken = self.taken.next()
            self.v.vec_select(taken, mask, dy, 0.0, FP16)
            wide = self.wide.next()
            self.v.vec_cast(wide, taken, FP16, FP32)
            self.v.col2img(image, wide, window, tap, FP32)


class _ResNet(_Nest):
    """The program of a plane of the kernel for ResNet-50."""

    def __init__(self, kernel: LibraryMaxPoolGrad, k: Language) -> None:
        super().__init__(kernel, k)
        s = kernel.shape
        self.sizes = Geometry(s.out[1], s.spatial[1] + 1)
        self.windows = _ROWS * s.out[1]
        rows = (_ROWS - 1) * s.stride[0] + s.kernel[0]
        pixels = rows * self.sizes.columns
        self.words = self.windows * _WORD
        self.image = k.buffer("UB", (pixels * 16,), FP16, slots=2, name="image_ub")
        self.dy = k.buffer("UB", (self.windows * 16,), FP16, slots=2, name="dy_ub")
        self.mask = k.buffer("UB", (s.taps * self.words,), None, slots=2, name="mask_ub")
        self.taken = k.buffer("UB", (self.windows * 16,), FP16, name="taken_ub")

    def emit(self, group: Group) -> None:
        """All steps of a plane; the last row of an image is carried into the next one."""
        s = self.kernel.shape
        row = self.sizes.columns * _PIXEL
        high = (_ROWS - 1) * s.stride[0] + s.kernel[0]
        before = None
        for first in range(group.first, group.end, _ROWS):
            image = self.image.next()
            cleared = 0
            if before is not None:
                self.v.vec_scalar(
                    "adds", image.at(0, row), before.at((high - 1) * row, row), 0.0, FP16
                )
                cleared = row
            self.v.vec_dup(image.at(cleared, high * row - cleared), 0.0, FP16)
            self._add(image, first)
            top = first * s.stride[0]
            last = first + _ROWS == s.out[0]
            self.store(image, top, top + (high if last else high - 1), top)
            before = image

    def _add(self, image: Slot, first: int) -> None:
        """Add every tap of eight rows of dy to an image."""
        kernel = self.kernel
        s = kernel.shape
        dy = self.dy.next()
        self.load(dy, first, _ROWS)
        mask = self.mask.next()
        pitch = kernel.mask.size_bytes // s.taps
        source = kernel.mask.at(
            first * s.out[1] * _WORD, self.words, base="mask", rows=s.taps, pitch=pitch
        )
        self.k.data_move(mask, source, INT8)
        taken = self.taken.next()
        line = s.out[1] * _PIXEL
        for tap in range(s.taps):
            down, across = divmod(tap, s.kernel[1])
            self.v.vec_select(taken, mask.at(tap * self.words, self.words), dy, 0.0, FP16)
            for row in range(_ROWS):
                pixel = (row * s.stride[0] + down) * self.sizes.columns + across
                pixels = image.at(pixel * _PIXEL, _PIXEL, rows=s.out[1], pitch=s.stride[1] * _PIXEL)
                self.v.vec_binary("add", pixels, pixels, taken.at(row * line, line), FP16)
