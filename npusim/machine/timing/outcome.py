"""The results of an engine, and the message of both engines when a program cannot go on.

What an L2 holds after it is data too: known by its content, kept, and put into an L2 again.

Two kernels that leave the same bytes, clean and dirty, in the same order of use leave the same L2
to whatever comes after them, however long they took.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from msgspec import Struct

from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.machine.isa.base import Instruction
from npusim.machine.program.program import Flow, Program


class PipeSpans(Struct, frozen=True):
    """Executed instructions, one row each, in no particular order.

    ``index`` counts the instructions of one pipe of one core; ``instruction`` is the place in
    ``template``. ``reason`` says what the pipe waited for before, for ``waited`` cycles; it is
    ``BUSY`` where it did not wait.
    """

    core: IntArray
    pipe: IntArray
    index: IntArray
    template: IntArray
    instruction: IntArray
    start: IntArray
    end: IntArray
    reason: IntArray
    waited: IntArray


class Outcome(Struct, frozen=True):
    """One run: makespan, reasons per core and pipe, GM traffic, and spans if asked for."""

    cycles: int
    reasons: IntArray  # (cores, pipes, reasons), each row sums to the makespan
    #: (operand, destination) -> bytes that hit, that missed, and of the sectors fetched for them
    hits: dict[tuple[str, str], tuple[int, int, int]]
    fetched: int  # bytes from main memory, whole sectors
    evicted: int  # bytes to main memory
    spans: PipeSpans | None


class L2(Protocol):
    """Content of an L2, in the form an engine works on."""

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""

    def resident(self) -> Mapping[str, int]:
        """Bytes by tensor, in whole sectors; tensors without any may be missing."""


#: Called now and then with the instructions completed so far.
Progress = Callable[[int], None]


def hangs(program: Program, core: int, pipe: int, done: int, cycle: int) -> ProgramError:
    """The error for a core whose pipe completed ``done`` instructions and waits forever."""
    owner = program.cores[core]
    rest, what = done, "the end"
    for variant in owner.variants:
        template = program.templates[program.variants[variant].template]
        total = template.lowered.totals[pipe]
        if rest < total:
            places = [i for i, p in enumerate(template.lowered.pipes) if p == pipe]
            what = f"{template.lines[places[rest]]}: {template.instructions[places[rest]]}"
            break
        rest -= total
    return ProgramError(
        f"{program.kernel} hangs at cycle {cycle}: {owner.name} pipe {program.pipes[pipe]} "
        f"waits forever before {what}; every wait_flag, core_wait_flag and core_barrier needs "
        "its partner"
    )


def outside(
    line: str, instruction: Instruction, flow: Flow, base: int, iteration: int
) -> ProgramError:
    """The error for an access that leaves its tensor; ``base`` is the unit's byte offset.

    ``iteration`` is that of the innermost loop, -1 outside of loops.
    """
    region = flow.region
    assert region is not None
    first = region.offset + base
    end = first + flow.extent
    where = f", in iteration {iteration + 1} of its loop" if iteration >= 0 else ""
    return ProgramError(
        f"{line}: {instruction}: bytes {first}..{end} of {region} lie outside its "
        f"{region.tensor.size_bytes} B{where}; check the unit's base offset and extents"
    )


# -- what an L2 holds ------------------------------------------------------------------------------


#: Of a 64-bit mask, as a number without a sign.
_WIDE = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Held:
    """Blocks of tensors, least recently used first.

    ``sizes`` are the bytes of every tensor the L2 was told of, in order of names. ``blocks`` are
    int64 (4, n): the place of the tensor in ``sizes``, the block's number in it, and the masks of
    its valid and dirty sectors. ``digest`` differs where anything differs.
    """

    sizes: tuple[tuple[str, int], ...]
    blocks: IntArray
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Work the digest out, which is what a content is asked for."""
        digest = hashlib.sha256(repr(self.sizes).encode())
        digest.update(self.blocks.tobytes())
        object.__setattr__(self, "digest", digest.hexdigest()[:32])

    @classmethod
    def of(cls, content: Iterable[tuple[str, int, int, int]], sizes: Mapping[str, int]) -> Held:
        """From what an L2 tells of its ``content``, of tensors that have ``sizes`` in bytes."""
        names = sorted(sizes)
        place = {name: i for i, name in enumerate(names)}
        rows = [
            (place[name], block, *(mask - (mask >> 63 << 64) for mask in masks))
            for name, block, *masks in content
        ]
        blocks = np.array(rows, np.int64).reshape(-1, 4).T
        return cls(tuple((name, sizes[name]) for name in names), np.ascontiguousarray(blocks))

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""
        names = [name for name, _ in self.sizes]
        return [
            (names[tensor], block, valid & _WIDE, dirty & _WIDE)
            for tensor, block, valid, dirty in self.blocks.T.tolist()
        ]
