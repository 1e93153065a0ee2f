"""Places of labels beside lines: clear of other lines, of boxes and of one another.

A page draws a figure as wide as there is room, and its texts always as large. So places are tried
in pixels, at several widths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from math import dist, inf
from typing import NamedTuple

#: Pixels of the width of a figure on a telephone, beside a table, and alone on a page.
WIDTHS = (350.0, 460.0, 600.0)

#: Pixels of a character and of a line of small text.
CHARACTER, LINE = 5.8, 13.0

#: Pixels that stay free around a text.
_FREE = 2.0

#: Shares of a line at which its label may stand, and its distances in pixels.
_ALONG = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9)
_SHIFTS = (7.0, 12.0, 18.0, 25.0, 33.0)

#: Sides of a text, and in which direction it is shifted across and up: beside a line that rises or
#: falls, and above or below one that is level.
_SIDES = (("left", 1, 0), ("right", -1, 0))
_LEVEL_SIDES = (("center", 0, 1), ("center", 0, -1))

#: Rounds in which each label looks for a better place among the others.
_ROUNDS = 3

#: Cost of a pixel of a line below a label, of a pixel of it outside of the figure, and of a step to
#: a place that is less usual.
_OF_LINE, _OF_EDGE, _OF_STEP = 6.0, 10.0, 2.0

#: A point in units of the axes.
Point = tuple[float, float]


class LabelPlace(NamedTuple):
    """Where a text is: at a point, which it begins at ("left"), ends at ("right") or surrounds.

    That is its ``side``; ``shift`` moves it across and up, in pixels.
    """

    x: float
    y: float
    side: str
    shift: tuple[float, float]


class Rect(NamedTuple):
    """A rectangle in pixels, from ``left`` to ``right`` and from ``top`` down to ``bottom``."""

    left: float
    top: float
    right: float
    bottom: float


class Scene(NamedTuple):
    """What labels must not cover, in units of the axes, and these axes.

    ``boxes`` are (left, right, top, bottom), ``lines`` have corners. The axes run from ``first`` to
    ``last`` across ``WIDTHS``, and have ``row`` pixels a unit down.
    """

    boxes: Sequence[tuple[float, float, float, float]]
    lines: Sequence[Sequence[Point]]
    first: float
    last: float
    row: float


class _Drawing:
    """A scene in pixels, at a width of its figure."""

    def __init__(self, scene: Scene, width: float) -> None:
        self.width = width
        self.first = scene.first
        self.scale = (width / (scene.last - scene.first), scene.row)
        self.boxes = [
            Rect(*self.at((left, top)), *self.at((right, bottom)))
            for left, right, top, bottom in scene.boxes
        ]
        self.lines = [
            ends
            for corners in scene.lines
            for ends in pairwise(self.at(point) for point in corners)
        ]

    def at(self, point: Point) -> Point:
        """The pixels of a point."""
        return (point[0] - self.first) * self.scale[0], point[1] * self.scale[1]

    def text_rect(self, place: LabelPlace, text: str) -> Rect:
        """What a text takes."""
        lines = text.split("\n")
        wide = CHARACTER * max(map(len, lines))
        high = LINE * len(lines)
        across, down = self.at((place.x, place.y))
        left = (
            across + place.shift[0] - {"left": 0.0, "center": wide / 2, "right": wide}[place.side]
        )
        top = down - place.shift[1] - high / 2
        return Rect(left, top, left + wide, top + high)

    def covered(self, rect: Rect, texts: Iterable[Rect]) -> float:
        """How much a text covers of lines, boxes and other texts, and how far it reaches out."""
        free = Rect(rect.left - _FREE, rect.top - _FREE, rect.right + _FREE, rect.bottom + _FREE)
        cost = _OF_EDGE * (max(0.0, -rect.left) + max(0.0, rect.right - self.width))
        cost += _OF_LINE * sum(within(start, end, free) for start, end in self.lines)
        cost += sum(_shared(free, box) for box in self.boxes)
        return cost + sum(_shared(free, text) for text in texts)


def placed(labels: Mapping[int, str], scene: Scene) -> dict[int, LabelPlace]:
    """A place for the label of each line of a scene, by the line's number.

    The middle of the steepest part of a line is the usual place.
    """
    drawings = [_Drawing(scene, width) for width in WIDTHS]
    places: dict[int, LabelPlace] = {}
    for _ in range(_ROUNDS):
        for line, text in labels.items():
            others = [(place, labels[other]) for other, place in places.items() if other != line]
            places[line] = _best(scene.lines[line], text, others, drawings)
    return places


def _best(
    corners: Sequence[Point],
    text: str,
    others: Sequence[tuple[LabelPlace, str]],
    drawings: Sequence[_Drawing],
) -> LabelPlace:
    """The place beside a line where its text covers least; of alike ones the most usual."""
    texts = [[drawing.text_rect(*other) for other in others] for drawing in drawings]
    best, least = None, inf
    for steps, place in _candidates(corners):
        cost = _OF_STEP * steps
        if best is not None and cost >= least:
            break  # those that follow are no more usual
        for drawing, rects in zip(drawings, texts, strict=True):
            cost += drawing.covered(drawing.text_rect(place, text), rects)
        if best is None or cost < least:
            best, least = place, cost
    assert best is not None
    return best


def _candidates(corners: Sequence[Point]) -> list[tuple[int, LabelPlace]]:
    """Places beside the steepest part of a line, by how many steps they are from the usual one."""
    start, end = max(pairwise(corners), key=_steepness)
    sides = _LEVEL_SIDES if start[1] == end[1] else _SIDES
    found = []
    for along, shift, (side, right, up) in product(_ALONG, _SHIFTS, sides):
        x = start[0] + along * (end[0] - start[0])
        y = start[1] + along * (end[1] - start[1])
        steps = _ALONG.index(along) + _SHIFTS.index(shift)
        found.append((steps, LabelPlace(x, y, side, (shift * right, shift * up))))
    return sorted(found, key=lambda candidate: candidate[0])


def _steepness(ends: tuple[Point, Point]) -> tuple[float, float]:
    """How far a straight line goes down or up, then how far across."""
    start, end = ends
    return abs(end[1] - start[1]), abs(end[0] - start[0])


def _shared(one: Rect, other: Rect) -> float:
    """Half the way round what two rectangles share, 0 where they are apart."""
    wide = min(one.right, other.right) - max(one.left, other.left)
    high = min(one.bottom, other.bottom) - max(one.top, other.top)
    return wide + high if wide > 0 and high > 0 else 0.0


def within(start: Point, end: Point, rect: Rect) -> float:
    """Length of the part of a straight line that is in a rectangle."""
    first, last = 0.0, 1.0
    for axis, low, high in ((0, rect.left, rect.right), (1, rect.top, rect.bottom)):
        step = end[axis] - start[axis]
        if step == 0:
            if not low < start[axis] < high:
                return 0.0
            continue
        enters, leaves = (low - start[axis]) / step, (high - start[axis]) / step
        first, last = max(first, min(enters, leaves)), min(last, max(enters, leaves))
        if first >= last:
            return 0.0
    return (last - first) * dist(start, end)
