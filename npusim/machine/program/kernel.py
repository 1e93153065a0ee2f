"""The form of a kernel: which tasks there are, the buffers, and the program of one task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from npusim.base.errors import ArgumentError, ProgramError
from npusim.base.integers import IntArray
from npusim.base.records import Abstract, replace, with_values
from npusim.base.resources import require_room
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor

if TYPE_CHECKING:
    from npusim.machine.program.language import Language

#: A column of a task table: integers, or flags.
Column = npt.NDArray[np.int64] | npt.NDArray[np.bool_]

Task = TypeVar("Task", bound=tuple[Any, ...])
Own = TypeVar("Own", bound="Kernel")


class Alike(NamedTuple):
    """The task of a kernel whose tasks differ in addresses only."""


class Tasks(Struct, Generic[Task], frozen=True):
    """The work of a kernel as columns, one row per task, each core doing its rows in order.

    ``core`` is the position among the kernel's cores. ``columns`` are what the program of a task
    depends on (extents, border and tail flags, first or last of an accumulation), by the fields
    of ``record``, a ``NamedTuple`` of ``int`` and ``bool``: ``emit`` runs once per distinct row of
    them. ``bases`` are byte offsets that a GM region can name; nothing else may depend on them.
    """

    core: IntArray
    record: type[Task]
    columns: Mapping[str, Column] = field(default_factory=dict)
    bases: Mapping[str, IntArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, column in {**self.columns, **self.bases}.items():
            if len(column) != len(self.core):
                raise ProgramError(
                    f"task column {name!r} has {len(column)} rows, core has {len(self.core)}; "
                    "every column needs one entry per task"
                )
            if len(column) and np.asarray(column).dtype.kind not in "biu":
                raise ProgramError(
                    f"task column {name!r} holds {np.asarray(column).dtype}; give whole numbers "
                    "or flags, as a // b or array.astype(int) makes them"
                )
        want = fields_of(self.record)
        if set(want) != set(self.columns):
            raise ProgramError(
                f"the columns are {', '.join(self.columns) or 'none'}, a {self.record.__name__} "
                f"has {', '.join(want) or 'none'}; give each field a column of its name"
            )


def fields_of(record: type) -> tuple[str, ...]:
    """Names of the fields of a ``NamedTuple`` class."""
    names: tuple[str, ...] = getattr(record, "_fields", ())
    return names


class Plan(Struct, Generic[Task], frozen=True):
    """The tasks of a kernel on so many cores, and ``emit``, which issues the program of one."""

    tasks: Tasks[Task]
    emit: Callable[[Task], None]


class Least(NamedTuple):
    """A lower bound of a kernel in closed form: ``cycles`` without launches, on ``cores``.

    ``before`` is what it needs to be launched before it, as far as that is known.
    """

    cycles: int = 0
    cores: int = 1
    before: tuple[Kernel, ...] = ()


class Kernel(Abstract):
    """A tiled kernel; subclasses are frozen dataclasses of their tensors and tile sizes.

    Tuning (``npusim.tune``) rests on ``candidates`` and ``least``. A kernel of few choices just
    states ``choices``; one with a field ``tiling`` gives both in its own way.
    """

    name: ClassVar[str]
    #: Which cores run it: "cube" or "vector" (the same cores where a core has both units).
    role: ClassVar[str] = "cube"
    #: Roles of further cores of the same groups that work with them: ``plan`` is asked for each in
    #: turn, and ``k.role`` says for which. They hand data over through GM, ordered by flags.
    partners: ClassVar[tuple[str, ...]] = ()
    #: The result it contributes to ("input", "weight" or "bias"), for reports that tell them apart.
    computes: ClassVar[str] = ""
    #: Fields with tensors of which the problem, a field ``shape``, needs a part: for each the word
    #: by which ``shape.used`` knows it.
    uses: ClassVar[Mapping[str, str]] = {}
    #: What the vendor's library calls it, in measured calls.
    library: ClassVar[tuple[str, ...]] = ()
    #: Whether the rule by which the vendor's library chooses its tiling is known here.
    vendor_rule: ClassVar[bool] = False
    #: Fields that tuning may change, with the values to try: all combinations are candidates.
    choices: ClassVar[Mapping[str, Sequence[Any]]] = {}
    #: Whether ``ranked`` gives bounds that no simulation takes less than in place of estimates.
    #: Automatic tilings are then chosen among all of them that may be the fastest, so that a kernel
    #: which ranks more of them is never slower for it.
    ranks_by_bound: ClassVar[bool] = False

    @property
    def tiling_text(self) -> str:
        """One line for reports: the tile sizes in use.

        That is what the problem leaves of a field ``tiling``, else what ``choices`` names.
        """
        tiling = self.tiling_in_use
        if tiling is not None and str(tiling):
            return str(tiling)
        return ", ".join(f"{name} {getattr(self, name)}" for name in self.choices)

    def used(self, cores: int) -> int:
        """Number of so many cores that ``plan`` divides the work among; the others are left idle.

        All, or those that a field ``cores`` of its tiling leaves.
        """
        return min(cores, getattr(getattr(self, "tiling", None), "cores", None) or cores)

    def idle(self, cores: int) -> str:
        """Sentence on how many of so many cores work, and why, for reports; "" where all do.

        By default nothing is said.
        """
        return ""

    def on_few(self: Own, device: Device, cores: int) -> Own:
        """The same on those of so many cores on which it ends first, launch included.

        Itself where the kernel does not know.
        """
        return self

    @property
    def is_spread(self) -> bool:
        """True if ``on_few`` chose on how many cores it runs."""
        return False

    def on_all_cores(self: Own) -> Own:
        """The same without a limit on the cores that ``plan`` divides the work among.

        Itself where it has none, which a field ``cores`` of its tiling would state.
        """
        tiling = getattr(self, "tiling", None)
        if not getattr(tiling, "cores", None):
            return self
        return replace(self, tiling=replace(tiling, cores=0))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The global tensors it touches, whose roles tell inputs from outputs: those it holds."""
        values = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        tensors: list[Tensor] = []
        for value in values:
            operands = value if isinstance(value, tuple) else (value,)
            tensors += [operand for operand in operands if isinstance(operand, Tensor)]
        return tuple(tensors)

    def candidates(self, device: Device, cores: int) -> Iterator[Kernel]:
        """The same kernel with other tilings for ``cores`` cores: what tuning chooses from.

        Those that turn out to need more memory than there is, or instructions that the device
        lacks, are left out later. By default every combination of ``choices``.
        """
        names = tuple(self.choices)
        for values in product(*(self.choices[name] for name in names)):
            with suppress(ArgumentError):  # the kernel's own checks
                yield replace(self, **dict(zip(names, values, strict=True)))

    def bounded(self, device: Device, cores: int) -> Iterator[tuple[Kernel, Least]]:
        """The candidates, with what each takes at least: by default what ``least`` says of it."""
        for candidate in self.candidates(device, cores):
            yield candidate, candidate.least(device, cores)

    def ranked(
        self, device: Device, cores: int, few: int, warm: Collection[str] = ()
    ) -> list[tuple[float, Kernel]]:
        """The candidates that closed forms hold to be the fastest, at most so many, best first.

        With each the cycles it is estimated to take, with its launch and the kernels ``before`` it.
        Automatic tilings are chosen among these. ``warm`` names the tensors that were just written
        or loaded, so that the L2 may hold them. By default none.
        """
        return []

    def contenders(
        self, device: Device, cores: int, few: int, warm: Collection[str] = ()
    ) -> tuple[Iterable[tuple[float, Kernel]], Iterable[tuple[float, Kernel]]]:
        """Those of ``ranked``, and candidates that lead on lesser devices, with estimates on this.

        The latter are simulated besides, so that a better device is no slower. By default none.
        """
        return self.ranked(device, cores, few, warm), []

    def as_with_less_l2(self, device: Device) -> Iterable[Kernel]:
        """The same as it would be ordered where the L2 is smaller; by default in no other way."""
        return ()

    def foreseen(
        self, alike: Sequence[Kernel], device: Device, cores: int
    ) -> list[tuple[float, Least] | None]:
        """Of kernels that differ from this one in their tilings alone what closed forms say.

        That is the estimate as of ``ranked``, and what each takes at least. None where just the
        program tells: by default of all.
        """
        return [None] * len(alike)

    def least(self, device: Device, cores: int) -> Least:
        """A lower bound in closed form on its simulated cycles on ``cores`` cores of ``device``.

        It decides which candidates are never built. 0 cycles promise nothing.
        """
        return Least()

    @property
    def before(self) -> tuple[Kernel, ...]:
        """Kernels to launch before it on account of its tiling, such as one that clears."""
        return ()

    @property
    def tiling_in_use(self) -> Any:
        """The tile sizes that the problem leaves of a field ``tiling``; None where it has none."""
        ran = getattr(self, "ran", None)
        return getattr(self, "tiling", None) if ran is None else ran

    @property
    def clipped(self) -> Kernel:
        """The same kernel with what its problem leaves of its tiling: equal if two run alike."""
        ran = getattr(self, "ran", None)
        return self if ran is None else with_values(self, tiling=ran)

    @property
    def anywhere(self) -> bool:
        """True if operands in UB may begin at any byte, which no chip permits.

        Of the kernels that ship those that move single elements around need it.
        """
        return False

    @property
    def useful_macs(self) -> int:
        """Multiply-adds that its problem needs, none of them on padding; 0 where unknown."""
        return 0

    @property
    def work_class(self) -> str:
        """The class of work (``npusim.problem.work``) that its measured time belongs to.

        "" is vector work on maps.
        """
        return ""

    @property
    def needed_bytes(self) -> Mapping[str, int]:
        """Bytes of global tensors that its problem needs, by name, of those it needs in part."""
        shape: Any = getattr(self, "shape", None)
        tensors = [(getattr(self, field), what) for field, what in self.uses.items()]
        return {tensor.name: shape.used(what, tensor.size_bytes) for tensor, what in tensors}

    @property
    def roles(self) -> tuple[str, ...]:
        """Its role, and those of its partners."""
        return (self.role, *self.partners)

    @abstractmethod
    def plan(self, k: Language, cores: int) -> Plan[Any]:
        """Declare the buffers (``k.buffer``), and say what the cores do and how.

        Buffers live as long as the kernel runs. ``emit`` of the plan issues the instructions of a
        task through ``k``; all it may depend on is the task and what was fixed here. A kernel
        with ``partners`` gives a plan for each kind of core, over so many ``cores`` of it.
        """


