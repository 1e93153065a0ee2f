"""Change of values that leave fp32: the chip's rounding, one function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import DType


def round_to(
    values: npt.NDArray[np.generic],
    dtype: DType,
    *,
    saturate: bool = True,
    zero_nan: bool = False,
) -> npt.NDArray[np.generic]:
    """``values`` as ``dtype``, rounded to nearest even.

    With ``saturate`` (results leaving L0C, and every conversion on 910 and 310P) overflow of a
    16-bit float gives the largest finite value; without it, infinity. With ``zero_nan`` (910 and
    310P) a NaN that becomes a 16-bit float is 0, as on the chip, but one that comes from memory
    which nobody wrote stays NaN (``is_poison``). Integers always saturate, and NaN becomes 0.
    """
    if values.dtype == dtype.numpy:
        return values
    if dtype.kind == "int":
        limits = np.iinfo(dtype.numpy)
        integers = np.nan_to_num(np.rint(values.astype(np.float64)), nan=0.0)
        return integers.clip(limits.min, limits.max).astype(dtype.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        out = values.astype(dtype.numpy)
    if dtype.bytes != 2:
        return out
    if saturate:
        overflow = np.isinf(out.astype(np.float32)) & np.isfinite(values.astype(np.float64))
        if overflow.any():
            top = np.float32(65504.0) if dtype.name == "fp16" else np.float32(3.3895314e38)
            clipped = np.where(values.astype(np.float32) > 0, top, -top).astype(dtype.numpy)
            out = np.where(overflow, clipped, out)
    if zero_nan:
        nan = np.isnan(values.astype(np.float32, copy=False))
        if nan.any():
            out = np.where(nan & ~is_poison(values), dtype.numpy.type(0), out)
    return out


#: The bits of a poisoned fp32 that bf16 has too: the sign, all of the exponent and the mantissa.
_POISON_BITS = np.uint32(0xFFFF0000)


def is_poison(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Mask of floats that are the NaN of memory that nobody wrote, or were computed from it.

    Such memory has all bits set, which is NaN in every float type. Sums and products of a NaN carry
    its bits on, and conversions keep the upper ones, so the mark goes wherever the data go. The
    NaN that arithmetic makes (inf - inf, 0 * inf) and ``np.nan`` have but the first bit of the
    mantissa. Where both kinds of NaN meet in one operation the result is either.
    """
    bits = np.ascontiguousarray(values.astype(np.float32, copy=False)).view(np.uint32)
    marked: npt.NDArray[np.bool_] = (bits & _POISON_BITS) == _POISON_BITS
    return marked.reshape(values.shape)


def round_hf32(values: npt.NDArray[np.generic], mantissa_bits: int) -> npt.NDArray[np.generic]:
    """fp32 values as HF32: the mantissa rounded to ``mantissa_bits`` bits, ties to even.

    The 910B keeps 11 bits, the 950 keeps 10. NaN and infinity pass; overflow gives infinity.
    """
    dropped = 23 - mantissa_bits
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    half = (1 << (dropped - 1)) - 1
    rounded = (bits + half + ((bits >> dropped) & 1)) & (0xFFFFFFFF & ~((1 << dropped) - 1))
    finite = (bits & 0x7F800000) != 0x7F800000
    return np.where(finite, rounded, bits).astype(np.uint32).view(np.float32)
