"""Kernels of tests: buffers, tasks and the program of a task as three methods that share state."""

from __future__ import annotations

from abc import abstractmethod
from collections import namedtuple
from collections.abc import Mapping
from functools import partial
from typing import Any

from npusim.base.integers import IntArray
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Column, Kernel, Plan, Tasks
from npusim.machine.program.language import Language


class Scripted(Kernel):
    """A kernel whose tests look at what its last plan declared."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that are attributes, in the order in which they were made."""
        return tuple(value for value in vars(self).values() if isinstance(value, Tensor))

    @abstractmethod
    def tasks(self, cores: int) -> Tasks[Any]:
        """Say which core does what."""

    @abstractmethod
    def buffers(self, k: Language) -> None:
        """Declare the buffers, as attributes."""

    @abstractmethod
    def emit(self, k: Language, task: Any) -> None:
        """Issue the instructions of a task."""

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        self.buffers(k)
        return Plan(self.tasks(cores), partial(self.emit, k))


def tasks_of(
    core: IntArray, columns: Mapping[str, Column], bases: Mapping[str, IntArray] | None = None
) -> Tasks[Any]:
    """A table with a record of its own, with a field for each column."""
    record = namedtuple("Row", list(columns))  # type: ignore[misc]
    return Tasks(core, record, columns, bases or {})
