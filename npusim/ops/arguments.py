"""Arguments of operators brought to one form, before the limits judge them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from npusim.call.spec import Array, Spec
from npusim.errors import ArgumentError
from npusim.limits.facts import tensor_facts, type_name
from npusim.yamltree import suggest


def operand(value: Any) -> Array | Spec:
    """An operand as it is computed with: a ``Spec``, or anything NumPy makes an array of."""
    return value if isinstance(value, Spec) else np.asarray(value)


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
    """One value, also as an array or list of one; ``ArgumentError`` for None."""
    values = frozen(value)
    if isinstance(values, tuple) and len(values) == 1:
        (values,) = values
    if values is None:
        raise ArgumentError(f"{name} is None; it takes an integer")
    return values


def per_dim(value: Any, dims: int) -> Any:
    """One entry per spatial dimension, where a single one counts for all; else as it is."""
    values = frozen(value)
    if isinstance(values, int):
        values = (values,)
    return values * dims if isinstance(values, tuple) and len(values) == 1 else values


def parameters(
    para_dict: Mapping[str, Any], required: Collection[str], optional: Mapping[str, Any]
) -> dict[str, Any]:
    """A ``para_dict`` with its defaults, as values that later changes by the caller do not reach.

    Raises ``ArgumentError`` where one of ``required`` is missing or a key is unknown.
    """
    missing = [key for key in required if key not in para_dict]
    if missing:
        raise ArgumentError(f"para_dict lacks {missing}; it needs {', '.join(required)}")
    for key in para_dict:
        if key not in required and key not in optional:
            hint = suggest(str(key), [*required, *optional])
            raise ArgumentError(f"para_dict has the unknown key {key!r}{hint}")
    return {key: frozen(value) for key, value in {**optional, **para_dict}.items()}


def para_facts(
    operands: Mapping[str, Any],
    lists: Mapping[str, Any],
    para_dict: Mapping[str, Any],
    required: Collection[str],
    optional: Mapping[str, Any],
) -> dict[str, Any]:
    """What the limits of a function of the tensor compiler are checked against.

    ``operands`` are anything with ``shape`` and ``dtype``, ``lists`` the sizes beside
    ``para_dict``; of that, optional parts that are None are as if left out.
    """
    told = parameters(para_dict, required, optional)
    del told["kernel_name"]  # which no limit speaks of
    para = {n: optional.get(n) if value is None else value for n, value in told.items()}
    return {
        **tensor_facts(**operands),
        **{name: frozen(value) for name, value in lists.items()},
        **{name: value for name, value in para.items() if name in required or value is not None},
        "res_dtype": type_name(para["res_dtype"]),
    }
