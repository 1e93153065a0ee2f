"""The device as data: one frozen dataclass of parts (``npusim.machine.device.parts``).

``npusim.machine.device.config`` walks the same dataclasses to turn a YAML file into a ``Device``.
"""
# ruff: noqa: RUF009 - figure and entry return dataclass fields, which is what belongs there

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from npusim.base.errors import ArgumentError, ProgramError
from npusim.base.notebook_html import Shown
from npusim.base.quantities import format_rate
from npusim.base.records import replace
from npusim.machine.device import parts
from npusim.machine.device.all_reduce import Cards
from npusim.machine.device.files import shipped_file
from npusim.machine.device.silicon import Silicon

if TYPE_CHECKING:
    import pandas as pd

#: How kernels can be launched: by operators called one by one, or as those of a replayed graph.
LAUNCH_MODES = ("single", "graph")

#: What reports call the memory behind the cores of a device without an L2.
_CALLED = {
    "main_memory": "DDR",
    "private_memory": "private memory",
    "shared_memory": "shared memory",
}


class Origin(Protocol):
    """The source a device was built from, able to build a variant of it."""

    @property
    def file(self) -> str:
        """The file it was read from."""

    def describe(self, device: Device) -> list[tuple[str, str, str, str]]:
        """Dotted path, value, confidence and source of every figure."""

    def rebuild(self, device: Device, values: Mapping[str, str | int | Fraction]) -> Device:
        """Return ``device`` with the figures at the dotted paths of ``values`` replaced."""


