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
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.parts.conversion import Pieces, move
from npusim.kernels.parts.fractal_weights import Turn, WeightWork
from npusim.kernels.trans_data import TransData
from npusim.language import (
    BLOCK_BYTES,
    IntArray,
    Language,
    Plan,
    Slot,
    Tasks,
    ceil_div,
    grid,
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
        return f"{self.conversion.kind}, library"

    @property
    def clears(self) -> bool:
        return self.conversion.kind == "to_fracz"  # filters that are missing are not written

    @property
    def maps(self) -> bool:
        """Whether it converts feature maps, not weights."""
        return self.conversion.kind.endswith("blocked")

    @property
    def once(self) -> bool:
        """Whether a tile is turned once, as channels and positions exchange alone."""
        return self.maps and (self.plain.dtype.bytes == 2 or not self.conversion.loads_plain)

    def units(self, half: int) -> tuple[int, int, int]:
        """Samples or filters, blocks of C0 and positions of a tile in ``half`` of UB, bytes."""
        left, channels, *spatial = self.plain.shape
        c0, size, right = self.conversion.c0, self.plain.dtype.bytes, prod(spatial)
        step, blocks = BLOCK_BYTES // size, ceil_div(channels, c0)
        line = half // _LINES // BLOCK_BYTES * BLOCK_BYTES // size
        if self.once:
            most = line if self.conversion.loads_plain else round_down(half // size // c0, c0)
            return 1, 1, min(right, most)
        most = round_down(line // c0, step)
        if self.conversion.loads_plain:
            return min(left, _LINES), 1, min(right, most)
        taps = min(right, most)
        joined = 1 if right > most else min(blocks, most // round_up(taps, step))
        if channels * right < 54 * step and right <= most and joined == blocks:
            return min(left, 4 * step, most // (joined * taps)), joined, taps
        return min(left, _LINES), joined, taps

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        half = (k.memory("UB").size_bytes - _KEPT) // 2
        source = k.buffer("UB", (half,), None, name="source")
        target = k.buffer("UB", (half,), None, name="target")
        emit = self._turn_once if self.once else self._to if self._loads else self._from

        def step(tile: Tile) -> None:
            slots = [one.next() if tile.fresh else one.last() for one in (source, target)]
            if tile.lines:  # else a core that is launched for nothing
                emit(k, slots[0], slots[1], tile)
            k.pipe_barrier()

        return Plan(self._tasks(half, cores), step)

    @property
    def _loads(self) -> bool:
        return self.conversion.loads_plain

    @property
    def _lane(self) -> int:
        return self.conversion.c0 * self.plain.dtype.bytes

    def _tasks(self, half: int, cores: int) -> Tasks[Tile]:
        left, channels, depth, *image = self.plain.shape
        plane, size, c0 = prod(image), self.plain.dtype.bytes, self.conversion.c0
        all_blocks, right = ceil_div(channels, c0), depth * plane
        units = self.units(half)
        axes = [
            np.arange(0, n, unit) for n, unit in zip((left, all_blocks, right), units, strict=True)
        ]
        axis, share = split([len(one) for one in axes], cores)
        order = (1, 0, 2) if self._loads else (2, 1, 0)  # the outermost loop first
        found = grid(*(np.arange(len(axes[i])) for i in order))
        index = [found[order.index(i)] for i in range(3)]
        core = index[axis] // share
        sorted_by_core = np.argsort(core, kind="stable")
        core, index = core[sorted_by_core], [one[sorted_by_core] for one in index]
        q, b, p = (axes[i][index[i]] for i in range(3))
        lines, blocks, positions = (
            np.minimum(unit, n - first)
            for unit, n, first in zip(units, (left, all_blocks, right), (q, b, p), strict=True)
        )
        before = np.diff(np.stack([core, b]), prepend=-1) != 0
        d, start = p // plane, p % plane
        if self.maps:
            place = ((q * depth + d) * all_blocks + b) * plane + start
        else:
            place = ((d * all_blocks + b) * plane + start) * self._rows + q
        columns = {
            "lines": lines,
            "blocks": blocks,
            "channels": np.minimum(blocks * c0, channels - b * c0),
            "start": start,
            "positions": positions,
            "fresh": before.any(axis=0),
        }
        bases = {
            self.plain.name: size * ((q * channels + b * c0) * right + p),
            self.blocked.name: self._lane * place,
        }
        idle = np.setdiff1d(np.arange(cores), core)
        return Tasks(
            np.concatenate([core, idle]),
            Tile,
            {name: np.pad(column, (0, len(idle))) for name, column in columns.items()},
            {name: np.pad(column, (0, len(idle))) for name, column in bases.items()},
        )

    @property
    def _rows(self) -> int:
        """Filters of a fractal's matrix, whole sixteens."""
        return round_up(self.plain.shape[0], 16)

    def _parts(self, u: Tile) -> Iterator[tuple[int, int, int, int]]:
        """(first position in the tile, positions, planes, plane) of what one move takes.

        Planes that the tile holds whole are moved together.
        """
        plane = prod(self.plain.shape[3:])
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

    def _move_plain(self, k: Language, slot: Slot, u: Tile, pitch: int) -> None:
        """Lines of channels of positions, ``pitch`` bytes from one line to the next in UB."""
        size = self.plain.dtype.bytes
        right = prod(self.plain.shape[2:]) * size
        row, line = u.positions * size, self.plain.shape[1] * right
        if row == right and not self.once:
            whole = Pieces(u.lines, u.channels * row, 0, line, 0, pitch)
            move(k, self.plain, slot, whole, store=not self._loads)
            return
        step = pitch if self.once else round_up(row, BLOCK_BYTES)
        for i in range(u.lines):
            pieces = Pieces(u.channels, row, i * line, right, i * pitch, step)
            move(k, self.plain, slot, pieces, store=not self._loads)

    def _move_blocked(self, k: Language, slot: Slot, u: Tile) -> None:
        """Lanes of C0: those of maps [line][position], those of weights [block][tap][filter]."""
        _, channels, _, *image = self.plain.shape
        lane, plane = self._lane, prod(image)
        block = plane * lane * (1 if self.maps else self._rows)
        depth = ceil_div(channels, self.conversion.c0) * block
        inner = 1 if self.maps else u.lines
        for first, run, planes, d in self._parts(u):
            begin = d * depth - (u.start * lane * (1 if self.maps else self._rows) if d else 0)
            if self.maps:
                for i in range(u.lines):
                    gm, ub = begin + i * self.plain.shape[2] * depth, i * u.positions + first
                    pieces = Pieces(planes, run * lane, gm, depth, ub * lane, run * lane)
                    move(k, self.blocked, slot, pieces, store=self._loads)
                continue
            for b in range(u.blocks):
                for i in range(planes):
                    ub = (b * u.positions + first + i * run) * inner * lane
                    gm = begin + b * block + i * depth
                    row = Pieces(run, inner * lane, gm, self._rows * lane, ub, inner * lane)
                    move(k, self.blocked, slot, row, store=self._loads)

    def _turn_once(self, k: Language, source: Slot, target: Slot, u: Tile) -> None:
        """Maps: channels x positions on one side, positions x channels on the other."""
        dtype, c0 = self.plain.dtype, self.conversion.c0
        row = u.positions * dtype.bytes
        pitch = source.buffer.slot_bytes // c0 // BLOCK_BYTES * BLOCK_BYTES
        slot, lanes = (source, target) if self._loads else (target, source)
        matrix = slot.at(0, row, rows=c0, pitch=pitch)
        if self._loads:
            missing = c0 - u.channels
            if missing and u.fresh:
                k.vec_dup(slot.at(u.channels * pitch, missing * pitch), 0.0, dtype)
            self._move_plain(k, slot, u, pitch)
            k.vec_transpose(lanes, matrix, c0, u.positions, dtype)
            self._move_blocked(k, lanes, u)
            return
        self._move_blocked(k, lanes, u)
        k.vec_transpose(matrix, lanes, u.positions, c0, dtype)
        self._move_plain(k, slot, u, pitch)

    def _to(self, k: Language, source: Slot, target: Slot, u: Tile) -> None:
        """Weights and fp32 maps to blocks of channels."""
        dtype, c0 = self.plain.dtype, self.conversion.c0
        size, right = dtype.bytes, prod(self.plain.shape[2:])
        step = BLOCK_BYTES // size
        taps = u.positions if u.positions == right else round_up(u.positions, step)
        pitch, lines = round_up(u.channels * taps * size, BLOCK_BYTES), _LINES * size
        self._move_plain(k, source, u, pitch)
        row = u.channels * taps * size
        matrix = source.at(0, row, rows=_LINES, pitch=pitch)
        k.vec_transpose(target.at(0, _LINES * row), matrix, _LINES, u.channels * taps, dtype)
        if u.channels < c0:
            k.vec_dup(source.at(0, u.positions * c0 * lines), 0.0, dtype)
        for c in range(u.channels):
            ordered = source.at(c * lines, lines, rows=u.positions, pitch=c0 * lines)
            k.data_move(ordered, target.at(c * taps * lines, u.positions * lines), dtype)
        matrix = source.at(0, u.lines * size, rows=u.positions * c0, pitch=lines)
        back = target.at(0, u.lines * u.positions * self._lane)
        count = 1 if self.maps else u.positions
        k.vec_transpose(back, matrix, u.positions * c0 // count, u.lines, dtype, count=count)
        self._move_blocked(k, target, u)

    def _from(self, k: Language, source: Slot, target: Slot, u: Tile) -> None:
        """Weights from fractals."""
        dtype, c0, lane = self.plain.dtype, self.conversion.c0, self._lane
        size, right = dtype.bytes, prod(self.plain.shape[2:])
        step, all_lines = BLOCK_BYTES // size, round_up(u.lines, _LINES)
        taps = u.positions if u.positions == right else round_up(u.positions, step)
        lanes, lines = u.blocks * u.positions, all_lines * size
        self._move_blocked(k, target, u)
        for i in range(u.lines):
            spread = target.at(i * lane, lane, rows=lanes, pitch=u.lines * lane)
            k.data_move(source.at(i * lanes * lane, lanes * lane), spread, dtype)
        matrix = source.at(0, lanes * lane, rows=all_lines, pitch=lanes * lane)
        turned = target.at(0, all_lines * lanes * lane)
        k.vec_transpose(turned, matrix, all_lines, lanes * c0, dtype)
        for c in range(u.channels):
            block, at = divmod(c, c0)
            one = target.at(
                (block * u.positions * c0 + at) * lines, lines, rows=u.positions, pitch=c0 * lines
            )
            k.data_move(source.at(c * taps * lines, u.positions * lines), one, dtype)
        row = u.channels * taps * size
        pitch = round_up(row, BLOCK_BYTES)
        back = target.at(0, row, rows=all_lines, pitch=pitch)
        k.vec_transpose(back, source.at(0, all_lines * row), u.channels * taps, all_lines, dtype)
        self._move_plain(k, target, u, pitch)


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
        return f"{self.conversion.kind} by groups, library"

    def plan(self, k: Language, cores: int) -> Plan[Turn]:
        third = (k.memory("UB").size_bytes - _KEPT) // 3 // BLOCK_BYTES * BLOCK_BYTES
        source = k.buffer("UB", (third,), None, name="source")
        target = k.buffer("UB", (third,), None, name="target")
        work = _GroupWork(self.conversion, self.plain, self.blocked)

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
        loops, index = zip(
            *(np.unique(one, return_inverse=True) for one in (groups, *others)), strict=True
        )
        axis, share = split([len(one) for one in loops], cores)
        core = index[axis][keep] // share
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
