"""What compiled code is told of its arguments."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import pytest

from npusim.machine.timing.fast.library import flatten


class Pair(NamedTuple):
    """An argument of two arrays."""

    one: np.ndarray[Any, Any]
    other: np.ndarray[Any, Any]


def test_an_array_that_cannot_be_written_has_an_address_too() -> None:
    """As a number has that stands for every candidate where there is one candidate."""
    pair = Pair(*map(np.ascontiguousarray, np.broadcast_arrays(np.array([2.5]), 7.5)))
    pair.other.flags.writeable = False
    words: list[int] = []
    flatten((pair, 3, np.empty(0)), words)
    at = ctypes.POINTER(ctypes.c_double)
    assert [ctypes.cast(words[i], at)[0] for i in (0, 2)] == [2.5, 7.5]
    assert (words[1], words[3], words[4:]) == (1, 1, [3, 0, 0])


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(TypeError, match="contiguous arrays only"):
        flatten(np.zeros((4, 4))[:, ::2], [])
