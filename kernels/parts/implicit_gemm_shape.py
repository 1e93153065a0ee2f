"""The sizes of an implicit matrix product, and how its weights come to L1."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.convolution import Axis


@dataclass(frozen=True, kw_only=True)
class Geometry:
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
