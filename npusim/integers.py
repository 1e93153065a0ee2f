"""Integer arithmetic that every floor needs."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

Number = TypeVar("Number", int, IntArray)


def ceil_div(a: Number, b: int) -> Number:
    """``a / b`` rounded up, of a number or of every number in an array."""
    return -(-a // b)


def round_down(a: Number, multiple: int) -> Number:
    """The largest multiple that is not above ``a``."""
    return a // multiple * multiple


def round_up(a: Number, multiple: int) -> Number:
    """The smallest multiple that is not below ``a``."""
    return -(-a // multiple) * multiple
