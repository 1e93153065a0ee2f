"""The parts of a device: frozen dataclasses of plain numbers with the unit in the field name.

A field's ``metadata["unit"]`` names the kind of quantity its YAML text must be (see
``npusim.base.quantities``), ``metadata["key"]`` its YAML key, ``metadata["meaning"]`` what the
table of keys in ``configs/README.md`` says. Nothing here parses or reads files.
"""
# ruff: noqa: RUF009 - figure and entry return dataclass fields, which is what belongs there

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from npusim.base.integers import fixed_rate
from npusim.base.quantities import Range
from npusim.device.pieces import pieces

#: Places that exist once per device, outside every core ("IMM" is an immediate operand).
GLOBAL_PLACES = ("GM", "IMM")

#: What kernels call memories of a core: of cube, vector unit and DSP, and of the cube's scales.
MEMORY_ROLES = ("L1", "L0A", "L0B", "L0C", "UB", "SM", "AM", "L0A_MX", "L0B_MX", "BT")

#: Where a link is: once on the chip, once per core group, or once per core.
SCOPES = ("chip", "group", "core")

#: Kinds of traffic to and from GM: reads that hit and miss in the L2, writes, atomic adds, and what
#: the L2 writes back when it evicts.
TRAFFIC = ("read_hit", "read_miss", "write", "atomic", "evict")

#: The key of every energy per byte or multiply-add.
ENERGY = "energy"

#: How well a figure is known, best first.
CONFIDENCES = ("measured", "vendor table", "published", "fitted", "hypothesis", "assumed")


def figure(key: str, unit: str, meaning: str, default: Any = MISSING, **metadata: str) -> Any:
    """Return a dataclass field read from YAML ``key`` as a quantity of kind ``unit``."""
    return field(
        default=default, metadata={"key": key, "unit": unit, "meaning": meaning, **metadata}
    )


def per_byte(of: str) -> Any:
    """Return the field of an energy per byte; 0 where a file says nothing of it."""
    meaning = f"energy of a byte {of}; without it runs that need it have no energy"
    return figure(ENERGY, "byte_energy", meaning, Fraction(0), digest="unless empty")


def per_mac() -> Any:
    """Return the field of energies per multiply-add by type; empty where a file has none."""
    meaning = "by type as in `rates`: energy of a multiply-add with its operands"
    return field(
        default_factory=dict,
        metadata={
            "key": ENERGY,
            "unit": "map:energy",
            "meaning": meaning,
            "digest": "unless empty",
        },
    )


def entry(meaning: str, default: Any = MISSING, **metadata: str) -> Any:
    """Return a field of text, words or records; its name is its YAML key."""
    return field(default=default, metadata={"meaning": meaning, **metadata})


def role_of(known: str) -> Any:
    """Return the field of a part's role, one of ``known``."""
    return entry(f"to kernels: {known}; left out where its name says so", "", digest="unless empty")


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
    per_group: int = figure("per_group", "count", "such cores in a core group")
    roles: tuple[str, ...] = entry(
        "`cube`, `vector` and `dsp`: the kernels it runs; each role is held by one kind of core"
    )
    memories: tuple[str, ...] = entry("its private memories")
    pipes: tuple[str, ...] = entry(
        "its pipes; `S` always, `M` for `cube`, `V` for `vector`, `VPU` for `dsp`"
    )


class Called:
    """A part that kernels find by its role, which is its name if none is said."""

    name: str
    role: str

    @cached_property
    def called(self) -> str:
        """What kernels call it."""
        return self.role or self.name


@dataclass(frozen=True, kw_only=True)
class Memory(Called):
    """A private memory of a core; with neither a role nor the name of one for own kernels only."""

    name: str
    size_bytes: int = figure("size", "size", "capacity")
    align_bytes: int = figure("align", "size", "alignment of a buffer")
    role: str = role_of("`L1`, `L0A`, `L0B`, `L0C`, `UB`, `SM`, `AM`, `L0A_MX`, `L0B_MX` or `BT`")

    def has_room(self, size: int) -> bool:
        """Whether it holds so many bytes; results that ask no more rest on no more."""
        return size <= self.size_bytes


