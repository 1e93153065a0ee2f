"""Kernels launched one after another, timed; those that were timed before are not simulated again.

The run of a kernel depends on what the L2 holds from the kernels launched before it, and on the
figures of the device that its program and the engine ask for. It is kept by these
(``npusim.reuse.cache``), so that after one changed figure only what this figure touches runs
anew.

A call is timed again on another device in the same way, and so are told the figures its time
depends on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
from msgspec import structs

from npusim.base.digests import code_of, content_of, look_again
from npusim.base.integers import IntArray
from npusim.base.records import replace
from npusim.machine.device.parts import AT_MOST, ENERGY
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.program import Program
from npusim.machine.program.recost import recosted, structure
from npusim.machine.timing.outcome import L2, Held, Progress
from npusim.machine.timing.run import (
    Launched,
    Launches,
    new_l2,
    time_cycles,
    trace_causes,
    trace_program,
    wants_timeline,
)
from npusim.machine.timing.trace import (
    Bound,
    KernelRun,
    PipeRow,
    PipeRows,
    Timeline,
    Trace,
    TrafficRow,
    are_usual,
)
from npusim.reuse.cache import Answers, Name, Seen, names_of

#: Bytes of the largest content that is kept; L2s of very small blocks are simulated anew.
MOST_BYTES = 1 << 20


class CachedLaunches(Launches):
    """``Launches`` that simulates no kernel whose run is known.

    A run is kept by the kernel, by what the L2 held before it, and by the figures that its own
    program and the engine asked for; what the L2 held after it is kept beside. Of kernels that are
    known nothing is simulated, whatever became of those before them, as long as these leave the
    L2 as it was.
    """

    def __init__(self, device: Device, groups: tuple[int, ...], engine: str = "fast") -> None:
        look_again()
        super().__init__(device, groups, engine)
        self._cache = Seen(device)  # asked for the L2 alone
        self._built: list[Seen] = []  # asked for programs, each for one
        self._names: frozenset[Name] = frozenset()  # of runs that were known, and programs given
        self._key: str | None = "empty" if engine == "fast" else None  # of the L2 as it is
        self._last: tuple[str, frozenset[Name]] | None = None  # the run that left an L2 unnamed
        self._left: list[tuple[tuple[str, int] | Kernel, str | None]] = []  # what the state lacks

    @property
    def names(self) -> frozenset[Name]:
        """The figures that everything so far rests on."""
        return self._names.union(self._cache.names, *(one.names for one in self._built))

    def preload(self, tensor: str, size: int) -> None:
        key = self._now()
        self._key = _next(key, f"{tensor!r} {size}") if key is not None else None
        self._last = None
        self._left.append(((tensor, size), self._key))

    @property
    def l2(self) -> L2:
        """The L2 as it is now; kernels that left one that is not kept are simulated again."""
        left, self._left = self._left, []
        for at in reversed(range(len(left))):
            step, key = left[at]
            kept = CONTENTS.find(key, self.device) if key and isinstance(step, Kernel) else None
            if kept is not None:
                self._state = new_l2(self._cache.device, self.engine, kept.answer)
                left = left[at + 1 :]
                break
        if self._state is None:
            self._state = new_l2(self._cache.device, self.engine)
        for step, _ in left:
            if isinstance(step, Kernel):
                super().time(step, self.build(step))
            else:
                self._state.preload(*step)
        return self._state

    def _now(self) -> str | None:
        """A key of what the L2 holds; None with the reference engine, whose runs are not kept."""
        if self._key is None and self.engine == "fast":
            found = LEFT.find(self._last[0], self.device) if self._last and self._left else None
            if found is not None:
                self._key = found.answer
                self._left[-1] = (self._left[-1][0], self._key)
            else:
                self._key = self._name_held()
        return self._key

    def _name_held(self) -> str:
        """The key of what the L2 holds, by looking at it; it is kept."""
        held: Held = cast(Any, self.l2).held()  # with the engine that is not the reference
        if held.blocks.nbytes <= MOST_BYTES:
            CONTENTS.keep(held.digest, self.device, (), held)
        if self._last is not None:
            LEFT.keep(self._last[0], self.device, self._last[1], held.digest)
        return held.digest

    def build(self, kernel: Kernel) -> Program:
        self._built.append(Seen(self.device))
        return build(kernel, self._built[-1].device, self.groups)

    def known(self, kernel: Kernel, *, timeline: bool | None = False) -> Launched | None:
        key = None if timeline else self._key_of(kernel)
        found = RUNS.find(key, self.device) if key is not None else None
        if found is None:
            return None
        made = found.answer
        if wants_timeline(made.run.instructions, timeline):
            kept = _TIMELINES.get((key, self.device.digest()))
            if kept is None:
                return None
            made = replace(made, run=replace(made.run, timeline=kept))
        self._key, self._last = None, (cast(str, key), found.names)
        self._left.append((kernel, None))
        self._names |= found.names
        return made

    def time(
        self,
        kernel: Kernel,
        program: Program,
        *,
        timeline: bool | None = False,
        progress: Progress | None = None,
    ) -> Launched:
        key = self._key_of(kernel)
        made = super().time(kernel, program, timeline=timeline, progress=progress)
        self._key = self._last = None
        noted = names_of(program.device)
        self._names |= noted
        if key is not None and noted:
            self._last = key, noted | self._cache.names
            kept = replace(made, run=replace(made.run, timeline=None))
            RUNS.keep(key, self.device, self._last[1], kept)
            if made.run.timeline is not None and made.run.instructions <= _SHORT:
                _TIMELINES[key, self.device.digest()] = made.run.timeline
                if len(_TIMELINES) > _TIMELINES_KEPT:
                    _TIMELINES.popitem(last=False)
        return made

    def _key_of(self, kernel: Kernel) -> str | None:
        """The key of a run of ``kernel`` now; None where it has none."""
        what = content(kernel) if are_usual() else None
        key = self._now() if what is not None else None
        return _next(key, f"{self.groups} {what}") if key is not None else None


def _next(key: str, step: str) -> str:
    return hashlib.sha256(f"{key}\n{step}".encode()).hexdigest()[:32]


def content(kernel: Kernel) -> str | None:
    """All that a kernel's program depends on besides the device, as text.

    None where it is not known: of kernels that are no part of npusim, and of fields that hold
    other things than numbers, words and records of them.
    """
    try:
        return f"{content_of(kernel)} {code_of(type(kernel))}"
    except TypeError:
        return None


def _written(made: Launched) -> dict[str, Any]:
    """``made`` as JSON has it."""
    own = structs.asdict(made.run)
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
RUNS: Answers[Launched] = Answers("run", 1024, _written, _read)

#: Timelines of the latest short runs, by the run's key and the device; instructions of such a run.
_TIMELINES: OrderedDict[tuple[str | None, str], Timeline] = OrderedDict()
_TIMELINES_KEPT, _SHORT = 64, 20_000

#: What the L2 held after a run, by the run's key: the key of ``CONTENTS``.
LEFT: Answers[str] = Answers("left", 1024, str, str)


def _content_written(held: Held) -> dict[str, Any]:
    """``held`` as JSON has it."""
    packed = zlib.compress(held.blocks.tobytes(), 1)
    return {"sizes": held.sizes, "blocks": base64.b85encode(packed).decode()}


def _content_read(stored: dict[str, Any]) -> Held:
    blocks = np.frombuffer(zlib.decompress(base64.b85decode(stored["blocks"])), np.int64)
    return Held(tuple((name, size) for name, size in stored["sizes"]), blocks.reshape(4, -1))


#: Contents that kernels left, by their digest.
CONTENTS: Answers[Held] = Answers("l2", 256, _content_written, _content_read)


# -- a call timed again ----------------------------------------------------------------------------


#: What takes part in the time of a call: an input that is in L2 already, or a launch.
Step = Tensor | Kernel


@dataclass(eq=False, repr=False)
class Again:
    """Times the steps of a call, tiled as they were, on variants of its device.

    ``figures`` are those its time rests on. Programs are kept by structure, so that variants which
    differ in figures only pay for what these figures cost; those of the call's own structure are
    built for its ``device``, from which variants differ least. Holds no arrays.
    """

    steps: tuple[Step, ...]
    figures: tuple[str, ...]
    groups: tuple[int, ...]
    engine: str
    device: Device
    _built: dict[tuple[int, Hashable], Program] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        """One line: steps and figures."""
        return f"<Again: {len(self.steps)} steps, {len(self.figures)} figures>"

    def time_us(self, device: Device) -> float:
        """Microseconds on ``device``."""
        return device.time_us(sum(time_cycles(*step) for step in self._programs(device)))

    def traces(self, device: Device) -> tuple[Trace, ...]:
        """What the time of every kernel rests on, in the order of launches."""
        return tuple(trace_program(program, l2) for program, l2 in self._programs(device))

    def programs(self, device: Device) -> tuple[Program, ...]:
        """The program of every kernel, in the order of launches."""
        return tuple(program for program, _ in self._programs(device))

    def spread_us(self, device: Device) -> float | None:
        """Microseconds with vector kernels on the cores that ``device`` favours.

        None where these are those they run on, so that ``time_us`` says it.
        """
        steps = tuple(self._spread(step, device) for step in self.steps)
        if steps == self.steps:
            return None
        again = Again(steps, self.figures, self.groups, self.engine, device)
        for (place, key), program in self._built.items():
            if steps[place] == self.steps[place]:
                again._built[place, key] = program
        return again.time_us(device)

    def _spread(self, step: Step, device: Device) -> Step:
        if isinstance(step, Tensor) or not step.is_spread:
            return step
        return step.on_few(device, len(self.groups) * device.core_kind(step.role).per_group)

    def on_all_cores_us(self, place: int) -> float | None:
        """Microseconds with kernel ``place`` on all the cores of its groups.

        None where nothing but its own plan limits them.
        """
        kernel = self._kernels[place]
        wider = kernel.on_all_cores()
        if wider == kernel:
            return None
        return self._time_with(place, build(wider, self.device, self.groups))

    def evenly_us(self, place: int) -> float | None:
        """Microseconds with the tasks of kernel ``place`` dealt out evenly to its cores.

        None where cores of several kinds work together, whose tasks belong to each other, and where
        a tiling says how many cores have tasks.
        """
        kernel = self._kernels[place]
        if kernel.partners or kernel.on_all_cores() != kernel:
            return None
        return self._time_with(place, build(kernel, self.device, self.groups, evenly=True))

    @property
    def _kernels(self) -> list[Kernel]:
        return [step for step in self.steps if isinstance(step, Kernel)]

    def _time_with(self, place: int, program: Program) -> float:
        """Microseconds with another program in the place of a kernel's."""
        cycles = 0
        for number, (usual, l2) in enumerate(self._programs(self.device)):
            cycles += time_cycles(program if number == place else usual, l2)
        return self.device.time_us(cycles)

    def causes(self, device: Device) -> tuple[IntArray, ...]:
        """What every instruction of every kernel waited for, by rows of its timeline."""
        return tuple(trace_causes(program, l2) for program, l2 in self._programs(device))

    def _programs(self, device: Device) -> Iterator[tuple[Program, L2]]:
        """The programs to simulate, each with the L2 as those before it left it."""
        l2 = new_l2(device, self.engine)
        for i, step in enumerate(self.steps):
            if isinstance(step, Tensor):
                l2.preload(step.name, step.size_bytes)
            else:
                yield self._program(i, step, device), l2

    def _program(self, place: int, kernel: Kernel, device: Device) -> Program:
        key = place, structure(device, kernel.roles)
        if key not in self._built and key[1] == structure(self.device, kernel.roles):
            self._built[key] = build(kernel, self.device, self.groups)
        known = self._built.get(key)
        program = recosted(known, device) if known is not None else None
        if program is None:
            program = build(kernel, device, self.groups)
            if program.structure is not None:
                self._built.setdefault(key, program)
        return program


