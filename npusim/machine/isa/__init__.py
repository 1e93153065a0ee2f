"""The instruction set: one literal table, one class per instruction."""

from __future__ import annotations

from npusim.machine.isa import cube, dma, dsp, sync, vector, vector_math
from npusim.machine.isa.base import Instruction, spelled

#: DSL name -> instruction. ``fixpipe`` is the DSL's word for the device's own drain of L0C.
ISA: dict[str, type[Instruction]] = {
    spelled(one.__name__): one
    for one in (
        *(dma.DataMove, dma.Nd2nz, dma.Load2d, dma.Load3d, dma.Fill),
        *(cube.Mmad, cube.Drain),
        *(vector.VecBinary, vector.VecScalar, vector.VecCast, vector.VecReduce),
        *(vector.VecDup, vector.VecTranspose),
        *(vector_math.VecUnary, vector_math.VecCompare, vector_math.VecSelect),
        *(dsp.DspGemm, dsp.DspCast),
        *(sync.SetFlag, sync.WaitFlag, sync.PipeBarrier),
        *(sync.CoreBarrier, sync.CoreSetFlag, sync.CoreWaitFlag),
    )
}
