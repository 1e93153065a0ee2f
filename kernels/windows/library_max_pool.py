"""Maximum pooling as the vendor's library runs it on a 910: its operator MaxPoolWithArgmax.

    out[n, c1, oh, ow] = max over taps (kh, kw) of x[n, c1, h, w]
    mask[kh * KW + kw, n, c1, oh, ow] = 1 where tap (kh, kw) is the first that has the maximum

Layouts: maps (N, C1, H, W, 16) in fp16; the mask (KH * KW, windows) in bits, as int8. A *plane* is
one of the N * C1 blocks of channels, a *fractal* 16 windows of it: 512 B.

A core has some planes. A tile is a whole plane where half of UB holds every tap of its windows,
else the rows of windows that it holds; the rows that two tiles read are loaded twice. Where tiles
are whole fractals, they are shared out to cores rather than planes. One tile follows another:

for tile of this core:
    L1 image <- the rows that the windows read                        # MTE2
    UB taps[fractal] <- img2col of the image, padding -65504          # MTE1, a fractal each
    for tap, fractal: UB maxima[fractal] <- max(maxima, taps)         # V, 2 repeats
    for tap, fractal: UB mask[tap, fractal] <- taps == maxima         # V, 2 repeats
    GM out <- maxima                                                  # MTE3
    for tap: UB mask[tap] &= no tap before has the maximum            # V, 3 instructions
    GM mask <- UB, a move for each tap                                # MTE3

Pooling 112 x 112 to 56 x 56 with windows of 3 x 3, as in ResNet-50, has a kernel of its own: seven
tiles of eight rows of windows for a plane, without L1; the next is loaded while one is computed.

    for row of windows: the larger of two taps, eight times           # V, 7 repeats
    for tap: pack its pixels, row by row; compare all of them         # V

Source: the operators max_pool_with_argmax.py and max_pool_with_argmax_resnet50.py of the library
(CANN 8.1, opp/built-in, impl), retold. Not public, and chosen here: a barrier stands behind every
vector instruction. The library's mask has 16 spare words behind each tap of a plane; this one has
none, so that ours reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.windows.library_windows import (
    LOWEST,
    LibraryWindows,
    Ordered,
    Span,
    is_resnet50,
)
from npusim.language import (
    FP16,
    FRACTAL_BYTES,
    INT8,
    INT32,
    Device,
    IntArray,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Window,
    ceil_div,
    in_runs,
)
from npusim.problem.convolution import Convolution

#: Bytes of a window of one plane, and of its word of the mask.
_PIXEL = 32
_WORD = 2
#: Bytes that a window takes in UB beside those of its taps, by the rule for rows.
_BESIDE = 160


#: Rows of windows in a tile of the kernel for ResNet-50.
_ROWS = 8


def rows_in_tile(s: Convolution, room: int) -> int:
    """The rows of windows in a tile, with so many bytes of UB: all of a plane, or some.

    0 where not even one row fits.
    """
    high, wide = s.out
    half = room // 2
    if high * wide * _PIXEL * s.taps <= half:
        return high
    left, right = s.padding[1]
    columns = (s.spatial[1] + left + right) // s.stride[1] + 1
    rows = half // (s.taps * _PIXEL + _BESIDE) // columns - 1
    rows = max(rows, 1)
    return min(rows, high) if wide * _PIXEL * s.taps <= half else 0


class Part(NamedTuple):
    """So many ``rows`` of windows of a plane, from the ``first`` on."""

    first: int
    rows: int


@dataclass(frozen=True)
class LibraryMaxPool(LibraryWindows):
    """Windows of the map ``read`` into ``out``, with their ``mask``.

    Raises ``ArgumentError`` for windows and tensors that the library's kernel does not take.
    """

    name: ClassVar[str] = "max_pool_with_argmax"
    library: ClassVar[tuple[str, ...]] = ("MaxPoolWithArgmax",)

    @classmethod
    def runs_on(cls, device: Device) -> bool:
        return "L1->UB.load3d" in device.paths

    @classmethod
    def fits(cls, s: Convolution, device: Device) -> bool:
        room = device.memory("UB").size_bytes
        return s.taps > 1 and (is_resnet50(s) or rows_in_tile(s, room) > 0)

    @property
    def windows_are(self) -> str:
        return "out"

    @property
    def tiling_text(self) -> str:
        if is_resnet50(self.shape):
            return f"library, ResNet-50, {_ROWS} rows of windows"
        return "library, rows of windows that half of UB holds"

    def plan(self, k: Language, cores: int) -> Plan[Part]:
        if is_resnet50(self.shape):
            return Plan(self._plane_tasks(cores), _ResNet(self, k).emit)
        rows = rows_in_tile(self.shape, k.memory("UB").size_bytes)
        return Plan(self._tasks(cores, rows), _General(self, k, rows).emit)

    def _plane_tasks(self, cores: int) -> Tasks[Part]:
        """A task for each plane."""
        return self._table(in_runs(self.shape.n, cores), np.arange(self.shape.n), self.shape.out[0])

    def _tasks(self, cores: int, rows: int) -> Tasks[Part]:
        """Tiles of planes; cores share tiles where these are whole fractals, else planes."""
        s = self.shape
        high, wide = s.out
        parts = ceil_div(high, rows)
        plane = np.repeat(np.arange(s.n), parts)
        share_tiles = rows < high and rows * wide % 16 == 0
        units = s.n * parts if share_tiles else s.n
        core = np.arange(units) // ceil_div(units, cores)
        if not share_tiles:
            core = np.repeat(core, parts)
        return self._table(core, plane, rows)

    def _table(self, core: IntArray, plane: IntArray, rows: int) -> Tasks[Part]:
        """The tasks of planes, each in tiles of so many rows."""
        s = self.shape
        high, wide = s.out
        parts = ceil_div(high, rows)
        first = np.arange(len(plane)) % parts * rows
        top = np.maximum(0, first * s.stride[0] - s.padding[0][0])
        window = plane * high * wide + first * wide
        pixel = (plane * s.spatial[0] + top) * s.spatial[1]
        return Tasks(
            core,
            Part,
            {"first": first, "rows": np.minimum(rows, high - first)},
            {"x": pixel * _PIXEL, "out": window * _PIXEL, "mask": window * _WORD},
        )


class _General:
    """The program of a tile, on the buffers of one core."""

    def __init__(self, kernel: LibraryMaxPool, k: Language, rows: int) -> None:
        self.kernel = kernel
        self.k = k
        self.v = Ordered(k)
        s = kernel.shape
        fractals = ceil_div(rows * s.out[1], 16)
        taps = s.taps
        span = min(s.spatial[0], (rows - 1) * s.stride[0] + s.kernel[0])
        words = fractals * 16 * _WORD
        self.image = k.buffer("L1", (span * s.spatial[1] * 16,), FP16, name="image_l1")
        self.taps = k.buffer("UB", (fractals * taps * 256,), FP16, name="taps_ub")
        self.maxima = k.buffer("UB", (fractals * 256,), FP16, name="maxima_ub")
        self.mask = k.buffer("UB", (taps * words,), None, name="mask_ub")
        self.seen = k.buffer("UB", (words,), None, name="seen_ub")
        self.missing = k.buffer("UB", (words,), None, name="missing_ub")

    def emit(self, part: Part) -> None:
        """Load the rows of a tile, take maxima, compare, store both."""
        k = self.k
        kernel = self.kernel
        s = kernel.shape
        positions = part.rows * s.out[1]
        fractals = ceil_div(positions, 16)
        taps = self._load(part, positions, fractals)
        maxima = self.maxima.next()
        self.v.vec_dup(maxima.at(0, fractals * FRACTAL_BYTES), LOWEST, FP16)
        for tap in range(s.taps):
            for fractal in range(fractals):
                target = maxima.at(fractal * FRACTAL_BYTES, FRACTAL_BYTES)
                source = taps.at((fractal * s.taps + tap) * FRACTAL_BYTES, FRACTAL_BYTES)
                self.v.vec_binary("max", target, target, source, FP16)
        mask = self.mask.next()
        words = fractals * 16 * _WORD
        for tap in range(s.taps):
            for fractal in range(fractals):
                bits = mask.at(tap * words + fractal * _PIXEL, _PIXEL)
                source = taps.at((fractal * s.taps + tap) * FRACTAL_BYTES, FRACTAL_BYTES)
                target = maxima.at(fractal * FRACTAL_BYTES, FRACTAL_BYTES)
                self.v.vec_compare("eq", bits, source, target, FP16)
        size = positions * _PIXEL
        k.data_move(kernel.out.at(0, size, base="out"), maxima.at(0, size), FP16)
        self._keep_first(mask, words)
        self._store_mask(mask, positions, words)

    def _load(self, part: Part, positions: int, fractals: int) -> Slot:
        """The taps of a tile's windows, fractal by fractal."""
        k = self.k
        s = self.kernel.shape
        rows = Span.of(s, 0, part.first, part.rows)
        columns = Span.of(s, 1, 0, s.out[1])
        window = Window(
            h=rows.size,
            w=s.spatial[1],
            pad_left=columns.before,
            pad_right=columns.after,
            pad_top=rows.before,
            pad_bottom=rows.after,
            kernel_h=s.kernel[0],
            kernel_w=s.kernel[1],
            stride_h=s.stride[0],
            stride_w=s.stride[1],
        )
        image = self.image.next()
        size = rows.size * s.spatial[1] * _PIXEL
        loaded = image.at(0, size)
        k.data_move(loaded, self.kernel.read.at(0, size, base="x"), FP16)
        taps = self.taps.next()
        fractal_taps = s.taps * FRACTAL_BYTES
        for fractal in range(fractals):
            k.load3d(
                taps.at(fractal * fractal_taps, fractal_taps),
                loaded,
                window,
                FP16,
                m=(fractal * 16, min(16, positions - fractal * 16)),
                k=(0, s.taps * 16),
                padding=LOWEST,
            )
        return taps

    def _keep_first(self, mask: Slot, words: int) -> None:
        """Leave a 1 in the mask of the first tap that has it."""
        first = mask.at(0, words)
        seen = self.seen.next().at(0, words)
        missing = self.missing.next().at(0, words)
        self.v.vec_unary("not", missing, first, INT32)
        self.v.data_move(seen, first, INT32)
        for tap in range(1, self.kernel.shape.taps):
            bits = mask.at(tap * words, words)
            self.v.vec_binary("or", seen, seen, bits, INT32)
            self.v.vec_binary("and", bits, bits, missing, INT32)
            self.v.vec_unary("not", missing, seen, INT32)

    def _store_mask(self, mask: Slot, positions: int, words: int) -> None:
        """Store the words of each tap; of a whole plane those past its end are cleared first."""
        kernel = self.kernel
        taps = kernel.shape.taps
        size = positions * _WORD
        if positions == kernel.shape.out[0] * kernel.shape.out[1] and size < words:
            for tap in range(taps):
                spare = mask.at(tap * words + size, words - size)
                self.v.vec_dup(spare, 0, INT8, masked=True)
        for tap in range(taps):
            target = kernel.mask_of(tap, 0, size)
            self.k.data_move(target, mask.at(tap * words, size), INT8)


