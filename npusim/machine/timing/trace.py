"""The record of one timed kernel: plain rows, the only input of every report and plot.

The first of them say when the cores of a program start: as the device launches them, or otherwise
for a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, overload

import numpy as np
from msgspec import Struct, field, structs

from npusim.base.integers import IntArray
from npusim.machine.program.program import Program


class PipeRow(NamedTuple):
    """Cycles of one pipe of one core by reason (order of ``REASONS``); they sum to the makespan."""

    core: str
    pipe: str
    cycles: tuple[int, ...]


class PipeRows(Sequence[PipeRow]):
    """Rows of pipes that are made when somebody looks at them, which most runs of many never see.

    ``make`` makes them, also in another process that they are sent to.
    """

    def __init__(self, make: Callable[[], Iterable[PipeRow]]) -> None:
        self._make: Callable[[], Iterable[PipeRow]] | None = make
        self._rows: tuple[PipeRow, ...] = ()

    @property
    def rows(self) -> tuple[PipeRow, ...]:
        """The rows."""
        if self._make is not None:
            self._rows = tuple(self._make())
            self._make = None
        return self._rows

    @overload
    def __getitem__(self, at: int) -> PipeRow: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[PipeRow, ...]: ...

    def __getitem__(self, at: int | slice) -> PipeRow | tuple[PipeRow, ...]:
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | PipeRows) and self.rows == tuple(other)

    def __hash__(self) -> int:
        return hash(self.rows)

    def __repr__(self) -> str:
        return repr(self.rows)

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        # A table of numbers is sent a hundred times as fast as the rows that are made of it.
        return (PipeRows, (self._make,)) if self._make is not None else (tuple, (self._rows,))


class TrafficRow(NamedTuple):
    """Bytes moved from ``src`` to ``dst`` for one operand, summed over cores.

    ``operand`` names the global tensor for moves from or to GM, else it is empty. ``hit_bytes``
    and ``miss_bytes`` split reads of GM by whether the L2 held them when they came (both 0
    elsewhere). Main memory is read in whole sectors: ``fetched_bytes`` are those that it sent for
    these reads, so that of a tensor that is read once in small pieces many hit and all are fetched.
    """

    src: str
    dst: str
    operand: str
    bytes: int
    hit_bytes: int
    miss_bytes: int
    fetched_bytes: int = 0


class Bound(NamedTuple):
    """A closed-form lower bound on the cycles of a kernel, from one resource alone.

    ``cycles`` are those of a kernel that finds in the L2 what this one found, and of a program with
    all that its instructions cost. ``least`` are those that silicon does not beat either, whatever
    the L2 held, at rates alone; they rest on ``figure`` of the device.
    """

    resource: str
    cycles: int
    why: str
    least: int = 0
    figure: str = ""

    def plus(self, other: Bound) -> Bound:
        """This one after another on the same resource."""
        return self._replace(cycles=self.cycles + other.cycles, least=self.least + other.least)


class Timeline(Struct, frozen=True, kw_only=True):
    """One row per executed instruction, sorted by (start, core, pipe, index).

    ``core``, ``pipe``, ``op``, ``line`` and ``about`` are indices into the name tuples, the last
    of which say what an instruction works on; ``start`` and ``end`` are cycles from the kernel's
    start (end exclusive); ``reason`` indexes ``REASONS`` and says what the pipe waited for just
    before, for ``waited`` cycles. A column has the narrowest integers that hold its numbers, about
    27 bytes of a row in all: widen them to compute.
    """

    cores: tuple[str, ...]
    pipes: tuple[str, ...]
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    abouts: tuple[str, ...]
    core: IntArray
    pipe: IntArray
    op: IntArray
    line: IntArray
    about: IntArray
    start: IntArray
    end: IntArray
    bytes: IntArray
    macs: IntArray
    reason: IntArray
    waited: IntArray

    def __repr__(self) -> str:
        """One line: how many instructions of how many cores."""
        return f"<Timeline of {len(self.start):,} instructions on {len(self.cores)} cores>"


class KernelRun(Struct, frozen=True, kw_only=True):
    """One launched kernel: its name, time in cycles of the device clock, and all its rows.

    ``cycles`` excludes the launch; ``launch_cycles`` is added to it when times are reported. A
    launch ends with the start of the last core, so what passes from the first start to the last is
    part of ``cycles`` alone. ``gm_bytes`` counts every byte that the cores read from GM or write.
    ``bounds`` are those of the program that ran, ``problem_bounds`` those of any program for the
    same problem.
    """

    name: str
    tiling: str
    cores: int
    cycles: int
    launch_cycles: int
    instructions: int
    macs: int
    gm_bytes: int
    pipes: Sequence[PipeRow]
    traffic: tuple[TrafficRow, ...]
    bounds: tuple[Bound, ...]
    timeline: Timeline | None
    computes: str = ""  # the result it contributes to: "input", "weight", "bias" or none of them
    useful_macs: int = 0  # that its problem needs, 0 where unknown
    problem_bounds: tuple[Bound, ...] = ()  # of any program for its problem
    idle: str = ""  # how many cores under the mask work, and why not all, where that is known
    extrapolated: str = ""  # why no published rule covers its tiling, of those that follow one
    #: Bytes and multiply-adds by the figure that says their energy
    #: (``npusim.results.facts.energy``).
    activity: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: name, cycles with and without launch, cores."""
        return (
            f"<KernelRun {self.name}: {self.cycles:,} cycles and {self.launch_cycles:,} to launch, "
            f"{self.cores} cores, {self.instructions:,} instructions>"
        )


