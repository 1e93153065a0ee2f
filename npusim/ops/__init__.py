"""The operators: each checks its arguments, chooses a tiling and launches kernels.

An operator's module has its function and its card, which declares it once (``npusim.ops.card``);
those of the tensor compiler share one, those of the DSP library, and im2col with its backward. A
module is imported when one of its operators is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.ops.card import Card
    from npusim.ops.compiled import (
        conv2d_backprop_filter,
        conv2d_backprop_input,
        conv3d_backprop_filter,
        conv3d_backprop_input,
        depthwise_conv2d_backprop_filter,
        depthwise_conv2d_backprop_input,
    )
    from npusim.ops.conv_tbc_backward import conv_tbc_backward
    from npusim.ops.convolution import convolution
    from npusim.ops.convolution_backward import convolution_backward
    from npusim.ops.dsp_gradients import (
        conv_grad_filter,
        conv_grad_input,
        deconv_grad_filter,
        deconv_grad_input,
    )
    from npusim.ops.matmul import matmul
    from npusim.ops.windows import im2col, im2col_backward

__all__ = [
    "CARDS",
    "OPERATORS",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv3d_backprop_filter",
    "conv3d_backprop_input",
    "conv_grad_filter",
    "conv_grad_input",
    "conv_tbc_backward",
    "convolution",
    "convolution_backward",
    "deconv_grad_filter",
    "deconv_grad_input",
    "depthwise_conv2d_backprop_filter",
    "depthwise_conv2d_backprop_input",
    "im2col",
    "im2col_backward",
    "matmul",
    "operators",
]

#: The operators that ship.
_NAMES = tuple(name for name in __all__ if name.islower() and name != "operators")


#: Modules of several operators, by what all of their names have and no others.
_SHARED = (("_grad_", "dsp_gradients"), ("_backprop_", "compiled"), ("im2col", "windows"))


def _module(name: str) -> ModuleType:
    """The module of an operator: of its name, but where several share one."""
    shared = next((module for part, module in _SHARED if part in name), name)
    return import_module(f"{__name__}.{shared}")


class _Operators(Mapping[str, Any]):
    """Something of every operator that ships, by its name; its module is imported to tell."""

    def __init__(self, find: Callable[[ModuleType, str], Any]) -> None:
        self.find = find

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(name)
        return self.find(_module(name), name)

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


#: Name -> card of every operator that ships.
CARDS: Mapping[str, Card[Any]] = _Operators(
    lambda module, name: module.CARDS[name] if hasattr(module, "CARDS") else module.CARD
)

#: Name -> function of every operator that ships.
OPERATORS: Mapping[str, Any] = _Operators(getattr)


def operators() -> list[str]:
    """Names of the operators that ship, sorted."""
    return sorted(_NAMES)


class _Package(ModuleType):
    """This package, in which the names of operators are functions, imported at their first use."""

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return OPERATORS[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # A module that was imported is made an attribute of its package, in the function's place.
        if name in _NAMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})


sys.modules[__name__].__class__ = _Package
