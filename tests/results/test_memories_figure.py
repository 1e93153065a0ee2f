"""The drawing of memories: labels that neither arrows strike out nor boxes or others hide."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

import npusim
from npusim.base.records import replace
from npusim.results.facts.metrics import PathTotal
from npusim.results.shown.figure import Bars, Figure, LineMark, Words
from npusim.results.shown.figures import memories

GIB = 1 << 30

#: Paths that moved bytes, by device and what it did; of each its ends, GiB and hits in the L2.
MOVES = {
    "step": ("ascend910b2", "GM>L1 12.2 0.95, GM>UB 6.3 0.8, L1>BT 0.0001, L1>L0A 8.6, "
             "L1>L0B 8.1, L0C>GM 1.4, UB>GM 2.7, HBM>L2 1.9, L2>HBM 1.1"),
    "alike": ("ascend910b2", "GM>L1 0.988 1, GM>UB 0.988 1, L1>L0A 0.988, L1>L0B 0.988, "
              "L0C>GM 0.988, UB>GM 0.988, HBM>L2 0.988"),
    "through UB": ("ascend910", "GM>L1 7 0.94, GM>UB 4.4 0.43, L1>L0A 17, L1>L0B 18.3, "
                   "L0C>UB 0.655, UB>GM 4.5, HBM>L2 2.9, L2>HBM 1.1"),
    "two ways out": ("ascend950pr", "GM>L1 7 0.94, GM>UB 4.4 0.43, L1>L0A 17, L1>L0B 18.3, "
                     "L1>BT 0.1, L0C>UB 0.655, L0C>GM 0.655, UB>L1 3, UB>GM 4.5, HBM>L2 2.9"),
    "from main memory": ("ft78ne", "GM>AM 3.3, GM>SM 1.2, AM>GM 2.2"),
}  # fmt: skip


def drawn(name: str) -> Figure:
    """The drawing of one of ``MOVES``."""
    device, moves = MOVES[name]
    totals = []
    for move in moves.split(", "):
        path, gib, *share = move.split()
        src, dst = path.split(">")
        count = int(float(gib) * GIB)
        hits = int(float(share[0]) * count) if share else 0
        misses = count - hits if share else 0
        totals.append(PathTotal(src, dst, "", count, hits, misses, misses))
    return memories.drawn(npusim.load_device(device), totals)


class Drawing:
    """What a page draws of a figure that is so many pixels wide: texts, boxes, points of lines."""

    def __init__(self, figure: Figure, width: float) -> None:
        assert figure.x.ends is not None
        assert figure.y.ends is not None
        (left, right), (low, high) = figure.x.ends, figure.y.ends
        self.scale = np.array([width / (right - left), figure.pixels / (high - low)])
        self.origin = np.array([left, low])
        self.texts: dict[str, np.ndarray] = {}
        self.boxes: list[np.ndarray] = []
        self.lines: list[np.ndarray] = []
        for mark in figure.marks:
            if isinstance(mark, Words):
                self._write(mark)
            elif isinstance(mark, Bars):
                corners = zip(mark.left, mark.low, mark.right, mark.high, strict=True)
                self.boxes += [np.sort(self.at(np.reshape(box, (2, 2))), axis=0) for box in corners]
            elif isinstance(mark, LineMark) and mark.dash == "-":
                self._rule(self.at(np.stack([mark.x, mark.y], axis=1)))

    def at(self, points: np.ndarray) -> np.ndarray:
        """Pixels of points, the second axis downwards."""
        pixels: np.ndarray = (points - self.origin) * self.scale * np.array([1, -1])
        return pixels

    def _rule(self, corners: np.ndarray) -> None:
        """Keep many points of a line."""
        shares = np.linspace(0, 1, 400)[:, None]
        self.lines += [start + shares * (end - start) for start, end in pairwise(corners)]

    def _write(self, words: Words) -> None:
        """Keep the rectangles of labels; what stands in boxes, and what fills L0C, is none."""
        if not any(text[0].isdigit() for text in words.texts) or len(words.texts) > 1:
            return
        ((x, y),) = self.at(np.stack([words.x, words.y], axis=1))
        (text,) = words.texts
        lines = text.split("\n")
        size = words.size * 4 / 3
        wide, high = 0.52 * size * max(map(len, lines)), 1.1 * size * len(lines)
        left = x + words.shift[0] - {"left": 0.0, "center": wide / 2, "right": wide}[words.side]
        middle = y - words.shift[1]
        rect = np.array([[left, middle - high / 2], [left + wide, middle + high / 2]])
        self.texts[f"{text} of {len(self.texts)}"] = rect

    def covered(self) -> list[str]:
        """Labels that something covers, or that are cut off at a side."""
        seen = []
        for name, rect in self.texts.items():
            points = np.concatenate(self.lines)
            if ((points > rect[0]) & (points < rect[1])).all(axis=1).any():
                seen.append(f"a line through {name}")
            seen += [f"a box on {name}" for box in self.boxes if _meet(rect, box)]
        pairs = combinations(self.texts.items(), 2)
        seen += [f"{one} on {other}" for (one, a), (other, b) in pairs if _meet(a, b)]
        return seen


def _meet(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((np.maximum(one[0], other[0]) < np.minimum(one[1], other[1])).all())


@pytest.mark.parametrize("width", [350, 400, 500, 600])
@pytest.mark.parametrize("name", MOVES)
def test_labels_are_clear_of_arrows_boxes_and_each_other(name: str, width: float) -> None:
    drawing = Drawing(drawn(name), width)
    assert len(drawing.texts) == MOVES[name][1].count(">")
    assert drawing.covered() == []


def test_a_label_on_an_arrow_is_seen() -> None:
    figure = drawn("from main memory")
    line = next(mark for mark in figure.marks if isinstance(mark, LineMark))
    middle = [np.mean(line.x)], [np.mean(line.y)]
    struck = Words(x=middle[0], y=middle[1], texts=["1.0 GiB"])
    figure = replace(figure, marks=[*figure.marks, struck])
    assert any("a line through 1.0 GiB" in text for text in Drawing(figure, 350).covered())
