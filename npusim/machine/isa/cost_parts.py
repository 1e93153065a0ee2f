"""What the cycles of an instruction are for: start-up, rows, bytes, and what else its cost has.

An instruction states its cost as one number. Its parts follow from asking again with one figure of
the device taken away after the other, so that they add up to that number for any instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Instruction, Move

#: Parts of what an instruction costs alone, in the order of reports.
STARTUP, BYTES, ROWS, FETCH, CONFLICT, FLOOR, COMPUTE, ORDER = (
    *("start-up", "bytes", "rows", "fetch", "conflict", "floor", "compute", "order"),
)

#: A rate that moves anything in no time.
_NO_LIMIT = Fraction(1 << 60)

Change = Callable[[Instruction, Device], tuple[Instruction, Device]]


def cost_parts(instruction: Instruction, device: Device) -> dict[str, int]:
    """Cycles of ``instruction.cost(device)`` by what they are for; no part is 0.

    The time that a move needs for its bytes, its rows and its fetches is that of the one that takes
    longest, because they happen at the same time.
    """
    steps = _MOVE if isinstance(instruction, Move) else _OTHER
    left = instruction.cost(device).cycles
    found: dict[str, int] = {}
    for part, change in steps:
        instruction, device = change(instruction, device)
        now = instruction.cost(device).cycles
        found[part] = found.get(part, 0) + left - now
        left = now
    rest = _rest(instruction, device, left)
    found[rest] = found.get(rest, 0) + left
    return {part: cycles for part, cycles in found.items() if cycles}


def _rest(instruction: Instruction, device: Device, left: int) -> str:
    """What the work itself is."""
    if isinstance(instruction, Move):
        unlimited, _ = _path(bytes_per_cycle=_NO_LIMIT)(instruction, device)
        if unlimited.cost(device).cycles < left:
            return BYTES
        rowless, _ = _path(row_cycles=Fraction(0))(unlimited, device)
        return ROWS if rowless.cost(device).cycles < left else FETCH
    return COMPUTE if instruction.writes() else ORDER


def _path(**figures: Any) -> Change:
    """A move along its path with other figures."""

    def change(instruction: Instruction, device: Device) -> tuple[Instruction, Device]:
        assert isinstance(instruction, Move)
        path = replace(instruction.path, **figures)
        return replace(instruction, path=path), device

    return change


def _unit(name: str, **figures: Any) -> Change:
    """A device one of whose units has other figures, if it has that unit."""

    def change(instruction: Instruction, device: Device) -> tuple[Instruction, Device]:
        unit = getattr(device, name)
        if unit is None:
            return instruction, device
        changed: dict[str, Any] = {name: replace(unit, **figures)}
        return instruction, replace(device, **changed)

    return change


_MOVE: tuple[tuple[str, Change], ...] = (
    (FLOOR, _path(floor_cycles=0)),
    (CONFLICT, _path(conflict_cycles=Fraction(0))),
    (ROWS, _path(unaligned_cycles=Fraction(0))),
    (STARTUP, _path(startup_cycles=0)),
)

_OTHER: tuple[tuple[str, Change], ...] = (
    (CONFLICT, _unit("cube", odd_block_conflict=False)),
    (STARTUP, _unit("cube", startup_cycles=0)),
    (STARTUP, _unit("vector", startup_cycles=0)),
    (STARTUP, _unit("gemm", overhead_cycles=0)),
)
