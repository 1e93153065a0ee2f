"""A call timed again on another device, and the figures its time depends on."""

from __future__ import annotations

from copy import copy

from npusim.device.spec import Device
from npusim.isa import (
    CoreBarrier,
    CoreSetFlag,
    CoreWaitFlag,
    Mmad,
    PipeBarrier,
    SetFlag,
    WaitFlag,
)
from npusim.isa.base import Move
from npusim.isa.operands import Tensor
from npusim.program.build import build
from npusim.program.kernel import Kernel
from npusim.program.program import Program
from npusim.timing.run import new_l2, time_program

#: The part of a device file that prices what a pipe does without a path.
_UNIT_OF = {"M": "cube", "V": "vector", "VPU": "gemm"}
_ORDER = (SetFlag, WaitFlag, PipeBarrier, CoreBarrier, CoreSetFlag, CoreWaitFlag)

#: What takes part in the time of a call: an input that is in L2 already, or a launch.
Step = Tensor | Kernel


def time_us(steps: tuple[Step, ...], groups: tuple[int, ...], engine: str, device: Device) -> float:
    """Microseconds that the steps of a call, tiled as they were, take on another device."""
    l2 = new_l2(device, engine)
    cycles = 0
    for step in steps:
        if isinstance(step, Tensor):
            l2.preload(step.name, step.size_bytes)
        else:
            run = time_program(build(copy(step), device, groups), l2, timeline=False)
            cycles += run.cycles + run.launch_cycles
    return device.time_us(cycles)


def figures_behind(program: Program) -> list[str]:
    """Figures that the device states and that the time of ``program`` depends on."""
    device = program.device
    memory = "private_memory" if device.is_private else "main_memory"
    parts = {"launch", "l2", memory, *(f"pipes.{pipe}" for pipe in program.pipes)}
    used = set()
    for template in program.templates:
        for instruction in template.instructions:
            if isinstance(instruction, Move):
                parts.add(f"paths.{instruction.path.name}")
            elif isinstance(instruction, _ORDER):
                parts.add("sync")
            else:
                unit = _UNIT_OF[instruction.pipe]
                parts |= {unit, f"{unit}.rates", f"{unit}.ops"}
            if isinstance(instruction, Mmad):
                used.add(f"cube.rates.{instruction.math}")
    rates = {f"cube.rates.{math}" for math in (device.cube.rates if device.cube else ())}
    # Capacities and precision do not cost time by themselves.
    idle = {"cube.hf32_bits", *(f"{part}.size" for part in parts), *(rates - used)}
    return sorted(
        name
        for name in device.provenance
        if name not in idle and (name == "clock" or name.rpartition(".")[0] in parts)
    )
