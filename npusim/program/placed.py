"""Costs at true addresses: of moves whose rows may begin anywhere in the blocks they look at."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from math import lcm

import numpy as np

from npusim.device.spec import Device
from npusim.isa.base import Cost, Move
from npusim.isa.operands import GmRegion, moved
from npusim.program.program import CoreProgram, Template, Variant, flow_of

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
    grains = np.array([_grains(some, names[1]) for some in moves], np.int64)
    whole = np.lcm.reduce(grains, axis=0)
    if not any((core.bases % whole).any() for core in cores):
        return cores
    of = np.array([variant.template for variant in variants], np.int64)
    which = np.concatenate([core.variants for core in cores])
    rests = np.concatenate([core.bases for core in cores]) % grains[of[which]]
    rows = np.flatnonzero(rests.any(axis=1))
    prices = _Prices(device, names)
    none = dict.fromkeys(names[1], 0)
    known = {(i, prices.of(some, none)[1]): i for i, some in enumerate(moves)}
    found: dict[tuple[int, int], int] = {(t, v): v for v, t in enumerate(of.tolist())}
    kinds, inverse = np.unique(
        np.column_stack([which[rows], rests[rows]]), axis=0, return_inverse=True
    )
    numbers = []
    for variant, *rest in kinds.tolist():
        old = variants[variant].template
        there, costs = prices.of(moves[old], dict(zip(names[1], rest, strict=True)))
        new = known.setdefault((old, costs), len(templates))
        if new == len(templates):
            templates.append(_with(templates[old], moves[old], there, costs))
        number = found.setdefault((new, variant), len(variants))
        variants += [replace(variants[variant], template=new)][: number == len(variants)]
        numbers.append(number)
    which[rows] = np.array(numbers)[inverse.reshape(-1)]
    own = np.split(which, np.cumsum([len(core.variants) for core in cores])[:-1])
    return [replace(core, variants=one) for core, one in zip(cores, own, strict=True)]


def _moves(template: Template) -> list[_Place]:
    """The moves of a template that look at where rows begin, and their end that is in GM."""
    return [
        (i, one, end)
        for i, one in enumerate(template.instructions)
        if isinstance(one, Move) and one.path.grain > 1
        for end in ("src", "dst")
        if isinstance(region := getattr(one, end), GmRegion) and region.base
    ]


def _grains(moves: list[_Place], bases: list[str]) -> list[int]:
    """By base, after how many bytes of it moves cost the same again."""
    grains = dict.fromkeys(bases, 1)
    for _, one, end in moves:
        base = getattr(one, end).base
        grains[base] = lcm(grains[base], one.path.grain)
    return list(grains.values())


def _with(template: Template, moves: list[_Place], there: list[Move], costs: _Costs) -> Template:
    """A template whose moves lie elsewhere and cost something else."""
    all_costs, flows, priced = [*template.costs], [*template.flows], [*template.instructions]
    for (i, _, _), move, (cost, request) in zip(moves, there, costs, strict=True):
        flow = flows[i]
        assert flow is not None
        priced[i], all_costs[i], flows[i] = move, cost, replace(flow, request=request)
    return replace(template, costs=tuple(all_costs), flows=tuple(flows), priced=tuple(priced))


class _Prices:
    """What moves cost where their bases are so far behind a block; each is asked for once."""

    def __init__(self, device: Device, names: _Names) -> None:
        self._device, self._names = device, names
        self._known: dict[tuple[int, str, int], tuple[Move, tuple[Cost, int]]] = {}

    def of(self, moves: list[_Place], rests: Mapping[str, int]) -> tuple[list[Move], _Costs]:
        """The moves of a template there, and what each costs."""
        there = [self._price(move, end, rests[getattr(move, end).base]) for _, move, end in moves]
        return [one for one, _ in there], tuple(cost for _, cost in there)

    def _price(self, move: Move, end: str, rest: int) -> tuple[Move, tuple[Cost, int]]:
        """A move whose base is so far behind a block, what it costs, and bytes of its requests."""
        key = id(move), end, rest
        if key not in self._known:
            there = copy(move)
            setattr(there, end, moved(getattr(move, end), rest))
            flow = flow_of(there, there.told(), *self._names, self._device)
            self._known[key] = there, (there.cost(self._device), flow.request if flow else 0)
        return self._known[key]
