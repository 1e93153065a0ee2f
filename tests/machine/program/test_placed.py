"""Moves cost what their rows do where these lie in global memory, whatever task moves them.

Kernels on both kinds of cores: what each plan sees, and what happens to flags nobody raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, INT8
from npusim.base.errors import CapacityError, ProgramError
from npusim.base.records import replace
from npusim.kernels.matmul.linear import LinearBackpropInput
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Cost, Move
from npusim.machine.isa.operands import GmRegion, Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Alike, Kernel, Plan, Tasks
from npusim.machine.program.language import Language
from npusim.machine.program.program import Program
from npusim.machine.program.recost import recosted

pytestmark = pytest.mark.compiled

B2 = load_device("ascend910b2")


def linear(base_n: int = 48, inputs: int = 512) -> LinearBackpropInput:
    """Rows of a task's weights begin at multiples of 2 ``base_n`` bytes."""
    return LinearBackpropInput(
        Tiling(base_m=32, base_n=base_n, base_k=64),
        Tensor("dy", (32, 1000), FP16),
        Tensor("w", (1000, inputs), FP16),
        Tensor("dx", (32, inputs), FP16, "out"),
    )


@dataclass(frozen=True)
class Looped(Kernel):
    """A core loads 16 rows of 96 B again and again, each time 96 B further."""

    x: Tensor

    name: ClassVar[str] = "looped"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        l1 = k.buffer("L1", (16 * 48,), FP16, slots=2)

        def emit(task: Alike) -> None:
            for _ in k.loop(8, x=96):
                k.nd2nz(l1.next(), self.x.at(0, 96, base="x", rows=16, pitch=1024), FP16)

        return Plan(Tasks(np.arange(1), Alike, {}, {"x": np.array([0])}), emit)


def unaligned() -> Matmul:
    """Rows of a result that begin at multiples of 32 bytes."""
    return Matmul(
        Tiling(base_m=32, base_n=16, base_k=32),
        Tensor("a", (64, 64), FP16),
        Tensor("b", (64, 1024), FP16),
        Tensor("c", (64, 1024), FP16, "out"),
    )


def at_addresses(program: Program) -> list[tuple[list[Cost], list[Cost]]]:
    """By unit the costs that it has, and those of its instructions at their true addresses."""
    found, names = [], program.base_names
    for core in program.cores:
        for number, row in zip(core.variants.tolist(), core.bases.tolist(), strict=True):
            template, own = program.templates[program.variants[number].template], []
            bases = dict(zip(names, row, strict=True))
            for instruction in template.instructions:
                there = instruction
                for end in ("src", "dst") if isinstance(there, Move) else ():
                    region = getattr(there, end, None)
                    if isinstance(region, GmRegion):
                        first = region.offset + bases.get(region.base, 0)
                        there = replace(there, **{end: replace(region, offset=first)})
                own.append(there.cost(program.device))
            found.append((list(template.costs), own))
    return found


@pytest.mark.parametrize(
    ("kernel", "device"),
    [
        (linear(), B2),
        (Looped(Tensor("x", (16, 512), FP16)), B2),
        (unaligned(), load_device("ascend950pr")),
    ],
)
def test_every_unit_costs_what_it_does_where_it_is(kernel: Kernel, device: Device) -> None:
    program = build(kernel, device, (0, 1, 2))
    units = at_addresses(program)
    for costs, own in units:
        assert costs == own
    assert len({tuple(costs) for costs, _ in units}) > len({len(costs) for costs, _ in units})


def test_bases_at_blocks_need_no_templates_of_their_own() -> None:
    program = build(linear(base_n=256, inputs=1024), B2, (0, 1, 2))
    assert program.structure is not None
    assert len(program.templates) == sum(len(set(units.tolist())) for units in program.tasks)


def test_rows_of_a_task_that_cross_a_block_come_in_more_pieces() -> None:
    """96 B from byte 480 of a block of 512 are two pieces, each at the cost of one."""
    path = B2.path("GM", "L1", "nd2nz")
    assert [path.pieces(1, 96, first) for first in (0, 96, 384, 480)] == [1, 1, 1, 2]
    nd2nz = {
        cost.cycles
        for template in build(linear(), B2, (0, 1, 2)).templates
        for instruction, cost in zip(template.instructions, template.costs, strict=True)
        if instruction.op == "nd2nz" and "w" in str(instruction) and "96B x256" in str(instruction)
    }
    assert nd2nz == {path.startup_cycles + -(-256 * n * 34 // 10) for n in (1, 2)}


@pytest.mark.parametrize("kernel", [linear(), Looped(Tensor("x", (16, 512), FP16))])
def test_a_variant_of_the_device_is_costed_anew_at_the_same_addresses(kernel: Kernel) -> None:
    program = build(kernel, B2, (0, 1))
    slow = load_device("ascend910b2", {"paths.GM->L1.nd2nz.row": "9cycle"})
    assert recosted(program, slow) is None  # other bases may be alike there: it is built anew
    for costs, own in at_addresses(build(kernel, slow, (0, 1))):
        assert costs == own


def test_engines_agree_on_costs_by_address() -> None:
    specs = [npusim.spec(one.shape, "fp16") for one in linear().tensors[:2]]
    fast, readable = (
        npusim.simulate(linear(), "ascend910b2", *specs, engine=engine).cycles
        for engine in ("fast", "simpy")
    )
    aligned = npusim.simulate(linear(base_n=64), "ascend910b2", *specs)
    assert fast == readable > 1.05 * aligned.cycles  # both wait for main memory most of the time


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
    flags = [c.cycles for t in again.templates for c, i in zip(t.costs, t.facts, strict=True)
             if i.op.startswith("core_")]  # fmt: skip
    assert flags == [500, 500]
