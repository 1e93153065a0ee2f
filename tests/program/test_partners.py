"""Kernels on both kinds of cores: what each plan sees, and what happens to flags nobody raises."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP32, INT8
from npusim.base.errors import CapacityError, ProgramError
from npusim.device.catalog import load_device
from npusim.isa.operands import Tensor
from npusim.program.build import build
from npusim.program.kernel import Alike, Kernel, Plan, Tasks
from npusim.program.language import Language
from npusim.program.recost import recosted

pytestmark = pytest.mark.compiled


DEVICE = "ascend910b2"
SIZE = 1024


@dataclass(frozen=True)
class Relay(Kernel):
    """Cube cores load ``x`` and raise a flag; vector cores wait for it and copy ``x`` to ``y``."""

    x: Tensor
    y: Tensor
    raised: int = 1
    seen: list[tuple[str, int]] = field(default_factory=list, compare=False)

    name: ClassVar[str] = "relay"
    role: ClassVar[str] = "cube"
    partners: ClassVar[tuple[str, ...]] = ("vector",)

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        self.seen.append((k.role, cores))
        cube = k.role == "cube"
        buffer = k.buffer("L1" if cube else "UB", (SIZE // 4,), FP32)

        def load(_: Alike) -> None:
            k.data_move(buffer.next(), self.x.at(0, SIZE), FP32)
            for _times in range(self.raised):
                k.core_set_flag("MTE2", 3, "group")

        def copy(_: Alike) -> None:
            k.core_wait_flag("MTE2", 3)
            piece = buffer.next()
            k.data_move(piece, self.x.at(0, SIZE), FP32)
            k.data_move(self.y.at(0, SIZE, base="y"), piece, FP32)

        every = np.arange(cores)
        if cube:
            return Plan(Tasks(every, Alike), load)
        return Plan(Tasks(every, Alike, bases={"y": every * SIZE}), copy)


def relay(vectors: int = 4, **more: Any) -> Relay:
    x = Tensor("x", (SIZE // 4,), FP32)
    return Relay(x, Tensor("y", (vectors, SIZE // 4), FP32, "out"), **more)


def test_each_kind_of_core_has_a_plan_of_its_own() -> None:
    kernel = relay()
    program = build(kernel, load_device(DEVICE), (0, 5))
    assert kernel.seen == [("cube", 2), ("vector", 4)]
    assert program.roles == ("cube", "vector")
    assert [core.name for core in program.cores] == [
        "aic0",
        "aic5",
        *(f"aiv{i}" for i in (0, 1, 10, 11)),
    ]
    assert program.pipes == ("S", "M", "MTE1", "MTE2", "FIX", "V", "MTE3")
    assert [buffer.memory for buffer in program.buffers] == ["L1", "UB"]
    assert program.base_names == ("y",)
    assert program.cores[0].bases.tolist() == [[0]]
    assert program.cores[-1].bases.tolist() == [[3 * SIZE]]


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_a_flag_leads_from_one_kind_to_the_other(engine: str) -> None:
    x = np.arange(SIZE // 4, dtype=np.float32)
    result = npusim.simulate(relay(), DEVICE, x, cores=range(2), engine=engine)
    assert result.outputs is not None
    assert np.asarray(result.outputs[0]).tolist() == [x.tolist()] * 4
    table = result.timeline
    for group in range(2):
        mine = table[table.core == f"aic{group}"]
        raised = int(mine[mine.op == "core_set_flag"].end.iloc[0])
        for number in range(2 * group, 2 * group + 2):
            other = table[table.core == f"aiv{number}"]
            waits = other[other.op == "core_wait_flag"].iloc[0]
            assert int(waits.start) == raised  # it comes to its loads long before
            assert waits.reason == "flag"


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_a_flag_that_nobody_raises_names_the_core_that_waits(engine: str) -> None:
    x = np.zeros(SIZE // 4, np.float32)
    spec = npusim.spec(x.shape, "fp32")
    with pytest.raises(ProgramError, match=r"hangs at cycle \d+: aiv0 pipe MTE2"):
        npusim.simulate(relay(raised=0), DEVICE, spec, cores=range(2), engine=engine)


def test_a_memory_of_the_other_kind_is_refused() -> None:
    @dataclass(frozen=True)
    class Wrong(Relay):
        def plan(self, k: Language, cores: int) -> Plan[Any]:
            k.buffer("L1", (16,), FP32)
            return super().plan(k, cores)

    x = Tensor("x", (SIZE // 4,), FP32)
    with pytest.raises(ProgramError, match="core kind 'aiv' of ascend910b2 has no L1"):
        build(Wrong(x, Tensor("y", (4, SIZE // 4), FP32, "out")), load_device(DEVICE), (0, 1))


def test_memories_of_both_kinds_are_full_on_their_own() -> None:
    @dataclass(frozen=True)
    class Large(Relay):
        def plan(self, k: Language, cores: int) -> Plan[Any]:
            size = k.memory("L1" if k.role == "cube" else "UB").size_bytes - SIZE
            k.buffer("L1" if k.role == "cube" else "UB", (size + self.raised,), INT8)
            return super().plan(k, cores)

    x, y = Tensor("x", (SIZE // 4,), FP32), Tensor("y", (2, SIZE // 4), FP32, "out")
    build(Large(x, y, raised=0), load_device(DEVICE), (0,))
    with pytest.raises(CapacityError, match="L1 holds 524288 B"):
        build(Large(x, y, raised=1), load_device(DEVICE), (0,))


def test_one_kind_of_core_for_both_roles_is_refused() -> None:
    with pytest.raises(ProgramError, match="runs on cube and vector cores that hand data"):
        build(relay(1), load_device("tiny"), (0,))


def test_a_changed_figure_keeps_the_program() -> None:
    spec = npusim.spec((SIZE // 4,), "fp32")
    result = npusim.simulate(relay(), DEVICE, spec, cores=range(2))
    found = result.time_range
    assert found.low_us < result.time_us < found.high_us
    program = build(relay(), load_device(DEVICE), (0, 1))
    other = load_device(DEVICE).replace("sync.core_flag", "500cycle")
    again = recosted(program, other)
    assert again is not None
    assert again.variants is program.variants
    flags = [c.cycles for t in again.templates for c, i in zip(t.costs, t.told, strict=True)
             if i.op.startswith("core_")]  # fmt: skip
    assert flags == [500, 500]
