"""Measured points and what a simulation answers: the schemas as dataclasses.

The fields are the columns of the files, which ``configs/silicon/columns.csv`` lists;
``configs/silicon/README.md`` explains every one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from npusim.kernels.tilings.template import Template, columns_of
from npusim.results.bounded import Least
from npusim.validation.choices import NOTHING, Choice

#: Pipes whose busy time a profiler reports; a row's column is ``{pipe}_us``.
PIPES = ("cube", "mte1", "mte2", "mte3", "fixpipe", "vec", "scalar", "aiv_mte2")

#: What the time of a training step is divided into; a row's column is ``{part}_us``.
PARTS = ("forward", "filter_gradients", "input_gradients", "normalisation", "optimizer", "casts")


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The row cannot be simulated; the text says why and names the word or column."""


#: Makes a row of a class; what it takes is known to the table, not to a checker of types.
_row: Any = dataclass(frozen=True, kw_only=True)


@_row
class Measured(columns_of("all")):  # type: ignore[misc]
    """What every row has; ``parts`` name the columns ``{part}_us`` of what a time consists of."""

    id: str
    chip: str
    family: str = ""
    parts: ClassVar[tuple[str, ...]] = ()

    @property
    def busy_us(self) -> Mapping[str, float]:
        """The times of parts that were measured: a kernel's pipes, a step's operations."""
        found = {part: getattr(self, f"{part}_us") for part in self.parts}
        return {part: value for part, value in found.items() if value is not None}

    @property
    def problem(self) -> tuple[object, ...]:
        """What kernels that differ by switches alone have in common; of others the name."""
        return (self.id,)

    @property
    def told(self) -> frozenset[str]:
        """The words of ``switches``."""
        return frozenset(getattr(self, "switches", ()))


@_row
class Unreadable(Measured):
    """A row with a cell that cannot be read; ``reason`` names file, line and column."""

    reason: str


@_row
class KernelRow(Measured, Template):  # type: ignore[misc]
    """One measured kernel: one field per column; sizes are elements, times microseconds.

    ``buffers_l1`` is the number of slots for A and for B.
    """

    op: str
    parts: ClassVar[tuple[str, ...]] = PIPES

    @property
    def problem(self) -> tuple[object, ...]:
        """What kernels that differ by switches alone have in common."""
        return (self.M, self.N, self.K)


@dataclass(frozen=True)
class Operand:
    """An operand as a profile lists it: its shape in memory, dtype, and the name of its format."""

    shape: tuple[int, ...]
    dtype: str
    layout: str


@_row
class ProfiledRow(KernelRow):
    """A kernel as a profile lists it, whose tiling is chosen (``Choice``) and not measured.

    ``op`` is the profile's own word for its type, ``task`` the kind of task, ``where`` file and
    line of the first of ``launches`` that are alike; times are their medians.
    """

    task: str = ""
    operands: tuple[Operand, ...] = ()
    results: tuple[Operand, ...] = ()
    choice: Choice = NOTHING
    where: str = ""
    launches: int = 1

    @property
    def problem(self) -> tuple[object, ...]:
        """The operands."""
        return self.operands


@_row
class CallRow(Measured, columns_of("calls")):  # type: ignore[misc]
    """One measured framework call, all the kernels it launched included; sizes are elements.

    ``kernels`` are names with their counts, such as ``TransDatax3``; ``output_mask`` says which
    gradients (input, weight, bias) a convolution's backward computed.
    """

    call: str


@_row
class NetworkRow(Measured, columns_of("networks")):  # type: ignore[misc]
    """One measured training step: one field per column, most of them arguments of ``npusim.step``.

    ``input_bound`` says whether reading images may have set the pace. The parts are forward
    convolutions, both gradients, normalisations, the optimizer, and casts with clearing and
    layouts; they do not add up to the step.
    """

    network: str
    parts: ClassVar[tuple[str, ...]] = PARTS


@dataclass(frozen=True)
class Simulated:
    """What a simulation answers for a row.

    ``time_us`` is comparable to the row's: with launch for a task and for a call, without it for
    the other kinds of time. ``busy_us`` is what a profiler reports per pipe of ``PIPES``
    (``npusim.validation.profiler``); absent where the kernel has no such pipe or does not use it,
    None where what it does here is not what was measured; of a step it has ``PARTS``. ``kernels``
    are the names of those launched. ``bounds`` hold for the row whatever the L2 held, of a call
    only those of its problem; ``from_memory_us`` is the longest where it held nothing.
    """

    time_us: float
    busy_us: Mapping[str, float | None]
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bounds: tuple[Least, ...] = ()
    from_memory_us: float = 0.0


def needed(row: KernelRow | CallRow | NetworkRow, *columns: str) -> tuple[Any, ...]:
    """Return the values in ``columns``; raises ``Declined`` naming the first that is empty."""
    for column in columns:
        if getattr(row, column) is None:
            what = f"a {row.op}" if isinstance(row, KernelRow) else getattr(row, "call", "a step")
            raise Declined(f"{column} is empty: {what} needs it")
    return tuple(getattr(row, column) for column in columns)
