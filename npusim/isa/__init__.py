"""The instruction set: one literal table, one class per instruction."""

from __future__ import annotations

from npusim.isa.base import Instruction
from npusim.isa.cube import Drain, Mmad
from npusim.isa.dma import DataMove, Fill, Load2d, Load3d, Nd2nz
from npusim.isa.dsp import DspCast, DspGemm
from npusim.isa.sync import (
    CoreBarrier,
    CoreSetFlag,
    CoreWaitFlag,
    PipeBarrier,
    SetFlag,
    WaitFlag,
)
from npusim.isa.vector import VecBinary, VecCast, VecDup, VecReduce, VecScalar, VecTranspose

__all__ = [
    "ISA",
    "CoreBarrier",
    "CoreSetFlag",
    "CoreWaitFlag",
    "DataMove",
    "Drain",
    "DspCast",
    "DspGemm",
    "Fill",
    "Instruction",
    "Load2d",
    "Load3d",
    "Mmad",
    "Nd2nz",
    "PipeBarrier",
    "SetFlag",
    "VecBinary",
    "VecCast",
    "VecDup",
    "VecReduce",
    "VecScalar",
    "VecTranspose",
    "WaitFlag",
]

#: DSL name -> instruction. ``fixpipe`` is the DSL's word for the device's own drain of L0C.
ISA: dict[str, type[Instruction]] = {
    # moves
    "data_move": DataMove,
    "nd2nz": Nd2nz,
    "load2d": Load2d,
    "load3d": Load3d,
    "fill": Fill,
    # cube
    "mmad": Mmad,
    "drain": Drain,
    # vector
    "vec_binary": VecBinary,
    "vec_scalar": VecScalar,
    "vec_cast": VecCast,
    "vec_reduce": VecReduce,
    "vec_dup": VecDup,
    "vec_transpose": VecTranspose,
    # dsp
    "dsp_gemm": DspGemm,
    "dsp_cast": DspCast,
    # order
    "set_flag": SetFlag,
    "wait_flag": WaitFlag,
    "pipe_barrier": PipeBarrier,
    "core_barrier": CoreBarrier,
    "core_set_flag": CoreSetFlag,
    "core_wait_flag": CoreWaitFlag,
}
