"""The memories of a device, with the bytes a call moved on the arrows between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from npusim.machine.device.spec import Device
from npusim.results.facts import metrics
from npusim.results.facts.metrics import PathTotal
from npusim.results.facts.number_text import bytes_text, percent_text
from npusim.results.shown import palette
from npusim.results.shown.figure import Bars, Figure, FigureAxis, LineMark, Mark, Words
from npusim.results.shown.figures import labels

#: Half the sides of a box, in columns and in rows, and the columns between arrows around the boxes.
_WIDE, _HIGH, _LANE = 0.43, 0.17, 0.5
#: Arrows are as thick as the root of their bytes, at most this.
_THICKEST, _THINNEST = 6.0, 1.4
#: Rows from the middle of a row to the arrows along it.
_APART = 0.06
#: Pixels of a row, and of the width of a figure at most.
_ROW, _WIDEST = 110, 600


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
    for total in totals:
        if total.bytes and total.src != "IMM":  # an immediate comes from no memory
            grouped.setdefault((total.src, total.dst), []).append(total)
    gm = "L2" if device.l2 is not None else _main_memory(totals)
    return tuple(_arrow(device, gm, parts) for parts in grouped.values())


def _arrow(device: Device, gm: str, parts: Sequence[PathTotal]) -> Arrow:
    src, dst = parts[0].src, parts[0].dst
    moved_bytes, hits = sum(part.bytes for part in parts), sum(part.kept_bytes for part in parts)
    cached = device.l2 is not None and any(part.hit_share is not None for part in parts)
    operands = ", ".join(
        f"{part.operand} {bytes_text(part.bytes)}" for part in parts if part.operand
    )
    path = device.paths.get(f"{src}->{dst}")
    colour = palette.work_colour(path.pipe) if path is not None else palette.KERNEL
    return Arrow(
        src=gm if src == "GM" else src,
        dst=gm if dst == "GM" else dst,
        bytes=moved_bytes,
        hit_share=hits / moved_bytes if cached else None,
        colour=colour,
        told=f"{src}\u2192{dst}: {bytes_text(moved_bytes)}"
        + (f" ({operands})" if operands else ""),
    )


def _main_memory(totals: Iterable[PathTotal]) -> str:
    """Name of main memory in the traffic, GM where it is not in it."""
    ends = (end for total in totals for end in (total.src, total.dst))
    return next((end for end in ends if end in metrics.MAIN_MEMORIES), "GM")


def drawn(device: Device, totals: Sequence[PathTotal]) -> Figure:
    """Boxes and arrows; without marks where nothing was moved."""
    # Without an L2, reads of GM are those of main memory: one arrow would start where it ends.
    between = tuple(arrow for arrow in arrows(device, totals) if arrow.src != arrow.dst)
    places = _layout(between) if between else {}
    columns = max((place.column for place in places.values()), default=0.0) + 1
    rows = max((place.row for place in places.values()), default=0) + 1
    passing = sum(_passes(arrow, places) for arrow in between)
    ends = (-0.5, columns - 0.3 + _LANE * passing + (_LANE if passing else 0.0))
    return Figure(
        x=FigureAxis(ends=ends),
        y=FigureAxis(ends=(rows - 0.7, -0.3)),
        marks=[
            *_filled(device, between, places),
            *_lines(between, places),
            *_labels(between, places, ends),
            *_boxes(device, places),
        ],
        inches=(1.3 * (columns + _LANE * passing), 1.15 * rows),
        pixels=_ROW * rows,
        place="memories",
        widest=_WIDEST,
        about="bytes moved between memories",
        caption=_about_sizes(device, places),
        bare=True,
    )


def _layout(moves: Sequence[Arrow]) -> Mapping[str, _Place]:
    """Memories in rows by their distance from main memory, children below their parents.

    Below them all are those that only a unit fills, and what is filled from there.
    """
    names = dict.fromkeys(name for arrow in moves for name in (arrow.src, arrow.dst))
    outer = next((name for name in names if name in metrics.MAIN_MEMORIES), "")
    outer = outer or next((name for name in ("L2", "GM") if name in names), next(iter(names)))
    first = {outer: 0} | ({"L2": 1} if "L2" in names and outer != "L2" else {})
    depth = _depths(moves, first)
    outputs = [name for name in names if name not in depth and _unfilled(moves, name)]
    depth = _depths(moves, {**depth, **dict.fromkeys(outputs, max(depth.values()) + 1)})
    children: dict[str, list[str]] = {}
    for name in depth:
        above = [
            arrow.src
            for arrow in moves
            if arrow.dst == name and depth[arrow.src] == depth[name] - 1
        ]
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


def _unfilled(moves: Sequence[Arrow], name: str) -> bool:
    """True if no move ends in a memory."""
    return all(arrow.dst != name for arrow in moves)


def _depths(moves: Sequence[Arrow], first: Mapping[str, int]) -> dict[str, int]:
    """Steps along the moves from memories whose own are known."""
    depth = dict(first)
    now = list(first)
    while now:
        ends = dict.fromkeys(
            arrow.dst for arrow in moves if arrow.src in now and arrow.dst not in depth
        )
        before = {arrow.dst: arrow.src for arrow in moves if arrow.src in now and arrow.dst in ends}
        depth.update({name: depth[before[name]] + 1 for name in ends})
        now = list(ends)
    return depth


def _passes(arrow: Arrow, places: Mapping[str, _Place]) -> bool:
    """True if an arrow passes rows of others, and has to go around them."""
    return abs(places[arrow.src].row - places[arrow.dst].row) > 1


def _boxes(device: Device, places: Mapping[str, _Place]) -> Iterator[Mark]:
    """The memories with their names and sizes."""
    if not places:
        return
    x = np.array([place.column for place in places.values()], float)
    y = np.array([place.row for place in places.values()], float)
    yield Bars(
        left=x - _WIDE,
        right=x + _WIDE,
        low=y - _HIGH,
        high=y + _HIGH,
        colour=palette.KERNEL,
        alpha=0.2,
    )
    sizes = [_size(device, name) for name in places]
    # A name stands in the middle of its box, or above its size.
    shifts = np.array([7.0 if size else 0.0 for size in sizes])
    for shift in np.unique(shifts).tolist():
        chosen = shifts == shift
        names = [name for name, is_chosen in zip(places, chosen, strict=True) if is_chosen]
        yield Words(x=x[chosen], y=y[chosen], texts=names, side="center", shift=(0, shift))
    yield Words(x=x, y=y, texts=sizes, side="center", shift=(0, -7), size=8)


def _about_sizes(device: Device, places: Mapping[str, _Place]) -> str:
    """A sentence on the memories that every core has, "" without them."""
    names = [name for name in places if name in device.memories]
    return f"Sizes of {', '.join(names)} are those of one core." if names else ""


def _size(device: Device, name: str) -> str:
    if name in device.memories:
        return _short(device.memories[name].size_bytes)
    if name == "L2" and device.l2 is not None:
        return _short(device.l2.size_bytes)
    return _short(device.main_memory.size_bytes) if name in metrics.MAIN_MEMORIES else ""


def _short(size: int) -> str:
    """A size without a decimal that is 0, so that it fits its box on a narrow page."""
    return bytes_text(size).replace(".0 ", " ")


def _filled(device: Device, moves: Sequence[Arrow], places: Mapping[str, _Place]) -> Iterator[Mark]:
    """Dashes from the memories the matrix unit reads to that it writes."""
    results = [place for name, place in places.items() if place.row and _unfilled(moves, name)]
    inner = [
        place
        for name, place in places.items()
        if results
        and place.row == results[0].row - 1
        and all(name != reader.src for reader in moves)
    ]
    for reader in inner if device.cube is not None else ():
        ends = (reader.row + _HIGH, results[0].row - _HIGH)
        yield LineMark(x=(reader.column, results[0].column), y=ends, dash=":", width=1.0)
    if inner and device.cube is not None:
        x, y = [results[0].column], [results[0].row - 0.5]
        yield Words(x=x, y=y, texts=["cube"], side="center", size=8, covers=True)


class _Route(NamedTuple):
    """The way of an arrow: its corners, and its head's turn in degrees."""

    corners: Sequence[tuple[float, float]]
    turn: float


