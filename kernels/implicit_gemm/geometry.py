"""Sizes of an implicit matrix product, and moves of its operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from npusim.language import Line, Window, ceil_div, round_up
from npusim.problem.axis import Axis, Reading
from npusim.problem.convolution import Convolution


class Geometry(Struct, frozen=True, kw_only=True):
    """The product's sizes. Channel counts are per real group, in blocks ("planes") of C0."""

    images: int
    depth_in: int
    depth_out: int
    h: Axis
    w: Axis
    kernel_d: int
    live: tuple[tuple[tuple[int, int], ...], ...]  # per output depth: (kd, input depth) pairs
    groups: int
    c0: int
    planes_in: int  # per real group
    planes_out: int
    all_in: int  # of the whole tensor
    all_out: int

    @property
    def taps(self) -> int:
        """Filter positions in the plane."""
        return self.h.kernel * self.w.kernel

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms in which it may read its input, single taps only where others do not fit."""
        axes = (self.h, self.w)
        forms = []
        if all(axis.fits_window() for axis in axes):
            forms.append("window")
        phases = any(axis.insert > 1 or axis.sparse for axis in axes)
        if phases and all(axis.insert > 1 or axis.fits_window() for axis in axes):
            forms.append("phases")
            if any(axis.lone for axis in axes):
                forms.append("single")
        if any(axis.wide or axis.sparse for axis in axes):
            forms.append("taps")
        return tuple(forms)

    def adds_up(self, form: str) -> bool:
        """True if an output is the sum of several products of the ``form``: of taps, or bands."""
        return max(axis.terms(form) for axis in (self.h, self.w)) > 1

    def spread(self, h: Reading) -> int:
        """Positions of a slab's rows and of those behind each, which no input reaches."""
        return h.outputs * h.outputs_apart * self.w.out

    def output_lines(self, images: int, h: Reading, w: Reading, block: int) -> list[Line]:
        """Places of a slab's outputs of ``block`` bytes, behind that of the very first."""
        pitch = h.outputs_apart * self.w.out * block
        apart = w.outputs_apart * block
        if w.outputs == 1:
            lines = [Line(0, h.outputs, 0, pitch)]
        elif h.outputs == 1 or pitch == w.outputs * apart:  # all equally far apart
            lines = [Line(0, h.outputs * w.outputs, 0, apart)]
        else:
            lines = [Line(i * w.outputs, w.outputs, i * pitch, apart) for i in range(h.outputs)]
        image = self.depth_out * self.all_out * self.h.out * self.w.out * block
        positions = stack(h, images).outputs * w.outputs
        return [
            line._replace(first=line.first + i * positions, offset=line.offset + i * image)
            for i in range(images)
            for line in lines
        ]


