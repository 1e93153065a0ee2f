"""What a kernel author needs."""

from npusim.base.dtypes import BF16 as BF16
from npusim.base.dtypes import FP16 as FP16
from npusim.base.dtypes import FP32 as FP32
from npusim.base.dtypes import INT8 as INT8
from npusim.base.dtypes import INT32 as INT32
from npusim.base.dtypes import MX_BLOCK as MX_BLOCK
from npusim.base.dtypes import DType as DType
from npusim.base.errors import ArgumentError as ArgumentError
from npusim.base.errors import CapacityError as CapacityError
from npusim.base.errors import ProgramError as ProgramError
from npusim.base.integers import IntArray as IntArray
from npusim.base.integers import ceil_div as ceil_div
from npusim.base.integers import round_down as round_down
from npusim.base.integers import round_up as round_up
from npusim.machine.device.spec import Device as Device
from npusim.machine.isa.dma import Window as Window
from npusim.machine.isa.operands import FRACTAL_BYTES as FRACTAL_BYTES
from npusim.machine.isa.operands import GmRegion as GmRegion
from npusim.machine.isa.operands import Place as Place
from npusim.machine.isa.operands import Region as Region
from npusim.machine.isa.operands import Slot as Slot
from npusim.machine.isa.operands import SlotRegion as SlotRegion
from npusim.machine.isa.operands import Tensor as Tensor
from npusim.machine.isa.vector import BLOCK_BYTES as BLOCK_BYTES
from npusim.machine.program.fixpipe import Line as Line
from npusim.machine.program.kernel import Alike as Alike
from npusim.machine.program.kernel import Column as Column
from npusim.machine.program.kernel import Kernel as Kernel
from npusim.machine.program.kernel import Least as Least
from npusim.machine.program.kernel import Plan as Plan
from npusim.machine.program.kernel import Tasks as Tasks
from npusim.machine.program.kernel import grid as grid
from npusim.machine.program.kernel import in_pieces as in_pieces
from npusim.machine.program.kernel import in_runs as in_runs
from npusim.machine.program.language import BufferHandle as BufferHandle
from npusim.machine.program.language import Language as Language

__all__: list[str]
