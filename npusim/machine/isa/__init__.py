"""The instruction set: one literal table, one class per instruction."""

from __future__ import annotations

from npusim.machine.isa import col2img, cube, dma, dsp, sync, vector, vector_math
from npusim.machine.isa.base import Instruction

#: Instructions by their name in the kernel language. ``fixpipe`` is its word for the device's own
#: drain of L0C.
ISA: dict[str, type[Instruction]] = {
    "data_move": dma.DataMove,
    "nd2nz": dma.Nd2nz,
    "load2d": dma.Load2d,
    "load3d": dma.Load3d,
    "fill": dma.Fill,
    "mmad": cube.Mmad,
    "drain": cube.Drain,
    "vec_binary": vector.VecBinary,
    "vec_scalar": vector.VecScalar,
    "vec_cast": vector.VecCast,
    "vec_reduce": vector.VecReduce,
    "vec_dup": vector.VecDup,
    "vec_transpose": vector.VecTranspose,
    "vec_unary": vector_math.VecUnary,
    "vec_compare": vector_math.VecCompare,
    "vec_select": vector_math.VecSelect,
    "col2img": col2img.Col2img,
    "dsp_gemm": dsp.DspGemm,
    "dsp_cast": dsp.DspCast,
    "set_flag": sync.SetFlag,
    "wait_flag": sync.WaitFlag,
    "pipe_barrier": sync.PipeBarrier,
    "core_barrier": sync.CoreBarrier,
    "core_set_flag": sync.CoreSetFlag,
    "core_wait_flag": sync.CoreWaitFlag,
}
