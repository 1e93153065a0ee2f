"""How much the matrix units had time for: they work in whole blocks, whatever the extents."""

from __future__ import annotations

from math import prod

from npusim.base.integers import ceil_div
from npusim.device.parts import CubeRate
from npusim.device.spec import Device
from npusim.isa.base import Instruction
from npusim.isa.cube import Mmad
from npusim.isa.dsp import DspGemm
from npusim.program.program import Program


def cube_room(program: Program) -> int:
    """Multiply-adds for which the blocks of all ``mmad``s and ``dsp_gemm``s of a program have room.

    Those executed are fewer where an extent is no multiple of a block, those useful fewer still.
    """
    return sum(
        int(count) * sum(_room(one, program.device) for one in template.instructions)
        for count, template in zip(program.unit_counts, program.templates, strict=True)
    )


def _room(instruction: Instruction, device: Device) -> int:
    rate = _rate(instruction, device)
    if rate is None or not isinstance(instruction, Mmad | DspGemm):
        return 0
    extents = instruction.m, instruction.k * instruction.dtype.values, instruction.n
    blocks = zip(extents, (rate.m, rate.k, rate.n), strict=True)
    return prod(ceil_div(extent, block) * block for extent, block in blocks)


def _rate(instruction: Instruction, device: Device) -> CubeRate | None:
    """The block that the instruction's unit multiplies at once."""
    if isinstance(instruction, Mmad) and device.cube is not None:
        return device.cube.rates[instruction.math]
    if isinstance(instruction, DspGemm) and device.gemm is not None:
        return device.gemm.rates[instruction.dtype.name]
    return None
