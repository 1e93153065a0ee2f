"""Shared links: transfers drain at max-min fair rates.

All integers. Parts of transfers that use the same links and have one speed limit form a class and
always drain equally fast, so a class needs one virtual clock (fixed-point bytes drained by each
member since the class became busy) and one heap of finishing points.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec import Struct, field

from npusim.base.integers import RATE_BITS
from npusim.machine.timing.links import WEIGHT_BITS, Turning, Uses

_HUGE = 1 << 62


class Load(Struct, frozen=True):
    """``count`` transfers, each at most ``cap`` fast, using links with a weight each."""

    count: int
    cap: int
    uses: Uses


def max_min_share(loads: Sequence[Load], capacities: Sequence[int]) -> list[int]:
    """Rate of each load's members: progressive filling, fixed point, at least 1.

    Raise all rates together; a load stops at its own cap or when a link it uses is full.
    """
    rates = [0] * len(loads)
    room_left = list(capacities)
    active = [i for i, load in enumerate(loads) if load.count]
    while active:
        demand = [0] * len(room_left)
        for i in active:
            for link, weight in loads[i].uses:
                demand[link] += loads[i].count * weight
        fair = [
            (room << WEIGHT_BITS) // need if need else _HUGE
            for room, need in zip(room_left, demand, strict=True)
        ]
        limits = {
            i: min((loads[i].cap, *(fair[link] for link, _ in loads[i].uses))) for i in active
        }
        level = min(limits.values())
        frozen = [i for i in active if limits[i] == level]
        for i in frozen:
            rates[i] = max(1, level)
            for link, weight in loads[i].uses:
                used = loads[i].count * weight * rates[i] >> WEIGHT_BITS
                room_left[link] = max(0, room_left[link] - used)
        active = [i for i in active if i not in frozen]
    return rates


class _Class(Struct):
    """Transfers that drain alike."""

    cap: int
    uses: Uses
    rate: int = 0
    drained: int = 0  # fixed-point bytes per member since the class was last empty
    heap: list[tuple[int, int]] = field(default_factory=list)  # (finish at drained, transfer)


class Fabric:
    """The shared links; knows transfers and links by number, and integer cycles.

    Use: ``advance(now)`` returns the transfers finished by ``now``; ``join`` adds parts of a
    transfer; then ``rerate()`` once; ``next_finish()`` says when to call again.
    """

    def __init__(self, capacities: Sequence[int], turning: Turning) -> None:
        self.capacities = capacities  # fixed-point bytes per cycle, by link
        self.turning = turning  # what is left of them while main memory is read and written
        self.now = 0
        self.classes: dict[tuple[int, Uses], _Class] = {}
        self.parts: dict[int, int] = {}  # transfer -> parts still draining, transfers to end first
        self.followers: dict[int, list[int]] = {}  # transfer -> those that do not end before it

    def join(self, transfer: int, size: int, cap: int, uses: Uses) -> None:
        """Start draining ``size`` bytes of a transfer over some links, at most ``cap``."""
        members = self.classes.setdefault((cap, uses), _Class(cap, uses))
        if not members.heap:
            members.drained = 0
        heapq.heappush(members.heap, (members.drained + (size << RATE_BITS), transfer))
        self.parts[transfer] = self.parts.get(transfer, 0) + 1

    def follow(self, transfer: int, other: int) -> None:
        """Let a transfer not end before another that is still draining."""
        self.followers.setdefault(other, []).append(transfer)
        self.parts[transfer] = self.parts.get(transfer, 0) + 1

    def advance(self, now: int) -> list[int]:
        """Drain until ``now``; returns the transfers whose every part is done, in order."""
        finished: list[int] = []
        for members in self.classes.values():
            if members.heap:
                members.drained += members.rate * (now - self.now)
            while members.heap and members.heap[0][0] <= members.drained:
                self._end_part(heapq.heappop(members.heap)[1], finished)
        self.now = now
        return sorted(finished)

    def _end_part(self, transfer: int, finished: list[int]) -> None:
        """Count a part as done; adds the transfers that are done with it to ``finished``."""
        self.parts[transfer] -= 1
        if not self.parts[transfer]:
            del self.parts[transfer]
            finished.append(transfer)
            for follower in self.followers.pop(transfer, ()):
                self._end_part(follower, finished)

    def rerate(self) -> None:
        """Share the links anew among the transfers now draining."""
        busy = [members for members in self.classes.values() if members.heap]
        loads = [Load(len(c.heap), c.cap, c.uses) for c in busy]
        used = {link for load in loads for link, _ in load.uses}
        turns = self.turning.reads in used and self.turning.writes in used
        capacities = self.turning.capacities if turns else self.capacities
        for members, rate in zip(busy, max_min_share(loads, capacities), strict=True):
            members.rate = rate

    def next_finish(self) -> int | None:
        """Cycle at which the next part finishes at the present rates, rounded up."""
        times = [
            self.now + -(-(c.heap[0][0] - c.drained) // c.rate)
            for c in self.classes.values()
            if c.heap
        ]
        return min(times) if times else None