#: Parts of a path besides those of an instruction's own cost (``npusim.machine.isa.cost_parts``):
#: waking a pipe that was idle, what others that share links take, following under the unit flag,
#: issue, and the starts of the cores before.
GAP = "gap"
SHARING = "sharing"
FOLLOWING = "follow"
ISSUING = "issue"
STARTING = "start"


class PipeWork(NamedTuple):
    """The time the path spends on an instruction of a source: ``pipe`` executes ``op`` of ``line``.

    Issuing is work of the scalar pipe for the instruction it issues.
    """

    pipe: str
    op: str
    line: str


class Step(Struct, frozen=True):
    """All visits of the path to one instruction of the source, in cycles by part."""

    work: PipeWork
    count: int
    parts: dict[str, int]

    @property
    def cycles(self) -> int:
        """Cycles of the makespan."""
        return sum(self.parts.values())


class LineWork(Struct, frozen=True, kw_only=True):
    """The work of all executions of an instruction of the source on its pipe (``pressure.py``).

    ``cycles`` are those it takes alone, on all cores together, and ``share`` is theirs of all that
    the pipe works. Of vector and matrix instructions ``used`` are elements or multiply-adds, and
    ``room`` those that the repeats or blocks would hold; a repeat has so many ``lanes`` (0 of
    matrix instructions). ``row_bytes`` and ``again`` are those of
    ``npusim.machine.isa.vector.Lanes``.
    """

    work: PipeWork
    count: int
    cycles: int
    share: float
    bytes: int
    used: int
    room: int
    lanes: int
    row_bytes: int
    again: bool

    @property
    def filled(self) -> float | None:
        """Share of the room that is used; None of instructions that have none."""
        return self.used / self.room if self.room else None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        facts = structs.asdict(self)
        del facts["work"]
        return {**self.work._asdict(), **facts}


class Trace(Struct, frozen=True, kw_only=True):
    """The causes of the time of a kernel: ``path`` adds up to ``cycles`` (see ``critical.py``).

    ``room`` are the multiply-adds its matrix instructions had time for, in whole blocks. ``lines``
    are what each instruction of the source asks of its pipe.
    """

    cycles: int
    path: tuple[Step, ...]
    room: int
    lines: tuple[LineWork, ...]


# -- when cores start ------------------------------------------------------------------------------


#: The cycle in which each core of a program starts, 0 for those without work.
Starts = Callable[[Program], IntArray]


def launched(program: Program) -> IntArray:
    """Cores with work, or their groups, start one after another, ``launch.skew`` apart."""
    return program.device.launch.skew_cycles * _places(program)


def random_starts(seed: int) -> Starts:
    """Gaps between the starts of successive cores of 0 to ``launch.core``, evenly spread."""

    def starts(program: Program) -> IntArray:
        most = program.device.launch.core_cycles
        gaps = np.random.default_rng(seed).integers(0, most + 1, len(program.cores))
        gaps[0] = 0
        return np.cumsum(gaps)[_places(program)] * _at_work(program)

    return starts


_starts: ContextVar[Starts] = ContextVar("starts", default=launched)


@contextmanager
def starting(starts: Starts) -> Iterator[None]:
    """Let the cores of every program timed inside start so; launches still end with the last."""
    token = _starts.set(starts)
    try:
        yield
    finally:
        _starts.reset(token)


def are_usual() -> bool:
    """True if cores start as the device launches them."""
    return _starts.get() is launched


def core_starts(program: Program) -> IntArray:
    """Return the cycle at which each core starts."""
    return _starts.get()(program)


def _at_work(program: Program) -> IntArray:
    return np.isin(np.arange(len(program.cores)), program.working).astype(np.int64)


def _places(program: Program) -> IntArray:
    """The place of each core among those with work, 0 for the others.

    Cores of several kinds that work together start group by group.
    """
    if "places" not in program.kept:
        busy = _at_work(program)
        places: IntArray = np.maximum(0, np.cumsum(busy) - 1) * busy
        if len(program.roles) > 1:
            groups = np.array([core.group for core in program.cores], np.int64)
            which = np.unique(groups[busy > 0], return_inverse=True)[1]
            places = which[np.cumsum(busy) - 1] * busy
        program.kept["places"] = places
    core_places: IntArray = program.kept["places"]
    return core_places
