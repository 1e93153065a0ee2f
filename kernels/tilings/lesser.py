"""Tilings that lead on lesser machines: candidates, so that a better machine is no slower.

Estimates err by some percent, differently for each tiling. What leads on a machine may therefore
take longer than what led on one with fewer cores or less L1, though that would run here too. So
machines go up a ladder, and the leaders of the rungs below are candidates on each: of the numbers
of cores that are 4, 5, 6 or 7 times a power of two, and of powers of two of L1. Other figures change
how long candidates take, not which there are, and the leaders of the slower machine are near the
best on the faster one (docs/model/tilings.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npusim.kernels.tilings.ladder import cores_below, l1_below
from npusim.kernels.tilings.matmul_space import Products
from npusim.kernels.tilings.pipeline import Columns, bounds, chosen, records, table, taken, times
from npusim.kernels.tilings.work import Floats, Work
from npusim.language import IntArray

#: A leader of a lesser machine is a candidate where its estimate is so many times the best or less.
MARGIN = 1.06


def lesser(space: Products, limit: float) -> list[tuple[float, Any]]:
    """(estimated cycles here, tiling) of those that lead on lesser machines, ``limit`` at most."""
    work = space.of_rows
    near = np.flatnonzero(bounds(work) + work.beside <= limit)
    t, work = chosen(space.rows, near), taken(work, near)
    found: dict[Any, float] = {}
    for place, time in _with_less_l1(t, work, space, limit):
        found.setdefault(_tiling(space, t, place), time)
    for on, place, time in _with_fewer_cores(t, space, limit):
        found.setdefault(_tiling(space, on, place), time)
    return [(time, tiling) for tiling, time in found.items()]


def _tiling(space: Products, t: Columns, place: int) -> Any:
    (fields,) = records(chosen(t, np.array([place])))
    return space.tiling(fields)


def _with_less_l1(
    t: Columns, work: Work, space: Products, limit: float
) -> Iterator[tuple[int, float]]:
    """The leaders of smaller and smaller L1, as places in ``t`` with their cycles."""
    need = space.in_l1(t)
    left = np.arange(len(need))
    room = space.device.memory("L1").size_bytes
    used = room + 1
    for size in (room, *l1_below(room)):
        if size >= used:
            continue  # the last leader needs no more
        left = np.flatnonzero(need <= size)
        best = _leader(taken(work, left), limit) if len(left) else None
        if best is None:
            return
        place, time = int(left[best[0]]), best[1]
        used = int(need[place])
        yield place, time


def _with_fewer_cores(
    t: Columns, space: Products, limit: float
) -> Iterator[tuple[Columns, int, float]]:
    """The leaders of fewer and fewer cores, as places in candidates with their cycles."""
    used = space.cores + 1
    for cores in cores_below(space.cores):
        if cores >= used or not len(t["cores"]):
            continue  # the last leader needs no more
        on = t | {"cores": -(-t["items"] // -(-t["items"] // cores))}
        work = table(space.work(on))
        near = np.flatnonzero(bounds(work) + work.beside <= limit)
        best = _leader(taken(work, near), limit) if len(near) else None
        if best is None:
            return
        place = int(near[best[0]])
        used = int(on["cores"][place])
        yield on, place, best[1]
        t = chosen(t, near)


def _leader(work: Work, limit: float) -> tuple[int, float] | None:
    """Place and cycles of the least estimate; None where all are above the ``limit``."""
    cycles: Floats = times(work, 1, limit)
    place: IntArray = np.argmin(cycles)
    return (int(place), float(cycles[place])) if cycles[place] <= limit else None
