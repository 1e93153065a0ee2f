"""The colours of every plot and page: one has one meaning wherever it is seen.

Work has the strong colours of Okabe and Ito, which colour-blind readers tell apart; waiting has
muted ones; ``palette.yaml`` lists them. What merely follows a value, such as the lines of a study,
takes ``scale``.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import files

from npusim.base.yamltree import load_tree
from npusim.machine.device.pipes import facts

_FILE = load_tree(files("npusim.results.shown") / "palette.yaml", "palette.yaml").mapping()
_COLOURS = {
    group: {name: colour.text() for name, colour in each.mapping().items()}
    for group, each in _FILE.items()
}

#: What an instruction does -> colour, and so on: what ``palette.yaml`` says of each.
CLASS_COLOURS, REASON_COLOURS, MOVES = (_COLOURS[name] for name in ("work", "reasons", "moves"))
RESULT_COLOURS, PART_COLOURS, STEP_COLOURS, MEMORY_COLOURS, PATH_COLOURS = (
    _COLOURS[name] for name in ("results", "parts", "step", "memory", "path")
)
LAUNCHED_COLOURS = _COLOURS["launched"]
LAUNCH, KERNEL, READ_HIT, READ_MISS, BEST, POINT = _COLOURS["single"].values()

_SYNC_WORDS = ("flag", "barrier", "wait", "sync")

#: Kinds of operations whose group has another name.
_GROUPS = {
    **dict.fromkeys(("decay", "update", "decay + update"), "optimizer"),
    **dict.fromkeys(("layouts", "cast", "cast of weights", "clearing"), "layouts, casts, clearing"),
}


def step_group(kind: str) -> str:
    """The group of a kind of operation, a key of ``STEP_COLOURS``; of fused ones the first's."""
    first = kind.partition(" + ")[0]
    name = "normalisation" if first.startswith("normalisation") else first
    name = _GROUPS.get(kind, name)
    return name if name in STEP_COLOURS else "others"


#: From violet to yellow as in matplotlib's viridis, its dark end lighter to be seen on black.
_SCALE = ("#7b4fa6", "#5b6fb5", "#2a8c9e", "#22a884", "#7ac143", "#d8a521")


def op_class(op: str, pipe: str) -> str:
    """The key of ``CLASS_COLOURS`` for an instruction: by name if it orders, else by its pipe."""
    if any(word in op for word in _SYNC_WORDS):
        return "sync"
    return facts(pipe).work


def work_colour(pipe: str) -> str:
    """Colour of the work of ``pipe``."""
    return CLASS_COLOURS[facts(pipe).work]


def scale(count: int) -> tuple[str, ...]:
    """``count`` colours for the values of one thing in their order."""
    last = len(_SCALE) - 1
    places = (round(place * last / max(1, count - 1)) for place in range(count))
    return tuple(_SCALE[place] for place in places)


def covered(lines: Collection[object], at: int) -> int:
    """How many later ones hide the line at a place, at most 3: it is drawn so much wider."""
    line, *later = list(lines)[at:]
    return min(3, later.count(line))
