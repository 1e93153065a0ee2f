"""Layout conversions of tensors with depth as the vendor's library tiles them.

    feature maps, 16 bits    GM -> UB channels x positions, turned once, UB -> GM planes of blocks
    to plain maps            the reverse, 32 bits too
    weights, fp32 maps       lines of one filter or sample: turned so that these are innermost,
                             reordered by moves inside UB, turned back

A plain tensor is three axes: what is left of the channels, these, and all positions or taps at
once, planes of different depth alike. Tiles take a *unit* of each, and **one axis alone is split
over the cores**; every core goes through the others. A tile is loaded, turned and stored before the
next begins: UB holds one source and one target. All cores are launched, also those without work.

Source: the TIK kernels ``trans_data_positive_source_ntc`` and ``trans_data_negative_target_ntc`` of
CANN 8.1 and the tiling functions beside them; its conversions of images are other, closed kernels.
Simpler here than there: weights that are split have every number of taps turned twice, the channels
of short maps are not joined with samples, and gaps between lines are those of the tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npusim.kernels.layout.conversion import Conversion, Pieces
from npusim.kernels.layout.fractal_weights import Turn, WeightWork
from npusim.kernels.layout.layout_change import Turning
from npusim.kernels.layout.trans_data import TransData
from npusim.language import (
    BLOCK_BYTES,
    IntArray,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    round_down,
    round_up,
)

#: Bytes of UB that the kernels keep for themselves: 256 B, and 512 B of tiling words.
_KEPT = 256 + 512
#: The rows that one ``vnchwconv`` turns.
_LINES = 16


class Tile(NamedTuple):
    """``lines`` filters or samples, ``blocks`` of C0 with ``channels`` that exist, positions.

    The first position is ``start`` of its plane; ``fresh`` tiles clear the channels that are
    missing, which those after them find cleared.
    """

    lines: int
    blocks: int
    channels: int
    start: int
    positions: int
    fresh: bool


@dataclass(frozen=True)
class LibraryTransData(TransData):
    """``TransData`` of tensors of five axes without groups in them, tiled by the library's rule."""

    library: ClassVar[tuple[str, ...]] = ()

    @property
    def tiling_text(self) -> str:
        return f"{self.change.kind}, library"

    @property
    def clears(self) -> bool:
        return self.change.kind == "to_fracz"  # filters that are missing are not written

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        half = (k.memory("UB").size_bytes - _KEPT) // 2
        buffers = [k.buffer("UB", (half,), None, name=name) for name in ("source", "target")]
        work = _LibraryWork(self.change, self.plain, self.blocked, half)

        def step(tile: Tile) -> None:
            source, target = (one.next() if tile.fresh else one.last() for one in buffers)
            if tile.lines:  # else a core that is launched for nothing
                # Fractals are spread from the target into the source before they are turned.
                back = not (work.once or work.load)
                work.emit(k, *((target, source) if back else (source, target)), tile)
            k.pipe_barrier()

        return Plan(work.tasks(half, cores), step)


