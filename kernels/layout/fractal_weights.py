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
        self.groups, self.t = conversion.groups, prod(kernel)
        plan = group_plan(self.cg * self.groups, cout, self.groups, self.c0)
        self.real, self.factor = plan.real_groups, plan.mag_factor
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
        # Off the diagonal there is nothing to read: tiles no larger than one group.
        narrow = not self.load and self.factor > 1
        most_rows = min(self.rows, max(16, self.og // 16 * 16)) if narrow else self.rows
        most_blocks = max(1, self.cg // self.c0) if narrow else self.blocks
        # The plain side is contiguous along input channels: rows first if these are rows.
        blocks = 1 if self.turned else min(most_blocks, ceil_div(RUN, size), lanes)
        rows = _whole(min(most_rows, lanes // blocks))
        blocks = max(1, min(most_blocks, lanes // rows))
        multiple = 16 if rows >= 16 else 1
        return even(self.rows, rows, multiple), even(self.blocks, blocks), self.kd, self.taps

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[Turn]:
        """Tiles of all real groups; tiles between the groups only where they must be written."""
        rows, blocks, planes, taps = self._tile(slot_bytes, cores)
        axes = (self.kd, planes), (self.blocks, blocks), (self.rows, rows), (self.taps, taps)
        (real, d0, b0, r0, p0), (_, *sizes) = in_pieces((self.real, 1), *axes)
        extent = dict(zip(("planes", "blocks", "rows", "taps"), sizes, strict=True))
        out, cin = (r0, extent["rows"]), (b0 * self.c0, extent["blocks"] * self.c0)
        if self.turned:
            out, cin = cin, out
        extent["q"], extent["c"] = out[1], cin[1]
        cover, element = self._cover(real, out, cin)
        place = (real * self.kd + d0) * self.blocks + b0
        columns = {
            self.plain.name: self.e * (element * self.t + d0 * self.taps + p0),
            self.blocked.name: self.lane * ((place * self.taps + p0) * self.rows + r0),
        }
        columns[self.plain.name][cover["groups"] == 0] = 0
        keep = np.flatnonzero(cover["groups"]) if not self.load else np.arange(len(real))
        core, order = self._on_cores((real, d0, b0, p0, r0), keep, cores)
        return Tasks(
            core,
            Turn,
            {name: column[order] for name, column in (extent | cover).items()},
            {name: column[order] for name, column in columns.items()},
        )

    def _on_cores(
        self, axes: tuple[IntArray, ...], keep: IntArray, cores: int
    ) -> tuple[IntArray, IntArray]:
        """The core of each tile, and the tiles that ``keep`` names in the order of the cores.

        ``axes`` are the real group, the depth, the block, the tap and the row of every tile.
        """
        return in_runs(len(keep), cores), keep

    def _cover(
        self, real: IntArray, out: tuple[IntArray, IntArray], cin: tuple[IntArray, IntArray]
    ) -> tuple[dict[str, IntArray], IntArray]:
        """How many groups lie in a tile, and where in it the first of them does.

        ``out`` and ``cin`` are the tile's (first, count) of channels inside the real group. The
        other array is the first group's corner as an element of (Cout, Cin/groups).
        """
        (q0, qn), (c0, cn) = out, cin
        group = np.maximum(q0 // self.og, c0 // self.cg)
        last = np.minimum((q0 + qn - 1) // self.og, (c0 + cn - 1) // self.cg)
        last = np.minimum(last, np.minimum(self.factor, self.groups - real * self.factor) - 1)
        count = np.maximum(0, last - group + 1)
        top, left = np.maximum(0, group * self.og - q0), np.maximum(0, group * self.cg - c0)
        cover = {
            "groups": count,
            "top": top,
            "bottom": np.minimum(qn, (group + 1) * self.og - q0),
            "left": left,
            "right": np.minimum(cn, (group + 1) * self.cg - c0),
        }
        cover = {name: np.where(count > 0, column, 0) for name, column in cover.items()}
        channel = real * self.factor * self.og + q0 + top
        return cover, channel * self.cg + c0 + left - group * self.cg

    def clear(self, k: Language, first: Slot, second: Slot, u: Turn) -> None:
        """What no group covers."""
        covered = (u.bottom - u.top) * (u.right - u.left) == u.q * u.c
        if self.load and not covered:
            size = u.q * u.c * u.planes * u.taps * self.e
            k.vec_dup(first.at(0, size), 0.0, self.plain.dtype)

    def turn(self, k: Language, first: Slot, second: Slot, u: Turn) -> Slot:
        """Lanes [block][kd][kh, kw][row] of a plain tile, or the reverse; zeros are as they are."""
        if not u.groups:
            return first
        dtype, e, tn = self.plain.dtype, self.e, u.planes * u.taps
        source, target = first, second
        if self.turned and tn > 1:  # [q][c][tap] -> [tap][q][c]
            whole = u.q * u.c * tn * e
            k.vec_transpose(second.at(0, whole), first.at(0, whole), u.q * u.c, tn, dtype)
            source, target = second, first
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
        gm, ub = self.t * self.e, u.planes * u.taps * self.e  # bytes of one (q, c)
        corners = self._corners(u)
        full = all(h == self.og and w == self.cg for _, h, _, w, _ in corners)
        if full and u.groups > self.og and gm == ub:  # the i-th channels of all groups at once
            for i in range(self.og):
                start, pitch = (u.top + i) * u.c + u.left, self.og * u.c + self.cg
                step = self.og * self.cg * gm
                size = self.cg * gm
                yield Pieces(u.groups, size, i * size, step, start * ub, pitch * ub)
            return
        for top, height, left, width, element in corners:
            start = top * u.c + left
            if gm == ub:
                pitches = (self.cg * gm, start * ub, u.c * ub)
                yield Pieces(height, width * gm, element * gm, *pitches)
                continue
            for i in range(height):
                offset = (element + i * self.cg) * gm
                yield Pieces(width, ub, offset, gm, (start + i * u.c) * ub, ub)

    def _corners(self, u: Turn) -> list[tuple[int, int, int, int, int]]:
        """(top, height, left, width, element after the base) of every group in the tile."""
        found = [(u.top, u.bottom - u.top, u.left, u.right - u.left, 0)]
        cut = self.cg - (u.right - u.left)  # columns of the first group outside the tile
        for j in range(u.groups - 1):
            top, left = u.bottom + j * self.og, u.right + j * self.cg
            height, width = min(self.og, u.q - top), min(self.cg, u.c - left)
            found.append((top, height, left, width, (top - u.top) * self.cg - cut))
        return found

    def of_blocked(self, u: Turn) -> Iterator[Pieces]:
        """Moves of lanes [block][kd][tap][row], as few as their strides allow."""
        row, column = u.rows * self.lane, self.rows * self.lane  # of the tile, of the matrix
        piece, block = u.taps * row, self.taps * column
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
