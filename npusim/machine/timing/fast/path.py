"""Times that hold however much a program gets of what cores share, compiled.

A core alone on the machine, whose pipes pay for no gap but their first: every instruction then
starts no later than in any simulation of the program.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npusim.base.integers import IntArray
from npusim.base.reasons import FOLLOW
from npusim.base.records import replace
from npusim.machine.device.parts import L2Cache
from npusim.machine.device.spec import Device
from npusim.machine.program.program import Program
from npusim.machine.timing.fast.jit import compiled, entry
from npusim.machine.timing.fast.l2 import FastL2, Place, touch
from npusim.machine.timing.fast.state import COST, FLOW, Cache, Code, Records, empty
from npusim.machine.timing.fast.tables import Tables

#: Cycles of a time that no cause has set.
_LONG_AGO = -(1 << 60)

#: What ``walk`` finds of a core, and where.
_END, _READ, _WRITE, _READS, _LAST_READ, _READERS = range(6)

#: What ``read_once`` finds of a tensor, and where.
_FETCHED, _ROW = range(2)

#: ``first_read`` and ``first_write`` of a program that has none.
NONE = 1 << 60


class Earliest(NamedTuple):
    """Cycles before which things cannot happen, over all cores.

    ``end`` is that of the program; reading and writing global memory begin at ``first_read`` and
    ``first_write`` (``NONE`` without any); after the last read ``tail`` cycles are still to come.
    """

    end: int
    first_read: int
    first_write: int
    tail: int


class Once(NamedTuple):
    """Bytes that come from main memory at least once.

    ``fetched`` are whole sectors. Whoever fetches one reads a row of fewer bytes of it, perhaps:
    ``beside`` are what the sectors have more than the longest rows that are read of them, which go
    through the L2 on top of what is asked for.
    """

    fetched: int
    beside: int


@compiled
def causes(
    code: Code, before: IntArray, ends: IntArray, starts: IntArray, number: int
) -> tuple[int, int]:
    """When a step may start for what it waits for, and when it may end for what it follows."""
    step = code.steps[number]
    start = least = _LONG_AGO
    for w in range(step.first, step.last):
        wait = code.waits[w]
        count = wait.count + before[wait.pipe]
        if count > 0:
            if wait.why == FOLLOW:
                start = max(start, starts[wait.pipe, count - 1] + step.lag_start)
                least = max(least, ends[wait.pipe, count - 1] + step.lag_end)
            else:
                start = max(start, ends[wait.pipe, count - 1])
    return start, least


@compiled
def note(code: Code, found: IntArray, number: int, pipe: int, begin: int) -> bool:
    """Note when a transfer's bytes begin to move; whether it reads global memory."""
    flow = code.flows[number]
    if flow.local:
        return False
    if flow.store:
        found[_WRITE] = min(found[_WRITE], begin)
        return False
    found[_READ] = min(found[_READ], begin)
    found[_READS] += 1
    found[_READERS] |= 1 << pipe
    return True


@entry
def walk(
    code: Code,
    place: tuple[int, int, int],
    ends: IntArray,
    starts: IntArray,
    before: IntArray,
    done: IntArray,
    found: IntArray,
) -> None:
    """Go through a core's instructions in program order, each as early as its causes allow.

    ``place`` is the core, the scalar pipe and the number of the read whose end is cycle 0, with
    all earlier cycles long ago (0: time begins with the program). ``ends`` and ``starts`` are rows
    by pipe; ``before`` and ``done`` count instructions by pipe, from 0.
    """
    core, scalar, origin = place
    pipes = done.size
    begin = _LONG_AGO if origin else 0
    clock = begin
    latest = 0
    first_unit = code.last[core - 1] if core else 0
    for unit in range(first_unit, code.last[core]):
        variant = code.units[unit]
        for at in range(code.first[variant, scalar], code.stop[variant, scalar]):
            issuing = code.issuing[at]
            pipe = issuing.pipe
            step = code.steps[issuing.step]
            index = done[pipe]
            if pipe != scalar:
                need = index - code.depth[pipe]
                if need >= 0:
                    clock = max(clock, starts[pipe, need])
                clock += issuing.cost
            start, least = causes(code, before, ends, starts, issuing.step)
            start = max(start, clock, ends[pipe, index - 1] if index else begin)
            head = 0 if index or pipe == scalar else step.head
            end = max(start + head + step.cycles, least)
            if step.kind == FLOW and note(
                code, found, step.what, pipe, start + head + step.startup
            ):
                end = max(end, 0 if found[_READS] == origin else end)
            if pipe == scalar:
                clock = end
            starts[pipe, index] = start
            ends[pipe, index] = end
            done[pipe] = index + 1
            latest = max(latest, end)
        for pipe in range(pipes):
            before[pipe] += code.totals[variant, pipe]
    found[_END] = max(latest, clock)


