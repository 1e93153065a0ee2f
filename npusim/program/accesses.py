"""What a program does to global memory: by tensor, the regions of its instructions in all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.integers import IntArray
from npusim.isa.operands import GmRegion, Tensor
from npusim.program.program import ATOMIC, READ, WRITE, Program


@dataclass(frozen=True)
class Use:
    """What one instruction of a template does to a tensor, in all tasks that use the template."""

    kind: int
    region: GmRegion
    pipe: int
    template: int
    index: int  # in the template
    tasks: IntArray  # numbers of the tasks, over all cores
    starts: IntArray  # first byte in each of them


class Accesses:
    """The accesses of a program; its tasks are numbered core by core.

    ``uses`` has those of each tensor, by its name. ``first`` is the number of each core's first
    task, ``cores`` the core of each task, ``templates`` its template.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        counts = [len(core.variants) for core in program.cores]
        self.first = np.concatenate([[0], np.cumsum(counts)])
        self.cores = np.repeat(np.arange(len(counts)), counts)
        of = np.array([v.template for v in program.variants], np.int64)
        self.templates = np.concatenate([of[core.variants] for core in program.cores])

    @cached_property
    def uses(self) -> dict[str, list[Use]]:
        """By tensor, what each instruction of each template does to it."""
        found: dict[str, list[Use]] = {}
        names = {name: i for i, name in enumerate(self.program.base_names)}
        bases = np.concatenate([core.bases for core in self.program.cores])
        for t, template in enumerate(self.program.templates):
            tasks = np.flatnonzero(self.templates == t)
            for i, told in enumerate(template.told):
                write = ATOMIC if template.instructions[i].atomic else WRITE
                both = (*((READ, r) for r in told.reads), *((write, r) for r in told.writes))
                for kind, region in both:
                    if isinstance(region, GmRegion):
                        base = bases[tasks, names[region.base]] if region.base else 0
                        starts = np.zeros(len(tasks), np.int64) + region.offset + base
                        pipe = template.lowered.pipes[i]
                        use = Use(kind, region, pipe, t, i, tasks, starts)
                        found.setdefault(region.tensor.name, []).append(use)
        return found


class Pieces:
    """A tensor in pieces of ``size`` bytes that no access cuts."""

    def __init__(self, tensor: Tensor, uses: list[Use]) -> None:
        numbers = [np.array([tensor.size_bytes])]
        for use in uses:
            pitch = use.region.pitch if use.region.rows > 1 else 0
            numbers += [use.starts, np.array([use.region.row_bytes, pitch])]
        self.size = int(np.gcd.reduce(np.concatenate(numbers)))
        self.count = tensor.size_bytes // self.size
        self.uses = uses

    def window(self, pieces: npt.NDArray[Any], use: Use) -> npt.NDArray[Any]:
        """What ``pieces`` has for each access of a use: (accesses, rows, pieces per row)."""
        view, starts = self.view(pieces, use)
        return view[starts]

    def shared(self, lanes: list[IntArray]) -> npt.NDArray[np.bool_]:
        """The pieces that one lane, a pipe of a core, writes and another accesses.

        ``lanes`` has those of each access of each use.
        """
        writer = np.zeros(self.count, np.int32)
        for use, lane in zip(self.uses, lanes, strict=True):
            if use.kind != READ:
                view, starts = self.view(writer, use)
                view[starts] = lane[:, None, None]
        shared = np.zeros(self.count, np.bool_)
        for use, lane in zip(self.uses, lanes, strict=True):
            found = self.window(writer, use)
            other = np.nonzero((found != lane[:, None, None]) & (found != 0))
            shared[self.number(use, *other)] = True
        return shared

    def number(self, use: Use, access: IntArray, row: IntArray, column: IntArray) -> IntArray:
        """The pieces at places in the windows of a use."""
        return (use.starts[access] + row * use.region.pitch) // self.size + column

    def view(self, pieces: npt.NDArray[Any], use: Use) -> tuple[npt.NDArray[Any], IntArray]:
        """All windows of the shape of a use, and which of them it accesses."""
        region = use.region
        pitch = region.pitch // self.size if region.rows > 1 else 0
        row, item = region.row_bytes // self.size, pieces.itemsize
        count = self.count - (region.rows - 1) * pitch - row + 1
        shape, strides = (count, region.rows, row), (item, pitch * item, item)
        return np.ndarray(shape, pieces.dtype, pieces, 0, strides), use.starts // self.size
