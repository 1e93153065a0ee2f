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

#: The share of the axis that the peak takes at least where the size of the card is drawn.
_CARD_FROM = 0.6


def over_time(facts: Mapping[str, Any]) -> Figure:
    """Memory while each launch of a step runs; facts of ``StepResult.to_json``."""
    rows = facts["memory"]
    peak = facts["peak"]
    unit, size = binary_unit(facts["peak_bytes"])
    highest = _ABOVE * facts["peak_bytes"] / size
    marks = [*_areas(rows, size), *_phases(rows, highest)]
    card = facts["card_bytes"] / size
    if facts["peak_bytes"] > _CARD_FROM * facts["card_bytes"]:
        highest = max(highest, _ABOVE * card)
        name = f"memory of the card, {bytes_text(facts['card_bytes'])}"
        ends_us = (0.0, facts["compute_us"])
        marks.append(LineMark(name=name, x=ends_us, y=(card, card), dash="--"))
    peak_us = peak["start_us"] + peak["us"] / 2
    marks.append(
        LineMark(
            x=[peak_us],
            y=[facts["peak_bytes"] / size],
            dash="",
            marker="v",
            more={"text": [_launch_text(peak)]},
            tip="<div><b>peak</b><br>@text</div>",
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
        about=f"Memory over the time of the step: {when}, {_launch_text(peak)}.",
    )


def _areas(rows: Sequence[Mapping[str, Any]], size: int) -> list[Mark]:
    """An area for each class, a bar for each launch; each tells its own bytes and those of all."""
    left = np.array([row["start_us"] for row in rows])
    right = left + [row["us"] for row in rows]
    base = np.zeros(len(rows))
    launches = [_launch_text(row) for row in rows]
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
                    "launch": [launches[place] for place in places],
                },
                tip=f"<div><b>{holds}</b> @size<br>@launch</div>",
            )
        )
        base = high
    return marks


def _launch_text(row: Mapping[str, Any]) -> str:
    """A launch: its name, when it begins, and the memory while it runs."""
    return f"{row['operation']}, {us_text(row['start_us'])} \u00b5s: {bytes_text(row['bytes'])}"


def _phases(rows: Sequence[Mapping[str, Any]], highest: float) -> list[Mark]:
    """The names of phases where each begins, with a line between two."""
    begins: dict[str, float] = {}
    for row in rows:
        begins.setdefault(row["phase"], row["start_us"])
    marks: list[Mark] = [
        LineMark(x=(us, us), y=(0.0, highest), dash=":", width=1.0)
        for us in list(begins.values())[1:]
    ]
    height = [highest * 0.965] * len(begins)
    marks.append(Words(x=[*begins.values()], y=height, texts=[*begins], shift=(4, 0)))
    return marks
