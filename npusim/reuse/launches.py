"""Kernels launched one after another, timed; those that were timed before are not simulated again.

The run of a kernel depends on what the L2 holds from the kernels launched before it, and on the
figures of the device that its program and the engine ask for. It is kept by these
(``npusim.reuse.answers``), so that after one changed figure only what this figure touches runs
anew.

A call is timed again on another device in the same way, and so are told the figures its time
depends on.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from npusim.base.digests import look_again
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
    KernelRun,
    PipeRow,
    PipeRows,
    Timeline,
    Trace,
    are_usual,
)
from npusim.reuse.answers import Answers
from npusim.reuse.programs import content, varied_program_of
from npusim.reuse.tracked_device import Name, TrackedDevice, names_of

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
        self._l2_device = TrackedDevice(device)  # whose figures only the L2 reads
        self._program_devices: list[TrackedDevice] = []  # one for each program built here
        self._names: frozenset[Name] = frozenset()  # of known runs, and of programs from elsewhere
        #: The key of what the L2 holds; None while nobody has worked it out.
        self._key: str | None = "empty" if engine == "fast" else None
        #: The run that left an L2 whose key is not worked out, and the figures that run rests on.
        self._last_run: tuple[str, frozenset[Name]] | None = None
        self._pending: list[_Pending] = []  # what ``_state`` does not have yet

    @property
    def names(self) -> frozenset[Name]:
        """The figures that everything so far rests on."""
        of_programs = (tracked.names for tracked in self._program_devices)
        return self._names.union(self._l2_device.names, *of_programs)

    def preload(self, tensor: str, size: int) -> None:
        key = self._key_now()
        self._key = _next_key(key, f"{tensor!r} {size}") if key is not None else None
        self._last_run = None
        self._pending.append(_Pending((tensor, size), self._key))

    @property
    def l2(self) -> L2:
        """The L2 as it is now; kernels that left one that is not kept are simulated again."""
        pending, self._pending = self._pending, []
        content, count = self._latest_content(pending)
        if content is not None:
            self._state = new_l2(self._l2_device.device, self.engine, content)
        if self._state is None:
            self._state = new_l2(self._l2_device.device, self.engine)
        for step, _ in pending[count:]:
            if isinstance(step, Kernel):
                super().time(step, self.build(step))
            else:
                tensor, size = step
                self._state.preload(tensor, size)
        return self._state

    def _latest_content(self, pending: Sequence[_Pending]) -> tuple[Held | None, int]:
        """The latest content that is kept, and after how many of the pending steps it was there."""
        for count in range(len(pending), 0, -1):
            step, key = pending[count - 1]
            if key is not None and isinstance(step, Kernel):
                stored = CONTENTS.find(key, self.device)
                if stored is not None:
                    return stored.answer, count
        return None, 0

    def _key_now(self) -> str | None:
        """A key of what the L2 holds; None with the reference engine, whose runs are not kept."""
        if self._key is not None or self.engine != "fast":
            return self._key
        stored = None
        if self._last_run is not None and self._pending:
            stored = LEFT.find(self._last_run[0], self.device)
        if stored is None:
            self._key = self._key_of_l2()
        else:
            self._key = stored.answer
            self._pending[-1] = _Pending(self._pending[-1].step, self._key)
        return self._key

    def _key_of_l2(self) -> str:
        """The key of what the L2 holds, by looking at it; it is kept."""
        content: Held = cast(Any, self.l2).held()  # with the engine that is not the reference
        if content.blocks.nbytes <= MOST_BYTES:
            CONTENTS.keep(content.digest, self.device, (), content)
        if self._last_run is not None:
            run, names = self._last_run
            LEFT.keep(run, self.device, names, content.digest)
        return content.digest

    def build(self, kernel: Kernel) -> Program:
        self._program_devices.append(TrackedDevice(self.device))
        return build(kernel, self._program_devices[-1].device, self.groups)

    def known(self, kernel: Kernel, *, timeline: bool | None = False) -> Launched | None:
        key = None if timeline else self._key_of_run(kernel)
        stored = RUNS.find(key, self.device) if key is not None else None
        if key is None or stored is None:
            return None
        launched = stored.answer
        if wants_timeline(launched.run.instructions, timeline):
            spans = _TIMELINES.get((key, self.device.digest()))
            if spans is None:
                return None
            launched = replace(launched, run=replace(launched.run, timeline=spans))
        self._key = None
        self._last_run = key, stored.names
        self._pending.append(_Pending(kernel, None))
        self._names |= stored.names
        return launched

    def time(
        self,
        kernel: Kernel,
        program: Program,
        *,
        timeline: bool | None = False,
        progress: Progress | None = None,
    ) -> Launched:
        key = self._key_of_run(kernel)
        launched = super().time(kernel, program, timeline=timeline, progress=progress)
        self._key = None
        self._last_run = None
        names = names_of(program.device)
        self._names |= names
        if key is not None and names:
            names |= self._l2_device.names
            self._last_run = key, names
            RUNS.keep(key, self.device, names, _without_timeline(launched))
            self._keep_timeline(key, launched.run)
        return launched

    def _keep_timeline(self, key: str, run: KernelRun) -> None:
        """Keep the timeline of a short run; the oldest of many is dropped."""
        if run.timeline is None or run.instructions > _SHORT:
            return
        _TIMELINES[key, self.device.digest()] = run.timeline
        if len(_TIMELINES) > _MOST_TIMELINES:
            _TIMELINES.popitem(last=False)

    def _key_of_run(self, kernel: Kernel) -> str | None:
        """The key of a run of ``kernel`` now; None where it has none."""
        text = content(kernel) if are_usual() else None
        key = self._key_now() if text is not None else None
        return _next_key(key, f"{self.groups} {text}") if key is not None else None


class _Pending(NamedTuple):
    """A tensor with its bytes that was preloaded, or a kernel that ran; the key of the L2 then."""

    step: tuple[str, int] | Kernel
    key: str | None


def _next_key(key: str, step: str) -> str:
    return hashlib.sha256(f"{key}\n{step}".encode()).hexdigest()[:32]


def _without_timeline(launched: Launched) -> Launched:
    return replace(launched, run=replace(launched.run, timeline=None))


def _packed_run(launched: Launched) -> dict[str, bytes]:
    """A run without its timeline; rows of pipes stand by themselves and are read on demand."""
    return {
        "launched": msgspec.msgpack.encode(replace(launched, run=replace(launched.run, pipes=()))),
        "pipes": msgspec.msgpack.encode(tuple(launched.run.pipes)),
    }


def _unpacked_run(stored: dict[str, bytes]) -> Launched:
    launched = msgspec.msgpack.decode(stored["launched"], type=Launched)
    pipes = PipeRows(partial(msgspec.msgpack.decode, stored["pipes"], type=list[PipeRow]))
    return replace(launched, run=replace(launched.run, pipes=pipes))


#: Runs of this process.
RUNS: Answers[Launched] = Answers("run", 1024, _packed_run, _unpacked_run)

#: Timelines of the latest short runs, by the run's key and the device; instructions of such a run.
_TIMELINES: OrderedDict[tuple[str, str], Timeline] = OrderedDict()
_MOST_TIMELINES, _SHORT = 64, 20_000

#: What the L2 held after a run, by the run's key: the key of ``CONTENTS``.
LEFT: Answers[str] = Answers("left", 1024, str, str)


def _packed_content(content: Held) -> dict[str, Any]:
    return {"sizes": content.sizes, "blocks": content.blocks.tobytes()}


def _unpacked_content(stored: dict[str, Any]) -> Held:
    blocks = np.frombuffer(stored["blocks"], np.int64)
    return Held(tuple((name, size) for name, size in stored["sizes"]), blocks.reshape(4, -1))


#: Contents that kernels left, by their digest.
CONTENTS: Answers[Held] = Answers("l2", 256, _packed_content, _unpacked_content)


# -- a call timed again ----------------------------------------------------------------------------


#: What takes part in the time of a call: an input that is in L2 already, or a launch.
Step = Tensor | Kernel


@dataclass(eq=False, repr=False)
class Again:
    """Times the steps of a call, tiled as they were, on variants of its device.

    ``figures`` are those its time rests on. Programs are kept by structure, so that variants which
    differ in figures only pay for what these figures cost; those of the call's own structure are
    built for its ``device``, from which variants differ least, or taken over from the call. Holds
    no arrays.
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

    def __getstate__(self) -> dict[str, Any]:
        """All but the programs: another process takes less time to build than to read them."""
        return {**vars(self), "_built": {}}

    def time_us(self, device: Device) -> float:
        """Microseconds on ``device``."""
        return device.time_us(sum(time_cycles(*step) for step in self._programs(device)))

    def traces(self, device: Device) -> tuple[Trace, ...]:
        """The causes of the time of every kernel, in the order of launches."""
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
        """The cause for which every instruction of every kernel waited, by rows of its timeline."""
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
            self._built[key] = varied_program_of(kernel, self.device, self.groups)
        alike = self._built.get(key)
        program = recosted(alike, device) if alike is not None else None
        if program is None:
            program = build(kernel, device, self.groups)
            if program.structure is not None:
                self._built.setdefault(key, program)
        return program


def figures_behind(device: Device, launched: Launched | Program) -> list[str]:
    """Figures that ``device`` states and that the time of a kernel depends on."""
    used = {
        *("clock", device.launch_key, "l2", device.main_memory_key),
        *(f"pipes.{device.pipe(pipe).name}" for pipe in launched.pipes),
        *(f"links.{link.name}" for link in device.links.values() if link.traffic),
        *launched.figures,
    }
    return figures_within(tuple(device.provenance), frozenset(used))


@lru_cache(maxsize=256)
def figures_within(stated: tuple[str, ...], used: frozenset[str]) -> list[str]:
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
