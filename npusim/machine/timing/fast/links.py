"""The fast engine's shared links, compiled: the rules of ``timing/fabric.py`` on records.

A class of transfers has a heap of finishing points in ``State.finish``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.base.integers import RATE_BITS, IntArray
from npusim.machine.timing.fast.jit import compiled
from npusim.machine.timing.fast.state import READS, WRITES, Records, Shape, State
from npusim.machine.timing.links import WEIGHT_BITS

NEVER = 1 << 62

#: Combinations of counts whose rates are kept, and how one finds its row.
KNOWN = 2048
SCATTER, KNOWN_SHIFT = 0x9E3779B97F4A7C15 - (1 << 64), 48


@compiled
def push(heap: Records, count: int, key: int, who: int) -> None:
    """Add an entry to a heap of ``count`` entries."""
    at = count
    while at > 0:
        up = (at - 1) >> 1
        if heap[up].key <= key:
            break
        heap[at].key = heap[up].key
        heap[at].who = heap[up].who
        at = up
    heap[at].key = key
    heap[at].who = who


@compiled
def sink(heap: Records, count: int) -> None:
    """Remove the top of a heap, which keeps ``count`` entries."""
    key, who = heap[count].key, heap[count].who
    at = 0
    while True:
        down = 2 * at + 1
        if down >= count:
            break
        if down + 1 < count and heap[down + 1].key < heap[down].key:
            down += 1
        if heap[down].key >= key:
            break
        heap[at].key = heap[down].key
        heap[at].who = heap[down].who
        at = down
    heap[at].key = key
    heap[at].who = who


@compiled
def join(group: Any, heap: Records, size: int, who: int) -> None:
    """Start draining ``size`` bytes of transfer ``who`` in a class with its heap."""
    if group.count == 0:
        group.drained = 0
    push(heap, group.count, group.drained + (size << RATE_BITS), who)
    group.count += 1


@compiled
def rerate(shape: Shape, state: State) -> None:
    """Max-min fair rates of all classes.

    Rates follow from the counts alone, and few combinations of counts come up again and again:
    their rates are kept.
    """
    classes = state.classes
    number = 0
    for g in range(classes.size):
        number = number * shape.most + classes[g].count
    row = (number * SCATTER) >> KNOWN_SHIFT & KNOWN - 1
    if shape.most and state.number[row] == number:
        for g in range(classes.size):
            classes[g].rate = state.rates[row, g]
        return
    share(state)
    state.number[row] = number
    for g in range(classes.size):
        state.rates[row, g] = classes[g].rate


def numbered(transfers: int, classes: int) -> int:
    """Base in which the counts of all classes make one number, 0 if that would be too large."""
    most = transfers + 1
    return most if most**classes < 1 << 62 else 0


@compiled
def turns_around(state: State) -> bool:
    """Whether main memory is read and written back at once."""
    classes, uses, links = state.classes, state.uses, state.links
    directions = 0
    for g in range(classes.size):
        if classes[g].count:
            for u in range(classes[g].first, classes[g].last):
                directions |= links[uses[u].link].direction
    return bool(directions == READS | WRITES)


@compiled
def share(state: State) -> None:
    """Progressive filling. A class without a rate has a limit of at least 0."""
    classes, uses, links = state.classes, state.uses, state.links
    active = 0
    turns = turns_around(state)
    for i in range(links.size):
        links[i].left = links[i].turning if turns else links[i].capacity
    for g in range(classes.size):
        classes[g].limit = 0 if classes[g].count else -1
        active += classes[g].count > 0
    while active:
        for i in range(links.size):
            links[i].demand = 0
        for g in range(classes.size):
            if classes[g].limit >= 0:
                for u in range(classes[g].first, classes[g].last):
                    links[uses[u].link].demand += classes[g].count * uses[u].weight
        for i in range(links.size):
            if links[i].demand:
                links[i].fair = (links[i].left << WEIGHT_BITS) // links[i].demand
        active -= settle(classes, uses, links)


@compiled
def settle(classes: Records, uses: Records, links: Records) -> int:
    """Give the classes with the lowest limit that rate; returns how many they are."""
    level, fixed = NEVER, 0
    for g in range(classes.size):
        group = classes[g]
        if group.limit >= 0:
            group.limit = group.cap
            for u in range(group.first, group.last):
                group.limit = min(group.limit, links[uses[u].link].fair)
            level = min(level, group.limit)
    for g in range(classes.size):
        group = classes[g]
        if group.limit == level:
            group.limit = -1
            group.rate = max(1, level)
            for u in range(group.first, group.last):
                link = links[uses[u].link]
                used = group.count * uses[u].weight * group.rate >> WEIGHT_BITS
                link.left = max(0, link.left - used)
            fixed += 1
    return fixed


@compiled
def next_finish(state: State, now: int) -> int:
    """Cycle at which the next part finishes at the present rates, rounded up."""
    best = NEVER
    for g in range(state.classes.size):
        group = state.classes[g]
        if group.count:
            left = state.finish[g, 0].key - group.drained
            best = min(best, now + (left + group.rate - 1) // group.rate)
    return best


def unknown(classes: int) -> tuple[IntArray, IntArray]:
    """Return empty tables of combinations and their rates."""
    return np.full(KNOWN, -1, np.int64), np.zeros((KNOWN, classes), np.int64)
