"""Bounds that no program for a problem can beat, and no schedule of a program: the one definition.

A kernel has two sets of bounds. Those of its program count all that its instructions cost, and say
how far it is from a schedule without any waiting. Those of its problem say how good that program
is: at 99 % of the one and 50 % of the other it is as fast as it can be, and another could be twice
as fast. They count multiply-adds, and every operand and result once.

Each bound also has the least that silicon needs (``Bound.least``): the L2 holds what it can, and
bytes and multiply-adds take their rates alone, of a memory the most that was ever measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from npusim.base.integers import RATE_BITS, fixed_rate
from npusim.machine.device.parts import AT_MOST, ENERGY, L2Cache, MainMemory
from npusim.machine.device.pipes import MATRIX_PIPES
from npusim.machine.device.spec import Device
from npusim.machine.program import program as flows
from npusim.machine.program.program import Program
from npusim.machine.timing.links import (
    ATOMIC,
    EVICT,
    MOVE,
    READ_HIT,
    READ_MISS,
    WRITE,
    Links,
    Row,
    link_rows,
    links_of,
)
from npusim.machine.timing.trace import Bound

#: Matrix units by their part of a device.
UNITS = ("cube", "gemm")


class GmBytes(NamedTuple):
    """Bytes of tensors in global memory by name: those a problem reads, and those it writes."""

    read: dict[str, int]
    written: dict[str, int]


class Rate(NamedTuple):
    """The most bytes per cycle that a bound may rest on, and the figure that says so."""

    most: Fraction
    figure: str

    def cycles(self, amount: int) -> int:
        """Cycles of ``amount``, rounded up; whole numbers take less time."""
        return -(-amount * self.most.denominator // self.most.numerator)

    def bound(self, resource: str, amount: int, least: int, why: str) -> Bound:
        """The cycles that ``amount`` takes, and at ``least`` so much of it."""
        return Bound(resource, self.cycles(amount), why, self.cycles(least), self.figure)


def rates_at_most(part: L2Cache | MainMemory, place: str) -> tuple[Rate, Rate]:
    """``read`` and ``write`` of a memory for bounds: the most ever measured, where that is more."""
    mean, most = part.read_bytes_per_cycle, part.read_at_most
    read = Rate(max(mean, most), f"{place}.read{AT_MOST * (most > mean)}")
    return read, Rate(part.write_bytes_per_cycle, f"{place}.write")


def needed_bytes(program: Program) -> GmBytes:
    """The bytes the problem of a kernel reads and writes: all of operands and results once.

    That is the whole tensor, in the layout the kernel has it, less what the problem does not need
    of it (``Kernel.needed_bytes``) and what the kernel itself leaves alone. An operand that is
    given twice goes by its first name.
    """
    sizes = {tensor.name: tensor.size_bytes for tensor in program.tensors}
    sizes |= program.needed_bytes
    moved_bytes = GmBytes({}, {})
    for (src, dst, operand), moved in program.moves.items():
        for place, totals in ((src, moved_bytes.read), (dst, moved_bytes.written)):
            if place == "GM":
                totals[operand] = totals.get(operand, 0) + moved
    same = {tensor.name: tensor.same for tensor in program.tensors if tensor.same}
    least = GmBytes({}, {})
    for asked, needed in zip(moved_bytes, least, strict=True):
        for name, size in asked.items():
            first_name = same.get(name, name)
            needed[first_name] = max(needed.get(first_name, 0), min(sizes[name], size))
    return least


def problem_bounds(program: Program, resident: Mapping[str, int]) -> tuple[Bound, ...]:
    """Least cycles of a kernel's problem on the cores it was given, longest first.

    The matrix units of all these cores at their peak, and ``memory_bounds`` of what it needs.
    ``resident`` are the bytes by tensor that the L2 holds when the kernel starts.
    """
    needed = needed_bytes(program)
    resident_bytes = sum(min(size, resident.get(name, 0)) for name, size in needed.read.items())
    bounds = [*memory_bounds(program.device, needed, resident_bytes)]
    peak = _peak(program)
    if peak.most and program.useful_macs:
        cores = sum(bool({*core.kind.pipes} & {*MATRIX_PIPES}) for core in program.cores)
        unit = "cube" if program.device.cube is not None else "gemm"
        why = f"useful multiply-adds on {cores} core{'s' * (cores > 1)}"
        macs = program.useful_macs
        bounds.append(Rate(peak.most * cores, peak.figure).bound(unit, macs, macs, why))
    return longest_first(bounds)


def _peak(program: Program) -> Rate:
    """Multiply-adds per cycle and core at the fastest rate the program uses; 0 without any."""
    unit = program.device.cube or program.device.gemm
    rates = tuple(f"{unit}.rates." for unit in UNITS)
    names = [name for name in program.figures if name.startswith(rates)]
    if unit is None:
        return Rate(Fraction(0), "")
    rates_used = [Rate(unit.macs_per_cycle(name.rpartition(".")[2]), name) for name in names]
    return max(rates_used, default=Rate(Fraction(0), ""))


def memory_bounds(device: Device, needed: GmBytes, held_bytes: int = 0) -> tuple[Bound, ...]:
    """Least cycles to read operands, of which the L2 has ``held_bytes``, and to write results.

    Results go to the L2; of them only what it cannot hold has to reach main memory. At least, all
    operands that fit the L2 are there at the start.
    """
    main = device.main_memory
    l2 = device.l2
    key = device.main_memory_key
    name = device.main_memory_name
    read = sum(needed.read.values())
    written = sum(needed.written.values())
    missing = max(0, read - held_bytes)
    never, over = (size if l2 is None else l2.lacks(size) for size in (read, written))
    reads, writes = rates_at_most(main, key)
    buses = [
        Rate(link.bytes_per_cycle, f"links.{link.name}.rate") for link in device.links_to_memory
    ]
    why_read = "every operand once"
    if held_bytes:
        why_read += ", but for what the L2 holds at the start"
    stored = "what of the results the L2 cannot hold" if l2 is not None else "every result once"
    bounds = [
        min([reads, *buses]).bound(f"{name} read", missing, never, why_read),
        writes.bound(f"{name} write", over, over, stored),
    ]
    for bus, link in zip(buses, device.links_to_memory, strict=True):
        if "evict" in link.traffic and missing and over:
            both = "operands that have to come, and results that have to go"
            bounds.append(bus.bound(f"link {link.name}", missing + over, never + over, both))
    if l2 is not None:
        taken, put = rates_at_most(l2, "l2")
        bounds.append(taken.bound("L2 read", read, read, "every operand once"))
        bounds.append(put.bound("L2 write", written, written, "every result once"))
    return tuple(bound for bound in bounds if bound.cycles)


def longest_first(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Bounds in the order of their cycles."""
    return tuple(sorted(bounds, key=lambda bound: -bound.cycles))


