"""The parts of a device: frozen dataclasses of plain numbers with the unit in the field name.

A field's ``metadata["unit"]`` names the kind of quantity its YAML text must be (see
``npusim.base.quantities``), ``metadata["key"]`` its YAML key. The comment above it says what it
means in the table of keys in ``configs/README.md``. Nothing here parses or reads files.
"""
# ruff: noqa: RUF009 - figure and entry return dataclass fields, which is what belongs there

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

from npusim.base.integers import RATE_BITS, fixed_rate
from npusim.base.quantities import Quantity, Range
from npusim.machine.device.pieces import pieces

#: Places that exist once per device, outside every core ("IMM" is an immediate operand).
GLOBAL_PLACES = ("GM", "IMM")

#: What kernels call memories of a core: of cube, vector unit and DSP, and of the cube's scales.
MEMORY_ROLES = ("L1", "L0A", "L0B", "L0C", "UB", "SM", "AM", "L0A_MX", "L0B_MX", "BT")

#: Where a link is: once on the chip, once per core group, or once per core.
SCOPES = ("chip", "group", "core")

#: Kinds of traffic to and from GM: reads that hit and miss in the L2, writes, atomic adds, and what
#: the L2 writes back when it evicts.
TRAFFIC = ("read_hit", "read_miss", "write", "atomic", "evict")

#: The key of every energy per byte or multiply-add, and how that ends of the most of a rate.
ENERGY, AT_MOST = "energy", "_at_most"

#: How well a figure is known, best first.
CONFIDENCES = ("measured", "vendor table", "published", "fitted", "hypothesis", "assumed")


#: What a figure is set to: text, or a number in base units.
FigureValue = str | int | Fraction


@dataclass(frozen=True)
class DeviceFigure:
    """One figure of a device: keys that lead to it in the file, kind of quantity, base units."""

    keys: tuple[str, ...]
    kind: str
    value: Quantity


def figure(key: str, unit: str, default: Any = MISSING, **metadata: str) -> Any:
    """Return a dataclass field read from YAML ``key`` as a quantity of kind ``unit``."""
    return field(default=default, metadata={"key": key, "unit": unit, **metadata})


def per_byte() -> Any:
    """Return the field of an energy per byte; 0 where a file says nothing of it."""
    return figure(ENERGY, "byte_energy", Fraction(0), digest="unless empty")


def per_mac() -> Any:
    """Return the field of energies per multiply-add by type; empty where a file has none."""
    metadata = {"key": ENERGY, "unit": "map:energy", "digest": "unless empty"}
    return field(default_factory=dict, metadata=metadata)


def most_read() -> Any:
    """Return the field of the most that ``read`` was ever measured to be."""
    return figure(f"read{AT_MOST}", "rate", Fraction(0), digest="unless empty")


def entry(default: Any = MISSING, **metadata: str) -> Any:
    """Return a field of text, words or records; its name is its YAML key."""
    return field(default=default, metadata=metadata)