def _routes(moves: Sequence[Arrow], places: Mapping[str, _Place]) -> list[tuple[Arrow, _Route]]:
    """The way of each path, most bytes first; by the right of all boxes where it passes a row."""
    lane = max((place.column for place in places.values()), default=0.0) + 0.8
    ends = _ends(moves, places)
    routes = []
    for arrow in sorted(moves, key=lambda arrow: -arrow.bytes):
        if _passes(arrow, places):
            route = _around(places[arrow.src], places[arrow.dst], lane)
            lane += _LANE
        elif places[arrow.src].row == places[arrow.dst].row:
            route = _level(places[arrow.src], places[arrow.dst])
        else:
            shifts = (ends[arrow.src, arrow], ends[arrow.dst, arrow])
            route = _straight(places[arrow.src], places[arrow.dst], shifts)
        routes.append((arrow, route))
    return routes


def _lines(moves: Sequence[Arrow], places: Mapping[str, _Place]) -> Iterator[Mark]:
    """An arrow for each path."""
    most = max((arrow.bytes for arrow in moves), default=1)
    for arrow, route in _routes(moves, places):
        x, y = zip(*route.corners, strict=True)
        width = max(_THINNEST, _THICKEST * sqrt(arrow.bytes / most))
        yield LineMark(x=x, y=y, colour=arrow.colour, width=width)
        yield LineMark(
            x=x[-1:],
            y=y[-1:],
            dash="",
            marker="^",
            turn=route.turn,
            size=6 + width,
            colour=arrow.colour,
            more={"told": [arrow.told]},
            tip="<div>@told</div>",
        )


