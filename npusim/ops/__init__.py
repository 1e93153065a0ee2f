"""The operators: each checks its arguments, chooses a tiling and launches kernels.

An operator's module has its function and its card, which declares it once (``npusim.ops.card``);
those of the tensor compiler share one, those of the DSP library, and im2col with its backward. A
module is imported when one of its operators is first used. The stub beside this file lists them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from npusim.base.public import Lazy, homes

#: The modules of the operators that ship, by their names.
_HOMES = homes(__file__)

__all__ = sorted(("CARDS", "OPERATORS", *_HOMES, "operators"))  # noqa: PLE0605 - of these names


def _card(name: str) -> Any:
    module = import_module(_HOMES[name])
    return module.CARDS[name] if hasattr(module, "CARDS") else module.CARD


#: Name -> card of every operator that ships, and its function.
CARDS = Lazy(_HOMES, _card)
OPERATORS = Lazy(_HOMES, lambda name: getattr(import_module(_HOMES[name]), name))


def operators() -> list[str]:
    """Names of the operators that ship, sorted."""
    return sorted(_HOMES)


class _Package(ModuleType):
    """This package, in which the names of operators are functions, imported at their first use."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return OPERATORS[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # A module that was imported is made an attribute of its package, in the function's place.
        if name in _HOMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})


sys.modules[__name__].__class__ = _Package
