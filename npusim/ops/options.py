"""The options that state an operator's problem on a command line or in a study.

First what reads their values, then the options that several operators take. A card lists its own
in the order of the help; one whose words differ is a shared option with another ``help``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.ops.cube_math import CUBE_MATH_TYPES, read_cube_math_type
from npusim.problem.convolution import Sides, Sizes

if TYPE_CHECKING:
    from npusim.workloads import ConvLayer

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

#: Spatial dimensions of the largest problems.
MOST_DIMS = 3


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


def read_layer(place: str) -> ConvLayer:
    """A layer by its full name, which errors then tell."""
    from npusim.workloads import find_layer  # noqa: PLC0415 - most calls state their sizes

    return replace(find_layer(place), name=place)


# -- options that several operators take -------------------------------------------------------

LAYER = Option(
    name="layer",
    read=read_layer,
    metavar="WORKLOAD/LAYER",
    help="a layer such as resnet50/res4_3x3 (see 'npusim workloads'), instead of its sizes",
)
BATCH = Option(
    name="batch",
    read=integer(0),
    metavar="N",
    help="images (default: as in --input, else 1)",
)
CIN = Option(
    name="cin",
    read=integer(1),
    metavar="N",
    help="input channels (default: as in --input)",
)
COUT = Option(
    name="cout",
    read=integer(1),
    metavar="N",
    help="output channels (default: as in --input)",
)
SIZE = Option(
    name="size",
    read=sizes(1),
    metavar="HxW",
    help="input size, pixels (default: as in --input x)",
)
KERNEL = Option(
    name="kernel",
    read=sizes(1),
    metavar="HxW",
    help="filter size, taps (default: as in --input w)",
)
STRIDE = Option(
    name="stride",
    read=sizes(1),
    metavar="HxW",
    help="stride, pixels (default: 1)",
)
PADDING = Option(
    name="padding",
    read=padding,
    metavar="U,D,L,R",
    help=(
        "zeros around the input: up, down, left, right (3-D: front and tail first), HxW, or one "
        "number (default: 0)"
    ),
)
DILATION = Option(
    name="dilation",
    read=sizes(1),
    metavar="HxW",
    help="distance of taps, pixels (default: 1)",
)
GROUPS = Option(
    name="groups",
    read=integer(1),
    metavar="N",
    help="groups of channels (default: 1)",
)
TRANSPOSED = Option(
    name="transposed",
    read=None,
    metavar="",
    help="a transposed convolution (default: no)",
)
OUTPUT_PADDING = Option(
    name="output_padding",
    read=sizes(0),
    metavar="HxW",
    help="transposed layers: extra rows and columns of the output (default: 0)",
)
CUBE_MATH_TYPE = Option(
    name="cube_math_type",
    read=read_cube_math_type,
    metavar="TYPE",
    help=f"arithmetic of the cube: 0 to 3 or {', '.join(CUBE_MATH_TYPES)} (default: 0)",
)
BIAS = Option(
    name="bias",
    read=None,
    metavar="",
    help="add a bias per output channel (default: only one given by --input)",
)
