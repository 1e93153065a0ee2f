"""The kernel language for ordering: flags, pipe barriers, and barriers and flags of cores."""

from __future__ import annotations

from npusim.errors import ProgramError
from npusim.isa import CoreBarrier, CoreSetFlag, CoreWaitFlag, PipeBarrier, SetFlag, WaitFlag
from npusim.program.recorder import Recorder


class OrderLanguage(Recorder):
    """Explicit order beyond the waits that slots imply."""

    def set_flag(self, src: str, dst: str, event: int) -> None:
        """Raise a flag from pipe ``src`` to pipe ``dst`` (0 <= event < the device's ids)."""
        self._check_flag(src, dst, event)
        self._issue(SetFlag(src, dst, event))

    def wait_flag(self, src: str, dst: str, event: int) -> None:
        """Hold pipe ``dst`` until the flag from ``src`` is up."""
        self._check_flag(src, dst, event)
        self._issue(WaitFlag(dst, src, event))

    def pipe_barrier(self, pipe: str = "ALL") -> None:
        """Order one pipe after itself, or drain every pipe ("ALL")."""
        self._issue(PipeBarrier("S" if pipe == "ALL" else pipe))

    def core_barrier(self) -> None:
        """Meet all other cores of the kernel."""
        self._issue(CoreBarrier("S"))

    def core_set_flag(self, pipe: str, event: int, scope: str = "all") -> None:
        """Count a flag up on the other cores of the "group" or on "all" others."""
        if scope not in ("group", "all"):
            raise ProgramError(f"core_set_flag scope is {scope!r}; it is 'group' or 'all'")
        self._issue(CoreSetFlag(pipe, event, scope))

    def core_wait_flag(self, pipe: str, event: int, count: int = 1) -> None:
        """Hold a pipe until ``count`` more counts of the flag arrived."""
        self._issue(CoreWaitFlag(pipe, event, count))

    def _check_flag(self, src: str, dst: str, event: int) -> None:
        if src == dst:
            raise ProgramError(f"flag {src}->{dst}: a pipe is in order already, use two pipes")
        if not 0 <= event < self.device.sync.event_ids:
            raise ProgramError(
                f"flag id {event}: {self.device.name} has ids 0 to {self.device.sync.event_ids - 1}"
            )
