"""An instruction: one class with operands, legality, pipe, reads, writes, cost and effect.

Legality (``check``), timing (``cost``) and meaning (``execute``) of an instruction stand side by
side; the engine decides only what an instruction gets when others compete for the same memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import DType
from npusim.base.errors import ProgramError
from npusim.base.integers import RATE_BITS, ceil_div
from npusim.base.records import Abstract
from npusim.machine.device.parts import Path
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import FRACTAL_BYTES, GmRegion, Region

#: A count, or an array with one for each of many candidates.
#:
#: Functions of sizes (``Move.cycles``, ``Mmad.cycles`` ...) take both. Of an ``int`` they tell what
#: one instruction takes, in whole cycles, each part rounded up as the hardware counts. Floats and
#: arrays are sizes of many tilings at once, often means, of which nothing is rounded.
Numbers = Any

#: Parts of what an instruction costs alone, in the order of reports.
STARTUP, BYTES, ROWS, FETCH = "start-up", "bytes", "rows", "fetch"
CONFLICT, FLOOR, COMPUTE, ORDER = "conflict", "floor", "compute", "order"

#: A rate that moves anything in no time.
_NO_LIMIT = Fraction(1 << 60)


def transfer_cycles(path: Path, size: Numbers) -> Numbers:
    """Cycles to move ``size`` bytes at the rate of a path."""
    if isinstance(size, int):
        return -(-(size << RATE_BITS) // path.fixed_rate)
    return size / path.rate


def whole_cycles(count: int, each: Fraction) -> int:
    """``count`` times ``each`` cycles, rounded up."""
    return -(-count * each.numerator // each.denominator)


def mean_cycles(count: Numbers, each: Fraction) -> Numbers:
    """``count`` times ``each`` cycles."""
    return count * float(each)


def larger(first: Numbers, second: Numbers) -> Numbers:
    """The larger of two numbers, or of arrays element by element."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.maximum(first, second)
    return max(first, second)


class Cost(NamedTuple):
    """The cost of an instruction that is alone on the machine, in cycles.

    ``cycles`` it occupies its pipe, ``idle_head`` more if the pipe was idle just before,
    ``startup`` of them pass before the first byte moves (GM transfers), ``issue`` cycles of
    the scalar pipe put it into the queue; ``macs`` multiply-adds are done. Where it follows
    another pipe under the unit flag, it may start ``lag_start`` cycles after the other's start
    and end ``lag_end`` cycles after the other's end.
    """

    cycles: int
    idle_head: int = 0
    startup: int = 0
    issue: int = 1
    macs: int = 0
    lag_start: int = 0
    lag_end: int = 0


class MemoryView(Protocol):
    """The view of ``execute``: the elements behind regions, for ``batch`` cores at once.

    Arrays have a leading axis for the cores.
    """

    batch: int

    def read(
        self, region: Region, dtype: DType, shape: tuple[int, ...] = (), *, wide: bool = False
    ) -> npt.NDArray[Any]:
        """Elements of a region as (batch, *shape), by default (batch, rows, elements per row).

        ``wide`` gives them in fp32. They are not to be changed.
        """

    def write(self, region: Region, values: npt.NDArray[Any], dtype: DType) -> None:
        """Store elements row by row; ``values`` are not to be changed afterwards."""

    def move(
        self,
        dst: Region,
        src: Region,
        dtype: DType,
        shape: tuple[int, ...] = (),
        arrange: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
    ) -> None:
        """dst = arrange(src as (batch, *shape)): the same elements elsewhere, and zeros.

        ``arrange`` may run later and on a wider type, so that it must not compute.
        """

    def add(self, region: Region, values: npt.NDArray[Any], dtype: DType) -> None:
        """Atomic add into global memory, rounded to ``dtype``."""


class Signal(NamedTuple):
    """Flag ``event`` is set on every other core of ``scope``: "group" or "all".

    One for all cores counts up each time. One for the group counts up when all of the group's
    other cores that set it have set it once more.
    """

    event: int
    scope: str


class Await(NamedTuple):
    """This core's flag ``event`` has to count ``more``."""

    event: int
    more: int


class Told(NamedTuple):
    """Facts that an instruction tells of itself once, when it is issued.

    Each field is the property or method of ``Instruction`` that has its name.
    """

    op: str
    pipe: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    move: tuple[str, str, str, int] | None
    figures: tuple[str, ...]
    drains: bool