class _ResNet:
    """The program of a plane of the kernel for ResNet-50."""

    def __init__(self, kernel: LibraryMaxPool, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        self.v = Ordered(k)
        s = kernel.shape
        self.columns = Span.of(s, 1, 0, s.out[1])
        self.wide = s.spatial[1] + 1
        self.windows = _ROWS * s.out[1]
        self.words = self.windows * _WORD
        rows = (_ROWS - 1) * s.stride[0] + s.kernel[0]
        self.image = k.buffer("UB", (rows * self.wide * 16,), FP16, slots=2, name="image_ub")
        self.maxima = k.buffer("UB", (self.windows * 16,), FP16, slots=2, name="maxima_ub")
        self.chain = k.buffer("UB", (self.windows * 16,), FP16, name="chain_ub")
        self.packed = k.buffer("UB", (self.windows * 16,), FP16, name="packed_ub")
        self.mask = k.buffer("UB", (s.taps * self.words,), None, slots=2, name="mask_ub")
        self.seen = k.buffer("UB", (self.words,), None, name="seen_ub")
        self.missing = k.buffer("UB", (self.words,), None, name="missing_ub")

    def emit(self, part: Part) -> None:
        """Compute a plane; the rows of the next tile are loaded before the masks of one."""
        firsts = range(0, part.rows, _ROWS)
        image = self._load(0)
        for first in firsts:
            maxima = self._maximum(image)
            following = self._load(first + _ROWS) if first + _ROWS < part.rows else image
            target = self.kernel.out.at(
                first * self._row(_PIXEL), maxima.buffer.slot_bytes, base="out"
            )
            self.k.data_move(target, maxima, FP16)
            self._mark(image, maxima, first)
            image = following

    def _row(self, each: int) -> int:
        """Bytes of a row of windows of so many bytes."""
        return self.kernel.shape.out[1] * each

    def _load(self, first: int) -> Slot:
        """The rows that eight rows of windows read, with their padding."""
        kernel = self.kernel
        s = kernel.shape
        rows = Span.of(s, 0, first, _ROWS)
        slot = self.image.next()
        pitch = self.wide * _PIXEL
        line = s.spatial[1] * _PIXEL
        place = rows.before * pitch + self.columns.before * _PIXEL
        high = rows.before + rows.size + rows.after
        column = 0 if self.columns.before else s.spatial[1] * _PIXEL
        self.v.vec_dup(slot.at(column, _PIXEL, rows=high, pitch=pitch), LOWEST, FP16)
        for missing, row in ((rows.before, 0), (rows.after, high - 1)):
            if missing:
                self.v.vec_dup(slot.at(row * pitch, pitch), LOWEST, FP16)
        source = kernel.read.at(rows.start * line, line, base="x", rows=rows.size, pitch=line)
        self.k.data_move(slot.at(place, line, rows=rows.size, pitch=pitch), source, FP16)
        return slot

    def _maximum(self, image: Slot) -> Slot:
        """The maxima of a tile: two chains of four taps, their larger, and the last tap."""
        maxima = self.maxima.next()
        chain = self.chain.next()
        for target, first in ((maxima, 0), (chain, 4)):
            for row in range(_ROWS):
                into = self._windows(target, row)
                self.v.vec_binary(
                    "max",
                    into,
                    self._tap(image, first, row),
                    self._tap(image, first + 1, row),
                    FP16,
                )
            for tap in (first + 2, first + 3):
                for row in range(_ROWS):
                    into = self._windows(target, row)
                    self.v.vec_binary("max", into, into, self._tap(image, tap, row), FP16)
        for row in range(_ROWS):
            into = self._windows(maxima, row)
            self.v.vec_binary("max", into, into, self._windows(chain, row), FP16)
        for row in range(_ROWS):
            into = self._windows(maxima, row)
            self.v.vec_binary("max", into, into, self._tap(image, 8, row), FP16)
        return maxima

    def _windows(self, slot: Slot, row: int) -> SlotRegion:
        """A row of windows."""
        size = self._row(_PIXEL)
        return slot.at(row * size, size)

    def _tap(self, image: Slot, tap: int, row: int) -> SlotRegion:
        """The pixels of a tap of a row of windows."""
        s = self.kernel.shape
        down, across = divmod(tap, s.kernel[1])
        pixel = (row * s.stride[0] + down) * self.wide + across
        pitch = s.stride[1] * _PIXEL
        return image.at(pixel * _PIXEL, _PIXEL, rows=s.out[1], pitch=pitch)

    def _mark(self, image: Slot, maxima: Slot, first: int) -> None:
        """The mask of a tile: of each tap, where it is the first that has the maximum."""
        kernel = self.kernel
        taps = kernel.shape.taps
        mask = self.mask.next()
        packed = self.packed.next()
        for tap in range(taps):
            for row in range(_ROWS):
                self.v.vec_scalar(
                    "adds", self._windows(packed, row), self._tap(image, tap, row), 0.0, FP16
                )
            self.v.vec_compare("eq", mask.at(tap * self.words, self.words), packed, maxima, FP16)
        seen = self.seen.next()
        missing = self.missing.next()
        self.v.data_move(seen.at(0, self.words), mask.at(0, self.words), INT32)
        self.v.vec_unary("not", missing.at(0, self.words), seen.at(0, self.words), INT32)
        # Three repeats of 128 words, then the 64 left.
        whole = self.words // 256 * 256
        for place, size in ((0, whole), (whole, self.words - whole)):
            for tap in range(1, taps):
                bits = mask.at(tap * self.words + place, size)
                self.v.vec_binary("or", seen.at(place, size), seen.at(place, size), bits, INT32)
                self.v.vec_binary("and", bits, bits, missing.at(place, size), INT32)
                self.v.vec_unary("not", missing.at(place, size), seen.at(place, size), INT32)
        pitch = kernel.mask.size_bytes // taps
        offset = first * self._row(_WORD)
        target = kernel.mask.at(offset, self.words, base="mask", rows=taps, pitch=pitch)
        self.k.data_move(target, mask, INT8)
