"""The links of a device as rows, and what a part of a transfer uses of them: data for both engines.

Reading and writing of L2 and main memory are the first rows; those of the device file's ``links``
follow. A link of scope "group" or "core" is there once per group or core that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from npusim.base.integers import fixed_rate
from npusim.base.records import replace
from npusim.machine.device.parts import TRAFFIC, L2Cache
from npusim.machine.device.spec import Device
from npusim.machine.program import program as flows
from npusim.machine.program.program import READ, Flow

#: Kinds of traffic a part of a transfer can be: those of ``TRAFFIC``, and moves inside a core.
READ_HIT, READ_MISS, WRITE, ATOMIC, EVICT, MOVE = range(6)

#: Fractional bits of a weight.
WEIGHT_BITS = 8
ONE = 1 << WEIGHT_BITS

#: (link, weight): a byte occupies a link as long as so many bytes alone, in fixed point.
Uses = tuple[tuple[int, int], ...]


class Part(NamedTuple):
    """A part that a transfer can turn into.

    ``cap`` is the most it can get; ``along`` are the links of its path, and ``share`` says how many
    bytes over links of the file one byte of the part stands for, in fixed point. Where some of its
    bytes are missing in the L2, it can get what those take that come at the rate ``missing``
    besides, for the time that the L2 waits for them is no time of the path.
    """

    traffic: int
    cap: int
    along: tuple[str, ...]
    share: int = ONE
    missing: int = 0

    def cap_with(self, waiting: int) -> int:
        """The most it can get where a missing byte takes so much, in fixed point, of the L2."""
        return self.cap + (self.missing * waiting >> WEIGHT_BITS)


def occupied(amount: int, row_bytes: int, request: int) -> int:
    """Return ``amount``, bytes or a rate, with what requests for rows take of the L2's bandwidth.

    Each row of ``row_bytes`` takes the time of ``request`` bytes more.
    """
    return amount + amount * request // row_bytes


def waiting(l2: L2Cache | None) -> int:
    """Return what a missed byte takes of the L2's bandwidth besides its own, in fixed point.

    That is 0 without an L2, and where the file does not tell what misses take. An L2 whose reads
    are slower than that does not wait for any of them.
    """
    if l2 is None or not l2.missed_bytes_per_cycle:
        return 0
    return max(0, int(ONE * (l2.read_bytes_per_cycle / l2.missed_bytes_per_cycle - 1)))


def parts(flow: Flow) -> tuple[Part, ...]:
    """Return what a flow can turn into; of GM traffic the last is what it evicts.

    That goes from L2 to main memory, not along the path. A read occupies the L2 by the first part
    where it has all of it, else by the second; the third is what it lacks.
    """
    rate, along = flow.rate, flow.links
    if flow.region is None:
        return (Part(MOVE, rate, along),)
    evict = Part(EVICT, rate, ())
    if flow.kind != READ:
        return Part(_STORES[flow.kind], rate, along), evict
    row = flow.region.row_bytes
    share = max(1, ONE * row // (row + flow.request))
    hit = Part(READ_HIT, occupied(rate, row, flow.request), along, share)
    return hit, hit._replace(missing=rate), Part(READ_MISS, flow.memory_rate, along), evict


_STORES = {flows.WRITE: WRITE, flows.ATOMIC: ATOMIC}


class Row(Struct, frozen=True):
    """A link: capacity in fixed-point bytes per cycle, and weights by kind of traffic.

    ``turning`` is the capacity while main memory is read and written back at once; ``listed``: in
    the file's ``links``.
    """

    name: str
    capacity: int
    turning: int
    scope: str
    weights: tuple[int, ...]
    listed: bool = False


def link_rows(device: Device) -> tuple[Row, ...]:
    """Return the links of ``device``: of its memories, then those its file lists."""
    l2, memory = device.l2, device.main_memory
    rows = []
    if l2 is not None:
        atomic = {ATOMIC: l2.atomic_factor}
        rows.append(_row("l2.read", l2.read_bytes_per_cycle, {READ_HIT: 1, READ_MISS: 1}))
        rows.append(_row("l2.write", l2.write_bytes_per_cycle, {WRITE: 1, **atomic}))
    rows.append(_row("main_memory.read", memory.read_bytes_per_cycle, {READ_MISS: 1}))
    rows.append(_row("main_memory.write", memory.write_bytes_per_cycle, {EVICT: 1}))
    for link in device.links.values():
        weights = {TRAFFIC.index(word): 1 for word in link.traffic}
        row = _row(link.name, link.bytes_per_cycle, weights)
        turning = fixed_rate(link.turning_bytes_per_cycle)
        rows.append(replace(row, turning=turning, scope=link.scope, listed=True))
    return tuple(rows)


def _row(name: str, rate: Fraction, weights: dict[int, int]) -> Row:
    """Return a row of the chip whose weights are 0 where ``weights`` says nothing."""
    capacity = fixed_rate(rate)
    return Row(
        name=name,
        capacity=capacity,
        turning=capacity,
        scope="chip",
        weights=tuple(weights.get(kind, 0) for kind in range(6)),
    )


class Turning(NamedTuple):
    """The links that reads and write-backs of main memory use, and capacities while both do."""

    reads: int
    writes: int
    capacities: list[int]


class Links:
    """The links of the cores that run; ``groups`` is the core group of each."""

    def __init__(self, device: Device, groups: Sequence[int]) -> None:
        self.rows = link_rows(device)
        self.capacities: list[int] = []
        turning: list[int] = []
        self.places: list[list[int]] = []  # by row and core: the link that the core uses
        order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
        for row in self.rows:
            of = {
                "chip": [0] * len(groups),
                "group": [order[group] for group in groups],
                "core": list(range(len(groups))),
            }[row.scope]
            self.places.append([len(self.capacities) + i for i in of])
            count = 1 + max(of, default=0)
            self.capacities += [row.capacity] * count
            turning += [row.turning] * count
        reads, writes = (self._place(f"main_memory.{way}") for way in ("read", "write"))
        self.turning = Turning(reads, writes, turning)
        self.alike = all(row.scope == "chip" for row in self.rows)  # whether cores share all links
        self._known: dict[tuple[Part, int], Uses] = {}

    def _place(self, name: str) -> int:
        """The link of a row of the whole chip."""
        (row,) = (i for i, row in enumerate(self.rows) if row.name == name and not row.listed)
        return self.places[row][0]

    def uses(self, part: Part, core: int) -> Uses:
        """Return what a part of a transfer of ``core`` uses."""
        key = (part, 0 if self.alike else core)
        if key not in self._known:
            each = (
                (row.weights[part.traffic] + (row.name in part.along))
                * (part.share if row.listed else ONE)
                for row in self.rows
            )
            self._known[key] = tuple(
                (place[core], weight)
                for place, weight in zip(self.places, each, strict=True)
                if weight
            )
        return self._known[key]


#: The links that were made last, by the very device and the groups.
_made: list[tuple[Device, tuple[int, ...], Links]] = []


def links_of(device: Device, groups: tuple[int, ...]) -> Links:
    """``Links``, which is the same for one device and the same groups as long as nothing else is.

    A program asks for its links several times, and its call for those of other programs.
    """
    for known, of, links in _made:
        if known is device and of == groups:
            return links
    del _made[_KEPT:]
    _made.insert(0, (device, groups, Links(device, groups)))
    return _made[0][2]


#: Links that are kept: of the kinds of cores of one device.
_KEPT = 3
