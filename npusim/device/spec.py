"""The device as data: frozen dataclasses of plain numbers with the unit in the field name.

A field's ``metadata["unit"]`` names the kind of quantity its YAML text must be (see
``npusim.quantities``); ``metadata["key"]`` is the YAML key. Nothing here parses or reads files:
``npusim.device.config`` walks the same dataclasses to turn a YAML file into a ``Device``.
"""
# ruff: noqa: RUF009 - _figure returns a dataclass field, which is what belongs there

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

from npusim.errors import ArgumentError, ProgramError
from npusim.quantities import Range

#: Places that exist once per device, outside every core ("IMM" is an immediate operand).
GLOBAL_PLACES = ("GM", "IMM")

#: Where a link is: once on the chip, once per core group, or once per core.
SCOPES = ("chip", "group", "core")

#: Kinds of traffic to and from GM: reads that hit and miss in the L2, writes, atomic adds, and what
#: the L2 writes back when it evicts.
TRAFFIC = ("read_hit", "read_miss", "write", "atomic", "evict")

#: How well a figure is known, best first.
CONFIDENCES = ("measured", "vendor table", "published", "fitted", "assumed")


def _figure(key: str, unit: str, default: Any = MISSING) -> Any:
    """A dataclass field read from YAML ``key`` as a quantity of kind ``unit``."""
    return field(default=default, metadata={"key": key, "unit": unit})


#: Of a field that files written before it do not have: an empty one leaves the digest as it was.
_SINCE = {"digest": "unless empty"}


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where one figure comes from: a confidence of ``CONFIDENCES`` and a key of ``sources``.

    ``range`` is the range its file states, in base units; ``npusim.device.catalog.ranges`` knows
    the ranges of figures that state none. ``inherited`` names the base in whose file it stands.
    """

    confidence: str
    source: str
    range: Range | None = None
    inherited: str = ""


@dataclass(frozen=True, kw_only=True)
class CoreKind:
    """A kind of core (one instruction stream): its count per group, memories and pipes.

    ``roles`` says what kernels may run here: "cube", "vector" or both, or "dsp".
    """

    name: str
    per_group: int = _figure("per_group", "count")
    roles: tuple[str, ...]
    memories: tuple[str, ...]
    pipes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A private memory of a core (L1, L0A, L0B, L0C, UB, ...)."""

    name: str
    size_bytes: int = _figure("size", "size")
    align_bytes: int = _figure("align", "size")


@dataclass(frozen=True, kw_only=True)
class Pipe:
    """An in-order execution queue.

    ``queue_depth`` counts instructions issued to the pipe and not yet started.
    """

    name: str
    queue_depth: int = _figure("queue_depth", "count")


