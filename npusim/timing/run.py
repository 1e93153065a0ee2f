"""Time one program: run an engine, then turn its outcome into the rows of a ``KernelRun``."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from npusim.device.spec import Device
from npusim.errors import ArgumentError
from npusim.isa.base import RATE_BITS, fixed_rate
from npusim.program.program import ATOMIC, READ, Program
from npusim.timing.l2 import L2State
from npusim.timing.simpy_engine import Outcome, SimpyEngine, Span
from npusim.timing.trace import Bound, KernelRun, PipeRow, Timeline, TrafficRow

#: Engines by name. All give the same cycles; they differ in speed.
ENGINES = {"simpy": SimpyEngine}

#: Instructions up to which a timeline is kept without being asked for.
TIMELINE_LIMIT = 200_000

#: How traffic rows name the memory behind the L2, and behind the cores where there is no L2.
MAIN = "HBM"
MAIN_UNCACHED = "DDR"
MAIN_PRIVATE = "private memory"


def time_program(
    program: Program,
    l2: L2State,
    *,
    engine: str = "simpy",
    timeline: bool | None = None,
    progress: Callable[[int], None] | None = None,
) -> KernelRun:
    """Simulate ``program`` with the L2 as earlier kernels left it, and tabulate the run.

    ``progress`` is called now and then with the instructions completed. Raises
    ``ArgumentError`` for an unknown engine, ``ProgramError`` if the program hangs.
    """
    if engine not in ENGINES:
        raise ArgumentError(f"engine is {engine!r}; it is one of {', '.join(ENGINES)}")
    keep = program.instructions <= TIMELINE_LIMIT if timeline is None else timeline
    outcome = ENGINES[engine](program, l2, keep_spans=keep, progress=progress).run()
    return KernelRun(
        name=program.kernel,
        tiling=program.tiling,
        cores=len({id(core) for core in program.cores if len(core.variants)}),
        cycles=outcome.cycles,
        launch_cycles=program.device.launch.cycles(program.role),
        instructions=program.instructions,
        macs=program.macs,
        gm_bytes=sum(n for (src, dst, _), n in program.moves.items() if "GM" in (src, dst)),
        pipes=_pipes(program, outcome),
        traffic=_traffic(program, outcome),
        bounds=_bounds(program, outcome),
        timeline=_timeline(program, outcome.spans) if outcome.spans is not None else None,
    )


def _pipes(program: Program, outcome: Outcome) -> tuple[PipeRow, ...]:
    return tuple(
        PipeRow(core.name, pipe, tuple(reasons))
        for core, rows in zip(program.cores, outcome.reasons, strict=True)
        for pipe, reasons in zip(program.pipes, rows, strict=True)
    )


def _traffic(program: Program, outcome: Outcome) -> tuple[TrafficRow, ...]:
    rows = []
    for (src, dst, operand), size in program.moves.items():
        hit, miss = outcome.hits.get((operand, dst), (0, 0)) if src == "GM" else (0, 0)
        rows.append(TrafficRow(src, dst, operand, size, hit, miss))
    main, front = _main(program.device), "L2" if program.device.l2 else "GM"
    rows.append(TrafficRow(main, front, "", outcome.fetched, 0, 0))
    rows.append(TrafficRow(front, main, "", outcome.evicted, 0, 0))
    return tuple(rows)


def _main(device: Device) -> str:
    """What main memory is called: by its place, as the model knows it."""
    if device.l2 is not None:
        return MAIN
    return MAIN_PRIVATE if device.main_memory == device.private_memory else MAIN_UNCACHED


def _bounds(program: Program, outcome: Outcome) -> tuple[Bound, ...]:
    """Least cycles by each resource alone: the busiest core's pipes, and the shared links."""
    work = program.pipe_work()
    bounds = [
        Bound(
            f"pipe {pipe}",
            int(work[:, p].max()),
            f"work of {program.cores[int(work[:, p].argmax())].name} without any waiting",
        )
        for p, pipe in enumerate(program.pipes)
    ]
    for name, size, rate, what in _links(program, outcome):
        bounds.append(Bound(name, (size << RATE_BITS) // fixed_rate(rate), what))
    return tuple(sorted(bounds, key=lambda b: -b.cycles))


def _links(program: Program, outcome: Outcome) -> list[tuple[str, int, Fraction, str]]:
    """The shared links as (name, bytes, bytes per cycle, which bytes)."""
    l2, mem = program.device.l2, program.device.main_memory
    main = _main(program.device)
    read, written = _shared_bytes(program)
    into, out = "bytes all cores read from GM", "bytes all cores write to GM"
    links = []
    if l2 is not None:
        links = [
            ("L2 read", read, l2.read_bytes_per_cycle, into),
            ("L2 write", written, l2.write_bytes_per_cycle, out),
        ]
        into, out = "bytes the L2 had to fetch", "dirty bytes evicted"
    return [
        *links,
        (f"{main} read", outcome.fetched, mem.read_bytes_per_cycle, into),
        (f"{main} write", outcome.evicted, mem.write_bytes_per_cycle, out),
    ]


def _shared_bytes(program: Program) -> tuple[int, int]:
    """GM bytes read, and written with atomic adds counted as often as they occupy the L2."""
    l2 = program.device.l2
    factor = l2.atomic_factor if l2 else 1
    read = written = 0
    for count, template in zip(program.unit_counts, program.templates, strict=True):
        for flow in template.flows:
            if flow is None:
                continue
            size = int(count) * flow.region.size
            if flow.kind == READ:
                read += size
            else:
                written += size * (factor if flow.kind == ATOMIC else 1)
    return read, written


def _timeline(program: Program, spans: list[Span]) -> Timeline:
    """Spans as columns, sorted by (start, core, pipe, index)."""
    ordered = sorted(spans, key=lambda s: (s.start, s.core, s.pipe, s.index))
    ops = sorted({s.step.instruction.op for s in ordered})
    lines = sorted({s.step.line for s in ordered})
    op_of = {op: i for i, op in enumerate(ops)}
    line_of = {line: i for i, line in enumerate(lines)}

    def column(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    return Timeline(
        cores=tuple(core.name for core in program.cores),
        pipes=program.pipes,
        ops=tuple(ops),
        lines=tuple(lines),
        core=column([s.core for s in ordered]),
        pipe=column([s.pipe for s in ordered]),
        op=column([op_of[s.step.instruction.op] for s in ordered]),
        line=column([line_of[s.step.line] for s in ordered]),
        start=column([s.start for s in ordered]),
        end=column([s.end for s in ordered]),
        bytes=column([_bytes(s) for s in ordered]),
        macs=column([s.step.cost.macs for s in ordered]),
        reason=column([s.reason for s in ordered]),
        waited=column([s.waited for s in ordered]),
    )


def _bytes(span: Span) -> int:
    move = span.step.instruction.move()
    return move[3] if move else 0
