"""The report of one call: what it took and why, then everything behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from npusim.base.reasons import BUSY, REASONS
from npusim.machine.device.spec import Device
from npusim.machine.timing.run import TRACE_LIMIT
from npusim.machine.timing.trace import KernelRun, LineWork
from npusim.results.facts import advice, metrics, tables
from npusim.results.facts.call import CallFacts
from npusim.results.facts.least import PROBLEM
from npusim.results.facts.number_text import bytes_text, percent_text, rate_text, us_text
from npusim.results.facts.pressure import wasted_lanes
from npusim.results.shown import palette
from npusim.results.shown.figures import memories, roofline, timeline
from npusim.results.shown.kernel_lines import HEAD, LEFT, cells
from npusim.results.shown.report import (
    Cell,
    Colours,
    Items,
    Note,
    Pair,
    Part,
    Report,
    Section,
    Table,
)


def report(result: CallFacts) -> Report:
    """All of a call; a notebook shows its kernels and notes."""
    device = result.device
    return Report(
        title=f"{result.operator} on {device.name}",
        about=[result.problem],
        lead=verdict(result),
        cards=[*_cards(result)],
        sections=(
            Section("What would make it faster", [Items([one.text for one in result.advice])]),
            Section("Timeline", [_timeline(result)]),
            Section("Where the time went", [*_pipes(result)]),
            Section("Lines of the kernels", [*_lines(result)]),
            Section("Memory traffic", [traffic(device, result.runs)]),
            Section("Traffic of each kernel", [*_kernel_traffic(result)], opened=False),
            Section("Roofline", _roofline(result)),
            Section("Kernels", [*_kernels(result)], brief=True),
            Section("Lower bounds", [*_bounds(result)], opened=False),
            Section("Notes", [Items(result.notes)], brief=True),
        ),
        origin=Report.origin_of(result.version, device),
    )


def verdict(result: CallFacts) -> str:
    """The time and what holds it up, in a sentence or two."""
    launches = sum(run.launch_cycles for run in result.runs)
    text = f"{us_text(result.time_us)} \u00b5s"
    if launches:
        share = percent_text(metrics.share(launches, result.cycles))
        text += f", {share} of it to launch kernels"
    if result.verdict is not None:
        text += f". Bottleneck: {result.verdict.text()}"
        text += "" if result.verdict.tried else f" {result.verdict.how}"
    return text + "."


def _cards(result: CallFacts) -> Iterator[tuple[str, str]]:
    """The key figures of the call."""
    device, macs = result.device, sum(run.macs for run in result.runs)
    yield f"{us_text(result.time_us)} \u00b5s", f"time, {result.cycles:,} cycles"
    if result.known_time_range is not None:
        low, high = result.known_time_range.low_us, result.known_time_range.high_us
        yield f"{us_text(low)} to {us_text(high)} \u00b5s", "range of the time"
    bound = metrics.call_bound(result.runs)
    if bound is not None:
        us = us_text(device.time_us(bound.cycles))
        yield f"{us} \u00b5s", f"least of this program: {bound.resource}"
    if result.problem_bounds:
        least = result.at_least.cold
        yield f"{us_text(least.us)} \u00b5s", f"least of any program: {least.resource}"
    executed = rate_text(metrics.tflops(device, macs, result.cycles))
    useful = rate_text(metrics.tflops(device, sum(result.useful_macs.values()), result.cycles))
    if result.useful_macs:
        yield f"{useful} TFLOPS", f"useful over the call; executed {executed}"
    elif macs:
        yield f"{executed} TFLOPS", "executed over the call"
    yield bytes_text(sum(run.gm_bytes for run in result.runs)), "from and to GM"


def _timeline(result: CallFacts) -> Part:
    if not tables.has_timeline(result.runs):
        return Note("No timeline was kept; run with timeline=True to see it.")
    figure = timeline.interactive(result)
    return figure if figure.marks else Note("No instruction was executed.")


def _roofline(result: CallFacts) -> list[Part]:
    return [roofline.of_call(result)] if any(run.macs and run.cycles for run in result.runs) else []


def _pipes(result: CallFacts) -> Iterator[Part]:
    """Stacked bars: where each pipe's time went, mean over cores, per kernel that matters."""
    names = dict(zip(map(id, result.runs), metrics.titles(result.runs), strict=True))
    shown = [(run, metrics.pipe_shares(run)) for run in advice.major_kernels(result.runs)]
    means = [one.mean for _, shares in shown for one in shares]
    used = [name for at, name in enumerate(REASONS) if any(mean[at] for mean in means)]
    works: dict[str, list[str]] = {}
    for pipe in dict.fromkeys(one.pipe for _, shares in shown for one in shares):
        works.setdefault(palette.work_colour(pipe), []).append(pipe)
    busy = [(f"busy ({', '.join(pipes)})", colour) for colour, pipes in works.items()]
    waits = [(name, palette.REASON_COLOURS[name]) for name in used if name != REASONS[BUSY]]
    yield Colours([*busy, *waits])
    rows = []
    for run, shares in shown:
        critical = metrics.critical_pipe(shares)
        for one in shares:
            rows.append((names[id(run)], one.pipe, "mean", *_bar(one.pipe, one.mean)))
            if one is critical:
                core = f"{one.busiest_core}, busiest"
                rows.append((names[id(run)], one.pipe, core, *_bar(one.pipe, one.busiest)))
    yield Table("", ("kernel", "pipe", "core", "busy", "share of the kernel's cycles"), rows, 3)


