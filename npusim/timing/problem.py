"""Least cycles of a problem, whatever program solves it: its multiply-adds, and its bytes once.

A kernel's bounds (``npusim.timing.run``) are those of the program that ran. Those of the problem
say how good that program is: at 99 % of the one and 50 % of the other it is as fast as it can be,
and another could be twice as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from npusim.device.pipes import MATRIX_PIPES
from npusim.device.spec import Device
from npusim.program.program import Program
from npusim.timing.trace import Bound

#: Matrix units by their part of a device.
UNITS = ("cube", "gemm")


class GmBytes(NamedTuple):
    """Bytes of tensors in global memory by name: those a problem reads, and those it writes."""

    read: dict[str, int]
    written: dict[str, int]


def needed_bytes(program: Program) -> GmBytes:
    """What the problem of a kernel reads and writes: of each operand and result every byte once.

    That is the whole tensor, in the layout the kernel has it, less what the problem does not need
    of it (``Kernel.needed_bytes``) and what the kernel itself leaves alone.
    """
    sizes = {tensor.name: tensor.size_bytes for tensor in program.tensors}
    sizes |= program.needed_bytes
    found = GmBytes({}, {})
    for (src, dst, operand), moved in program.moves.items():
        for place, totals in ((src, found.read), (dst, found.written)):
            if place == "GM":
                totals[operand] = totals.get(operand, 0) + moved
    least = ({name: min(sizes[name], moved) for name, moved in one.items()} for one in found)
    return GmBytes(*least)


def problem_bounds(program: Program, resident: Mapping[str, int]) -> tuple[Bound, ...]:
    """Least cycles of a kernel's problem on the cores it was given, longest first.

    The matrix units of all these cores at their peak, and ``memory_bounds`` of what it needs.
    ``resident`` are the bytes by tensor that the L2 holds when the kernel starts.
    """
    needed = needed_bytes(program)
    held = sum(min(size, resident.get(name, 0)) for name, size in needed.read.items())
    bounds = [*memory_bounds(program.device, needed, held)]
    peak = _peak(program)
    if peak and program.useful_macs:
        cores = sum(bool({*core.kind.pipes} & {*MATRIX_PIPES}) for core in program.cores)
        unit = "cube" if program.device.cube is not None else "gemm"
        why = f"useful multiply-adds on {cores} core{'s' * (cores > 1)}"
        bounds.append(Bound(unit, _cycles(program.useful_macs, peak * cores), why))
    return longest_first(bounds)


def memory_bounds(device: Device, needed: GmBytes, held: int = 0) -> tuple[Bound, ...]:
    """Least cycles to read operands, of which the L2 has ``held`` bytes, and to write results.

    Results go to the L2; of them only what it cannot hold has to reach main memory.
    """
    main, l2 = device.main_memory, device.l2
    name = device.main_memory_name
    read, written = sum(needed.read.values()), sum(needed.written.values())
    whole = "every operand once" + (", but for what the L2 holds at the start" if held else "")
    missing = max(0, read - held)
    bounds = [Bound(f"{name} read", _cycles(missing, device.main_read_bytes_per_cycle), whole)]
    if l2 is not None:
        if held:
            cycles = _cycles(read, l2.read_bytes_per_cycle)
            bounds.append(Bound("L2 read", cycles, "every operand once"))
        over = max(0, written - l2.size_bytes)
        cycles = _cycles(written, l2.write_bytes_per_cycle)
        bounds.append(Bound("L2 write", cycles, "every result once"))
        why = "what of the results the L2 cannot hold"
        bounds.append(Bound(f"{name} write", _cycles(over, main.write_bytes_per_cycle), why))
    else:
        cycles = _cycles(written, main.write_bytes_per_cycle)
        bounds.append(Bound(f"{name} write", cycles, "every result once"))
    return tuple(bound for bound in bounds if bound.cycles)


def _cycles(amount: int, rate: Fraction) -> int:
    """Cycles of ``amount`` at so much per cycle, rounded up; whole numbers take less time."""
    return -(-amount * rate.denominator // rate.numerator)


def longest_first(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Bounds in the order of their cycles."""
    return tuple(sorted(bounds, key=lambda bound: -bound.cycles))


def _peak(program: Program) -> Fraction:
    """Multiply-adds per cycle and core at the fastest rate the program uses; 0 without any."""
    unit = program.device.cube or program.device.gemm
    rates = tuple(f"{unit}.rates." for unit in UNITS)
    names = [name.rpartition(".")[2] for name in program.figures if name.startswith(rates)]
    if unit is None:
        return Fraction(0)
    return max((unit.macs_per_cycle(name) for name in names), default=Fraction(0))
