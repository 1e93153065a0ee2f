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


def even_parts(total: int, most: int, few: int = 32) -> list[int]:
    """The largest parts of ``total`` cut evenly into 1, 2, 3, ... pieces, none above ``most``.

    Descending; a size between two of them needs as many pieces as the smaller one. Of more than
    ``few`` about so many stay, at equal ratios.
    """
    sizes, pieces = [], ceil_div(total, most)
    while total and pieces <= total:
        sizes.append(ceil_div(total, pieces))
        pieces = ceil_div(total, sizes[-1] - 1) if sizes[-1] > 1 else total + 1
    if len(sizes) <= few:
        return sizes
    targets = [sizes[0] ** (1 - i / (few - 1)) for i in range(few)]
    return list(dict.fromkeys(next(n for n in sizes if n <= target + 0.5) for target in targets))


def digits(text: str) -> int | None:
    """The number that up to 18 decimal digits write, without a sign; None for any other text.

    What a file counts fits in 64 bits, and Python itself refuses to read thousands of digits.
    """
    plain = text.isascii() and text.isdigit() and len(text) <= 18
    return int(text) if plain else None
