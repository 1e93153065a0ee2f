"""The colours of every plot and page: one has one meaning wherever it is seen.

Work has the strong colours of Okabe and Ito, which colour-blind readers tell apart; waiting has
muted ones. What merely follows a value, such as the lines of a study, takes ``scale``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from npusim.device.pipes import facts

#: What an instruction does -> colour of its slice in the timeline.
CLASS_COLOURS: Mapping[str, str] = {
    "load": "#0072b2",
    "feed": "#56b4e9",
    "cube": "#d55e00",
    "vector": "#009e73",
    "store": "#cc79a7",
    "scalar": "#8c8c8c",
    "sync": "#f0e442",
    "other": "#e69f00",
}

_SYNC_WORDS = ("flag", "barrier", "wait", "sync")

#: Reason (of ``npusim.base.reasons.REASONS``) -> colour. Where one pipe is meant, ``work_colour``
#: takes the place of "busy".
REASON_COLOURS: Mapping[str, str] = {
    "busy": "#44505c",
    "bandwidth": "#7b6bb0",
    "issue": "#c9b458",
    "queue": "#94802b",
    "data": "#8b2f3c",
    "space": "#cf8a7b",
    "flag": "#2f5d50",
    "barrier": "#5a3d6b",
    "follow": "#b7a3cb",
    "not_started": "#8a939c38",
    "done": "#8a939c70",
}

#: Before a kernel's first instruction: launching it.
LAUNCH = "#dcc48e"
#: A kernel as a whole, whatever it does.
KERNEL = "#7d8b99"

#: A read of GM that the L2 held, and one that it did not; the latter is that of loads.
READ_HIT, READ_MISS = "#a9cfe5", CLASS_COLOURS["load"]
#: Other moves of bytes: those of instructions have their colours, none moves main memory's own.
MOVES: Mapping[str, str] = {
    "written": CLASS_COLOURS["store"],
    "on chip": CLASS_COLOURS["feed"],
    "off chip": KERNEL,
}

#: What a kernel of a network computes -> colour.
RESULT_COLOURS: Mapping[str, str] = {
    "output": "#c05a00",
    "input": "#3d4fa1",
    "weight": "#7a9a01",
    "bias": "#00767a",
    "other": "#a89f91",
}

#: Parts of a network's time.
PART_COLOURS: Mapping[str, str] = {
    "launches": LAUNCH,
    "layouts": RESULT_COLOURS["other"],
    "outputs": RESULT_COLOURS["output"],
    **{f"{name} gradients": RESULT_COLOURS[name] for name in ("input", "weight", "bias")},
}

#: Groups of the operations of a training step.
STEP_COLOURS: Mapping[str, str] = {
    "convolution output": RESULT_COLOURS["output"],
    "convolution input": RESULT_COLOURS["input"],
    "convolution weight": RESULT_COLOURS["weight"],
    "bias gradient": RESULT_COLOURS["bias"],
    "normalisation": "#b8336a",
    "linear": "#5b6fb5",
    "optimizer": "#d8a521",
    "layouts, casts, clearing": RESULT_COLOURS["other"],
    "others": "#9aa5b1",
}

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


#: Points that no other beats, and others.
BEST, POINT = "#b8336a", "#9aa5b1"

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
    places = (round(at * last / max(1, count - 1)) for at in range(count))
    return tuple(_SCALE[place] for place in places)


def covered(lines: Collection[object], at: int) -> int:
    """How many later ones hide the line at a place, at most 3: it is drawn so much wider."""
    own, *later = list(lines)[at:]
    return min(3, later.count(own))
