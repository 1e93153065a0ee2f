"""Arguments of operators brought to one form, before the limits judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.call.spec import Array, Spec, native


def operand(value: Any) -> Array | Spec:
    """An operand as it is computed with: a ``Spec``, or anything NumPy makes an array of.

    Arrays may have either byte order.
    """
    return value if isinstance(value, Spec) else native(np.asarray(value))


def frozen(value: Any) -> Any:
    """A list or array as a tuple, a dictionary as a copy, NumPy's numbers as Python's.

    Other values are as they are.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (np.ndarray, np.integer, np.bool_)):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(frozen, value))
    return value


def flag(name: str, value: Any) -> bool:
    """A yes or no, also as 1 or 0; ``ArgumentError`` for anything else."""
    if isinstance(value, (bool, np.bool_)) or (
        isinstance(value, (int, np.integer)) and value in (0, 1)
    ):
        return bool(value)
    raise ArgumentError(f"{name}: {value!r} is neither True nor False")


def scalar(name: str, value: Any) -> Any:
    """One value, also as an array or list of one; ``ArgumentError`` for None and several."""
    values = frozen(value)
    if isinstance(values, tuple) and len(values) == 1:
        (values,) = values
    if values is None or isinstance(values, tuple):
        raise ArgumentError(f"{name} is {values}; it takes an integer")
    return values


def per_dim(value: Any, dims: int) -> Any:
    """One entry per spatial dimension, where a single one counts for all; else as it is."""
    values = frozen(value)
    if isinstance(values, int):
        values = (values,)
    return values * dims if isinstance(values, tuple) and len(values) == 1 else values