@dataclass(frozen=True, kw_only=True)
class Pipe(Called):
    """An in-order execution queue; instructions find theirs by role, moves by their path."""

    name: str
    queue_depth: int = figure("queue_depth", "count", "instructions issued and not yet started")
    role: str = role_of("`S`, `M`, `V`, `VPU`, or the usual name of a pipe of moves")


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
    pipe: str = entry("the pipe that executes the move")
    links: tuple[str, ...] = entry(
        "the shared links that every byte of the move occupies", (), digest="unless empty"
    )
    startup_cycles: int = figure("startup", "cycles", "time before the first byte")
    bytes_per_cycle: Fraction = figure("rate", "rate", "the move's own limit, nobody else moving")
    row_cycles: Fraction = figure(
        "row", "fraction_cycles", "cost of one contiguous piece", Fraction(0)
    )
    piece_bytes: int = figure(
        "piece",
        "size",
        "block of GM of which rows take whole ones at once; of others they take a half, a quarter "
        "and a rest, each like a row of its own; 0: rows are never cut",
        0,
    )
    floor_cycles: int = figure("floor", "cycles", "shortest time of a move", 0)
    idle_head_cycles: int = figure("idle_head", "cycles", "added after a gap in the pipe", 0)
    issue_cycles: int = figure("issue", "cycles", "time of the scalar pipe to issue it", 1)
    conflict_cycles: Fraction = figure(
        "conflict",
        "fraction_cycles",
        "added per 512 B read from L1 where slots that take turns share a bank",
        Fraction(0),
    )
    unaligned_cycles: Fraction = figure(
        "unaligned",
        "fraction_cycles",
        "added per row in GM whose pitch or place is no multiple of `align`",
        Fraction(0),
    )
    align_bytes: int = figure("align", "size", "see `unaligned`", 1)
    elements_per_cycle: int = figure(
        "elements",
        "count",
        "most elements per cycle, for types of less than a byte; 0: no limit",
        0,
    )
    window_bytes: int = figure(
        "window",
        "size",
        "widest fetch per cycle of `load3d` and `load3d_transpose`, which need it; others lack it",
        0,
    )
    energy_pj: Fraction = per_byte("moved, wires and both memories")

    @cached_property
    def fixed_rate(self) -> int:
        """``bytes_per_cycle`` as engines compute with it."""
        return fixed_rate(self.bytes_per_cycle)

    @cached_property
    def figures(self) -> tuple[str, ...]:
        """The figures of the device that the time of a move rests on, by dotted path."""
        return (f"paths.{self.name}", *(f"links.{link}" for link in self.links))

    @cached_property
    def rate(self) -> float:
        """``bytes_per_cycle`` as a float, for estimates."""
        return float(self.bytes_per_cycle)

    def pieces(self, rows: int, row_bytes: int, offset: int = 0, pitch: int = 0) -> int:
        """Pieces, at ``row_cycles`` each, of ``rows``, the first ``offset`` bytes behind one."""
        whole = self.piece_bytes
        return pieces(whole, rows, row_bytes, offset % whole, pitch % whole) if whole else rows

    def estimate(self, size: float, count: float) -> float:
        """Cycles of ``count`` moves of ``size`` bytes in all, for closed forms; no rows, no gaps.

        Buffers are taken to have slots in one bank, as those worth estimating do.
        """
        conflicts = size / 512 * float(self.conflict_cycles)
        return count * self.startup_cycles + size / self.rate + conflicts

    @cached_property
    def src(self) -> str:
        """Name of the memory the move reads."""
        return self.name.partition(".")[0].partition("->")[0]

    @cached_property
    def dst(self) -> str:
        """Name of the memory the move writes."""
        return self.name.partition(".")[0].partition("->")[2]

    @cached_property
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
    bytes_per_cycle: Fraction = figure("rate", "rate", "of each such link")
    scope: str = entry(
        "`chip`, `group` or `core`: the link is there once, once per core group, or once per core"
    )
    traffic: tuple[str, ...] = entry(
        "`read_hit`, `read_miss`, `write`, `atomic` and `evict`: traffic to and from GM that uses "
        "the link whatever its path",
        (),
    )


