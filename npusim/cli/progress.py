"""How far a long run is, on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

#: Seconds after which a run is long enough to be told about.
DELAY_S = 1.0


class ProgressBar:
    """Context manager that is a ``npusim.session.Progress``: a bar on stderr, gone at the end.

    Shown only if stderr is a terminal and the run lasts longer than ``delay_s`` seconds.
    """

    def __init__(self, delay_s: float = DELAY_S) -> None:
        self._delay_s = delay_s
        self._wanted = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __enter__(self) -> ProgressBar:
        """Start the clock."""
        self._begin = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, kernel: str, phase: str, done: int, total: int) -> None:
        """Take note of ``done`` of ``total`` instructions of a kernel's phase."""
        if not self._wanted or time.monotonic() - self._begin < self._delay_s:
            return
        if self._bar is None:
            self._bar = _started()
        key = (kernel, phase)
        if key not in self._tasks:
            for other in self._tasks.values():  # phases follow each other: one line is enough
                self._bar.update(other, visible=False)
            self._tasks[key] = self._bar.add_task(f"{kernel}: {phase}", total=total)
        self._bar.update(self._tasks[key], completed=done)


def _started() -> Progress:
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("instructions"),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    return bar
