"""The tilings of a filter gradient that are worth comparing, and their work.

What is enumerated follows from the problem: tiles that cut channels, columns and positions evenly
into so many parts. What a device holds of them grows with its memories and leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.convolution import Convolution
from npusim.device.spec import Device
from npusim.dtypes import FP32
from npusim.integers import ceil_div, even_parts, round_up
from npusim.isa.dma import Window
from npusim.kernels.parts.plane import Plane
from npusim.kernels.tilings import costs
from npusim.kernels.tilings.conv_filter import Tiling, comes_whole, cut_plane, rows_follow
from npusim.kernels.tilings.fit import cube_sizes, most_rows
from npusim.kernels.tilings.pipeline import Floats, Work, chosen, full, table, uneven
from npusim.kernels.tilings.streams import clear_cycles, sum_cycles

#: Longest side of a tile, and most positions of a slab, in elements.
_MOST_SIDE, _MOST_SLAB = 512, 4096
#: Images whose slabs may come together, where a slab is a whole plane.
_IMAGES = (2, 3, 4, 6, 8, 16)
#: Slabs of a plane above which a shorter one is not worth looking at.
_MOST_SLABS = 1 << 15
#: Most rounds of tiles that parts of K may make for the cores, and the least share of cores busy.
_ROUNDS, _BUSY = 6, 0.7
#: Candidates whose best possible time is so much longer than another's are not looked at.
_HOPELESS = 1.7

Columns = dict[str, npt.NDArray[Any]]


class Cut(NamedTuple):
    """Slabs of an output plane, and what the estimate needs of them: means over slabs, or most."""

    form: str
    slab_k: int
    slabs: float  # of a plane, for one filter place where places are tiles of their own
    positions: float  # in whole sixteens
    most_positions: int  # the same
    pixels: float  # of one plane of x
    most_pixels: int
    fetch: float  # cycles to fetch one column of img2col per position
    x_moves: float  # that bring x to L1, and more for each plane
    x_plane_moves: float
    x_pieces: float  # rows in GM of a plane of x
    dy_plane_moves: float  # 0: one move for all planes
    dy_pieces: float
    images: int = 1  # that come together; all the rest is of one


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

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Every way to cut the output plane that is worth comparing."""
        path = self.device.path("L1", "L0B", "load3d")
        # Layers of other channels have the same.
        flat = replace(self.shape, cin=1, cout=1, groups=1)
        return _cuts(flat, self.form, path.window_bytes)

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
        return dict(zip(("m", "n", "planes", "most_planes"), np.array(rows).T, strict=True))

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
        dy = of["images"] * of["most_positions"] * t["m"] * self.element
        most = np.minimum(size["L0A"] // t["m"], size["L0B"] // t["n"]) // 2 // self.element
        t["most_k"] = np.minimum(most // 16 * 16, of["most_positions"])
        fits = (t["slots"] * (x + dy) <= size["L1"]) & (t["most_k"] >= 16)
        fits &= t["m"] * t["n"] * 4 <= size["L0C"]
        fits &= (t["slots"] == 2) | (2 * (x + dy) > size["L1"])  # no reason for one if two fit
        t = self._hopeful(chosen(t, np.flatnonzero(fits)))
        t = self._parts(self._l0(t))
        rounds = -(-t["items"] // self.cores)
        t["cores"] = -(-t["items"] // np.maximum(1, rounds))
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
        steps = steps * self.of_cut["slabs"][t["cut"]] * self.shape.n * self.shape.out[0]
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
        whole = -(-most // t["most_k"])
        which, steps, ways = [], [], []
        for slots, unit_flag in ((2, False), (1, True) if flag else (1, False)):
            for split in (1, 2):
                fits = (slots * sums <= size) & (whole * split * 16 <= most)
                if not unit_flag and slots == 1:  # where two fit there is no reason for one
                    fits &= 2 * sums > size
                which.append(np.flatnonzero(fits))
                steps.append(whole[which[-1]] * split)
                ways.append((slots, unit_flag))
        found = chosen(t, np.concatenate(which))
        found["k"] = round_up(-(-positions[found["cut"]] // np.concatenate(steps)), 16)
        slot, flags = np.repeat(np.array(ways, np.int64), [len(some) for some in which], axis=0).T
        return found | {"l0c_slots": slot, "unit_flag": flags}

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
        images, radix = self.of_cut["images"][t["cut"]], max(_IMAGES) + 1
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
        return chosen(t, which) | {"parts": parts[at], "items": items[at]}

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
            l0c_slots=t["l0c_slots"],
            deterministic=self.deterministic,
            form=cut.form,
            unit_flag=bool(t["unit_flag"]),
            images=cut.images,
            cores=cores if cores < self.cores else 0,
        )

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
        m, n, port = np.minimum(t["m"], s.plan.cout_g), t["n"], device.path("GM", "L1")
        images = of["images"]
        slabs = np.ceil(np.ceil(s.n * s.out[0] * of["slabs"] / t["parts"]) / images)
        most, steps = of["most_positions"], np.ceil(of["most_positions"] / t["k"])
        loads, positions = full(slabs, of["slabs"], (of["positions"], most), t["k"])
        k, rest = uneven(positions, most, t["k"], steps)
        short = self._step(t, of, rest)
        x_bytes = images * t["planes"] * of["pixels"] * 32 * slabs / loads
        dy_bytes = images * positions * m * self.element
        dy_planes, starts = m * self.element / 32, port.startup_cycles * slabs / loads
        requests = t["planes"] * of["x_pieces"] + dy_planes * of["dy_pieces"]
        if self.form == "rows":
            together = images * (t["planes"] * of["x_pieces"] + 1)
        else:
            together = 2 * images
        requests = np.where(images > 1, together, requests) * slabs * t["items"]
        close = device.has_path("L1", "L0A", "load3d_transpose")
        dy_moves = np.maximum(of["dy_plane_moves"] * dy_planes, 1 if close else images)
        once = s.n * s.cin1 * self._fetched, float(s.n * 32 * s.cout1 * prod(s.out))
        out = s.plan.real_groups * s.kernel[0] * s.plan.cin1_g * s.taps * s.plan.cout_g * s.c0 * 4
        missing = sum(size for size, held in zip(once, self.held, strict=True) if not held)
        split, rate = t["parts"] > 1, costs.write_rate(device)
        factor = device.l2.atomic_factor if device.l2 and not self.deterministic else 1
        stored = out * np.where(split, t["parts"] * factor, 1) / rate
        if self.deterministic:  # parts are written singly, and added up by vector cores
            counts, which = np.unique(t["parts"], return_inverse=True)
            besides = np.array([sum_cycles(device, out, int(n)) for n in counts])[which.reshape(-1)]
        else:
            besides = np.full(1, clear_cycles(device, out))
        each = m * n * 4 * np.where(split, factor, 1)
        drain, pace = (
            costs.shared_drain(device, of_one(device, m, n, 4), each, t["cores"])
            for of_one in (costs.drain_cycles, costs.drain_pace)
        )
        return Work(
            cores=t["cores"],
            items=t["items"],
            firsts=loads,
            seconds=1,
            steps=steps * images,
            first_start=(of["x_moves"] + of["x_plane_moves"] * t["planes"]) * starts,
            first_bytes=x_bytes,
            second_start=dy_moves * starts,
            second_bytes=dy_bytes,
            first_every=1,
            second_every=1,
            first_slots=t["slots"],
            second_slots=t["slots"],
            **self._step(t, of, k),
            **{"run": steps, "rest_l0": short["a"] + short["b"], "rest_m": short["m"]},
            drain=drain,
            pace=pace,
            stall=0,
            drain_slots=t["l0c_slots"],
            lag=np.where(t["unit_flag"] > 0, costs.unit_flag_lag(device), -1.0),
            rate=port.rate,
            **self._lacking(t, x_bytes * loads, dy_bytes * loads, once),
            shared=costs.read_rate(device, (x_bytes + dy_bytes) * loads * t["items"], requests),
            main=device.main_read_rate,
            least=np.maximum(stored, missing / device.main_read_rate),
            beside=costs.launch_cycles(device, "cube", t["cores"]) + np.where(split, besides, 0),
        )

    def _lacking(
        self, t: Columns, x: Floats, dy: Floats, once: tuple[float, float]
    ) -> dict[str, Floats]:
        """Of which items the L2 lacks the operands, and how many cores ask for them at once.

        ``x`` and ``dy`` are the bytes of all loads for an item, ``once`` those of the operands.
        """
        l2, rounds, tiles = self.device.l2, -(-t["items"] // t["cores"]), self._tiles(t)
        rows = np.minimum(rounds, -(-self.shape.plan.cout_g // t["m"]))
        # Each tile goes through all positions: what the L2 does not hold comes anew for the next.
        held = l2 is not None and sum(once) <= l2.size_bytes
        until = np.where(rounds <= tiles, rows, rounds) if held else rounds
        period = rows if held else np.ones_like(rows)
        passes = 1 if held else rounds
        return {
            "first_period": period,
            "first_until": np.where(self.held[0], 0, rounds),
            "first_copies": np.maximum(1, t["cores"] * -(-rounds // period) * x / once[0] / passes),
            "second_until": np.where(self.held[1], 0, until),
            "second_copies": np.maximum(1, t["cores"] * until * dy / once[1] / passes),
        }

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
        a = moves * into_a.startup_cycles + m * k * self.element / into_a.rate
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


@lru_cache(maxsize=32)
def _cuts(s: Convolution, form: str, window_bytes: int) -> tuple[Cut, ...]:
    """Even cuts of the output plane into whole rows or parts of rows."""
    width = s.axis(2).longest(form)
    sizes = [r * width for r in even_parts(s.axis(1).longest(form), max(1, _MOST_SLAB // width))]
    sizes += [round_up(size, 16) for size in even_parts(width, _MOST_SLAB, 12) if 16 < size < width]
    sizes += [size for size in (16, 8, 4, 2, 1) if size < width]
    found: list[Cut] = []
    positions = s.axis(1).out * s.axis(2).out
    for slab_k in dict.fromkeys(sizes):
        # A huge plane in tiny slabs is never good, and listing them would take longer than running.
        if found and positions // slab_k > _MOST_SLABS:
            continue
        plane = cut_plane(s, slab_k, form=form)
        if plane.slabs:
            found.append(_cut(s, form, slab_k, plane, window_bytes))
            if form != "taps" and comes_whole(s, plane):
                found += _of_images(s, form, found[-1], plane)
    return tuple(found)


def _of_images(s: Convolution, form: str, one: Cut, plane: Plane) -> list[Cut]:
    """The cut of whole planes with those of several images."""
    counts = [count for count in _IMAGES if count <= s.n]
    if form == "window":
        pixels = s.spatial[1] * s.spatial[2]
        one = one._replace(pixels=pixels, most_pixels=pixels, x_moves=1.0, x_plane_moves=0.0)
        return [one._replace(images=count) for count in counts]
    if not rows_follow(s, plane):
        return []
    return [one._replace(images=count, x_moves=float(count)) for count in counts]


def _cut(s: Convolution, form: str, slab_k: int, plane: Plane, window_bytes: int) -> Cut:
    rows, columns, wo = plane.rows, plane.columns, s.out[2]
    positions = np.outer(rows.count, columns.count)
    p16 = -(-positions // 16) * 16
    # The slab in the middle stands for all.
    i, j = len(rows) // 2, len(columns) // 2
    h, w, count = int(rows.size[i]), int(columns.size[j]), int(rows.count[i] * columns.count[j])
    down, across = (1 if form == "window" else s.step(1), s.step(2) if form == "taps" else 1)
    if form == "taps":
        over = Window(max(1, h), max(1, w))
    else:
        pads = (columns.before[j], columns.after[j], rows.before[i], rows.after[i])
        steps = (*s.kernel[1:], s.step(1) // down, s.step(2), *s.dilation[1:])
        over = _window(h, w, tuple(map(int, pads)), steps)
    fetch = 0.0 if over.plain else over.fetches(0, count, window_bytes) / max(1, count)
    whole = w == s.spatial[2] and (down == 1 or rows_follow(s, plane))
    single = across > 1 and w > 1
    partial = columns.count[j] < wo and rows.count[i] > 1
    return Cut(
        form=form,
        slab_k=slab_k,
        slabs=plane.reads / (s.taps if form == "taps" else 1),
        positions=float(p16.mean()),
        most_positions=int(p16.max()),
        pixels=plane.pixels / plane.reads,
        most_pixels=plane.most_pixels,
        fetch=fetch,
        x_moves=float(whole),
        x_plane_moves=0.0 if whole else float(h if single else 1),
        x_pieces=1.0 if whole and down == 1 else float(h * w if single else h),
        dy_plane_moves=float(partial),
        dy_pieces=float(rows.count[i]) if partial else 1.0,
    )


def _window(h: int, w: int, pads: tuple[int, ...], steps: tuple[int, ...]) -> Window:
    left, right, top, bottom = pads
    kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w = steps
    return Window(
        h=h,
        w=w,
        pad_left=left,
        pad_right=right,
        pad_top=top,
        pad_bottom=bottom,
        kernel_h=kernel_h,
        kernel_w=kernel_w,
        stride_h=stride_h,
        stride_w=stride_w,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
    )