@dataclass(frozen=True, kw_only=True)
class CubeRate:
    """The block ``m x k x n`` of multiply-adds the cube retires every ``cycles`` cycles."""

    m: int
    k: int
    n: int
    cycles: int


class Multiplier:
    """A unit that multiplies matrices, block by block; ``rates`` has a block per element type."""

    rates: Mapping[str, CubeRate]

    def macs_per_cycle(self, dtype: str) -> Fraction:
        """Peak multiply-adds per cycle and core for operands of ``dtype``."""
        rate = self.rates[dtype]
        return Fraction(rate.m * rate.k * rate.n, rate.cycles)


@dataclass(frozen=True, kw_only=True)
class Cube(Multiplier):
    """The matrix unit: mmad takes startup + blocks * cycles, plus idle_head after a gap.

    ``odd_block_conflict`` adds K - 2 cycles (K in blocks) when K > 1 and the block count of m
    or n is odd. ``unit_flag`` lets mmads and drains of an accumulator follow each other by pieces
    of 512 B.
    """

    startup_cycles: int = figure("startup", "cycles", "of every mmad")
    idle_head_cycles: int = figure("idle_head", "cycles", "added after a gap in the pipe")
    issue_cycles: int = figure("issue", "cycles", "time of the scalar pipe to issue it", 1)
    odd_block_conflict: bool = figure(
        "odd_block_conflict",
        "bool",
        "adds K - 2 cycles (K in blocks) when K > 1 and m or n counts odd blocks",
    )
    unit_flag: bool = figure(
        "unit_flag", "bool", "mmad and drain can interlock by 512 B of L0C", False
    )
    hf32_bits: int = figure(
        "hf32_bits", "count", "mantissa bits that HF32 keeps of fp32; 0: no HF32", 0
    )
    rates: Mapping[str, CubeRate] = figure(
        "rates",
        "map:block",
        "by type of the operands, `hf32` included: `m x k x n` multiply-adds at once",
    )
    energy_pj: Mapping[str, Fraction] = per_mac()


@dataclass(frozen=True, kw_only=True)
class Vector:
    """The vector unit: an instruction takes startup + repeats * cycles-per-repeat.

    A repeat covers ``repeat_bytes``; ``ops`` maps an operation to its cycles per repeat.
    """

    repeat_bytes: int = figure("repeat", "size", "bytes that one repeat covers")
    startup_cycles: int = figure("startup", "cycles", "of every instruction")
    idle_head_cycles: int = figure("idle_head", "cycles", "added after a gap in the pipe")
    issue_cycles: int = figure("issue", "cycles", "time of the scalar pipe to issue it", 1)
    ops: Mapping[str, Fraction] = figure(
        "ops",
        "map:fraction_cycles",
        "per repeat: of two sources `add sub mul div max min`, with a scalar `adds muls maxs "
        "mins compares`, of one source `abs exp ln rec relu rsqrt sqrt`, `compare select`, and "
        "`cast copy dup reduce_add reduce_max reduce_min transpose`; of `exp ln sqrt` for elements "
        "of 4 bytes, as long as for as many of 2",
    )
    repeated_cycles: Fraction = figure(
        "repeated",
        "fraction_cycles",
        "per repeat: added where one of two sources is repeated, as a number for each channel is",
        Fraction(0),
        digest="unless empty",
    )
    odd_tile_bytes: int = figure(
        "odd_tile",
        "size",
        "of rows that are no whole blocks of 32 B what a transpose turns at a time",
        512,
    )
    energy_pj: Fraction = per_byte("of operands and results")


