"""Arguments of operators brought to one form, before the limits judge them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Signature
from typing import Any, TypeVar

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.call.spec import Array, Spec
from npusim.limits.facts import tensor_facts, type_name
from npusim.shapes.convolution import Convolution

T = TypeVar("T")

#: Parts of a ``para_dict`` that no limit speaks of.
_UNLIMITED = ("kernel_name", "tensor_bias")


def declared(
    name: str, module: str, doc: str | None, takes: Signature, run: Callable[[dict[str, Any]], T]
) -> Callable[..., T]:
    """The function of a row: ``run``, given arguments by their names, defaults included."""

    def call(*arguments: Any, **named: Any) -> T:
        try:
            bound = takes.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        bound.apply_defaults()
        return run(bound.arguments)

    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = module, doc
    call.__signature__ = takes  # type: ignore[attr-defined]
    return call


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


@dataclass(frozen=True)
class Form:
    """The arguments of a gradient of the tensor compiler: operands, lists of sizes, a para_dict.

    They have the names that its documentation and its limits have. ``optional`` has the defaults
    of what its ``para_dict`` need not state, None where there is none; ``required`` is what is
    checked as None where it is not stated.
    """

    operands: tuple[str, str]
    lists: tuple[str, ...]
    pads: str
    res_dtype: str
    optional: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def facts(self, *arguments: Any) -> dict[str, Any]:
        """What the limits are checked against: operands, lists and ``para_dict``, in this order.

        Operands are anything with ``shape`` and ``dtype``. Optional parts that are None are as if
        left out. Raises ``ArgumentError`` where a part is missing or unknown.
        """
        first, second, *lists, para_dict = arguments
        para = self._parameters(para_dict)
        return {
            **tensor_facts(**dict(zip(self.operands, (first, second), strict=True))),
            **{name: frozen(value) for name, value in zip(self.lists, lists, strict=True)},
            **dict.fromkeys(self.required),
            **{name: value for name, value in para.items() if name not in _UNLIMITED},
            "res_dtype": type_name(para["res_dtype"]),
        }

    def para(self, c: Convolution, **more: Any) -> dict[str, Any]:
        """The ``para_dict`` of a convolution, in the order (N, C, ...) of dilations."""
        dilations = (1, 1, *c.dilation)
        return {"strides": c.stride, self.pads: c.sides, "dilations": dilations, **more}

    def _parameters(self, para_dict: Mapping[str, Any]) -> dict[str, Any]:
        """What ``para_dict`` states and its defaults, out of reach of later changes to it."""
        needed = ("strides", self.pads, "dilations")
        usual = {"res_dtype": self.res_dtype, "kernel_name": None, **self.optional}
        missing = [key for key in needed if key not in para_dict]
        if missing:
            raise ArgumentError(f"para_dict lacks {missing}; it needs {', '.join(needed)}")
        for key in para_dict:
            if key not in needed and key not in usual:
                hint = suggest(str(key), [*needed, *usual])
                raise ArgumentError(f"para_dict has the unknown key {key!r}{hint}")
        stated = {key: frozen(value) for key, value in para_dict.items()}
        told = {key: stated[key] for key in needed}
        for key, default in usual.items():
            value = stated.get(key)
            value = default if value is None else value
            if value is not None:
                told[key] = value
        return told
