"""Stacked bars: the traffic of a call, the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npusim.results.facts import metrics
from npusim.results.facts.call import CallFacts
from npusim.results.facts.number_text import (
    binary_unit,
    bytes_text,
    percent_text,
    signed_text,
    us_alike,
    us_text,
)
from npusim.results.shown import palette
from npusim.results.shown.figure import Bars, Figure, FigureAxis, Mark, Words
from npusim.results.shown.network_words import verdict


class LayerBar(NamedTuple):
    """A layer: microseconds as it was, and its parts as it is, empty while they are not known."""

    name: str
    before: float
    parts: Mapping[str, float]


class Stack(NamedTuple):
    """A bar: its name, the words behind its end, the lengths of its parts, and their details.

    Details are lines below the name of a part in its tooltip.
    """

    name: str
    told: str
    parts: Mapping[str, float]
    details: Mapping[str, str] = {}


#: How much longer than the longest bar the axis is, for the words behind it; a page that is too
#: narrow for that makes it longer still.
_BEHIND = 1.2


def stacked(
    stacks: Sequence[Stack], looks: Mapping[str, str], label: str, width: float, **more: Any
) -> Figure:
    """A bar per stack, one below another, its parts in the order of ``looks``, their colours.

    ``more`` is as of a figure.
    """
    count, marks = len(stacks), list[Mark]()
    base, places = np.zeros(count), np.arange(count)
    for part, colour in looks.items():
        ends = base + [stack.parts.get(part, 0.0) for stack in stacks]
        drawn = ends > base
        if drawn.any():
            rows = places[drawn]
            details = [stack.details.get(part, "") for stack in stacks if stack.parts.get(part)]
            tip = f"<b>{part}</b>"
            if any(details):
                tip = f'<div>{tip}<br><span style="white-space:pre-line">@details</span></div>'
            marks.append(
                Bars(
                    name=part,
                    colour=colour,
                    left=base[drawn],
                    right=ends[drawn],
                    low=rows - 0.37,
                    high=rows + 0.37,
                    more={"details": details} if any(details) else {},
                    tip=tip,
                )
            )
        base = ends
    marks.append(Words(x=base, y=places, texts=[stack.told for stack in stacks], shift=(4, 0)))
    return Figure(
        x=FigureAxis(label=label, ends=(0.0, _BEHIND * max(base, default=1.0) or 1.0)),
        y=FigureAxis(names=[stack.name for stack in stacks], ends=(count - 0.4, -0.6)),
        marks=marks,
        inches=(width, 1.5 + 0.32 * max(4, count)),
        pixels=90 + 24 * max(4, count),
        **more,
    )


_HIT, _MISS = "read, L2 hit", "read, L2 miss"


def traffic(result: CallFacts) -> Figure:
    """Bytes per path and operand over the call; reads of GM split into L2 hits and misses."""
    paths = metrics.path_totals(result.runs)
    unit, size = binary_unit(max((path.bytes for path in paths), default=1) or 1)
    stacks = []
    for path in paths:
        hits = "" if path.hit_share is None else f", {percent_text(path.hit_share)} hits"
        parts = {_HIT: path.kept_bytes, _MISS: path.missed_bytes}
        parts[path.kind] = path.bytes - path.kept_bytes - path.missed_bytes
        lengths = {name: count / size for name, count in parts.items()}
        label = path.label.replace("->", "\u2192")
        stacks.append(Stack(label, bytes_text(path.bytes) + hits, lengths))
    looks = {_HIT: palette.READ_HIT, _MISS: palette.READ_MISS, **palette.MOVES}
    return stacked(stacks, looks, f"bytes moved over the call ({unit})", 8, at="above")


def layers(facts: Mapping[str, Any]) -> Figure:
    """A bar per layer with a time, repetitions included: launches, layouts, and each gradient.

    ``facts`` are those of ``NetworkResult.to_json``.
    """
    stacks = [
        Stack(
            f"{row['count']} x {row['layer']}" if row["count"] > 1 else row["layer"],
            f"{us_alike(row['total_us'])}, {percent_text(row['share'])}",
            {name: row["count"] * us for name, us in row["split"].items()},
        )
        for row in facts["layers"]
        if not row["error"]
    ]
    looks = {name: palette.PART_COLOURS[name] for name in facts["split"]}
    heading = f"{facts['workload']} {facts['pass']} on {facts['device']}, batch {facts['batch']}"
    title = f"{heading}: {us_text(facts['time_us'])} us\n{verdict(facts)}"
    label = "us; layouts: kernels that change layouts, clear and cast"
    return stacked(stacks, looks, label, 9, title=title, at="beside")


def phases(facts: Mapping[str, Any]) -> Figure:
    """A bar per phase of a training step, by group of operations; facts of ``to_json``."""
    whole_us = facts["time_us"]
    parts: dict[str, dict[str, float]] = {}
    kinds: dict[tuple[str, str], dict[str, float]] = {}
    for row in facts["kinds"]:
        group = palette.step_group(row["kind"])
        in_phase = parts.setdefault(row["phase"], {})
        in_phase[group] = in_phase.get(group, 0.0) + row["us"]
        kinds.setdefault((row["phase"], group), {})[row["kind"]] = row["us"]
    if facts["all_reduce"]:
        exchange = whole_us - facts["compute_us"]
        parts["all-reduce"] = {"others": exchange}
        kinds["all-reduce", "others"] = {"exchange between cards": exchange}
    stacks = []
    for name, by_group in parts.items():
        us = sum(by_group.values())
        details = {
            group: "\n".join(
                [_share(group_us, whole_us), *_kind_lines(group, kinds[name, group], whole_us)]
            )
            for group, group_us in by_group.items()
        }
        stacks.append(Stack(name, _share(us, whole_us, unit=""), by_group, details))
    met = {name for by_group in parts.values() for name in by_group}
    looks = {name: colour for name, colour in palette.STEP_COLOURS.items() if name in met}
    heading = f"{facts['workload']} {facts['pass']} on {facts['device']}, batch {facts['batch']}"
    title = f"{heading}, {facts['mode']} mode: {us_text(facts['time_us'])} us"
    return stacked(stacks, looks, "us, with launches", 9, title=title, at="beside")


def pairs(rows: Sequence[tuple[str, float, float]], label: str, **more: Any) -> Figure:
    """Two bars per row, A above B, with how B changed behind its end.

    A row is a name and the lengths of both, of which one may be 0. ``more`` is as of a figure.
    """
    places = np.arange(len(rows))
    marks: list[Mark] = []
    for side, (name, colour) in enumerate(zip("AB", (palette.KERNEL, palette.BEST), strict=True)):
        lengths = np.array([row[1 + side] for row in rows])
        low = places - 0.38 * (1 - side)
        texts = [f"{length:,.1f}" for length in lengths]
        marks.append(Bars(name=name, colour=colour, left=np.zeros(len(rows)), right=lengths,
                          low=low, high=low + 0.38, more={"text": texts},
                          tip=f"<div><b>{name}</b> @text \u00b5s</div>"))  # fmt: skip
    changes = [_change_of_pair(a, b) for _, a, b in rows]
    longest = [max(a, b) for _, a, b in rows]
    marks.append(Words(x=longest, y=places, texts=changes, shift=(4, 0), size=8))
    return Figure(
        x=FigureAxis(label=label, ends=(0.0, 1.15 * max(longest, default=1.0) or 1.0)),
        y=FigureAxis(names=[name for name, *_ in rows], ends=(len(rows) - 0.4, -0.6)),
        marks=marks,
        at="corner",
        inches=(9, 1.5 + 0.34 * max(4, len(rows))),
        pixels=90 + 28 * max(4, len(rows)),
        place="pairs",
        **more,
    )


def _change_of_pair(a: float, b: float) -> str:
    """How B changed, as a share of A, or which of the two is alone."""
    if a and b:
        return signed_text(b / a - 1)
    return "A alone" if a else "B alone"


def _share(us: float, whole_us: float, unit: str = " \u00b5s") -> str:
    """Microseconds, and their share of the whole time."""
    return f"{us_alike(us)}{unit}, {percent_text(us / whole_us)}"


def _kind_lines(group: str, kinds: Mapping[str, float], whole_us: float) -> list[str]:
    """A line for each kind of a group, longest first; none where the group is one kind."""
    if list(kinds) == [group]:
        return []
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return [f"{kind}: {_share(us, whole_us)}" for kind, us in ordered]


def moved(layers: Sequence[LayerBar]) -> Figure:
    """Layers as they are, by the parts of their time, before broad grey bars of what they were."""
    count, places = len(layers), np.arange(len(layers))
    base = np.zeros(count)
    before = [layer.before for layer in layers]
    marks = [Bars(left=base, right=before, low=places - 0.43, high=places + 0.43,
                  colour=palette.KERNEL, alpha=0.28)]  # fmt: skip
    for part, colour in palette.PART_COLOURS.items():
        us = np.array([layer.parts.get(part, 0.0) for layer in layers])
        sums = [sum(layer.parts.values()) for layer in layers]
        texts = [f"{n:,.1f} \u00b5s, {all_:,.1f} in all" for n, all_ in zip(us, sums, strict=True)]
        marks.append(Bars(name=part, colour=colour, left=base, right=base + us, low=places - 0.25,
                          high=places + 0.25, more={"text": texts},
                          tip=f"<div><b>{part}</b><br>@text</div>"))  # fmt: skip
        base = base + us
    return Figure(
        x=FigureAxis(
            label="time (\u00b5s), all layers of a kind; grey: as it was",
            ends=(0.0, 1.05 * max([*before, *base], default=1.0)),
        ),
        y=FigureAxis(names=[layer.name for layer in layers], ends=(count - 0.4, -0.6)),
        marks=marks,
        pixels=17 * count + 70,
        place="layers",
    )
