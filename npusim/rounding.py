"""How values change when they leave fp32: the chip's rounding, one function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType


def round_to(
    values: npt.NDArray[np.generic], dtype: DType, *, saturate: bool = True
) -> npt.NDArray[np.generic]:
    """``values`` as ``dtype``, rounded to nearest even.

    With ``saturate`` (results leaving L0C, and every conversion on 910 and 310P) overflow of a
    16-bit float gives the largest finite value and NaN stays NaN; without it, infinity.
    Integers always saturate, and NaN becomes 0.
    """
    if values.dtype == dtype.numpy:
        return values
    if dtype.kind == "int":
        limits = np.iinfo(dtype.numpy)
        whole = np.nan_to_num(np.rint(values.astype(np.float64)), nan=0.0)
        return whole.clip(limits.min, limits.max).astype(dtype.numpy)
    with np.errstate(over="ignore"):
        out = values.astype(dtype.numpy)
    if saturate and dtype.kind == "float" and dtype.bytes == 2:
        overflow = np.isinf(out.astype(np.float32)) & np.isfinite(values.astype(np.float64))
        if overflow.any():
            top = np.float32(65504.0) if dtype.name == "fp16" else np.float32(3.3895314e38)
            clipped = np.where(values.astype(np.float32) > 0, top, -top).astype(dtype.numpy)
            out = np.where(overflow, clipped, out)
    return out


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
