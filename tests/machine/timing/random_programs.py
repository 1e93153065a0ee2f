"""Random devices and programs, each a pure function of a seed, to compare timing engines on.

A ``Case`` is a device and one to three programs that share its L2. Devices are shipped ones with
figures changed, from nothing to plenty, often to equal ones, so that events meet in one cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import numpy as np

from npusim.base.dtypes import FP16
from npusim.base.integers import IntArray
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import parse_device
from npusim.machine.device.parts import TRAFFIC, CoreKind
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import Language
from npusim.machine.program.program import Program
from tests.machine.timing.random_units import CARRIED, MOST_BYTES, Instructions, declare
from tests.scripts import Scripted, tasks_of

DEVICES = ("tiny", "tiny", "ascend910b2", "ascend910", "ascend310p", "ft78ne", "mt7004")

#: Flags between cores: the first two, and the last.
CORE_EVENTS = (0, 1, 10)

#: Instructions of a kernel, aimed at; one kernel in a hundred is as long as ``LONGEST``.
LENGTHS = (10, 40, 40, 100, 100, 200, 400)
LONGEST = 3000


@dataclass(frozen=True)
class Case:
    """What one seed stands for: programs to run in order on one L2, until one hangs."""

    seed: int
    device: Device
    programs: tuple[Program, ...]


def random_case(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(f"case {seed}")
    device = _device(rng)
    groups = tuple(range(device.groups))
    if rng.random() < 0.3:
        groups = tuple(sorted(rng.sample(groups, rng.randint(1, device.groups))))
    roles = [role for kind in device.cores.values() for role in kind.roles]
    size = _tensor_bytes(rng, device)
    programs = []
    for number in range(rng.choice((1, 1, 2, 3))):
        kernel = _KERNELS[rng.choice(roles)](f"kernel {seed}.{number}", device, groups, size)
        programs.append(build(kernel, device, groups))
    return Case(seed, device, tuple(programs))


# -- devices -------------------------------------------------------------------------------


@cache
def _shipped(name: str) -> Device:
    return load_device(name)


def _device(rng: Random) -> Device:
    name = rng.choice(DEVICES)
    device = _with_links(rng, name) if rng.random() < 0.4 else _shipped(name)
    cores = rng.choice((1, 2, 2, 3, 4, 4, 5, 8, 8, 16, 64))
    per_group = rng.choice((1, 1, 2, 3))
    values = {f"cores.{kind}.per_group": str(per_group) for kind in device.cores}
    values["groups"] = str(max(1, cores // per_group))
    depth = rng.choice((1, 2, 4, 32))
    values |= {f"pipes.{p}.queue_depth": str(rng.choice((depth, depth, 1))) for p in device.pipes}
    if device.has_path("L0C", "GM"):
        values["cube.unit_flag"] = rng.choice(("yes", "yes", "no"))
    values["launch.core"] = "1us"
    values["launch.skew"] = rng.choice(("0us", "0us", "0.001us", "0.03us", "1us"))
    return load_device(device, values | _memory(rng, device) | _costs(rng, device))


def _with_links(rng: Random, name: str) -> Device:
    """A shipped device and links of its own: ports of cores, networks of groups, a bus.

    Each is named by some paths, inside the cores or to GM, or used by kinds of traffic.
    """
    paths = _shipped(name).paths
    links, users = [], dict[str, list[str]]()
    for link in rng.choice((("port",), ("port", "port2"), ("noc",), ("port", "noc"), ("bus",))):
        place = rng.choice(("L1", "UB", "AM", "GM", ""))
        named = [path for path in paths if place in path and rng.random() < 0.8]
        for path in named:
            users.setdefault(path, []).append(link)
        scope = {"port": "core", "port2": "core", "noc": "group", "bus": "chip"}[link]
        rate = rng.choice(("1/5", "9", "9", "64", "64", "100", "1000"))
        traffic = [kind for kind in TRAFFIC if rng.random() < (0.2 if named else 0.6)]
        links.append(f"  {link}:\n    rate: {rate}B/cycle (assumed, HERE)\n    scope: {scope}\n")
        if traffic or not named:
            links.append(f"    traffic: [{', '.join(traffic or TRAFFIC)}]\n")
        both = {"read_miss", "evict"} <= {*(traffic or ([] if named else TRAFFIC))}
        if both and rng.random() < 0.7:
            links.append(f"    turnaround: {rng.choice((1, 11, 50, 99))}% (assumed, HERE)\n")
    text = f"base: {name}\nname: {name}\ndescription: with links\nsources:\n  HERE: for a test\n"
    text += "links:\n" + "".join(links) + ("paths:\n" if users else "")
    text += "".join(f"  {path}:\n    links: [{', '.join(own)}]\n" for path, own in users.items())
    return parse_device(text)


def _memory(rng: Random, device: Device) -> dict[str, str]:
    """Rates from the smallest there is to more than anybody takes, and an L2 of any size."""
    scale = rng.choice(("1/65536", "1/5", "9", "64", "64", "300", "300", "100000"))
    values = {}
    for part in ("main_memory", "l2") if device.l2 else ("main_memory",):
        for way in ("read", "write"):
            values[f"{part}.{way}"] = f"{rng.choice((scale, scale, '64'))}B/cycle"
    if device.l2:
        sector = rng.choice((32, 128, 512))
        block = sector * rng.choice((1, 2, 8, 64))
        size = block * rng.choice((1, 2, 3, 8, 30, 10_000)) + rng.choice((0, sector - 1))
        if device.l2.request_bytes:
            values["l2.request"] = f"{rng.choice((1, 37, 240, 5000))}B"
        if rng.random() < 0.7:
            share = Fraction(rng.choice(("1/2", "2/3", "1/50", "1")))
            read = Fraction(values["l2.read"].removesuffix("B/cycle"))
            values["l2.missed"] = f"{read * share}B/cycle"
        values |= {"l2.sector": f"{sector}B", "l2.block": f"{block}B", "l2.size": f"{size}B"}
        values["l2.atomic_factor"] = str(rng.choice((1, 2, 3)))
    return values


def _costs(rng: Random, device: Device) -> dict[str, str]:
    """What instructions cost: as shipped, few equal numbers (for ties), or many numbers."""
    style = rng.choice(("shipped", "equal", "equal", "mixed", "mixed"))
    if style == "shipped":
        return {}
    equal = style == "equal"
    few = rng.choice(((0,), (1,), (0, 1), (0, 8))) if equal else (0, 0, 1, 5, 40, 200)
    rates = (rng.choice((4, 64)),) if equal else ("1/65536", "1/3", 4, 57, 64, 64, 1000)
    issue = (rng.choice((0, 1)),) if equal else (0, 1, 1, 2, 30)
    values = {}
    for name in device.paths:
        values[f"paths.{name}.rate"] = f"{rng.choice(rates)}B/cycle"
        values[f"paths.{name}.issue"] = f"{rng.choice(issue)}cycle"
        if name.startswith("GM->") and not equal:
            values[f"paths.{name}.memory_rate"] = f"{rng.choice(('1/3', '40', '2000'))}B/cycle"
        for figure in ("startup", "idle_head"):
            values[f"paths.{name}.{figure}"] = f"{rng.choice(few)}cycle"
        for figure, most in (("row", "2.7"), ("floor", "90")):
            values[f"paths.{name}.{figure}"] = f"{'0' if equal else rng.choice(('0', most))}cycle"
    for unit in ("cube", "vector") if device.cube else ("vector",):
        values[f"{unit}.issue"] = f"{rng.choice(issue)}cycle"
        for figure in ("startup", "idle_head"):
            values[f"{unit}.{figure}"] = f"{rng.choice(few)}cycle"
    values |= {f"vector.ops.{op}": rng.choice(("0cycle", "1cycle")) for op in device.vector.ops}
    for figure in ("flag", "pipe_barrier", "core_barrier", "core_flag"):
        values[f"sync.{figure}"] = f"{rng.choice(few)}cycle"
    return values


def _tensor_bytes(rng: Random, device: Device) -> int:
    """Up to a few times the size of a small L2; of a large one so little that cores meet in it."""
    held = min(device.l2.size_bytes, 1 << 15) if device.l2 else 0
    return max(2 * MOST_BYTES, held * rng.choice((1, 2, 3)) // 4 * 4)


# -- kernels -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Body:
    """Instructions of a unit by number and seed, and the flags it sets: (pipe, event, scope)."""

    length: int
    sets: tuple[tuple[str, int, str], ...]


@dataclass
class _Row:
    """One unit: its body, whether it holds a core barrier, and the flag it waits for."""

    core: int
    body: int
    meets: int = 0
    event: int = 0
    count: int = 0  # 0: it waits for no flag


#: The units of one level by core.
_Level = list[list[_Row]]


class _RandomKernel(Scripted):
    """Random bodies as units of work, dealt to cores level by level.

    A level may end in a barrier, and units wait only for flags set by other cores at lower
    levels: by induction over the levels every core gets on. One kernel in 25 asks for more.
    """

    name = "random"

    def __init__(self, seed: str, device: Device, groups: tuple[int, ...], size: int) -> None:
        self.seed, self.size = seed, size
        rng = Random(seed)
        kind = device.core_kind(self.role)
        self.lanes = [group for group in groups for _ in range(kind.per_group)]
        # One pipe per flag: two that wait for one in the same cycle get its counts in any order.
        self.wait_pipes = {event: rng.choice(kind.pipes) for event in CORE_EVENTS}
        src, dst = rng.sample(kind.pipes, 2)
        #: The flag that each unit raises for the next one, if any.
        self.carried = (src, dst, CARRIED) if rng.random() < 0.2 else None
        self.bodies = _bodies(rng, kind)
        self.rows = self._deal(rng)
        self.offsets = rng.choice(([0], [0, size // 4], list(range(0, size // 2, 92))))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(Tensor(name, (self.size // 2,), FP16, "inout") for name in "xyz")

    def tasks(self, cores: int) -> Tasks[Any]:
        assert cores == len(self.lanes)
        rng = Random(f"{self.seed} bases")
        core = np.array([row.core for row in self.rows], np.int64)
        names = ("body", "meets", "event", "count")
        signature: dict[str, IntArray] = {
            name: np.array([getattr(row, name) for row in self.rows], np.int64) for name in names
        }
        signature["first"] = np.diff(core, prepend=-1).clip(0, 1)
        signature["last"] = np.diff(core, append=len(self.lanes)).clip(0, 1)
        bases = {b: np.array(rng.choices(self.offsets, k=len(core)), np.int64) for b in "pq"}
        return tasks_of(core, signature, bases)

    def buffers(self, k: Language) -> None:
        self.declared = declare(k, Random(f"{self.seed} buffers"))

    def emit(self, k: Language, task: Any) -> None:
        rng, body = Random(f"{self.seed} body {task.body}"), self.bodies[task.body]
        work = Instructions(k, rng, self.declared, self.tensors)
        if self.carried and not task.first:
            k.wait_flag(*self.carried)
        waits_at, meets_at = rng.randint(0, body.length), rng.randint(0, body.length)
        sets_at = [rng.randint(0, body.length) for _ in body.sets]
        for i in range(body.length + 1):
            if task.count and i == waits_at:
                k.core_wait_flag(self.wait_pipes[task.event], task.event, task.count)
            if task.meets and i == meets_at:
                k.core_barrier()
            for at, flag in zip(sets_at, body.sets, strict=True):
                if i == at:
                    k.core_set_flag(*flag)
            if i < body.length:
                work.issue()
        work.close()
        if self.carried and not task.last:
            k.set_flag(*self.carried)

    # -- which core does what --------------------------------------------------------------

    def _deal(self, rng: Random) -> list[_Row]:
        levels: list[_Level] = [
            [[] for _ in self.lanes] for _ in range(rng.choice((1, 2, 2, 3, 4)))
        ]
        for number, core, body in self._placed(rng, len(levels)):
            levels[number][core].append(_Row(core, body))
        if rng.random() < 0.5:
            for level in levels:
                if rng.random() < 0.6:
                    _meet(rng, level)
        self._wait(rng, levels)
        rows = sorted((row for level in levels for part in level for row in part), key=_core)
        if rng.random() < 0.04:
            rng.choice(rows).count += 1_000_000  # more than anybody sets: it hangs
        return rows

    def _placed(self, rng: Random, levels: int) -> Iterator[tuple[int, int, int]]:
        """Units as (level, core, body): the same ones on every core, or uneven shares."""
        wanted = rng.choice(LENGTHS) if rng.random() < 0.99 else LONGEST
        alike, cores = rng.random() < 0.3, range(len(self.lanes))
        share = [rng.choice((0, 1, 1, 4)) for _ in cores]
        share[rng.choice(cores)] = 1
        while wanted > 0:
            level, body = rng.randrange(levels), rng.randrange(len(self.bodies))
            where = cores if alike else rng.choices(cores, share)
            each = len(where) * (self.bodies[body].length + 1)
            repeats = max(1, min(rng.choice((1, 1, 1, 2, 3, 12)), wanted // each))
            yield from ((level, core, body) for core in where for _ in range(repeats))
            wanted -= repeats * each

    def _wait(self, rng: Random, levels: list[_Level]) -> None:
        """Let units wait for some or all of the flags that came from lower levels."""
        scopes = {event: scope for body in self.bodies for _, event, scope in body.sets}
        sets: list[Counter[int]] = [Counter() for _ in self.lanes]  # at lower levels
        used: list[Counter[int]] = [Counter() for _ in self.lanes]
        rows = [row for level in levels for part in level for row in part]
        setters = {(row.core, one[1]) for row in rows for one in self.bodies[row.body].sets}

        def arrived(core: int, event: int) -> int:
            others = [
                sets[other][event]
                for other, group in enumerate(self.lanes)
                if other != core
                and (other, event) in setters
                and (scopes[event] == "all" or group == self.lanes[core])
            ]
            every = sum(others) if scopes[event] == "all" else min(others, default=0)
            return every - used[core][event]

        for level in levels:
            rows = [row for part in level for row in part]
            for row in rows:
                ready = {event: arrived(row.core, event) for event in sorted(scopes)}
                ready = {event: count for event, count in ready.items() if count}
                if ready and rng.random() < 0.6:
                    row.event = rng.choice(list(ready))
                    row.count = rng.choice((1, ready[row.event]))
                    used[row.core][row.event] += row.count
            for row in rows:
                sets[row.core].update(event for _, event, _ in self.bodies[row.body].sets)


class _OnCube(_RandomKernel):
    role = "cube"


class _OnVector(_RandomKernel):
    role = "vector"


class _OnDsp(_RandomKernel):
    role = "dsp"


_KERNELS = {"cube": _OnCube, "vector": _OnVector, "dsp": _OnDsp}


def _core(row: _Row) -> int:
    return row.core


def _bodies(rng: Random, kind: CoreKind) -> list[_Body]:
    signals = rng.random() < 0.5
    scopes = {event: rng.choice(("group", "all")) for event in CORE_EVENTS}
    found = []
    for _ in range(rng.choice((1, 2, 3, 5, 8))):
        count = rng.choice((0, 1, 2)) if signals else 0
        sets = tuple(
            (rng.choice(kind.pipes), event, scopes[event])
            for event in rng.choices(CORE_EVENTS, k=count)
        )
        found.append(_Body(rng.choice((1, 2, 4, 8, 15, 40)), sets))
    return found


def _meet(rng: Random, level: _Level) -> None:
    """A core barrier in one unit of each core."""
    for core, rows in enumerate(level):
        if not rows:
            rows.append(_Row(core, 0))
        rng.choice(rows).meets = 1