def key_of(field: Field[Any]) -> str:
    """Return the YAML key of a field."""
    return str(field.metadata.get("key", field.name))


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Origin of one figure: a confidence of ``CONFIDENCES`` and a key of ``sources``.

    ``range`` is the range its file states, in base units; ``npusim.machine.device.catalog.ranges``
    knows the ranges of figures that state none. ``inherited`` names the base in whose file it
    stands, ``explained_by`` that in whose file its source is explained, "" for the device's own:
    a file that explains the source of an inherited figure says that it holds here, too.
    """

    confidence: str
    source: str
    range: Range | None = None
    inherited: str = ""
    explained_by: str = ""


@dataclass(frozen=True, kw_only=True)
class CoreKind:
    """A kind of core (one instruction stream): its count per group, memories and pipes.

    ``roles`` says what kernels may run here: "cube", "vector" or both, or "dsp".
    """

    name: str
    #: such cores in a core group
    per_group: int = figure("per_group", "count")
    #: `cube`, `vector` and `dsp`: the kernels it runs; each role is held by one kind of core
    roles: tuple[str, ...]
    #: its private memories
    memories: tuple[str, ...]
    #: its pipes; `S` always, `M` for `cube`, `V` for `vector`, `VPU` for `dsp`
    pipes: tuple[str, ...]


class Called:
    """A part that kernels find by its role, which is its name if none is said."""

    name: str
    role: str

    @cached_property
    def called(self) -> str:
        """The name that kernels use."""
        return self.role or self.name


class Holds:
    """A part that has so many bytes of room."""

    size_bytes: int

    def has_room(self, size: float) -> bool:
        """True if it holds so many bytes; results that ask no more rest on no more."""
        return size <= self.size_bytes

    def lacks(self, size: int) -> int:
        """Bytes of so many for which it has no room."""
        return 0 if self.has_room(size) else size - self.size_bytes


@dataclass(frozen=True, kw_only=True)
class Memory(Called, Holds):
    """A private memory of a core; with neither a role nor the name of one for own kernels only."""

    name: str
    #: capacity
    size_bytes: int = figure("size", "size")
    #: alignment of a buffer
    align_bytes: int = figure("align", "size")
    #: to kernels: `L1`, `L0A`, `L0B`, `L0C`, `UB`, `SM`, `AM`, `L0A_MX`, `L0B_MX` or `BT`; left out
    #: where its name says so
    role: str = entry("", digest="unless empty")


@dataclass(frozen=True, kw_only=True)
class Pipe(Called):
    """An in-order execution queue; instructions find theirs by role, moves by their path."""

    name: str
    #: instructions issued and not yet started
    queue_depth: int = figure("queue_depth", "count")
    #: to kernels: `S`, `M`, `V`, `VPU`, or the usual name of a pipe of moves; left out where its
    #: name says so
    role: str = entry("", digest="unless empty")


@dataclass(frozen=True, kw_only=True)
class Path:
    """One legal move, named ``SRC->DST`` or ``SRC->DST.variant``, and what it costs alone.

    A move of ``b`` bytes in ``r`` rows (contiguous pieces) occupies its pipe for
    ``max(floor_cycles, startup_cycles + max(b / bytes_per_cycle, r * row_cycles))`` cycles,
    rounded up; ``idle_head_cycles`` are added when it does not follow a predecessor directly.
    ``conflict_cycles`` are added per 512 B read from a buffer of several slots that share a bank of
    their memory: one slot is read while another is written. ``unaligned_cycles`` are added per row
    in GM whose pitch or place is no multiple of ``align_bytes``. ``elements_per_cycle`` (0: no
    limit) holds back types of less than a byte. Bytes of a load that are not in the L2 come at
    ``memory_bytes_per_cycle`` at most (0: no limit): a core has one queue of loads, which run one
    after another, so that this is the rate at which a core alone reads main memory. ``links`` are
    the shared links that every byte of the move occupies; who else uses them at the time makes it
    slower.
    """

    name: str
    #: the pipe that executes the move
    pipe: str
    #: the shared links that every byte of the move occupies
    links: tuple[str, ...] = entry((), digest="unless empty")
    #: time before the first byte
    startup_cycles: int = figure("startup", "cycles")
    #: the move's own limit, nobody else moving
    bytes_per_cycle: Fraction = figure("rate", "rate")
    #: the most of it for bytes that are not in the L2, which a core has in flight over the latency
    #: of main memory; without it `rate`
    memory_bytes_per_cycle: Fraction = figure(
        "memory_rate", "rate", Fraction(0), digest="unless empty"
    )
    #: cost of one contiguous piece
    row_cycles: Fraction = figure("row", "fraction_cycles", Fraction(0))
    #: block of GM of which rows take whole ones at once; of others they take a half, a quarter and
    #: a rest, each like a row of its own; 0: rows are never cut
    piece_bytes: int = figure("piece", "size", 0)
    #: shortest time of a move
    floor_cycles: int = figure("floor", "cycles", 0)
    #: added after a gap in the pipe
    idle_head_cycles: int = figure("idle_head", "cycles", 0)
    #: time of the scalar pipe to issue it
    issue_cycles: int = figure("issue", "cycles", 1)
    #: added per 512 B read from L1 where slots that take turns share a bank
    conflict_cycles: Fraction = figure("conflict", "fraction_cycles", Fraction(0))
    #: added per row in GM whose pitch or place is no multiple of `align`
    unaligned_cycles: Fraction = figure("unaligned", "fraction_cycles", Fraction(0))
    #: see `unaligned`
    align_bytes: int = figure("align", "size", 1)
    #: most elements per cycle, for types of less than a byte; 0: no limit
    elements_per_cycle: int = figure("elements", "count", 0)
    #: widest fetch per cycle of `load3d` and `load3d_transpose`, which need it; others lack it
    window_bytes: int = figure("window", "size", 0)
    #: energy of a byte moved, wires and both memories; without it runs that need it have no energy
    energy_pj: Fraction = per_byte()

    @cached_property
    def fixed_rate(self) -> int:
        """``bytes_per_cycle`` as engines compute with it."""
        return fixed_rate(self.bytes_per_cycle)

    @cached_property
    def fixed_memory_rate(self) -> int:
        """The most that bytes from main memory get, as engines compute with it."""
        if not self.memory_bytes_per_cycle:
            return self.fixed_rate
        return min(self.fixed_rate, fixed_rate(self.memory_bytes_per_cycle))

    @cached_property
    def figures(self) -> tuple[str, ...]:
        """The figures of the device that the time of a move rests on, by dotted path."""
        return (f"paths.{self.name}", *(f"links.{link}" for link in self.links))

    @cached_property
    def rate(self) -> float:
        """``bytes_per_cycle`` as a float, for estimates."""
        return float(self.bytes_per_cycle)

    @cached_property
    def memory_rate(self) -> float:
        """The most that bytes from main memory get, as a float, for estimates."""
        return self.fixed_memory_rate / (1 << RATE_BITS)

    def pieces(self, rows: int, row_bytes: int, offset: int = 0, pitch: int = 0) -> int:
        """Pieces, at ``row_cycles`` each, of ``rows``, the first ``offset`` bytes behind one."""
        piece = self.piece_bytes
        return pieces(piece, rows, row_bytes, offset % piece, pitch % piece) if piece else rows

    @cached_property
    def grain(self) -> int:
        """Bytes after which places in GM cost the same; 1 where none costs more than another."""
        return lcm(self.piece_bytes or 1, self.align_bytes if self.unaligned_cycles else 1)

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
    #: of each such link
    bytes_per_cycle: Fraction = figure("rate", "rate")
    #: `chip`, `group` or `core`: the link is there once, once per core group, or once per core
    scope: str
    #: `read_hit`, `read_miss`, `write`, `atomic` and `evict`: traffic to and from GM that uses the
    #: link whatever its path
    traffic: tuple[str, ...] = ()
    #: share of the rate that is lost while both `read_miss` and `evict` drain, as the bus of the
    #: memory turns around between them
    turnaround_percent: Fraction = figure("turnaround", "share", Fraction(0), digest="unless empty")

    @cached_property
    def turning_bytes_per_cycle(self) -> Fraction:
        """What is left of the rate while reads and write-backs take turns."""
        return self.bytes_per_cycle * (100 - self.turnaround_percent) / 100


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

    #: of every mmad
    startup_cycles: int = figure("startup", "cycles")
    #: added after a gap in the pipe
    idle_head_cycles: int = figure("idle_head", "cycles")
    #: time of the scalar pipe to issue it
    issue_cycles: int = figure("issue", "cycles", 1)
    #: adds K - 2 cycles (K in blocks) when K > 1 and m or n counts odd blocks
    odd_block_conflict: bool = figure("odd_block_conflict", "bool")
    #: mmad and drain can interlock by 512 B of L0C
    unit_flag: bool = figure("unit_flag", "bool", False)
    #: mantissa bits that HF32 keeps of fp32; 0: no HF32
    hf32_bits: int = figure("hf32_bits", "count", 0)
    #: by type of the operands, `hf32` included: `m x k x n` multiply-adds at once
    rates: Mapping[str, CubeRate] = figure("rates", "map:block")
    #: by type as in `rates`: energy of a multiply-add with its operands
    energy_pj: Mapping[str, Fraction] = per_mac()


@dataclass(frozen=True, kw_only=True)
class Vector:
    """The vector unit: an instruction takes startup + repeats * cycles-per-repeat.

    A repeat covers ``repeat_bytes``; ``ops`` maps an operation to its cycles per repeat.
    """

    #: bytes that one repeat covers
    repeat_bytes: int = figure("repeat", "size")
    #: of every instruction
    startup_cycles: int = figure("startup", "cycles")
    #: added after a gap in the pipe
    idle_head_cycles: int = figure("idle_head", "cycles")
    #: time of the scalar pipe to issue it
    issue_cycles: int = figure("issue", "cycles", 1)
    #: per repeat: of two sources `add sub mul div max min and or`, with a scalar `adds muls maxs
    #: mins compares`, of one source `abs exp ln rec relu rsqrt sqrt not`, `compare select`, and
    #: `cast copy dup reduce_add reduce_max reduce_min transpose col2img`; of `exp ln sqrt` for
    #: elements of 4 bytes, as long as for as many of 2
    ops: Mapping[str, Fraction] = figure("ops", "map:fraction_cycles")
    #: per repeat: added where one of two sources is repeated, as a number for each channel is
    repeated_cycles: Fraction = figure(
        "repeated", "fraction_cycles", Fraction(0), digest="unless empty"
    )
    #: of rows that are no whole blocks of 32 B what a transpose turns at a time
    odd_tile_bytes: int = figure("odd_tile", "size", 512)
    #: energy of a byte of operands and results; without it runs that need it have no energy
    energy_pj: Fraction = per_byte()


@dataclass(frozen=True, kw_only=True)
class Gemm(Multiplier):
    """The matrix micro-kernel of a DSP: each block takes overhead + k * cycles.

    A block of ``rates`` is m rows by n columns; k is 1, and ``cycles`` is what one k takes.
    """

    #: before and after the loop over k
    overhead_cycles: int = figure("overhead", "cycles")
    #: time of the scalar pipe to issue it
    issue_cycles: int = figure("issue", "cycles", 1)
    #: by type of the operands: `rows x 1 x columns`, and the cycles of one step of k
    rates: Mapping[str, CubeRate] = figure("rates", "map:block")
    #: by type as in `rates`: energy of a multiply-add with its operands
    energy_pj: Mapping[str, Fraction] = per_mac()


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Cost of ordering, in cycles of the pipe that executes it."""

    #: setting a flag, or finding it set
    flag_cycles: int = figure("flag", "cycles")
    #: a barrier of a pipe
    pipe_barrier_cycles: int = figure("pipe_barrier", "cycles")
    #: a barrier at which all cores meet
    core_barrier_cycles: int = figure("core_barrier", "cycles")
    #: a flag between cores
    core_flag_cycles: int = figure("core_flag", "cycles")
    #: flags per pair of pipes
    event_ids: int = figure("event_ids", "count")
    #: flags between cores
    core_event_ids: int = figure("core_event_ids", "count", 11)
    #: what one in a group counts to
    core_event_count: int = figure("core_event_count", "count", 15)


