"""The tilings of a filter gradient that are worth comparing, and their work.

What is enumerated follows from the problem: tiles that cut channels, columns and positions evenly
into so many parts. What a device holds of them grows with its memories and leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.integers import even_parts
from npusim.kernels.estimate.fit import cube_sizes, most_rows
from npusim.kernels.estimate.pipeline import Columns, chosen, deepest, joined
from npusim.kernels.filter_gradient.cuts import IMAGES
from npusim.kernels.filter_gradient.tiling import Tiling
from npusim.kernels.filter_gradient.work import Gradient
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.language import FP32, IntArray, ceil_div, round_up

#: Longest side of a tile in elements.
_MOST_SIDE = 512
#: Most rounds of tiles that parts of K may make for the cores, and the least share of cores busy.
_ROUNDS, _BUSY = 6, 0.7
#: Slabs of an operand that may stay in L1 for several tiles, and most passes over them.
_STAYING, _MOST_PASSES = (1, 2, 4, 8), 8


@dataclass(frozen=True)
class Space(Gradient):
    """Candidates for one gradient on one device: columns of fields, and what ranks them."""

    @cached_property
    def sides(self) -> Columns:
        """Tiles: rows, columns, and the planes of x that columns lie in, mean and most."""
        s, plan, taps = self.shape, self.shape.plan, self.taps
        high = [n * 16 for n in even_parts(ceil_div(plan.cout_g, 16), _MOST_SIDE // 16)]
        highest = most_rows(self.device, FP32)
        columns = self._runs[1] // s.c0
        wide = even_parts(columns, _MOST_SIDE // s.c0)
        wide += (
            []
            if self.form == "bands"
            else [n * taps for n in even_parts(plan.cin1_g, max(1, _MOST_SIDE // s.c0 // taps))]
        )
        wide = sorted({round_up(f * s.c0, 16) for f in wide if f * s.c0 <= _MOST_SIDE})
        rows = []
        for n in wide:
            first = np.arange(0, columns, n // s.c0)
            last = np.minimum(first + n // s.c0, columns) - 1
            planes = last // taps - first // taps + 1
            mean, most = planes.mean(), planes.max()
            rows += [(m, n, mean, most) for m in high if m <= highest]
        found = np.reshape(rows, (-1, 4))  # none, where no row of L0C fits the UB it leaves over
        return dict(zip(("m", "n", "planes", "most_planes"), found.T, strict=True))

    @cached_property
    def rows(self) -> Columns:
        """Fields of all that fits the device's buffers, one entry for each."""
        size, sides = cube_sizes(self.device), self.sides
        cut, side, slots = np.indices((len(self.cuts), len(sides["m"]), 2)).reshape(3, -1)
        t = {name: column[side] for name, column in sides.items()} | {"cut": cut}
        t["slots"] = 2 - slots
        of = chosen(self.of_cut, cut)
        x = of["images"] * of["most_pixels"] * t["most_planes"] * 32
        dy = of["runs"] * of["most_positions"] * t["m"] * self.element
        most = np.minimum(size["L0A"] // t["m"], size["L0B"] // t["n"]) // 2 // self.element
        t["most_k"] = np.minimum(most // 16 * 16, of["most_positions"])
        fits = (t["slots"] * (x + dy) <= size["L1"]) & (t["most_k"] >= 16)
        fits &= t["m"] * t["n"] * 4 <= size["L0C"]
        blocks = np.maximum(t["m"] // self.shape.c0, t["most_planes"])
        fits &= (of["runs"] == of["images"]) | (blocks <= MOST_BLOCKS)
        fits &= (t["slots"] == 2) | (2 * (x + dy) > size["L1"])  # no reason for one if two fit
        t = chosen(t, np.flatnonzero(fits))
        t = joined(self._parts(t), self._groups(t, of_x=True), self._groups(t, of_x=False))
        rounds = -(-t["shares"] // self.cores)
        t["cores"] = -(-t["shares"] // np.maximum(1, rounds))
        t["items"] = t["shares"] * t["group"] * t["passes"]
        return deepest(t, t["most_k"])

    def spread(self, t: Columns) -> Columns:
        """See ``pipeline.Space``."""
        return self.with_l0(t, t["m"])

    def depth(
        self, t: Columns, l0_slots: int, split: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """See ``pipeline.Space``: positions."""
        most, size = self.of_cut["most_positions"][t["cut"]], cube_sizes(self.device)
        side = np.minimum(size["L0A"] // t["m"], size["L0B"] // t["n"])
        deepest = np.minimum(side // l0_slots // self.element // 16 * 16, most)
        steps = -(-most // np.maximum(1, deepest)) * split
        return round_up(-(-most // steps), 16), (steps * 16 <= most) & (deepest >= 16)

    def _parts(self, t: Columns) -> Columns:
        """With numbers of parts of K: none, and even ones that keep most cores busy."""
        tiles, s = self._tiles(t), self.shape
        along = np.maximum(1, np.floor(s.n * min(self._depths) * self.of_cut["slabs"][t["cut"]]))
        values, which = np.unique(along, return_inverse=True)
        counts = [even_parts(int(n), int(n), 24) for n in values]
        table = np.zeros((max(map(len, counts), default=1), len(counts)), np.int64)
        for i, some in enumerate(counts):
            table[: len(some), i] = some[::-1]
        # Many candidates have as many tiles and positions: what is kept is the same for them.
        images, radix = self.of_cut["images"][t["cut"]], max(IMAGES) + 1
        key = (tiles * len(values) + which.reshape(-1)) * radix + images
        kinds, kind = np.unique(key, return_inverse=True)
        kind, (rest, images) = kind.reshape(-1), np.divmod(kinds, radix)
        tiles, which = np.divmod(rest, max(1, len(values)))
        along, parts = values[which], table[:, which]  # [turn][kind]
        items = tiles * parts
        busy = items / (np.maximum(1, -(-items // self.cores)) * self.cores)
        first = np.arange(len(table))[:, None] == 0
        keep = (parts > 0) & (items <= _ROUNDS * self.cores) & ((busy > _BUSY) | first)
        keep |= (parts == 1) & first
        keep &= images <= -(-along // np.maximum(1, parts))
        turn, which = np.nonzero(keep[:, kind])
        at = turn, kind[which]
        one = np.ones(len(which), np.int64)
        fields = {"group": one, "passes": one, "stay": one, "of_x": 0 * one}
        return chosen(t, which) | {"parts": parts[at], "shares": items[at]} | fields

    def _groups(self, t: Columns, *, of_x: bool) -> Columns:
        """With groups of tiles of one operand, at most as many as cores, if L1 holds its slabs."""
        s, tiles, along = self.shape, self._tiles(t), -(-self.shape.plan.cout_g // t["m"])
        if not of_x:
            along = self._along_n(t)
        runs = np.minimum(along, np.maximum(1, self.cores // (tiles // along)))
        group = -(-along // runs)
        shares = tiles // along * -(-along // group)
        busy = tiles / group / (np.maximum(1, -(-shares // self.cores)) * self.cores)
        some = np.flatnonzero((t["slots"] == 2) & (group > 1) & (busy > _BUSY))
        t = chosen(t | {"shares": shares.astype(np.int64), "group": group.astype(np.int64)}, some)
        of = chosen(self.of_cut, t["cut"])
        bytes_of_x = of["images"] * of["most_pixels"] * t["most_planes"] * 32
        bytes_of_dy = of["runs"] * of["most_positions"] * t["m"] * self.element
        kept, other = (bytes_of_x, bytes_of_dy) if of_x else (bytes_of_dy, bytes_of_x)
        loads = np.ceil(s.n * s.out[0] * of["slabs"] / of["images"]).astype(np.int64)
        room = (self.device.memory("L1").size_bytes - 2 * other) // kept
        found, one = [], np.ones(len(some), np.int64)
        for stay in _STAYING:
            passes = -(-loads // stay)
            fits = (room >= stay) & (loads >= stay) & (passes <= _MOST_PASSES)
            fields = {"passes": passes, "parts": one, "of_x": int(of_x) * one, "stay": stay * one}
            found.append(chosen(t | fields, np.flatnonzero(fits)))
        return joined(*found)

    def clears(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Whether parts of K add into the result, which a kernel before this one clears."""
        return np.asarray(t["parts"] > 1) & (not self.deterministic)

    def tiling(self, t: dict[str, int]) -> Tiling:
        """See ``pipeline.Space``."""
        cut = self.cuts[t["cut"]]
        return Tiling(
            base_m=t["m"],
            base_n=t["n"],
            base_k=t["k"],
            slab_k=cut.slab_k,
            k_parts=t["parts"],
            l1_slots=t["slots"],
            l0_slots=t["l0_slots"],
            l0c_slots=t["l0c_slots"],
            deterministic=self.deterministic,
            form=cut.form,
            unit_flag=bool(t["unit_flag"]),
            images=cut.images,
            **self._group(t),
            **self._band(),
            cores=t["cores"] if t["cores"] < self.cores else 0,
        )

    def _band(self) -> dict[str, Any]:
        """The fields of a tiling that say how the filter is cut into bands."""
        if self.form != "bands":
            return {}
        (high, down), (wide, across) = self._bands
        return {"band_rows": -(-high // down), "band_columns": -(-wide // across)}

    def _group(self, t: dict[str, int]) -> dict[str, Any]:
        """The fields of a tiling that say which tiles a core takes in turn."""
        if t["group"] == 1:
            return {}
        name = "x" if t["of_x"] else "dy"
        slabs = {f"{name}_slots": t["stay"], f"{name}_slabs": t["stay"]}
        return {"group": t["group"], "passes": t["passes"], "keeps": name, **slabs}
