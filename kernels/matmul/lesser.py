"""Tilings that lead on lesser machines: candidates, so that a better machine is no slower.

Estimates err by some percent, differently for each tiling. What leads on a machine may therefore
take longer than what led on one with fewer cores or less L1, though that would run here too. So
machines go up a ladder, and the leaders of the rungs below are candidates on each: of the numbers
of cores that are 4, 5, 6 or 7 times a power of two, and of powers of two of L1. So is that of a
cube of half the rate. Other rates and the clock change how long candidates take, not which there
are, and the leaders of a slower machine are near the best on a faster one
(configs/silicon/notes/tilings.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from npusim.kernels.estimate.ladder import cores_below, l1_below
from npusim.kernels.estimate.pipeline import (
    Columns,
    chosen,
    joined,
    records,
    table,
    taken,
    times,
)
from npusim.kernels.estimate.tile import busy_cycles
from npusim.kernels.estimate.work import Floats, Work
from npusim.kernels.matmul.space import Products
from npusim.kernels.matmul.tiling import Tiling
from npusim.language import IntArray

#: A leader of a lesser machine is a candidate where its estimate is so many times the best or less.
MARGIN = 1.1

#: Rungs of the ladder of cores that are looked at.
MOST_RUNGS = 6


def lesser(space: Products, leader: Tiling, time: float) -> list[tuple[float, Tiling]]:
    """(estimated cycles here, tiling) of those that lead on lesser machines.

    ``leader`` leads on this machine, with an estimate of ``time`` cycles. That of a slower cube
    comes first, then those of less and less L1 and of fewer and fewer cores.
    """
    limit = MARGIN * time
    near = np.flatnonzero(busy_cycles(space.of_rows) + space.of_rows.beside <= limit)
    t = chosen(space.rows, near)
    found: dict[Tiling, float] = {}
    for found_in, place, cycles in (
        *_with_slower_cube(t, space, near, limit),
        *_with_less_l1(t, space, near, space.bytes_in_l1(leader), limit),
        *_with_fewer_cores(t, space, leader.cores or space.cores, limit),
    ):
        (fields,) = records(chosen(found_in, np.array([place])))
        found.setdefault(space.tiling(fields), cycles)
    return [(cycles, tiling) for tiling, cycles in found.items()]


def _with_slower_cube(
    t: Columns, space: Products, near: IntArray, limit: float
) -> Iterator[tuple[Columns, int, float]]:
    """The leader of a cube that takes twice as long, as a candidate and its cycles here.

    The work of ``t`` is that of the rows ``near``.
    """
    work = taken(space.of_rows, near)
    best = _leader(work._replace(m=2 * work.m, rest_m=2 * work.rest_m), inf)
    if best is not None:
        place = np.array([best[0]])
        (cycles,) = times(taken(work, place), 1).tolist()
        if cycles <= limit:
            yield t, best[0], cycles


def _with_less_l1(
    t: Columns, space: Products, near: IntArray, used: int, limit: float
) -> Iterator[tuple[Columns, int, float]]:
    """The leaders of smaller and smaller L1, as candidates, a place in these, and its cycles.

    The work of ``t`` is that of the rows ``near``; the leader here takes so many bytes of L1.
    """
    need = space.in_l1(t)
    for size in l1_below(space.device.memory("L1").size_bytes):
        if size >= used:
            continue  # the last leader needs no more
        fits = np.flatnonzero(need <= size)
        best = _leader(taken(space.of_rows, near[fits]), limit)
        if best is None:
            return
        place = int(fits[best[0]])
        used = int(need[place])
        yield t, place, best[1]


def _with_fewer_cores(
    t: Columns, space: Products, used: int, limit: float
) -> Iterator[tuple[Columns, int, float]]:
    """The leaders of fewer and fewer cores likewise; the leader here takes so many."""
    rungs = [cores for cores in cores_below(space.cores) if cores < used]
    busy = [
        t | {"cores": -(-t["items"] // -(-t["items"] // cores))} for cores in rungs[:MOST_RUNGS]
    ]
    if not busy or not len(t["cores"]):
        return
    every, count = joined(*busy), len(t["cores"])
    work = table(space.estimate(every))
    near = busy_cycles(work) + work.beside <= limit
    for rung, cores in enumerate(rungs[:MOST_RUNGS]):
        if cores >= used:
            continue
        places = rung * count + np.flatnonzero(near[rung * count : (rung + 1) * count])
        best = _leader(taken(work, places), limit)
        if best is None:
            return
        place = int(places[best[0]])
        used = int(every["cores"][place])
        yield every, place, best[1]


def _leader(work: Work, limit: float) -> tuple[int, float] | None:
    """Place and cycles of the least estimate, of equal ones that of fewest steps.

    None where all are above the ``limit``.
    """
    if not len(np.asarray(work.items)):
        return None
    cycles: Floats = times(work, 1, limit)
    steps = np.asarray(work.items * work.firsts * work.seconds * work.steps)
    place = int(np.lexsort((steps, cycles))[0])
    return (place, float(cycles[place])) if cycles[place] <= limit else None
