"""Costs at true addresses: of moves whose rows may begin anywhere in the blocks they look at."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from math import lcm

import numpy as np

from npusim.device.spec import Device
from npusim.isa.base import Instruction, Move
from npusim.isa.operands import GmRegion, moved
from npusim.program.program import CoreProgram, Template, Variant, flow_of

#: Places of tensors by name, and the bases of the task table.
_Names = tuple[dict[str, int], list[str]]


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
    grains = np.array([_grains(template, names[1]) for template in templates], np.int64)
    if grains.max(initial=1) == 1:
        return cores
    of = np.array([variant.template for variant in variants], np.int64)
    which = np.concatenate([core.variants for core in cores])
    rests = np.concatenate([core.bases for core in cores]) % grains[of[which]]
    rows = np.flatnonzero(rests.any(axis=1))
    if not len(rows):
        return cores
    known = {(i, t.costs, t.flows): i for i, t in enumerate(templates)}
    found: dict[tuple[int, int], int] = {(t, v): v for v, t in enumerate(of.tolist())}
    kinds, inverse = np.unique(
        np.column_stack([which[rows], rests[rows]]), axis=0, return_inverse=True
    )
    numbers = []
    for variant, *rest in kinds.tolist():
        old = variants[variant].template
        one = _there(templates[old], dict(zip(names[1], rest, strict=True)), device, names)
        new = known.setdefault((old, one.costs, one.flows), len(templates))
        templates += [one][: new == len(templates)]
        number = found.setdefault((new, variant), len(variants))
        variants += [replace(variants[variant], template=new)][: number == len(variants)]
        numbers.append(number)
    which[rows] = np.array(numbers)[inverse.reshape(-1)]
    own = np.split(which, np.cumsum([len(core.variants) for core in cores])[:-1])
    return [replace(core, variants=one) for core, one in zip(cores, own, strict=True)]


def _moved(instruction: Instruction, rests: Mapping[str, int]) -> Instruction:
    """The instruction where its base is so far behind a block; itself where that is no matter."""
    if isinstance(instruction, Move) and instruction.path.grain > 1:
        for end in ("src", "dst"):
            region = getattr(instruction, end)
            if isinstance(region, GmRegion) and rests.get(region.base):
                instruction = copy(instruction)
                setattr(instruction, end, moved(region, rests[region.base]))
    return instruction


def _there(template: Template, rests: Mapping[str, int], device: Device, names: _Names) -> Template:
    """The template with the costs that it has where its bases are so far behind a block."""
    costs, flows = list(template.costs), list(template.flows)
    priced = tuple(_moved(instruction, rests) for instruction in template.instructions)
    for i, there in enumerate(priced):
        flow = flows[i]
        if there is not template.instructions[i] and flow is not None:
            costs[i] = there.cost(device)
            other = flow_of(there, there.told(), *names, device)
            flows[i] = replace(flow, request=other.request if other else 0)
    return replace(template, costs=tuple(costs), flows=tuple(flows), priced=priced)


def _grains(template: Template, bases: list[str]) -> list[int]:
    """By base, after how many bytes of it a template costs the same again."""
    grains = dict.fromkeys(bases, 1)
    for instruction in template.instructions:
        if isinstance(instruction, Move) and instruction.path.grain > 1:
            for region in (*instruction.reads(), *instruction.writes()):
                if isinstance(region, GmRegion) and region.base:
                    grains[region.base] = lcm(grains[region.base], instruction.path.grain)
    return list(grains.values())
