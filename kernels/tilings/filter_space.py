"""The tilings of a filter gradient that are worth comparing, and their work.

What is enumerated follows from the problem: tiles that cut channels, columns and positions evenly
into so many parts. What a device holds of them grows with its memories and leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.convolution import Convolution
from npusim.device.spec import Device
from npusim.dtypes import FP32
from npusim.integers import IntArray, ceil_div, even_parts, round_up
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.kernels.tilings import costs
from npusim.kernels.tilings.conv_filter import Tiling
from npusim.kernels.tilings.filter_cuts import IMAGES, Cut, cuts
from npusim.kernels.tilings.fit import cube_sizes, most_rows
from npusim.kernels.tilings.pipeline import (
    L0_WAYS,
    Floats,
    Work,
    chosen,
    full,
    joined,
    table,
    uneven,
)
from npusim.kernels.tilings.streams import clear_cycles, sum_cycles

#: Longest side of a tile in elements.
_MOST_SIDE = 512
#: Most rounds of tiles that parts of K may make for the cores, and the least share of cores busy.
_ROUNDS, _BUSY = 6, 0.7
#: Slabs of an operand that may stay in L1 for several tiles, and most passes over them.
_STAYING, _MOST_PASSES = (1, 2, 4, 8), 8
#: Candidates whose best possible time is so much longer than another's are not looked at.
_HOPELESS = 1.7

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Space:
    """Candidates for one gradient on one device: columns of fields, and what ranks them."""

    shape: Convolution
    device: Device
    cores: int
    rate: str
    element: int
    deterministic: bool
    form: str
    held: tuple[bool, ...]  # whether the L2 holds the first operand, and the second
    ways: tuple[tuple[int, int], ...] = L0_WAYS

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Every way to cut the output plane that is worth comparing."""
        path = self.device.path("L1", "L0B", "load3d")
        # Layers of other channels have the same.
        flat = replace(self.shape, cin=1, cout=1, groups=1)
        close = self.device.has_path("L1", "L0A", "load3d_transpose")
        return cuts(flat, self.form, path.window_bytes, close)

    @cached_property
    def of_cut(self) -> Columns:
        """The cuts as columns."""
        columns = zip(*self.cuts, strict=True) if self.cuts else [()] * len(Cut._fields)
        named = zip(Cut._fields, columns, strict=True)
        return {name: np.array(column) for name, column in named if name != "form"}

    @property
    def taps(self) -> int:
        """Filter places of a plane that lie in a tile's columns."""
        return 1 if self.form == "taps" else self.shape.taps

    @cached_property
    def sides(self) -> Columns:
        """Tiles: rows, columns, and the planes of x that columns lie in, mean and most."""
        s, plan, taps = self.shape, self.shape.plan, self.taps
        high = [n * 16 for n in even_parts(ceil_div(plan.cout_g, 16), _MOST_SIDE // 16)]
        highest = most_rows(self.device, FP32)
        columns = plan.cin1_g * taps
        wide = even_parts(columns, _MOST_SIDE // s.c0)
        wide += [n * taps for n in even_parts(plan.cin1_g, max(1, _MOST_SIDE // s.c0 // taps))]
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
    def columns(self) -> Columns:
        """Fields of all candidates that fit the device's buffers, one entry per candidate."""
        size, sides = cube_sizes(self.device), self.sides
        axes = (np.arange(len(self.cuts)), np.arange(len(sides["m"])), np.arange(2))
        cut, side, slots = (a.reshape(-1) for a in np.meshgrid(*axes, indexing="ij"))
        t = {name: column[side] for name, column in sides.items()} | {"cut": cut}
        t["slots"] = 2 - slots
        of = {name: column[cut] for name, column in self.of_cut.items()}
        x = of["images"] * of["most_pixels"] * t["most_planes"] * 32
        dy = of["runs"] * of["most_positions"] * t["m"] * self.element
        most = np.minimum(size["L0A"] // t["m"], size["L0B"] // t["n"]) // 2 // self.element
        t["most_k"] = np.minimum(most // 16 * 16, of["most_positions"])
        fits = (t["slots"] * (x + dy) <= size["L1"]) & (t["most_k"] >= 16)
        fits &= t["m"] * t["n"] * 4 <= size["L0C"]
        blocks = np.maximum(t["m"] // self.shape.c0, t["most_planes"])
        fits &= (of["runs"] == of["images"]) | (blocks <= MOST_BLOCKS)
        fits &= (t["slots"] == 2) | (2 * (x + dy) > size["L1"])  # no reason for one if two fit
        t = self._hopeful(chosen(t, np.flatnonzero(fits)))
        t = self._l0(t)
        t = joined(self._parts(t), self._groups(t, of_x=True), self._groups(t, of_x=False))
        rounds = -(-t["shares"] // self.cores)
        t["cores"] = -(-t["shares"] // np.maximum(1, rounds))
        t["items"] = t["shares"] * t["group"] * t["passes"]
        return t

    def _tiles(self, t: Columns) -> npt.NDArray[np.int64]:
        s = self.shape
        along_n = -(-s.plan.cin1_g * self.taps * s.c0 // t["n"]) * (s.taps // self.taps)
        tiles = s.plan.real_groups * s.kernel[0] * -(-s.plan.cout_g // t["m"]) * along_n
        return np.asarray(tiles, np.int64)

    def _hopeful(self, t: Columns) -> Columns:
        """Without candidates whose pipes take much longer than others' in any case."""
        if not len(t["cut"]):
            return t
        k = t["most_k"].astype(np.float64)
        step = self._step(t, {name: c[t["cut"]] for name, c in self.of_cut.items()}, k)
        steps = np.maximum(1, self.of_cut["positions"][t["cut"]] / k)
        loads = self.of_cut["slabs"] * self.of_cut["runs"] / self.of_cut["images"]
        steps = steps * loads[t["cut"]] * self.shape.n * self.shape.out[0]
        tile, tiles = np.maximum(step["m"], step["a"] + step["b"]) * steps, self._tiles(t)
        # With all cores busy, which takes parts of K, and without parts.
        launch = costs.launch_cycles(self.device, "cube", 0)
        whole = tile * -(-tiles // self.cores) + launch
        split = tile * tiles / self.cores + launch
        keep = (whole <= _HOPELESS * whole.min()) | (split <= _HOPELESS * split.min())
        return chosen(t, np.flatnonzero(keep))

    def _l0(self, t: Columns) -> Columns:
        """With the choices that L0 leaves: depths of a step, and how the next tile may begin."""
        flag = costs.unit_flag_lag(self.device) >= 0
        size, positions = self.device.memory("L0C").size_bytes, self.of_cut["most_positions"]
        most, sums = positions[t["cut"]], t["m"] * t["n"] * 4
        side = np.minimum(
            *(cube_sizes(self.device)[l0] // t[of] for l0, of in (("L0A", "m"), ("L0B", "n")))
        )
        which, steps, ways = [], [], []
        for slots, unit_flag in ((2, False), (1, True) if flag else (1, False)):
            for l0_slots, split in self.ways:
                deepest = np.minimum(side // l0_slots // self.element // 16 * 16, most)
                whole = -(-most // np.maximum(1, deepest))
                fits = (slots * sums <= size) & (whole * split * 16 <= most) & (deepest >= 16)
                if not unit_flag and slots == 1:  # where two fit there is no reason for one
                    fits &= 2 * sums > size
                which.append(np.flatnonzero(fits))
                steps.append(whole[which[-1]] * split)
                ways.append((slots, unit_flag, l0_slots))
        found = chosen(t, np.concatenate(which))
        found["k"] = round_up(-(-positions[found["cut"]] // np.concatenate(steps)), 16)
        counts = [len(some) for some in which]
        slot, flags, l0_slots = np.repeat(np.array(ways, np.int64), counts, axis=0).T
        return found | {"l0c_slots": slot, "unit_flag": flags, "l0_slots": l0_slots}

    def _parts(self, t: Columns) -> Columns:
        """With numbers of parts of K: none, and even ones that keep most cores busy."""
        tiles, s = self._tiles(t), self.shape
        along = np.maximum(1, np.floor(s.n * s.out[0] * self.of_cut["slabs"][t["cut"]]))
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
        of, s = {name: column[t["cut"]] for name, column in self.of_cut.items()}, self.shape
        bytes_of_x = of["images"] * of["most_pixels"] * t["most_planes"] * 32
        bytes_of_dy = of["runs"] * of["most_positions"] * t["m"] * self.element
        kept, other = (bytes_of_x, bytes_of_dy) if of_x else (bytes_of_dy, bytes_of_x)
        tiles, along = self._tiles(t), -(-s.plan.cout_g // t["m"])
        if not of_x:
            along = -(-s.plan.cin1_g * self.taps * s.c0 // t["n"])
        loads = np.ceil(s.n * s.out[0] * of["slabs"] / of["images"]).astype(np.int64)
        room = (self.device.memory("L1").size_bytes - 2 * other) // kept
        runs = np.minimum(along, np.maximum(1, self.cores // (tiles // along)))
        shares, group = tiles // along * runs, -(-along // runs)
        busy = tiles / group / (np.maximum(1, -(-shares // self.cores)) * self.cores)
        found = []
        for stay in _STAYING:
            passes = -(-loads // stay)
            fits = (room >= stay) & (loads >= stay) & (t["slots"] == 2) & (group > 1)
            fits &= (busy > _BUSY) & (passes <= _MOST_PASSES)
            which = np.flatnonzero(fits)
            fields = {"group": group, "passes": passes, "shares": shares}
            fields |= {"parts": np.ones_like(group), "of_x": np.full_like(group, of_x)}
            fields |= {"stay": np.full_like(group, stay)}
            whole = {name: column.astype(np.int64) for name, column in fields.items()}
            found.append(chosen(t | whole, which))
        return joined(*found)

    def tiling(self, i: int, cores: int) -> Tiling:
        """Candidate ``i`` on so many cores."""
        t = {name: int(column[i]) for name, column in self.columns.items()}
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
            cores=cores if cores < self.cores else 0,
        )

    def _group(self, t: dict[str, int]) -> dict[str, Any]:
        """The fields of a tiling that say which tiles a core takes in turn."""
        if t["group"] == 1:
            return {}
        name = "x" if t["of_x"] else "dy"
        slabs = {f"{name}_slots": t["stay"], f"{name}_slabs": t["stay"]}
        return {"group": t["group"], "passes": t["passes"], "keeps": name, **slabs}

    @cached_property
    def work(self) -> Work:
        """What the cores do under each candidate."""
        return table(self._work(self.columns))

    def with_cores(self, which: npt.NDArray[Any], cores: npt.NDArray[Any]) -> Work:
        """What so many cores do under some of the candidates."""
        few = chosen(self.columns, which)
        return table(self._work(few | {"cores": cores}))

    def _work(self, t: Columns) -> Work:
        s, device = self.shape, self.device
        of = {name: column[t["cut"]] for name, column in self.of_cut.items()}
        # A core takes whole groups.
        whole = -(-t["shares"] // t["cores"]) * t["group"] * t["passes"] * t["cores"]
        t = t | {"items": np.where(t["group"] > 1, whole, t["items"])}
        m, port = np.minimum(t["m"], s.plan.cout_g), device.path("GM", "L1")
        images, runs = of["images"], of["runs"]
        slabs = np.ceil(np.ceil(s.n * s.out[0] * of["slabs"] / t["parts"]) / images / t["passes"])
        most, steps = of["most_positions"], np.ceil(of["most_positions"] / t["k"])
        loads, positions = full(slabs, of["slabs"], (of["positions"], most), t["k"])
        k, rest = uneven(positions, most, t["k"], steps)
        short = self._step(t, of, rest)
        x_bytes = images * t["planes"] * of["pixels"] * 32 * slabs / loads
        dy_bytes = runs * positions * m * self.element
        dy_planes, starts = m * self.element / 32, port.startup_cycles * slabs / loads
        x_rows, dy_rows = t["planes"] * of["x_pieces"], dy_planes * of["dy_pieces"]
        together = images * (x_rows if self.form == "rows" else 1)
        x_rows, dy_rows = (
            np.where(images > 1, some, alone)
            for some, alone in ((together, x_rows), (images, dy_rows))
        )
        # Of a group of tiles the operand that they share comes once.
        x_every, dy_every = (np.where(t["of_x"] == on, t["group"], 1) for on in (1, 0))
        requests = (x_rows / x_every + dy_rows / dy_every) * slabs * t["items"]
        asked = (x_bytes / x_every + dy_bytes / dy_every) * loads * t["items"]
        close = device.has_path("L1", "L0A", "load3d_transpose")
        dy_moves = np.maximum(of["dy_plane_moves"] * dy_planes, 1 if close else images)
        x_moves = of["x_moves"] + of["x_plane_moves"] * t["planes"]
        once = s.n * s.cin1 * self._fetched, float(s.n * 32 * s.cout1 * prod(s.out))
        missing = sum(size for size, held in zip(once, self.held, strict=True) if not held)
        drain, stored, besides = self._out(t, m)
        lacks = self._lacking(t, (x_bytes * loads, dy_bytes * loads), (x_every, dy_every), once)
        # What stays in L1 for several tiles comes first.
        swap = (t["group"] > 1) & (t["of_x"] == 0)
        pairs = lacks | {
            "start": (x_moves * starts, dy_moves * starts),
            "bytes": (x_bytes, dy_bytes),
        }
        first, second = (
            {f"{name}_{what}": np.where(swap, other, one) for what, (one, other) in some.items()}
            for name, some in (
                ("first", pairs),
                ("second", {what: pair[::-1] for what, pair in pairs.items()}),
            )
        )
        return Work(
            cores=t["cores"],
            items=t["items"],
            firsts=loads,
            seconds=1,
            steps=steps * runs,
            **first,
            **second,
            first_every=t["group"],
            second_every=1,
            first_period=self._period(t),
            first_slots=np.where(t["group"] > 1, t["stay"], t["slots"]),
            second_slots=t["slots"],
            **self._step(t, of, k),
            **{"run": steps, "rest_l0": short["a"] + short["b"], "rest_m": short["m"]},
            **drain,
            stall=0,
            drain_slots=t["l0c_slots"],
            lag=np.where(t["unit_flag"] > 0, costs.unit_flag_lag(device), -1.0),
            rate=port.rate,
            shared=costs.read_rate(device, asked, requests),
            main=device.main_read_rate,
            least=np.maximum(stored, missing / device.main_read_rate),
            beside=costs.launch_cycles(device, "cube", t["cores"]) + besides,
        )

    def _out(self, t: Columns, m: Floats) -> tuple[dict[str, Floats], Floats, Floats]:
        """Cycles of the drains of tiles, of all writes together, and of kernels around this one."""
        s, device, split = self.shape, self.device, t["parts"] > 1
        out = s.plan.real_groups * s.kernel[0] * s.plan.cin1_g * s.taps * s.plan.cout_g * s.c0 * 4
        atomic = device.l2.atomic_factor if device.l2 else 1
        factor = 1 if self.deterministic else atomic
        passes = (1 + (t["passes"] - 1) * atomic) / t["passes"]
        stored = out * np.where(split, t["parts"] * factor, t["passes"] * passes)
        if self.deterministic:  # parts are written singly, and added up by vector cores
            counts, which = np.unique(t["parts"], return_inverse=True)
            besides = np.array([sum_cycles(device, out, int(n)) for n in counts])[which.reshape(-1)]
        else:
            besides = np.full(1, clear_cycles(device, out))
        each = m * t["n"] * 4 * np.where(split, factor, passes)
        drain, pace = (
            costs.shared_drain(device, of_one(device, m, t["n"], 4), each, t["cores"])
            for of_one in (costs.drain_cycles, costs.drain_pace)
        )
        found = {"drain": drain, "pace": pace}
        return found, stored / costs.write_rate(device), np.where(split, besides, 0)

    @property
    def _all_held(self) -> bool:
        """Whether the L2 has room for both operands."""
        s, l2 = self.shape, self.device.l2
        once = s.n * s.cin1 * self._fetched + s.n * 32 * s.cout1 * prod(s.out)
        return l2 is not None and once <= l2.size_bytes

    def _period(self, t: Columns) -> IntArray:
        """Of which items of a core the L2 lacks x: each so many-th, as tiles along M follow."""
        rounds, along = -(-t["items"] // t["cores"]), -(-self.shape.plan.cout_g // t["m"])
        rows = np.minimum(rounds, along) if self._all_held else np.ones_like(rounds)
        return np.where(t["group"] > 1, 1, rows)

    def _lacking(
        self,
        t: Columns,
        size: tuple[Floats, Floats],
        every: tuple[IntArray, IntArray],
        once: tuple[float, float],
    ) -> dict[str, tuple[Floats, Floats]]:
        """Until which item the L2 lacks x and dy, and how many cores ask for them at once.

        ``size`` are the bytes of all loads for an item, which come for each ``every``-th, ``once``
        those of the operands.
        """
        rounds, tiles, period = -(-t["items"] // t["cores"]), self._tiles(t), self._period(t)
        alone, held = t["group"] == 1, self._all_held
        # Each tile goes through all positions: what the L2 does not hold comes anew for the next.
        until = np.where((rounds <= tiles) & alone, period, rounds) if held else rounds
        passes = 1 if held else rounds
        loads = -(-rounds // np.where(alone, period, every[0])), -(-until // every[1])
        copies = (
            np.maximum(1, t["cores"] * count * some / of_all / passes)
            for count, some, of_all in zip(loads, size, once, strict=True)
        )
        x, dy = (
            np.where(held, 0, last) for held, last in zip(self.held, (rounds, until), strict=True)
        )
        return {"until": (x, dy), "copies": tuple(copies)}

    @property
    def _fetched(self) -> float:
        """Bytes from main memory for a plane of x, of all depths: whole sectors of what is read."""
        s, l2 = self.shape, self.device.l2
        size = 32 * prod(s.spatial)
        if self.form != "rows" or l2 is None:
            return float(size)
        row, pitch = s.spatial[2] * 32, s.spatial[2] * 32 * s.step(1)
        even = row % l2.sector_bytes == 0
        return size * min(1.0, (row + (0 if even else l2.sector_bytes - 32)) / pitch)

    def _step(self, t: Columns, of: Columns, k: Floats) -> dict[str, Any]:
        """Cycles of the loads to L0 and the product of one step of ``k`` positions."""
        device, s = self.device, self.shape
        m, n = np.minimum(t["m"], s.plan.cout_g), t["n"]
        direct = device.has_path("L1", "L0A", "load3d_transpose")
        into_a = device.path("L1", "L0A", "load3d_transpose" if direct else "transpose")
        into_b, two = device.path("L1", "L0B", "load3d"), t["slots"] > 1
        whole = (t.get("k", k) >= of["most_positions"]) & (m / s.c0 * k / 16 <= 255)
        moves = 1 if direct else np.where(whole, 1, np.ceil(m / s.c0))
        a = np.maximum(m * k * self.element / into_a.rate, m / s.c0 * k * of["dy_fetch"])
        a = moves * into_a.startup_cycles + a
        size = n * k * self.element
        b = np.maximum(size / into_b.rate, n / s.c0 * k * of["fetch"])
        clash = size / 512 * float(into_b.conflict_cycles)
        cube, queues = device.cube, device.pipes
        mmad = costs.mmad_cycles(device, m, k, n, self.rate)
        ahead = np.maximum(1, queues["MTE1"].queue_depth // (1 + np.asarray(moves)))
        return {
            "a": a + np.where(two, m * k * self.element / 512 * float(into_a.conflict_cycles), 0),
            "b": into_b.startup_cycles + b + np.where(two, clash, 0),
            "m": mmad,
            "a_head": into_a.idle_head_cycles,
            "m_head": cube.idle_head_cycles if cube else 0,
            "issue": into_b.issue_cycles + moves * into_a.issue_cycles + 1,
            "ahead": np.minimum(queues["M"].queue_depth, ahead),
        }
