"""A built program on a variant of its device: what figures do not touch is kept.

A program's shape is what its kernel emitted, lowered and linked. It follows from the device's
*structure*: memories, moves, pipes and the like. Figures that only cost time do not enter it, so
a variant with the same structure takes over tasks, templates and waits, and of the costs those of
instructions that rest on no changed figure.

Costs at true addresses are those of moves whose rows may begin anywhere in the blocks that they
look at; a new program gets them too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from math import lcm
from typing import Any, TypeVar

import numpy as np

from npusim.base.errors import ProgramError
from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Cost, Instruction, InstructionFacts, Move
from npusim.machine.isa.operands import GmRegion, moved
from npusim.machine.program.lower import at_line
from npusim.machine.program.program import CoreProgram, Flow, Program, Template, Variant, flow_of

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
    facts: tuple[InstructionFacts, ...],
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
        for instruction, of_instruction in zip(instructions, facts, strict=True):
            costs.append(instruction.cost(device))
            flows.append(flow_of(instruction, of_instruction, *names, device))
    except ProgramError as error:
        failed = len(flows)
        raise at_line(error, lines[failed], instructions[failed]) from error
    return tuple(costs), tuple(flows)


def recosted(program: Program, device: Device) -> Program | None:
    """The program with the costs of a variant of its device.

    None where the variant may have another program: its structure differs, or a figure by which the
    kernel language chose between instructions, or the kernel would decide otherwise, or looked at
    the device itself.
    """
    if program.structure is None:
        return None
    if program.structure != structure(device, program.roles):
        return None
    old, names = program.device, program.figures | program.looked
    changed = _changed(old, device, names)
    if not changed.isdisjoint(program.looked):
        return None
    if not all(decision.holds(device) for decision in program.decisions):
        return None
    requests = [machine.l2.request_bytes if machine.l2 else 0 for machine in (old, device)]
    everywhere = requests[0] != requests[1]
    templates = tuple(_again(program, t, device, changed, everywhere) for t in program.templates)
    program_again = replace(program, device=device, templates=templates)
    attributes = vars(program)
    vars(program_again).update({name: attributes[name] for name in _OF_SHAPE if name in attributes})
    return program_again


def _again(
    program: Program, template: Template, device: Device, changed: set[str], everywhere: bool
) -> Template:
    """A template on a variant of the device, of which some figures ``changed``.

    ``everywhere`` says that every move in global memory did.
    """
    touched = [
        i
        for i, facts in enumerate(template.facts)
        if not changed.isdisjoint(facts.figures) or (everywhere and template.flows[i])
    ]
    if not touched:
        return template
    moved = tuple(_on(template.instructions[i], device) for i in touched)
    facts = tuple(template.facts[i] for i in touched)
    lines = tuple(template.lines[i] for i in touched)
    tensors = {t.name: i for i, t in enumerate(program.tensors)}
    costs, flows = costed(moved, facts, lines, device, (tensors, list(program.base_names)))
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
    return replace(instruction, path=device.paths[instruction.path.name])


#: The devices that were compared last, and which figures differ.
_compared: list[tuple[Device, Device, dict[str, bool]]] = []

#: Pairs of devices that are kept: the programs of a call may be of several.
_KEPT = 4


def _changed(old: Device, device: Device, names: Iterable[str]) -> set[str]:
    """Those of the figures and parts at ``names`` that differ; each is compared once."""
    differs = next(
        (differences for a, b, differences in _compared if a is old and b is device), None
    )
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


# -- costs at true addresses -----------------------------------------------------------------------


#: Places of tensors by name, and the bases of the task table.
_Names = tuple[dict[str, int], list[str]]

#: A move of a template, at a place, and the field that is its end in global memory.
_Place = tuple[int, Move, str]

#: What each of some moves costs, and bytes of its requests to the L2.
_Costs = tuple[tuple[Cost, int], ...]


def placed(
    templates: list[Template],
    variants: list[Variant],
    cores: list[CoreProgram],
    device: Device,
    names: _Names,
) -> list[CoreProgram]:
    """The cores with units that cost what their rows do where these lie in global memory.

    ``templates`` are costed as if all bases began a block of those that moves look at
    (``Path.grain``). Where that makes a difference, a template of other costs and its variants are
    added to the lists.
    """
    moves = [_moves(template) for template in templates]
    grains = np.array([_grains(places, names[1]) for places in moves], np.int64)
    common = np.lcm.reduce(grains, axis=0)
    if not any((core.bases % common).any() for core in cores):
        return cores
    of = np.array([variant.template for variant in variants], np.int64)
    which = np.concatenate([core.variants for core in cores])
    rests = np.concatenate([core.bases for core in cores]) % grains[of[which]]
    rows = np.flatnonzero(rests.any(axis=1))
    kinds, inverse = np.unique(
        np.column_stack([which[rows], rests[rows]]), axis=0, return_inverse=True
    )
    added = _Added(templates, variants, moves, _Prices(device, names), names[1])
    numbers = [added.variant(variant, rest) for variant, *rest in kinds.tolist()]
    which[rows] = np.array(numbers)[inverse.reshape(-1)]
    ends = np.cumsum([len(core.variants) for core in cores])[:-1]
    pairs = zip(cores, np.split(which, ends), strict=True)
    return [replace(core, variants=of_core) for core, of_core in pairs]


class _Added:
    """Templates and variants with costs of other places, added to the lists of a program."""

    def __init__(
        self,
        templates: list[Template],
        variants: list[Variant],
        moves: list[list[_Place]],
        prices: _Prices,
        bases: list[str],
    ) -> None:
        self._templates = templates
        self._variants = variants
        self._moves = moves
        self._prices = prices
        self._bases = bases
        nowhere = dict.fromkeys(bases, 0)
        #: Templates by the one that they were made of, and the costs of its moves.
        self._by_costs = {
            (template, prices.of(places, nowhere)[1]): template
            for template, places in enumerate(moves)
        }
        #: Variants by their template, and the variant that they were made of.
        self._by_template = {
            (variant.template, number): number for number, variant in enumerate(variants)
        }

    def variant(self, number: int, rest: list[int]) -> int:
        """The variant like one whose bases are so many bytes behind a block."""
        old = self._variants[number].template
        places = self._moves[old]
        there, costs = self._prices.of(places, dict(zip(self._bases, rest, strict=True)))
        new = self._by_costs.setdefault((old, costs), len(self._templates))
        if new == len(self._templates):
            self._templates.append(_with(self._templates[old], places, there, costs))
        if (new, number) not in self._by_template:
            self._by_template[new, number] = len(self._variants)
            self._variants.append(replace(self._variants[number], template=new))
        return self._by_template[new, number]


def _moves(template: Template) -> list[_Place]:
    """The moves of a template that look at where rows begin, and their end that is in GM."""
    return [
        (i, move, end)
        for i, move in enumerate(template.instructions)
        if isinstance(move, Move) and move.path.grain > 1
        for end in ("src", "dst")
        if isinstance(region := getattr(move, end), GmRegion) and region.base
    ]


def _grains(moves: list[_Place], bases: list[str]) -> list[int]:
    """By base, after how many bytes of it moves cost the same again."""
    grains = dict.fromkeys(bases, 1)
    for _, move, end in moves:
        base = getattr(move, end).base
        grains[base] = lcm(grains[base], move.path.grain)
    return list(grains.values())


def _with(template: Template, moves: list[_Place], there: list[Move], costs: _Costs) -> Template:
    """A template whose moves lie elsewhere and cost something else."""
    all_costs = [*template.costs]
    flows = [*template.flows]
    priced = [*template.instructions]
    for (i, _, _), move, (cost, request) in zip(moves, there, costs, strict=True):
        flow = flows[i]
        assert flow is not None
        priced[i], all_costs[i], flows[i] = move, cost, replace(flow, request=request)
    return replace(template, costs=tuple(all_costs), flows=tuple(flows), priced=tuple(priced))


class _Prices:
    """The costs of moves whose bases are so far behind a block; each is worked out once."""

    def __init__(self, device: Device, names: _Names) -> None:
        self._device = device
        self._names = names
        self._priced: dict[tuple[int, str, int], tuple[Move, tuple[Cost, int]]] = {}

    def of(self, moves: list[_Place], rests: Mapping[str, int]) -> tuple[list[Move], _Costs]:
        """The moves of a template there, and what each costs."""
        there = [self._price(move, end, rests[getattr(move, end).base]) for _, move, end in moves]
        return [move for move, _ in there], tuple(cost for _, cost in there)

    def _price(self, move: Move, end: str, rest: int) -> tuple[Move, tuple[Cost, int]]:
        """A move whose base is so far behind a block, what it costs, and bytes of its requests."""
        key = id(move), end, rest
        if key not in self._priced:
            there = replace(move, **{end: moved(getattr(move, end), rest)})
            flow = flow_of(there, there.facts(), *self._names, self._device)
            self._priced[key] = there, (there.cost(self._device), flow.request if flow else 0)
        return self._priced[key]