@dataclass(frozen=True, kw_only=True)
class Path:
    """One legal move, named ``SRC->DST`` or ``SRC->DST.variant``, and what it costs alone.

    A move of ``b`` bytes in ``r`` rows (contiguous pieces) occupies its pipe for
    ``max(floor_cycles, startup_cycles + max(b / bytes_per_cycle, r * row_cycles))`` cycles,
    rounded up; ``idle_head_cycles`` are added when it does not follow a predecessor directly.
    ``conflict_cycles`` are added per 512 B read from a buffer of several slots that share a bank of
    their memory: one slot is read while another is written. ``unaligned_cycles`` are added per row
    in GM whose pitch or place is no multiple of ``align_bytes``. ``elements_per_cycle`` (0: no
    limit) holds back types of less than a byte. ``links`` are the shared links that every byte of
    the move occupies; who else uses them at the time makes it slower.
    """

    name: str
    pipe: str
    links: tuple[str, ...] = field(default=(), metadata=_SINCE)
    startup_cycles: int = _figure("startup", "cycles")
    bytes_per_cycle: Fraction = _figure("rate", "rate")
    row_cycles: Fraction = _figure("row", "fraction_cycles", Fraction(0))
    floor_cycles: int = _figure("floor", "cycles", 0)
    idle_head_cycles: int = _figure("idle_head", "cycles", 0)
    issue_cycles: int = _figure("issue", "cycles", 1)
    conflict_cycles: Fraction = _figure("conflict", "fraction_cycles", Fraction(0))
    unaligned_cycles: Fraction = _figure("unaligned", "fraction_cycles", Fraction(0))
    align_bytes: int = _figure("align", "size", 1)
    elements_per_cycle: int = _figure("elements", "count", 0)
    window_bytes: int = _figure("window", "size", 0)  # img2col paths: widest fetch per cycle

    @cached_property
    def rate(self) -> float:
        """``bytes_per_cycle`` as a float, for estimates."""
        return float(self.bytes_per_cycle)

    def estimate(self, size: float, count: float) -> float:
        """Cycles of ``count`` moves of ``size`` bytes in all, for closed forms; no rows, no gaps.

        Buffers are taken to have slots in one bank, as those worth estimating do.
        """
        conflicts = size / 512 * float(self.conflict_cycles)
        return count * self.startup_cycles + size / self.rate + conflicts

    @property
    def src(self) -> str:
        """Name of the memory the move reads."""
        return self.name.partition(".")[0].partition("->")[0]

    @property
    def dst(self) -> str:
        """Name of the memory the move writes."""
        return self.name.partition(".")[0].partition("->")[2]

    @property
    def variant(self) -> str:
        """Form of the move ("" for plain, else "nd2nz", "transpose", "load3d", "nz2nd", ...)."""
        return self.name.partition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A resource that moves share: so many bytes per cycle on the chip, of each group or core.

    It is used by the paths that name it, and by all GM traffic of the kinds of ``TRAFFIC`` in
    ``traffic``, whatever its path. The figures ``read`` and ``write`` of ``l2`` and ``main_memory``
    are links too, of the whole chip.
    """

    name: str
    bytes_per_cycle: Fraction = _figure("rate", "rate")
    scope: str
    traffic: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CubeRate:
    """The block ``m x k x n`` of multiply-adds the cube retires every ``cycles`` cycles."""

    m: int
    k: int
    n: int
    cycles: int


@dataclass(frozen=True, kw_only=True)
class Cube:
    """The matrix unit: mmad takes startup + blocks * cycles, plus idle_head after a gap.

    ``odd_block_conflict`` adds K - 2 cycles (K in blocks) when K > 1 and the block count of m
    or n is odd. ``unit_flag`` lets mmads and drains of an accumulator follow each other by pieces
    of 512 B.
    """

    startup_cycles: int = _figure("startup", "cycles")
    idle_head_cycles: int = _figure("idle_head", "cycles")
    issue_cycles: int = _figure("issue", "cycles", 1)
    odd_block_conflict: bool = _figure("odd_block_conflict", "bool")
    unit_flag: bool = _figure("unit_flag", "bool", False)
    hf32_bits: int = _figure("hf32_bits", "count", 0)  # mantissa bits HF32 keeps; 0: no HF32
    rates: Mapping[str, CubeRate] = _figure("rates", "map:block")

    def macs_per_cycle(self, dtype: str) -> Fraction:
        """Peak multiply-adds per cycle and core for operands of ``dtype``."""
        rate = self.rates[dtype]
        return Fraction(rate.m * rate.k * rate.n, rate.cycles)


@dataclass(frozen=True, kw_only=True)
class Vector:
    """The vector unit: an instruction takes startup + repeats * cycles-per-repeat.

    A repeat covers ``repeat_bytes``; ``ops`` maps an operation to its cycles per repeat.
    """

    repeat_bytes: int = _figure("repeat", "size")
    startup_cycles: int = _figure("startup", "cycles")
    idle_head_cycles: int = _figure("idle_head", "cycles")
    issue_cycles: int = _figure("issue", "cycles", 1)
    ops: Mapping[str, Fraction] = _figure("ops", "map:fraction_cycles")


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """The matrix micro-kernel of a DSP: each block takes overhead + k * cycles.

    A block of ``rates`` is m rows by n columns; k is 1, and ``cycles`` is what one k takes.
    """

    overhead_cycles: int = _figure("overhead", "cycles")
    issue_cycles: int = _figure("issue", "cycles", 1)
    rates: Mapping[str, CubeRate] = _figure("rates", "map:block")

    def macs_per_cycle(self, dtype: str) -> Fraction:
        """Peak multiply-adds per cycle and core for operands of ``dtype``."""
        rate = self.rates[dtype]
        return Fraction(rate.m * rate.k * rate.n, rate.cycles)


@dataclass(frozen=True, kw_only=True)
class Sync:
    """What ordering costs, in cycles of the pipe that executes it."""

    flag_cycles: int = _figure("flag", "cycles")
    pipe_barrier_cycles: int = _figure("pipe_barrier", "cycles")
    core_barrier_cycles: int = _figure("core_barrier", "cycles")
    core_flag_cycles: int = _figure("core_flag", "cycles")
    event_ids: int = _figure("event_ids", "count")


@dataclass(frozen=True, kw_only=True)
class L2Cache:
    """The shared cache in front of main memory; totals over all cores."""

    size_bytes: int = _figure("size", "size")
    block_bytes: int = _figure("block", "size")  # LRU and allocation unit of the model
    sector_bytes: int = _figure("sector", "size")  # smallest fetch from main memory
    read_bytes_per_cycle: Fraction = _figure("read", "rate")
    write_bytes_per_cycle: Fraction = _figure("write", "rate")
    request_bytes: int = _figure("request", "size", 0)  # of its bandwidth, for each row read
    atomic_factor: int = _figure("atomic_factor", "count")  # an atomic add writes this many times


@dataclass(frozen=True, kw_only=True)
class MainMemory:
    """HBM or DDR behind the L2, or behind the cores where there is none; totals over all cores."""

    size_bytes: int = _figure("size", "size")
    read_bytes_per_cycle: Fraction = _figure("read", "rate")
    write_bytes_per_cycle: Fraction = _figure("write", "rate")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Cycles a kernel launch adds outside the simulated program."""

    kernel_cycles: int = _figure("kernel", "duration")
    first_access_cycles: int = _figure("first_access", "duration")
    core_cycles: int = _figure("core", "duration", 0)  # for each core the kernel runs on
    tiling_cycles: int = _figure("tiling", "duration")

    def cycles(self, role: str, cores: int, *, parses: bool = True) -> int:
        """Launch on so many cores, first-access latency, and on the cube run-time tiling.

        ``parses`` False is a kernel whose tiling was known when it was compiled.

        A measured 910B2 call of three vector kernels and one cube kernel takes 13.9 us where the
        work is enough for a few cores each, and calls of as many kernels on all cores take 26 us.
        """
        tiling = self.tiling_cycles if parses and role != "vector" else 0
        return self.kernel_cycles + self.first_access_cycles + cores * self.core_cycles + tiling


