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
    """
    if values.dtype == dtype.numpy:
        return values
    with np.errstate(over="ignore"):
        out = values.astype(dtype.numpy)
    if saturate and dtype.kind == "float" and dtype.bytes == 2:
        overflow = np.isinf(out.astype(np.float32)) & np.isfinite(values.astype(np.float64))
        if overflow.any():
            top = np.float32(65504.0) if dtype.name == "fp16" else np.float32(3.3895314e38)
            clipped = np.where(values.astype(np.float32) > 0, top, -top).astype(dtype.numpy)
            out = np.where(overflow, clipped, out)
    return out
