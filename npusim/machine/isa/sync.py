"""Ordering: flags between pipes, pipe barriers, and barriers and flags between cores.

These have no effect on arrays. Lowering turns flags and pipe barriers into waits; the engines
know barriers and flags between cores.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from npusim.base.errors import ProgramError
from npusim.base.records import Record
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Await, Cost, Instruction, MemoryView, Signal


class _Ordering(Instruction, Record, frozen=True):
    """Common part: no operands in memory, no effect on arrays."""

    #: The figure of the device's ``sync`` that it takes.
    takes: ClassVar[str]

    on: str  # the pipe that executes it

    @property
    def pipe(self) -> str:
        return self.on

    def cost(self, device: Device) -> Cost:
        return Cost(cycles=getattr(device.sync, self.takes))

    def figures(self) -> tuple[str, ...]:
        return ("sync",)

    def execute(self, memory: MemoryView) -> None:
        """Nothing: order is kept by running the program in order."""


class _PipeFlag(_Ordering, frozen=True):
    """A flag between two pipes of a core, whose id the device knows."""

    takes: ClassVar[str] = "flag_cycles"

    @property
    @abstractmethod
    def flag(self) -> tuple[str, str, int]:
        """From which pipe to which, and its id."""

    def check(self, device: Device) -> None:
        src, dst, event = self.flag
        if src == dst:
            raise ProgramError(f"flag {src}->{dst}: a pipe is in order already, use two pipes")
        if not 0 <= event < device.sync.event_ids:
            raise ProgramError(
                f"flag id {event}: {device.name} has ids 0 to {device.sync.event_ids - 1}"
            )

    def __str__(self) -> str:
        src, dst, event = self.flag
        return f"{self.op} {src}->{dst} #{event}"


class SetFlag(_PipeFlag, frozen=True):
    """Raise flag ``event`` from pipe ``on`` to pipe ``to`` once earlier work of ``on`` is done."""

    to: str
    event: int

    @property
    def flag(self) -> tuple[str, str, int]:
        return self.on, self.to, self.event


class WaitFlag(_PipeFlag, frozen=True):
    """Hold pipe ``on`` until flag ``event`` from pipe ``src`` is up, then clear it."""

    src: str
    event: int

    @property
    def flag(self) -> tuple[str, str, int]:
        return self.src, self.on, self.event


class PipeBarrier(_Ordering, frozen=True):
    """Later work of ``on`` starts after all earlier work of it; on "S" it drains every pipe."""

    takes: ClassVar[str] = "pipe_barrier_cycles"

    @property
    def drains(self) -> bool:
        return self.on == "S"

    def __str__(self) -> str:
        return f"pipe_barrier {'ALL' if self.on == 'S' else self.on}"


class CoreBarrier(_Ordering, frozen=True):
    """All cores of the kernel meet: each drains its pipes, then waits for the others."""

    takes: ClassVar[str] = "core_barrier_cycles"
    meets: ClassVar[bool] = True
    between_cores: ClassVar[bool] = True

    def __str__(self) -> str:
        return "core_barrier"


class _CoreFlag(_Ordering, frozen=True):
    """A flag between cores."""

    takes: ClassVar[str] = "core_flag_cycles"
    between_cores: ClassVar[bool] = True

    def check_event(self, event: int, device: Device) -> None:
        """Refuse an id that cores have no flag for."""
        if not 0 <= event < device.sync.core_event_ids:
            raise ProgramError(
                f"{self}: {device.name} has flags between cores with ids 0 to "
                f"{device.sync.core_event_ids - 1}"
            )


class CoreSetFlag(_CoreFlag, frozen=True):
    """Set a flag on every other core of a scope, as ``signals`` says."""

    signals: Signal

    def check(self, device: Device) -> None:
        scope = self.signals.scope
        if scope not in ("group", "all"):
            raise ProgramError(f"core_set_flag scope is {scope!r}; it is 'group' or 'all'")
        self.check_event(self.signals.event, device)

    def __str__(self) -> str:
        return f"core_set_flag #{self.signals.event} ({self.signals.scope}) on {self.on}"


class CoreWaitFlag(_CoreFlag, frozen=True):
    """Hold pipe ``on`` until a flag of this core has counted as much more as ``awaits`` says."""

    awaits: Await

    def check(self, device: Device) -> None:
        if self.awaits.more < 1:
            raise ProgramError(f"{self}: the count must be at least 1")
        self.check_event(self.awaits.event, device)

    def __str__(self) -> str:
        return f"core_wait_flag #{self.awaits.event} x{self.awaits.more} on {self.on}"
