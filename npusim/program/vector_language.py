"""The kernel language for the vector units of NPUs and DSPs: one method per instruction."""

from __future__ import annotations

from npusim.dtypes import FP32, DType
from npusim.errors import ProgramError
from npusim.isa import (
    DspCast,
    DspGemm,
    VecBinary,
    VecCast,
    VecDup,
    VecReduce,
    VecScalar,
    VecTranspose,
)
from npusim.isa.operands import SlotRegion
from npusim.program.recorder import Recorder


class VectorLanguage(Recorder):
    """Element-wise, reducing, converting and filling instructions."""

    def vec_binary(
        self,
        operation: str,
        dst: SlotRegion,
        a: SlotRegion,
        b: SlotRegion,
        dtype: DType,
        *,
        saturate: bool = False,
    ) -> None:
        """dst = a op b; operation is add, sub, mul, max or min; rows of pitch 0 repeat."""
        self._issue(VecBinary(operation, dst, a, b, dtype, saturate))

    def vec_scalar(
        self, operation: str, dst: SlotRegion, a: SlotRegion, scalar: float, dtype: DType
    ) -> None:
        """dst = a op scalar; operation is adds, muls, maxs or mins."""
        self._issue(VecScalar(operation, dst, a, scalar, dtype))

    def vec_cast(
        self, dst: SlotRegion, src: SlotRegion, dtype: DType, to: DType, *, saturate: bool = False
    ) -> None:
        """dst = src converted from ``dtype`` to ``to``."""
        self._issue(VecCast(dst, src, dtype, to, saturate))

    def vec_reduce(
        self,
        operation: str,
        dst: SlotRegion,
        src: SlotRegion,
        rows: int,
        columns: int,
        dtype: DType,
    ) -> None:
        """dst[r] = sum ("add") or "max" of row r."""
        self._issue(VecReduce(operation, dst, src, rows, columns, dtype))

    def vec_dup(self, dst: SlotRegion, value: float, dtype: DType = FP32) -> None:
        """Fill with a value."""
        self._issue(VecDup(dst, value, dtype))

    def vec_transpose(
        self,
        dst: SlotRegion,
        src: SlotRegion,
        rows: int,
        columns: int,
        dtype: DType,
        *,
        count: int = 1,
    ) -> None:
        """dst = each of ``count`` matrices of ``rows`` x ``columns`` in src, transposed."""
        if dtype.bytes not in (2, 4):
            raise ProgramError(f"vec_transpose of {dtype}: only 2- and 4-byte types are transposed")
        size = count * rows * columns * dtype.bytes
        for region in (dst, src):
            if region.memory != "UB" or region.size != size or region.row_bytes % dtype.bytes:
                raise ProgramError(
                    f"vec_transpose: {region} has {region.size} B in {region.memory}; {count} x "
                    f"{rows} x {columns} {dtype} need {size} B of whole elements in UB"
                )
        self._issue(VecTranspose(dst, src, rows, columns, dtype, count))

    def dsp_gemm(
        self,
        acc: SlotRegion,
        a: SlotRegion,
        b: SlotRegion,
        shape: tuple[int, int, int],
        dtype: DType,
        *,
        init: bool,
        transpose_a: bool = False,
    ) -> None:
        """acc = A @ B, or acc += A @ B without ``init``; ``shape`` is (m, k, n) in elements."""
        self._issue(DspGemm(acc, a, b, *shape, dtype, init, transpose_a))

    def dsp_cast(self, dst: SlotRegion, src: SlotRegion, dtype: DType, to: DType) -> None:
        """dst = src converted from ``dtype`` to ``to``."""
        self._issue(DspCast(dst, src, dtype, to))
