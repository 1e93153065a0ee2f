"""Cuts of a product's plane, and ways of its operands to L1: the axes of its tilings.

What is listed follows from the problem alone, but for tiles that no memory holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from npusim.base.integers import even_parts
from npusim.base.records import replace
from npusim.kernels.implicit_gemm.geometry import (
    Geometry,
    equally_spaced,
    filter_places,
    pixel_by_pixel,
    stack,
    window,
)
from npusim.kernels.parts.plane import Plane, cut_plane
from npusim.language import IntArray, Window, ceil_div, round_up
from npusim.machine.isa.dma import Fetcher
from npusim.problem.axis import Reading, Runs

#: Most positions of a tile, and most images whose positions share one.
_MOST_M, _MOST_IMAGES = 2048, 16
#: How many loads of equal size all planes of the input, or all taps of one, may take.
_LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
#: Slabs of a plane above which a smaller M is not worth looking at, and runs of rows and columns.
_MOST_SLABS, _MOST_RUNS = 4096, 1 << 13


def even_cuts(height: int, width: int, most: int) -> list[int]:
    """Sizes that cut a plane evenly into whole rows or parts of rows, of ``most`` positions."""
    sizes = [rows * width for rows in even_parts(height, max(1, most // width))]
    sizes += [round_up(size, 16) for size in even_parts(width, most, 12) if 16 < size < width]
    sizes += [size for size in (16, 8, 4, 2, 1) if size < width]
    return list(dict.fromkeys(sizes))


class Cut(NamedTuple):
    """Slabs of a plane, and what the estimate needs of them: means over slabs or reads, or most."""

    form: str
    base_m: int
    images: int
    slabs: int
    m: float  # positions of a tile in whole sixteens
    most_m: int
    least_m: int
    next_m: int  # the same of all but the last
    next_real: int
    next_pixels: int
    real_m: float  # positions as they are
    reads: float  # per slab
    pixels: float  # of one plane that a read loads
    least_pixels: int
    most_pixels: int  # with rows and columns of zeros
    taps: float
    least_taps: int
    most_taps: int
    fetch: float  # cycles to fetch one column of img2col
    mean_fetch: float  # the same over all reads, at least
    least_fetch: float  # and of any read
    moves: float  # that bring a read to L1, and more for each plane
    plane_moves: float
    least_moves: float  # the same, at least
    least_plane_moves: float
    pieces: float  # rows in GM of a plane of a read
    tap_moves: float  # that bring weights of whole planes, at most
    tap_rows: float  # and for one output plane
    band_moves: int  # that bring weights of one plane where taps are a band, else 0
    lines: int  # drains of a tile that follow each other, and positions in each
    length: int
    least_lines: int
    apart: int  # from one position of a line to the next, in positions
    dead: bool  # whether some outputs read nothing
    around: int  # positions of its rows with zeros between, if these make up the plane, or 0
    side_by_side: bool  # whether images of few planes come with one move, of one row each


class Way(NamedTuple):
    """A way of operands to L1: ``planes`` of the input at once; weights of ``w_planes`` planes, or
    of one plane in ``parts``; slots of both, and which of them stays."""

    planes: int
    w_planes: int
    parts: int
    l1_slots: int
    weight_slots: int
    resident: bool = False
    resident_input: bool = False


def ways_of(g: Geometry) -> list[Way]:
    """Ways of operands to L1, of all planes in equal loads."""
    sizes = list(dict.fromkeys(ceil_div(g.planes_in, loads) for loads in _LOADS))
    every = g.planes_in
    ways = [Way(p, p, 1, *slots) for p in sizes for slots in ((2, 2), (2, 1), (1, 1))]
    ways += [
        Way(1, 1, parts, *slots)
        for parts in _LOADS[1:]
        if parts <= g.taps
        for slots in ((2, 2), (1, 1))
    ]
    for slots in (2, 1):
        ways += [Way(every, p, 1, slots, 2, resident_input=True) for p in sizes[:8]]
        ways += [Way(p, every, 1, slots, 1, resident=True) for p in sizes]
    return ways


def cuts_of(g: Geometry, form: str, most: int, fetcher: Fetcher) -> tuple[Cut, ...]:
    """Even cuts of the plane into whole rows or parts of rows, and images taken together."""
    # Layers of other channels have the same.
    flat = replace(g, groups=1, planes_in=1, planes_out=1, all_in=1, all_out=1)
    return _cuts(flat, form, most, fetcher)


@lru_cache(maxsize=32)
def _cuts(g: Geometry, form: str, most: int, fetcher: Fetcher) -> tuple[Cut, ...]:
    height, width = g.h.longest(form), g.w.longest(form)
    cuts: list[Cut] = []
    for base_m in even_cuts(height, width, _MOST_M):
        if base_m > most or (cuts and _runs(g, form, base_m) > _MOST_RUNS):
            continue
        plane = cut_plane(g.h, g.w, base_m, form=form).live()
        if not plane.slabs or (cuts and plane.slabs > _MOST_SLABS):
            continue
        together = g.images if _may_stack(g, form, plane) else 1
        count = min(together, _MOST_IMAGES, max(1, most // base_m))
        cuts += [_cut(g, form, base_m, n + 1, plane, fetcher) for n in range(count)]
    return tuple(cuts)


def _runs(g: Geometry, form: str, base_m: int) -> int:
    """Runs of rows and columns that a plane is cut into.

    A huge plane in tiny slabs is never good, and listing them would take longer than running.
    """
    height, width = g.h.longest(form), g.w.longest(form)
    rows = ceil_div(height, max(1, base_m // width)) * g.h.terms(form)
    return rows + ceil_div(width, base_m) * g.w.terms(form)


def _may_stack(g: Geometry, form: str, plane: Plane) -> bool:
    """Tell whether the positions of several images may share a tile: planes are not cut."""
    axes = (plane.rows, plane.columns)
    uncut = form != "taps" and all(len(a) == len(a.parts) == a.slabs for a in axes)
    return uncut and (form == "phases" or g.h.insert == 1 == g.w.insert)


def _cut(g: Geometry, form: str, base_m: int, images: int, plane: Plane, fetcher: Fetcher) -> Cut:
    """The slabs of a plane that are cut so, of several images together."""
    rows, columns = plane.rows, plane.columns
    stacks = [stack(h, images).h for h in rows.readings[0]]
    heights, h = _outputs(rows, stacks)
    widths, w = _outputs(columns, columns.readings[0])
    m = np.outer(heights, widths)
    padded_m = -(-m // 16) * 16
    plain = images > 1 and pixel_by_pixel(h, w, (g.h.size, g.w.size))
    over = Window(images, h.size * w.size) if plain else window(stack(h, images).h, w)
    fetched = plain or not over.plain
    moves, plane_moves, pieces = _moves(g.w.size, h, w, images)
    all_moves = [
        _moves(g.w.size, i, j, images) for i in rows.readings[0] for j in columns.readings[0]
    ]
    taps = plane.products / plane.positions / (plane.reads / plane.slabs)
    partial = h.kernel * w.kernel < g.taps
    mean_fetch = fetches(plane, fetcher) / plane.reads / taps if images == 1 else 0.0
    least_fetch = min(
        0.0 if over.plain else over.fetches(0, i.outputs * j.outputs, fetcher)
        for i in rows.readings[0]
        for j in columns.readings[0]
        for over in [window(i, j)]
    )
    if images > 1:
        mean_fetch = least_fetch = _fetch_of_images(g, (rows, columns), plain, images, fetcher)
    return Cut(
        form=form,
        base_m=base_m,
        images=images,
        slabs=plane.slabs,
        m=float(padded_m.mean()),
        most_m=int(padded_m.max()),
        least_m=int(padded_m.min()),
        next_m=but_the_last(padded_m),
        next_real=but_the_last(m),
        next_pixels=but_the_last(np.outer(rows.real, columns.real)),
        real_m=float(m.mean()),
        reads=plane.reads / plane.slabs,
        pixels=plane.pixels / plane.reads,
        least_pixels=int(rows.real.min() * columns.real.min()),
        most_pixels=max(h.size for h in stacks) * max(1, columns.most("size")),
        taps=taps,
        least_taps=int(rows.kernel.min() * columns.kernel.min()),
        most_taps=plane.most_taps,
        fetch=over.fetches(0, int(np.median(m)), fetcher) if fetched else 0,
        mean_fetch=mean_fetch,
        least_fetch=least_fetch,
        moves=moves,
        plane_moves=plane_moves,
        # Zeros between what is read are no load from global memory.
        least_moves=min(0.0 if each else at_once for at_once, each, _ in all_moves),
        least_plane_moves=min(each for _, each, _ in all_moves),
        pieces=pieces,
        tap_moves=taps if partial else 1,
        tap_rows=h.kernel if partial else 1,
        band_moves=_band_moves(g, h, w, form),
        **_way_out(g, plane, h, w, images),
        side_by_side=plain,
    )


def but_the_last(of_slabs: IntArray) -> int:
    """The least number of any slab but the last, if there are several."""
    numbers = of_slabs.reshape(-1)
    return int(numbers[: max(1, len(numbers) - 1)].min())


def _fetch_of_images(
    g: Geometry, axes: tuple[Runs, Runs], plain: bool, images: int, fetcher: Fetcher
) -> float:
    """Cycles to fetch a column for the positions of so many images, of any read at least.

    The last images may be fewer, which are not fetched in the same ratio.
    """
    least = []
    for together in range(1 if g.images % images else images, images + 1):
        for h, w in product(axes[0].readings[0], axes[1].readings[0]):
            tall = stack(h, together).h
            over = Window(together, h.size * w.size) if plain else window(tall, w)
            count = together * h.outputs * w.outputs
            # One plane is read as it lies.
            cycles = 0 if over.plain else over.fetches(0, count, fetcher)
            least.append(cycles * images / together)
    return min(least)


def _way_out(g: Geometry, plane: Plane, h: Reading, w: Reading, images: int) -> dict[str, Any]:
    """The fields of ``Cut`` on how tiles leave, and on outputs that read nothing."""
    lines = h.outputs if w.outputs_apart > 1 or h.outputs_apart > 1 else 1
    gaps, live = plane.positions < g.h.out * g.w.out, all(g.live)
    filled = gaps and live and images == 1 and plane.filled(g.h.out)
    return {
        "lines": lines * images,
        "length": h.outputs * w.outputs // lines,
        "least_lines": 1 if lines == 1 else min(i.outputs for i in plane.rows.readings[0]),
        "apart": w.outputs_apart,
        "dead": gaps or not live,
        "around": g.spread(h) if filled else 0,
    }


def _band_moves(g: Geometry, h: Reading, w: Reading, form: str) -> int:
    """Moves that bring the taps of a band of a wide filter in one plane; 0 where there is none."""
    if form == "taps" or not g.adds_up(form):
        return 0
    return len(equally_spaced(filter_places(h, w, g.w.kernel)))


def fetches(plane: Plane, fetcher: Fetcher) -> int:
    """Cycles to fetch one column of img2col for each tap of all reads; none for mere copies."""
    (tall, down), (wide, across) = (axis.readings for axis in (plane.rows, plane.columns))
    total = 0
    for (i, h), (j, w) in product(enumerate(tall), enumerate(wide)):
        over, times = window(h, w), int((down == i).sum()) * int((across == j).sum())
        if not over.plain:
            cycles = over.fetches(0, h.outputs * w.outputs, fetcher)
            total += times * h.kernel * w.kernel * cycles
    return total


def _outputs(axis: Runs, readings: Sequence[Reading]) -> tuple[IntArray, Reading]:
    """Outputs of each slab of an axis, and the reading of one that stands for all.

    ``readings`` are those of the axis, of as many images as come together; the one that is returned
    is of one image.
    """
    outputs = np.array([one.outputs for one in readings], np.int64)[axis.readings[1]]
    largest = np.flatnonzero(outputs == outputs.max())
    return outputs, axis.readings[0][axis.readings[1][largest[len(largest) // 2]]]


def _moves(row: int, h: Reading, w: Reading, images: int) -> tuple[float, float, float]:
    """Moves of a load of an input with so many pixels in a ``row``, more of them for each plane,
    and rows in GM of each."""
    holes = (h.size, w.size) != (h.real, w.real)
    if not holes and w.size == row and h.inputs_apart == 1:
        return float(images), 0.0, 1.0
    if (w.insert == 1 and w.inputs_apart == 1) or w.real == 1:
        return float(holes), float(images), float(h.real)
    return float(holes), float(images * h.real), float(h.real * w.real)