class _LibraryWork(Turning):
    """Tiles of units of the three axes, and what is done with one."""

    def __init__(self, change: Conversion, plain: Tensor, blocked: Tensor, half: int) -> None:
        super().__init__(change, plain, blocked)
        self.half = half  # bytes of UB that hold a tile on either side
        self.left, self.channels, self.depth, *image = plain.shape
        self.plane = prod(image)
        self.maps = change.maps
        self.right = self.depth * self.plane
        self.blocks = ceil_div(self.channels, self.c0)
        #: Filters of a fractal's matrix, whole sixteens.
        self.rows = 1 if self.maps else round_up(self.left, 16)
        #: True if a tile is turned once, as channels and positions exchange alone.
        self.once = self.maps and (self.e == 2 or not self.load)

    def _units(self) -> tuple[int, int, int]:
        """Samples or filters, blocks of C0 and positions of a tile."""
        left = self.left
        right = self.right
        step = BLOCK_BYTES // self.e
        line = self.half // _LINES // BLOCK_BYTES * BLOCK_BYTES // self.e
        if self.once:
            most = line if self.load else round_down(self.half // self.e // self.c0, self.c0)
            return 1, 1, min(right, most)
        most = round_down(line // self.c0, step)
        if self.load:
            return min(left, _LINES), 1, min(right, most)
        taps = min(right, most)
        joined = 1 if right > most else min(self.blocks, most // round_up(taps, step))
        if self.channels * right < 54 * step and right <= most and joined == self.blocks:
            return min(left, 4 * step, most // (joined * taps)), joined, taps
        return min(left, _LINES), joined, taps

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[Tile]:
        units = self._units()
        sizes = (self.left, self.blocks, self.right)
        loops = [ceil_div(size, unit) for size, unit in zip(sizes, units, strict=True)]
        axis, share = split(loops, cores)
        order = (1, 0, 2) if self.load else (2, 1, 0)  # the outermost loop first
        starts, extents = in_pieces(*((sizes[i], units[i]) for i in order))
        core = starts[order.index(axis)] // units[axis] // share
        by_core = np.argsort(core, kind="stable")
        core = core[by_core]
        left, block, position = (starts[order.index(i)][by_core] for i in range(3))
        lines, blocks, positions = (extents[order.index(i)][by_core] for i in range(3))
        depth = position // self.plane
        start = position % self.plane
        if self.maps:
            place = (left * self.depth + depth) * self.blocks + block
            place = (place * self.plane + start) * self.rows
        else:
            place = depth * self.blocks + block
            place = (place * self.plane + start) * self.rows + left
        changes = np.diff(np.stack([core, block]), prepend=-1) != 0
        channel = left * self.channels + block * self.c0
        columns = {
            "lines": lines,
            "blocks": blocks,
            "channels": np.minimum(blocks * self.c0, self.channels - block * self.c0),
            "start": start,
            "positions": positions,
            "fresh": changes.any(axis=0),
        }
        bases = {
            self.plain.name: self.e * (channel * self.right + position),
            self.blocked.name: self.lane * place,
        }
        return _with_idle(Tasks(core, Tile, columns, bases), cores)

    def _pitch(self, u: Tile) -> int:
        """Bytes from one line of channels to the next in UB; of maps from channel to channel."""
        line = self.half // self.c0 if self.once else u.channels * self._taps(u) * self.e
        return (round_down if self.once else round_up)(line, BLOCK_BYTES)

    def _taps(self, u: Tile) -> int:
        """Positions of a channel in UB: rows that are not whole begin at 32 B."""
        whole = u.positions == self.right
        return u.positions if whole else round_up(u.positions, BLOCK_BYTES // self.e)

    def of_plain(self, u: Tile) -> Iterator[Pieces]:
        """Lines of channels of positions."""
        row = u.positions * self.e
        right = self.right * self.e
        line = self.channels * right
        pitch = self._pitch(u)
        if row == right and not self.once:
            yield Pieces(u.lines, u.channels * row, 0, line, 0, pitch)
            return
        step = pitch if self.once else round_up(row, BLOCK_BYTES)
        for i in range(u.lines):
            yield Pieces(u.channels, row, i * line, right, i * pitch, step)

    def _parts(self, u: Tile) -> Iterator[tuple[int, int, int, int]]:
        """(first position in the tile, positions, planes, plane) of what one move takes.

        Planes that the tile holds whole are moved together.
        """
        plane = self.plane
        head = min(u.positions, -u.start % plane)
        whole = (u.positions - head) // plane
        tail = u.positions - head - whole * plane
        first = 1 if u.start else 0
        if head:
            yield 0, head, 1, 0
        if whole:
            yield head, plane, whole, first
        if tail:
            yield u.positions - tail, tail, 1, first + whole

    def of_blocked(self, u: Tile) -> Iterator[Pieces]:
        """Lanes of C0: those of maps [line][position], those of weights [block][tap][filter]."""
        column = self.rows * self.lane
        block = self.plane * column
        depth = self.blocks * block
        row = self.lane * (1 if self.maps else u.lines)
        for first, run, planes, d in self._parts(u):
            begin = d * depth - (u.start * column if d else 0)
            if self.maps:
                for i in range(u.lines):
                    gm = begin + i * self.depth * depth
                    ub = (i * u.positions + first) * row
                    yield Pieces(planes, run * row, gm, depth, ub, run * row)
                continue
            for b, i in product(range(u.blocks), range(planes)):
                ub = (b * u.positions + first + i * run) * row
                yield Pieces(run, row, begin + b * block + i * depth, column, ub, row)

    def clear(self, k: Language, first: Slot, second: Slot, u: Tile) -> None:
        """Channels that are missing, which later tiles find cleared."""
        loaded, size = (channels * self._pitch(u) for channels in (u.channels, self.c0))
        if self.once and self.load and loaded < size and u.fresh:
            k.vec_dup(first.at(loaded, size - loaded), 0.0, self.plain.dtype)

    def turn(self, k: Language, first: Slot, second: Slot, u: Tile) -> Slot:
        """Once, or twice around the order of the lines of filters and samples."""
        if not self.once:
            turn = self._to if self.load else self._from
            return turn(k, first, second, u)
        run = u.positions
        by_channel = first if self.load else second
        matrix = by_channel.at(0, run * self.e, rows=self.c0, pitch=self._pitch(u))
        if self.load:
            k.vec_transpose(second, matrix, self.c0, run, self.plain.dtype)
        else:
            k.vec_transpose(matrix, first, run, self.c0, self.plain.dtype)
        return second

    def _to(self, k: Language, source: Slot, target: Slot, u: Tile) -> Slot:
        """Weights and fp32 maps to blocks of channels."""
        dtype = self.plain.dtype
        c0 = self.c0
        taps = self._taps(u)
        lines = _LINES * self.e
        row = u.channels * taps * self.e
        matrix = source.at(0, row, rows=_LINES, pitch=self._pitch(u))
        k.vec_transpose(target.at(0, _LINES * row), matrix, _LINES, u.channels * taps, dtype)
        if u.channels < c0:
            k.vec_dup(source.at(0, u.positions * c0 * lines), 0.0, dtype)
        for c in range(u.channels):
            ordered = source.at(c * lines, lines, rows=u.positions, pitch=c0 * lines)
            k.data_move(ordered, target.at(c * taps * lines, u.positions * lines), dtype)
        matrix = source.at(0, u.lines * self.e, rows=u.positions * c0, pitch=lines)
        turned = target.at(0, u.lines * u.positions * self.lane)
        count = 1 if self.maps else u.positions
        k.vec_transpose(turned, matrix, u.positions * c0 // count, u.lines, dtype, count=count)
        return target

    def _from(self, k: Language, target: Slot, source: Slot, u: Tile) -> Slot:
        """Weights from fractals."""
        dtype = self.plain.dtype
        c0 = self.c0
        lane = self.lane
        taps = self._taps(u)
        all_lines = round_up(u.lines, _LINES)
        lines = all_lines * self.e
        lanes = u.blocks * u.positions
        for i in range(u.lines):
            apart = target.at(i * lane, lane, rows=lanes, pitch=u.lines * lane)
            k.data_move(source.at(i * lanes * lane, lanes * lane), apart, dtype)
        matrix = source.at(0, lanes * lane, rows=all_lines, pitch=lanes * lane)
        turned = target.at(0, all_lines * lanes * lane)
        k.vec_transpose(turned, matrix, all_lines, lanes * c0, dtype)
        for c in range(u.channels):
            block, channel = divmod(c, c0)
            place = (block * u.positions * c0 + channel) * lines
            channels = target.at(place, lines, rows=u.positions, pitch=c0 * lines)
            k.data_move(source.at(c * taps * lines, u.positions * lines), channels, dtype)
        row = u.channels * taps * self.e
        plain = target.at(0, row, rows=all_lines, pitch=self._pitch(u))
        k.vec_transpose(plain, source.at(0, all_lines * row), u.channels * taps, all_lines, dtype)
        return target


def _padded(column: Any, rows: int) -> Any:
    """A column with so many zeros behind it."""
    return np.pad(column, (0, rows))


def _with_idle(tasks: Tasks[Tile], cores: int) -> Tasks[Tile]:
    """Tasks with one of zeros for each core that has none: all cores are launched."""
    idle = np.setdiff1d(np.arange(cores), tasks.core)
    return Tasks(
        np.concatenate([tasks.core, idle]),
        Tile,
        {name: _padded(column, len(idle)) for name, column in tasks.columns.items()},
        {name: _padded(column, len(idle)) for name, column in tasks.bases.items()},
    )


@dataclass(frozen=True)
class LibraryGroups(TransData):
    """``TransData`` of weights in groups, by the library's rule: one step per group.

    The library converts weights with groups twice: as if there were none, and then group by group
    into the matrices that groups share (``trans_data_groups`` of CANN 8.1). This is the second
    conversion: a step takes the filters of a group in one tap, or in all taps of a plane on the way
    back, and none begins before the last one is stored. Simpler here than there: it reads the plain
    tensor, so that the first conversion is left out, and cores are split as elsewhere (its tiling
    function is not published).
    """

    library: ClassVar[tuple[str, ...]] = ()

    @property
    def tiling_text(self) -> str:
        return f"{self.change.kind} by groups, library"

    def plan(self, k: Language, cores: int) -> Plan[Turn]:
        third = (k.memory("UB").size_bytes - _KEPT) // 3 // BLOCK_BYTES * BLOCK_BYTES
        source = k.buffer("UB", (third,), None, name="source")
        target = k.buffer("UB", (third,), None, name="target")
        work = _GroupWork(self.change, self.plain, self.blocked)

        def step(tile: Turn) -> None:
            work.emit(k, source.next(), target.next(), tile)
            k.pipe_barrier()

        return Plan(work.tasks(third, cores), step)


class _GroupWork(WeightWork):
    """Tiles of one group each."""

    def _tile(self, slot_bytes: int, cores: int) -> tuple[int, int, int, int]:
        most = max(1, slot_bytes // self.lane)
        taps = 1 if self.load else min(self.taps, most)
        return min(self.og, max(1, most // taps)), 1, 1, taps

    def _on_cores(
        self, axes: tuple[IntArray, ...], keep: IntArray, cores: int
    ) -> tuple[IntArray, IntArray]:
        groups, *others, row = axes
        if self.load:  # group by group, on the way back matrix by matrix
            groups = groups * self.rows + row
        loops = [np.unique(axis, return_inverse=True) for axis in (groups, *others)]
        axis, share = split([len(values) for values, _ in loops], cores)
        core = loops[axis][1][keep] // share
        order = np.argsort(core, kind="stable")
        return core[order], keep[order]


def split(loops: Sequence[int], cores: int) -> tuple[int, int]:
    """The axis that is split over the cores, of so many loops each, and a core's share of it.

    It is the one that fills cores best, exact multiples above all; the first of equals.
    """

    def filled(count: int) -> int:
        return (cores if count >= cores else 0) + (count % cores or cores)

    axis = max(range(len(loops)), key=lambda i: filled(loops[i]))
    return axis, ceil_div(loops[axis], cores)
