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
    UB dy <- dy in the sums' type, / count                            # V
    for kh, kw:                                                       # V
        UB taken <- dy where the mask of the tap has a 1, else 0
        UB sums[every sH-th row, every sW-th column] += taken
    GM dx <- sums, rounded                                            # V, MTE3

Maxima up to a tap are at least those up to the tap before, so that ever more windows have reached
theirs: the bits of a tap are those that the tap before has not. A core gathers whole pieces of dx,
so that nobody else adds into them; taps are added in order, kh outer, kw inner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import ClassVar, NamedTuple

from npusim.kernels.parts.ub_room import Held
from npusim.kernels.windows.im2col_backward_tiling import Tiling
from npusim.kernels.windows.patches import Grid, Nest, Piece, Side
from npusim.kernels.windows.pooling import Pooling, PoolNest
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
        extent = piece.planes, rows.size, columns.size
        out, size = self.held["sums" if self.mixed else "out"].next(), prod(extent) * self.pixel
        tiles = [out] * self.kernel.shape.taps
        if self.kernel.mask:
            maxima = self.held["maxima"].next()
            tiles = [*(maxima.behind(tap * size) for tap in range(len(tiles) - 1)), out]
        image, before = self._image(rows, columns, piece.planes), None
        for tile, taps in zip(tiles, product(rows.taps, columns.taps), strict=True):
            self._join(tile, before, image, extent, taps)
            before = tile
        if self.kernel.mask:
            self._mark(tiles, out.at(0, size))
        self.divide(tiles[-1], (rows, columns), extent)
        rows_of_all = prod(extent[:2]), columns.size
        self.store(tiles[-1].at(0, size), rows_of_all)

    def _image(self, rows: Side, columns: Side, planes: int) -> Grid | None:
        """The pixels of a piece; of whole planes all."""
        kernel, (high, wide), first = self.kernel, (rows.span, columns.span), 0
        if kernel.tiling and kernel.tiling.at_once:
            (high, wide), ((down, across),) = kernel.shape.spatial, kernel.pieces
            first, high = down.base * wide + across.base, planes * high
        if not high or not wide:
            return None
        image = self.load("image", kernel.lines(kernel.read, 0, (high, wide)))
        return Grid(image, first, wide, kernel.shape.stride[1])

    def _join(
        self,
        tile: Slot,
        before: Slot | None,
        image: Grid | None,
        extent: tuple[int, int, int],
        taps: tuple[Tap, Tap],
    ) -> None:
        """What a tap reads of the image joined with the windows ``before``, into ``tile``."""
        k, s, wide, (planes, rows, columns) = self.k, self.kernel.shape, self.wide, extent
        (y, at, high), (x, along, across) = taps
        maximum, whole = self.kernel.kind == "max", (high, across) == (rows, columns)
        everything = tile.at(0, prod(extent) * self.pixel)
        if before is None and not whole:
            k.vec_dup(everything, -inf if maximum else 0.0, wide)
        elif before is not None and before is not tile and not whole:
            k.vec_scalar("muls", everything, before, 1.0, wide)
        if image is None or not high or not across:
            return
        first = image.first + at * image.pitch + along
        sides = (
            Grid(tile, y * columns + x, columns, 1),
            image._replace(first=first, pitch=s.stride[0] * image.pitch),
        )
        apart = planes, (rows * columns, s.spatial[0] * image.pitch)
        for place, read in self.rectangles(sides, (high, across), apart):
            if before is None and whole:
                k.vec_scalar("muls", place, read, 1.0, wide)
            else:
                held = _there(place, before) if before and whole else place
                k.vec_binary("max" if maximum else "add", place, held, read, wide)

    def _mark(self, tiles: list[Slot], maximum: SlotRegion) -> None:
        """Store for each tap in which windows it is the first that has the maximum."""
        k, taps = self.k, len(tiles)
        target, row = self.bits(0, maximum.size // self.pixel)
        so_far, mask = self.held["so_far"].next(), self.held["mask"].next()
        k.vec_dup(so_far.at(0, (taps + 1) * row), 0, INT32)
        for tap, tile in enumerate(tiles):
            reached = so_far.at((tap + 1) * row, target.row_bytes)
            k.vec_compare("eq", reached, tile.at(0, maximum.size), maximum, self.dtype)
        now, earlier = (so_far.at(first, taps * row) for first in (row, 0))
        k.vec_binary("sub", mask.at(0, taps * row), now, earlier, INT32)
        k.data_move(target, mask.at(0, target.row_bytes, rows=taps, pitch=row), INT8)


def _there(place: SlotRegion, tile: Slot) -> SlotRegion:
    """The region of another tile where ``place`` is in its own."""
    at = place.offset - place.slot.first
    return tile.at(at, place.row_bytes, rows=place.rows, pitch=place.pitch)


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

    def buffers(self, pixels: int, windows: int) -> dict[str, Held]:
        dtype, wide, taps = self.read.dtype, self.wide, self.shape.taps
        held = {"image": Held(dtype, pixels, 2), "out": Held(dtype, windows, 2)}
        if wide != dtype:
            held |= {"wide": Held(wide, pixels), "sums": Held(wide, windows)}
        if self.mask:
            bits = round_up(windows // 8, 32)
            held["maxima"] = Held(dtype, max(1, taps - 1) * windows)
            held |= {"so_far": Held(None, (taps + 1) * bits), "mask": Held(None, taps * bits, 2)}
        return held


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
        sides = self.kernel.patterns[piece.pattern]
        rows = piece.planes * sides[0].size, sides[1].size
        sums = self.held["sums"].next()
        everything = sums.at(0, prod(rows) * self.pixel)
        self.k.vec_dup(everything, 0.0, self.wide)
        for run in self._runs(*sides):
            self._add(sums, run, sides, piece.planes)
        self.store(everything, rows)

    def _runs(self, rows: Side, columns: Side) -> Iterator[_Run]:
        """What is read of the windows: as a whole where their rows are, else row by row."""
        kernel = self.kernel
        (row, high), (column, wide) = kernel.reach(rows), kernel.reach(columns)
        if kernel.tiling and kernel.tiling.at_once:
            (row, column), (high, wide) = (0, 0), kernel.shape.out
        if wide == kernel.shape.out[1]:
            yield from [_Run(row, column, high, wide)] * bool(high)
        elif wide:
            yield from (_Run(row + i, column, 1, wide) for i in range(high))

    def _add(self, sums: Slot, run: _Run, sides: tuple[Side, Side], planes: int) -> None:
        """Add what the taps of a run of windows give to a piece."""
        s, k, (rows, columns) = self.kernel.shape, self.k, sides
        dy, masks = self._load(run, sides, planes)
        size = planes * run.high * run.wide * self.pixel
        for tap, ((y, at, high), (x, along, wide)) in enumerate(product(rows.taps, columns.taps)):
            first, end = max(at, run.row), min(at + high, run.row + run.high)
            if end <= first or not wide:
                continue
            if masks:
                taken = self.held["taken"].next()
                k.vec_select(taken.at(0, size), masks[tap], dy, 0.0, self.wide)
            row, column = first - run.row, along - run.column
            pixel = (y + (first - at) * s.stride[0]) * columns.size + x
            grids = (
                Grid(sums, pixel, s.stride[0] * columns.size, s.stride[1]),
                Grid(taken if masks else dy, row * run.wide + column, run.wide, 1),
            )
            apart = planes, (rows.size * columns.size, run.high * run.wide)
            for place, given in self.rectangles(grids, (end - first, wide), apart):
                k.vec_binary("add", place, place, given, self.wide)

    def _load(
        self, run: _Run, sides: tuple[Side, Side], planes: int
    ) -> tuple[Slot, list[SlotRegion]]:
        """A run of dy in the sums' type, over the count, and the mask of each tap if there are."""
        kernel, (rows, columns), taken = self.kernel, sides, []
        at, high = run.row * kernel.shape.out[1] + run.column, planes * run.high
        dy = self.load("dy", kernel.lines(kernel.read, at, (high, run.wide)))
        if kernel.mask:
            mask, (bits, row) = self.held["mask"].next(), self.bits(at, high * run.wide)
            self.k.data_move(mask.at(0, bits.row_bytes, rows=bits.rows, pitch=row), bits, INT8)
            taken = [mask.at(tap * row, bits.row_bytes) for tap in range(bits.rows)]
        if run.high < len(rows.counts):
            first = run.row - kernel.reach(rows)[0]
            rows = rows._replace(counts=rows.counts[first : first + run.high])
        self.divide(dy, (rows, columns), (planes, run.high, run.wide))
        return dy, taken


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

    def buffers(self, pixels: int, windows: int) -> dict[str, Held]:
        dtype, wide = self.read.dtype, self.wide
        held = {"dy": Held(dtype, windows, 2)}
        held["sums"] = Held(wide, pixels, 2 if wide == dtype else 1)
        if wide != dtype:
            held |= {"wide": Held(wide, windows), "dx": Held(dtype, pixels, 2)}
        if self.mask:
            held["mask"] = Held(None, self.shape.taps * round_up(windows // 8, 32), 2)
            held["taken"] = Held(wide, windows)
        return held