@lru_cache(maxsize=64)  # candidates of tilings ask for the same product by the dozen
def product_of(s: Convolution, *, gradient: bool) -> Geometry:
    """The product that a forward pass or the input gradient of a convolution is."""
    plan = s.plan
    taps = s.kernel[0]
    axis = s.gradient_axis if gradient else s.axis
    depth = axis(0)
    live = []
    for output in range(depth.out):
        reads = [(kd, depth.real(output, taps - 1 - kd if gradient else kd)) for kd in range(taps)]
        live.append(tuple((kd, read) for kd, read in reads if read is not None))
    inputs = _Map(s.spatial[0], plan.cin1_g, s.cin1)
    outputs = _Map(s.out[0], plan.cout_g // s.c0, ceil_div(s.cout, s.c0))
    source, target = (outputs, inputs) if gradient else (inputs, outputs)
    return Geometry(
        images=s.n,
        depth_in=source.depth,
        depth_out=target.depth,
        h=axis(1),
        w=axis(2),
        kernel_d=taps,
        live=tuple(live),
        groups=plan.real_groups,
        c0=s.c0,
        planes_in=source.planes,
        planes_out=target.planes,
        all_in=source.all_planes,
        all_out=target.all_planes,
    )


class _Map(NamedTuple):
    """A feature map: its depth, and channel blocks of a real group and in all."""

    depth: int
    planes: int
    all_planes: int


def weight_loads(
    plane: int, planes: int, all_planes: int, steps: tuple[int, int, int]
) -> list[tuple[range, range]]:
    """Columns in each L1 slot of weights, and those that ``planes`` of the input use of it.

    ``steps`` are the columns of a whole load of the input, those a slot of weights may hold, and
    those of a plane. A slot holds whole planes, of one load of the input or of several, or part
    of one plane's taps.
    """
    chunk, step, taps = steps
    first = plane * taps
    last = (plane + planes) * taps
    total = all_planes * taps
    if step >= min(total, 2 * chunk):
        size = total if step >= total else step // chunk * chunk
        start = first // size * size
        return [(range(start, min(start + size, total)), range(first, last))]
    if step >= taps:
        size = step // taps * taps
        loads = [range(j, min(j + size, last)) for j in range(first, last, size)]
    else:
        loads = [
            range(j, min(j + step, start + taps))
            for start in range(first, last, taps)
            for j in range(start, start + taps, step)
        ]
    return [(columns, columns) for columns in loads]


def channel_tiles(planes: int, step: int, c0: int, *, even: bool) -> list[tuple[int, int]]:
    """(first block, blocks) of the tiles that cut so many output blocks: ``step`` each, or evenly.

    Tiles begin at multiples of 16 channels.
    """
    if not even:
        return [(n0, min(step, planes - n0)) for n0 in range(0, planes, step)]
    unit = max(1, 16 // c0)
    count = ceil_div(planes, step)
    ends = [min(planes, i * ceil_div(planes, unit) // count * unit) for i in range(count + 1)]
    return [(first, end - first) for first, end in pairwise(ends)]


class Rows(NamedTuple):
    """Rows of the weights that one move brings to L1: the first and the pitch on both sides."""

    number: int
    gm: int
    gm_pitch: int
    l1: int
    l1_pitch: int


def weight_rows(places: Sequence[int], columns: range, taps: int) -> list[Rows]:
    """The moves that bring the L1 rows ``columns``: whole planes of filter places, or part of one.

    ``places`` are those of the filter that are used, ascending, of ``taps`` in a plane; rows of L1
    count them, rows of the weights all.
    """
    used = len(places)
    first = columns.start // used
    planes = ceil_div(columns.stop, used) - first
    if planes == 1:
        chosen = places[columns.start - first * used : columns.stop - first * used]
        return [
            Rows(len(run), first * taps + run[0], _step(run), l1, 1)
            for l1, run in equally_spaced(chosen)
        ]
    pieces = equally_spaced(places)
    if len(pieces) == 1 and _step(places) * used == taps:
        return [Rows(planes * used, first * taps + places[0], _step(places), 0, 1)]
    if used <= planes * len(pieces):  # place by place
        return [
            Rows(planes, first * taps + place, taps, l1, used) for l1, place in enumerate(places)
        ]
    return [
        Rows(len(run), (first + plane) * taps + run[0], _step(run), plane * used + l1, 1)
        for plane in range(planes)
        for l1, run in pieces
    ]


def equally_spaced(places: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
    """Runs of equally spaced numbers, with the index of their first."""
    runs = []
    start = 0
    while start < len(places):
        stop = min(start + 2, len(places))
        while stop < len(places) and places[stop] - places[stop - 1] == _step(places[start:stop]):
            stop += 1
        runs.append((start, places[start:stop]))
        start = stop
    return runs


def _step(places: Sequence[int]) -> int:
    return places[1] - places[0] if len(places) > 1 else 1


def filter_places(h: Reading, w: Reading, row: int) -> list[int]:
    """The filter places of some taps, counted from the first, where a filter row has ``row``."""
    return [
        i * h.taps_apart * row + j * w.taps_apart for i in range(h.kernel) for j in range(w.kernel)
    ]


class Stack(NamedTuple):
    """Images below each other in L1: what they read as one, and rows from one to the next.

    Rows of zeros between them are the padding below one and above the next.
    """

    h: Reading
    pitch: int
    outputs: int


def stack(h: Reading, images: int) -> Stack:
    """So many images of the rows ``h``; outputs that read rows of two belong to neither."""
    pitch = round_up(h.size + max(h.before, h.after), h.stride)
    more = images - 1
    apart = pitch // h.stride
    tall = h._replace(size=more * pitch + h.size, outputs=more * apart + h.outputs)
    return Stack(tall, pitch, apart)


def pixel_by_pixel(h: Reading, w: Reading, plane: tuple[int, int]) -> bool:
    """True if outputs read the pixels of a whole ``plane`` one after another, one each."""
    return all(
        axis.kernel == axis.stride == axis.insert == axis.inputs_apart == 1
        and not axis.before
        and not axis.after
        and axis.size == size
        for axis, size in zip((h, w), plane, strict=True)
    )


def window(h: Reading, w: Reading) -> Window:
    """The img2col geometry of the input in L1, where no zeros are left to insert."""
    return Window(
        h=h.size,
        w=w.size,
        pad_left=w.before,
        pad_right=w.after,
        pad_top=h.before,
        pad_bottom=h.after,
        kernel_h=h.kernel,
        kernel_w=w.kernel,
        stride_h=h.stride,
        stride_w=w.stride,
        dilation_h=h.dilation,
        dilation_w=w.dilation,
    )
