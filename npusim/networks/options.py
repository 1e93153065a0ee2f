"""The options of what times a network: of commands, of studies, and keywords of both functions.

One row here is an option of ``npusim net`` and ``npusim play`` and a name of a study; it reaches
``network`` or ``step`` as a keyword. What an operator's options are is on its card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError
from npusim.networks.network import GRADIENTS, PASSES
from npusim.ops.cube_math import read_cube_math_type
from npusim.ops.options import CUBE_MATH_TYPE, integer

#: The functions that take an option: ``network`` for layers by themselves, ``step`` for a whole
#: step of training.
LAYERS = "layers"
STEP = "step"
BOTH = (LAYERS, STEP)


class NetworkOption(Struct, frozen=True, kw_only=True):
    """An option of a network, ``name`` with underscores for hyphens.

    ``read`` makes its value of a text, or raises ``ArgumentError``; without it the option is a yes
    or no, or one of ``choices``. ``metavar`` stands for the value in the help, and ``help`` says
    what it is. The functions of ``takers`` take it as the keyword ``keyword``, "" where that is its
    name. Where several names are one value, a study has ``separator`` between them, because commas
    stand between the values that vary.
    """

    name: str
    help: str
    read: Callable[[str], Any] | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    takers: tuple[str, ...] = BOTH
    keyword: str = ""
    separator: str = ""

    @property
    def argument(self) -> str:
        """The keyword of the functions, and the name of the parsed argument."""
        return self.keyword or self.name


def read_gradients(text: str) -> tuple[str, ...]:
    """Names of gradients with commas between, each at most once."""
    names = text.split(",")
    if len(set(names)) != len(names) or not set(names) <= set(GRADIENTS):
        raise ArgumentError(f"expected at least one of {','.join(GRADIENTS)}, got {text!r}")
    return tuple(names)


#: What is timed of a network, in the order of the help.
TRAINING_OPTIONS = (
    NetworkOption(
        name="batch",
        read=integer(1),
        metavar="N",
        help="images (default: {batch})",
    ),
    NetworkOption(
        name="pass",
        keyword="passes",
        choices=PASSES,
        help="what is timed; training is both (default: backward; of a step, training)",
    ),
    NetworkOption(
        name="gradients",
        takers=(LAYERS,),
        read=read_gradients,
        separator="+",
        metavar="NAMES",
        help=f"those computed, of {','.join(GRADIENTS)} (default: input,weight)",
    ),
    NetworkOption(
        name="every_input",
        takers=(LAYERS,),
        help="input gradients of the layers before which nothing is trained too (default: no)",
    ),
    NetworkOption(
        name="dtype",
        read=dtype,
        metavar="TYPE",
        help="element type of the operands: fp16, bf16 or fp32 (default: fp16)",
    ),
    NetworkOption(
        name="cube_math_type",
        takers=(LAYERS,),
        read=read_cube_math_type,
        metavar="TYPE",
        help=CUBE_MATH_TYPE.help,
    ),
)

#: How a whole step runs, in the order of the help.
STEP_OPTIONS = (
    NetworkOption(
        name="mode",
        takers=(STEP,),
        choices=("eager", "graph"),
        help="time the whole step with all that runs between its convolutions: eager, as a "
        "framework calls operators one by one, or graph, as a compiled graph is replayed (default: "
        "layers by themselves)",
    ),
    NetworkOption(
        name="layouts",
        takers=(STEP,),
        read=str,
        metavar="HOW",
        help="each_call, every operation converts; as_framework, blocks throughout; or best, the "
        "least time, with proof (default: as the mode has them on the device)",
    ),
    NetworkOption(
        name="fusions",
        takers=(STEP,),
        read=str,
        separator="&",
        metavar="NAMES",
        help="usual, those of a framework's passes; graph_engine, those of the vendor's graph "
        "engine; all, none or names with commas between (default: as the mode has them)",
    ),
    NetworkOption(
        name="optimizer",
        takers=(STEP,),
        read=str,
        metavar="NAME",
        help="momentum, sgd or adam (default: momentum)",
    ),
    NetworkOption(
        name="normalisation",
        takers=(STEP,),
        read=dtype,
        metavar="TYPE",
        help="type of the maps that normalisations read and write, with casts around them where it "
        "is not that of --dtype; statistics are fp32 (default: that of --dtype)",
    ),
    NetworkOption(
        name="cards",
        takers=(STEP,),
        read=integer(1),
        metavar="N",
        help="cards that exchange their gradients beside the backward pass (default: 1)",
    ),
)