def figures_behind(device: Device, made: Launched | Program) -> list[str]:
    """Figures that ``device`` states and that the time of a kernel depends on."""
    used = {
        *("clock", device.launch_key, "l2", device.main_memory_key),
        *(f"pipes.{device.pipe(pipe).name}" for pipe in made.pipes),
        *(f"links.{link.name}" for link in device.links.values() if link.traffic),
        *made.figures,
    }
    return _among(tuple(device.provenance), frozenset(used))


@lru_cache(maxsize=256)
def _among(stated: tuple[str, ...], used: frozenset[str]) -> list[str]:
    """Those stated at, or directly within, what is used; kernels of a kind use the same.

    Capacities and precision do not cost time by themselves, and energy never does.
    """
    idle = {"cube.hf32_bits", *(f"{part}.{key}" for part in used for key in ("size", ENERGY))}
    return sorted(
        name
        for name in stated
        if name not in idle
        and not name.endswith(AT_MOST)
        and (name in used or name.rpartition(".")[0] in used)
    )


#: The note on calls whose kernels are those of a replayed graph.
_REPLAYED = (
    "kernels are launched as those of a replayed graph (launch='graph', --launch graph): no tiling "
    "at run time, and between them only what the figures under graph say"
)


def notes_on_figures(device: Device, figures: Iterable[str]) -> tuple[str, ...]:
    """How many of ``figures`` are assumed, the first five by name, and what is said before it.

    That is what holds memory back, and that kernels are launched from a graph.
    """
    assumed = [name for name in figures if device.provenance[name].confidence == "assumed"]
    launched = _REPLAYED if device.replays else ""
    first = tuple(text for text in (device.held_back, launched) if text)
    if not assumed:
        return first
    more = f" and {len(assumed) - 5} more" if len(assumed) > 5 else ""
    return (
        *first,
        f"the time rests on {len(assumed)} assumed figure{'s' * (len(assumed) > 1)}: "
        f"{', '.join(assumed[:5])}{more}; `npusim devices show {device.shown_by}` lists every "
        "figure with its source",
    )
