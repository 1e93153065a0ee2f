"""Strided convolutions of few channels with rows and columns of the input as channels.

Where a layer has few channels, most of a block of C0 are not real, and the cube multiplies them for
nothing. Folded by (h, w), the input has ceil(H / h) x ceil(W / w) positions, and the
h x w pixels of each are channels of it. The same sums are then

* for the output and the filter gradient a convolution of stride / (h, w) over the folded input,
* for the input gradient a convolution over the output's gradient whose results are the folded
  gradient, with stride (h, w) / stride,

both with filters in which taps that no pixel has are zero. Layouts: the folded map is
(N, 1, blocks, ceil(H / h), ceil(W / w), C0). Row ``a`` of channel ``c`` is number ``c * h + a`` of
C * h, of which a block holds C0 / w, a lane, for each column ``b``: lane after lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from npusim.base.records import replace
from npusim.language import ceil_div
from npusim.problem.convolution import Convolution, Sizes


class Fold(NamedTuple):
    """Rows and columns of the input that become channels; the latter divide C0."""

    h: int
    w: int

    def text(self, *, loads_plain: bool) -> str:
        """The way a map or filter is changed, and the pixels that share a position."""
        return f"{'to' if loads_plain else 'from'} {self.h}x{self.w} pixels a position"

    def lane(self, c0: int) -> int:
        """Channels of a block that are of one column."""
        return c0 // self.w

    def blocks(self, channels: int, c0: int) -> int:
        """Blocks of a folded map of so many channels."""
        return ceil_div(channels * self.h, self.lane(c0))

    def plane(self, h: int, w: int) -> tuple[int, int]:
        """Positions of a folded plane of ``h`` x ``w`` pixels."""
        return ceil_div(h, self.h), ceil_div(w, self.w)

    def place(self, row: int, column: int, c0: int) -> tuple[int, int]:
        """Block and channel in it of a row, counted over all channels, and a column."""
        block, lane = divmod(row, self.lane(c0))
        return block, column * self.lane(c0) + lane

    def runs(self, first: int, count: int, c0: int) -> Iterator[tuple[int, int]]:
        """Runs of ``count`` rows from ``first`` on that lie in one lane: (first, count)."""
        while count:
            size = min(count, self.lane(c0) - first % self.lane(c0))
            yield first, size
            first = first + size
            count = count - size


@dataclass(frozen=True, kw_only=True)
class FoldedConvolution(Convolution):
    """A convolution that computes ``whole``, of which its sizes are folded.

    Its input or, where it is a ``gradient``, its output is the folded input of the whole one.
    """

    whole: Convolution
    fold: Fold
    gradient: bool

    @property
    def useful_macs(self) -> int:
        return self.whole.useful_macs

    def used(self, what: str, size: int) -> int:
        """As of the whole convolution; of the folded filter no tap is known to be useless."""
        if what == "taps":
            return size
        exchanged = {"inputs": "outputs", "outputs": "inputs"}
        name = exchanged[what] if self.gradient else what
        places = self.whole.spatial if name == "inputs" else self.whole.out
        live: list[int] = [getattr(use, name) for use in self.whole.uses]
        return size * prod(live) // prod(places)

    def tap(self, axis: int, tap: int, pixel: int) -> int:
        """Place in the whole filter, or outside of it, that a pixel of a position has in a tap.

        ``axis`` is 1 for rows, 2 for columns.
        """
        s = self.whole
        before = self.padding[axis][0]
        fold = self.fold[axis - 1]
        if self.gradient:
            return pixel + s.padding[axis][0] + s.step(axis) * (before - tap)
        return pixel + s.padding[axis][0] + fold * (tap - before)


def can_fold(c: Convolution) -> bool:
    """True if a 3-D convolution is of planes, strided, without groups, and of few channels."""
    flat = (c.spatial[0], c.out[0], c.kernel[0], c.padding[0]) == (1, 1, 1, (0, 0))
    strided = max(c.step(1), c.step(2)) > 1
    few = c.groups == 1 and 2 * c.cin <= c.c0
    return flat and strided and few and set(c.dilation[1:]) == {1} and not can_thin(c)


def can_thin(c: Convolution) -> bool:
    """True if a 3-D convolution is of planes and reads single pixels, some apart."""
    single = c.kernel == (1, 1, 1) and set(c.padding) == {(0, 0)} and c.spatial[0] == c.out[0] == 1
    steps = (c.step(1), c.step(2))
    ends = tuple(ceil_div(x, s) for x, s in zip(c.spatial[1:], steps, strict=True))
    return single and max(steps) > 1 and ends == c.out[1:]


def thinned(c: Convolution) -> Convolution:
    """The convolution over the pixels that ``c`` reads, without the others."""
    return replace(c, spatial=c.out, stride=(1, 1, 1), outputs=None)


def input_folds(c: Convolution) -> list[Fold]:
    """The ways to fold the input so that a convolution of a smaller stride reads it."""
    down = [f for f in range(1, c.step(1) + 1) if c.step(1) % f == 0]
    across = [f for f in range(1, c.step(2) + 1) if c.step(2) % f == 0]
    return [Fold(h, w) for h in down for w in across if c.c0 % w == 0 and h * w > 1]


def gradient_folds(c: Convolution) -> list[Fold]:
    """The ways to fold the input's gradient: at least by the stride, rows up to four times that."""
    if c.c0 % c.step(2):
        return []
    times = [t for t in (1, 2, 4) if t <= max(1, c.out[1])]
    return [Fold(t * c.step(1), c.step(2)) for t in times]


def folded_input(c: Convolution, fold: Fold) -> FoldedConvolution:
    """The convolution that reads the folded input, for the filter gradient of ``c``."""
    kernel = []
    stride = []
    before = []
    for i, f in zip((1, 2), fold, strict=True):
        pad = c.padding[i][0]
        before.append(max(0, ceil_div(pad, f)))
        kernel.append((c.kernel[i] - 1 - pad) // f + before[-1] + 1)
        stride.append(c.step(i) // f)
    return _folded(c, fold, fold.blocks(c.cin, c.c0) * c.c0, (kernel, stride, before))


def folded_gradient(c: Convolution, fold: Fold) -> FoldedConvolution:
    """The convolution over the output's gradient of ``c`` that makes the folded input's."""
    kernel = []
    stride = []
    before = []
    for i, f in zip((1, 2), fold, strict=True):
        pad = c.padding[i][0]
        step = c.step(i)
        before.append(max(0, (c.kernel[i] - 1 - pad) // step))
        kernel.append((f - 1 + pad) // step + before[-1] + 1)
        stride.append(f // step)
    channels = fold.blocks(c.cin, c.c0) * c.c0
    return _folded(c, fold, channels, (kernel, stride, before), gradient=True)


def _folded(
    c: Convolution,
    fold: Fold,
    channels: int,
    sizes: tuple[list[int], list[int], list[int]],
    *,
    gradient: bool = False,
) -> FoldedConvolution:
    """The folded convolution with taps, strides and padding before of rows and columns."""
    kernel, stride, before = sizes
    plane: Sizes = (1, *fold.plane(*c.spatial[1:]))
    return FoldedConvolution(
        n=c.n,
        cin=c.cout if gradient else channels,
        cout=channels if gradient else c.cout,
        spatial=c.out if gradient else plane,
        outputs=plane if gradient else c.out,
        kernel=(1, *kernel),
        stride=(1, *stride),
        padding=((0, 0), *((pad, 0) for pad in before)),
        c0=c.c0,
        whole=c,
        fold=fold,
        gradient=gradient,
    )
