"""The memories of a device, with the bytes a call moved on the arrows between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from npusim.machine.device.spec import Device
from npusim.results.facts import metrics
from npusim.results.facts.metrics import PathTotal
from npusim.results.facts.number_text import bytes_text, percent_text
from npusim.results.shown import palette
from npusim.results.shown.figure import Axis, Bars, Figure, Line, Mark, Words

#: Half the sides of a box, in columns and in rows, and the columns between arrows around the boxes.
_WIDE, _HIGH, _LANE = 0.43, 0.17, 0.5
#: Arrows are as thick as the root of their bytes, at most this.
_THICKEST, _THINNEST = 6.0, 1.4


class Arrow(NamedTuple):
    """All moves of one path: bytes, share found in the L2, and what tells them apart."""

    src: str
    dst: str
    bytes: int
    hit_share: float | None
    colour: str
    told: str


class _Place(NamedTuple):
    """Where a memory stands: its column (of its middle) and its row."""

    column: float
    row: int


def arrows(device: Device, totals: Sequence[PathTotal]) -> tuple[Arrow, ...]:
    """Paths between memories with their operands added up; those that moved nothing are left out.

    GM is what the cores address: the L2 where there is one, else main memory.
    """
    grouped: dict[tuple[str, str], list[PathTotal]] = {}
    for one in totals:
        if one.bytes and one.src != "IMM":  # an immediate comes from no memory
            grouped.setdefault((one.src, one.dst), []).append(one)
    gm = "L2" if device.l2 is not None else _main_memory(totals)
    return tuple(_arrow(device, gm, parts) for parts in grouped.values())


def _arrow(device: Device, gm: str, parts: Sequence[PathTotal]) -> Arrow:
    src, dst = parts[0].src, parts[0].dst
    whole, hits = sum(one.bytes for one in parts), sum(one.kept_bytes for one in parts)
    cached = device.l2 is not None and any(one.hit_share is not None for one in parts)
    told = ", ".join(f"{one.operand} {bytes_text(one.bytes)}" for one in parts if one.operand)
    path = device.paths.get(f"{src}->{dst}")
    colour = palette.work_colour(path.pipe) if path is not None else palette.KERNEL
    return Arrow(
        src=gm if src == "GM" else src,
        dst=gm if dst == "GM" else dst,
        bytes=whole,
        hit_share=hits / whole if cached else None,
        colour=colour,
        told=f"{src}\u2192{dst}: {bytes_text(whole)}" + (f" ({told})" if told else ""),
    )


def _main_memory(totals: Iterable[PathTotal]) -> str:
    """What main memory is called in the traffic, GM where it is not in it."""
    ends = (end for one in totals for end in (one.src, one.dst))
    return next((end for end in ends if end in metrics.MAIN_MEMORIES), "GM")


def drawn(device: Device, totals: Sequence[PathTotal]) -> Figure:
    """Boxes and arrows; without marks where nothing was moved."""
    # Without an L2, reads of GM are those of main memory: one arrow would start where it ends.
    found = tuple(one for one in arrows(device, totals) if one.src != one.dst)
    places = _layout(found) if found else {}
    columns = max((place.column for place in places.values()), default=0.0) + 1
    rows = max((place.row for place in places.values()), default=0) + 1
    passing = sum(_passes(one, places) for one in found)
    return Figure(
        x=Axis(ends=(-0.5, columns - 0.3 + _LANE * passing + 0.4 * (passing > 0))),
        y=Axis(ends=(rows - 0.7, -0.3)),
        marks=[*_filled(device, found, places), *_lines(found, places), *_boxes(device, places)],
        inches=(1.3 * (columns + _LANE * passing), 1.15 * rows),
        pixels=110 * rows,
        place="memories",
        about="bytes moved between memories; sizes of L1, L0 and UB are those of one core",
        bare=True,
    )


def _layout(found: Sequence[Arrow]) -> Mapping[str, _Place]:
    """Memories in rows by their distance from main memory, children below their parents.

    Below them all are those that only a unit fills, and what is filled from there.
    """
    names = dict.fromkeys(name for one in found for name in (one.src, one.dst))
    outer = next((name for name in names if name in metrics.MAIN_MEMORIES), "")
    outer = outer or next((name for name in ("L2", "GM") if name in names), next(iter(names)))
    first = {outer: 0} | ({"L2": 1} if "L2" in names and outer != "L2" else {})
    depth = _depths(found, first)
    outputs = [name for name in names if name not in depth and _unfilled(found, name)]
    depth = _depths(found, {**depth, **dict.fromkeys(outputs, max(depth.values()) + 1)})
    children: dict[str, list[str]] = {}
    for name in depth:
        above = [one.src for one in found if one.dst == name and depth[one.src] == depth[name] - 1]
        if above:
            children.setdefault(above[0], []).append(name)
        elif name == "L2" and name != outer:
            children.setdefault(outer, []).append(name)
    places: dict[str, _Place] = {}
    leaves = 0.0

    def put(name: str) -> float:
        nonlocal leaves
        below = [put(child) for child in children.get(name, ())]
        if not below:
            leaves += 1
        middle = (below[0] + below[-1]) / 2 if below else leaves - 1.0
        places[name] = _Place(middle, depth[name])
        return middle

    put(outer)
    wide = leaves > 1
    leaves = 0.5 if wide else 0.0
    for name in outputs:
        put(name)
    return places


def _unfilled(found: Sequence[Arrow], name: str) -> bool:
    """Whether no move ends in a memory."""
    return all(one.dst != name for one in found)


def _depths(found: Sequence[Arrow], first: Mapping[str, int]) -> dict[str, int]:
    """Steps along the moves from memories whose own are known."""
    depth = dict(first)
    now = list(first)
    while now:
        ends = dict.fromkeys(one.dst for one in found if one.src in now and one.dst not in depth)
        before = {one.dst: one.src for one in found if one.src in now and one.dst in ends}
        depth.update({name: depth[before[name]] + 1 for name in ends})
        now = list(ends)
    return depth


def _passes(one: Arrow, places: Mapping[str, _Place]) -> bool:
    """Whether an arrow passes rows of others, and has to go around them."""
    return abs(places[one.src].row - places[one.dst].row) != 1


def _boxes(device: Device, places: Mapping[str, _Place]) -> Iterator[Mark]:
    """The memories with their names and sizes."""
    x, y = (np.array([place[at] for place in places.values()], float) for at in (0, 1))
    if len(x):
        yield Bars(left=x - _WIDE, right=x + _WIDE, low=y - _HIGH, high=y + _HIGH,
                   colour=palette.KERNEL, alpha=0.2)  # fmt: skip
        sizes = [_size(device, name) for name in places]
        above = np.array([7.0 if size else 0.0 for size in sizes])
        for up in np.unique(above).tolist():
            names = [name for name, own in zip(places, above, strict=True) if own == up]
            of = above == up
            yield Words(x=x[of], y=y[of], texts=names, side="center", shift=(0, up))
        yield Words(x=x, y=y, texts=sizes, side="center", shift=(0, -7), size=8)


def _size(device: Device, name: str) -> str:
    if name in device.memories:
        return f"{_short(device.memories[name].size_bytes)} each"  # of the cores
    if name == "L2" and device.l2 is not None:
        return _short(device.l2.size_bytes)
    return _short(device.main_memory.size_bytes) if name in metrics.MAIN_MEMORIES else ""


def _short(size: int) -> str:
    """A size without a decimal that is 0, so that it fits its box on a narrow page."""
    return bytes_text(size).replace(".0 ", " ")


def _filled(device: Device, found: Sequence[Arrow], places: Mapping[str, _Place]) -> Iterator[Mark]:
    """Dashes from the memories the matrix unit reads to that it writes."""
    results = [place for name, place in places.items() if place.row and _unfilled(found, name)]
    inner = [
        place
        for name, place in places.items()
        if results and place.row == results[0].row - 1 and all(name != one.src for one in found)
    ]
    for one in inner if device.cube is not None else ():
        ends = (one.row + _HIGH, results[0].row - _HIGH)
        yield Line(x=(one.column, results[0].column), y=ends, dash=":", width=1.0)
    if inner and device.cube is not None:
        at = [results[0].column], [results[0].row - 0.5]
        yield Words(x=at[0], y=at[1], texts=["cube"], side="center", size=8)


def _lines(found: Sequence[Arrow], places: Mapping[str, _Place]) -> Iterator[Mark]:
    """An arrow for each path, those that pass a row by the right of all boxes."""
    most = max((one.bytes for one in found), default=1)
    lane = max((place.column for place in places.values()), default=0.0) + 0.8
    ends = _ends(found, places)
    labels: list[Mark] = []
    for one in sorted(found, key=lambda one: -one.bytes):
        (x1, y1), (x2, y2) = places[one.src], places[one.dst]
        told = bytes_text(one.bytes)
        if one.hit_share is not None:
            told += f"\n{percent_text(one.hit_share)} L2 hits"
        down, line = 1 if y2 > y1 else -1, list[tuple[float, float]]()
        if _passes(one, places):
            line = [(x1 + _WIDE, y1), (lane, y1), (lane, y2), (x2 + _WIDE + 0.05, y2)]
            at, turn, lane = (lane, (y1 + y2) / 2), 90.0, lane + _LANE
        else:
            x1, x2 = x1 + ends[one.src, one], x2 + ends[one.dst, one]
            line = [(x1, y1 + down * _HIGH), (x2, y2 - down * (_HIGH + 0.05))]
            at, turn = ((x1 + x2) / 2, (y1 + y2) / 2 - 0.08 * down), 90.0 + 90.0 * down
        x, y = zip(*line, strict=True)
        width = max(_THINNEST, _THICKEST * sqrt(one.bytes / most))
        yield Line(x=x, y=y, colour=one.colour, width=width)
        tip: Any = {"more": {"told": [one.told]}, "tip": "<div>@told</div>"}
        size, colour = 6 + width, one.colour
        yield Line(x=x[-1:], y=y[-1:], dash="", marker="^", turn=turn, size=size, colour=colour,
                   **tip)  # fmt: skip
        side, shift = ("right", -8.0) if turn == 180 else ("left", 8.0)
        labels.append(
            Words(
                x=[at[0]],
                y=[at[1]],
                texts=[told],
                side=side,
                shift=(shift, 0),
                size=8,
                covers=True,
            )
        )
    yield from labels  # above all arrows, so that none strikes one out


def _ends(
    found: Sequence[Arrow], places: Mapping[str, _Place]
) -> Mapping[tuple[str, Arrow], float]:
    """Where arrows between neighbouring rows meet a box: side by side, so that none cross."""
    edges: dict[tuple[str, int], list[tuple[float, bool, Arrow]]] = {}
    for one in found:
        if not _passes(one, places):
            up = places[one.dst].row < places[one.src].row
            for name, other in ((one.src, one.dst), (one.dst, one.src)):
                meeting = edges.setdefault((name, places[other].row), [])
                meeting.append((places[other].column, up, one))
    return {
        (name, one): (at - (len(meeting) - 1) / 2) * min(0.4, 0.75 / max(1, len(meeting) - 1))
        for (name, _), meeting in edges.items()
        for at, (_, _, one) in enumerate(sorted(meeting, key=lambda end: end[:2]))
    }
