"""Weights and filter gradients between (Cout, Cin/groups, KD, KH, KW) and fractals.

    w[q, c, t] <-> lanes[real group][kd][c div C0][kh, kw][q][c mod C0]        q: rows
    w[q, c, t]  -> lanes[real group][kd][q div C0][kh, kw][c][q mod C0]        c: rows

E neighbouring groups share the matrix of a real group; each lies in a block on its diagonal.

    for tile (rows x blocks of C0) of a real group's matrix, all taps if they fit:
        UB <- blocks of the groups inside the tile, [q][c][t], zeros around them
        per block: C0 of c: turn (q, c) x t                   -> [t][q][c]
                   C0 of q: turn (q, c) x t, then q x c per t -> [t][c][q]
        GM <- lanes
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from npusim.kernels.layout.conversion import Conversion, Pieces, even, most_in_task
from npusim.kernels.layout.layout_change import Turning
from npusim.language import (
    IntArray,
    Language,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
    round_up,
)
from npusim.problem.layouts import group_plan

#: A contiguous piece of GM should have at least this many bytes: a sector of the L2.
RUN = 512


class Turn(NamedTuple):
    """A tile of a real group's matrix, and the groups inside it.

    ``rows`` x ``blocks`` of C0 are ``q`` x ``c`` channels; the first of ``groups`` lies in rows
    ``top`` to ``bottom`` and columns ``left`` to ``right``.
    """

    rows: int
    blocks: int
    planes: int
    taps: int
    q: int
    c: int
    groups: int
    top: int
    bottom: int
    left: int
    right: int


class Channels(NamedTuple):
    """For each tile, its first channel inside the real group, and how many there are."""

    first: IntArray
    number: IntArray


class Corner(NamedTuple):
    """The block of a group in a tile, whose first is ``element`` of the plain tensor."""

    top: int
    height: int
    left: int
    width: int
    element: int


class WeightWork(Turning):
    """Weights: per real group a matrix of ``rows`` by ``blocks`` of C0, one per filter tap.

    Rows are output channels and blocks input channels, or the reverse when ``turned``. In UB a
    plain tile is [output channel][input channel][tap].
    """

    def __init__(self, conversion: Conversion, plain: Tensor, blocked: Tensor) -> None:
        super().__init__(conversion, plain, blocked)
        self.turned = conversion.kind == "to_fracz_transposed"
        cout, self.cg, *kernel = plain.shape
        self.og = cout // conversion.groups
        self.kd = kernel[0] if len(kernel) == 3 else 1
        self.taps = prod(kernel) // self.kd
        self.groups = conversion.groups
        self.t = prod(kernel)
        plan = group_plan(self.cg * self.groups, cout, self.groups, self.c0)
        self.real = plan.real_groups
        self.factor = plan.mag_factor
        cin = plan.cin1_g * self.c0
        self.rows = round_up(cin, 16) if self.turned else plan.cout_g
        self.blocks = (plan.cout_g if self.turned else cin) // self.c0

    def _tile(self, slot_bytes: int, cores: int) -> tuple[int, int, int, int]:
        """(rows, blocks, kd planes, taps of a plane) of a task; every tap where they fit."""
        size = self.lane * self.t
        if size > slot_bytes:
            return 1, 1, 1, even(self.taps, slot_bytes // self.lane)
        total = self.real * self.rows * self.blocks * size
        lanes = most_in_task(size, total, slot_bytes, cores)
        most_rows = self.rows
        most_blocks = self.blocks
        # Off the diagonal there is nothing to read: tiles no larger than one group.
        if not self.load and self.factor > 1:
            most_rows = min(self.rows, max(16, self.og // 16 * 16))
            most_blocks = max(1, self.cg // self.c0)
        # The plain side is contiguous along input channels: rows first if these are rows.
        blocks = 1 if self.turned else min(most_blocks, ceil_div(RUN, size), lanes)
        rows = _whole(min(most_rows, lanes // blocks))
        blocks = max(1, min(most_blocks, lanes // rows))
        multiple = 16 if rows >= 16 else 1
        return even(self.rows, rows, multiple), even(self.blocks, blocks), self.kd, self.taps

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[Turn]:
        """Tiles of all real groups; tiles between the groups only where they must be written."""
        rows, blocks, planes, taps = self._tile(slot_bytes, cores)
        (real, plane, block, row, tap), (_, *sizes) = in_pieces(
            (self.real, 1),
            (self.kd, planes),
            (self.blocks, blocks),
            (self.rows, rows),
            (self.taps, taps),
        )
        columns = dict(zip(("planes", "blocks", "rows", "taps"), sizes, strict=True))
        out = Channels(row, columns["rows"])
        cin = Channels(block * self.c0, columns["blocks"] * self.c0)
        if self.turned:
            out, cin = cin, out
        columns["q"] = out.number
        columns["c"] = cin.number
        cover, element = self._cover(real, out, cin)
        columns |= cover
        plain = self.e * (element * self.t + plane * self.taps + tap)
        plain[cover["groups"] == 0] = 0
        place = (real * self.kd + plane) * self.blocks + block
        blocked = self.lane * ((place * self.taps + tap) * self.rows + row)
        keep = np.arange(len(real)) if self.load else np.flatnonzero(cover["groups"])
        core, order = self._on_cores((real, plane, block, tap, row), keep, cores)
        return Tasks(
            core,
            Turn,
            {name: column[order] for name, column in columns.items()},
            {self.plain.name: plain[order], self.blocked.name: blocked[order]},
        )

    def _on_cores(
        self, axes: tuple[IntArray, ...], keep: IntArray, cores: int
    ) -> tuple[IntArray, IntArray]:
        """The core of each tile, and the tiles that ``keep`` names in the order of the cores.

        ``axes`` are the real group, the depth, the block, the tap and the row of every tile.
        """
        return in_runs(len(keep), cores), keep

    def _cover(
        self, real: IntArray, out: Channels, cin: Channels
    ) -> tuple[dict[str, IntArray], IntArray]:
        """The groups in a tile, and the corners of the first of them.

        ``out`` and ``cin`` are the tile's channels inside the real group. The other array is the
        first group's corner as an element of (Cout, Cin/groups).
        """
        group = np.maximum(out.first // self.og, cin.first // self.cg)
        last_out = (out.first + out.number - 1) // self.og
        last_cin = (cin.first + cin.number - 1) // self.cg
        last_real = np.minimum(self.factor, self.groups - real * self.factor) - 1
        last = np.minimum(np.minimum(last_out, last_cin), last_real)
        count = np.maximum(0, last - group + 1)
        top = np.maximum(0, group * self.og - out.first)
        left = np.maximum(0, group * self.cg - cin.first)
        cover = {
            "groups": count,
            "top": top,
            "bottom": np.minimum(out.number, (group + 1) * self.og - out.first),
            "left": left,
            "right": np.minimum(cin.number, (group + 1) * self.cg - cin.first),
        }
        cover = {name: np.where(count > 0, column, 0) for name, column in cover.items()}
        channel = real * self.factor * self.og + out.first + top
        return cover, channel * self.cg + cin.first + left - group * self.cg

    def clear(self, k: Language, first: Slot, second: Slot, u: Turn) -> None:
        """Clear a tile of which groups cover only a part."""
        covered = (u.bottom - u.top) * (u.right - u.left) == u.q * u.c
        if self.load and not covered:
            size = u.q * u.c * u.planes * u.taps * self.e
            k.vec_dup(first.at(0, size), 0.0, self.plain.dtype)

    def turn(self, k: Language, first: Slot, second: Slot, u: Turn) -> Slot:
        """Lanes [block][kd][kh, kw][row] of a plain tile, or the reverse; zeros are as they are."""
        if not u.groups:
            return first
        dtype = self.plain.dtype
        e = self.e
        tn = u.planes * u.taps
        source = first
        target = second
        if self.turned and tn > 1:  # [q][c][tap] -> [tap][q][c]
            whole = u.q * u.c * tn * e
            k.vec_transpose(second.at(0, whole), first.at(0, whole), u.q * u.c, tn, dtype)
            source = second
            target = first
        block = u.rows * tn * self.lane
        for b in range(u.blocks):
            lanes = (b * block, block)
            if self.turned:  # C0 of q in every tap: [tap][q][c] -> [tap][c][q]
                size = self.lane * u.c
                rows = source.at(b * size, size, rows=tn, pitch=u.q * u.c * e)
                k.vec_transpose(target.at(*lanes), rows, self.c0, u.c, dtype, count=tn)
                continue
            # C0 of c in every q: [q][c][tap] -> [tap][q][c]
            size = self.lane * tn
            slot = source if self.load else target
            rows = slot.at(b * size, size, rows=u.rows, pitch=u.blocks * size)
            if self.load:
                k.vec_transpose(target.at(*lanes), rows, u.rows * self.c0, tn, dtype)
            else:
                k.vec_transpose(rows, source.at(*lanes), tn, u.rows * self.c0, dtype)
        return target

    def of_plain(self, u: Turn) -> Iterator[Pieces]:
        """Moves of the groups' blocks between the plain tensor and the tile [q][c][tap]."""
        if not u.groups:
            return
        gm = self.t * self.e  # bytes of one (q, c)
        ub = u.planes * u.taps * self.e
        corners = self._corners(u)
        full = all(c.height == self.og and c.width == self.cg for c in corners)
        if full and u.groups > self.og and gm == ub:  # the i-th channels of all groups at once
            pitch = self.og * u.c + self.cg
            size = self.cg * gm
            for i in range(self.og):
                start = (u.top + i) * u.c + u.left
                yield Pieces(u.groups, size, i * size, self.og * size, start * ub, pitch * ub)
            return
        for corner in corners:
            start = corner.top * u.c + corner.left
            if gm == ub:
                size = corner.width * gm
                first = corner.element * gm
                yield Pieces(corner.height, size, first, self.cg * gm, start * ub, u.c * ub)
                continue
            for i in range(corner.height):
                offset = (corner.element + i * self.cg) * gm
                yield Pieces(corner.width, ub, offset, gm, (start + i * u.c) * ub, ub)

    def _corners(self, u: Turn) -> list[Corner]:
        """The block of every group in the tile."""
        corners = [Corner(u.top, u.bottom - u.top, u.left, u.right - u.left, 0)]
        cut = self.cg - (u.right - u.left)  # columns of the first group outside the tile
        for j in range(u.groups - 1):
            top = u.bottom + j * self.og
            left = u.right + j * self.cg
            height = min(self.og, u.q - top)
            width = min(self.cg, u.c - left)
            corners.append(Corner(top, height, left, width, (top - u.top) * self.cg - cut))
        return corners

    def of_blocked(self, u: Turn) -> Iterator[Pieces]:
        """Moves of lanes [block][kd][tap][row], as few as their strides allow."""
        row, column = u.rows * self.lane, self.rows * self.lane  # of the tile, of the matrix
        piece = u.taps * row
        block = self.taps * column
        if u.planes == 1 and u.taps == self.taps:
            yield Pieces(u.blocks * u.taps, row, 0, column, 0, row)
            return
        for d in range(u.planes):
            plane = d * self.blocks * block
            if row == column:
                yield Pieces(u.blocks, piece, plane, block, d * piece, u.planes * piece)
                continue
            for b in range(u.blocks):
                ub = (b * u.planes + d) * piece
                yield Pieces(u.taps, row, plane + b * block, column, ub, row)


def _whole(rows: int) -> int:
    """At most ``rows``: whole fractals of 16, or below that a power of two."""
    return rows // 16 * 16 if rows >= 16 else 1 << (rows.bit_length() - 1)
