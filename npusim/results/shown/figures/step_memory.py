"""Memory of a training step over its time, by what it holds: areas, one above another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npusim.results.facts.memory_rows import HOLDS
from npusim.results.facts.number_text import binary_unit, bytes_text, us_text
from npusim.results.shown import palette
from npusim.results.shown.figure import Bars, Figure, FigureAxis, LineMark, Mark, Words

#: Room above the peak for the words beside it, as a share of the peak.
_ABOVE = 1.12

#: The share of the time below which the last phase is too short for its name.
_SHORT = 0.2

#: The share of the axis that the peak takes at least where the size of the card is drawn.
_CARD_FROM = 0.6


def over_time(facts: Mapping[str, Any]) -> Figure:
    """Memory while each launch of a step runs; facts of ``StepResult.to_json``."""
    rows = facts["memory"]
    peak = facts["peak"]
    unit, size = binary_unit(facts["peak_bytes"])
    highest = _ABOVE * facts["peak_bytes"] / size
    marks = _areas(rows, size)
    card = facts["card_bytes"] / size
    if facts["peak_bytes"] > _CARD_FROM * facts["card_bytes"]:
        highest = max(highest, _ABOVE * card)
        name = f"memory of the card, {bytes_text(facts['card_bytes'])}"
        ends_us = (0.0, facts["compute_us"])
        marks.append(LineMark(name=name, x=ends_us, y=(card, card), dash="--"))
    marks += _phases(rows, highest, facts["compute_us"])
    peak_us = peak["start_us"] + peak["us"] / 2
    marks.append(
        LineMark(
            x=[peak_us],
            y=[facts["peak_bytes"] / size],
            dash="",
            marker="v",
            more={"launch": [peak["operation"]], "moment": [_moment_text(peak)]},
            tip="<div><b>peak</b><br>@launch<br>@moment</div>",
        )
    )
    heading = f"{facts['workload']} {facts['pass']} on {facts['device']}, batch {facts['batch']}"
    when = f"at most {bytes_text(facts['peak_bytes'])}, in {peak['operation']}"
    return Figure(
        x=FigureAxis(label="time (\u00b5s)", ends=(0.0, facts["compute_us"])),
        y=FigureAxis(label=f"memory ({unit})", ends=(0.0, highest)),
        marks=marks,
        title=f"{heading}, {facts['mode']} mode: {when}",
        at="below",
        inches=(9, 4.8),
        pixels=420,
        place="memory",
        zoom="width",
        about=f"Memory over the time of the step: {when}, {_moment_text(peak)}.",
    )


def _areas(rows: Sequence[Mapping[str, Any]], size: int) -> list[Mark]:
    """An area for each class, a bar for each launch; each tells its own bytes and those of all."""
    left = np.array([row["start_us"] for row in rows])
    right = left + [row["us"] for row in rows]
    base = np.zeros(len(rows))
    names = [row["operation"] for row in rows]
    moments = [_moment_text(row) for row in rows]
    marks: list[Mark] = []
    for holds in HOLDS:
        sizes = np.array([row[f"{holds}_bytes"] for row in rows], float)
        drawn = sizes > 0
        if not drawn.any():
            continue
        high = base + sizes / size
        places = np.flatnonzero(drawn)
        marks.append(
            Bars(
                name=holds,
                colour=palette.MEMORY_COLOURS[holds],
                left=left[drawn],
                right=right[drawn],
                low=base[drawn],
                high=high[drawn],
                more={
                    "size": [bytes_text(int(count)) for count in sizes[drawn]],
                    "launch": [names[place] for place in places],
                    "moment": [moments[place] for place in places],
                },
                tip=f"<div><b>{holds}</b> @size<br>@launch<br>@moment</div>",
                area=True,
            )
        )
        base = high
    return marks


def _moment_text(row: Mapping[str, Any]) -> str:
    """The time at which a launch begins, and all memory while it runs."""
    return f"{us_text(row['start_us'])} \u00b5s: {bytes_text(row['bytes'])} in all"


def _phases(rows: Sequence[Mapping[str, Any]], highest: float, end_us: float) -> list[Mark]:
    """The names of phases where each begins, with a line between two.

    That of a last phase which is short ends where the step does.
    """
    begins: dict[str, float] = {}
    for row in rows:
        begins.setdefault(row["phase"], row["start_us"])
    marks: list[Mark] = [
        LineMark(x=(us, us), y=(0.0, highest), dash=":", width=1.0)
        for us in list(begins.values())[1:]
    ]
    height = highest * 0.965
    for phase, us in begins.items():
        if us > (1 - _SHORT) * end_us:
            words = Words(x=[end_us], y=[height], texts=[phase], shift=(-4, 0), side="right")
        else:
            words = Words(x=[us], y=[height], texts=[phase], shift=(4, 0))
        marks.append(words)
    return marks
