"""The fast engine's shared links, compiled: the rules of ``timing/fabric.py`` on flat int64 arrays.

A class of transfers has a heap of (finishing point, transfer) in ``finish``/``member``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.isa.base import RATE_BITS
from npusim.timing.fast.jit import compiled

IntArray = npt.NDArray[np.int64]

#: Columns of the table of classes; the uses of the four links follow.
CAP, COUNT, RATE, DRAINED, USES = range(5)
LINKS = 4
CLASS_COLUMNS = USES + LINKS

NEVER = 1 << 62

#: Rows of the table of known rates, and how a combination finds its row.
KNOWN = 256
SCATTER, KNOWN_SHIFT = 0x9E3779B97F4A7C15 - (1 << 64), 48


@compiled
def push(keys: IntArray, values: IntArray, count: int, key: int, value: int) -> None:
    """Add an entry to a heap of ``count`` entries."""
    at = count
    while at > 0:
        up = (at - 1) >> 1
        if keys[up] <= key:
            break
        keys[at] = keys[up]
        values[at] = values[up]
        at = up
    keys[at] = key
    values[at] = value


@compiled
def sink(keys: IntArray, values: IntArray, count: int, key: int, value: int) -> None:
    """Replace the top of a heap of ``count`` entries."""
    at = 0
    while True:
        down = 2 * at + 1
        if down >= count:
            break
        if down + 1 < count and keys[down + 1] < keys[down]:
            down += 1
        if keys[down] >= key:
            break
        keys[at] = keys[down]
        values[at] = values[down]
        at = down
    keys[at] = key
    values[at] = value


@compiled
def join(
    classes: IntArray, finish: IntArray, member: IntArray, group: int, size: int, who: int
) -> None:
    """Start draining ``size`` bytes of transfer ``who`` in class ``group``."""
    count = classes[group, COUNT]
    if count == 0:
        classes[group, DRAINED] = 0
    key = classes[group, DRAINED] + (size << RATE_BITS)
    push(finish[group], member[group], count, key, who)
    classes[group, COUNT] = count + 1


@compiled
def rerate(
    classes: IntArray, capacity: IntArray, left: IntArray, limit: IntArray, known: IntArray
) -> None:
    """Max-min fair rates of all classes; ``left`` and ``limit`` are scratch.

    Rates follow from the counts alone, and few combinations of counts come up again and again:
    ``known`` keeps rates by counts, one combination a row: its number, then a rate per class.
    """
    number, most = 0, known[0, 0]
    for g in range(classes.shape[0]):
        number = number * most + classes[g, COUNT]
    row = 1 + ((number * SCATTER) >> KNOWN_SHIFT & KNOWN - 1) if most else 0
    if row and known[row, 0] == number:
        for g in range(classes.shape[0]):
            classes[g, RATE] = known[row, 1 + g]
        return
    share(classes, capacity, left, limit)
    if row:
        known[row, 0] = number
        for g in range(classes.shape[0]):
            known[row, 1 + g] = classes[g, RATE]


def combinations(transfers: int, classes: int) -> IntArray:
    """An empty table for ``rerate``; its first entry is 0 if combinations have no number."""
    known = np.full((1 + KNOWN, 1 + classes), -1, np.int64)
    most = transfers + 1
    known[0, 0] = most if most**classes < 1 << 62 else 0
    return known


@compiled
def share(classes: IntArray, capacity: IntArray, left: IntArray, limit: IntArray) -> None:
    """Progressive filling. ``limit`` is a class's limit plus one, 0 once it has its rate."""
    active = 0
    for link in range(LINKS):
        left[link] = capacity[link]
    for g in range(classes.shape[0]):
        limit[g] = 1 + classes[g, CAP] if classes[g, COUNT] else 0
        active += limit[g] > 0
    while active:
        for link in range(LINKS):
            _limit(classes, left, limit, link)
        level = NEVER
        for g in range(classes.shape[0]):
            if limit[g]:
                level = min(level, limit[g])
        active = _settle(classes, left, limit, level)


@compiled
def _limit(classes: IntArray, left: IntArray, limit: IntArray, link: int) -> None:
    """Limit the classes without a rate to a fair share of what is left of a link."""
    demand = 0
    for g in range(classes.shape[0]):
        if limit[g]:
            demand += classes[g, COUNT] * classes[g, USES + link]
    if demand == 0:
        return
    fair = left[link] // demand
    for g in range(classes.shape[0]):
        if limit[g] and classes[g, USES + link]:
            limit[g] = min(limit[g], fair + 1)


@compiled
def _settle(classes: IntArray, left: IntArray, limit: IntArray, level: int) -> int:
    """Give the classes limited to ``level`` - 1 that rate; returns how many are left."""
    active = 0
    for g in range(classes.shape[0]):
        if limit[g] == level:
            rate = max(1, level - 1)
            classes[g, RATE] = rate
            for link in range(LINKS):
                used = classes[g, COUNT] * classes[g, USES + link] * rate
                left[link] = max(0, left[link] - used)
            limit[g] = 0
        elif limit[g]:
            limit[g] = 1 + classes[g, CAP]
            active += 1
    return active


@compiled
def next_finish(classes: IntArray, finish: IntArray, now: int) -> int:
    """Cycle at which the next part finishes at the present rates, rounded up."""
    best = NEVER
    for g in range(classes.shape[0]):
        if classes[g, COUNT]:
            rate = classes[g, RATE]
            left = finish[g, 0] - classes[g, DRAINED]
            best = min(best, now + (left + rate - 1) // rate)
    return best