def program_bounds(program: Program, fetched: int, evicted: int) -> tuple[Bound, ...]:
    """Least cycles by each resource alone: the busiest core's pipes, and the shared links.

    ``fetched`` and ``evicted`` are the bytes that the L2 moved, which another schedule may avoid.
    """
    work, alone = program.pipe_work(), _at_their_rates(program)
    bounds = [
        Bound(
            f"pipe {pipe}",
            int(work[:, p].max()),
            f"work of {program.cores[int(work[:, p].argmax())].name} without any waiting",
            *alone.get(pipe, (0, "")),
        )
        for p, pipe in enumerate(program.pipes)
    ]
    return longest_first([*bounds, *link_bounds(program, fetched, evicted)])


def _at_their_rates(program: Program) -> dict[str, tuple[int, str]]:
    """Cycles by pipe of what all cores move and multiply at its rate alone, shared out evenly.

    With the figure that most of them rest on. What start-ups, rows and vector instructions cost is
    fitted to kernels, and no bound.
    """
    device, parts = program.device, dict[str, list[tuple[Fraction, str]]]()
    matrix = next((pipe for pipe in program.pipes if pipe in MATRIX_PIPES), "")
    for key, amount in program.activity.items():
        part, _, rest = key.partition(".")
        if part == "paths":
            path = device.paths[rest.removesuffix(f".{ENERGY}")]
            cost = amount / path.bytes_per_cycle, f"paths.{path.name}.rate"
            parts.setdefault(path.pipe, []).append(cost)
        elif part in UNITS:
            unit, dtype = device.cube or device.gemm, rest.removeprefix(f"{ENERGY}.")
            assert unit is not None
            cost = amount / unit.macs_per_cycle(dtype), f"{part}.rates.{dtype}"
            parts.setdefault(matrix, []).append(cost)
    by_pipe = {}
    for pipe, costs in parts.items():
        cores = sum(pipe in core.kind.pipes for core in program.cores)
        by_pipe[pipe] = int(sum(cycles for cycles, _ in costs) / cores), max(costs)[1]
    return by_pipe