class Instruction(Abstract):
    """One instruction; subclasses are frozen dataclasses of their operands."""

    #: Multiples of bytes at which operands in a memory begin, where they are not its ``align``.
    begins: ClassVar[Mapping[str, int]] = {}
    #: Whether all cores of the kernel wait for each other here.
    meets: ClassVar[bool] = False
    #: Whether it orders this core's work against that of others.
    between_cores: ClassVar[bool] = False
    #: Whether its write to GM is an atomic add.
    atomic: bool = False
    #: What it tells other cores, if it does.
    signals: Signal | None = None
    #: What it waits to be told by other cores, if it does.
    awaits: Await | None = None
    #: The part of a device whose figures its cost is made of: "cube", "vector" or "gemm".
    unit: ClassVar[str] = ""
    #: Figures of that unit, or of a move's path, that add to its cost, each with its part of it.
    additions: ClassVar[tuple[tuple[str, str], ...]] = ()

    @property
    @abstractmethod
    def pipe(self) -> str:
        """Name of the pipe that executes it."""

    def reads(self) -> tuple[Region, ...]:
        """Regions whose content it uses."""
        return ()

    def writes(self) -> tuple[Region, ...]:
        """Regions it changes."""
        return ()

    def move(
        self, reads: tuple[Region, ...], writes: tuple[Region, ...]
    ) -> tuple[str, str, str, int] | None:
        """(source, destination, GM operand or "", bytes) if it is a move, of what it touches."""
        return None

    def typed(self, told: Told) -> list[tuple[Region, DType]]:
        """Operands with the type of the elements that it takes them for; all have its own."""
        dtype: DType | None = getattr(self, "dtype", None)
        return [] if dtype is None else [(one, dtype) for one in (*told.reads, *told.writes)]

    def row_step(self, region: Region) -> int:
        """Bytes from where a row of an operand begins to the next; 0 where they are one piece."""
        return region.pitch if region.rows > 1 and region.pitch != region.row_bytes else 0

    @property
    def drains(self) -> bool:
        """Tell whether it waits until all pipes of its core have done what was issued before it."""
        return self.meets

    def told(self) -> Told:
        """All of it that the rest of the simulator asks more than once."""
        reads, writes = self.reads(), self.writes()
        move, figures = self.move(reads, writes), self.figures()
        return Told(self.op, self.pipe, reads, writes, move, figures, self.drains)

    def check(self, device: Device) -> None:
        """Raise ``ProgramError``, with limit and way out, unless the operands are legal.

        Called once, when the instruction is issued; the kernel line is added there.
        """

    @abstractmethod
    def cost(self, device: Device) -> Cost:
        """Return its cost alone on ``device``."""

    @abstractmethod
    def figures(self) -> tuple[str, ...]:
        """The figures of a device that its time rests on, by dotted path.

        "cube.rates.fp16" is one figure, "cube" all that lie directly in that part of the file.
        """

    @abstractmethod
    def execute(self, memory: MemoryView) -> None:
        """Its effect on arrays, which have a leading axis for cores."""

    @property
    def op(self) -> str:
        """Name shown in timelines: the class name in the DSL's spelling."""
        return spelled(type(self).__name__)

    @property
    def about(self) -> str:
        """Words for its subject, to tell it from others: its sizes, or the ends of a move."""
        return ""

    def __str__(self) -> str:
        outs = ", ".join(map(str, self.writes()))
        ins = ", ".join(map(str, self.reads()))
        return f"{self.op} {outs}{' <- ' if outs and ins else ''}{ins}"

    # -- what ``check`` is made of ---------------------------------------------------------

    def _need_memory(self, memories: str | tuple[str, ...], *regions: Region) -> None:
        """Raise unless every region lies in one of ``memories``."""
        allowed = (memories,) if isinstance(memories, str) else memories
        for region in regions:
            if region.memory not in allowed:
                raise ProgramError(
                    f"{self}: {region} lies in {region.memory}, this operand must be in "
                    f"{' or '.join(allowed)}"
                )

    def _need_size(self, region: Region, size: int) -> None:
        """Raise unless the region has ``size`` bytes."""
        if region.size != size:
            raise ProgramError(f"{self}: {region} has {region.size} B, it must have {size} B")

    def _need_elements(self, dtype: DType, *regions: Region) -> None:
        """Raise unless the rows of every region are whole elements of ``dtype``."""
        for region in regions:
            if region.row_bytes % dtype.bytes:
                raise ProgramError(
                    f"{self}: rows of {region.row_bytes} B are not whole {dtype} elements"
                )

    def _need_operation(self, operation: str, known: Iterable[str]) -> None:
        """Raise unless ``operation`` is one of ``known``."""
        known = tuple(known)
        if operation not in known:
            raise ProgramError(
                f"{self}: there is no operation {operation!r}; it is one of {', '.join(known)}"
            )


def _place(region: Region) -> str:
    """The tensor or the buffer that a region lies in."""
    return region.tensor.name if isinstance(region, GmRegion) else region.slot.buffer.name


