"""Moves cost what their rows do where these lie in global memory, whatever task moves them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.isa.base import Cost, Move
from npusim.isa.operands import GmRegion, Tensor
from npusim.kernels.linear import LinearBackpropInput
from npusim.kernels.matmul import Matmul, Tiling
from npusim.program.build import build
from npusim.program.kernel import Alike, Kernel, Plan, Tasks
from npusim.program.language import Language
from npusim.program.program import Program
from npusim.program.recost import recosted

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
                there = copy(instruction)
                for end in ("src", "dst") if isinstance(there, Move) else ():
                    region = getattr(there, end, None)
                    if isinstance(region, GmRegion):
                        first = region.offset + bases.get(region.base, 0)
                        setattr(there, end, replace(region, offset=first))
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
    assert fast == readable > 1.2 * aligned.cycles
