"""The parts of an instruction's cycles: start-up, rows, bytes, and what else its cost has.

An instruction states its cost as one number. Its parts follow from asking again with one figure of
the device taken away after the other, so that they add up to that number for any instruction; the
instruction's class names these figures.
"""

from __future__ import annotations

from typing import Any

from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import (
    COMPUTE,
    FETCH,
    ORDER,
    Instruction,
    Move,
)


def cost_parts(instruction: Instruction, device: Device) -> dict[str, int]:
    """Cycles of ``instruction.cost(device)`` by their purpose; no part is 0.

    The time that a move needs for its bytes, its rows and its fetches is that of the one that takes
    longest, because they happen at the same time.
    """
    remaining = instruction.cost(device).cycles
    parts: dict[str, int] = {}
    for part, figure in instruction.additions:
        instruction, device = _without(instruction, device, figure)
        cycles = instruction.cost(device).cycles
        parts[part] = parts.get(part, 0) + remaining - cycles
        remaining = cycles
    rest = _rest(instruction, device, remaining)
    parts[rest] = parts.get(rest, 0) + remaining
    return {part: cycles for part, cycles in parts.items() if cycles}


def _rest(instruction: Instruction, device: Device, cycles: int) -> str:
    """The part that the work itself is, of so many cycles."""
    if not isinstance(instruction, Move):
        return COMPUTE if instruction.writes() else ORDER
    move = instruction
    for part, figure, no_limit in Move.limits:
        move = _along(move, {figure: no_limit})
        if move.cost(device).cycles < cycles:
            return part
    return FETCH


def _without(instruction: Instruction, device: Device, figure: str) -> tuple[Instruction, Device]:
    """An instruction and its device without a figure of its path, or of its unit."""
    if isinstance(instruction, Move):
        nothing = type(getattr(instruction.path, figure))(0)
        return _along(instruction, {figure: nothing}), device
    unit = getattr(device, instruction.unit)
    if unit is None:
        return instruction, device
    nothing = type(getattr(unit, figure))(0)
    changed: dict[str, Any] = {instruction.unit: replace(unit, **{figure: nothing})}
    return instruction, replace(device, **changed)


def _along(move: Move, figures: dict[str, Any]) -> Move:
    """A move along its path with other figures."""
    path = replace(move.path, **figures)
    return replace(move, path=path)
