"""Colours shared by the plots and the web page, safe for colour-blind readers (Okabe and Ito)."""

from __future__ import annotations

from collections.abc import Mapping

from npusim.device.pipes import PIPES

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

#: Reason (of ``npusim.reasons.REASONS``) -> colour in stacked bars.
REASON_COLOURS: Mapping[str, str] = {
    "busy": "#0072b2",
    "bandwidth": "#56b4e9",
    "issue": "#f0e442",
    "queue": "#b8a800",
    "data": "#d55e00",
    "space": "#e69f00",
    "flag": "#009e73",
    "barrier": "#cc79a7",
    "follow": "#8a5a83",
    "not_started": "#d9d9d9",
    "done": "#b0b0b0",
}

#: Reason of waiting -> hatch of its grey slice in the timeline.
REASON_HATCHES: Mapping[str, str] = {
    "bandwidth": "---",
    "issue": "...",
    "queue": "ooo",
    "data": "////",
    "space": "\\\\\\\\",
    "flag": "xxx",
    "barrier": "|||",
    "follow": "+++",
}


def op_class(op: str, pipe: str) -> str:
    """The key of ``CLASS_COLOURS`` for an instruction: by name if it orders, else by its pipe."""
    if any(word in op for word in _SYNC_WORDS):
        return "sync"
    return PIPES[pipe].work if pipe in PIPES else "other"
