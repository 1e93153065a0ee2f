"""Time one program: run an engine, then turn its outcome into the rows of a ``KernelRun``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.base.integers import IntArray, narrowed
from npusim.base.processes import BEFORE_START
from npusim.machine.device.parts import ENERGY
from npusim.machine.device.spec import Device
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.program import Program
from npusim.machine.timing.bounds import needed_bytes, problem_bounds, program_bounds
from npusim.machine.timing.outcome import L2, Held, Outcome, PipeSpans, Progress
from npusim.machine.timing.trace import (
    KernelRun,
    PipeRow,
    PipeRows,
    Timeline,
    Trace,
    TrafficRow,
    core_starts,
)

#: Engines by name. All give the same cycles: "fast" runs compiled code, "simpy" is the readable
#: reference.
ENGINES = ("fast", "simpy")

#: Instructions up to which a timeline is kept without being asked for.
TIMELINE_LIMIT = 200_000

#: Instructions up to which a critical path is looked for: their times take 300 MB.
TRACE_LIMIT = 4_000_000


def _compiled() -> None:
    """See to it that helpers find the engine compiled: all would compile it at once."""
    from npusim.machine.timing import compile_once  # noqa: PLC0415 - as below

    compile_once.require()


BEFORE_START.append(_compiled)


def new_l2(device: Device, engine: str, held: Held | None = None) -> L2:
    """An L2 for the kernels of one call, in the form ``engine`` works on.

    It is empty, or for the fast engine as another that ``held`` so much. Raises ``ArgumentError``
    for an unknown engine.
    """
    # Engines are imported when they are used: each needs a library that takes time to load.
    if engine == "fast":
        _compiled()
        from npusim.machine.timing.fast.l2 import FastL2  # noqa: PLC0415

        return FastL2(device.l2) if held is None else FastL2.of(device.l2, held)
    if engine == "simpy":
        from npusim.machine.timing.l2 import L2State  # noqa: PLC0415

        return L2State(device.l2)
    raise ArgumentError(f"engine is {engine!r}; it is one of {', '.join(ENGINES)}")


def _run(
    program: Program, l2: L2, *, keep: bool = False, progress: Progress | None = None
) -> Outcome:
    """Run ``program`` once, by the engine that works on ``l2``."""
    from npusim.machine.timing.l2 import L2State  # noqa: PLC0415

    starts = core_starts(program)
    if isinstance(l2, L2State):
        from npusim.machine.timing.simpy_engine import SimpyEngine  # noqa: PLC0415

        return SimpyEngine(program, l2, starts, keep_spans=keep, progress=progress).run()
    from npusim.machine.timing.fast.engine import FastEngine  # noqa: PLC0415
    from npusim.machine.timing.fast.l2 import FastL2  # noqa: PLC0415

    assert isinstance(l2, FastL2)
    return FastEngine(program, l2, starts, keep_spans=keep, progress=progress).run()


def wants_timeline(instructions: int, timeline: bool | None) -> bool:
    """True if a run of so many instructions keeps its timeline; None asks for it if it is short."""
    return instructions <= TIMELINE_LIMIT if timeline is None else timeline


def time_program(
    program: Program,
    l2: L2,
    *,
    timeline: bool | None = None,
    progress: Progress | None = None,
) -> KernelRun:
    """Simulate ``program`` with the L2 as earlier kernels left it, and tabulate the run.

    The L2 (``new_l2``) says which engine runs. ``progress`` is called now and then with the
    instructions completed. Raises ``ProgramError`` if the program hangs or leaves a tensor.
    """
    keep = wants_timeline(program.instructions, timeline)
    resident, outcome = l2.resident(), _run(program, l2, keep=keep, progress=progress)
    return KernelRun(
        name=program.kernel,
        tiling=program.tiling,
        idle=program.idle,
        cores=_cores(program),
        cycles=outcome.cycles,
        launch_cycles=launch_cycles(program),
        instructions=program.instructions,
        macs=program.macs,
        gm_bytes=_gm_bytes(program),
        pipes=_pipes(program, outcome),
        traffic=_traffic(program, outcome),
        bounds=program_bounds(program, outcome.fetched, outcome.evicted),
        computes=program.computes,
        useful_macs=program.useful_macs,
        problem_bounds=problem_bounds(program, resident),
        activity=_activity(program, outcome),
        timeline=_timeline(program, outcome.spans) if outcome.spans is not None else None,
    )


def time_cycles(program: Program, l2: L2) -> int:
    """The cycles of ``time_program`` with those to launch it, without any rows."""
    return _run(program, l2).cycles + launch_cycles(program)


class Launched(Struct, frozen=True, kw_only=True):
    """A kernel that was timed: its run, and what its program tells besides.

    ``figures`` are those its instructions rest on, ``read`` the bytes by tensor that its problem
    reads, and ``emitted`` counts the instructions of its distinct units.
    """

    run: KernelRun
    pipes: tuple[str, ...]
    figures: frozenset[str]
    read: Mapping[str, int]
    emitted: int


class Launches:
    """Builds kernels for core groups of a device, and times them with the L2 that is between them.

    The L2 is empty at first. This is the plain way; ``npusim.reuse.launches`` knows some runs.
    """

    def __init__(self, device: Device, groups: tuple[int, ...], engine: str = "fast") -> None:
        self.device = device
        self.groups = groups
        self.engine = engine
        self._state: L2 | None = None

    @property
    def l2(self) -> L2:
        """The L2 as it is now."""
        if self._state is None:
            self._state = new_l2(self.device, self.engine)
        return self._state

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        self.l2.preload(tensor, size)

    def build(self, kernel: Kernel) -> Program:
        """The program of a kernel; raises as ``npusim.machine.program.build.build`` does."""
        return build(kernel, self.device, self.groups)

    def known(self, kernel: Kernel, *, timeline: bool | None = False) -> Launched | None:
        """Launch ``kernel`` if its run is known; None, and nothing done, if not."""

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
        return Launched(
            run=run,
            pipes=program.pipes,
            figures=program.figures,
            read=needed_bytes(program).read,
            emitted=program.emitted,
        )


def launch_cycles(program: Program) -> int:
    """Cycles to launch ``program``, less those in which its cores start, which are its own."""
    cycles = program.device.launch.cycles(program.roles[0], _cores(program))
    return cycles - int(core_starts(program).max(initial=0))


def _cores(program: Program) -> int:
    """Cores with work."""
    return len(program.working)


def trace_program(program: Program, l2: L2) -> Trace:
    """Simulate ``program`` as ``time_program`` does, and look for what its time rests on.

    Raises ``ArgumentError`` for a program of more than ``TRACE_LIMIT`` instructions.
    """
    if program.instructions > TRACE_LIMIT:
        raise ArgumentError(
            f"{program.kernel} executes {program.instructions:,} instructions; the critical path "
            f"is looked for among up to {TRACE_LIMIT:,}: explain a smaller batch"
        )
    from npusim.machine.timing.critical import critical_path, cube_room  # noqa: PLC0415 - for these only
    from npusim.machine.timing.pressure import pressure  # noqa: PLC0415

    spans, cycles = _spans(program, l2)
    return Trace(
        cycles=cycles,
        path=critical_path(program, spans, cycles),
        room=cube_room(program),
        lines=pressure(program),
    )


def trace_causes(program: Program, l2: L2) -> IntArray:
    """Simulate ``program`` as ``time_program`` does; tell what each row of its timeline awaited."""
    from npusim.machine.timing.critical import causes  # noqa: PLC0415 - for traces only

    return causes(program, _spans(program, l2)[0])


def _spans(program: Program, l2: L2) -> tuple[PipeSpans, int]:
    """The spans of executed instructions, and the makespan."""
    outcome = _run(program, l2, keep=True)
    assert outcome.spans is not None
    return outcome.spans, outcome.cycles


def _gm_bytes(program: Program) -> int:
    """Bytes that cores read from and write to GM."""
    return sum(n for (src, dst, _), n in program.moves.items() if "GM" in (src, dst))


def _pipes(program: Program, outcome: Outcome) -> PipeRows:
    """Rows of every pipe of every core; they are made later, without the program."""
    cores = [(core.name, core.kind.pipes) for core in program.cores]
    return PipeRows(partial(_pipe_rows, cores, program.pipes, outcome.reasons))


def _pipe_rows(
    cores: Sequence[tuple[str, Collection[str]]], pipes: tuple[str, ...], reasons: IntArray
) -> list[PipeRow]:
    return [
        PipeRow(name, pipe, tuple(cycles))
        for (name, of_core), rows in zip(cores, reasons.tolist(), strict=True)
        for pipe, cycles in zip(pipes, rows, strict=True)
        if pipe in of_core
    ]


def _traffic(program: Program, outcome: Outcome) -> tuple[TrafficRow, ...]:
    rows = []
    for (src, dst, operand), size in program.moves.items():
        hits = outcome.hits.get((operand, dst), (0, 0, 0)) if src == "GM" else (0, 0, 0)
        rows.append(TrafficRow(src, dst, operand, size, *hits))
    main, front = program.device.main_memory_name, "L2" if program.device.l2 else "GM"
    rows.append(TrafficRow(main, front, "", outcome.fetched, 0, 0))
    rows.append(TrafficRow(front, main, "", outcome.evicted, 0, 0))
    return tuple(rows)


def _activity(program: Program, outcome: Outcome) -> dict[str, int]:
    """The work of the cores, and the bytes that the L2 and main memory moved for them."""
    device = program.device
    shared = {f"{device.main_memory_key}.{ENERGY}": outcome.fetched + outcome.evicted}
    if device.l2 is not None:
        shared[f"l2.{ENERGY}"] = _gm_bytes(program)
    return {key: n for key, n in {**program.activity, **shared}.items() if n}


def _in_time(spans: PipeSpans, cores: int, pipes: int) -> IntArray:
    """The order of spans by start, core, pipe and index; as one number these sort faster."""
    most = 1 + int(spans.index.max(initial=0))
    if (1 + int(spans.start.max(initial=0))) * cores * pipes * most < 1 << 63:
        place = (spans.start * cores + spans.core) * pipes + spans.pipe
        return np.argsort(place * most + spans.index)
    return np.lexsort((spans.index, spans.pipe, spans.core, spans.start))


def _timeline(program: Program, spans: PipeSpans) -> Timeline:
    """Spans sorted by (start, core, pipe, index), with what their instructions are."""
    order = _in_time(spans, len(program.cores), len(program.pipes))
    steps = [
        (facts.op, line, instruction.about, facts.move[3] if facts.move else 0, cost.macs)
        for t in program.templates
        for instruction, facts, line, cost in zip(
            t.instructions, t.facts, t.lines, t.costs, strict=True
        )
    ]
    ops = sorted({step[0] for step in steps})
    lines = sorted({step[1] for step in steps})
    abouts = sorted({step[2] for step in steps})
    op_of, line_of, about_of = (
        {name: i for i, name in enumerate(names)} for names in (ops, lines, abouts)
    )
    rows = [(op_of[op], line_of[line], about_of[about], *rest) for op, line, about, *rest in steps]
    op, line, about, size, macs = map(narrowed, np.array(rows, np.int64).reshape(-1, 5).T)
    first = np.cumsum([0, *(len(t.instructions) for t in program.templates)])
    place = narrowed(first[spans.template] + spans.instruction)[order]
    return Timeline(
        cores=tuple(core.name for core in program.cores),
        pipes=program.pipes,
        ops=tuple(ops),
        lines=tuple(lines),
        abouts=tuple(abouts),
        core=narrowed(spans.core)[order],
        pipe=narrowed(spans.pipe)[order],
        op=op[place],
        line=line[place],
        about=about[place],
        start=narrowed(spans.start)[order],
        end=narrowed(spans.end)[order],
        bytes=size[place],
        macs=macs[place],
        reason=narrowed(spans.reason)[order],
        waited=narrowed(spans.waited)[order],
    )