def _lines(result: CallFacts) -> Iterator[Part]:
    """What each line asks of its pipe, per kernel that matters, and which leave lanes idle."""
    instructions = sum(run.instructions for run in result.runs)
    if result.replay is None or instructions > TRACE_LIMIT:
        return
    from npusim.machine.timing.pressure import pressure  # noqa: PLC0415 - for the page alone

    major = advice.major_kernels(result.runs)
    names = metrics.titles(result.runs)
    rows: list[tuple[Any, ...]] = []
    wasted: list[str] = []
    programs = result.replay.programs(result.device)
    for run, name, program in zip(result.runs, names, programs, strict=True):
        if any(run is one for one in major):
            lines = pressure(program)
            rows += [(name, *_line_cells(line)) for line in lines]
            wasted += wasted_lanes(lines)
    yield Items(wasted)
    named = len({row[0] for row in rows}) > 1
    head = ("kernel", *HEAD) if named else HEAD
    yield Table("", head, [row if named else row[1:] for row in rows], LEFT + named)
    yield Note(
        "Of all cores together. Each: cycles of one alone. Share: of what its pipe works. Fills: "
        "lanes of each repeat that a vector instruction uses, or the share of the cube's blocks."
    )


def _line_cells(line: LineWork) -> tuple[Any, ...]:
    """A row of the table of lines; numbers sort by their value."""
    pipe, op, place, times, each, share, size, filled = cells(line)
    return (
        pipe,
        op,
        place,
        Cell(times, line.count),
        Cell(each, line.cycles / line.count),
        Cell(share, line.share),
        Cell(size, line.bytes) if line.bytes else "",
        Cell(filled, line.filled) if line.filled is not None else "",
    )


def _bar(pipe: str, shares: Sequence[float]) -> tuple[Cell, Cell]:
    """How busy a pipe is, and all it does."""
    colours = {**palette.REASON_COLOURS, REASONS[BUSY]: palette.work_colour(pipe)}
    parts = ((name, share, colours[name]) for name, share in zip(REASONS, shares, strict=True))
    return Cell(f"{shares[BUSY] * 100:.1f} %", shares[BUSY]), Cell.bar(parts, shares[BUSY])


def traffic(device: Device, runs: Sequence[KernelRun], *, operands: bool = True) -> Pair:
    """The memories with the bytes that ``runs`` moved, and the same as a table.

    It has a row for each of the ``operands`` of a path, or where their names say nothing one.
    """
    totals = metrics.path_totals(runs, operands=operands)
    rows = [
        (
            f"{one.src}\u2192{one.dst}",
            *([one.operand] if operands else []),
            Cell.size(one.bytes),
            "" if one.hit_share is None or device.l2 is None else percent_text(one.hit_share),
        )
        for one in totals
    ]
    heads = ("path", "operand", "bytes", "L2 hits") if operands else ("path", "bytes", "L2 hits")
    table = Table("", heads, rows, 2 if operands else 1)
    return Pair((memories.drawn(device, totals), table))


