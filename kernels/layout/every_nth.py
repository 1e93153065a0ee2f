"""Every n-th element of a tensor without the others, and back with zeros between.

    part[j] = whole[step * j + first]            or back, whole 0 elsewhere

Layouts: both without gaps, ``whole`` with ``step`` times the elements of ``part``; elements of 2 or
4 bytes. Single elements would be moved as slowly as blocks of 32 B, so whole rows are moved and
turned in UB: a matrix of ``16 * step`` columns has the elements of ``part`` in every ``step``-th of
its columns, which turned are rows.

for ``lines`` lines of 16 elements of the part, of this core:         # one task
    UB loaded (lines, 16 * step) <- whole                             # MTE2; of a short end: V
    UB turned (16 * step, lines) <- loaded                            # V
    UB picked (lines, 16) <- rows first, first + step, ... of turned  # V
    GM part <- picked                                                 # MTE3

Back: the same in the other direction, into rows of ``turned`` between which there are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import piece
from npusim.language import (
    ArgumentError,
    Device,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    in_runs,
    round_up,
)
from npusim.problem.work import LAYOUT

#: Elements of a line of the part, and lines that are turned together: a fractal has both.
_LINE = 16

#: Most bytes of the whole that a task moves: its load has full bandwidth.
_LOAD_BYTES = 32 * 1024


class Tile(NamedTuple):
    """``elements`` of the part; ``first`` of its core or a later one."""

    elements: int
    first: bool


@dataclass(frozen=True)
class EveryNth(Spread):
    """``part`` is every ``step``-th element of ``whole``, from element ``first`` on.

    The one whose role is "in" is read. Raises ``ArgumentError`` for other sizes or types.
    """

    whole: Tensor
    part: Tensor
    step: int
    first: int = 0

    name: ClassVar[str] = "every_nth"

    @property
    def work_class(self) -> str:
        return LAYOUT

    def __post_init__(self) -> None:
        whole = self.whole
        part = self.part
        if self.step < 2 or not 0 <= self.first < self.step:
            raise ArgumentError(
                f"every_nth: step is {self.step}, the first element {self.first}; the step must be "
                "at least 2, the first one of its elements"
            )
        if prod(whole.shape) != self.step * prod(part.shape) or not part.size_bytes:
            raise ArgumentError(
                f"every_nth: {whole.name} has shape {whole.shape}, {part.name} {part.shape}; of a "
                f"step of {self.step} the former needs {self.step} times the elements of the "
                "latter, which needs one"
            )
        if whole.dtype != part.dtype or whole.dtype.bytes not in (2, 4):
            raise ArgumentError(
                f"every_nth: {whole.name} is {whole.dtype}, {part.name} {part.dtype}; both must be "
                "of one type of 2 or 4 bytes"
            )
        if {whole.role, part.role} != {"in", "out"}:
            raise ArgumentError(
                f"every_nth: {whole.name} is {whole.role!r}, {part.name} {part.role!r}; one is "
                "read ('in') and the other written ('out')"
            )

    @property
    def tiling_text(self) -> str:
        return f"every {self.step}, from {self.first} on"

    @property
    def _reads_whole(self) -> bool:
        return self.whole.role == "in"

    def _most_lines(self, share: int) -> int:
        """Lines of a task where a core has a ``share`` of elements of the part."""
        line = _LINE * self.step * self.whole.dtype.bytes
        most = max(1, _LOAD_BYTES // line // _LINE) * _LINE
        return min(most, round_up(ceil_div(share, _LINE), _LINE))

    def stream(self, device: Device, cores: int) -> Stream:
        count = prod(self.part.shape)
        shares = [ceil_div(count, used) for used in range(1, cores + 1)]
        read = self.whole.size_bytes
        written = self.part.size_bytes
        turned = ("transpose", read), ("transpose", written)
        if not self._reads_whole:
            read, written = written, read
        tasks = np.array([ceil_div(count, _LINE * self._most_lines(share)) for share in shares])
        return Stream(read, written, tasks, turned)

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        dtype = self.whole.dtype
        count = prod(self.part.shape)
        wide = _LINE * self.step
        # Two slots of the whole and of the part, and the turned whole once.
        line = (3 * wide + 2 * _LINE) * dtype.bytes
        share = self._most_lines(ceil_div(count, cores))
        lines = piece(k, self.name, share, line, multiple=_LINE)
        nest = _Nest(self, k, lines)
        start = np.arange(0, count, lines * _LINE)
        core = in_runs(len(start), cores)
        first = np.diff(core, prepend=-1) != 0
        columns = {
            "elements": np.minimum(lines * _LINE, count - start),
            "first": np.zeros_like(first) if self._reads_whole else first,
        }
        bases = {"whole": start * self.step * dtype.bytes, "part": start * dtype.bytes}
        return Plan(Tasks(core, Tile, columns, bases), nest.emit)


class _Nest:
    """The program of a tile, on buffers of so many ``lines``.

    Lines are rows of a matrix in UB. Turned, each element of a line is a row, and the part has one
    such row of every ``step``.
    """

    def __init__(self, kernel: EveryNth, k: Language, lines: int) -> None:
        self.kernel = kernel
        self.k = k
        self.dtype = kernel.whole.dtype
        self.wide = _LINE * kernel.step  # elements of a line of the whole
        self.pitch = lines * self.dtype.bytes  # of the turned whole
        size = lines * self.wide
        self.whole = k.buffer("UB", (size,), self.dtype, slots=2, name="whole_ub")
        self.part = k.buffer("UB", (lines * _LINE,), self.dtype, slots=2, name="part_ub")
        self.turned = k.buffer("UB", (size,), self.dtype, name="turned")

    def emit(self, u: Tile) -> None:
        """Load lines of one side, turn them, take or place rows, turn them back, store."""
        whole = self.whole.next()
        part = self.part.next()
        if self.kernel._reads_whole:
            self._take(u, whole, part)
        else:
            self._place(u, whole, part)

    def _lines(self, u: Tile) -> int:
        """Lines of a tile, whole blocks of them."""
        return round_up(ceil_div(u.elements, _LINE), _LINE)

    def _take(self, u: Tile, whole: Slot, part: Slot) -> None:
        """Part <- every n-th element of the whole."""
        k = self.k
        kernel = self.kernel
        lines = self._lines(u)
        row = lines * self.dtype.bytes
        turned = self.turned.next()
        self._load(u, whole, kernel.whole, "whole", self.wide, u.elements * kernel.step)
        every = turned.at(0, row, rows=self.wide, pitch=self.pitch)
        k.vec_transpose(every, whole.at(0, row * self.wide), lines, self.wide, self.dtype)
        k.vec_transpose(part.at(0, row * _LINE), self._nth(turned, row), _LINE, lines, self.dtype)
        size = u.elements * self.dtype.bytes
        k.data_move(kernel.part.at(0, size, base="part"), part.at(0, size), self.dtype)

    def _place(self, u: Tile, whole: Slot, part: Slot) -> None:
        """Every n-th element of the whole <- part, zeros between."""
        k = self.k
        kernel = self.kernel
        lines = self._lines(u)
        row = lines * self.dtype.bytes
        self._load(u, part, kernel.part, "part", _LINE, u.elements)
        turned = self.turned.next() if u.first else self.turned.last()
        if u.first:
            k.vec_dup(turned.at(0, self.wide * self.pitch), 0.0, self.dtype)
        k.vec_transpose(self._nth(turned, row), part.at(0, row * _LINE), lines, _LINE, self.dtype)
        every = turned.at(0, row, rows=self.wide, pitch=self.pitch)
        k.vec_transpose(whole.at(0, row * self.wide), every, self.wide, lines, self.dtype)
        size = u.elements * kernel.step * self.dtype.bytes
        k.data_move(kernel.whole.at(0, size, base="whole"), whole.at(0, size), self.dtype)

    def _load(
        self, u: Tile, slot: Slot, tensor: Tensor, base: str, width: int, elements: int
    ) -> None:
        """Bring a tile in lines of ``width`` elements, zeros behind the last."""
        lines = self._lines(u)
        if u.elements < lines * _LINE:
            self.k.vec_dup(slot.at(0, lines * width * self.dtype.bytes), 0.0, self.dtype)
        size = elements * self.dtype.bytes
        self.k.data_move(slot.at(0, size), tensor.at(0, size, base=base), self.dtype)

    def _nth(self, turned: Slot, row: int) -> SlotRegion:
        """The rows of the part among those of the turned whole."""
        first = self.kernel.first * self.pitch
        return turned.at(first, row, rows=_LINE, pitch=self.kernel.step * self.pitch)
