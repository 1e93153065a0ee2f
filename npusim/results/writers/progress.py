"""How far a long run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from npusim.base.streams import stderr_is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress
    from typing_extensions import Self

#: Seconds after which a run is long enough to be told about.
DELAY_S = 1.0

#: Seconds between two pictures of a bar.
_EVERY_S = 0.2

#: Seconds between lines where there is no terminal.
EVERY_S = 60.0


class Bar:
    """Context manager of a bar on stderr, gone at the end; of lines where stderr is no terminal.

    It is shown once a run lasts longer than ``delay_s`` seconds, with the time ``left`` if asked.
    Lines come every ``EVERY_S`` seconds, as far as something is reported.
    """

    def __init__(self, delay_s: float = DELAY_S, *, left: bool = False) -> None:
        self._delay_s, self._left = delay_s, left
        self._bar: Progress | None = None
        self._drawn = 0.0

    def __enter__(self) -> Self:
        """Start the clock."""
        self._begin = self._last_line = time.monotonic()
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
        now = time.monotonic()
        if not stderr_is_terminal():
            if now - self._last_line >= EVERY_S and sys.stderr is not None:
                self._last_line = now
                print(f"{text}, {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)
            return
        if now - self._begin < self._delay_s:
            return
        if self._bar is None:  # phases follow each other: one line is enough
            self._bar = _bar(self._left)
            self._task = self._bar.add_task(text, completed=done, total=total, unit=unit)
            self._bar.start()
        self._bar.update(self._task, description=text, completed=done, total=total, unit=unit)
        if now - self._drawn >= _EVERY_S:
            self._drawn = now
            self._bar.refresh()


class ProgressBar(Bar):
    """A bar that is a ``npusim.call.Progress``."""

    def __call__(self, kernel: str, phase: str, done: int, total: int) -> None:
        """Take note of ``done`` of ``total`` instructions of a kernel's phase."""
        counted = phase in ("layers", "operations", "planned batches")
        text, unit = (kernel, phase) if counted else (f"{kernel}: {phase}", "instructions")
        self.show(text, done, total, unit)


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
        auto_refresh=False,  # by a thread, beside which no process can be copied
    )


T = TypeVar("T")

#: Whether there is a bar already: the networks of a sweep have none of their own.
_SHOWN: ContextVar[bool] = ContextVar("shown", default=False)


@contextmanager
def in_notebooks(given: T | None, told: Callable[..., tuple[str, int, int]]) -> Iterator[T | Any]:
    """``given``, or in a notebook a bar where nothing was given; it is gone at the end.

    ``told`` makes (text, done, total) of the arguments that a report of progress has. A bar is
    shown once a run lasts longer than ``DELAY_S`` seconds.
    """
    if given is not None or _SHOWN.get() or not _is_notebook():
        yield given
        return
    bar, before = _Bar(), _SHOWN.set(True)
    try:
        yield lambda *words: bar.show(*told(*words))
    finally:
        _SHOWN.reset(before)
        bar.close()


def of_points(done: int, total: int, known: int) -> tuple[str, int, int]:
    """The progress of a study."""
    return f"points, {known:,} of them known" if known else "points", done, total


def of_layers(kernel: str, phase: str, done: int, total: int) -> tuple[str, int, int]:
    """The progress of a network; a layer that is being simulated says which one it is."""
    name, _, place = kernel.partition(" (")
    number, slash, count = place.partition(")")[0].partition("/")
    if slash and phase != "layers":
        return name, int(number) - 1, int(count)
    return name, done, total


def _is_notebook() -> bool:
    """True if a Jupyter kernel runs this: without one, IPython is not even looked for."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class _Bar:
    """A progress element that is drawn anew in its place."""

    def __init__(self) -> None:
        self._next = time.monotonic() + DELAY_S
        self._begun = time.monotonic()
        self._handle: Any = None

    def show(self, text: str, done: int, total: int) -> None:
        """Draw the bar if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        remaining_s = (now - self._begun) * (total - done) / done if done else 0.0
        self._draw(
            f'<progress value="{done}" max="{total}"></progress> {done:,} of {total:,} '
            f"{escape(text)}{f', about {remaining_s:,.0f} s left' if remaining_s >= 1 else ''}"
        )

    def close(self) -> None:
        """Leave nothing behind but an empty output."""
        if self._handle is not None:
            self._draw("")

    def _draw(self, html: str) -> None:
        data = {"text/html": html, "text/plain": ""}
        if self._handle is None:
            display = import_module("IPython.display").display  # it is there: this is a notebook
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
