"""Checks every operator makes on its arguments, with errors that say what would be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npusim.call.spec import Array, Spec
from npusim.dtypes import DType, dtype
from npusim.errors import ArgumentError


def operand(name: str, value: Any, rank: int, axes: str) -> tuple[Array | Spec, DType]:
    """An operand as array or ``Spec`` with its dtype; ``axes`` is its expected shape in words."""
    array = value if isinstance(value, Spec) else np.asarray(value)
    if len(array.shape) != rank:
        raise ArgumentError(
            f"{name} has shape {tuple(array.shape)}; it must have {rank} axes {axes}"
        )
    return array, dtype(array.dtype)


def integers(name: str, value: Any, count: int, least: int, axes: str) -> tuple[int, ...]:
    """``count`` integers of at least ``least``; ``axes`` says what they are, for the error."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    good = all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values)
    if len(values) != count or not good or any(v < least for v in values):
        raise ArgumentError(f"{name} is {value!r}; it must be {count} integers >= {least}: {axes}")
    return tuple(int(v) for v in values)
