"""How far a long run is, on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Seconds after which a run is long enough to be told about.
DELAY_S = 1.0

#: Seconds between lines where there is no terminal.
EVERY_S = 60.0


class ProgressBar:
    """Context manager that is a ``npusim.call.Progress``: a bar on stderr, gone at the end.

    For terminals; it is shown if the run lasts longer than ``delay_s`` seconds.
    """

    def __init__(self, delay_s: float = DELAY_S) -> None:
        self._delay_s = delay_s
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        """Start the clock."""
        self._begin = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, kernel: str, phase: str, done: int, total: int) -> None:
        """Take note of ``done`` of ``total`` instructions of a kernel's phase."""
        if time.monotonic() - self._begin < self._delay_s:
            return
        text, unit = _told(kernel, phase)
        if self._bar is None or self._task is None:  # phases follow each other: one line is enough
            self._bar = _bar()
            self._task = self._bar.add_task(text, completed=done, total=total, unit=unit)
            self._bar.start()
        self._bar.update(self._task, description=text, completed=done, total=total, unit=unit)


class ProgressLines:
    """Context manager that is a ``npusim.call.Progress`` where there is no terminal.

    Now and then a line on stderr says how far the run is.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s

    def __enter__(self) -> ProgressLines:
        """Start the clock."""
        self._told = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the lines."""

    def __call__(self, kernel: str, phase: str, done: int, total: int) -> None:
        """Take note of ``done`` of ``total`` instructions of a kernel's phase."""
        now = time.monotonic()
        if now - self._told >= self._every_s:
            self._told = now
            text, unit = _told(kernel, phase)
            print(f"{text}, {done:,} of {total:,} {unit}", file=sys.stderr)


def _told(kernel: str, phase: str) -> tuple[str, str]:
    """What is being done, and what is counted."""
    return (kernel, phase) if phase == "layers" else (f"{kernel}: {phase}", "instructions")


def _bar() -> Progress:
    # Short runs do not wait for its import.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=8),  # leaves room for names at 80 columns
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        console=Console(stderr=True),
        transient=True,
    )