def _around(start: _Place, end: _Place, lane: float) -> _Route:
    """The way from one box to another by the column ``lane``, to the right of all boxes."""
    corners = [
        (start.column + _WIDE, start.row),
        (lane, start.row),
        (lane, end.row),
        (end.column + _WIDE + 0.05, end.row),
    ]
    return _Route(corners, 90.0)


def _straight(start: _Place, end: _Place, shifts: tuple[float, float]) -> _Route:
    """The way between boxes of neighbouring rows, whose ends stand ``shifts`` columns aside."""
    down = 1 if end.row > start.row else -1
    x1 = start.column + shifts[0]
    x2 = end.column + shifts[1]
    corners = [(x1, start.row + down * _HIGH), (x2, end.row - down * (_HIGH + 0.05))]
    return _Route(corners, 90.0 + 90.0 * down)


def _level(start: _Place, end: _Place) -> _Route:
    """The way between boxes of one row; to the left it is the lower of two."""
    right = 1 if end.column > start.column else -1
    row = start.row - right * _APART
    corners = [(start.column + right * _WIDE, row), (end.column - right * (_WIDE + 0.05), row)]
    return _Route(corners, 180.0 + 90.0 * right)


def _labels(
    moves: Sequence[Arrow], places: Mapping[str, _Place], ends: tuple[float, float]
) -> Iterator[Words]:
    """The bytes of each arrow and its share of hits, where they cover nothing; ``ends`` of x."""
    routes = _routes(moves, places)
    boxes = [
        (place.column - _WIDE, place.column + _WIDE, place.row - _HIGH, place.row + _HIGH)
        for place in places.values()
    ]
    rows = max((place.row for place in places.values()), default=0) + 1
    scene = labels.Scene(
        boxes=boxes,
        lines=[route.corners for _, route in routes],
        first=ends[0],
        last=ends[1],
        row=_ROW * rows / (rows - 0.4),
    )
    texts = {number: _label(arrow) for number, (arrow, _) in enumerate(routes)}
    for number, place in labels.placed(texts, scene).items():
        yield Words(
            x=[place.x],
            y=[place.y],
            texts=[texts[number]],
            side=place.side,
            shift=place.shift,
            size=8,
        )


def _label(arrow: Arrow) -> str:
    """The bytes of an arrow and its share of hits."""
    text = bytes_text(arrow.bytes)
    if arrow.hit_share is not None:
        text += f"\n{percent_text(arrow.hit_share)} hits"
    return text


def _ends(
    moves: Sequence[Arrow], places: Mapping[str, _Place]
) -> Mapping[tuple[str, Arrow], float]:
    """Where arrows between neighbouring rows meet a box: side by side, so that none cross."""
    edges: dict[tuple[str, int], list[tuple[float, bool, Arrow]]] = {}
    for arrow in moves:
        if abs(places[arrow.src].row - places[arrow.dst].row) == 1:
            up = places[arrow.dst].row < places[arrow.src].row
            for name, other in ((arrow.src, arrow.dst), (arrow.dst, arrow.src)):
                meeting = edges.setdefault((name, places[other].row), [])
                meeting.append((places[other].column, up, arrow))
    return {
        (name, arrow): (rank - (len(meeting) - 1) / 2) * min(0.4, 0.75 / max(1, len(meeting) - 1))
        for (name, _), meeting in edges.items()
        for rank, (_, _, arrow) in enumerate(sorted(meeting, key=lambda end: end[:2]))
    }
