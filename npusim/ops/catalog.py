"""The operators by name: their functions and their cards, each imported when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from npusim import ops
from npusim.ops.card import Card
from npusim.results import Result

V = TypeVar("V")

#: Names of the package that are no operators: those of this module.
_LISTS = ("CARDS", "OPERATORS", "operators")


def operators() -> list[str]:
    """Names of the operators that ship, sorted."""
    return sorted(name for name in ops.__all__ if name not in _LISTS)


def _function(name: str) -> Callable[..., Result]:
    """The function of an operator."""
    function: Callable[..., Result] = getattr(ops, name)
    return function


def _card(name: str) -> Card[Any]:
    """The card of an operator, which stands in the module of its function."""
    module = sys.modules[_function(name).__module__]
    if hasattr(module, "CARDS"):
        card: Card[Any] = module.CARDS[name]
    else:
        card = module.CARD
    return card


class _ByName(Mapping[str, V]):
    """A value for each operator, found when it is asked for."""

    def __init__(self, find: Callable[[str], V]) -> None:
        self._find = find

    def __getitem__(self, name: str) -> V:
        if name not in self:
            raise KeyError(name)
        return self._find(name)

    def __contains__(self, name: object) -> bool:
        return name in operators()

    def __iter__(self) -> Iterator[str]:
        return iter(operators())

    def __len__(self) -> int:
        return len(operators())


#: The card of every operator that ships, and its function, by name.
CARDS: Mapping[str, Card[Any]] = _ByName(_card)
OPERATORS: Mapping[str, Callable[..., Result]] = _ByName(_function)
