"""The report of one call: what it took and why, then everything behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from npusim.base.reasons import BUSY, REASONS
from npusim.machine.device.parts import ENERGY
from npusim.machine.device.spec import Device
from npusim.machine.timing.run import TRACE_LIMIT
from npusim.machine.timing.trace import Bound, KernelRun, LineWork
from npusim.results.facts import advice, metrics, tables
from npusim.results.facts.call import LEAST, TIME, CallFacts
from npusim.results.facts.energy import EnergyRow, no_energy
from npusim.results.facts.fact import row_of
from npusim.results.facts.least import PROBLEM
from npusim.results.facts.metrics import PathTotal, PipeShare
from npusim.results.facts.number_text import (
    bytes_text,
    counted,
    launched_text,
    percent_text,
    rate_text,
    us_text,
)
from npusim.results.facts.other_chips import OTHER_CHIPS
from npusim.results.facts.pressure import wasted_lanes
from npusim.results.facts.spread import NO_SPREAD, spread_text
from npusim.results.facts.time_range import TimeRange
from npusim.results.shown import palette
from npusim.results.shown.figures import memories, roofline, timeline
from npusim.results.shown.kernel_lines import HEAD, LEFT, cells
from npusim.results.shown.other_chips import other_chips
from npusim.results.shown.report import (
    Cell,
    Colours,
    InText,
    Items,
    Key,
    Note,
    OnPage,
    Pair,
    Part,
    Report,
    ReportLine,
    Section,
    Table,
    apart,
)


def report(result: CallFacts) -> Report:
    """The report of a call, as text and as a page; a notebook shows its kernels and notes."""
    device = result.device
    lines, cards = apart(_keys(result))
    return Report(
        title=f"{result.operator} on {device.name}",
        about=[result.problem],
        lead=verdict(result),
        lines=lines,
        cards=cards,
        sections=(
            Section("Timeline", [OnPage(partial(_timeline, result))]),
            Section("Kernels", [*_kernels(result)], brief=True, heading="KERNELS"),
            Section("Where the time went", [*_pipes(result)], heading=_WHERE),
            Section("Lines of the kernels", [OnPage(partial(_lines, result))]),
            Section("Lower bounds", [*_bounds(result)], opened=False, heading=_BOUNDS),
            Section("Memory traffic", [*_traffic(result)], heading="TRAFFIC"),
            Section(
                "Traffic of each kernel", [OnPage(partial(_kernel_traffic, result))], opened=False
            ),
            Section("Roofline", [OnPage(partial(_roofline, result))]),
            Section("Energy", [*_energy(result)], opened=False, heading="ENERGY"),
            Section(
                "What would make it faster",
                [Items([change.text for change in result.advice])],
                heading="WHAT WOULD MAKE IT FASTER",
                first=True,
            ),
            Section("Notes", [Items(_notes(result))], brief=True, heading="NOTES"),
        ),
        origin=Report.origin_of(result.version, device),
    )


#: Headings of a text that say what its numbers are.
_WHERE = "WHERE THE TIME WENT (% of the kernel's cycles)"
_BOUNDS = "BOUNDS (share of the simulated time that one resource alone would need)"


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


def _keys(result: CallFacts) -> Iterator[Key]:
    """The key figures of the call: what ran where, its time, speed and what it is held up by."""
    device = result.device
    cores = max((run.cores for run in result.runs), default=0)
    yield Key(ReportLine("operator", f"{result.operator} (npusim {result.version})"))
    yield Key(ReportLine("problem", result.problem))
    yield Key(
        ReportLine(
            "device",
            f"{device.name}, {device.clock_hz / 1e9:g} GHz, {counted(cores, 'core')} used, "
            f"digest {device.digest()}",
        )
    )
    yield from other_chips(row_of([OTHER_CHIPS], device))
    launches = us_text(device.time_us(sum(run.launch_cycles for run in result.runs)))
    yield Key(
        ReportLine(
            "time",
            f"{us_text(result.time_us)} us = {result.cycles:,} cycles, of which launches "
            f"{launches} us{launched_text(device.launch_mode)}",
        ),
        (TIME.text(result.time_us), f"{TIME.title}, {result.cycles:,} cycles"),
    )
    if result.known_time_range is not None:
        yield _range(result.known_time_range)
    yield from _speed(result)
    if result.verdict is not None:
        yield Key(ReportLine("bottleneck", f"{result.verdict.text()} {result.verdict.how}"))
    bound = metrics.call_bound(result.runs)
    if bound is not None:
        us = device.time_us(bound.cycles)
        yield Key(card=(TIME.text(us), f"least of this program: {bound.resource}"))
    if result.problem_bounds:
        yield _least(result)
    gm_bytes = sum(run.gm_bytes for run in result.runs)
    yield Key(card=(bytes_text(gm_bytes), "from and to GM"))
    if result.workspace_bytes:
        text = f"{bytes_text(result.workspace_bytes)} between the kernels"
        yield Key(ReportLine("workspace", text))


def _least(result: CallFacts) -> Key:
    """The least time of any program, and which share of the time that is."""
    cold = result.at_least.cold
    card = (LEAST.text(cold.us), f"{LEAST.title}: {cold.resource}")
    if not result.cycles:
        return Key(card=card)
    share = percent_text(metrics.share(result.problem_bounds[0].cycles, result.cycles))
    return Key(
        ReportLine("at least", f"{result.at_least.first(PROBLEM)}: {share} of the time"), card
    )


#: Figures named with the range of the time, those that matter most.
MAX_EFFECTS = 3


def _range(times: TimeRange) -> Key:
    """Between which times the call takes, and why."""
    reasons = [
        f"{effect.figure} ({us_text(min(effect.low_us, effect.high_us))} to "
        f"{us_text(max(effect.low_us, effect.high_us))})"
        for effect in times.effects[:MAX_EFFECTS]
        if effect.faster_us(times.time_us) or effect.slower_us(times.time_us)
    ]
    ends = f"{us_text(times.low_us)} to {us_text(times.high_us)}"
    text, figures = f"{ends} us", ", most from"
    if times.spread != NO_SPREAD:
        text += f": {spread_text(times.spread, times.work)}"
        figures = "; figures that matter most:"
    if reasons:
        text += f"{figures} {', '.join(reasons)}"
    return Key(ReportLine("range", text), (f"{ends} \u00b5s", "range of the time"))


def _speed(result: CallFacts) -> Iterator[Key]:
    """Useful and executed speed over the whole call, launches included, and the peak."""
    device = result.device
    executed = metrics.tflops(device, sum(run.macs for run in result.runs), result.cycles)
    if not executed:
        return
    peaks = [metrics.cube_peak(device, run, result.dtype) for run in result.runs if run.macs]
    known_peaks = [peak for peak in peaks if peak is not None]
    suffix = ""
    if known_peaks:
        peak = max(known_peaks, key=lambda peak: peak.tflops)
        cores = counted(peak.cores, "core")
        suffix = f"; peak {rate_text(peak.tflops)} ({peak.dtype}, {cores})"
    executed_text = rate_text(executed)
    useful = metrics.tflops(device, sum(result.useful_macs.values()), result.cycles)
    if useful:
        useful_text = rate_text(useful)
        yield Key(
            ReportLine(
                "speed", f"{useful_text} TFLOPS over the call, executed {executed_text}{suffix}"
            ),
            (f"{useful_text} TFLOPS", f"useful over the call; executed {executed_text}"),
        )
    else:
        yield Key(
            ReportLine("speed", f"executed {executed_text} TFLOPS over the call{suffix}"),
            (f"{executed_text} TFLOPS", "executed over the call"),
        )


def _notes(result: CallFacts) -> list[str]:
    """Kernels that matter and are far from their bounds, then the notes of the call."""
    least = int(advice.WORTH_A_LINE * result.cycles)
    return [*advice.slow_kernels(result, least), *result.notes]


def _timeline(result: CallFacts) -> Iterator[Part]:
    """The timeline, or why there is none."""
    if not tables.has_timeline(result.runs):
        yield Note("No timeline was kept; run with timeline=True to see it.")
        return
    figure = timeline.interactive(result)
    yield figure if figure.marks else Note("No instruction was executed.")


def _roofline(result: CallFacts) -> Iterator[Part]:
    """The kernels that multiply below the roofs of their cores."""
    if any(run.macs and run.cycles for run in result.runs):
        yield roofline.of_call(result)


def _pipes(result: CallFacts) -> Iterator[Part]:
    """Stacked bars: where each pipe's time went, mean over cores, per kernel that matters.

    Of the pipe to shorten or to keep fed also its busiest core.
    """
    titles = dict(zip(map(id, result.runs), metrics.titles(result.runs), strict=True))
    major = [(run, metrics.pipe_shares(run)) for run in advice.major_kernels(result.runs)]
    pipes = [pipe for _, shares in major for pipe in shares]
    if not pipes:
        return
    yield Colours(_reason_colours(pipes))
    rows: list[tuple[Cell | str, ...]] = []
    for run, shares in major:
        title = titles[id(run)]
        critical = metrics.critical_pipe(shares)
        for pipe in shares:
            rows.append((title, pipe.pipe, "mean", *_bar(pipe.pipe, pipe.mean)))
            if pipe is critical:
                core = Cell(f"{pipe.busiest_core}, busiest", plain=pipe.busiest_core)
                rows.append((title, pipe.pipe, core, *_bar(pipe.pipe, pipe.busiest)))
    heads = ("kernel", "pipe", "core", "busy", "share of the kernel's cycles")
    yield Table("", heads, rows, 3, bar_names=REASONS)
    hidden = len(result.runs) - len(major)
    if hidden:
        yield InText(Note(f"({counted(hidden, 'shorter kernel')}: see r.pipes)"))


def _reason_colours(pipes: Sequence[PipeShare]) -> list[tuple[str, str]]:
    """Colours of the work of pipes, then of the reasons for which they wait."""
    used = [name for place, name in enumerate(REASONS) if any(pipe.mean[place] for pipe in pipes)]
    works: dict[str, list[str]] = {}
    for name in dict.fromkeys(pipe.pipe for pipe in pipes):
        works.setdefault(palette.work_colour(name), []).append(name)
    busy = [(f"busy ({', '.join(names)})", colour) for colour, names in works.items()]
    waits = [(name, palette.REASON_COLOURS[name]) for name in used if name != REASONS[BUSY]]
    return [*busy, *waits]


def _lines(result: CallFacts) -> Iterator[Part]:
    """Demands of lines on their pipe, per kernel that matters, and lines that leave lanes idle."""
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
        if any(run is kernel for kernel in major):
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


#: Paths in the text before the rest is added up in one row.
MAX_PATHS = 12


def _traffic(result: CallFacts) -> Iterator[Part]:
    """Bytes, L2 hits and mean bandwidth per path; main memory against its peak."""
    totals = metrics.path_totals(result.runs)
    if not totals:
        return
    device = result.device
    seconds = sum(run.cycles for run in result.runs) / device.clock_hz
    table = traffic_table(totals, seconds=seconds)
    yield InText(table)
    yield OnPage(lambda: [Pair((memories.drawn(device, totals), table))])
    yield from _main_memory(result, seconds)


def _main_memory(result: CallFacts, seconds: float) -> Iterator[Note]:
    """How much of main memory's bandwidth the kernels used."""
    memory = result.device.main_memory
    read, written = 0, 0
    for run in result.runs:
        read_bytes, written_bytes = metrics.main_memory_bytes(run)
        read += read_bytes
        written += written_bytes
    peak = float(memory.read_bytes_per_cycle) * result.device.clock_hz
    if not seconds or not (read or written):
        return
    used = percent_text((read + written) / seconds / peak)
    yield Note(
        f"main memory: {bytes_text(read)} read, {bytes_text(written)} written, {used} of its "
        f"{rate_text(peak / 1e9)} GB/s",
        level=1,
    )


