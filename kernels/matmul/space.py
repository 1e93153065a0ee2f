"""The tilings of a matrix product that are worth comparing, and what the cores do under each.

Tiles cut M and N evenly, and K where parts of it may add up. A tile goes along K in slabs, which
come to L1 as one of A and one of B, and each in base blocks: the loads of a product with img2col
whose filter has one tap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.integers import even_parts
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.fit import cube_sizes, most_rows
from npusim.kernels.estimate.ladder import cores_below, l1_below
from npusim.kernels.estimate.pipeline import Columns, Space, chosen, distinct, joined, uneven
from npusim.kernels.estimate.streams import clear_cycles
from npusim.kernels.estimate.work import Floats, Work
from npusim.kernels.matmul.tiling import Shape, Tiling, order_of
from npusim.language import FP32, IntArray, ceil_div, round_up
from npusim.machine.device.parts import Path

#: Most K of one product, and base blocks of slabs that are tried besides the longest that fit L1.
_MOST_K, _STEPS = 512, (1, 2, 4, 8)
#: Sides of tiles that are tried besides some even cuts, and how many of these.
_SIDES, _EVEN = np.array([16, 32, 64, 96, 128, 192, 256, 384, 512]), 8
#: Most parts of K that are dealt to a core.
_PARTS = 3
#: Rungs of the ladder of lesser machines (``ladder``) whose parts of K and slabs are tried too.
_LESS = 3
#: How A comes to L0A if it is stored K x M, on devices that can.
_ACROSS = ("L1", "L0A", "load3d_transpose")
#: Rows, and places of them, that stand for all where pieces of rows are counted.
_ROWS, _PLACES = 16, 4


@dataclass(frozen=True)
class Products(Space):
    """Candidates for one product on one device: columns of fields, and what ranks them."""

    shape: Shape

    @cached_property
    def rows(self) -> Columns:
        """Fields of all candidates that fit the device's buffers, one entry per candidate."""
        s, size, unit = self.shape, cube_sizes(self.device), self.shape.unit
        table = self.device.memory("BT" if s.biased else "L0C").size_bytes // FP32.bytes
        high, wide = (
            distinct(
                np.array(even_parts(ceil_div(side, unit), _SIDES[-1] // unit, _EVEN)) * unit,
                _SIDES[(_SIDES % unit == 0) & (side > _SIDES)],
            )
            for side in (s.m, s.n)
        )
        m, n = (side.reshape(-1) for side in np.meshgrid(high, wide, indexing="ij"))
        fits = (m * n * 4 <= size["L0C"]) & (m <= most_rows(self.device, s.out)) & (n <= table)
        t = self._parts(chosen({"m": m, "n": n}, np.flatnonzero(fits)))
        t = self.with_l0(t, t["m"])
        t["depth"] = -(-t["depth"] // t["k"]) * t["k"]  # parts are of whole base blocks
        room = 2 * (t["m"] + t["n"]) * s.dtype.bytes * t["k"]
        t = chosen(t | {"room": room}, np.flatnonzero(room <= size["L1"]))
        longest = np.minimum(size["L1"] // t["room"], -(-t["depth"] // t["k"]))
        steps = [longest]
        for step in (*_STEPS, *(less // t["room"] for less in l1_below(size["L1"])[:_LESS])):
            wanted = np.broadcast_to(np.asarray(step), longest.shape)
            new = np.logical_and.reduce([wanted != other for other in steps])
            steps.append(np.where((wanted < longest) & new, wanted, 0))
        t = joined(*(chosen(t | {"step": step}, np.flatnonzero(step)) for step in steps))
        t["items"] = self._tiles(t) * -(-s.k // t["depth"])
        t["cores"] = -(-t["items"] // -(-t["items"] // self.cores))
        return t

    def given(self, tilings: Sequence[Tiling]) -> Columns:
        """Fields of such candidates, and whether each ``fits`` and is known.

        Blocks of several tiles are dealt as wholes: the core with most has a share of ``dealt``.
        """
        s, size = self.shape, cube_sizes(self.device)
        names = [field.name for field in fields(Tiling)]
        g = {name: np.array([getattr(one, name) for one in tilings]) for name in names}
        m, n, k = g["base_m"], g["base_n"], g["base_k"]
        a, b = (k * g[f"step_k{side}"] for side in "ab")
        whole = round_up(s.k, 16)
        depth = np.where(g["single_core_k"] > 0, np.minimum(g["single_core_k"], whole), whole)
        l1 = g["l1a_slots"] * m * a + g["l1b_slots"] * n * b
        fits = (l1 * s.dtype.bytes <= size["L1"]) & (g["l0c_slots"] * m * n * 4 <= size["L0C"])
        for memory, side in (("L0A", m), ("L0B", n)):
            fits &= g["l0_slots"] * side * k * s.dtype.bytes <= size[memory]
        t = {"m": m, "n": n, "k": k, "depth": depth, "step": g["step_ka"]}
        t |= {"step_a": g["step_ka"], "step_b": g["step_kb"]}
        t |= {name: g[name] for name in ("l0_slots", "l0c_slots", "unit_flag", "l1_halves")}
        t |= {"l1a": g["l1a_slots"], "l1b": g["l1b_slots"]}
        parts = -(-s.k // depth)
        t["items"] = self._tiles(t) * parts
        high, wide = (
            np.clip(-(-g[f"single_core_{axis}"] // base), 1, -(-side // base))
            for axis, base, side in (("m", m, s.m), ("n", n, s.n))
        )
        blocks = s.groups * -(-s.m // (m * high)) * -(-s.n // (n * wide)) * parts
        t["cores"] = np.minimum(np.where(g["cores"] > 0, g["cores"], self.cores), self.cores)
        t["cores"] = np.minimum(t["cores"], blocks)
        t["dealt"] = np.minimum(-(-blocks // t["cores"]) * high * wide, t["items"]) * t["cores"]
        fits &= ~(g["full_load_a"] | g["through_ub"]) & (g["tail_m"] * g["tail_n"] == 1)
        fits &= ~g["unit_flag"] | (costs.unit_flag_lag(self.device) >= 0)
        cube = self.device.cube
        fits &= cube is not None and s.math in cube.rates
        return t | {"fits": fits, "barrier": g["barrier"]}

    def _parts(self, t: Columns) -> Columns:
        """With depths of a part of K: all of it, and what keeps cores busy if parts may add up."""
        s, found = self.shape, [t | {"depth": np.full(len(t["m"]), round_up(self.shape.k, 16))}]
        tiles, depths = self._tiles(t), [found[0]["depth"]]
        for cores in (self.cores, *cores_below(self.cores)[:_LESS]):
            for each in range(1, _PARTS + 1):
                count = each * cores // tiles
                depth = round_up(-(-s.k // np.maximum(1, count)), 16)
                new = np.logical_and.reduce([depth != other for other in depths])
                some = np.flatnonzero((count > 1) & (depth < s.k) & s.splits & new)
                depths.append(depth)
                found.append(chosen(t | {"depth": depth}, some))
        return joined(*found)

    def _tiles(self, t: Columns) -> IntArray:
        """Tiles of the result."""
        s = self.shape
        return np.asarray(s.groups * -(-s.m // t["m"]) * -(-s.n // t["n"]))

    def depth(
        self, t: Columns, l0_slots: int, split: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """See ``pipeline.Space``: elements."""
        size, unit = cube_sizes(self.device), self.shape.unit
        side = np.minimum(size["L0A"] // t["m"], size["L0B"] // t["n"])
        deepest = np.minimum(side // l0_slots // self.shape.dtype.bytes, _MOST_K) // unit * unit
        steps = -(-t["depth"] // np.maximum(1, deepest)) * split
        fits = (deepest > 0) & ((split == 1) | (steps * unit <= t["depth"]))
        return round_up(-(-t["depth"] // steps), unit), fits

    def in_l1(self, t: Columns) -> IntArray:
        """Bytes of L1 that candidates take."""
        return np.asarray(2 * (t["m"] + t["n"]) * t["k"] * t["step"] * self.shape.dtype.bytes)

    def bytes_in_l1(self, t: Tiling) -> int:
        """The same of a tiling of them."""
        return 2 * (t.base_m + t.base_n) * t.base_k * t.step_ka * self.shape.dtype.bytes

    def clears(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Whether parts of K add into the result, which a kernel before this one clears."""
        return np.asarray(t["depth"] < self.shape.k)

    def tiling(self, t: dict[str, int]) -> Tiling:
        """See ``pipeline.Space``."""
        return Tiling(
            base_m=t["m"],
            base_n=t["n"],
            base_k=t["k"],
            step_ka=t["step"],
            step_kb=t["step"],
            l0_slots=t["l0_slots"],
            l0c_slots=t["l0c_slots"],
            unit_flag=bool(t["unit_flag"]),
            single_core_k=t["depth"] if t["depth"] < self.shape.k else 0,
            cores=t["cores"] if t["cores"] < min(self.cores, t["items"]) else 0,
            **order_of(self.shape, self.device),
        )

    def work(self, t: Columns, *, sure: bool = False) -> Work:
        """See ``pipeline.Space``."""
        s, device, cores = self.shape, self.device, t["cores"]
        items = t["items"] if sure else t.get("dealt", t["items"])
        e, rounds = s.dtype.bytes, -(-items // cores)
        # In one round a core with a whole tile is the last; in several they even out.
        m, n = (
            np.where(
                (rounds == 1) & (not sure),
                np.minimum(base, side),
                side / -(-side // base),
            )
            for base, side in ((t["m"], s.m), (t["n"], s.n))
        )
        of_a, of_b = t.get("step_a", t["step"]), t.get("step_b", t["step"])
        slabs, depth, most, steps = self._slabs(t, np.maximum(of_a, of_b), sure=sure)
        # The operand with shorter slabs comes so many times for each of the other.
        seconds = np.maximum(1, most / (t["k"] * np.minimum(of_a, of_b)))
        seconds = seconds if sure else np.ceil(seconds)
        in_a, in_b = np.where(of_a < of_b, seconds, 1), np.where(of_b < of_a, seconds, 1)
        slab, along = depth / slabs, np.minimum(t["depth"], s.k)
        k, rest = uneven(slab, most.astype(np.float64), t["k"], steps)
        a, b = (
            self._load(
                (side, slab / several),
                (np.minimum(base, whole), np.minimum(t["k"] * of, along)),
                (whole, s.k),
                k_rows=k_rows,
                parts=(0 if not sure else whole if k_rows else along) + 0 * along,
            )
            for side, several, base, of, whole, k_rows in (
                (m, in_a, t["m"], of_a, s.m, s.turned[0]),
                (n, in_b, t["n"], of_b, s.n, not s.turned[1]),
            )
        )
        asked = (m + n) * depth * e * t["items"]
        requests = (a["rows"] * in_a + b["rows"] * in_b) * slabs * t["items"]
        once, written = (s.groups * s.m * s.k * e, s.groups * s.k * s.n * e), s.m * s.n * s.groups
        missing = self.missing(*once)
        loads = [
            {
                "start": load["start"],
                "bytes": side * slab / several * e,
                "slots": slots,
                "until": np.where(held, 0, rounds),
                "copies": np.maximum(1, cores * rounds * side * depth * e / size),
            }
            for load, side, several, slots, held, size in (
                (a, m, in_a, t.get("l1a", 2), self.held[0], once[0]),
                (b, n, in_b, t.get("l1b", 2), self.held[1], once[1]),
            )
        ]
        if sure:  # what misses the L2 makes no request there: each byte once, or any byte
            every = zip(once, (a, b), loads, strict=True)
            spared = self.missing(*(size * x["rows"] / load["bytes"] for size, x, load in every))
            room = device.l2.size_bytes if device.l2 is not None else 0
            fits = sum(once) + written * s.out.bytes <= room
            requests = requests - (spared if fits else requests)
        pairs = {
            f"{which}_{what}": np.where(of_a < of_b, loads[1 - i][what], loads[i][what])
            for i, which in enumerate(("first", "second"))
            for what in loads[0]
        }
        factor = device.l2.atomic_factor if device.l2 is not None else 1
        size = np.where(t["depth"] < s.k, s.out.bytes, (s.single or s.out).bytes)
        sums = np.where(t["depth"] < s.k, factor, 1) * size
        stored = written * sums * -(-s.k // t["depth"]) / costs.write_rate(device)
        clear = clear_cycles(device, written * s.out.bytes) if s.splits else 0
        return Work(
            cores=cores,
            items=items,
            firsts=slabs,
            seconds=seconds,
            steps=steps / seconds if sure else np.ceil(steps / seconds),
            **pairs,
            **dict.fromkeys(("first_every", "second_every", "first_period", "second_period"), 1),
            **self.stepping(t, self._step(t, m, n, k), self._step(t, m, n, rest), steps),
            **self._out(t, (m, n), size, m * n * sums, sure=sure),
            rate=self._port.rate,
            shared=costs.read_rate(device, asked, requests),
            main=device.main_read_rate,
            least=np.maximum(stored, missing / device.main_read_rate),
            beside=costs.launch_cycles(device, "cube", cores)
            + np.where(t["depth"] < s.k, clear, 0),
        )

    def _slabs(self, t: Columns, step: IntArray, *, sure: bool) -> tuple[Any, Any, Any, Any]:
        """The longer slabs of a tile, with its K, the most K of one, and its base blocks."""
        depth = np.minimum(t["depth"], self.shape.k)
        if not (sure and "fits" in t):  # parts of K that were given may differ
            most = np.minimum(t["k"] * step, depth)
            return -(-depth // (t["k"] * step)), depth, most, np.ceil(most / t["k"])
        depth = self.shape.k / -(-self.shape.k // depth)
        slabs = np.maximum(1, depth / (t["k"] * step))
        most = depth / slabs
        return slabs, depth, most, np.maximum(1, most / t["k"])

    @property
    def _port(self) -> Path:
        """The way of operands to L1."""
        turning = not self.shape.blocked and self.device.has_path("GM", "L1", "nd2nz")
        return self.device.path("GM", "L1", "nd2nz" if turning else "")

    def _load(
        self,
        size: tuple[Floats, Floats],
        most: tuple[IntArray, IntArray],
        whole: tuple[int, int],
        *,
        k_rows: bool,
        parts: IntArray,
    ) -> dict[str, Floats]:
        """Cycles of a load beside those of its bytes, and its rows in GM.

        All sizes are across K and along it. Rows, which with ``k_rows`` are along K, are as wide as
        the ``most`` that is no tail, and the ``whole`` operand's elements apart. With ``parts``,
        the elements into which a row is cut before, all loads are looked at, with 0 a few. Where no
        move makes columns of NZ of rows, each column is a move of its own.
        """
        port, e = self._port, self.shape.dtype.bytes
        rows, columns = size[::-1] if k_rows else size
        wide, pitch = most[not k_rows], whole[not k_rows]
        if port.variant == "":
            moves = columns * e / 32
            if self.shape.blocked:  # a move brings all columns, each of which lies in one piece
                return {"start": port.startup_cycles + 0 * moves, "rows": moves}
            return {"start": moves * port.startup_cycles, "rows": rows * moves}
        # Both in one number: to sort pairs takes NumPy ten times as long.
        apart = 1 + int(np.max(parts, initial=0))
        each, which = np.unique(wide * apart + parts, return_inverse=True)
        lines = self.shape.groups * whole[k_rows]
        pieces = np.array(
            [
                _pieces(port, width * e, pitch * e, lines, part * e)
                for width, part in (divmod(pair, apart) for pair in each.tolist())
            ]
        )
        pieces = rows * columns / wide * pieces[which]
        longer = pieces * float(port.row_cycles) - rows * columns * e / port.rate
        return {"start": port.startup_cycles + np.maximum(0, longer), "rows": pieces}

    def _step(self, t: Columns, m: Floats, n: Floats, k: Floats) -> dict[str, Any]:
        """Cycles of the loads to L0 and the product of one step of ``k`` elements.

        Slots of a buffer get into each other's way where there are several that share banks.
        """
        device, e, (km, nk) = self.device, self.shape.dtype.bytes, self.shape.turned
        across = "load3d_transpose" if device.has_path(*_ACROSS) else "transpose"
        into_a = device.path("L1", "L0A", across if km else "load3d")
        into_b = device.path("L1", "L0B", "" if nk else "load3d")
        a, b = (
            path.startup_cycles + np.ceil(side / 16) * 16 * k * e * (each + conflict)
            for path, side, slots in ((into_a, m, "l1a"), (into_b, n, "l1b"))
            for each in (costs.byte_cycles(path, self.shape.dtype),)
            for shared in ((t.get(slots, 2) > 1) & (t.get("l1_halves", 0) == 0),)
            for conflict in (float(path.conflict_cycles) / 512 * shared,)
        )
        depth = k * self.shape.dtype.values
        product = costs.mmad_cycles(device, m, depth, n, self.shape.math)
        return costs.step(device, (into_a, into_b), (1, 1), (a, b, product))

    def _out(
        self,
        t: Columns,
        size: tuple[Floats, Floats],
        each: IntArray,
        written: Floats,
        *,
        sure: bool,
    ) -> dict[str, Any]:
        """How tiles of ``size`` leave, of elements of so many bytes, which write so many each."""
        device, (m, n), e, whole = self.device, size, each, self.shape.n
        drain, pace, _ = costs.drain_cycles(device, m, n, e)
        if device.has_path("L0C", "GM", "nz2nd"):
            path = device.path("L0C", "GM", "nz2nd")
            # Of tiles side by side the busiest core may have those that begin between.
            between = (not sure) & (whole > t["n"]) & (t["n"] * e % path.align_bytes > 0)
            apart = between | (whole * e % path.align_bytes > 0)
            drain = pace = costs.move_cycles(path, m * n * e, m, m * apart)
        out = self.draining(t, (drain, pace), written)
        return out | {"stall": np.where(t.get("barrier", False), out["drain"], 0)}


@lru_cache(maxsize=4096)
def _pieces(path: Path, width: int, pitch: int, rows: int, part: int) -> float:
    """Pieces of a row of ``width`` bytes on average, at multiples of these.

    With a ``part``, of each ``width`` bytes of an operand of so many ``rows``, whose parts of so
    many bytes are cut into such rows and what is left.
    """
    if not part:
        found = sum(path.pieces(_ROWS, width, i * width, pitch) for i in range(_PLACES))
        return found / (_ROWS * _PLACES)
    ends = [(at, min(at + part, pitch)) for at in range(0, pitch, part)]
    cut = [(i, min(width, end - i)) for at, end in ends for i in range(at, end, width)]
    alike = Counter((i % (path.piece_bytes or 1), size) for i, size in cut)
    each = (n * path.pieces(rows, size, i, pitch) for (i, size), n in alike.items())
    return sum(each) * width / (rows * pitch)
