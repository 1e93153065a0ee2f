"""The memories of a device as a drawing, with the bytes a call moved on the arrows between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import sqrt
from typing import NamedTuple

from npusim.device.spec import Device
from npusim.results import metrics, palette
from npusim.results.lines import bytes_text, percent_text
from npusim.results.metrics import PathTotal

#: Sizes of the drawing, in pixels of its own.
_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _ROW, _GUTTER, _LANE, _TOP = 112, 40, 130, 118, 64, 68, 8
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
    whole, hits = sum(one.bytes for one in parts), sum(one.hit_bytes for one in parts)
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


def draw(device: Device, totals: Sequence[PathTotal]) -> str:
    """The drawing as SVG; empty where nothing was moved."""
    # Without an L2, reads of GM are those of main memory: one arrow would start where it ends.
    found = tuple(one for one in arrows(device, totals) if one.src != one.dst)
    if not found:
        return ""
    places = _layout(found)
    columns = max(place.column for place in places.values()) + 1
    rows = max(place.row for place in places.values()) + 1
    passing = sum(_passes(one, places) for one in found)
    width = columns * _COLUMN + bool(passing) * (_GUTTER + _LANE * (passing - 1))
    height = 2 * _TOP + (rows - 1) * _ROW + _BOX_HEIGHT
    drawn = _filled(device, found, places) + _drawn(found, places, columns)
    boxes = "".join(_box(device, name, place) for name, place in places.items())
    return (
        f'<figure><svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        'aria-label="bytes moved between memories">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6.5" refY="4" markerWidth="14" '
        'markerHeight="14" markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>'
        f"{drawn}{boxes}</svg></figure>"
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


def _middle(place: _Place) -> tuple[float, float]:
    return (place.column + 0.5) * _COLUMN, _TOP + place.row * _ROW + _BOX_HEIGHT / 2


def _box(device: Device, name: str, place: _Place) -> str:
    """A memory with its name and its size."""
    x, y = _middle(place)
    size = _size(device, name)
    lines = [(name, "name")] + ([(size, "dim")] if size else [])
    texts = "".join(
        f'<text class="{kind}" x="{x:g}" y="{y + 4 + (at - (len(lines) - 1) / 2) * 15:g}" '
        f'text-anchor="middle">{escape(text)}</text>'
        for at, (text, kind) in enumerate(lines)
    )
    return (
        f'<rect class="node" x="{x - _BOX_WIDTH / 2:g}" y="{y - _BOX_HEIGHT / 2:g}" '
        f'width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>{texts}'
    )


def _size(device: Device, name: str) -> str:
    if name in device.memories:
        return f"{bytes_text(device.memories[name].size_bytes)} a core"
    if name == "L2" and device.l2 is not None:
        return bytes_text(device.l2.size_bytes)
    return bytes_text(device.main_memory.size_bytes) if name in metrics.MAIN_MEMORIES else ""


def _filled(device: Device, found: Sequence[Arrow], places: Mapping[str, _Place]) -> str:
    """Dashes from the memories the matrix unit reads to that it writes."""
    results = [name for name, at in places.items() if at.row and _unfilled(found, name)]
    inner = [
        name
        for name, at in places.items()
        if results
        and at.row == places[results[0]].row - 1
        and all(name != one.src for one in found)
    ]
    if device.cube is None or not inner:
        return ""
    (x2, y2), top = _middle(places[results[0]]), _BOX_HEIGHT / 2
    lines = (
        f'<path class="fills" d="M{x:g} {y + top:g}L{x2:g} {y2 - top:g}"/>'
        for x, y in (_middle(places[name]) for name in inner)
    )
    return "".join(lines) + _words(["cube"], (x2, y2 - _ROW / 2))


def _drawn(found: Sequence[Arrow], places: Mapping[str, _Place], columns: float) -> str:
    """Lines first, then labels, so that no line crosses a label."""
    most = max(one.bytes for one in found)
    lines, labels, lane = [], [], columns * _COLUMN + 26
    ends = _ends(found, places)
    for one in sorted(found, key=lambda one: -one.bytes):
        width = max(_THINNEST, _THICKEST * sqrt(one.bytes / most))
        if _passes(one, places):
            path, at = _around(places, one, lane)
            lane += _LANE
        else:
            path, at = _straight(places, one, ends)
        lines.append(
            f'<path d="{path}" fill="none" stroke="{one.colour}" stroke-width="{width:.1f}" '
            f'marker-end="url(#tip)"><title>{escape(one.told)}</title></path>'
        )
        told = [bytes_text(one.bytes)]
        if one.hit_share is not None:
            told.append(f"{percent_text(one.hit_share)} L2 hits")
        labels.append(_words(told, at))
    return "".join((*lines, *labels))


def _ends(
    found: Sequence[Arrow], places: Mapping[str, _Place]
) -> Mapping[tuple[str, Arrow], float]:
    """Where arrows between neighbouring rows meet a box: side by side, so that none cross."""
    edges: dict[tuple[str, int], list[Arrow]] = {}
    for one in found:
        if not _passes(one, places):
            for name, other in ((one.src, one.dst), (one.dst, one.src)):
                edges.setdefault((name, places[other].row), []).append(one)
    ends = {}
    for (name, _), meeting in edges.items():

        def order(one: Arrow, name: str = name) -> tuple[float, bool]:
            other = one.dst if one.src == name else one.src
            return places[other].column, places[one.dst].row < places[one.src].row

        step = min(40.0, (_BOX_WIDTH - 16) / max(1, len(meeting) - 1))
        for at, one in enumerate(sorted(meeting, key=order)):
            ends[name, one] = (at - (len(meeting) - 1) / 2) * step
    return ends


def _straight(
    places: Mapping[str, _Place], one: Arrow, ends: Mapping[tuple[str, Arrow], float]
) -> tuple[str, tuple[float, float]]:
    """Between neighbouring rows; bytes stand higher at arrows that go down, where two are near."""
    (x1, y1), (x2, y2) = _middle(places[one.src]), _middle(places[one.dst])
    down = 1 if y2 > y1 else -1
    x1, x2 = x1 + ends[one.src, one], x2 + ends[one.dst, one]
    y1, y2 = y1 + down * _BOX_HEIGHT / 2, y2 - down * (_BOX_HEIGHT / 2 + 1)
    part = 0.46 if down > 0 else 0.2
    return f"M{x1:g} {y1:g}L{x2:g} {y2:g}", (x1 + (x2 - x1) * part, y1 + (y2 - y1) * part)


def _around(
    places: Mapping[str, _Place], one: Arrow, gutter: float
) -> tuple[str, tuple[float, float]]:
    """By the right of all boxes, for moves that pass a row."""
    (x1, y1), (x2, y2) = _middle(places[one.src]), _middle(places[one.dst])
    x1, x2 = x1 + _BOX_WIDTH / 2, x2 + _BOX_WIDTH / 2 + 1
    turn = 10 if y1 < y2 else -10
    path = (
        f"M{x1:g} {y1:g}H{gutter - 10:g}Q{gutter:g} {y1:g} {gutter:g} {y1 + turn:g}"
        f"V{y2 - turn:g}Q{gutter:g} {y2:g} {gutter - 10:g} {y2:g}H{x2:g}"
    )
    return path, (gutter, (y1 + y2) / 2)


def _words(lines: Sequence[str], at: tuple[float, float]) -> str:
    """Lines of text in the middle of ``at``, on a ground of their own."""
    x, y = at
    width, height = 6.4 * max(map(len, lines)) + 6, 15 * len(lines) + 2
    texts = "".join(
        f'<text x="{x:g}" y="{y + 11 + 15 * (place - len(lines) / 2):.1f}" text-anchor="middle">'
        f"{escape(text)}</text>"
        for place, text in enumerate(lines)
    )
    return (
        f'<rect class="back" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" '
        f'width="{width:.1f}" height="{height}" rx="3"/>{texts}'
    )
