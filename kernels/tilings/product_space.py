"""The tilings of forward convolution and input gradient that are worth comparing, and their work.

What is enumerated follows from the problem: tiles that cut rows, channels and planes evenly into
so many parts. What a device holds of them grows with its memories and leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.integers import IntArray, even_parts, round_up
from npusim.kernels.tilings import costs
from npusim.kernels.tilings.fit import cube_sizes, most_rows
from npusim.kernels.tilings.implicit_gemm import Tiling
from npusim.kernels.tilings.pipeline import L0_WAYS, Columns, Waits, chosen, deepest, with_l0
from npusim.kernels.tilings.product_cuts import Way, ways_of
from npusim.kernels.tilings.product_work import Product

#: Most output channels of a tile.
_MOST_N = 512
#: Tiles whose best possible time is so much longer than others' are not looked at.
_HOPELESS = 1.6


@dataclass(frozen=True)
class Space(Product):
    """Candidates for one product on one device: columns of fields, and what ranks them."""

    @cached_property
    def rows(self) -> Columns:
        """Fields of all that fits the device's buffers, one entry for each."""
        g, size, element = self.geometry, cube_sizes(self.device), self.dtype.bytes
        wide = np.array(even_parts(g.planes_out, max(1, _MOST_N // g.c0))) * g.c0
        wide = np.unique(round_up(wide, 16))
        ways: Columns = dict(zip(Way._fields, np.array(ways_of(g), np.int64).T, strict=True))
        axes = (np.arange(len(self.cuts)), np.arange(len(wide)))
        cut, at_n = (a.reshape(-1) for a in np.meshgrid(*axes, indexing="ij"))
        cut, at_n = self._hopeful(cut, at_n, wide)
        count = len(ways["planes"])
        way = np.tile(np.arange(count), len(cut))
        cut, at_n = np.repeat(cut, count), np.repeat(at_n, count)
        t = {name: column[way] for name, column in ways.items()} | {"cut": cut, "n": wide[at_n]}
        taps, m = self.of_cut["most_taps"][cut], self.of_cut["most_m"][cut]
        t["columns"] = np.where(t["parts"] > 1, -(-taps // t["parts"]), t["w_planes"] * taps)
        x = t["l1_slots"] * t["planes"] * self.of_cut["most_pixels"][cut] * 32
        w = t["weight_slots"] * t["columns"] * t["n"] * g.c0 * element
        most = np.minimum(size["L0A"] // m, size["L0B"] // t["n"]) // 2 // element // g.c0
        t["most_k"] = np.minimum(np.minimum(most, t["columns"]), 4080 // g.c0)
        fits = (x + w <= size["L1"]) & (t["most_k"] > 0) & (m * t["n"] * 4 <= size["L0C"])
        fits &= (t["parts"] == 1) | (t["parts"] <= taps)
        t = chosen(t, np.flatnonzero(fits))
        t["tiles_n"] = -(-g.planes_out * g.c0 // t["n"])
        images = -(-g.images // self.of_cut["images"][t["cut"]])
        depths = sum(1 for pairs in g.live if pairs) * g.groups
        t["items"] = self.of_cut["slabs"][t["cut"]] * images * depths * t["tiles_n"]
        rounds = -(-t["items"] // self.cores)
        t["cores"] = -(-t["items"] // np.maximum(1, rounds))
        return deepest(t, t["most_k"])

    def _hopeful(
        self, cut: npt.NDArray[Any], at_n: npt.NDArray[Any], wide: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Pairs of a cut and a width that fit, without those much slower than others at best."""
        g, size, element = self.geometry, cube_sizes(self.device), self.dtype.bytes
        of, n = {name: column[cut] for name, column in self.of_cut.items()}, wide[at_n]
        m, c0 = of["most_m"], g.c0
        most = np.minimum(size["L0A"] // m, size["L0B"] // n) // 2 // element // c0
        fits = (most > 0) & (m * n * 4 <= size["L0C"])
        fits &= of["most_pixels"] * 32 + n * c0 * element <= size["L1"]
        fits &= m <= most_rows(self.device, self.dtype)
        columns = g.planes_in * of["taps"]
        k = np.minimum(np.maximum(most, 1), columns) * c0
        singly = dict.fromkeys(("l1_slots", "weight_slots"), np.ones_like(m))
        step = self._step(singly, of, (of["m"], n, k))
        tiles = -(-g.planes_out * c0 // n) * of["slabs"] * -(-g.images // of["images"])
        tiles = tiles * sum(1 for pairs in g.live if pairs) * g.groups
        least = np.maximum(step["m"], step["a"] + step["b"]) * columns * c0 / k * of["reads"]
        least = np.maximum(least, self._drain(of, n)[0]) * np.ceil(tiles / self.cores)
        least = least + costs.launch_cycles(self.device, "cube", 0)
        fits &= least <= _HOPELESS * np.min(least, where=fits, initial=np.inf)
        return cut[fits], at_n[fits]

    def spread(self, t: Columns) -> Columns:
        """See ``pipeline.Space``."""
        m = self.of_cut["most_m"][t["cut"]]
        depths = [self._depth(t, *way) for way in L0_WAYS]
        return with_l0(t, depths, m * t["n"] * 4, self.device)

    def _depth(
        self, t: Columns, l0_slots: int, split: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Blocks of K of a step with so many slots of L0, in how many steps what fits is cut, and
        whether there is room."""
        taps, m = (self.of_cut[name][t["cut"]] for name in ("most_taps", "most_m"))
        # Of weights that stay a step takes no more than those of the planes in L1.
        columns, l0 = np.minimum(t["columns"], t["planes"] * taps), cube_sizes(self.device)
        side = np.minimum(l0["L0A"] // m, l0["L0B"] // t["n"])
        deepest = side // l0_slots // self.dtype.bytes // self.geometry.c0
        deepest = np.minimum(deepest, t["most_k"])
        whole = -(-columns // np.maximum(1, deepest))
        fits = ((whole < columns) | (split == 1)) & (deepest > 0)
        return -(-columns // np.minimum(whole * split, columns)), fits

    def clears(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Whether some outputs read nothing, which a kernel before this one clears."""
        return np.asarray(self.of_cut["dead"][t["cut"]])

    def tiling(self, t: dict[str, int]) -> Tiling:
        """See ``pipeline.Space``."""
        cut, g = self.cuts[t["cut"]], self.geometry
        return Tiling(
            base_m=cut.base_m,
            base_n=t["n"],
            base_k=t["k"] * g.c0,
            step_planes=t["planes"],
            step_columns=t["columns"],
            l1_slots=t["l1_slots"],
            weight_slots=t["weight_slots"],
            l0_slots=t["l0_slots"],
            l0c_slots=t["l0c_slots"],
            resident=bool(t["resident"]),
            form=cut.form,
            resident_input=bool(t["resident_input"]),
            n_slowest=bool(t["resident"]) and t["tiles_n"] > 1,
            unit_flag=bool(t["unit_flag"]),
            images=cut.images,
            even_n=self._uneven(t["n"]),
            cores=t["cores"] if t["cores"] < self.cores else 0,
        )

    def _uneven(self, n: int) -> bool:
        """Whether tiles of ``n`` channels leave a rest; then they are cut evenly instead."""
        return self.geometry.planes_out * self.geometry.c0 % n > 0

    def waits(self, t: Columns) -> Waits:
        """See ``pipeline``: the smallest load of the input."""
        port = self.device.path("GM", "L1")
        even = (self.geometry.planes_in % t["planes"] == 0) & (self.geometry.groups == 1)
        planes = np.where(even, t["planes"], 1)
        size = planes * self.of_cut["least_pixels"][t["cut"]] * 32
        return port.startup_cycles + size / port.rate, 0
