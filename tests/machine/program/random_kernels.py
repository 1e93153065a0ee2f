"""Random kernels: slots of any number, flags, loops in loops, and what is issued once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from npusim.base.dtypes import FP16, FP32
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Slot, Tensor
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import BufferHandle, Language
from tests.scripts import Scripted, tasks_of

TINY = load_device("tiny")
BUFFERS = ("UB", "UB", "L1", "L0A", "L0C")
FLAG_PAIRS = (("MTE2", "V"), ("V", "MTE3"), ("MTE1", "M"), ("M", "FIX"), ("MTE3", "MTE2"))

Slots = dict[int, Slot]


@dataclass(frozen=True)
class Op:
    """One random instruction: its kind, the turns it picks (-1: next), and a size in KiB."""

    kind: int
    first: int
    second: int
    size: int


@dataclass(frozen=True)
class Loop:
    """A random loop; ``asks`` says whether the body tells the first (1) and last (2) apart."""

    count: int
    body: tuple[Op | Loop, ...]
    asks: int
    stride: int


@dataclass(frozen=True)
class Plan:
    """A random kernel: slots per buffer, templates, and per core the templates of its tasks."""

    slots: tuple[int, ...]
    templates: tuple[tuple[Op | Loop, ...], ...]
    cores: tuple[tuple[int, ...], ...]
    flag: bool  # tasks hand a flag on to the next one
    once: bool = False  # ops are issued through ``once``


class Random(Scripted):
    """The kernel of a plan."""

    name = "random"

    def __init__(self, plan: Plan, *, unrolled: bool = False) -> None:
        self.spec, self.unrolled, self.moved = plan, unrolled, 0
        self.x = Tensor("x", (1 << 15,), FP16)
        self.y = Tensor("y", (1 << 15,), FP16, "out")
        self.emits = 0

    def tasks(self, cores: int) -> Tasks[Any]:
        rows = [
            (core, template, int(i == 0), int(i == len(units) - 1))
            for core, units in enumerate(self.spec.cores)
            for i, template in enumerate(units)
        ]
        core, template, first, last = np.array(rows, np.int64).T
        base = np.arange(len(core)) * 1536 % 40000
        columns = {"template": template, "first": first, "last": last}
        return tasks_of(core, columns, {"at": base})

    def buffers(self, k: Language) -> None:
        self.handles: list[BufferHandle] = []
        for i, (memory, slots) in enumerate(zip(BUFFERS, self.spec.slots, strict=True)):
            dtype = FP32 if memory == "L0C" else FP16
            self.handles.append(
                k.buffer(memory, (2048 // dtype.bytes,), dtype, slots=slots, name=f"b{i}")
            )
        self.b = k.buffer("L0B", (1024,), None, name="l0b")

    def emit(self, k: Language, task: Any) -> None:
        self.emits += 1
        if self.spec.flag and not task.first:
            k.wait_flag("MTE3", "V", 7)
        for item in self.spec.templates[task.template]:
            self._run(k, item)
        if self.spec.flag and not task.last:
            k.set_flag("MTE3", "V", 7)

    def _run(self, k: Language, item: Op | Loop) -> None:
        if isinstance(item, Op):
            if self.spec.once and not self.unrolled:
                k.once(self._issue, k, item)
            else:
                self._issue(k, item)
            return
        for first, last in self._iterations(k, item):
            for one in item.body:
                self._run(k, one)
            if item.asks & 1 and first():
                k.pipe_barrier()
            if item.asks & 2 and last():
                self._issue(k, Op(0, -1, 0, 2))

    def _iterations(self, k: Language, loop: Loop) -> Iterator[tuple[Any, Any]]:
        """Whether each iteration is the first, and the last, as questions."""
        if not self.unrolled:
            for step in k.loop(loop.count, at=loop.stride):
                yield (lambda step=step: step.first), (lambda step=step: step.last)
            return
        for i in range(loop.count):
            yield (lambda i=i: i == 0), (lambda i=i: i == loop.count - 1)
            self.moved += loop.stride
        self.moved -= loop.count * loop.stride

    def _slot(self, buffer: int, turn: int) -> Slot:
        handle = self.handles[buffer]
        return handle.next() if turn < 0 else handle.last(turn % handle.buffer.slots)

    def _issue(self, k: Language, op: Op) -> None:  # noqa: C901 - one case per instruction
        size, ub = op.size * 1024, op.second % 2
        gm = self.x.at(self.moved, size, base="at")
        match op.kind:
            case 0:
                k.data_move(self._slot(ub, op.first).at(0, size), gm, FP16)
            case 1:
                out = self.y.at(self.moved, size, base="at")
                k.data_move(out, self._slot(ub, op.first).at(0, size), FP16)
            case 2:
                a, b = self._slot(0, op.first), self._slot(1, op.second)
                dst, src = (a, b) if op.size == 1 else (b, a)
                k.vec_scalar("adds", dst.at(0, size), src.at(0, size), 1.0, FP16)
            case 3:
                k.data_move(self._slot(2, op.first).at(0, size), gm, FP16)
            case 4:
                a, l1 = self._slot(ub, op.first), self._slot(2, op.second)
                k.data_move(a.at(0, size), l1.at(0, size), FP16)
            case 5:
                l1, a = self._slot(2, op.first), self._slot(ub, op.second)
                k.data_move(l1.at(0, size), a.at(0, size), FP16)
            case 6:
                a, l1 = self._slot(3, op.first), self._slot(2, op.second)
                k.load2d(a, l1.fractals(0, 2 * op.size), FP16)
            case 7:
                c, a = self._slot(4, op.first), self._slot(3, op.second)
                k.mmad(c, a, self.b.last(), 16, 16 * op.size, 16, FP16, init=op.size == 1)
            case 8:
                out = self.y.at(self.moved, 512, base="at")
                k.fixpipe(out, self._slot(4, op.first), 16, 16, FP16, staging=None)
            case 9:
                pair = FLAG_PAIRS[op.second % len(FLAG_PAIRS)]
                k.set_flag(*pair, 0)
                k.wait_flag(*pair, 0)
            case _:
                k.pipe_barrier()


OPS = st.builds(Op, st.integers(0, 10), st.integers(-1, 3), st.integers(-1, 4), st.integers(1, 2))


def loops(bodies: st.SearchStrategy[Any]) -> st.SearchStrategy[Loop]:
    """Loops over bodies of at most three of what ``bodies`` draws, turns of any number."""
    body = st.lists(bodies, min_size=1, max_size=3).map(tuple)
    return st.builds(
        Loop, st.integers(0, 5), body, st.integers(0, 3), st.sampled_from((0, 32, 512))
    )


ITEMS = OPS | loops(OPS | loops(OPS | loops(OPS)))


@st.composite
def plans(draw: st.DrawFn, *, looped: bool = False) -> Plan:
    items = ITEMS if looped else OPS
    templates = draw(
        st.lists(st.lists(items, min_size=1, max_size=8).map(tuple), min_size=1, max_size=4)
    )
    units = st.lists(st.integers(0, len(templates) - 1), min_size=1, max_size=9).map(tuple)
    return Plan(
        slots=tuple(draw(st.tuples(*[st.integers(1, 4)] * len(BUFFERS)))),
        templates=tuple(templates),
        cores=tuple(draw(st.lists(units, min_size=1, max_size=2))),
        flag=draw(st.booleans()),
        once=looped and draw(st.booleans()),
    )
