"""Random legal tilings against float64.

``python -m tools.campaigns.random_tilings 0 --calls 1000`` takes the calls of
``tools.campaigns.random_calls``, each kernel with a tiling whose every field is drawn. Tilings that
a kernel refuses, or that no memory holds, are drawn again, and counted.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, fields
from random import Random
from typing import Any

from npusim.base.errors import NpusimError
from npusim.base.records import replace
from npusim.ops import CARDS
from tools.campaigns import random_calls
from tools.campaigns.random_calls import Drawn

#: What fields that are words may say, in any kernel.
WORDS = {
    "form": ("window", "phases", "single", "taps", "rows"),
    "keeps": ("dy", "x"),
}


def drawn(random: Random) -> Drawn:
    """Some call of an operator whose kernels have tilings, with one for each of them."""
    while True:
        call = random_calls.drawn(random)
        kinds = CARDS[call.operator].tilings
        if kinds:
            made = {kernel.name: drawn_tiling(random, kind) for kernel, kind in kinds.items()}
            return replace(call, keywords={**call.keywords, "tiling": made})


def drawn_tiling(random: Random, kind: type[Any]) -> Any:
    """A tiling that is legal by itself."""
    while True:
        changed = random.random()  # half of the tilings leave most of what has a usual value
        values = {
            field.name: _value(random, field)
            for field in fields(kind)
            if field.default is MISSING or random.random() < changed
        }
        try:
            return kind(**values)
        except NpusimError:
            continue


def _value(random: Random, field: Field[Any]) -> Any:
    if field.name in WORDS:
        return random.choice(WORDS[field.name])
    if isinstance(field.default, bool):
        return random.random() < 0.5
    if field.name.startswith("base_"):
        return 16 * random.randint(1, 6)
    if field.name.startswith("single_core"):
        return random.choice((0, 16, 48, random.randint(1, 100)))
    if field.default is MISSING:
        return random.choice((1, 2, random.randint(1, 12), random.randint(1, 200)))
    return random.randint(0, 4)


if __name__ == "__main__":
    sys.exit(random_calls.main(sys.argv[1:], draw=drawn))