@entry
def read_once(
    code: Code, cache: Cache, scalar: int, written: IntArray, found: IntArray, costs: Records
) -> None:
    """What comes from main memory if what was read once stays; of tensors not ``written``.

    ``found`` gets, by tensor, the bytes and the longest row that is read at once.
    """
    for unit in range(code.units.size):
        variant = code.units[unit]
        for pipe in range(code.first.shape[1]):
            if pipe == scalar:  # of which ``first`` and ``stop`` are places in ``issuing``
                continue
            for at in range(code.first[variant, pipe], code.stop[variant, pipe]):
                if code.steps[at].kind != FLOW:
                    continue
                flow = code.flows[code.steps[at].what]
                if flow.local or flow.store or written[flow.tensor]:
                    continue
                offset = flow.offset
                if flow.base >= 0:
                    offset += code.bases[unit, flow.base]
                tensor = code.tensors[flow.tensor]
                if offset < 0 or offset + (flow.rows - 1) * flow.pitch + flow.bytes > tensor.bytes:
                    continue  # the simulation will refuse it
                place = Place(tensor.block, offset, flow.rows, flow.bytes, flow.pitch)
                touch(cache, place, False, costs)
                found[flow.tensor, _FETCHED] += costs[0].fetched
                found[flow.tensor, _ROW] = max(found[flow.tensor, _ROW], flow.bytes)


class Alone:
    """The cores of a program, each by itself; ``starts`` are the cycles in which they start."""

    def __init__(self, program: Program, starts: IntArray) -> None:
        self.program, self.device, self.starts = program, program.device, starts
        self.l2 = FastL2(_boundless(program.device))
        self.tables = Tables(program, self.l2)

    def earliest(self) -> Earliest:
        """The earliest times; every core is walked, and once more from the end of its reads."""
        code, scalar = self.tables.code, self.tables.scalar
        pipes = len(self.program.pipes)
        counts = [code.totals[core.variants].sum(axis=0) for core in self.program.cores]
        longest = max(1, *(int(one.max()) for one in counts if len(one)))
        ends, starts = (np.zeros((pipes, longest), np.int64) for _ in range(2))
        end, first_read, first_write, tail = 0, NONE, NONE, NONE
        known: dict[bytes, IntArray] = {}
        for core, own in enumerate(self.program.cores):
            if not len(own.variants):
                continue
            key = own.variants.tobytes()  # cores with the same tasks take the same time
            is_new = key not in known
            if is_new:
                found = known[key] = np.array([0, NONE, NONE, 0, 0, 0], np.int64)
                self._walk((core, scalar, 0), (ends, starts), found)
            found, begin = known[key], int(self.starts[core])
            end = max(end, begin + int(found[_END]))
            first_read = min(first_read, begin + int(found[_READ]))
            first_write = min(first_write, begin + int(found[_WRITE]))
            if not is_new:
                continue
            readers = int(found[_READERS])
            if readers & (readers - 1):
                tail = 0  # which of several pipes reads last is not known
            elif readers and tail:
                late = np.array([0, NONE, NONE, 0, 0, 0], np.int64)
                self._walk((core, scalar, int(found[_READS])), (ends, starts), late)
                tail = min(tail, int(late[_END]))
        return Earliest(end, first_read, first_write, 0 if tail == NONE else tail)

    def read_once(self) -> Once:
        """What comes from main memory in any case, where nothing is in the L2 before."""
        if self.device.l2 is None:
            return Once(0, 0)
        flows = [flow for t in self.program.templates for flow in t.flows if flow is not None]
        tensors, sector = max(1, len(self.program.tensors)), self.device.l2.sector_bytes
        written, found = np.zeros(tensors, np.int64), np.zeros((tensors, 2), np.int64)
        written[[flow.tensor for flow in flows if flow.region is not None and flow.kind]] = 1
        cache, scalar = self.l2.cache, self.tables.scalar
        read_once(self.tables.code, cache, scalar, written, found, empty(COST, 1))
        fetched, row = found.T
        beside = fetched // sector * np.maximum(0, sector - row)
        return Once(int(fetched.sum()), int(beside.sum()))

    def _walk(
        self, place: tuple[int, int, int], times: tuple[IntArray, IntArray], found: IntArray
    ) -> None:
        pipes = len(self.program.pipes)
        before, done = np.zeros(pipes, np.int64), np.zeros(pipes, np.int64)
        walk(self.tables.code, place, *times, before, done, found)


def _boundless(device: Device) -> L2Cache | None:
    """The device's L2 with room for everything."""
    return replace(device.l2, size_bytes=1 << 50) if device.l2 is not None else None
