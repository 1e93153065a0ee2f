"""The tilings of forward convolution and input gradient that are worth comparing, and their work.

What is enumerated follows from the problem: tiles that cut rows, channels and planes evenly into
so many parts. What a device holds of them grows with its memories and leaves nothing out. Of each
candidate there is what the cores do under it: the columns that estimates need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.integers import even_parts
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.fit import columns_in_ub, cube_sizes, most_rows
from npusim.kernels.estimate.pipeline import (
    Columns,
    Space,
    as_columns,
    chosen,
    deepest,
    distinct,
    uneven,
)
from npusim.kernels.estimate.streams import clear_cycles
from npusim.kernels.estimate.work import Floats, Work
from npusim.kernels.implicit_gemm.cuts import Cut, Way, cuts_of, ways_of
from npusim.kernels.implicit_gemm.geometry import Geometry
from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.language import DType, IntArray, round_up

#: Most output channels of a tile.
_MOST_N = 512


@dataclass(frozen=True)
class Products(Space):
    """Candidates for one product on one device: columns of fields, and what ranks them."""

    geometry: Geometry
    dtype: DType
    rate: str
    rotated: bool
    forms: tuple[str, ...]

    @cached_property
    def cuts(self) -> list[Cut]:
        """Every way to cut the plane that is worth comparing."""
        path = self.device.path("L1", "L0A", "load3d")
        size = cube_sizes(self.device)
        # Two slots of L0A hold one block of 32 B per position, L0C one of 16 sums in fp32.
        highest = min(most_rows(self.device, self.dtype), size["L0A"] // 64, size["L0C"] // 64)
        return [
            cut
            for form in self.forms
            for cut in cuts_of(self.geometry, form, highest, path.window_bytes)
        ]

    @cached_property
    def of_cut(self) -> Columns:
        """The cuts as columns; zeros ``around`` leave with a tile only over UB that holds both."""
        of = as_columns(self.cuts, Cut)
        if self.device.has_path("L0C", "GM"):
            return of | {"around": 0 * of["around"]}
        rows = of["most_m"] + of["around"]
        around = of["around"] * (columns_in_ub(self.device, rows, self.dtype.bytes) > 0)
        return of | {"around": around, "apart": np.where(around > 0, 1, of["apart"])}

    @cached_property
    def rows(self) -> Columns:
        """Fields of all that fits the device's buffers, one entry for each."""
        g, size, element = self.geometry, cube_sizes(self.device), self.dtype.bytes
        wide = np.array(even_parts(g.planes_out, max(1, _MOST_N // g.c0))) * g.c0
        wide = distinct(round_up(wide, 16))
        ways: Columns = dict(zip(Way._fields, np.array(ways_of(g), np.int64).T, strict=True))
        axes = (len(self.cuts), len(wide), len(ways["planes"]))
        cut, at_n, way = np.indices(axes).reshape(3, -1)
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

    def spread(self, t: Columns) -> Columns:
        """See ``pipeline.Space``."""
        return self.with_l0(t, self.of_cut["most_m"][t["cut"]])

    def depth(
        self, t: Columns, l0_slots: int, split: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """See ``pipeline.Space``: blocks of K."""
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
        return np.asarray((self.of_cut["dead"] & (self.of_cut["around"] == 0))[t["cut"]])

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
            n_slowest=bool(t["resident"]) and t["tiles_n"] * g.groups > 1,
            zeros=bool(self.of_cut["around"][t["cut"]]),
            unit_flag=bool(t["unit_flag"]),
            images=cut.images,
            even_n=g.planes_out * g.c0 % t["n"] > 0,  # tiles would leave a rest
            cores=t["cores"] if t["cores"] < self.cores else 0,
        )

    def work(self, t: Columns, *, sure: bool = False) -> Work:
        """See ``pipeline.Space``."""
        g, device, element = self.geometry, self.device, self.dtype.bytes
        of = chosen(self.of_cut, t["cut"])
        if sure:  # the last images may be fewer
            share = g.images / of["images"] / np.ceil(g.images / of["images"])
            means = {name: of[name] * share for name in ("m", "pixels")}
            of |= means | {"fetch": of["mean_fetch"]}
        n, port, rounds = self._mean_n(t, sure=sure), device.path("GM", "L1"), self._rounds(t)
        # In one round the core with the largest slab is the last; in several they even out.
        m = np.where((rounds == 1) & (not sure), of["most_m"], of["m"])
        taps = of["taps"] + (0 if sure else (of["most_taps"] - of["taps"]) / rounds)
        # The last planes of an odd number are padding that fills a fractal, and are not loaded.
        planes_in = g.all_in / -(-g.all_in // g.planes_in) if sure else g.planes_in
        chunks = np.ceil(planes_in / t["planes"])
        planes = planes_in / chunks
        parts = t["parts"] > 1
        each = np.maximum(1, taps / t["columns"]) if sure else t["parts"]
        seconds = np.where(parts, each, np.ceil(planes / np.maximum(1, t["w_planes"])))
        columns = planes * taps
        largest = taps * np.minimum(t["planes"], planes_in)
        steps = np.maximum(1, np.ceil(largest / seconds / t["k"] - 1e-6))
        k, rest = uneven(columns / seconds, largest / seconds, t["k"], steps)
        if sure:  # as few steps as there are, all of the mean
            steps = np.maximum(1, columns / seconds / t["k"])
            k = rest = columns / seconds / steps
        x_bytes = planes * of["pixels"] * of["images"] * 32
        w_bytes = columns / seconds * g.c0 * n * element
        firsts = self._mean_depth * of["reads"] * chunks
        firsts = firsts if sure else np.maximum(1, np.rint(firsts))
        every_n, every_m = self._every(t, sure=sure)
        x_moves, x_rows = self._moves(t, of, planes)
        w_moves = self._weight_moves(t, of, n)
        if sure:  # what stays, and what few taps need of it, may come in one load
            several = (t["resident"] > 0) | (self._phases[t["cut"]] > 1)
            x_moves, w_moves = np.ones(1), np.where(several, 0, 1)
        w_rows = n / g.c0 * taps if self.rotated and element == 2 else columns / seconds
        reads = self._mean_depth * of["reads"] * chunks * t["items"]
        asked = (x_bytes / every_n + seconds * w_bytes / every_m) * reads
        requests = (x_rows / every_n + seconds * w_rows / every_m) * reads
        x_once = g.images * 32 * g.depth_in * g.all_in * g.h.size * g.w.size
        w_once = g.groups * g.kernel_d * planes_in * g.taps * g.planes_out * g.c0**2 * element
        missing = self.missing(x_once * self._fetched(t, x_once), w_once)
        stored = self._written / costs.write_rate(device)
        # Phases write the same sectors, one after another.
        main = costs.main_rate(device, missing, 0 if sure else self._written * of["apart"])
        full_step, rest_step = (
            self._step(t, of, (m, n, size * g.c0), sure=sure) for size in (k, rest)
        )
        return Work(
            cores=t["cores"],
            items=t["items"],
            firsts=firsts,
            seconds=seconds,
            steps=steps,
            first_start=x_moves * port.startup_cycles,
            first_bytes=x_bytes,
            second_start=w_moves * port.startup_cycles,
            second_bytes=w_bytes,
            first_every=every_n,
            second_every=every_m,
            first_slots=t["l1_slots"],
            second_slots=t["weight_slots"],
            **self.stepping(t, full_step, rest_step, steps),
            **self._out(t, of, (m, n), sure=sure),
            rate=port.rate,
            shared=costs.read_rate(device, asked, requests),
            main=main,
            **self._lacking(t, x_bytes * firsts, w_bytes * seconds * firsts, (x_once, w_once)),
            least=np.maximum(stored, missing / main),
            beside=costs.launch_cycles(device, "cube", t["cores"])
            + np.where(self.clears(t), clear_cycles(device, self._written), 0),
        )

    def _out(
        self, t: Columns, of: Columns, size: tuple[Floats, Floats], *, sure: bool
    ) -> dict[str, Any]:
        """How tiles of ``size`` leave."""
        if sure:
            alone = dict.fromkeys(("lines", "apart"), np.ones(1))
            of = of | alone | {"length": size[0], "around": np.zeros(1)}
        device, (m, n) = self.device, size
        cycles, pace, drains = self._drain(of, n)
        written, queue = m * n * self.dtype.bytes, device.pipe(costs.way_out(device).pipe)
        out = self.draining(t, (cycles, pace), written, sure=sure)
        drain = out["drain"]
        # Under the unit flag the next tile follows the last of several drains.
        lag = costs.unit_flag_lag(device) + drain - drain / drains
        return out | {
            "stall": drain * np.maximum(0, 1 - queue.queue_depth / drains),
            "lag": np.where(t["unit_flag"] > 0, lag, -1.0),
        }

    @property
    def _written(self) -> int:
        """Bytes of the result."""
        g = self.geometry
        return g.images * g.depth_out * g.all_out * g.h.out * g.w.out * g.c0 * self.dtype.bytes

    @cached_property
    def _mean_depth(self) -> float:
        """Planes of the filter along the depth that reach an output, on average."""
        depths = [len(pairs) for pairs in self.geometry.live if pairs]
        return sum(depths) / max(1, len(depths))

    def _mean_n(self, t: Columns, *, sure: bool) -> Floats:
        """What the tiles of the core with most of N have of it on average, or those of all."""
        rounds, g = self._rounds(t), self.geometry
        if sure:
            return np.asarray(g.planes_out * g.c0 / t["tiles_n"])
        # Tiles of one core are of all columns, or where N is slowest of some that are neighbours.
        tiles = np.where(self._slow(t), -(-rounds * t["tiles_n"] // t["items"]), rounds)
        most = np.ceil(tiles * -(-g.planes_out * g.c0 // 16) / t["tiles_n"])
        return np.asarray(np.minimum(t["n"], most / tiles * 16), np.float64)

    def _moves(self, t: Columns, of: Columns, planes: Floats) -> tuple[Floats, Floats]:
        """Moves that bring so many planes of a read to L1, and rows in GM of all of them."""
        at_once = of["side_by_side"] & (t["planes"] <= MOST_BLOCKS)
        moves = np.where(at_once, 1, of["moves"] + planes * of["plane_moves"])
        return moves, np.where(at_once, 1, planes * of["pieces"]) * of["images"]

    def _weight_moves(self, t: Columns, of: Columns, n: Floats) -> Floats:
        """Moves that bring one load of weights to L1: place by place where not all taps are used.

        Of a band of a wide filter the taps of a row follow each other.
        """
        moves, banded = of["tap_moves"] / np.maximum(1, t["parts"]), of["band_moves"] > 0
        if banded.any():
            pieces = np.maximum(1, np.maximum(1, t["w_planes"]) * of["band_moves"] / t["parts"])
            moves = np.where(banded, np.minimum(moves, pieces), moves)
        if not (self.rotated and self.dtype.bytes == 2):
            return np.asarray(moves, np.float64)
        # Turned: place by place, or row by row of each output plane.
        blocks = n / self.geometry.c0
        moves = np.minimum(moves, blocks * of["tap_rows"])
        parts = blocks * np.ceil(of["tap_rows"] / t["parts"])
        return np.where(t["parts"] > 1, parts, moves)

    def _rounds(self, t: Columns) -> IntArray:
        """Items of a core, at most."""
        return np.asarray(-(-t["items"] // t["cores"]))

    def _every(self, t: Columns, *, sure: bool) -> tuple[IntArray, IntArray]:
        """After how many items of a core its input and its weights come anew.

        Under a form by phases each core has tiles of every phase, and each phase has weights and
        slabs of its own.
        """
        rounds, phases = self._rounds(t), self._phases[t["cut"]]
        if sure:
            input_stays, weights_stay = t["resident_input"] > 0, t["resident"] > 0
            return np.where(input_stays, rounds, 1), np.where(weights_stay, rounds, 1)
        run = np.where(phases > 1, np.maximum(1, t["items"] // phases // t["cores"]), t["items"])
        tiles_m = np.maximum(1, t["items"] // np.maximum(1, t["tiles_n"]))
        weights = np.minimum(np.maximum(1, tiles_m // phases), run)
        every_n = np.where(t["resident_input"] > 0, np.minimum(t["tiles_n"], run), 1)
        return every_n, np.where(t["resident"] > 0, weights, 1)

    def _lacking(self, t: Columns, x: Floats, w: Floats, once: tuple[int, float]) -> Columns:
        """Of which items the L2 lacks the operands, and how many cores ask for them at once.

        ``x`` and ``w`` are the bytes of all loads for an item, ``once`` those of the operands.
        """
        rounds, tiles_n = self._rounds(t), np.minimum(t["tiles_n"], t["items"])
        phases, stays = self._phases[t["cut"]], t["resident"] + t["resident_input"] > 0
        slow = self._slow(t)
        # Tiles of one slab follow each other on a core, or are those of several at a time.
        follow = ~slow & ((phases == 1) | stays)
        period = np.where(follow, np.minimum(tiles_n, rounds), 1)
        passes = self._passes(t)
        times = self._fetched(t, once[0])
        until = -(-rounds // passes) * times
        asked = -(-until // period) / times
        weights = np.where(slow, rounds, np.minimum(tiles_n * phases, rounds))
        loads = np.where(t["resident"] > 0, np.minimum(phases, rounds), weights)
        return {
            "first_period": period,
            "first_until": np.where(self.held[0], 0, until),
            "first_copies": np.maximum(1, t["cores"] * asked * x / once[0]),
            "second_period": np.ones_like(weights),
            "second_until": np.where(self.held[1], 0, weights),
            "second_copies": np.maximum(1, t["cores"] * loads * w / once[1]),
        }

    def _passes(self, t: Columns) -> IntArray:
        """How often the cores go over the input: for each phase, and for columns that are slowest.

        Cores at the same slabs of other columns read the same, if any are.
        """
        tiles_n = np.minimum(t["tiles_n"], t["items"])
        times = np.where(self._slow(t), tiles_n // np.gcd(t["cores"], tiles_n), 1)
        return self._phases[t["cut"]] * times

    def _slow(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Whether cores go through all slabs for some columns before the next columns."""
        return (t["resident"] > 0) & (t["tiles_n"] > 1)

    def _fetched(self, t: Columns, once: int) -> IntArray:
        """How often the input of ``once`` bytes comes from main memory: with each of the passes
        over it where the L2 has lost it when the next one comes."""
        l2, passes = self.device.l2, self._passes(t)
        size = l2.size_bytes if l2 is not None else 0
        return np.where(once + self._written / passes > size, passes, 1)

    @cached_property
    def _phases(self) -> IntArray:
        """Phases of the outputs that read anything, by cut: 1 where it is not cut by them."""
        axes = (self.geometry.h, self.geometry.w)
        count = prod(min(axis.insert, axis.kernel) for axis in axes)
        return np.array([1 if cut.form == "window" else count for cut in self.cuts], np.int64)

    def _step(
        self, t: Columns, of: Columns, size: tuple[Floats, ...], *, sure: bool = False
    ) -> dict[str, Floats]:
        """Cycles of the loads to L0 and the product of one step, ``sure`` without delays."""
        (m, n, k), device, g = size, self.device, self.geometry
        element, path = self.dtype.bytes, device.path("L1", "L0A", "load3d")
        turned = self.rotated and element == 2
        into_b = device.path("L1", "L0B", "transpose" if turned else "")
        # Transposed weights come column by column, others at once.
        moves = k / g.c0 * n / 16 / 255
        moves = k / g.c0 if self.rotated else np.maximum(1, moves if sure else np.ceil(moves))
        a = m * k * element / path.rate
        b = moves * into_b.startup_cycles + n * k * element / into_b.rate
        a = np.maximum(a, k / g.c0 * of["fetch"])
        clash = m * k * element / 512 * float(path.conflict_cycles)
        a = a + np.where(t["l1_slots"] > 1, clash, 0)
        clash = n * k * element / 512 * float(into_b.conflict_cycles)
        b = b + np.where(t["weight_slots"] > 1, clash, 0)
        wide = n if sure else round_up(np.ceil(n).astype(np.int64), 16)
        product = costs.mmad_cycles(device, m, k, wide, self.rate, mean=sure) * n / wide
        return costs.step(device, (path, into_b), (1, moves), (a + path.startup_cycles, b, product))

    def _drain(self, of: Columns, n: Any) -> tuple[Floats, ...]:
        """Cycles in which a tile leaves, and after which the next can follow; in how many moves."""
        lines, length, size = of["lines"], of["length"], self.dtype.bytes
        out = costs.drain_cycles(self.device, lines * length, n, size, lines, of["around"])
        if not (of["apart"] > 1).any():
            return out
        g, apart = self.geometry, of["apart"]
        halves = g.c0 == 8 and g.planes_out > 1
        singly = costs.scatter_cycles(
            *(self.device, length, n, g.c0 * size, apart, lines, g.h.out * g.w.out), halves=halves
        )
        return tuple(np.where(apart > 1, *pair) for pair in zip(singly, out, strict=True))
