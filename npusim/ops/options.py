"""Options of a call as words of a command line, and readers of their text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from npusim.convolution import Sides, Sizes
from npusim.errors import ArgumentError

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

#: Spatial dimensions of the largest problems.
MOST_DIMS = 3


@dataclass(frozen=True)
class Option:
    """An option that an operator declares, ``name`` with underscores for hyphens.

    ``read`` makes its value of the text, or raises ``ArgumentError``; a switch has none.
    ``metavar`` stands for the text in the help, or lists the words allowed: ``{shared,private}``.
    """

    name: str
    read: Callable[[str], Any] | None
    metavar: str
    help: str


def integer(least: int) -> Callable[[str], int]:
    """A reader of one integer of at least ``least``."""

    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or int(text) < least:
            raise ArgumentError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return read


def sizes(least: int) -> Callable[[str], Sizes]:
    """A reader of one to three integers of at least ``least``, such as ``14x14``."""

    def read(text: str) -> Sizes:
        parts = text.split("x")
        good = all(_NUMBER.fullmatch(part) and int(part) >= least for part in parts)
        if len(parts) > MOST_DIMS or not good:
            raise ArgumentError(
                "expected one number, HxW such as 3x5 or DxHxW such as 2x3x5, each at least "
                f"{least}, got {text!r}"
            )
        return tuple(map(int, parts))

    return read


def padding(text: str) -> int | Sides:
    """One number for all sides, (before, after) per dimension of ``1x2`` or of ``U,D,L,R``."""
    good = all(_NUMBER.fullmatch(part) for part in re.split("[x,]", text))
    sides = text.split("," if "," in text else "x")
    count = len(sides) if "," in text else 2 * len(sides)
    if not good or ("x" in text and "," in text) or count not in (2, 4, 6):
        raise ArgumentError(
            "expected one number for all sides, HxW such as 1x2, or all sides U,D,L,R such as "
            f"1,1,0,0, got {text!r}"
        )
    values = [int(side) for side in sides]
    if len(values) == 1:
        return values[0]
    if count > len(values):  # one per dimension
        return tuple((value, value) for value in values)
    return tuple(zip(values[::2], values[1::2], strict=True))


def word(*words: str) -> Callable[[str], str]:
    """A reader of one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ArgumentError(f"unknown {text!r} (known: {', '.join(words)})")
        return text

    return read
