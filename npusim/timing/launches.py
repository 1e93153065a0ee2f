"""Kernels launched one after another, timed; those that were timed before are not simulated again.

The run of a kernel depends on the kernels launched before it, whose data the L2 still holds, and on
the figures of the device that the programs and the engine ask for. It is kept by these
(``npusim.device.answers``), so that after one changed figure only what this figure touches runs
anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache, partial
from typing import Any

from npusim.device.answers import Answers
from npusim.device.seen import Name, Seen, names_of
from npusim.device.spec import Device
from npusim.dtypes import DType
from npusim.program.build import build
from npusim.program.kernel import Kernel
from npusim.program.program import Program
from npusim.timing.outcome import L2, Progress
from npusim.timing.problem import needed_bytes
from npusim.timing.run import new_l2, time_program, wants_timeline
from npusim.timing.starts import are_usual
from npusim.timing.trace import Bound, KernelRun, PipeRow, PipeRows, TrafficRow


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A kernel that was timed: its run, and what its program tells besides.

    ``figures`` are those its instructions rest on, ``read`` the bytes by tensor that its problem
    reads, and ``emitted`` counts the instructions of its distinct tasks.
    """

    run: KernelRun
    pipes: tuple[str, ...]
    figures: frozenset[str]
    read: Mapping[str, int]
    emitted: int


class Launches:
    """Times kernels on some core groups of a device, from an L2 that is empty at first."""

    def __init__(self, device: Device, groups: tuple[int, ...], engine: str = "fast") -> None:
        self.device, self.groups, self.engine = device, groups, engine
        self._seen = Seen(device)
        self._key: str | None = repr(groups) if engine == "fast" else None
        self._state: L2 | None = None
        self._left: list[tuple[str, int] | Kernel] = []  # what the state lacks
        self._names: frozenset[Name] = frozenset()  # of runs that were known, and programs given

    @property
    def names(self) -> frozenset[Name]:
        """The figures that everything so far rests on."""
        return self._names | self._seen.names

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        self._left.append((tensor, size))
        self._key = _next(self._key, f"{tensor!r} {size}")

    @property
    def l2(self) -> L2:
        """The L2 as it is now; kernels that were not simulated so far are."""
        if self._state is None:
            self._state = new_l2(self._seen.device, self.engine)
        left, self._left = self._left, []
        for step in left:
            if isinstance(step, Kernel):
                time_program(self.build(step), self._state, timeline=False)
            else:
                self._state.preload(*step)
        return self._state

    def build(self, kernel: Kernel) -> Program:
        """The program of a kernel; raises as ``npusim.program.build.build`` does."""
        return build(kernel, self._seen.device, self.groups)

    def known(self, *kernels: Kernel, timeline: bool | None = False) -> list[Launched] | None:
        """Launch ``kernels`` if the runs of all are known; None, and nothing done, if not."""
        if timeline or not are_usual():
            return None
        key, found = self._key, []
        for kernel in kernels:
            key = _next(key, content(kernel)) if key is not None else None
            held = RUNS.find(key, self.device) if key is not None else None
            if held is None or wants_timeline(held.answer.run.instructions, timeline):
                return None
            found.append(held)
        self._key = key
        self._names = self._names.union(*(held.names for held in found))
        self._left += kernels
        return [held.answer for held in found]

    def time(
        self,
        kernel: Kernel,
        program: Program,
        *,
        timeline: bool | None = False,
        progress: Progress | None = None,
    ) -> Launched:
        """Launch ``kernel``, whose ``program`` this is, and simulate it.

        Raises ``ProgramError`` if the program hangs or leaves a tensor.
        """
        run = time_program(program, self.l2, timeline=timeline, progress=progress)
        made = Launched(
            run=run,
            pipes=program.pipes,
            figures=frozenset(program.figures),
            read=needed_bytes(program).read,
            emitted=program.emitted,
        )
        noted = names_of(program.device)
        self._key = self._after(kernel) if noted else None
        self._names |= noted
        if self._key is not None and are_usual():
            kept = replace(made, run=replace(run, timeline=None))
            RUNS.keep(self._key, self.device, self.names, kept)
        return made

    def _after(self, kernel: Kernel) -> str | None:
        """The key of what is so far, and ``kernel`` after it; None where it has none."""
        return _next(self._key, content(kernel)) if self._key is not None else None


def _next(key: str | None, step: str | None) -> str | None:
    if key is None or step is None:
        return None
    return hashlib.sha256(f"{key}\n{step}".encode()).hexdigest()[:32]


#: Packages whose classes are known by the sources of npusim.
_OURS = ("npusim.",)


def content(kernel: Kernel) -> str | None:
    """All that a kernel's program depends on besides the device, as text.

    None where it is not known: of kernels that are no part of npusim, and of fields that hold
    other things than numbers, words and records of them.
    """
    try:
        return _content(kernel)
    except TypeError:
        return None


def _content(value: Any) -> str:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_content, value))})"
    return _record(value)


@lru_cache(maxsize=1024)
def _record(value: Any) -> str:
    """A kernel or what it is made of, of which others are made too."""
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith(_OURS):
        parts = (f"{f.name}={_content(getattr(value, f.name))}" for f in fields(value))
        return f"{kind.__module__}.{kind.__qualname__}({','.join(parts)})"
    raise TypeError(kind)


def _written(made: Launched) -> dict[str, Any]:
    """``made`` as JSON has it."""
    own = {f.name: getattr(made.run, f.name) for f in fields(made.run)}
    own["pipes"] = json.dumps([*made.run.pipes])  # a text of its own, which few will read
    return {
        "run": own,
        "pipes": made.pipes,
        "figures": sorted(made.figures),
        "read": dict(made.read),
        "emitted": made.emitted,
    }


def _read(stored: dict[str, Any]) -> Launched:
    run = stored["run"]
    run["pipes"] = PipeRows(partial(_pipe_rows, run["pipes"]))
    run["traffic"] = tuple(TrafficRow(*row) for row in run["traffic"])
    for name in ("bounds", "problem_bounds"):
        run[name] = tuple(Bound(*row) for row in run[name])
    return Launched(
        run=KernelRun(**run),
        pipes=tuple(stored["pipes"]),
        figures=frozenset(stored["figures"]),
        read=stored["read"],
        emitted=stored["emitted"],
    )


def _pipe_rows(text: str) -> list[PipeRow]:
    return [PipeRow(core, pipe, tuple(cycles)) for core, pipe, cycles in json.loads(text)]


#: Runs of this process.
RUNS = Answers("run", 1024, _written, _read)