@cache
def spelled(name: str) -> str:
    """The DSL's spelling of a class's name: underscores for capitals."""
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


class Move(Instruction):
    """Copies ``src`` to ``dst`` along a path of the device, whose pipe executes it."""

    additions: ClassVar[tuple[tuple[str, str], ...]] = (
        (FLOOR, "floor_cycles"),
        (CONFLICT, "conflict_cycles"),
        (ROWS, "unaligned_cycles"),
        (STARTUP, "startup_cycles"),
    )
    #: Figures of the path of which that counts which takes longest, with what is no limit.
    limits: ClassVar[tuple[tuple[str, str, Fraction], ...]] = (
        (BYTES, "bytes_per_cycle", _NO_LIMIT),
        (ROWS, "row_cycles", Fraction(0)),
    )

    dst: Region
    src: Region
    path: Path

    @staticmethod
    def cycles(
        path: Path,
        size: Numbers,
        rows: Numbers = 0,
        *,
        moves: Numbers = 1,
        fetch: Numbers = 0,
        elements: Numbers = 0,
        conflict: Numbers = False,
        unaligned: Numbers = 0,
    ) -> Numbers:
        """Cycles that a move of ``size`` bytes occupies its pipe, alone on the machine.

        Bytes, ``rows`` (contiguous pieces) and ``fetch`` (cycles to fetch an img2col window) pass
        at the same time, and of a path that counts them ``elements`` too. With ``conflict`` each
        fractal pays for a bank that is written at the same time; ``unaligned`` rows pay for their
        place. Several ``moves`` of so many bytes in all start one after another.
        See ``Numbers``; the figures are described at ``Path``.
        """
        exact = isinstance(size, int)
        each = whole_cycles if exact else mean_cycles
        work = larger(transfer_cycles(path, size), fetch)
        if path.row_cycles:
            work = larger(work, each(rows, path.row_cycles))
        if path.elements_per_cycle:
            limit = path.elements_per_cycle
            work = larger(work, ceil_div(elements, limit) if exact else elements / limit)
        if path.conflict_cycles:
            fractals = ceil_div(size, FRACTAL_BYTES) if exact else size / FRACTAL_BYTES
            work = work + conflict * each(fractals, path.conflict_cycles)
        if path.unaligned_cycles:
            work = work + each(unaligned, path.unaligned_cycles)
        busy = moves * path.startup_cycles + work
        return larger(moves * path.floor_cycles, busy) if path.floor_cycles else busy

    @staticmethod
    def cycles_beside_bytes(path: Path, size: Numbers, rows: Numbers) -> Numbers:
        """Cycles of ``Move.cycles`` beside those of its bytes, which others may make slower."""
        longer = mean_cycles(rows, path.row_cycles) - size / path.rate
        return path.startup_cycles + larger(0, longer)

    @property
    def pipe(self) -> str:
        return self.path.pipe

    def reads(self) -> tuple[Region, ...]:
        return (self.src,)

    def writes(self) -> tuple[Region, ...]:
        return (self.dst,)

    @property
    def about(self) -> str:
        return " to ".join(map(_place, (*self.reads()[:1], *self.writes()[:1])))

    def figures(self) -> tuple[str, ...]:
        return self.path.figures

    def move(
        self, reads: tuple[Region, ...], writes: tuple[Region, ...]
    ) -> tuple[str, str, str, int]:
        target, origin = writes[0], reads[0].memory if reads else "IMM"
        for regions in (reads, writes):
            if regions and isinstance(regions[0], GmRegion):
                size = sum(one.size for one in regions)
                return origin, target.memory, regions[0].tensor.name, size
        return origin, target.memory, "", target.size


def move_cost(
    path: Path,
    size: int,
    rows: int = 1,
    *,
    fetch: int = 0,
    elements: int = 0,
    conflict: bool = False,
    place: Region | None = None,
) -> Cost:
    """Cost of moving ``size`` bytes in ``rows`` pieces along ``path``, as ``Move.cycles`` has it.

    Rows are cut into pieces and pay for their alignment at ``place``, the end of the move in GM.
    """
    pieces = rows
    if isinstance(place, GmRegion) and path.piece_bytes:
        pieces = path.pieces(rows, place.row_bytes, place.offset, place.pitch)
    unaligned = 0
    if isinstance(place, GmRegion) and (place.offset | place.pitch) % path.align_bytes:
        unaligned = rows
    taken = Move.cycles(
        path,
        size,
        pieces,
        fetch=fetch,
        elements=elements,
        conflict=conflict,
        unaligned=unaligned,
    )
    return Cost(taken, path.idle_head_cycles, path.startup_cycles, path.issue_cycles)
