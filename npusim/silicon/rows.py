"""Rows of measured points, and the answer of a simulation: a field per column of the files.

``configs/silicon/columns.csv`` lists the columns and the form of their cells, and a test compares
it with the fields here; ``configs/silicon/README.md`` explains every column. An empty cell is None,
or no words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from npusim.base.errors import ArgumentError, told_as
from npusim.kernels.matmul.measured import TemplateChoice, settings
from npusim.results.facts.least import LeastTime
from npusim.silicon.choices import NOTHING, Choice

#: Pipes whose busy time a profiler reports; a row's column is ``{pipe}_us``.
PIPES = ("cube", "mte1", "mte2", "mte3", "fixpipe", "vec", "scalar", "aiv_mte2")

#: Parts of the time of a training step; a row's column is ``{part}_us``.
PARTS = ("forward", "filter_gradients", "input_gradients", "normalisation", "optimizer", "casts")


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The row cannot be simulated; the text says why and names the word or column."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The columns of every row.

    ``possible_chips`` are those between which its source leaves the chip open, ``chip`` one of
    them; there are none where the source names it. ``parts`` are the parts of its time that may be
    measured, each in a column ``{part}_us``.
    """

    id: str
    chip: str
    family: str = ""
    possible_chips: tuple[str, ...] = ()
    time_us: float | None = None
    parts: ClassVar[tuple[str, ...]] = ()

    @property
    def busy_us(self) -> Mapping[str, float]:
        """The times of parts that were measured: a kernel's pipes, a step's operations."""
        times = {part: getattr(self, f"{part}_us") for part in self.parts}
        return {part: time for part, time in times.items() if time is not None}

    @property
    def problem(self) -> tuple[object, ...]:
        """The values that kernels have in common which differ by switches alone."""
        return (self.id,)

    @property
    def words(self) -> frozenset[str]:
        """The words of ``switches``."""
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class Unreadable(Measured):
    """A row with a cell that cannot be read; ``reason`` names file, line and column."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class KernelRow(Measured, TemplateChoice):
    """One measured kernel; sizes are elements, times microseconds."""

    op: str
    pair: str | None = None
    cores: int | None = None
    batch: int | None = None
    conv: str | None = None
    dtype_in: str | None = None
    dtype_out: str | None = None
    layout_a: str | None = None
    layout_b: str | None = None
    l1_k: int | None = None
    time_kind: str | None = None
    core_us: float | None = None
    cube_us: float | None = None
    mte1_us: float | None = None
    mte2_us: float | None = None
    mte3_us: float | None = None
    fixpipe_us: float | None = None
    vec_us: float | None = None
    scalar_us: float | None = None
    aiv_mte2_us: float | None = None
    busy_statistic: str | None = None
    trust: str | None = None
    anchor: str | None = None
    source: str | None = None
    note: str | None = None
    parts: ClassVar[tuple[str, ...]] = PIPES

    @property
    def problem(self) -> tuple[object, ...]:
        """The sizes of the product."""
        return (self.M, self.N, self.K)

    @property
    def words(self) -> frozenset[str]:
        """The words of ``switches``."""
        return frozenset(self.switches)


@dataclass(frozen=True)
class ProfiledOperand:
    """An operand as a profile lists it: its shape in memory, dtype, and the name of its format."""

    shape: tuple[int, ...]
    dtype: str
    layout: str


@dataclass(frozen=True, kw_only=True)
class ProfiledRow(KernelRow):
    """A kernel as a profile lists it, whose tiling is chosen (``Choice``) and not measured.

    ``op`` is the profile's own word for its type, ``task`` the kind of task, ``where`` file and
    line of the first of ``launches`` that are alike; times are their medians.
    """

    task: str = ""
    operands: tuple[ProfiledOperand, ...] = ()
    results: tuple[ProfiledOperand, ...] = ()
    choice: Choice = NOTHING
    where: str = ""
    launches: int = 1

    @property
    def problem(self) -> tuple[object, ...]:
        """The operands."""
        return self.operands


@dataclass(frozen=True, kw_only=True)
class CallRow(Measured):
    """One measured framework call, all the kernels it launched included; sizes are elements.

    ``kernels`` are names with their counts, such as ``TransDatax3``; ``output_mask`` says which
    gradients (input, weight, bias) a convolution's backward computed. ``launch`` and ``start`` are
    those of ``npusim.call.Options``: kernels of a call by itself (single) or of a replayed graph,
    operands in main memory (cold) or in the L2 (warm). ``cube_math_type`` is the arithmetic of a
    convolution of fp32, by the name that ``convolution_backward`` has for it.
    """

    call: str
    dims: int | None = None
    N: int | None = None
    Cin: int | None = None
    Cout: int | None = None
    spatial: tuple[int, ...] | None = None
    kernel: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    padding: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None
    groups: int | None = None
    transposed: bool | None = None
    output_padding: tuple[int, ...] | None = None
    dtype: str | None = None
    cube_math_type: str | None = None
    output_mask: tuple[bool, bool, bool] | None = None
    M: int | None = None
    Ncols: int | None = None
    K: int | None = None
    shape: tuple[int, ...] | None = None
    perm: tuple[int, ...] | None = None
    work: int | None = None
    kernels: tuple[str, ...] = ()
    launch: str | None = None
    start: str | None = None
    trust: str | None = None
    source: str | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class NetworkRow(Measured):
    """One measured training step, most of whose columns are arguments of ``npusim.step``.

    ``stack`` and ``amp`` are the software and its level of mixed precision, which say what
    ``dtype`` and ``normalisation`` are (``npusim/silicon/stacks.py``); these are for rows without a
    stack. ``input_bound`` says whether reading images may have set the pace. The parts are forward
    convolutions, both gradients, normalisations, the optimizer, and casts with clearing and
    layouts; they do not add up to the step.
    """

    network: str
    mode: str | None = None
    batch: int | None = None
    cards: int | None = None
    pieces: int | None = None
    stack: str | None = None
    amp: str | None = None
    dtype: str | None = None
    normalisation: str | None = None
    optimizer: str | None = None
    forward_us: float | None = None
    filter_gradients_us: float | None = None
    input_gradients_us: float | None = None
    normalisation_us: float | None = None
    optimizer_us: float | None = None
    casts_us: float | None = None
    input_bound: str | None = None
    trust: str | None = None
    source: str | None = None
    note: str | None = None
    parts: ClassVar[tuple[str, ...]] = PARTS


#: A row that could be read.
Row = KernelRow | CallRow | NetworkRow


@dataclass(frozen=True)
class SimulatedRow:
    """The answer of a simulation for a row.

    ``time_us`` is comparable to the row's: with launch for a task and for a call, without it for
    the other kinds of time. ``busy_us`` is the time that a profiler reports per pipe of ``PIPES``
    (``npusim.silicon.profiler``); absent where the kernel has no such pipe or does not use it,
    None where its work here is not the work that was measured; of a step it has ``PARTS``.
    ``kernels`` are the names of those launched. ``bounds`` hold for the row whatever the L2 held,
    of a call only those of its problem; ``from_memory_us`` is the longest where it held nothing.
    """

    time_us: float
    busy_us: Mapping[str, float | None]
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bounds: tuple[LeastTime, ...] = ()
    from_memory_us: float = 0.0


def needed(row: Row, *columns: str) -> tuple[Any, ...]:
    """Return the values in ``columns``; raises ``Declined`` naming the first that is empty."""
    for column in columns:
        if getattr(row, column) is None:
            if isinstance(row, KernelRow):
                subject = f"a {row.op}"
            else:
                subject = row.call if isinstance(row, CallRow) else "a step"
            raise Declined(f"{column} is empty: {subject} needs it")
    return tuple(getattr(row, column) for column in columns)


def switch_settings(row: KernelRow, op: str) -> dict[str, Any]:
    """Return the settings that the switches of a row make of the kernel of an operation.

    Raises ``Declined`` for a word that is not simulated for it.
    """
    with told_as(Declined, caught=ArgumentError):
        return settings(row.switches, op, row.op)
