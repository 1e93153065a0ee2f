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
from npusim.results.facts.fact import names_of
from npusim.results.facts.point import GOALS as POINT_GOALS

#: What a formula is made of, each a goal of its own: columns of a sweep.
GOALS = names_of(POINT_GOALS)

_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}

#: Most characters of a formula: a longer one was not written by hand, and might nest too deeply.
_LONGEST = 200


@dataclass(frozen=True)
class Formula:
    """Arithmetic on the columns of a point: a goal, or how far a point is beyond a limit."""

    text: str
    names: tuple[str, ...]
    tree: ast.expr = field(repr=False, compare=False)

    def value(self, row: Mapping[str, Any]) -> float:
        """Its value with the columns of ``row``; infinite where it has none, as at 1 / 0."""
        return _number(self.tree, row)


@dataclass(frozen=True)
class Limit(Formula):
    """A limit of two sides; ``value`` is at most 0 where it is kept.

    ``side`` is what must be at most ``bound``, or at least that if the limit is a ``floor``.
    """

    side: ast.expr = field(repr=False, compare=False)
    bound: ast.expr = field(repr=False, compare=False)
    floor: bool = False

    def excess(self, row: Mapping[str, Any]) -> float:
        """The distance of a point beyond the limit, as a share of its bound; 0 within.

        Infinite where the bound is 0 or has no value.
        """
        beyond = self.value(row)
        if beyond <= 0:
            return 0.0
        bound = abs(_number(self.bound, row))
        return beyond / bound if 0 < bound < inf else inf

    def number_for(self, goal_text: str) -> float | None:
        """The number that a goal is limited to; None where the limit is not of that goal alone."""
        is_of_goal = ast.unparse(self.side) == ast.unparse(goal(goal_text).tree)
        if not is_of_goal or _has_names(self.bound):
            return None
        return _number(self.bound, {})


@lru_cache(maxsize=256)
def goal(text: str) -> Formula:
    """The formula of a goal. Raises ``ArgumentError`` for what is none."""
    tree = _parsed(text)
    return Formula(text, _names(text, tree), tree)


@lru_cache(maxsize=256)
def limit(text: str) -> Limit:
    """The formula of a limit: at most 0 where it is kept. Raises ``ArgumentError`` for others."""
    match _parsed(text):
        case ast.Compare(left=left, ops=[ast.LtE() | ast.GtE() as order], comparators=[right]):
            floor = isinstance(order, ast.GtE)
        case _:
            raise ArgumentError(f"{text!r} is no limit; write one such as area_mm2<=60, or with >=")
    if not _has_names(left):  # 60>=area_mm2
        left, right, floor = right, left, not floor
    beyond = ast.BinOp(right, ast.Sub(), left) if floor else ast.BinOp(left, ast.Sub(), right)
    return Limit(text, _names(text, beyond), beyond, left, right, floor)


def _has_names(tree: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(tree))


def _parsed(text: str) -> ast.expr:
    try:
        if len(text) <= _LONGEST:
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        pass
    raise _wrong(text)


def _names(text: str, tree: ast.expr) -> tuple[str, ...]:
    """The goals in a formula. Raises ``ArgumentError`` for what is no formula, or names none."""
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
    return tuple(dict.fromkeys(names))


def _wrong(text: str) -> ArgumentError:
    return ArgumentError(
        f"{text[:_LONGEST]!r} is no formula; write numbers, + - * / ** and {', '.join(GOALS)}, "
        "and in a limit <= or >= between two of them"
    )


def _number(tree: ast.expr, row: Mapping[str, Any]) -> float:
    """The value of a formula; infinite where it has none, as at 1 / 0."""
    try:
        value = float(_value(tree, row))
    except (ArithmeticError, TypeError):  # a root of what is negative is no float
        return inf
    return inf if isnan(value) else value


def _value(tree: ast.expr, row: Mapping[str, Any]) -> Any:
    match tree:
        case ast.Name(id=name):
            return float(row[name])
        case ast.Constant(value=value):
            return float(value)  # type: ignore[arg-type]  # int or float, as _names has seen
        case ast.UnaryOp(operand=operand):
            return -_value(operand, row)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, row), _value(right, row))
    raise AssertionError(ast.dump(tree))
