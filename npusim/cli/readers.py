"""Readers of numbers on a command line: what they refuse is an error of the option."""

from __future__ import annotations

from npusim.base.errors import ArgumentError
from npusim.cli.parser import reader
from npusim.ops.options import integer, sizes


def _signed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"expected an integer, got {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(f"expected a number such as 12.5, got {text!r}") from None


#: Integers of at least 1, of at least 0, and any.
COUNT = reader(integer(1))
INTEGER = reader(integer(0))
SIGNED = reader(_signed)

#: Numbers with a fraction.
NUMBER = reader(_number)

#: One to three sizes such as 3x224x224.
SIZES = reader(sizes(1))
