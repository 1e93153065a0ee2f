"""Goals and limits: arithmetic on what a point costs, such as ``time_us*energy_uj``.

All goals are made small; a limit is ``area_mm2<=60``. Nothing but numbers, names of ``GOALS`` and
``+ - * / **`` is read, so that a formula in a file of others does no more than compute.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isnan
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest

#: What a formula is made of, each a goal of its own: columns of a sweep.
GOALS = (
    *("time_us", "energy_uj", "dynamic_uj", "static_uj", "area_mm2", "buffer_bytes"),
    *("cycles", "launch_us"),
)

_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}

#: Characters of a formula: what is longer was not written by hand, and might nest too deeply.
_LONGEST = 200


@dataclass(frozen=True)
class Formula:
    """What a point has of a goal; of a limit, how far it is beyond it."""

    text: str
    names: tuple[str, ...]
    tree: ast.expr = field(repr=False, compare=False)

    def value(self, row: Mapping[str, Any]) -> float:
        """Its value with the columns of ``row``; infinite where it has none, as at 1 / 0."""
        try:
            found = float(_value(self.tree, row))
        except (ArithmeticError, TypeError):  # a root of what is negative is no float
            return inf
        return inf if isnan(found) else found


@lru_cache(maxsize=256)
def goal(text: str) -> Formula:
    """The formula of a goal. Raises ``ArgumentError`` for what is none."""
    return _made(text, _parsed(text))


@lru_cache(maxsize=256)
def limit(text: str) -> Formula:
    """The formula of a limit: at most 0 where it is kept. Raises ``ArgumentError`` for others."""
    match _parsed(text):
        case ast.Compare(left=left, ops=[ast.LtE()], comparators=[right]):
            return _made(text, ast.BinOp(left, ast.Sub(), right))
        case ast.Compare(left=left, ops=[ast.GtE()], comparators=[right]):
            return _made(text, ast.BinOp(right, ast.Sub(), left))
    raise ArgumentError(f"{text!r} is no limit; write one such as area_mm2<=60, or with >=")


def _parsed(text: str) -> ast.expr:
    try:
        if len(text) <= _LONGEST:
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        pass
    raise _wrong(text)


def _made(text: str, tree: ast.expr) -> Formula:
    names = []
    for part in ast.walk(tree):
        match part:
            case ast.Name(id=name):
                if name not in GOALS:
                    raise ArgumentError(f"{name!r} is no goal{suggest(name, GOALS)}")
                names.append(name)
            case ast.Constant(value=value) if type(value) in (int, float):
                pass
            case ast.BinOp() if type(part.op) in _OPERATORS:
                pass
            case ast.expr_context() | ast.operator() | ast.unaryop() | ast.UnaryOp(op=ast.USub()):
                pass
            case _:
                raise _wrong(text)
    if not names:
        raise ArgumentError(f"{text!r} names nothing that is measured, of {', '.join(GOALS)}")
    return Formula(text, tuple(dict.fromkeys(names)), tree)


def _wrong(text: str) -> ArgumentError:
    return ArgumentError(
        f"{text[:_LONGEST]!r} is no formula; write numbers, + - * / ** and {', '.join(GOALS)}, "
        "and in a limit <= or >= between two of them"
    )


def _value(tree: ast.expr, row: Mapping[str, Any]) -> Any:
    match tree:
        case ast.Name(id=name):
            return float(row[name])
        case ast.Constant(value=value):
            return float(value)  # type: ignore[arg-type]  # int or float, as _made has seen
        case ast.UnaryOp(operand=operand):
            return -_value(operand, row)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, row), _value(right, row))
    raise AssertionError(ast.dump(tree))
