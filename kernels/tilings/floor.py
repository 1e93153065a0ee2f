"""Least times in closed form: what tuning rules candidates out by before any program is built.

Every number here is below what the instructions cost, so that the sum is below what is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log2
from typing import NamedTuple

from npusim.base.integers import ceil_div, round_up
from npusim.device.parts import Path
from npusim.device.spec import Device
from npusim.timing.sharing import reading, writing


def around(into_a: Path, into_b: Path, port: Path, tail: float) -> tuple[float, ...]:
    """Cycles before the first and behind the last work of each pipe of an item.

    ``into_a`` and ``into_b`` fill L0, ``port`` fills L1, and ``tail`` is the shortest drain.
    """
    small, first = into_a.startup_cycles + into_b.startup_cycles, port.startup_cycles
    return 2 * first + small + tail, first + tail, into_b.startup_cycles + tail, 2 * first + small


class Item(NamedTuple):
    """``times`` equal pieces of work that no two cores share, and the cycles of each by pipe."""

    times: int
    cycles: tuple[float, ...]


def busiest(items: Sequence[Item], pipe: int, cores: int) -> float:
    """Least cycles of a pipe on the core that has most to do, however items are dealt.

    At least the mean; and of the n longest items some core has n / cores or more.
    """
    found, count = 0.0, 0
    for item in sorted(items, key=lambda item: -item.cycles[pipe]):
        count += item.times
        found = max(found, ceil_div(count, cores) * item.cycles[pipe])
    total = sum(item.times * item.cycles[pipe] for item in items)
    return max(found, total / cores)


def least_cycles(
    items: Sequence[Item], around: Sequence[float], cores: int, shared: float
) -> float:
    """The busiest pipe of any core with what must come ``around`` its work, or ``shared`` links.

    ``around`` is one number per pipe: the least cycles before its first and after its last item.
    """
    pipes = (busiest(items, pipe, cores) + more for pipe, more in enumerate(around))
    return max(shared, *pipes)


def moves(path: Path, count: float, size: float, rows: float = 0, ticks: float = 0) -> float:
    """Cycles of ``count`` moves of ``size`` bytes in all, in so many rows or fetches of a cycle."""
    work = max(size / path.rate, rows * float(path.row_cycles), ticks)
    return max(count * path.floor_cycles, count * path.startup_cycles + work)


def conflicts(path: Path, size: float, slots: int) -> float:
    """What reading ``size`` bytes costs more where slots of L1 share a bank."""
    return size / 512 * float(path.conflict_cycles) if slots > 1 else 0.0


def products(device: Device, dtype: str, count: float, m: int, k: float, n: int) -> float:
    """Cycles of ``count`` mmads of m x k x n in all, ``k`` of all of them."""
    cube = device.cube
    if cube is None or dtype not in cube.rates:
        return 0.0
    rate = cube.rates[dtype]
    high, wide, deep = ceil_div(m, rate.m), ceil_div(n, rate.n), k / rate.k
    cycles = count * cube.startup_cycles + high * wide * deep * rate.cycles
    if cube.odd_block_conflict and (high % 2 or wide % 2):
        cycles += max(0.0, deep - 2 * count)
    return cycles


def drain(device: Device, m: int, n: int, size: int, *, nd: bool = False) -> float:
    """Cycles of the longest pipe as m x n sums leave the core, elements of ``size`` bytes."""
    if device.has_path("L0C", "GM"):
        return moves(device.path("L0C", "GM", "nz2nd" if nd else ""), 1, m * n * size)
    into, out = device.path("L0C", "UB"), device.path("UB", "GM")
    first = into.startup_cycles + round_up(m, 16) * round_up(n, 16) * 4 / into.rate
    return max(first, out.startup_cycles + m * n * size / out.rate)


class Reads(NamedTuple):
    """Bytes that all cores read, how many rows these are, and the bytes of the shortest."""

    size: float = 0.0
    rows: float = 0.0
    shortest: float = inf

    def more(self, size: float, row: float) -> Reads:
        """With ``size`` bytes more, in rows of so many."""
        return Reads(self.size + size, self.rows + size / row, min(self.shortest, row))


def sharing(
    device: Device, reads: Reads, once: float, written: float, around: float = 0.0
) -> float:
    """Cycles of all cores' reads, of which ``once`` bytes come from main memory, and of writes.

    ``around`` are what passes at least before the first read and behind the last.
    """
    each = device.l2.request_bytes if device.l2 is not None else 0
    read = reading(device, reads.size, once, reads.rows * each, each / reads.shortest)
    return max(read + around, writing(device, written))


def pieces(total: int, step: int) -> list[tuple[int, int]]:
    """(count, size) of what ``step`` cuts ``total`` into: whole steps, and the rest."""
    whole, rest = divmod(total, step)
    return [pair for pair in ((whole, step), (1, rest)) if pair[0] and pair[1]]


def even_sides(total: int, most: int, unit: int = 16) -> list[int]:
    """Sides that cut ``total`` into equal parts, in whole ``unit``s up to ``most``; ascending.

    Of those within a quarter of an octave the one that wastes least.
    """
    found: dict[int, tuple[int, int]] = {}
    for part in range(max(1, ceil_div(total, most)), ceil_div(total, unit) + 1):
        side = round_up(ceil_div(total, part), unit)
        if side <= most:
            place, waste = round(4 * log2(side)), ceil_div(total, side) * side
            found[place] = min(found.get(place, (waste, side)), (waste, side))
    return sorted({side for _, side in found.values()}) or [unit]


def fewer(most: int, *shares: int) -> list[int]:
    """``most`` and the given shares of it, at least 1, each once; descending."""
    return sorted({max(1, ceil_div(most, share)) for share in (1, *shares)}, reverse=True)
