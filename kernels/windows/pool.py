"""Pooling, the largest or the mean of the elements in every window of a map, and its gradient.

    out[n, c1, oh, ow] = max, sum or mean over taps (kh, kw) of x[n, c1, h, w]
    mask[kh * KW + kw, n, c1, oh, ow] = 1 where tap (kh, kw) is the first that has the maximum
    dx[n, c1, h, w] = sum over taps (kh, kw) of dy[n, c1, oh, ow], of a mean over its count, of a
                      maximum where mask[kh * KW + kw, n, c1, oh, ow] is 1
                      where h = oh * sH - padH + kh and w = ow * sW - padW + kw

Layouts: maps (N, C1, H, W, C0) and windows (N, C1, Lh, Lw, C0), fp16 or fp32, C0 16, or 8 in fp32;
mask (KH * KW, windows) in bits, as int8. Windows overlap or not; taps in the padding take no part.
A plane is one of the N * C1 blocks of channels; windows as large as a plane are global pooling
(where UB does not hold one: of rows, then of columns).
``PoolGrad`` of a sum in windows beside each other enlarges a map to nearest neighbours, and
``Pool`` is the gradient of that.

for (run of planes, or rows of windows of a plane) of this core:      # one task of ``Pool``
    UB image <- the pixels that the windows read, in the sums' type   # MTE2, V
    for kh, kw:                                                       # V
        UB sums += image, every sH-th row, every sW-th column
        or UB tap's maxima <- max(those of the tap before, image)
    UB so far[tap] <- the maxima of the tap are those of the window   # V, of a mask
    UB mask[tap] <- so far[tap] - so far[tap before], as integers     # V
    GM out <- the maxima of the last tap, or sums / count, rounded    # V, MTE3
    GM mask <- UB, a row of bits for each tap                         # MTE3

for (run of planes, or rows of a plane) of this core:                 # one task of ``PoolGrad``
    UB sums <- 0                                                      # V
    UB dy, mask <- the windows that reach the piece                   # MTE2
    UB dy <- dy in the sums' type, / count, of a mean                 # V
    for kh, kw:                                                       # V
        UB taken <- dy where the mask of the tap has a 1, else 0, in the sums' type
        UB sums[every sH-th row, every sW-th column] += taken
    GM dx <- sums, rounded                                            # V, MTE3

Maxima up to a tap are at least those up to the tap before, so that ever more windows have reached
theirs: the bits of a tap are those that the tap before has not. A core gathers whole pieces of dx,
so that nobody else adds into them; taps are added in order, kh outer, kw inner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import ClassVar, NamedTuple

from npusim.kernels.parts.ub_room import UbBuffer, converted
from npusim.kernels.windows.im2col_backward_tiling import Tiling
from npusim.kernels.windows.patches import Grid, Nest, Piece, Side
from npusim.kernels.windows.pooling import Planes, Pooling, PoolNest, Windows
from npusim.kernels.windows.windows import Tap
from npusim.language import INT8, INT32, ArgumentError, Slot, SlotRegion, round_up
from npusim.problem.convolution import Convolution

__all__ = ["Pool", "PoolGrad", "Tiling", "pooled"]


def pooled(
    map_shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]] = (),
    outputs: Sequence[int] | None = None,
) -> Convolution:
    """The windows over a map (N, C1, H, W, C0) as these kernels see them.

    ``padding`` is (before, after) of rows and columns. ``outputs`` are the windows along both where
    they are not as many as fit, as rounding up makes them: what lies beyond the map is padding.
    """
    n, c1, h, w, c0 = map_shape
    pads = tuple((before, after) for before, after in padding)
    return Convolution(
        n=n * c1,
        cin=c0,
        cout=c0,
        spatial=(h, w),
        kernel=tuple(kernel),
        stride=tuple(stride),
        padding=pads,
        outputs=None if outputs is None else tuple(outputs),
        c0=c0,
    )


class _Pool(PoolNest):
    """The program of a piece of windows."""

    def emit(self, piece: Piece) -> None:
        """Load pixels, join the taps of all windows, make masks or means, store."""
        rows, columns = self.kernel.patterns[piece.pattern]
        extent = Windows(piece.planes, rows.size, columns.size)
        size = extent.total * self.pixel
        out = self.buffers["sums" if self.mixed else "out"].next()
        tiles = self._tiles(out, size)
        image = self._image(rows, columns, piece.planes)
        before = None
        for tile, (down, across) in zip(tiles, product(rows.taps, columns.taps), strict=True):
            self._join(tile, before, image, extent, down, across)
            before = tile
        if self.kernel.mask:
            self._mark(tiles, out.at(0, size))
        self.divide(out, rows, columns, extent)
        self.store(out.at(0, size), (extent.planes * extent.rows, extent.columns))

    def _tiles(self, out: Slot, size: int) -> list[Slot]:
        """The tile in which each tap is joined: the result's, of a mask each a tile of its own."""
        taps = self.kernel.shape.taps
        if not self.kernel.mask:
            return [out] * taps
        maxima = self.buffers["maxima"].next()
        return [*(maxima.behind(tap * size) for tap in range(taps - 1)), out]

    def _image(self, rows: Side, columns: Side, planes: int) -> Grid | None:
        """The pixels of a piece; of whole planes all."""
        kernel = self.kernel
        high = rows.span
        wide = columns.span
        first = 0
        if kernel.tiling and kernel.tiling.at_once:
            high, wide = kernel.shape.spatial
            ((down, across),) = kernel.pieces
            first = down.base * wide + across.base
            high = planes * high
        if not high or not wide:
            return None
        image = self.load("image", kernel.lines(kernel.read, 0, (high, wide)))
        return Grid(image, first, wide, kernel.shape.stride[1])

    def _join(
        self,
        tile: Slot,
        before: Slot | None,
        image: Grid | None,
        extent: Windows,
        down: Tap,
        across: Tap,
    ) -> None:
        """Into ``tile`` the windows ``before``, joined with what a tap reads of the image."""
        k = self.k
        s = self.kernel.shape
        maximum = self.kernel.kind == "max"
        y, first_row, high = down
        x, first_column, wide = across
        all_windows = (high, wide) == (extent.rows, extent.columns)
        everything = tile.at(0, extent.total * self.pixel)
        if before is None and not all_windows:
            k.vec_dup(everything, -inf if maximum else 0.0, self.wide)
        elif before is not None and before is not tile and not all_windows:
            k.vec_scalar("muls", everything, before, 1.0, self.wide)
        if image is None or not high or not wide:
            return
        windows = Grid(tile, y * extent.columns + x, extent.columns, 1)
        pixels = image._replace(
            first=image.first + first_row * image.pitch + first_column,
            pitch=s.stride[0] * image.pitch,
        )
        planes = Planes(extent.planes, extent.rows * extent.columns, s.spatial[0] * image.pitch)
        for target, read in self.rectangles(windows, pixels, (high, wide), planes):
            if before is None and all_windows:
                k.vec_scalar("muls", target, read, 1.0, self.wide)
                continue
            joined = _same_place(target, before) if before and all_windows else target
            k.vec_binary("max" if maximum else "add", target, joined, read, self.wide)

    def _mark(self, tiles: list[Slot], maximum: SlotRegion) -> None:
        """Store for each tap in which windows it is the first that has the maximum."""
        k = self.k
        taps = len(tiles)
        target, row = self.bits(0, maximum.size // self.pixel)
        so_far = self.buffers["so_far"].next()
        mask = self.buffers["mask"].next()
        k.vec_dup(so_far.at(0, (taps + 1) * row), 0, INT32)
        for tap, tile in enumerate(tiles):
            reached = so_far.at((tap + 1) * row, target.row_bytes)
            k.vec_compare("eq", reached, tile.at(0, maximum.size), maximum, self.dtype)
        up_to_tap = so_far.at(row, taps * row)
        up_to_tap_before = so_far.at(0, taps * row)
        k.vec_binary("sub", mask.at(0, taps * row), up_to_tap, up_to_tap_before, INT32)
        k.data_move(target, mask.at(0, target.row_bytes, rows=taps, pitch=row), INT8)


def _same_place(place: SlotRegion, tile: Slot) -> SlotRegion:
    """The region of another tile where ``place`` is in its own."""
    first = place.offset - place.slot.first
    return tile.at(first, place.row_bytes, rows=place.rows, pitch=place.pitch)


@dataclass(frozen=True)
class Pool(Pooling):
    """Windows of the map ``read`` into ``out``: ``kind`` is max, sum, mean or mean_inside.

    A maximum writes ``mask``, if it is given. A mean is the sum over the number of a window's taps,
    those in the padding and beyond it included, or of those inside the map only.
    """

    name: ClassVar[str] = "pool"
    uses: ClassVar[Mapping[str, str]] = {"read": "inputs"}
    base: ClassVar[str] = "x"
    cuts_image: ClassVar[bool] = True
    nest: ClassVar[type[Nest]] = _Pool

    def buffers(self, pixels: int, windows: int) -> dict[str, UbBuffer]:
        dtype = self.read.dtype
        wide = self.wide
        taps = self.shape.taps
        buffers = {"image": UbBuffer(dtype, pixels, 2), "out": UbBuffer(dtype, windows, 2)}
        if wide != dtype:
            buffers["wide"] = UbBuffer(wide, pixels)
            buffers["sums"] = UbBuffer(wide, windows)
        if self.mask:
            bits = round_up(windows // 8, 32)
            buffers["maxima"] = UbBuffer(dtype, max(1, taps - 1) * windows)
            buffers["so_far"] = UbBuffer(None, (taps + 1) * bits)
            buffers["mask"] = UbBuffer(None, taps * bits, 2)
        return buffers


class _Run(NamedTuple):
    """Windows that follow each other: first row and column after the base, rows, columns."""

    row: int
    column: int
    high: int
    wide: int


class _PoolGrad(PoolNest):
    """The program of a piece of the map."""

    rounds: ClassVar[str] = "dx"

    def emit(self, piece: Piece) -> None:
        """Clear the piece, add every tap of the windows that reach it, store it."""
        rows, columns = self.kernel.patterns[piece.pattern]
        extent = piece.planes * rows.size, columns.size
        sums = self.buffers["sums"].next()
        everything = sums.at(0, prod(extent) * self.pixel)
        self.k.vec_dup(everything, 0.0, self.wide)
        for run in self._runs(rows, columns):
            self._add(sums, run, rows, columns, piece.planes)
        self.store(everything, extent)

    def _runs(self, rows: Side, columns: Side) -> list[_Run]:
        """The windows that are read: as a whole where whole rows of them are, else row by row."""
        kernel = self.kernel
        row, high = kernel.reach(rows)
        column, wide = kernel.reach(columns)
        if kernel.tiling and kernel.tiling.at_once:
            row = 0
            column = 0
            high, wide = kernel.shape.out
        if not high or not wide:
            return []
        if wide == kernel.shape.out[1]:
            return [_Run(row, column, high, wide)]
        return [_Run(row + i, column, 1, wide) for i in range(high)]

    def _add(self, sums: Slot, run: _Run, rows: Side, columns: Side, planes: int) -> None:
        """Add what the taps of a run of windows give to a piece."""
        s = self.kernel.shape
        dy = self._load(run, rows, columns, planes)
        masks = self._load_masks(run, planes) if self.kernel.mask else []
        size = planes * run.high * run.wide * self.pixel
        apart = Planes(planes, rows.size * columns.size, run.high * run.wide)
        for tap, (down, across) in enumerate(product(rows.taps, columns.taps)):
            y, first_row, high = down
            x, first_column, wide = across
            first = max(first_row, run.row)
            end = min(first_row + high, run.row + run.high)
            if end <= first or not wide:
                continue
            given = dy
            if masks:
                given = self._taken(masks[tap], dy, size)
            pixel = (y + (first - first_row) * s.stride[0]) * columns.size + x
            window = (first - run.row) * run.wide + first_column - run.column
            pixels = Grid(sums, pixel, s.stride[0] * columns.size, s.stride[1])
            windows = Grid(given, window, run.wide, 1)
            for target, source in self.rectangles(pixels, windows, (end - first, wide), apart):
                self.k.vec_binary("add", target, target, source, self.wide)

    def _taken(self, mask: SlotRegion, dy: Slot, size: int) -> Slot:
        """What a mask takes of dy, in the sums' type: so many bytes of it."""
        taken = self.buffers["taken"].next()
        narrow = taken.at(0, size // self.wide.bytes * self.dtype.bytes)
        self.k.vec_select(narrow, mask, dy, 0.0, self.dtype)
        return converted(self.k, narrow, self.dtype, self.wide, self.buffers.get("wide")).slot

    def _load(self, run: _Run, rows: Side, columns: Side, planes: int) -> Slot:
        """A run of dy: for masks as it is, else in the sums' type, over the count."""
        kernel = self.kernel
        extent = planes * run.high, run.wide
        if kernel.mask:
            dy = self.buffers["dy"].next()
            self.k.data_move(dy, kernel.lines(kernel.read, self._first(run), extent), self.dtype)
            return dy
        dy = self.load("dy", kernel.lines(kernel.read, self._first(run), extent))
        if run.high < len(rows.counts):
            first = run.row - kernel.reach(rows)[0]
            rows = rows._replace(counts=rows.counts[first : first + run.high])
        self.divide(dy, rows, columns, Windows(planes, run.high, run.wide))
        return dy

    def _load_masks(self, run: _Run, planes: int) -> list[SlotRegion]:
        """The mask of each tap for a run of windows."""
        mask = self.buffers["mask"].next()
        bits, row = self.bits(self._first(run), planes * run.high * run.wide)
        self.k.data_move(mask.at(0, bits.row_bytes, rows=bits.rows, pitch=row), bits, INT8)
        return [mask.at(tap * row, bits.row_bytes) for tap in range(bits.rows)]

    def _first(self, run: _Run) -> int:
        """The first window of a run, after the base."""
        return run.row * self.kernel.shape.out[1] + run.column


@dataclass(frozen=True)
class PoolGrad(Pooling):
    """The gradient of a ``Pool``: ``read`` are those of its windows, ``out`` that of its map.

    That of a maximum needs the ``mask`` that the pooling wrote.
    """

    name: ClassVar[str] = "pool_grad"
    base: ClassVar[str] = "dy"
    cuts_image: ClassVar[bool] = False
    nest: ClassVar[type[Nest]] = _PoolGrad

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "max" and not self.mask:
            raise ArgumentError("pool_grad: a maximum has no mask; give the one of its pooling")

    def buffers(self, pixels: int, windows: int) -> dict[str, UbBuffer]:
        dtype = self.read.dtype
        wide = self.wide
        buffers = {"dy": UbBuffer(dtype, windows, 2)}
        if wide == dtype:
            buffers["sums"] = UbBuffer(wide, pixels, 2)
        else:
            buffers["sums"] = UbBuffer(wide, pixels)
            buffers["wide"] = UbBuffer(wide, windows)
            buffers["dx"] = UbBuffer(dtype, pixels, 2)
        if self.mask:
            buffers["mask"] = UbBuffer(None, self.shape.taps * round_up(windows // 8, 32), 2)
            buffers["taken"] = UbBuffer(dtype, windows)
        return buffers
