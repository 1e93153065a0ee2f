"""The sizes of an implicit matrix product, and how operands and results move where taps are few."""

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
        window = all(axis.fits_window() for axis in axes)
        phases = any(axis.insert > 1 or axis.sparse for axis in axes)
        phases = phases and all(axis.insert > 1 or axis.fits_window() for axis in axes)
        single = phases and any(axis.lone for axis in axes)
        taps = any(axis.wide or axis.sparse for axis in axes)
        found = {"window": window, "phases": phases, "single": single, "taps": taps}
        return tuple(form for form, fits in found.items() if fits)

    def adds_up(self, form: str) -> bool:
        """Whether an output is the sum of several products of the ``form``: of taps, or bands."""
        return max(axis.terms(form) for axis in (self.h, self.w)) > 1

    def spread(self, h: Reading) -> int:
        """Positions of a slab's rows and of those behind each, which no input reaches."""
        return h.outputs * h.outputs_apart * self.w.out

    def output_lines(self, images: int, h: Reading, w: Reading, block: int) -> list[Line]:
        """Where a slab's outputs of ``block`` bytes go, behind the place of the very first."""
        pitch, apart = h.outputs_apart * self.w.out * block, w.outputs_apart * block
        count = h.outputs * w.outputs
        lines = [Line(i * w.outputs, w.outputs, i * pitch, apart) for i in range(h.outputs)]
        if w.outputs == 1 or h.outputs == 1 or pitch == w.outputs * apart:  # all equally far apart
            lines = [Line(0, count, 0, pitch if w.outputs == 1 else apart)]
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
    plan, taps = s.plan, s.kernel[0]
    depth, h, w = ((s.gradient_axis if gradient else s.axis)(i) for i in range(3))
    live = [
        [(kd, depth.real(at, taps - 1 - kd if gradient else kd)) for kd in range(taps)]
        for at in range(depth.out)
    ]
    sides = [
        (s.spatial[0], plan.cin1_g, s.cin1),
        (s.out[0], plan.cout_g // s.c0, ceil_div(s.cout, s.c0)),
    ]
    read, made = sides[::-1] if gradient else sides
    return Geometry(
        images=s.n,
        depth_in=read[0],
        depth_out=made[0],
        h=h,
        w=w,
        kernel_d=taps,
        live=tuple(tuple((kd, at) for kd, at in pairs if at is not None) for pairs in live),
        groups=plan.real_groups,
        c0=s.c0,
        planes_in=read[1],
        planes_out=made[1],
        all_in=read[2],
        all_out=made[2],
    )


def weight_loads(
    plane: int, planes: int, all_planes: int, steps: tuple[int, int, int]
) -> list[tuple[range, range]]:
    """Columns in each L1 slot of weights, and those that ``planes`` of the input use of it.

    ``steps`` are the columns of a whole load of the input, those a slot of weights may hold, and
    those of a plane. A slot holds whole planes, of one load of the input or of several, or part
    of one plane's taps.
    """
    chunk, step, taps = steps
    first, last, total = plane * taps, (plane + planes) * taps, all_planes * taps
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
    unit, count = max(1, 16 // c0), ceil_div(planes, step)
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
    first, planes = columns.start // used, ceil_div(columns.stop, used) - columns.start // used
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
        return [Rows(planes, first * taps + at, taps, l1, used) for l1, at in enumerate(places)]
    return [
        Rows(len(run), (first + plane) * taps + run[0], _step(run), plane * used + l1, 1)
        for plane in range(planes)
        for l1, run in pieces
    ]


def equally_spaced(places: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
    """Runs of equally spaced numbers, with the index of their first."""
    found, start = [], 0
    while start < len(places):
        stop = min(start + 2, len(places))
        while stop < len(places) and places[stop] - places[stop - 1] == _step(places[start:stop]):
            stop += 1
        found.append((start, places[start:stop]))
        start = stop
    return found


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
    more, apart = images - 1, pitch // h.stride
    tall = h._replace(size=more * pitch + h.size, outputs=more * apart + h.outputs)
    return Stack(tall, pitch, apart)


def pixel_by_pixel(h: Reading, w: Reading, plane: tuple[int, int]) -> bool:
    """Whether outputs read the pixels of a whole ``plane`` one after another, one each."""
    return all(
        one.kernel == one.stride == one.insert == one.inputs_apart == 1
        and not one.before
        and not one.after
        and one.size == size
        for one, size in zip((h, w), plane, strict=True)
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
