"""The options that state an operator's problem: what reads their values, and who has them.

``options.yaml`` beside this file lists them by operator, with their help, and an example of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.base.objects import replace
from npusim.base.yamltree import Node, load_tree
from npusim.ops.arguments import CUBE_MATH_TYPES, read_cube_math_type
from npusim.shapes.convolution import Sides, Sizes

if TYPE_CHECKING:
    from npusim.workloads import ConvLayer

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

#: Spatial dimensions of the largest problems.
MOST_DIMS = 3

#: What a mask of gradients is of, in the order of its bits.
_GRADIENTS = ("input", "weight", "bias")


class Option(Struct, frozen=True):
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


def _mask(text: str) -> tuple[bool, ...]:
    """Which gradients are wanted, of names or of three bits."""
    words, names = text.split(","), _GRADIENTS
    if len(text) == len(names) and set(text) <= {"0", "1"}:
        words = [name for name, bit in zip(names, text, strict=True) if bit == "1"]
    if not words or len(set(words)) != len(words) or not set(words) <= set(names):
        raise ArgumentError(
            f"expected at least one of {','.join(names)}, or bits such as 110, got {text!r}"
        )
    return tuple(name in words for name in names)


def read_layer(place: str) -> ConvLayer:
    """A layer by its full name, which errors then tell."""
    from npusim.workloads import find_layer  # noqa: PLC0415 - most calls state their sizes

    return replace(find_layer(place), name=place)


#: What reads the text of a value, by the name that ``options.yaml`` has for it.
READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": integer(0),
    "count": integer(1),
    "sizes": sizes(1),
    "sizes or none": sizes(0),
    "padding": padding,
    "layer": read_layer,
    "mask": _mask,
    "storage": word("shared", "gsm", "private"),
    "cube math type": read_cube_math_type,
}


@cache
def _tables() -> Mapping[str, Node]:
    return load_tree(files("npusim.ops") / "options.yaml", "options.yaml").mapping()


def shared_option(name: str, own: Node | None = None) -> Option:
    """An option as most operators have it, but for what its ``own`` entry says."""
    nodes = (_tables()["shared"].mapping().get(name), own)
    stated = {k: v.text() for node in nodes if node is not None for k, v in node.mapping().items()}
    read = READERS[stated["takes"]] if "takes" in stated else None
    told = stated["help"].format(cube_math_types=", ".join(CUBE_MATH_TYPES))
    return Option(name, read, stated.get("metavar", ""), told)


def options_of(operator: str) -> tuple[Option, ...]:
    """The options that state a problem of ``operator``, in the order of its help."""
    entry = _tables()["operators"].mapping()[operator].mapping()
    own = entry["own"].mapping() if "own" in entry else {}
    return tuple(shared_option(name, own.get(name)) for name in entry["options"].text().split())


def example_of(operator: str) -> str:
    """A line of ``npusim run`` that shows ``operator``."""
    return _tables()["operators"].mapping()[operator].mapping()["example"].text()
