"""Which operations of a step one kernel computes together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import prod

from npusim.base.errors import ArgumentError
from npusim.base.objects import replace
from npusim.base.yamltree import suggest
from npusim.device.spec import Device
from npusim.networks.rules.table import Fusion, tables
from npusim.networks.rules.training import Operation, Training
from npusim.workloads import ConvLayer


def chosen(fusions: str | Collection[str]) -> tuple[Fusion, ...]:
    """The rows of "usual", "all", "none", or of names; ``ArgumentError`` for an unknown name."""
    known = tables().fusions
    if fusions == "none":
        return ()
    if fusions in ("usual", "all"):
        return tuple(one for one in known if one.usual or fusions == "all")
    names = fusions.split(",") if isinstance(fusions, str) else list(fusions)
    for name in names:
        words = ("usual", "all", "none", *(one.name for one in known))
        if name not in words:
            raise ArgumentError(
                f"fusions: unknown name {name!r}{suggest(name, words)}; known are "
                f"{', '.join(words)}"
            )
    return tuple(one for one in known if one.name in names)


def fused(step: Training, fusions: Collection[Fusion], device: Device) -> dict[str, int]:
    """Rewrite the operations of a step; returns how often each fusion was made."""
    made: dict[str, int] = {}
    through_ub, readers = not device.has_path("L0C", "GM"), step.readers()
    for fusion in fusions:
        done = True
        while done:
            done = any(
                _join(step, at, fusion, readers, through_ub=through_ub)
                for at in range(len(step.operations) - 1, -1, -1)
            )
            made[fusion.name] = made.get(fusion.name, 0) + done
    return {name: count for name, count in made.items() if count}


def _join(
    step: Training, at: int, fusion: Fusion, readers: Counter[str], *, through_ub: bool
) -> bool:
    """Make the operation at this place part of the one before it, if the fusion applies."""
    second = step.operations[at]
    if second.kind != fusion.second or second.chain is None:
        return False
    reads = second.reads
    values = [step.values[name] for name in (*reads, *second.writes)]
    if len({value.shape for value in values if value.kind in ("map", "rows")}) > 1:
        return False  # blocks of other axes hold other elements
    for place in range(at - 1, -1, -1):
        first = step.operations[place]
        if first.kind not in fusion.first or (first.core and not through_ub):
            continue
        inner = [name for name in first.writes if name in reads]
        if not (inner and (fusion.kept or readers[inner[0]] == 1) and _dense(first)):
            continue
        between = step.operations[place + 1 : at]
        if any(set(first.writes) & set(one.reads) for one in between) and not fusion.kept:
            continue
        chain = second.chain
        if first.chain is not None:
            chain = first.chain.then(second.chain, inner[0], kept=fusion.kept)
        kind, stored = f"{first.kind} + {second.kind}", first.stored and fusion.kept
        one = replace(first, name=second.name, kind=kind, chain=chain, stored=stored)
        readers.subtract((*first.reads, *reads))
        readers.update(one.reads)
        where = place if fusion.kept else at
        step.operations[where] = one
        del step.operations[at if fusion.kept else place]
        return True
    return False


def _dense(one: Operation) -> bool:
    """Whether a product leaves its result in one piece, of blocks of channels.

    A strided gradient does so by phases; of a filter that is the whole input the product is one of
    plain matrices, which takes less time by more than what comes after it.
    """
    if isinstance(one.layer, ConvLayer) and one.layer.one_window and prod(one.layer.kernel) > 1:
        return False
    strided = isinstance(one.layer, ConvLayer) and set(one.layer.stride) != {1}
    return not (strided and one.core == "convolution.input")
