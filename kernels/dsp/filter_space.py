"""The tilings of a filter gradient on a DSP that are worth comparing.

Cores stand in every grid that the problem has work for, and tiles and chunks fill the memories.
What is compared for some cores is compared for more of them too, so that these are never slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from npusim.base.integers import even_parts
from npusim.kernels.dsp.filter_tiling import (
    Grid,
    Tiling,
    columns_in,
    core_share,
    sum_elements,
)
from npusim.kernels.dsp.filter_work import Gradient
from npusim.language import FP32, ceil_div, round_up

#: Least positions of a chunk to try, and the most: 6 cycles each, they bury the overhead of the
#: micro-kernel, but fewer of them leave room for more channels, whose frames are longer.
LEAST_CHUNKS, FULL_CHUNK = (8, 16, 32, 64, 128), 512

#: Chunks of a tile worth having: the first is loaded before anything is multiplied.
MANY_CHUNKS = 8

#: Tilings of each number of cores at work that "auto" may simulate. With two, 40 random layers on
#: eight cores take 1.1 % longer on average and a quarter fewer simulations; with six, 1.0 % less
#: and 64 % more simulations.
LEADING = 3

#: Sizes of tiles along channels, taps and columns that a search looks at.
SEARCHED = (3, 4, 3)


def ranked_tilings(problem: Gradient, cores: int) -> list[tuple[int, Tiling]]:
    """Tilings worth simulating, each with a bound on its cycles and its launch, the least first.

    They are the ``LEADING`` ones of each number of cores up to ``cores``; of equal bounds the one
    on fewer cores comes first.
    """
    ranked: list[tuple[int, Tiling]] = []
    for used in range(1, cores + 1):
        tilings = dict.fromkeys(
            tiling.clipped(problem.shape)
            for grid in _grids(problem, used)
            for tiling in _fitting(problem, grid)
        )
        launch = problem.device.launch.beside("dsp", used)
        bounds = [(problem.least(t) + launch, t) for t in tilings if t.working == used]
        ranked += sorted(bounds, key=lambda bound: bound[0])[:LEADING]
    return sorted(ranked, key=lambda bound: bound[0])


def searched_tilings(problem: Gradient, cores: int) -> Iterator[Tiling]:
    """The tilings that a search looks at: those that "auto" may choose, and many more."""
    tilings = dict.fromkeys(tiling for _, tiling in ranked_tilings(problem, cores))
    for used in range(1, cores + 1):
        for grid in _grids(problem, used):
            share = core_share(problem.shape, grid)
            axes = [even_parts(size, size, few) for size, few in zip(share, SEARCHED, strict=True)]
            for channels, taps, columns, most in product(*axes, (*LEAST_CHUNKS, FULL_CHUNK)):
                tiling = _tiling(problem, grid, channels, taps, columns, most)
                if tiling is not None:
                    tilings[tiling.clipped(problem.shape)] = None
    return iter(tilings)


def _grids(problem: Gradient, cores: int) -> Iterator[Grid]:
    """All grids of so many cores that the problem has work for."""
    s = problem.shape
    for channels in _divisors(cores, s.cout):
        for taps in _divisors(cores // channels, s.taps):
            left = cores // channels // taps
            for columns in _divisors(left, s.cin_per_group):
                images = left // columns
                if images == 1 or _adds(problem, images):
                    yield Grid(channels, taps, columns, images)


def _divisors(cores: int, most: int) -> Iterator[int]:
    """The numbers up to ``most`` that divide ``cores``."""
    return (number for number in range(1, min(cores, most) + 1) if cores % number == 0)


def _adds(problem: Gradient, images: int) -> bool:
    """Tell whether cores can share images so: there are chunks, room for fp32 sums, and adds."""
    s = problem.shape
    enough = images <= s.n * s.spatial[0] * s.spatial[1]
    room = images * problem.elements * FP32.bytes <= problem.spare_bytes
    return enough and room and FP32.name in problem.gemm.rates


def _fitting(problem: Gradient, grid: Grid) -> Iterator[Tiling]:
    """Tiles that fill SM with two chunks of A, and AM with two of B and the accumulator.

    A chunk has a least number of positions where the image has so many, or that number and no more,
    so that the first one is soon there. Where a core's rows have no room at once a tile has all
    taps of some channels, or some taps of all channels.
    """
    s, (own_channels, own_taps, columns) = problem.shape, core_share(problem.shape, grid)
    image = s.spatial[0] * s.spatial[1]
    for least in LEAST_CHUNKS:
        rows = max(1, _slot(problem) // min(image, least))
        most = min(FULL_CHUNK, max(least, s.n * image // (MANY_CHUNKS * grid.images)))
        some_taps, some_channels = min(own_taps, rows), min(own_channels, rows)
        tiles = (
            (_even(own_channels, rows // some_taps), _even(own_taps, some_taps)),
            (_even(own_channels, some_channels), _even(own_taps, rows // some_channels)),
        )
        for (channels, taps), positions in product(
            dict.fromkeys(tiles), dict.fromkeys((most, least))
        ):
            tiling = _tiling(problem, grid, channels, taps, columns, positions)
            if tiling is not None:
                yield tiling


def _tiling(
    problem: Gradient, grid: Grid, channels: int, taps: int, columns: int, most: int
) -> Tiling | None:
    """A tile of such sizes, with chunks of at most so many positions and the columns that fit.

    None where it has no room.
    """
    s, (high, wide) = problem.shape, problem.shape.spatial
    share = s.n * high * wide // grid.images  # so that each core has a chunk
    room = min(most, share, _slot(problem) // (taps * channels))
    if room < 1:
        return None
    rows, width = (min(high, room // wide), wide) if room >= wide else (1, room)
    taken = _sums_in_am(problem, grid.images)
    device, dtype = problem.device, problem.dtype
    fit = columns_in(device, dtype, taps * channels, rows * width, columns, taken)
    if fit < 1:
        return None
    tile = {"channels": channels, "taps": taps, "columns": fit, "rows": rows, "width": width}
    return Tiling(**tile, **grid.fields)


def _even(size: int, most: int) -> int:
    """The size of even pieces of an axis that are at most so large."""
    return ceil_div(size, ceil_div(size, most))


def _slot(problem: Gradient) -> int:
    """Elements of one of the two chunks of A that SM holds."""
    return problem.device.memory("SM").size_bytes // 2 // problem.dtype.bytes


def _sums_in_am(problem: Gradient, images: int) -> int:
    """Bytes of the buffers of AM in which partial sums of so many runs of images are added up."""
    if images == 1:
        return 0
    elements, align = sum_elements(images), problem.device.memory("AM").align_bytes
    sizes = [elements * images * FP32.bytes] * 2 + [elements * FP32.bytes]
    if problem.dtype is not FP32:
        sizes.append(elements * problem.dtype.bytes)
    return sum(round_up(size, align) for size in sizes)
