"""Times of tasks, each simulated once, in processes if there are several."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from pathlib import Path

from msgspec import Struct, field

from npusim.base.dtypes import DType
from npusim.base.errors import NpusimError, StoreError
from npusim.base.records import replace
from npusim.base.workers import Workers
from npusim.networks.plan.tasks import Placed, Task
from npusim.networks.rules.values import Operation
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.timed import Timed
from npusim.problem.convolution import Convolution
from npusim.reuse.answers import answers_in


class Attempt(Struct, frozen=True):
    """The simulation of one task by itself: all that another process needs for it."""

    launcher: OperationLauncher
    store: str | Path | None

    def __call__(self, task: Task) -> Timed:
        """The time of a task, or why it has none; runs of kernels are kept in the store.

        Raises ``StoreError`` where that cannot be used.
        """
        try:
            with answers_in(self.store):
                return Timed(self.launcher.run(task))
        except StoreError:
            raise
        except NpusimError as error:
            return Timed(None, str(error))


class OfLauncher(Struct, frozen=True):
    """Facts of the kernels of a launcher that a plan needs besides their times."""

    launcher: OperationLauncher

    @property
    def c0(self) -> int:
        """Channels of a block."""
        return self.launcher.c0

    @property
    def fractals(self) -> bool:
        """Return whether weights of products are converted to fractals."""
        return self.launcher.fractals

    def as_product(self, operation: Operation, dtype: DType) -> bool:
        """Return whether plain operands of a convolution are multiplied as matrices."""
        return self.launcher.as_product(operation, dtype)

    def replaced(self, operation: Operation, dtype: DType) -> Convolution | None:
        """The convolution whose gradient is computed in place of that of a layer, None for it."""
        return self.launcher.replaced(operation, dtype)


class SimulatedTasks(OfLauncher, frozen=True):
    """Times of tasks, each simulated once, in the processes of ``workers``."""

    store: str | Path | None = None
    workers: Workers = field(default_factory=partial(Workers, 1))
    known: dict[Task, Timed] = field(default_factory=dict)

    def all(self, tasks: Iterable[tuple[str, Task]]) -> None:
        """Simulate tasks; each comes with the name of an operation, the first of equal ones."""
        names: dict[Task, str] = {}
        for name, what in tasks:
            if what not in self.known:
                names.setdefault(what, name)
        new = list(names)
        if self.workers.jobs > 1:
            new.sort(key=_effort, reverse=True)
        if not new:
            return
        progress = self.launcher.options.progress
        with answers_in(self.store):  # opened once for all that are simulated here
            times = self.workers.each(
                self._attempt(),
                new,
                lambda what: f"operation {names[what]}",
                kind=_computation,
                shared=(self.launcher.options.machine,),
            )
            for done, (place, timed) in enumerate(times, 1):
                self.known[new[place]] = timed
                if progress is not None:
                    progress(new[place].operation.kind, "operations", done, len(new))

    def _attempt(self) -> Attempt:
        # What takes reports of progress has long kernels simulated, whatever they take.
        options = self.launcher.options
        options = replace(options, device=options.machine, progress=_ignored)
        return Attempt(replace(self.launcher, options=options), self.store)

    def __getitem__(self, what: Task) -> Timed:
        if what not in self.known:
            self.known[what] = self._attempt()(what)
        return self.known[what]


def _effort(what: Task) -> int:
    """Roughly the instructions of a task: 16x16x16 multiply-adds, and 16 elements that move."""
    macs = getattr(what.operation.layer, "macs", 0)
    return macs // 16**3 + sum(prod(value.shape) for value in what.values) // 16


def _computation(what: Task) -> Task:
    """What tasks have in common whose candidates are the same, whatever the L2 holds."""
    return what._replace(warm=())


class SizedTask(Timed, frozen=True):
    """A task that is not simulated: its time is that of its bytes, at a byte a picosecond."""

    bytes: int = 0

    @property
    def us(self) -> float:
        """Microseconds."""
        return self.bytes * 1e-6


class TasksBySize(OfLauncher, frozen=True):
    """Tasks that nothing simulates, for plans whose sizes are asked for and not their times."""

    def all(self, tasks: Iterable[tuple[str, Task]]) -> None:
        """Simulate nothing."""

    def __getitem__(self, what: Task) -> Timed:
        """A task whose time follows from the bytes of its values."""
        placed = (
            Placed(value, format, self.c0)
            for value, format in zip(what.values, what.formats, strict=True)
        )
        return SizedTask(None, "planned, not simulated", sum(value.size_bytes for value in placed))


def _ignored(kernel: str, phase: str, done: int, total: int) -> None:
    """Take a report of progress and tell nobody."""
