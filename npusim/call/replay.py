"""A call timed again on another device, and the figures its time depends on."""

from __future__ import annotations

from npusim.device.spec import Device
from npusim.isa.operands import Tensor
from npusim.program.build import build
from npusim.program.kernel import Kernel
from npusim.program.program import Program
from npusim.timing.run import new_l2, time_program

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
            run = time_program(build(step, device, groups), l2, timeline=False)
            cycles += run.cycles + run.launch_cycles
    return device.time_us(cycles)


def figures_behind(program: Program) -> list[str]:
    """Figures that the device states and that the time of ``program`` depends on."""
    device = program.device
    memory = "private_memory" if device.is_private else "main_memory"
    used = {"clock", "launch", "l2", memory, *(f"pipes.{pipe}" for pipe in program.pipes)}
    used |= {f"links.{link.name}" for link in device.links.values() if link.traffic}
    for template in program.templates:
        for instruction in template.instructions:
            used.update(instruction.figures())
    # Capacities and precision do not cost time by themselves.
    idle = {"cube.hf32_bits", *(f"{part}.size" for part in used)}
    return sorted(
        name
        for name in device.provenance
        if name not in idle and (name in used or name.rpartition(".")[0] in used)
    )
