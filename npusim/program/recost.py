"""A built program on a variant of its device: what figures do not touch is kept.

A program's shape is what its kernel emitted, lowered and linked. It follows from the device's
*structure*: memories, moves, pipes and the like. Figures that only cost time do not enter it, so
a variant with the same structure takes over tasks, templates and waits, and of the costs those of
instructions that rest on no changed figure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from npusim.base.errors import ProgramError
from npusim.device.spec import Device
from npusim.isa.base import Cost, Instruction, Move, Told
from npusim.program.lower import at_line
from npusim.program.program import Flow, Program, Template, flow_of

T = TypeVar("T")

#: What a program works out of itself once, and without its costs.
_OF_SHAPE = ("figures", "pipes", "working", "unit_counts", "core_counts", "instructions")


def structure(device: Device, roles: tuple[str, ...]) -> Hashable:
    """All that the kernel language tells cores of ``roles``, and that legality depends on."""
    cube = device.cube
    return (
        tuple(device.core_kind(role) for role in roles),
        tuple(device.memories.values()),
        frozenset((path.name, path.pipe) for path in device.paths.values()),
        (cube.unit_flag, cube.hf32_bits) if cube is not None else None,
        (device.sync.event_ids, device.sync.core_event_ids),
        device.dtypes,
    )


def costed(
    instructions: tuple[Instruction, ...],
    told: tuple[Told, ...],
    lines: tuple[str, ...],
    device: Device,
    names: tuple[dict[str, int], list[str]],
) -> tuple[tuple[Cost, ...], tuple[Flow | None, ...]]:
    """Costs and flows of a template; ``names`` are of tensors, with their places, and of bases.

    Raises ``ProgramError`` at the kernel line of what the device has no cost for.
    """
    costs: list[Cost] = []
    flows: list[Flow | None] = []
    try:
        for instruction, facts in zip(instructions, told, strict=True):
            costs.append(instruction.cost(device))
            flows.append(flow_of(instruction, facts, *names, device))
    except ProgramError as error:
        at = len(flows)
        raise at_line(error, lines[at], instructions[at]) from error
    return tuple(costs), tuple(flows)


def recosted(program: Program, device: Device) -> Program | None:
    """The program with the costs of a variant of its device.

    None where the variant may have another program: its structure differs, or a figure by which the
    kernel language chose between instructions, or the kernel looked at the device itself.
    """
    if program.structure is None:
        return None
    if program.structure != structure(device, program.roles):
        return None
    old, names = program.device, program.figures | program.looked
    changed = _changed(old, device, names)
    if not changed.isdisjoint(program.looked):
        return None
    requests = [one.l2.request_bytes if one.l2 else 0 for one in (old, device)]
    everywhere = requests[0] != requests[1]
    templates = tuple(_again(program, t, device, changed, everywhere) for t in program.templates)
    made = replace(program, device=device, templates=templates)
    known = vars(program)
    vars(made).update({name: known[name] for name in _OF_SHAPE if name in known})
    return made


def _again(
    program: Program, template: Template, device: Device, changed: set[str], everywhere: bool
) -> Template:
    """A template on a variant of the device, of which some figures ``changed``.

    ``everywhere`` says that every move in global memory did.
    """
    touched = [
        i
        for i, told in enumerate(template.told)
        if not changed.isdisjoint(told.figures) or (everywhere and template.flows[i])
    ]
    if not touched:
        return template
    moved = tuple(_on(template.instructions[i], device) for i in touched)
    told = tuple(template.told[i] for i in touched)
    lines = tuple(template.lines[i] for i in touched)
    tensors = {t.name: i for i, t in enumerate(program.tensors)}
    costs, flows = costed(moved, told, lines, device, (tensors, list(program.base_names)))
    return replace(
        template,
        instructions=_put(template.instructions, touched, moved),
        costs=_put(template.costs, touched, costs),
        flows=_put(template.flows, touched, flows),
    )


def _put(column: tuple[T, ...], places: list[int], values: tuple[T, ...]) -> tuple[T, ...]:
    """The column with other values at some places."""
    new = list(column)
    for i, value in zip(places, values, strict=True):
        new[i] = value
    return tuple(new)


def _on(instruction: Instruction, device: Device) -> Instruction:
    """The same instruction along the path of another device."""
    if not isinstance(instruction, Move):
        return instruction
    other = copy(instruction)
    other.path = device.paths[instruction.path.name]
    return other


#: The devices that were compared last, and which figures differ.
_compared: list[tuple[Device, Device, dict[str, bool]]] = []

#: Pairs of devices that are kept: the programs of a call may be of several.
_KEPT = 4


def _changed(old: Device, device: Device, names: Iterable[str]) -> set[str]:
    """Those of the figures and parts at ``names`` that differ; each is compared once."""
    differs = next((known for a, b, known in _compared if a is old and b is device), None)
    if differs is None:
        differs = {}
        del _compared[_KEPT - 1 :]
        _compared.insert(0, (old, device, differs))
    for name in names:
        if name not in differs:
            differs[name] = _value(old, name) != _value(device, name)
    return {name for name in names if differs[name]}


def _value(device: Device, name: str) -> Any:
    """The figure or part of a device at a dotted path, None where it lacks it."""
    part, _, rest = name.partition(".")
    value: Any = getattr(device, part)
    if part == "paths":
        return value.get(rest)
    for key in rest.split(".") if rest else ():
        value = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
    return value