@dataclass(frozen=True, kw_only=True)
class L2Cache(Holds):
    """The shared cache in front of main memory; totals over all cores."""

    #: capacity
    size_bytes: int = figure("size", "size")
    #: unit of age and eviction; a power of two, 1 to 64 sectors
    block_bytes: int = figure("block", "size")
    #: smallest fetch from main memory; a power of two
    sector_bytes: int = figure("sector", "size")
    #: shared by all cores
    read_bytes_per_cycle: Fraction = figure("read", "rate")
    #: shared by all cores
    write_bytes_per_cycle: Fraction = figure("write", "rate")
    #: the most of `read` that was ever measured, for bounds alone; without it `read`
    read_at_most: Fraction = most_read()
    #: what each row takes of `read` besides its bytes
    request_bytes: int = figure("request", "size", 0)
    #: what of `read` there would be if all of it missed, as a read that waits for main memory takes
    #: its time too; misses take no more than their bytes if not given, or where `read` is lower
    missed_bytes_per_cycle: Fraction = figure("missed", "rate", Fraction(0), digest="unless empty")
    #: an atomic add writes this many times
    atomic_factor: int = figure("atomic_factor", "count")
    #: energy of a byte that cores read or write, with the way there; without it runs that need it
    #: have no energy
    energy_pj: Fraction = per_byte()