@dataclass(frozen=True, kw_only=True)
class Gemm(Multiplier):
    """The matrix micro-kernel of a DSP: each block takes overhead + k * cycles.

    A block of ``rates`` is m rows by n columns; k is 1, and ``cycles`` is what one k takes.
    """

    overhead_cycles: int = figure("overhead", "cycles", "before and after the loop over k")
    issue_cycles: int = figure("issue", "cycles", "time of the scalar pipe to issue it", 1)
    rates: Mapping[str, CubeRate] = figure(
        "rates",
        "map:block",
        "by type of the operands: `rows x 1 x columns`, and the cycles of one step of k",
    )
    energy_pj: Mapping[str, Fraction] = per_mac()


@dataclass(frozen=True, kw_only=True)
class Sync:
    """What ordering costs, in cycles of the pipe that executes it."""

    flag_cycles: int = figure("flag", "cycles", "setting a flag, or finding it set")
    pipe_barrier_cycles: int = figure("pipe_barrier", "cycles", "a barrier of a pipe")
    core_barrier_cycles: int = figure("core_barrier", "cycles", "a barrier at which all cores meet")
    core_flag_cycles: int = figure("core_flag", "cycles", "a flag between cores")
    event_ids: int = figure("event_ids", "count", "flags per pair of pipes")
    core_event_ids: int = figure("core_event_ids", "count", "flags between cores", 11)
    core_event_count: int = figure("core_event_count", "count", "what one in a group counts to", 15)


@dataclass(frozen=True, kw_only=True)
class L2Cache:
    """The shared cache in front of main memory; totals over all cores."""

    size_bytes: int = figure("size", "size", "capacity")
    block_bytes: int = figure(
        "block", "size", "unit of age and eviction; a power of two, 1 to 64 sectors"
    )
    sector_bytes: int = figure("sector", "size", "smallest fetch from main memory; a power of two")
    read_bytes_per_cycle: Fraction = figure("read", "rate", "shared by all cores")
    write_bytes_per_cycle: Fraction = figure("write", "rate", "shared by all cores")
    request_bytes: int = figure(
        "request", "size", "what each row takes of `read` besides its bytes", 0
    )
    atomic_factor: int = figure("atomic_factor", "count", "an atomic add writes this many times")
    energy_pj: Fraction = per_byte("that cores read or write, with the way there")


@dataclass(frozen=True, kw_only=True)
class MainMemory:
    """HBM or DDR behind the L2, or behind the cores where there is none; totals over all cores."""

    size_bytes: int = figure("size", "size", "capacity")
    read_bytes_per_cycle: Fraction = figure("read", "rate", "shared by all cores")
    write_bytes_per_cycle: Fraction = figure("write", "rate", "shared by all cores")
    energy_pj: Fraction = per_byte("read or written")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Cycles a kernel launch takes; of these the program contains how cores start in turn."""

    kernel_cycles: int = figure("kernel", "duration", "start of the kernel")
    first_access_cycles: int = figure("first_access", "duration", "the first answer from GM")
    core_cycles: int = figure("core", "duration", "what each core it runs on adds", 0)
    skew_cycles: int = figure(
        "skew", "duration", "part of `core` by which a core starts after the one before", 0
    )
    tiling_cycles: int = figure(
        "tiling", "duration", "computing the tiling at run time; vector kernels have none"
    )

    def cycles(self, role: str, cores: int, *, parses: bool = True) -> int:
        """Launch on so many cores, first-access latency, and on the cube run-time tiling.

        It ends with the start of the last core. ``parses`` False is a kernel whose tiling was known
        when it was compiled.

        A measured 910B2 call of three vector kernels and one cube kernel takes 13.9 us where the
        work is enough for a few cores each, and calls of as many kernels on all cores take 26 us.
        """
        tiling = self.tiling_cycles if parses and role != "vector" else 0
        return self.kernel_cycles + self.first_access_cycles + cores * self.core_cycles + tiling

    def beside(self, role: str, cores: int) -> int:
        """The same less the cycles in which cores start in turn: what a program lacks of it."""
        return self.cycles(role, cores) - max(0, cores - 1) * self.skew_cycles