@dataclass(frozen=True, kw_only=True)
class Device(Shown):
    """One simulated chip. Build it with ``npusim.load_device``; vary it with ``replace``."""

    #: what it is called
    name: str
    #: a shipped device or a `.yaml` file: its figures hold unless stated here
    base: str = ""
    #: in one line
    description: str
    #: whose documented limits hold, a file of `constraints/`; without it its relatives'
    product: str = ""
    #: all cycles are cycles of this clock
    clock_hz: int = parts.figure("clock", "frequency")
    #: core groups; bit i of a core mask is group i
    groups: int = parts.figure("groups", "count")
    #: kinds of cores, one instruction stream each
    cores: Mapping[str, parts.CoreKind]
    #: private memories of the cores
    memories: Mapping[str, parts.Memory]
    #: pipes of the cores
    pipes: Mapping[str, parts.Pipe]
    #: moves; what is not listed, the device cannot do
    paths: Mapping[str, parts.Path]
    #: resources that moves share
    links: Mapping[str, parts.Link] = field(
        default_factory=dict, metadata={"digest": "unless empty"}
    )
    #: the matrix unit; left out where there is none
    cube: parts.Cube | None
    #: the vector unit
    vector: parts.Vector
    #: the matrix micro-kernel of a DSP; left out elsewhere
    gemm: parts.Gemm | None = None
    #: what ordering costs the pipe that executes it
    sync: parts.Sync
    #: the cache all cores share; without it each access to `GM` is one to main memory, of just the
    #: bytes asked for
    l2: parts.L2Cache | None
    #: HBM or DDR behind the L2, or behind the cores
    main_memory: parts.MainMemory
    #: takes the place of `main_memory` where an operator keeps its operands in the memory of the
    #: one core it uses
    private_memory: parts.MainMemory | None = None
    #: takes the place of `main_memory` where a caller keeps the operands of a DSP's operator in the
    #: on-chip memory that all cores share (GSM)
    shared_memory: parts.MainMemory | None = parts.entry(None, digest="unless empty")
    #: durations added once per kernel, outside the simulated program, where operators are called
    #: one by one
    single: parts.Launch = parts.entry(key="launch")
    #: the same of kernels of a replayed graph; without it there is no such mode
    graph: parts.Launch | None = parts.entry(None, digest="unless empty")
    #: how several chips exchange gradients; without it there is only one
    cards: Cards | None = parts.entry(None, digest="unless empty")
    #: area and idle power; without it the chip has no area
    silicon: Silicon | None = parts.entry(None, digest="unless empty")
    #: element types: `fp16`, `bf16`, `fp32`, `int8`, `int32`, and for the cube alone `mxfp8`,
    #: `mxfp4`; without `bf16`, fp16 results of the vector unit saturate instead of becoming
    #: infinite
    dtypes: tuple[str, ...]
    #: how kernels of the vendor add up what overlaps: `tensor`, piece by piece in the tensor's
    #: type; `fp32`, in fp32 and rounded once
    overlap_sums: str = "tensor"
    #: `tiling="library"` follows public rules of the vendor's library
    library_rules: bool = parts.figure("library_rules", "bool", False, digest="unless empty")
    #: `tiling="library"` computes layers whose windows lie side by side as products of matrices
    library_multiplies: bool = parts.figure(
        "library_multiplies", "bool", False, digest="unless empty"
    )
    #: frameworks that call operators one by one leave tensors in private formats between them:
    #: blocks of channels and fractals
    private_formats: bool = parts.figure("private_formats", "bool", False, digest="unless empty")
    #: what each source key stands for
    sources: Mapping[str, str]
    #: source keys whose figures were fitted for another chip, each with that chip
    carried_over: Mapping[str, str] = field(default_factory=dict)
    replays: bool = field(default=False, metadata={"digest": "unless empty"})  # in graph mode
    provenance: Mapping[str, parts.Provenance] = field(repr=False, compare=False)
    origin: Origin = field(repr=False, compare=False)  # the parsed YAML, kept for replace()

    def __repr__(self) -> str:
        """One line: name, cores and clock; the digest tells variants apart."""
        kinds = " + ".join(f"{kind.per_group} {kind.name}" for kind in self.cores.values())
        clock = f"{self.clock_hz / 1e9:g} GHz"
        return f"<Device {self.name}: {self.groups} x ({kinds}), {clock}, digest {self.digest()}>"

    @property
    def table(self) -> pd.DataFrame:
        """One row per figure: its dotted path, its value, how sure it is, and its source."""
        import pandas as pd  # noqa: PLC0415 - most who load a device need none

        columns = ["figure", "value", "confidence", "source"]
        return pd.DataFrame(self.origin.describe(self), columns=columns)

    @cached_property
    def shown_by(self) -> str:
        """The argument of ``npusim devices show``: a name that ships, else the file, quoted."""
        ships = self.origin.file == str(shipped_file(self.name))
        return self.name if ships else shlex.quote(self.origin.file)

    def replace(self, path: str, value: str | int | Fraction) -> Device:
        """Return a variant with one figure changed: ``replace("memories.L1.size", "2MiB")``.

        A number instead of text is in base units (bytes, Hz, B/cycle, cycles). The variant is
        checked like a file; ``provenance`` calls the figure assumed, set by the user.
        """
        return self.origin.rebuild(self, {path: value})

    def core_kind(self, role: str) -> parts.CoreKind:
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

    @cached_property
    def main_read_rate(self) -> float:
        """Bytes per cycle all cores together can read from main memory, over the chip's links."""
        return float(self.main_read_bytes_per_cycle)

    @cached_property
    def main_read_bytes_per_cycle(self) -> Fraction:
        """The same, exactly."""
        rates = [self.main_memory.read_bytes_per_cycle]
        return min([*rates, *(link.bytes_per_cycle for link in self.links_to_memory)])

    @cached_property
    def held_back(self) -> str:
        """A sentence on the link that keeps main memory from its rate of reads; "" without one."""
        rate, key = self.main_memory.read_bytes_per_cycle, f"{self.main_memory_key}.read"
        link = min(
            self.links_to_memory, key=lambda candidate: candidate.bytes_per_cycle, default=None
        )
        if link is None or link.bytes_per_cycle >= rate:
            return ""
        most = format_rate(link.bytes_per_cycle, self.clock_hz)
        return (
            f"{key} is {format_rate(rate, self.clock_hz)}, of which links.{link.name}.rate lets "
            f"{most} through; raise both for a faster memory"
        )

    @cached_property
    def links_to_memory(self) -> list[parts.Link]:
        """The links of the whole chip over which it reads what the L2 lacks."""
        every = self.links.values()
        return [link for link in every if link.scope == "chip" and "read_miss" in link.traffic]

    @cached_property
    def main_memory_key(self) -> str:
        """The key of the file under which GM stands: operands may lie on the chip."""
        for name in ("private_memory", "shared_memory"):
            if self.main_memory is getattr(self, name):
                return name
        return "main_memory"

    def with_operands_in(self, memory: str) -> Device:
        """The device with ``memory`` (``private_memory``, ``shared_memory``) in the place of GM.

        Raises ``ArgumentError`` where the device has no such memory.
        """
        operand_memory = getattr(self, memory)
        if operand_memory is None:
            raise ArgumentError(f"{self.name} has no {memory}; its file can describe one")
        return replace(self, main_memory=operand_memory)

    @property
    def launch_mode(self) -> str:
        """Mode in which kernels are launched, one of ``LAUNCH_MODES``."""
        return LAUNCH_MODES[self.replays]

    @property
    def launch_key(self) -> str:
        """The key of the file under which ``launch`` stands."""
        return "graph" if self.replays else "launch"

    @cached_property
    def launch(self) -> parts.Launch:
        """The cost of launches in this mode."""
        return self.graph if self.replays and self.graph is not None else self.single

    def launching(self, mode: str) -> Device:
        """The device with launches as in ``mode``, one of ``LAUNCH_MODES``.

        Raises ``ArgumentError`` where its file says nothing of replayed graphs.
        """
        if mode == self.launch_mode:
            return self
        if mode == "graph" and self.graph is None:
            raise ArgumentError(
                f"launch is 'graph'; {self.name} has no figures of replayed graphs: use 'single', "
                f"or a device file with 'base: {self.shown_by}' and a section 'graph'"
            )
        return self._in_other_mode

    @cached_property
    def _in_other_mode(self) -> Device:
        """The same chip in the other of both modes, made once: it keeps what was worked out."""
        return replace(self, replays=not self.replays)

    @cached_property
    def main_memory_name(self) -> str:
        """The name of main memory in reports: its place, as the model knows it."""
        if self.l2 is not None:
            return "HBM"
        return _CALLED[self.main_memory_key]

    @cached_property
    def saturates(self) -> bool:
        """True if vector results past fp16 stay finite: chips before bf16 know no infinity mode."""
        return "bf16" not in self.dtypes

    @cached_property
    def _memories(self) -> dict[str, parts.Memory]:
        """The private memories by role, or by name where one has no role."""
        return {memory.called: memory for memory in self.memories.values()}

    def called(self, place: str) -> str:
        """The name of a place in kernels: its role where it is a memory that states one."""
        return self.memories[place].called if place in self.memories else place

    def memory(self, role: str) -> parts.Memory:
        """Return the private memory of a role; ``ArgumentError`` without one."""
        private_memory = self._memories.get(role)
        if private_memory is None:
            raise ArgumentError(
                f"{self.name} has no memory of role {role} (its memories: "
                f"{', '.join(self.memories)}); in {self.origin.file} give one of them "
                f"'role: {role}', or take a device that has it"
            )
        return private_memory

    @cached_property
    def _pipes(self) -> dict[str, parts.Pipe]:
        """The pipes by role, or by name where one has no role."""
        return {pipe.called: pipe for pipe in self.pipes.values()}

    def pipe(self, called: str) -> parts.Pipe:
        """Return the pipe that cores and paths call so."""
        return self._pipes[called]

    def by_role(self) -> Device:
        """The device whose cores and paths call every pipe by its role, as instructions do."""
        if not any(pipe.role for pipe in self.pipes.values()):
            return self
        words = {pipe.name: pipe.called for pipe in self.pipes.values()}
        cores = {
            name: replace(kind, pipes=tuple(words[pipe] for pipe in kind.pipes))
            for name, kind in self.cores.items()
        }
        paths = {name: replace(path, pipe=words[path.pipe]) for name, path in self.paths.items()}
        return replace(self, cores=cores, paths=paths)

    @cached_property
    def _asked(self) -> dict[tuple[str, str, str], parts.Path | None]:
        """The moves that were asked for so far, by (source, destination, variant)."""
        return {}

    def _path(self, src: str, dst: str, variant: str) -> parts.Path | None:
        """The move from ``src`` to ``dst`` in the form ``variant``, if there is one."""
        move = (src, dst, variant)
        if move not in self._asked:
            memories = self._memories
            first = memories[src].name if src in memories else src
            last = memories[dst].name if dst in memories else dst
            self._asked[move] = self.paths.get(path_name(first, last, variant))
        return self._asked[move]

    def has_path(self, src: str, dst: str, variant: str = "") -> bool:
        """True if a core can move data from ``src`` to ``dst`` in the form ``variant``."""
        return self._path(src, dst, variant) is not None

    def path(self, src: str, dst: str, variant: str = "") -> parts.Path:
        """Return the move from ``src`` to ``dst``; without one it is a ``ProgramError``."""
        path = self._path(src, dst, variant)
        if path is not None:
            return path
        moves = [(self.called(p.src), self.called(p.dst), p.variant) for p in self.paths.values()]
        forms = [how or "plain" for origin, goal, how in moves if (origin, goal) == (src, dst)]
        if forms:
            raise ProgramError(
                f"{self.name} has no {variant or 'plain'} form of {src}->{dst} "
                f"(it has: {', '.join(forms)}); use one of these"
            )
        reached = dict.fromkeys(goal for origin, goal, _ in moves if origin == src)
        sources = dict.fromkeys(origin for origin, goal, _ in moves if goal == dst)
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
        return self._digest

    @cached_property
    def _digest(self) -> str:
        """``digest``, made once: a study of many points asks for that of its device each time."""
        return hashlib.sha256(_canonical(self).encode()).hexdigest()[:12]


#: Fields of ``Device`` that say how it is called and known, not what it is.
NO_FIGURES = (
    "name",
    "base",
    "description",
    "product",
    "sources",
    "carried_over",
    "provenance",
    "origin",
)


def path_name(src: str, dst: str, variant: str = "") -> str:
    """Return the key of a move in ``Device.paths``."""
    return f"{src}->{dst}.{variant}" if variant else f"{src}->{dst}"


def _canonical(value: Any) -> str:
    """Return text that is equal exactly where all figures in ``value`` are."""
    if is_dataclass(value):
        skip = NO_FIGURES if isinstance(value, Device) else ()
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
