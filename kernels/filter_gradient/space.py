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
from npusim.kernels.estimate.work import Floats
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
        highest = most_rows(self.device, FP32)
        even = even_parts(ceil_div(self.shape.plan.cout_g, 16), _MOST_SIDE // 16)
        high = [16 * count for count in even if 16 * count <= highest]
        rows = []
        for n in self._widths():
            mean, most = self._planes(n)
            rows += [(m, n, mean, most) for m in high]
        table = np.reshape(rows, (-1, 4))  # none, where no row of L0C fits the UB it leaves over
        return dict(zip(("m", "n", "planes", "most_planes"), table.T, strict=True))

    def _widths(self) -> list[int]:
        """Columns of tiles: even cuts of a run, or whole planes of x."""
        c0, taps = self.shape.c0, self.taps
        blocks = even_parts(self._runs[1] // c0, _MOST_SIDE // c0)
        if self.form != "bands":
            planes = even_parts(self.shape.plan.cin1_g, max(1, _MOST_SIDE // c0 // taps))
            blocks += [count * taps for count in planes]
        return sorted({round_up(count * c0, 16) for count in blocks if count * c0 <= _MOST_SIDE})

    def _planes(self, n: int) -> tuple[float, int]:
        """Planes of x that the columns of a tile lie in: the mean over tiles, and the most."""
        columns, wide = self._runs[1] // self.shape.c0, n // self.shape.c0
        first = np.arange(0, columns, wide)
        last = np.minimum(first + wide, columns) - 1
        planes = last // self.taps - first // self.taps + 1
        return planes.mean(), planes.max()

    @cached_property
    def rows(self) -> Columns:
        """Fields of all that fits the device's buffers, one entry for each."""
        t = self._slabs_in_l1()
        t = joined(self._parts(t), self._groups(t, of_x=True), self._groups(t, of_x=False))
        rounds = -(-t["shares"] // self.cores)
        t["cores"] = -(-t["shares"] // np.maximum(1, rounds))
        t["items"] = t["shares"] * t["group"] * t["passes"]
        return deepest(t, t["most_k"])

    def _slabs_in_l1(self) -> Columns:
        """Cuts of the plane with tiles, and the slots of L1 that hold their slabs."""
        size = cube_sizes(self.device)
        cut, side, slots = np.indices((len(self.cuts), len(self.sides["m"]), 2)).reshape(3, -1)
        t = {name: column[side] for name, column in self.sides.items()}
        t |= {"cut": cut, "slots": 2 - slots}
        of = chosen(self.of_cut, cut)
        x_bytes, dy_bytes = self._slab_bytes(t, of)
        both = x_bytes + dy_bytes
        most = np.minimum(size["L0A"] // t["m"], size["L0B"] // t["n"])
        most = most // 2 // self.element // 16 * 16
        t["most_k"] = np.minimum(most, of["most_positions"])
        blocks = np.maximum(t["m"] // self.shape.c0, t["most_planes"])
        fits = t["slots"] * both <= size["L1"]
        fits &= t["most_k"] >= 16
        fits &= t["m"] * t["n"] * 4 <= size["L0C"]
        fits &= (of["runs"] == of["images"]) | (blocks <= MOST_BLOCKS)
        fits &= (t["slots"] == 2) | (2 * both > size["L1"])  # no reason for one if two fit
        return chosen(t, np.flatnonzero(fits))

    def _slab_bytes(self, t: Columns, of: Columns) -> tuple[IntArray, IntArray]:
        """Bytes of L1 that the largest slabs of x and of dy take."""
        x_bytes = of["images"] * of["most_pixels"] * t["most_planes"] * 32
        dy_bytes = of["runs"] * of["most_positions"] * t["m"] * self.element
        return x_bytes, dy_bytes

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
        """Add numbers of parts of K: none, and even ones that keep most cores busy."""
        s = self.shape
        slabs = np.floor(s.n * min(self._depths) * self.of_cut["slabs"][t["cut"]])
        along, which = np.unique(np.maximum(1, slabs), return_inverse=True)
        # Many candidates have as many tiles and positions: what is left is the same for them.
        radix = max(IMAGES) + 1
        key = self._tiles(t) * len(along) + which.reshape(-1)
        kinds, kind = np.unique(key * radix + self.of_cut["images"][t["cut"]], return_inverse=True)
        kind = kind.reshape(-1)
        rest, images = np.divmod(kinds, radix)
        tiles, which = np.divmod(rest, max(1, len(along)))
        parts = _even_counts(along)[:, which]  # [turn][kind]
        useful = self._useful_parts(parts, tiles, along[which], images)
        turn, candidate = np.nonzero(useful[:, kind])
        places = turn, kind[candidate]
        ones = np.ones(len(candidate), np.int64)
        return chosen(t, candidate) | {
            "parts": parts[places],
            "shares": (tiles * parts)[places],
            "group": ones,
            "passes": ones,
            "stay": ones,
            "of_x": 0 * ones,
        }

    def _useful_parts(
        self, parts: IntArray, tiles: IntArray, along: Floats, images: IntArray
    ) -> npt.NDArray[np.bool_]:
        """Tell whether so many parts, [turn][kind], are worth looking at.

        A kind has so many tiles, slabs ``along`` K, and images that come together.
        """
        items = tiles * parts
        busy = items / (np.maximum(1, -(-items // self.cores)) * self.cores)
        first = np.arange(len(parts))[:, None] == 0
        useful = (parts > 0) & (items <= _ROUNDS * self.cores) & ((busy > _BUSY) | first)
        useful |= (parts == 1) & first
        useful &= images <= -(-along // np.maximum(1, parts))
        return np.asarray(useful)

    def _groups(self, t: Columns, *, of_x: bool) -> Columns:
        """Add groups of tiles of one operand, at most as many as cores, if L1 holds its slabs."""
        t = self._grouped(t, -(-self.shape.plan.cout_g // t["m"]) if of_x else self._along_n(t))
        of, s = chosen(self.of_cut, t["cut"]), self.shape
        x_bytes, dy_bytes = self._slab_bytes(t, of)
        staying, other = (x_bytes, dy_bytes) if of_x else (dy_bytes, x_bytes)
        loads = np.ceil(s.n * s.out[0] * of["slabs"] / of["images"]).astype(np.int64)
        room = (self.device.memory("L1").size_bytes - 2 * other) // staying
        ones = np.ones(len(loads), np.int64)
        candidates = []
        for stay in _STAYING:
            passes = -(-loads // stay)
            fits = (room >= stay) & (loads >= stay) & (passes <= _MOST_PASSES)
            fields = {
                "passes": passes,
                "parts": ones,
                "of_x": int(of_x) * ones,
                "stay": stay * ones,
            }
            candidates.append(chosen(t | fields, np.flatnonzero(fits)))
        return joined(*candidates)

    def _grouped(self, t: Columns, along: IntArray) -> Columns:
        """Candidates that keep most cores busy with groups of tiles; ``along`` share slabs."""
        tiles = self._tiles(t)
        runs = np.minimum(along, np.maximum(1, self.cores // (tiles // along)))
        group = -(-along // runs)
        shares = tiles // along * -(-along // group)
        busy = tiles / group / (np.maximum(1, -(-shares // self.cores)) * self.cores)
        useful = np.flatnonzero((t["slots"] == 2) & (group > 1) & (busy > _BUSY))
        fields = {"shares": shares.astype(np.int64), "group": group.astype(np.int64)}
        return chosen(t | fields, useful)

    def clears(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether parts of K add into the result, which a kernel before this one clears."""
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


def _even_counts(along: Floats) -> IntArray:
    """Counts of even parts of each number, in a column, ascending; 0 where there are no more."""
    counts = [even_parts(int(number), int(number), 24)[::-1] for number in along]
    table = np.zeros((max(map(len, counts), default=1), len(counts)), np.int64)
    for column, parts in enumerate(counts):
        table[: len(parts), column] = parts
    return table
