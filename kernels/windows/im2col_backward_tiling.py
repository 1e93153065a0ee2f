"""The pieces of a fold, and pieces that are good at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.base.records import replace
from npusim.kernels.estimate.checks import check_tiling
from npusim.language import ArgumentError, DType, ceil_div, round_up
from npusim.problem.convolution import Convolution

#: Smallest piece of a plane, in bytes, worth giving to a core of its own.
LEAST_PIECE = 4 * 1024


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A task makes ``rows`` x ``columns`` pixels of ``planes`` planes.

    ``at_once`` brings all taps to UB in one move; only for whole images, and needed for several
    planes.
    """

    rows: int
    columns: int
    planes: int = 1
    at_once: bool = False

    def __post_init__(self) -> None:
        check_tiling(self, (), ("rows", "columns", "planes"))
        if self.planes > 1 and not self.at_once:
            raise ArgumentError(
                f"tiling planes is {self.planes} without at_once; only planes whose taps are "
                "loaded at once can share a task: set at_once or planes=1"
            )

    def __str__(self) -> str:
        load = f"{self.planes} planes at once" if self.at_once else "tap by tap"
        return f"{self.rows}x{self.columns} pixels, {load}"


def ub_bytes(shape: Convolution, tiling: Tiling, dtype: DType, sums: DType) -> int:
    """Bytes of UB a tiling takes, up to the alignment of its buffers."""
    pixels, patches = elements(shape, tiling)
    if dtype == sums:
        return 2 * dtype.bytes * (pixels + patches)
    return (2 * dtype.bytes + sums.bytes) * (pixels + patches)


def auto_tiling(shape: Convolution, dtype: DType, sums: DType, cores: int, ub: int) -> Tiling:
    """Whole planes at once where they fit ``ub`` bytes and keep all cores busy, else pieces."""
    room = ub - 1024  # for the alignment of six buffers
    (h, w) = shape.spatial
    (sh, sw) = shape.stride
    worth = max(1, pixels(shape) * dtype.bytes // LEAST_PIECE)
    pieces = min(ceil_div(cores, shape.n), worth)
    whole = Tiling(rows=h, columns=w, at_once=True)
    size = ub_bytes(shape, whole, dtype, sums)
    if pieces == 1 and size <= room:
        fit = min(room // size, ceil_div(shape.n, cores))
        return replace(whole, planes=fit)
    tiling = Tiling(rows=_rounded(ceil_div(h, pieces), sh, h), columns=w)
    while ub_bytes(shape, tiling, dtype, sums) > room:
        if tiling.rows > 1:
            tiling = replace(tiling, rows=_rounded(ceil_div(tiling.rows, 2), sh, tiling.rows - 1))
        elif tiling.columns > 1:
            half = ceil_div(tiling.columns, 2)
            tiling = replace(tiling, columns=_rounded(half, sw, tiling.columns - 1))
        else:
            break  # one pixel at a time: the buffers say what is missing
    return tiling


def _rounded(value: int, multiple: int, most: int) -> int:
    """``value`` up to a multiple, if that is at most ``most``: then all pieces look alike."""
    up = round_up(value, multiple)
    return up if up <= most else min(value, most)


def patches(shape: Convolution) -> int:
    """Elements of grad in one plane."""
    return shape.cout * prod(shape.out)


def pixels(shape: Convolution) -> int:
    """Elements of out in one plane."""
    return shape.cin * prod(shape.spatial)


def elements(shape: Convolution, tiling: Tiling) -> tuple[int, int]:
    """Elements of out and of grad that a task holds in one buffer slot."""
    rows = min(tiling.rows, shape.spatial[0])
    columns = min(tiling.columns, shape.spatial[1])
    pixels = tiling.planes * rows * columns * shape.cin
    if tiling.at_once:
        return pixels, tiling.planes * patches(shape)
    (lh, lw) = shape.out
    (sh, sw) = shape.stride
    return pixels, min(lh, ceil_div(rows, sh)) * min(lw, ceil_div(columns, sw)) * shape.cin