@dataclass(frozen=True, kw_only=True)
class MainMemory:
    """HBM or DDR behind the L2, or behind the cores where there is none; totals over all cores."""

    #: capacity
    size_bytes: int = figure("size", "size")
    #: shared by all cores
    read_bytes_per_cycle: Fraction = figure("read", "rate")
    #: shared by all cores
    write_bytes_per_cycle: Fraction = figure("write", "rate")
    #: the most of `read` that was ever measured, for bounds alone; without it `read`
    read_at_most: Fraction = most_read()
    #: energy of a byte read or written; without it runs that need it have no energy
    energy_pj: Fraction = per_byte()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Cycles a kernel launch takes; of these the program contains how cores start in turn."""

    #: start of the kernel
    kernel_cycles: int = figure("kernel", "duration")
    #: the first answer from GM
    first_access_cycles: int = figure("first_access", "duration")
    #: what each core it runs on adds
    core_cycles: int = figure("core", "duration", 0)
    #: part of `core` by which a core starts after the one before
    skew_cycles: int = figure("skew", "duration", 0)
    #: computing the tiling at run time; vector kernels have none
    tiling_cycles: int = figure("tiling", "duration")

    def cycles(self, role: str, cores: int, *, parses: bool = True) -> int:
        """Launch on so many cores, first-access latency, and on the cube run-time tiling.

        It ends with the start of the last core. ``parses`` False is a kernel whose tiling was known
        when it was compiled.
        """
        tiling = self.tiling_cycles if parses and role != "vector" else 0
        return self.kernel_cycles + self.first_access_cycles + cores * self.core_cycles + tiling

    def beside(self, role: str, cores: int) -> int:
        """The same less the cycles in which cores start in turn: what a program lacks of it."""
        return self.cycles(role, cores) - max(0, cores - 1) * self.skew_cycles