def _kernel_traffic(result: CallFacts) -> Iterator[Table]:
    if len(result.runs) < 2:
        return
    rows: list[tuple[Any, ...]] = []
    for run, name in zip(result.runs, metrics.titles(result.runs), strict=True):
        for row in metrics.path_totals([run]):
            cached = row.hit_share is not None
            sizes = (row.kept_bytes, row.missed_bytes)
            split = [Cell.size(size) if cached else "" for size in sizes]
            path = f"{row.src}\u2192{row.dst}"
            rows.append((name, path, row.operand, Cell.size(row.bytes), *split))
    yield Table("", ("kernel", "path", "operand", "bytes", "L2 hits", "L2 misses"), rows, 3)


def kernel_cells(result: CallFacts) -> Iterator[dict[str, str]]:
    """What tables say of each kernel, by column; "" where there is nothing to say."""
    device = result.device
    for run, name in zip(result.runs, metrics.titles(result.runs), strict=True):
        peak = metrics.cube_peak(device, run, result.dtype) if run.macs else None
        executed = metrics.tflops(device, run.macs, run.cycles)
        useful = metrics.tflops(device, run.useful_macs, run.cycles)
        bounds = (metrics.nearest_bound(run), metrics.problem_bound(run))
        bound, problem = (
            percent_text(metrics.share(one.cycles, run.cycles)) if one is not None else ""
            for one in bounds
        )
        yield {
            "kernel": name,
            "tiling": run.tiling,
            "us": us_text(device.time_us(run.cycles)),
            "launch": us_text(device.time_us(run.launch_cycles)),
            "cycles": f"{run.cycles:,}",
            "share": percent_text(metrics.share(run.cycles + run.launch_cycles, result.cycles)),
            "TFLOPS": rate_text(useful) if run.useful_macs else "",
            "executed": rate_text(executed) if run.macs else "",
            "of peak": percent_text(executed / peak.tflops) if peak is not None else "",
            "GM": bytes_text(run.gm_bytes),
            "cores": str(run.cores),
            "instructions": f"{run.instructions:,}",
            "bound": bound,
            "problem": problem,
        }


#: Heads of columns that need their unit.
_HEADS = {"us": "\u00b5s", "launch": "launch \u00b5s"}


def _kernels(result: CallFacts) -> Iterator[Part]:
    """A row per kernel; columns that are empty for all of them are left out."""
    cells = [
        {_HEADS.get(head, head): text for head, text in one.items() if head != "share"}
        | {"GM": Cell.size(run.gm_bytes)}
        for one, run in zip(kernel_cells(result), result.runs, strict=True)
    ]
    if not cells:
        return
    heads = [head for head in cells[0] if any(one[head] for one in cells)]
    tiled = "tiling" in heads
    rows = [[one[head] for head in heads] for one in cells]
    yield Table("", heads, rows, 1 + tiled, long=(1,) if tiled else ())
    yield Note(
        "bound, problem: share of the time that the program, or any for its problem, would need at "
        "least"
    )


def _bounds(result: CallFacts) -> Iterator[Part]:
    """Every bound of every kernel, and what the call needs at least wherever operands are."""
    rows = [
        {"name": name} | row
        for run, name in zip(result.runs, metrics.titles(result.runs), strict=True)
        for row in tables.bound_rows([run])
        if row["cycles"]
    ]
    columns = {
        "kernel": lambda row: row["name"],
        "of the": lambda row: row["of"],
        "resource": lambda row: row["resource"],
        "why": lambda row: row["why"],
        "cycles": lambda row: f"{row['cycles']:,}",
        "of simulated": lambda row: percent_text(row["share"]),
    }
    yield Table.of(columns, rows, 4, long=("why",))
    yield Note(f"The call takes at least {result.at_least.text(PROBLEM)}.")
