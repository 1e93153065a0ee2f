"""What runs while the engine is not compiled: the reference, until there is more to simulate.

The first simulation on a machine starts the compiler in a process of its own, for whoever comes
later. Small programs do not wait for it: the reference gives the same cycles. Once a process has
simulated ``SMALL`` instructions it waits, and says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.machine.device.spec import Device
from npusim.machine.program.program import Program
from npusim.machine.timing.fast import library
from npusim.machine.timing.l2 import L2State
from npusim.machine.timing.outcome import Held

if TYPE_CHECKING:
    import subprocess

    from npusim.machine.timing.fast.l2 import FastL2

#: Instructions that the reference simulates in a second or two, which a process may have before it
#: waits for the compiler.
SMALL = 60_000

#: Seconds between two signs of life, and between two looks at what the compiler does.
_TOLD_S, _LOOK_S = 10.0, 0.1


def ready() -> bool:
    """Whether the fast engine needs no compiler that takes long: by a library, or Numba's cache."""
    return bool(library.asked(library.SWITCH)) or library.found() is not None or is_cached()


def is_cached() -> bool:
    """Whether Numba's cache is complete."""
    return _cached().is_file()


def _cached() -> Path:
    """The file that says that Numba's cache is complete, for this Python and this Numba."""
    from importlib.metadata import version  # noqa: PLC0415 - of use on a first run only

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return library.folder() / f"complete-{python}-{version('numba')}"


# -- the compiler -----------------------------------------------------------------------------


@contextmanager
def compiling() -> Iterator[bool]:
    """Whether this process is the one that compiles; others find the lock held until it ends."""
    import fcntl  # noqa: PLC0415 - of use on a first run only

    with (library.folder() / "lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def finish() -> None:
    """Note that Numba's cache is complete."""
    _cached().touch()


_started: list[subprocess.Popen[bytes]] = []


def start() -> None:
    """Start the compiler in a process that outlives this one, unless it runs already."""
    with compiling() as nobody_else:
        if _started or not nobody_else:
            return
    import subprocess  # noqa: PLC0415

    command = [sys.executable, "-m", "npusim.ahead", "--cache"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=library.engine_of_children("numba"),
        )
    except OSError:  # no room for a process: whoever needs the engine compiles it
        return
    _started.append(process)


def wait() -> None:
    """Return when the fast engine is ready, and tell on stderr what takes so long.

    What is told are whole lines, as a bar of progress may be drawn meanwhile. Where the compiler
    fails Numba compiles at the first call, in this process.
    """
    if ready():
        return
    start()
    _say("npusim compiles its engine, once on this machine: half a minute of one core")
    begin = told = time.monotonic()
    while not _is_there() and _is_coming():
        time.sleep(_LOOK_S)
        if time.monotonic() - told > _TOLD_S:
            told = time.monotonic()
            _say(f"still compiling after {told - begin:.0f} s")
    there = _is_there()
    _say("compiled" if there else "the compiler ended without it: it is compiled in this process")


#: Instructions that were simulated before anything was compiled, and what takes as long.
_simulated = [0]


def allows(instructions: int) -> bool:
    """Whether so much more may run uncompiled; if not, what is compiled is there now."""
    if ready():
        return False
    start()
    _simulated[0] += instructions
    if _simulated[0] <= SMALL:
        return True
    wait()
    return False


def _is_there() -> bool:
    library.found.cache_clear()
    return ready()


def _is_coming() -> bool:
    """Whether a process compiles, or is about to."""
    if any(process.poll() is None for process in _started):
        return True
    with compiling() as nobody_else:
        return not nobody_else


def _say(text: str) -> None:
    from multiprocessing import parent_process  # noqa: PLC0415

    # Of several workers one is enough, and a daemon has no standard error.
    if sys.stderr is not None and (_started or parent_process() is None):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


# -- the L2 -------------------------------------------------------------------------------------


class StandbyL2:
    """The L2 of a call in the form of the reference, until a program asks for the fast engine."""

    def __init__(self, device: Device, held: Held | None = None) -> None:
        self.device = device
        state = L2State(device.l2)
        self.inside: L2State | FastL2 = state
        self._sizes: dict[str, int] = dict(held.sizes) if held else {}
        if held:
            state.hold(held.content())

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        self._sizes[tensor] = size
        self.inside.preload(tensor, size)

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""
        return self.inside.content()

    def resident(self) -> Mapping[str, int]:
        """Bytes by tensor, in whole sectors; tensors without any may be missing."""
        return self.inside.resident()

    def held(self) -> Held:
        """What it holds, as data."""
        if isinstance(self.inside, L2State):
            return Held.of(self.inside.content(), self._sizes)
        return self.inside.held()

    def for_program(self, program: Program) -> L2State | FastL2:
        """What the engine works on that is to run ``program``: the reference if it is short."""
        self._sizes |= {t.name: t.size_bytes for t in program.tensors}
        if not isinstance(self.inside, L2State) or allows(program.instructions):
            return self.inside
        from npusim.machine.timing.fast.l2 import FastL2  # noqa: PLC0415 - may load a compiler

        self.inside = FastL2.of(self.device.l2, self.held())
        return self.inside
