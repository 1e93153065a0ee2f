"""Cuts of the output plane of a filter gradient into slabs, with what estimates need of each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from npusim.kernels.filter_gradient.tiling import comes_whole, cut_plane, rows_follow, runs_on
from npusim.kernels.implicit_gemm.cuts import but_the_last, even_cuts, fetches
from npusim.kernels.implicit_gemm.geometry import window
from npusim.kernels.parts.plane import Plane
from npusim.language import Window, round_up
from npusim.machine.isa.dma import Fetcher
from npusim.problem.axis import Reading
from npusim.problem.convolution import Convolution

#: Most positions of a slab.
_MOST_SLAB = 4096
#: Images whose slabs may come together, where a slab is a whole plane.
IMAGES = (2, 3, 4, 6, 8, 16)
#: Slabs of a plane above which a shorter one is not worth looking at.
_MOST_SLABS = 1 << 15


class Cut(NamedTuple):
    """Slabs of an output plane, and what the estimate needs of them: means over slabs, or most."""

    form: str
    slab_k: int
    slabs: float  # of a plane, for one filter place where places are tiles of their own
    real: float  # positions, of which the cube takes
    positions: float  # whole sixteens
    most_positions: int  # the same
    pixels: float  # of one plane of x
    most_pixels: int
    fetch: float  # cycles to fetch one column of img2col per position
    mean_fetch: float  # the same over all slabs
    least_fetch: float  # and at least
    least_real: float  # positions and pixels of a slab at least
    least_pixels: float
    next_real: float  # the same of all but the last of a plane
    next_pixels: float
    x_moves: float  # that bring x to L1, and more for each plane
    x_plane_moves: float
    x_pieces: float  # rows in GM of a plane of x
    dy_plane_moves: float  # 0: one move for all planes
    dy_pieces: float
    images: int = 1  # that come together; all the rest is of one, or of one run
    runs: int = 1  # of positions in what comes together: fewer than images where steps go on
    dy_fetch: float = 0.0  # as ``fetch``, of dy
    least_dy_fetch: float = 0.0
    rest: float = 1.0  # images that the last load of several has at least, of as many
    sixteens: float = 1.0  # whole sixteens of positions in loads, at least, of those in full ones


@lru_cache(maxsize=32)
def cuts(
    s: Convolution, form: str, of_x: Fetcher, of_dy: Fetcher | None, widest: tuple[int, int]
) -> tuple[Cut, ...]:
    """Even cuts of the output plane into whole rows or parts of rows.

    ``widest`` are the most rows and columns of the filter in a band of the form "bands".
    img2col fetches columns ``of_x`` and ``of_dy``: None where columns of dy may not lie in L1
    without rows between them.
    """
    height, width = (s.axis(i).longest(form) for i in (1, 2))
    found: list[Cut] = []
    positions = s.axis(1).out * s.axis(2).out
    for slab_k in even_cuts(height, width, _MOST_SLAB):
        # A huge plane in tiny slabs is never good, and listing them would take longer than running.
        if found and positions // slab_k > _MOST_SLABS:
            continue
        plane = cut_plane(s, slab_k, form=form, widest=widest)
        if plane.slabs:
            found.append(_cut(s, form, slab_k, plane, of_x))
            if form not in ("taps", "bands") and comes_whole(s, plane):
                of_images = _of_images(s, form, found[-1], plane)
                if of_dy is not None and runs_on(s, form):
                    found += [_run(s, cut, of_x, of_dy) for cut in of_images]
                else:
                    found += of_images
    return tuple(found)


def _of_images(s: Convolution, form: str, one: Cut, plane: Plane) -> list[Cut]:
    """The cut of whole planes with those of several images."""
    counts = [count for count in IMAGES if count <= s.n]
    if form == "window":
        pixels = s.spatial[1] * s.spatial[2]
        one = one._replace(pixels=pixels, most_pixels=pixels, x_moves=1.0, x_plane_moves=0.0)
        return [_several(s, one, count) for count in counts]
    if not rows_follow(s, plane):
        return []
    return [_several(s, one, count)._replace(x_moves=float(count)) for count in counts]


def _several(s: Convolution, one: Cut, count: int) -> Cut:
    """The cut with so many images in a load; the last load may have fewer."""
    even = s.n % count == 0
    return one._replace(
        images=count, runs=count, least_pixels=one.pixels, rest=1.0 if even else 1 / count
    )


def _run(s: Convolution, cut: Cut, of_x: Fetcher, of_dy: Fetcher) -> Cut:
    """The cut of the same images, with steps that go on from one to the next."""
    pixels, each = cut.most_pixels, s.out[1] * s.out[2]
    # The last load may be of fewer images, which are not fetched or padded in the same ratio.
    loads = range(1 if cut.rest < 1 else cut.images, cut.images + 1)
    count = round_up(cut.images * each, 16)
    counts = [round_up(images * each, 16) for images in loads]
    of_loads = [*zip(loads, counts, strict=True)]
    step = s.step(2)
    fetch = [Window(n, pixels, stride_w=step).fetches(0, size, of_x) / size for n, size in of_loads]
    dy_fetch = [Window(n, each).fetches(0, size, of_dy) / size for n, size in of_loads]
    return cut._replace(
        runs=1,
        positions=float(count),
        most_positions=count,
        fetch=fetch[-1],
        dy_fetch=dy_fetch[-1],
        mean_fetch=min(fetch),
        least_fetch=min(fetch),
        least_dy_fetch=min(dy_fetch),
        sixteens=min(round_up(n * each, 16) / n for n in loads) / (count / cut.images),
    )


def _cut(s: Convolution, form: str, slab_k: int, plane: Plane, fetcher: Fetcher) -> Cut:
    """The slabs of an output plane that is cut so."""
    rows, columns = plane.rows, plane.columns
    positions = np.outer(rows.count, columns.count)
    padded = -(-positions // 16) * 16
    # The slab in the middle stands for all.
    h, w = (axis.readings[0][axis.readings[1][len(axis) // 2]] for axis in (rows, columns))
    over, count = window(h, w), h.outputs * w.outputs
    pairs = [(i, j) for i in rows.readings[0] for j in columns.readings[0]]
    least = min(_fetched(i, j, fetcher) for i, j in pairs)
    plain = form == "taps" or over.plain  # of single taps just the pixels that they read come
    places = {"taps": s.taps, "bands": len(rows.parts) * len(columns.parts)}.get(form, 1)
    taps = s.taps / places if form == "bands" else s.taps
    moves = _moves(s, plane, h, w)
    return Cut(
        form=form,
        slab_k=slab_k,
        slabs=plane.reads / places,
        real=float(positions.mean()),
        positions=float(padded.mean()),
        most_positions=int(padded.max()),
        pixels=plane.pixels / plane.reads,
        most_pixels=plane.most_pixels,
        fetch=0.0 if plain else over.fetches(0, count, fetcher) / count,
        mean_fetch=fetches(plane, fetcher) / taps / padded.sum(),
        least_fetch=0.0 if plain else least,
        least_real=float(positions.min()),
        least_pixels=float(rows.real.min() * columns.real.min()),
        next_real=but_the_last(positions),
        next_pixels=but_the_last(np.outer(rows.real, columns.real)),
        x_moves=moves.x,
        x_plane_moves=moves.x_plane,
        x_pieces=moves.x_pieces,
        dy_plane_moves=moves.dy_plane,
        dy_pieces=moves.dy_pieces,
    )


def _fetched(h: Reading, w: Reading, fetcher: Fetcher) -> float:
    """Cycles per position, in whole sixteens, to fetch a column of a slab that reads so."""
    over, count = window(h, w), h.outputs * w.outputs
    return 0.0 if over.plain else over.fetches(0, count, fetcher) / round_up(count, 16)


class _SlabMoves(NamedTuple):
    """Moves of x to L1, more for each plane, and rows in GM of a plane; the same of dy."""

    x: float
    x_plane: float
    x_pieces: float
    dy_plane: float
    dy_pieces: float


def _moves(s: Convolution, plane: Plane, h: Reading, w: Reading) -> _SlabMoves:
    """The moves of a slab that reads so."""
    full_rows = w.size == s.spatial[2] and (h.inputs_apart == 1 or rows_follow(s, plane))
    single = w.inputs_apart > 1 and w.size > 1
    partial = w.outputs < s.out[2] and h.outputs > 1
    one_piece = full_rows and h.inputs_apart == 1
    return _SlabMoves(
        x=float(full_rows),
        x_plane=0.0 if full_rows else float(h.size if single else 1),
        x_pieces=1.0 if one_piece else float(h.size * (w.size if single else 1)),
        dy_plane=float(partial),
        dy_pieces=float(h.outputs) if partial else 1.0,
    )
