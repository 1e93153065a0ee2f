"""The pieces of an im2col, and pieces that are good at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.base.records import replace
from npusim.kernels.estimate.checks import check_tiling
from npusim.language import ArgumentError, DType, ceil_div
from npusim.problem.convolution import Convolution

#: Smallest piece of a plane's patches, in bytes, worth giving to a core of its own.
LEAST_PIECE = 4 * 1024


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A task cuts ``rows`` x ``columns`` windows of ``planes`` planes.

    ``at_once`` holds whole images and all their patches in UB, which several planes of a task need;
    else patches leave tap by tap. ``image`` brings all pixels that a piece reads to UB in one move;
    without it every tap loads its own.
    """

    rows: int
    columns: int
    planes: int = 1
    at_once: bool = False
    image: bool = True

    def __post_init__(self) -> None:
        check_tiling(self, (), ("rows", "columns", "planes"))
        if self.at_once and not self.image:
            raise ArgumentError("tiling is at_once without image; at_once holds whole images")
        if self.planes > 1 and not self.at_once:
            raise ArgumentError(
                f"tiling planes is {self.planes} without at_once; only planes whose patches leave "
                "at once can share a task: set at_once or planes=1"
            )

    def __str__(self) -> str:
        if self.at_once:
            return f"{self.planes} planes at once"
        return f"{self.rows}x{self.columns} windows, {'image at once' * self.image or 'tap by tap'}"


def ub_bytes(shape: Convolution, tiling: Tiling, dtype: DType) -> int:
    """Bytes of UB a tiling takes, up to the alignment of its buffers."""
    return 2 * dtype.bytes * sum(elements(shape, tiling))


def auto_tiling(shape: Convolution, dtype: DType, cores: int, ub: int) -> Tiling:
    """Whole planes at once where they fit ``ub`` bytes and keep all cores busy, else pieces."""
    room = ub - 512  # for the alignment of four buffers
    lh, lw = shape.out
    worth = max(1, shape.cin * shape.taps * lh * lw * dtype.bytes // LEAST_PIECE)
    pieces = min(ceil_div(cores, shape.n), worth, lh)
    whole = Tiling(rows=lh, columns=lw, at_once=True)
    size = ub_bytes(shape, whole, dtype)
    if pieces == 1 and size <= room:
        return replace(whole, planes=min(room // size, ceil_div(shape.n, cores)))
    for image in (True, False):
        tiling = Tiling(rows=ceil_div(lh, pieces), columns=lw, image=image)
        while ub_bytes(shape, tiling, dtype) > room and max(tiling.rows, tiling.columns) > 1:
            if tiling.rows > 1:
                tiling = replace(tiling, rows=ceil_div(tiling.rows, 2))
            else:
                tiling = replace(tiling, columns=ceil_div(tiling.columns, 2))
        if ub_bytes(shape, tiling, dtype) <= room:
            return tiling
    return tiling  # one window at a time: the buffers say what is missing


def elements(shape: Convolution, tiling: Tiling) -> tuple[int, int]:
    """Elements of the image and of the patches that a task holds in one buffer slot."""
    rows = min(tiling.rows, shape.out[0])
    columns = min(tiling.columns, shape.out[1])
    if tiling.at_once:
        images = prod(shape.spatial), prod(shape.kernel) * prod(shape.out)
        return tiling.planes * images[0] * shape.cin, tiling.planes * images[1] * shape.cin
    read = 1
    for i, count in enumerate((rows, columns)):
        reach = (count - 1) * shape.stride[i] + 1
        if tiling.image:
            reach += (shape.kernel[i] - 1) * shape.dilation[i]
        elif i == 0:
            reach = count  # rows between those that a tap reads stay where they are
        read *= min(reach, shape.spatial[i])
    return read * shape.cin, rows * columns * shape.cin
