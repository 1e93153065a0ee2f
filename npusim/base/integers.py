"""Integer arithmetic that every floor needs."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

Number = TypeVar("Number", int, IntArray)


#: Fractional bits of every transfer rate: rates are integers in bytes / 2**16 per cycle.
RATE_BITS = 16


def fixed_rate(bytes_per_cycle: Fraction) -> int:
    """A rate in B/cycle as the fixed-point integer both engines compute with."""
    return max(1, (bytes_per_cycle.numerator << RATE_BITS) // bytes_per_cycle.denominator)


def narrowed(values: npt.NDArray[np.signedinteger[Any]]) -> IntArray:
    """The same numbers in the narrowest of NumPy's signed types that holds them.

    To type checkers they are like any others; who computes with them widens them first.
    """
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return cast(IntArray, values.astype(kind))
    return cast(IntArray, values)


def ceil_div(a: Number, b: int) -> Number:
    """``a / b`` rounded up, of a number or of every number in an array."""
    return -(-a // b)


def round_down(a: Number, multiple: int) -> Number:
    """The largest multiple that is not above ``a``."""
    return a // multiple * multiple


def round_up(a: Number, multiple: int) -> Number:
    """The smallest multiple that is not below ``a``."""
    return -(-a // multiple) * multiple


def even_parts(total: int, most: int, few: int = 32) -> list[int]:
    """The largest parts of ``total`` cut evenly into 1, 2, 3, ... pieces, none above ``most``.

    Descending; a size between two of them needs as many pieces as the smaller one. Of more than
    ``few`` about so many stay, at equal ratios.
    """
    sizes, pieces = [], ceil_div(total, most)
    while total and pieces <= total:
        size = -(-total // pieces)
        sizes.append(size)
        pieces = -(-total // (size - 1)) if size > 1 else total + 1
    if len(sizes) <= few:
        return sizes
    targets = [sizes[0] ** (1 - i / (few - 1)) for i in range(few)]
    rising = sizes[::-1]
    return list(dict.fromkeys(rising[bisect_right(rising, t + 0.5) - 1] for t in targets))


def digits(text: str) -> int | None:
    """The number that up to 18 decimal digits write, without a sign; None for any other text.

    What a file counts fits in 64 bits, and Python itself refuses to read thousands of digits.
    """
    plain = text.isascii() and text.isdigit() and len(text) <= 18
    return int(text) if plain else None
