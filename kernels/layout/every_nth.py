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
    Tasks,
    Tensor,
    ceil_div,
    in_runs,
    round_up,
)

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

    def __post_init__(self) -> None:
        whole, part = self.whole, self.part
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
        read, written = self.whole.size_bytes, self.part.size_bytes
        if not self._reads_whole:
            read, written = written, read
        turned = ("transpose", self.whole.size_bytes), ("transpose", self.part.size_bytes)
        tasks = np.array([ceil_div(count, _LINE * self._most_lines(share)) for share in shares])
        return Stream(read, written, tasks, turned)

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        dtype, step = self.whole.dtype, self.step
        count, wide = prod(self.part.shape), _LINE * step
        # Two slots of the whole and of the part, and the turned whole once.
        line = (3 * wide + 2 * _LINE) * dtype.bytes
        share = self._most_lines(ceil_div(count, cores))
        lines = piece(k, self.name, share, line, multiple=_LINE)
        buffers = {
            "whole": k.buffer("UB", (lines * wide,), dtype, slots=2, name="whole_ub"),
            "part": k.buffer("UB", (lines * _LINE,), dtype, slots=2, name="part_ub"),
        }
        turned = k.buffer("UB", (lines * wide,), dtype, name="turned")
        pitch = lines * dtype.bytes
        read, written = (self.whole, self.part) if self._reads_whole else (self.part, self.whole)
        names = ("whole", "part") if self._reads_whole else ("part", "whole")

        def emit(u: Tile) -> None:
            used = round_up(ceil_div(u.elements, _LINE), _LINE)
            row = used * dtype.bytes
            slots = {name: buffer.next() for name, buffer in buffers.items()}
            sizes = {"whole": u.elements * step, "part": u.elements}
            widths = {"whole": wide, "part": _LINE}
            source, target = (slots[name] for name in names)
            from_size, to_size = (sizes[name] * dtype.bytes for name in names)
            from_width, to_width = (widths[name] for name in names)
            if u.elements < used * _LINE:
                k.vec_dup(source.at(0, row * from_width), 0.0, dtype)
            k.data_move(source.at(0, from_size), read.at(0, from_size, base=names[0]), dtype)
            if self._reads_whole:
                slot = turned.next()
                every = slot.at(0, row, rows=wide, pitch=pitch)
            else:
                slot = turned.next() if u.first else turned.last()
                if u.first:
                    k.vec_dup(slot.at(0, wide * pitch), 0.0, dtype)
                every = slot.at(0, row, rows=wide, pitch=pitch)
            some = slot.at(self.first * pitch, row, rows=_LINE, pitch=step * pitch)
            into, out = (every, some) if self._reads_whole else (some, every)
            k.vec_transpose(into, source.at(0, row * from_width), used, from_width, dtype)
            k.vec_transpose(target.at(0, row * to_width), out, to_width, used, dtype)
            k.data_move(written.at(0, to_size, base=names[1]), target.at(0, to_size), dtype)

        start = np.arange(0, count, lines * _LINE)
        core = in_runs(len(start), cores)
        columns = {
            "elements": np.minimum(lines * _LINE, count - start),
            "first": (np.diff(core, prepend=-1) != 0) & (not self._reads_whole),
        }
        bases = {"whole": start * step * dtype.bytes, "part": start * dtype.bytes}
        return Plan(Tasks(core, Tile, columns, bases), emit)
