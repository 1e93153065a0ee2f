"""The kernel language: buffers with slots, and one method per instruction.

Destinations come first, then sources, then extents in elements, then the type. An operand is a
region, ``at(...)`` of a slot or of a tensor, in bytes; or a slot, which stands for as many of its
bytes as the instruction needs, from the first on (all of them where nothing says how many).

Every method checks its operands and that the device can do it, and remembers the kernel line that
issued it. Waits are not written by the author: lowering derives them from the slots.
"""

from __future__ import annotations

import numpy as np

from npusim.base.dtypes import FP32, DType
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div
from npusim.machine.isa.base import Await, Signal
from npusim.machine.isa.col2img import Col2img
from npusim.machine.isa.cube import Mmad
from npusim.machine.isa.dma import DataMove, Fill, Load2d, Load3d, Nd2nz, Window
from npusim.machine.isa.dsp import DspCast, DspGemm
from npusim.machine.isa.operands import (
    FRACTAL_BYTES,
    Place,
    Region,
    Slot,
    SlotRegion,
    private,
    region_of,
    require_operands,
)
from npusim.machine.isa.sync import (
    CoreBarrier,
    CoreSetFlag,
    CoreWaitFlag,
    PipeBarrier,
    SetFlag,
    WaitFlag,
)
from npusim.machine.isa.vector import VecBinary, VecCast, VecDup, VecReduce, VecScalar, VecTranspose
from npusim.machine.isa.vector_math import VecCompare, VecSelect, VecUnary, mask_bytes
from npusim.machine.program.fixpipe import Fixpipe
from npusim.machine.program.units import BufferHandle

__all__ = ["BufferHandle", "Language"]