def traffic(device: Device, totals: Sequence[PathTotal], *, operands: bool = True) -> Pair:
    """The memories with the bytes of ``totals``, and the same as a table.

    It has a row for each of the ``operands`` of a path, or where their names say nothing one.
    """
    return Pair((memories.drawn(device, totals), traffic_table(totals, operands=operands)))


def traffic_table(
    totals: Sequence[PathTotal], *, operands: bool = True, seconds: float | None = None
) -> Table:
    """A row for each path: its operand, bytes, and L2 hits; in ``seconds`` also bytes a second."""
    heads = ["path", "bytes", "L2 hits"]
    if operands:
        heads.insert(1, "operand")
    if seconds is not None:
        heads.append("GB/s")
    rows = []
    for total in totals:
        path = f"{total.src}\u2192{total.dst}"
        row: list[Cell | str] = [Cell(path, plain=f"  {total.src}->{total.dst}")]
        if operands:
            row.append(total.operand)
        row.append(Cell.size(total.bytes))
        row.append("" if total.hit_share is None else percent_text(total.hit_share))
        if seconds is not None:
            row.append(rate_text(total.bytes / seconds / 1e9) if seconds else "-")
        rows.append(row)
    rest = sum(total.bytes for total in totals[MAX_PATHS:])
    more = f"  {len(totals) - MAX_PATHS} more"
    return Table(
        "",
        heads,
        rows,
        2 if operands else 1,
        most=MAX_PATHS,
        rest=(more, "", bytes_text(rest)),
    )


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
    """Texts of tables on each kernel, by column; "" where there is nothing to say."""
    device = result.device
    for run, name in zip(result.runs, metrics.titles(result.runs), strict=True):
        peak = metrics.cube_peak(device, run, result.dtype) if run.macs else None
        executed = metrics.tflops(device, run.macs, run.cycles)
        useful = metrics.tflops(device, run.useful_macs, run.cycles)
        bounds = (metrics.nearest_bound(run), metrics.problem_bound(run))
        bound, problem = (
            percent_text(metrics.share(limit.cycles, run.cycles)) if limit is not None else ""
            for limit in bounds
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

_ABOUT_KERNELS = Note(
    "bound, problem: share of the time that the program, or any for its problem, would need at "
    "least"
)

#: Columns of kernels that a text has.
_IN_TEXT = ("kernel", "us", "launch", "share", "TFLOPS", "of peak", "GM", "cores")


def _kernels(result: CallFacts) -> Iterator[Part]:
    """A row per kernel; a page has more columns, without those that are empty for all kernels."""
    cells = [*kernel_cells(result)]
    names = [name for name in cells[0] if any(row[name] for row in cells)] if cells else []
    on_page = [name for name in names if name != "share"]
    if cells:
        rows = [
            [Cell.size(run.gm_bytes) if name == "GM" else row[name] for name in on_page]
            for row, run in zip(cells, result.runs, strict=True)
        ]
        tiled = "tiling" in on_page
        heads = [_HEADS.get(name, name) for name in on_page]
        table = Table("", heads, rows, 2 if tiled else 1, long=(1,) if tiled else ())
        yield OnPage(lambda: [table, _ABOUT_KERNELS])
    rows_of_text = [[row[name] for name in _IN_TEXT] for row in cells]
    yield InText(Table("", _IN_TEXT, rows_of_text, 1, blank="-"))
    for run in advice.major_kernels(result.runs):
        if run.tiling:
            mark = " (extrapolated)" if run.extrapolated else ""
            yield InText(ReportLine("tiling", f"{run.name}: {run.tiling}{mark}"))


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
    table = Table.of(columns, rows, 4, long=("why",))
    least = Note(f"The call takes at least {result.at_least.text(PROBLEM)}.")
    yield OnPage(lambda: [table, least])
    for run in advice.major_kernels(result.runs):
        program = _shares(run, run.bounds)
        if program:
            yield InText(Note(f"{run.name}: {program}", level=1))
        problem = _shares(run, run.problem_bounds)
        if problem:
            yield InText(Note(f"any program: {problem}", level=2))


def _shares(run: KernelRun, bounds: Sequence[Bound]) -> str:
    """Bounds as shares of a kernel's time, the nearest first and with its reason."""
    ordered = sorted(bounds, key=lambda bound: -bound.cycles)
    texts = [
        f"{bound.resource} {percent_text(metrics.share(bound.cycles, run.cycles))}"
        for bound in ordered
        if bound.cycles
    ]
    if texts:
        texts[0] += f" ({ordered[0].why})"
    return ", ".join(texts)


#: Kinds of work in the text before the rest is added up.
MAX_ENERGIES = 6


def _energy(result: CallFacts) -> Iterator[Part]:
    """Energy by its cause, most first; or the figures that the device file lacks."""
    spent = result.spent
    if spent.missing:
        yield Note(no_energy(spent))
    if spent.uj is None or not spent.rows:
        return
    rows = [_energy_cells(row, spent.uj) for row in spent.rows]
    rest = sum(row.uj for row in spent.rows[MAX_ENERGIES:])
    more = f"  {len(spent.rows) - MAX_ENERGIES} more"
    yield Table(
        "",
        ("work", "amount", "each", "uJ", "share"),
        rows,
        1,
        most=MAX_ENERGIES,
        rest=(more, "", "", rate_text(rest), percent_text(rest / spent.uj) if rest else ""),
    )
    watt = f" ({rate_text(spent.uj / result.time_us)} W)" if result.time_us else ""
    assumed = f"{spent.assumed} of {counted(len(spent.rows), 'figure')} assumed"
    yield Note(f"all: {rate_text(spent.uj)} uJ{watt}; {assumed}", level=1)


def _energy_cells(row: EnergyRow, total_uj: float) -> tuple[Cell | str, ...]:
    """A kind of work: its amount, what each takes, and its share of the energy."""
    amount, each = f"{rate_text(row.amount)} us", f"{rate_text(row.each)} W"
    if row.unit == "B":
        amount, each = bytes_text(row.amount), f"{rate_text(row.each)} pJ/B"
    elif row.unit == "MAC":
        amount, each = f"{rate_text(row.amount / 1e6)} M", f"{rate_text(row.each)} pJ"
    name = row.figure.replace(f".{ENERGY}", "").removeprefix("paths.")
    return (
        Cell(name, plain=f"  {name}"),
        Cell(amount, row.amount),
        Cell(each, row.each),
        Cell(rate_text(row.uj), row.uj),
        Cell(percent_text(row.uj / total_uj), row.uj),
    )