class Origin(Protocol):
    """What a device was built from, able to build a variant of it."""

    def rebuild(self, device: Device, values: Mapping[str, str | int | Fraction]) -> Device:
        """Return ``device`` with the figures at the dotted paths of ``values`` replaced."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One simulated chip. Build it with ``npusim.load_device``; vary it with ``replace``."""

    name: str
    base: str = ""  # the device, or its file, whose figures hold where this one states none
    description: str
    product: str = ""  # whose documented limits hold: a file of configs/constraints
    clock_hz: int = _figure("clock", "frequency")
    groups: int = _figure("groups", "count")  # what a core mask counts: bit i is group i
    cores: Mapping[str, CoreKind]
    memories: Mapping[str, Memory]
    pipes: Mapping[str, Pipe]
    paths: Mapping[str, Path]
    links: Mapping[str, Link] = field(default_factory=dict, metadata=_SINCE)
    cube: Cube | None
    vector: Vector
    gemm: Gemm | None = None
    sync: Sync
    l2: L2Cache | None  # None: every access to GM goes to main memory
    main_memory: MainMemory
    private_memory: MainMemory | None = (
        None  # of one core, for operators with a private storage form
    )
    launch: Launch
    dtypes: tuple[str, ...]
    im2col_accumulate: str = "tensor"  # precision of im2col's backward sums, or "fp32"
    sources: Mapping[str, str]
    provenance: Mapping[str, Provenance] = field(repr=False, compare=False)
    origin: Origin = field(repr=False, compare=False)  # the parsed YAML, kept for replace()

    def replace(self, path: str, value: str | int | Fraction) -> Device:
        """Return a variant with one figure changed: ``replace("memories.L1.size", "2MiB")``.

        A number instead of text is in base units (bytes, Hz, B/cycle, cycles). The variant is
        checked like a file; ``provenance`` calls the figure assumed, set by the user.
        """
        return self.origin.rebuild(self, {path: value})

    def core_kind(self, role: str) -> CoreKind:
        """Return the kind of core whose role is ``role`` ("cube", "vector" or "dsp")."""
        for kind in self.cores.values():
            if role in kind.roles:
                return kind
        have = ", ".join(role for kind in self.cores.values() for role in kind.roles)
        raise ArgumentError(
            f"{self.name} has no core with role {role!r} (roles here: {have}); "
            "choose a device that has one"
        )

    def count(self, role: str) -> int:
        """Return how many cores of ``role`` there are in all groups."""
        return self.groups * self.core_kind(role).per_group

    @cached_property
    def shared_read_rate(self) -> float:
        """Bytes per cycle all cores together can read: of the L2, or main memory without one."""
        shared = self.l2 if self.l2 is not None else self.main_memory
        return float(shared.read_bytes_per_cycle)

    @property
    def is_private(self) -> bool:
        """Whether GM is the private memory of the core that runs."""
        return self.main_memory is self.private_memory

    @property
    def saturates(self) -> bool:
        """Whether vector results past fp16 stay finite: chips before bf16 know no infinity mode."""
        return "bf16" not in self.dtypes

    @cached_property
    def _paths(self) -> dict[tuple[str, str, str], Path]:
        """The moves by (source, destination, variant): asked once per instruction."""
        return {(path.src, path.dst, path.variant): path for path in self.paths.values()}

    def has_path(self, src: str, dst: str, variant: str = "") -> bool:
        """Whether a core can move data from ``src`` to ``dst`` in the form ``variant``."""
        return (src, dst, variant) in self._paths

    def path(self, src: str, dst: str, variant: str = "") -> Path:
        """Return the move from ``src`` to ``dst``; without one it is a ``ProgramError``."""
        found = self._paths.get((src, dst, variant))
        if found is not None:
            return found
        forms = [p.variant or "plain" for p in self.paths.values() if (p.src, p.dst) == (src, dst)]
        if forms:
            raise ProgramError(
                f"{self.name} has no {variant or 'plain'} form of {src}->{dst} "
                f"(it has: {', '.join(forms)}); use one of these"
            )
        reached = dict.fromkeys(p.dst for p in self.paths.values() if p.src == src)
        sources = dict.fromkeys(p.src for p in self.paths.values() if p.dst == dst)
        raise ProgramError(
            f"{self.name} cannot move {path_name(src, dst, variant)} ({src} reaches: "
            f"{', '.join(reached) or 'nothing'}; {dst} is reached from: "
            f"{', '.join(sources) or 'nothing'}); go through another memory or take another device"
        )

    def time_us(self, cycles: float) -> float:
        """Microseconds that ``cycles`` of the device clock last."""
        return cycles * 1e6 / self.clock_hz

    def digest(self) -> str:
        """Twelve hex digits that change with any figure; names of files and sources do not count.

        Name, description and product are no figures either: equal digests mean equal machines.
        """
        return hashlib.sha256(_canonical(self).encode()).hexdigest()[:12]


#: Fields of ``Device`` that say how it is called and known, not what it is.
_NO_FIGURES = ("name", "base", "description", "product", "sources", "provenance", "origin")


def path_name(src: str, dst: str, variant: str = "") -> str:
    """Return the key of a move in ``Device.paths``."""
    return f"{src}->{dst}.{variant}" if variant else f"{src}->{dst}"


def _canonical(value: Any) -> str:
    """Return text that is equal exactly where all figures in ``value`` are."""
    if is_dataclass(value):
        skip = _NO_FIGURES if isinstance(value, Device) else ()
        pairs = (
            (f.name, item)
            for f in fields(value)
            for item in (getattr(value, f.name),)
            if f.name not in skip and (item or "digest" not in f.metadata)
        )
        return "(" + " ".join(f"{name}={_canonical(item)}" for name, item in pairs) + ")"
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{key}:{_canonical(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + " ".join(map(_canonical, value)) + "]"
    return str(value)
