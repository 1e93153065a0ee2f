"""How far a long run is, on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress
    from typing_extensions import Self

#: Seconds after which a run is long enough to be told about.
DELAY_S = 1.0

#: Seconds between lines where there is no terminal.
EVERY_S = 60.0


class Bar:
    """Context manager of a bar on stderr, gone at the end.

    It is shown once a run lasts longer than ``delay_s`` seconds, with the time ``left`` if asked.
    """

    def __init__(self, delay_s: float = DELAY_S, *, left: bool = False) -> None:
        self._delay_s, self._left = delay_s, left
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        """Start the clock."""
        self._begin = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    @property
    def speed(self) -> float | None:
        """How many are done in a second of late; None while that is not known."""
        return None if self._bar is None else self._bar.tasks[0].speed

    def show(self, text: str, done: int, total: int, unit: str) -> None:
        """Take note that ``done`` of ``total`` of a unit are done of what ``text`` says."""
        if time.monotonic() - self._begin < self._delay_s:
            return
        if self._bar is None:  # phases follow each other: one line is enough
            self._bar = _bar(self._left)
            self._task = self._bar.add_task(text, completed=done, total=total, unit=unit)
            self._bar.start()
        self._bar.update(self._task, description=text, completed=done, total=total, unit=unit)


class ProgressBar(Bar):
    """A bar that is a ``npusim.call.Progress``, for terminals."""

    def __call__(self, kernel: str, phase: str, done: int, total: int) -> None:
        """Take note of ``done`` of ``total`` instructions of a kernel's phase."""
        text, unit = _told(kernel, phase)
        self.show(text, done, total, unit)


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


def _bar(left: bool) -> Progress:
    # Short runs do not wait for its import.
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=8),  # leaves room for names at 80 columns
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}"),
        *([progress.TimeRemainingColumn()] if left else []),
        console=Console(stderr=True),
        transient=True,
    )