class Language(Fixpipe):
    """Collects the instructions of one task at a time for one kind of core."""

    # -- moves -----------------------------------------------------------------------------

    def data_move(
        self, dst: Place, src: Place, dtype: DType, *, atomic: bool = False, variant: str = ""
    ) -> None:
        """Copy bytes between GM, L1 and UB; ``atomic`` adds into GM in ``dtype``.

        ``variant`` names a form of the path with costs of its own.
        """
        target, source = _alike(dst, src)
        path = self._path(source.memory, target.memory, variant)
        self._issue(DataMove(target, source, path, dtype, atomic))

    def nd2nz(self, dst: Place, src: Place, dtype: DType) -> None:
        """Load a row-major matrix, one region row per matrix row, as NZ."""
        require_operands(dst)
        source = region_of(src)
        columns, rows = ceil_div(source.row_bytes, 32), ceil_div(source.rows, 16)
        target = private(dst, columns * rows * FRACTAL_BYTES)
        self._issue(Nd2nz(target, source, self._path(src.memory, dst.memory, "nd2nz"), dtype))

    def load2d(self, dst: Place, src: Place, dtype: DType, *, transpose: bool = False) -> None:
        """Copy 1 to 255 fractals from L1 to L0, as they lie or each transposed.

        ``src`` is a row of 512 B per fractal, as ``slot.fractals(first, count, stride=...)`` says.
        """
        source = self._from_l1("load2d", src)
        target = private(dst, source.size)
        path = self._path(source.memory, target.memory, "transpose" if transpose else "")
        self._issue(Load2d(target, source, path, dtype, transpose))

    def load3d(
        self,
        dst: Place,
        src: Place,
        window: Window,
        dtype: DType,
        *,
        m: tuple[int, int],
        k: tuple[int, int],
        transpose: bool = False,
        padding: float = 0.0,
    ) -> None:
        """img2col from L1: positions ``m`` = (start, extent) by columns ``k`` of ``window`` to L0.

        ``src`` is whole planes [c1][h][w][C0] from the first column's on; around them lies
        ``padding``. Some chips also cut into UB, as into L0A.
        """
        require_operands(dst)
        variant = "load3d_transpose" if transpose else "load3d"
        size, planes = Load3d.sizes(dst.memory, window, m, k, dtype, transpose=transpose)
        source = self._from_l1("load3d", src, planes)
        path = self._path(source.memory, dst.memory, variant)
        target = private(dst, size)
        self._issue(Load3d(target, source, path, dtype, window, *m, *k, transpose, padding))

    def fill(self, dst: Place, value: float, dtype: DType) -> None:
        """Write an immediate into L1."""
        self._issue(Fill(private(dst), value, self._path("IMM", dst.memory), dtype))

    def _from_l1(self, name: str, src: Place, size: int | None = None) -> SlotRegion:
        require_operands(src)
        if src.memory == "GM":
            raise ProgramError(
                f"{name}: {src} lies in GM, {name} reads L1; bring it there with data_move or "
                "nd2nz first"
            )
        return private(src, size)

    # -- cube ------------------------------------------------------------------------------

    def mmad(
        self,
        c: Place,
        a: Place,
        b: Place,
        m: int,
        k: int,
        n: int,
        dtype: DType,
        *,
        init: bool,
        hf32: bool = False,
        scales: tuple[SlotRegion, ...] = (),
        bias: SlotRegion | None = None,
    ) -> None:
        """C = A @ B, or C += A @ B without ``init``; extents in elements, 1 to 4095.

        ``hf32`` rounds fp32 operands to the device's HF32 on their way into the cube; ``scales``
        are those of block-scaled operands. With ``bias``, ``n`` numbers in BT, C = A @ B + bias.
        """
        size_c, size_a, size_b = Mmad.sizes(m, k, n, dtype)
        result = private(c, size_c)
        a_region = private(a, size_a)
        b_region = private(b, size_b)
        bits = self._device.cube.hf32_bits if hf32 and self._device.cube else 0
        self._issue(Mmad(result, a_region, b_region, m, k, n, dtype, init, bits, scales, bias))

    # -- vector ----------------------------------------------------------------------------

    def vec_binary(
        self,
        operation: str,
        dst: Place,
        a: Place,
        b: Place,
        dtype: DType,
        *,
        saturate: bool = False,
    ) -> None:
        """dst = a op b; operation is add, sub, mul, div, max or min; rows of pitch 0 repeat.

        Of integers it may also be and or or.
        """
        target, first, second = _in_buffers(dst, a, b)
        self._issue(VecBinary(operation, target, first, second, dtype, saturate))

    def vec_scalar(self, operation: str, dst: Place, a: Place, scalar: float, dtype: DType) -> None:
        """dst = a op scalar; operation is adds, muls, maxs or mins."""
        target, source = _in_buffers(dst, a)
        self._issue(VecScalar(operation, target, source, scalar, dtype))

    def vec_unary(self, operation: str, dst: Place, a: Place, dtype: DType) -> None:
        """dst = op(a), in fp16 or fp32; operation is abs, exp, ln, rec, relu, rsqrt or sqrt.

        Of integers it may also be not.
        """
        target, source = _in_buffers(dst, a)
        self._issue(VecUnary(operation, target, source, dtype))

    def vec_compare(
        self, operation: str, dst: Place, a: Place, b: Place | float, dtype: DType
    ) -> None:
        """dst = a mask, a bit for each element: a op b; operation is lt, le, gt, ge, eq or ne.

        ``b`` may be a number. ``dst`` has a byte for 8 elements.
        """
        size = next((operand.size for operand in (a, b) if isinstance(operand, Region)), None)
        first = private(a, size)
        second = _or_number(b, size)
        target = private(dst, mask_bytes(first.size // dtype.bytes))
        self._issue(VecCompare(operation, target, first, second, dtype))

    def vec_select(self, dst: Place, mask: Place, a: Place, b: Place | float, dtype: DType) -> None:
        """dst = a where the mask has a 1, elsewhere b, which may be a number."""
        size = next((operand.size for operand in (dst, a, b) if isinstance(operand, Region)), None)
        target, first = private(dst, size), private(a, size)
        second = _or_number(b, size)
        bits = private(mask, mask_bytes(target.size // dtype.bytes))
        self._issue(VecSelect(target, bits, first, second, dtype))

    def vec_cast(
        self, dst: Place, src: Place, dtype: DType, to: DType, *, saturate: bool = False
    ) -> None:
        """dst = src converted from ``dtype`` to ``to``."""
        self._issue(VecCast(*_converted(dst, src, dtype, to), dtype, to, saturate))

    def vec_reduce(
        self, operation: str, dst: Place, src: Place, rows: int, columns: int, dtype: DType
    ) -> None:
        """dst[r] = sum ("add"), "max" or "min" of row r of a matrix."""
        source = private(src, rows * columns * dtype.bytes)
        target = private(dst, rows * dtype.bytes)
        self._issue(VecReduce(operation, target, source, rows, columns, dtype))

    def vec_dup(
        self, dst: Place, value: float, dtype: DType = FP32, *, masked: bool = False
    ) -> None:
        """Fill with a value; with ``masked`` rows may begin inside a block of 32 B."""
        self._issue(VecDup(private(dst), value, dtype, masked))

    def col2img(self, dst: Place, src: Place, window: Window, tap: int, dtype: DType) -> None:
        """Add a pixel for each position of ``window`` to the pixel of an image that a tap reads.

        ``dst`` is the image, ``window.h`` x ``window.w`` pixels of 16 elements without padding;
        taps count row by row.
        """
        image, pixels = Col2img.sizes(window, dtype)
        self._issue(Col2img(private(dst, image), private(src, pixels), dtype, window, tap))

    def vec_transpose(
        self, dst: Place, src: Place, rows: int, columns: int, dtype: DType, *, count: int = 1
    ) -> None:
        """dst = each of ``count`` matrices of ``rows`` x ``columns`` in src, transposed."""
        size = count * rows * columns * dtype.bytes
        target, source = private(dst, size), private(src, size)
        self._issue(VecTranspose(target, source, rows, columns, dtype, count))

    # -- DSP -------------------------------------------------------------------------------

    def dsp_gemm(
        self,
        acc: Place,
        a: Place,
        b: Place,
        m: int,
        k: int,
        n: int,
        dtype: DType,
        *,
        init: bool,
        transpose_a: bool = False,
    ) -> None:
        """acc = A @ B, or acc += A @ B without ``init``; extents in elements."""
        size_c, size_a, size_b = DspGemm.sizes(m, k, n, dtype)
        result = private(acc, size_c)
        a_region = private(a, size_a)
        b_region = private(b, size_b)
        self._issue(DspGemm(result, a_region, b_region, m, k, n, dtype, init, transpose_a))

    def dsp_cast(self, dst: Place, src: Place, dtype: DType, to: DType) -> None:
        """dst = src converted from ``dtype`` to ``to``."""
        self._issue(DspCast(*_converted(dst, src, dtype, to), dtype, to))

    # -- order -----------------------------------------------------------------------------

    def set_flag(self, src: str, dst: str, event: int) -> None:
        """Raise a flag from pipe ``src`` to pipe ``dst`` (0 <= event < the device's ids)."""
        self._issue(SetFlag(src, dst, event))

    def wait_flag(self, src: str, dst: str, event: int) -> None:
        """Hold pipe ``dst`` until the flag from ``src`` is up."""
        self._issue(WaitFlag(dst, src, event))

    def pipe_barrier(self, pipe: str = "ALL") -> None:
        """Order one pipe after itself, or drain every pipe ("ALL")."""
        self._issue(PipeBarrier("S" if pipe == "ALL" else pipe))

    def core_barrier(self) -> None:
        """Meet all other cores of the kernel."""
        self._issue(CoreBarrier("S"))

    def core_set_flag(self, pipe: str, event: int, scope: str = "all") -> None:
        """Set a flag on the other cores of the "group" or on "all" others.

        One for all counts each time. One for the group counts when every other core of it that
        sets it has done so once more.
        """
        self._issue(CoreSetFlag(pipe, Signal(event, scope)))

    def core_wait_flag(self, pipe: str, event: int, count: int = 1) -> None:
        """Hold a pipe until ``count`` more counts of the flag arrived."""
        self._issue(CoreWaitFlag(pipe, Await(event, count)))


def _alike(*places: Place) -> list[Region]:
    """Operands of one size: a slot has as many bytes as the first region, or all of its own."""
    require_operands(*places)
    size = next((place.size for place in places if not isinstance(place, Slot)), None)
    return [region_of(place, size) for place in places]


def _in_buffers(*places: Place) -> list[SlotRegion]:
    """The same for operands that cannot lie in GM."""
    return [private(region) for region in _alike(*places)]


def _or_number(place: Place | float, size: int | None) -> SlotRegion | float:
    """An operand in a buffer, of so many bytes if it is a slot; a number as it is."""
    if isinstance(place, int | float | np.number):
        return float(place)
    return private(place, size)


def _converted(dst: Place, src: Place, dtype: DType, to: DType) -> tuple[SlotRegion, SlotRegion]:
    """Both operands of a conversion; a slot has as many elements as the other side."""
    if isinstance(src, Slot) and not isinstance(dst, Slot):
        src = private(src, dst.size // to.bytes * dtype.bytes)
    source = private(src)
    return private(dst, source.size // dtype.bytes * to.bytes), source