#: Bytes of a row of a table of tasks, and of what is made of it on the way.
_ROW_BYTES = 512


def require_table(tasks: int) -> None:
    """Raise ``CapacityError`` where this computer could not hold a table of so many tasks."""
    require_room(
        f"{tasks:,} tasks; a table of them takes",
        tasks * _ROW_BYTES,
        "simulate a part, such as fewer images",
    )


def in_runs(count: int, cores: int) -> IntArray:
    """Core of each of ``count`` tasks: contiguous runs as equal as possible."""
    return np.arange(count) * min(cores, count) // max(1, count)


def grid(*axes: IntArray) -> list[IntArray]:
    """Every combination of the axes' numbers as columns, the last axis fastest.

    Raises ``CapacityError`` where this computer could not hold a table of so many tasks.
    """
    require_table(prod(map(len, axes)))
    return [column.reshape(-1) for column in np.meshgrid(*axes, indexing="ij")]


def in_pieces(*axes: tuple[int, int]) -> tuple[list[IntArray], list[IntArray]]:
    """Every combination of pieces of axes (size, step), as of ``grid``: firsts, and extents.

    The last piece of an axis has what is left of it.
    """
    firsts = grid(*(np.arange(0, size, step) for size, step in axes))
    sizes = zip(axes, firsts, strict=True)
    return firsts, [np.minimum(step, size - first) for (size, step), first in sizes]