def link_bounds(program: Program, fetched: int = 0, evicted: int = 0) -> list[Bound]:
    """Least cycles by each link alone, of the busiest group or core where there are several.

    ``fetched`` and ``evicted`` are the bytes that the L2 is known to move.
    """
    links = links_of(program.device, tuple(core.group for core in program.cores))
    asked, l2 = _bytes_asked(program, links), program.device.l2
    bounds = []
    for row, places in zip(links.rows, links.places, strict=True):
        size = least = max(asked[place] for place in places)
        if row.scope == "chip":  # what the L2 fetches and evicts is known for all cores together
            size += fetched * max(0, row.weights[READ_MISS] - row.weights[READ_HIT])
            size += evicted * row.weights[EVICT]
        name, what = _title(row, program.device)
        cycles, capacity = (size << RATE_BITS) // row.capacity, row.capacity
        figure = f"links.{row.name}.rate" if row.listed else row.name
        if l2 is not None and row.name == "l2.read":
            most, figure = rates_at_most(l2, "l2")[0]
            capacity = fixed_rate(most)
        bounds.append(Bound(name, cycles, what, (least << RATE_BITS) // capacity, figure))
    return bounds


def main_memory_bounds(device: Device, read: int, written: int) -> tuple[Bound, ...]:
    """Least cycles to read so many bytes from main memory and to write so many, longest first."""
    bounds = []
    for row in link_rows(device):
        size = read * row.weights[READ_MISS] + written * row.weights[EVICT]
        if not size or row.scope != "chip" or row.name.startswith("l2."):
            continue
        name, what = _title(row, device)
        if row.listed:
            what = "bytes fetched and written back, on one bus"
        figure = f"links.{row.name}.rate" if row.listed else row.name
        bounds.append(Bound(name, (size << RATE_BITS) // row.capacity, what, figure=figure))
    return longest_first(bounds)


def _title(row: Row, device: Device) -> tuple[str, str]:
    """The name of a link in reports, and which bytes its bound counts."""
    main = device.main_memory_name
    into, out = "bytes all cores read from GM", "bytes all cores write to GM"
    titles = {"l2.read": ("L2 read", into), "l2.write": ("L2 write", out)}
    if device.l2 is not None:
        into, out = "bytes the L2 had to fetch", "dirty bytes evicted"
    titles |= {"main_memory.read": (f"{main} read", into)}
    titles |= {"main_memory.write": (f"{main} write", out)}
    whose = "all cores" if row.scope == "chip" else f"the busiest {row.scope}"
    return titles.get(row.name, (f"link {row.name}", f"bytes of {whose} over this link"))


#: Traffic that the bytes of a flow are, one or the other.
_CERTAIN = {
    flows.READ: (READ_HIT, READ_MISS),
    flows.WRITE: (WRITE,),
    flows.ATOMIC: (ATOMIC,),
    flows.MOVE: (MOVE,),
}


def _bytes_asked(program: Program, links: Links) -> list[int]:
    """The bytes that instructions ask each link for, as often as they occupy it.

    A read counts as if it hit or missed, whichever occupies the link less. What the scalar pipe
    moves is no transfer to the engines.
    """
    sizes: dict[tuple[int, tuple[str, ...]], list[int]] = {}  # by kind and links, per template
    scalar = program.pipes.index("S")
    for t, template in enumerate(program.templates):
        for pipe, flow in zip(template.lowered.pipes, template.flows, strict=True):
            if flow is None or pipe == scalar:
                continue
            key = flow.kind, flow.links
            if key not in sizes:
                sizes[key] = [0] * len(program.templates)
            sizes[key][t] += flow.size
    asked = [0] * len(links.capacities)
    for (kind, along), size in sizes.items():
        totals = (program.core_counts @ np.array(size)).tolist()
        for row, places in zip(links.rows, links.places, strict=True):
            weight = min(row.weights[traffic] for traffic in _CERTAIN[kind]) + (row.name in along)
            for place, total in zip(places, totals, strict=True):
                asked[place] += total * weight
    return asked
