"""The report for people: where the time went and what would make it faster, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.base.reasons import REASONS
from npusim.machine.device.parts import ENERGY
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.results.facts import advice, metrics
from npusim.results.facts.call import CallFacts
from npusim.results.facts.energy import Energy, no_energy
from npusim.results.facts.least import PROBLEM
from npusim.results.facts.metrics import PipeShare
from npusim.results.facts.number_text import (
    bytes_text,
    counted,
    launched_text,
    percent_text,
    rate_text,
    us_text,
)
from npusim.results.facts.time_range import TimeRange
from npusim.results.shown.call import kernel_cells
from npusim.results.writers.text_layout import WIDTH, columns, fact, items, page, wrap

#: Paths of the traffic table before the rest is added up in one row.
MAX_PATHS = 12
#: Kinds of work in the table of energy before the rest is added up.
MAX_ENERGIES = 6
#: Figures named with the range of the time, those that matter most.
MAX_EFFECTS = 3


def render(result: CallFacts) -> str:
    """The whole report, lines of at most 80 columns and a final newline."""
    least = int(advice.WORTH_A_LINE * result.cycles)
    sections = (
        _header(result),
        _kernels(result),
        _where(result),
        _bounds(result),
        _traffic(result),
        _energy(result.spent, result.time_us),
        items("WHAT WOULD MAKE IT FASTER", [one.text for one in result.advice]),
        items("NOTES", (*advice.slow_kernels(result, least), *result.notes)),
    )
    return page(sections)


def _header(result: CallFacts) -> list[str]:
    """Operator, problem, device, time, speed and bottleneck of the call."""
    device = result.device
    launches = sum(run.launch_cycles for run in result.runs)
    cores = max((run.cores for run in result.runs), default=0)
    lines = [
        *fact("operator", f"{result.operator} (npusim {result.version})"),
        *fact("problem", result.problem),
        *fact(
            "device",
            f"{device.name}, {device.clock_hz / 1e9:g} GHz, {counted(cores, 'core')} used, "
            f"digest {result.device.digest()}",
        ),
        *fact(
            "time",
            f"{us_text(result.time_us)} us = {result.cycles:,} cycles, of which launches "
            f"{us_text(device.time_us(launches))} us{launched_text(device.launch_mode)}",
        ),
        *_range(result.known_time_range),
    ]
    lines += _speed(result)
    if result.verdict is not None:
        lines += fact("bottleneck", f"{result.verdict.text()} {result.verdict.how}")
    if result.problem_bounds and result.cycles:
        least = result.problem_bounds[0]
        share = percent_text(metrics.share(least.cycles, result.cycles))
        lines += fact("at least", f"{result.at_least.first(PROBLEM)}: {share} of the time")
    if result.workspace_bytes:
        lines += fact("workspace", f"{bytes_text(result.workspace_bytes)} between the kernels")
    return lines


def _range(known: TimeRange | None) -> list[str]:
    """Between which times the call takes, and why; nothing where that has not been asked for."""
    if known is None:
        return []
    moved = [
        f"{one.figure} ({us_text(min(one.low_us, one.high_us))} to "
        f"{us_text(max(one.low_us, one.high_us))})"
        for one in known.effects[:MAX_EFFECTS]
        if one.faster_us(known.time_us) or one.slower_us(known.time_us)
    ]
    ends = f"{us_text(known.low_us)} to {us_text(known.high_us)} us"
    if known.spread != (1.0, 1.0):
        moved.append(
            "measured calls ({:.2f} to {:.2f} of the simulated time)".format(*known.spread)
        )
    return fact("range", f"{ends}, most from {', '.join(moved)}" if moved else ends)


def _speed(result: CallFacts) -> list[str]:
    """Useful and executed speed over the whole call, launches included, and the peak."""
    executed = metrics.tflops(result.device, sum(run.macs for run in result.runs), result.cycles)
    if not executed:
        return []
    macs = sum(result.useful_macs.values())
    useful = metrics.tflops(result.device, macs, result.cycles)
    speed = f"{rate_text(useful)} TFLOPS over the call, executed " if useful else "executed "
    unit = "" if useful else " TFLOPS over the call"
    peaks = [metrics.cube_peak(result.device, run, result.dtype) for run in result.runs if run.macs]
    peak = max((one for one in peaks if one is not None), key=lambda one: one.tflops, default=None)
    text = f"{speed}{rate_text(executed)}{unit}"
    if peak is not None:
        text += f"; peak {rate_text(peak.tflops)} ({peak.dtype}, {counted(peak.cores, 'core')})"
    return fact("speed", text)


def _kernels(result: CallFacts) -> list[str]:
    """Time, speed and size of each kernel, then how it was tiled."""
    heads = ("us", "launch", "share", "TFLOPS", "of peak", "GM", "cores")
    cells = [(one["kernel"], *(one[head] or "-" for head in heads)) for one in kernel_cells(result)]
    tilings = [
        line
        for run in advice.major_kernels(result.runs)
        if run.tiling
        for line in fact("tiling", f"{run.name}: {run.tiling}")
    ]
    return ["", *columns([("KERNELS", *heads), *cells], width=WIDTH), *tilings]


def _where(result: CallFacts) -> list[str]:
    """Per pipe, the mean over cores by reason; for the critical pipe also its busiest core."""
    shown = advice.major_kernels(result.runs)
    shares = [metrics.pipe_shares(run) for run in shown]
    every = [one for kernel in shares for one in kernel]
    if not every:
        return []
    names, parts = _reasons_shown(every)
    rows: list[tuple[str, ...]] = [("  pipe", "core", *names)]
    for kernel in shares:
        critical = metrics.critical_pipe(kernel)
        for one in kernel:
            rows.append((f"  {one.pipe}", "mean", *_percents(one.mean, parts)))
            if one is critical:
                rows.append((f"  {one.pipe}", one.busiest_core, *_percents(one.busiest, parts)))
    table = iter(columns(rows, left=2))
    lines = ["", "WHERE THE TIME WENT (% of the kernel's cycles)", next(table)]
    titles = dict(zip(map(id, result.runs), metrics.titles(result.runs), strict=True))
    for run, kernel in zip(shown, shares, strict=True):
        lines.append(titles[id(run)])
        lines += [next(table) for _ in range(len(kernel) + bool(kernel))]
    hidden = len(result.runs) - len(shown)
    return [*lines, f"({counted(hidden, 'shorter kernel')}: see r.pipes)"] if hidden else lines


def _reasons_shown(every: Sequence[PipeShare]) -> tuple[list[str], list[tuple[int, ...]]]:
    """Heads of the columns that fit the page, and the reasons that each adds up.

    Those that occur, without the smallest ones where they are too many: these are "rest".
    """
    used = [at for at, _ in enumerate(REASONS) if any(one.mean[at] > 0 for one in every)]
    most = {at: max(max(one.mean[at], one.busiest[at]) for one in every) for at in used}
    cores = max(len(one.busiest_core) for one in every)
    small: list[int] = []
    while True:
        kept = [at for at in used if at not in small]
        names = [*(REASONS[at] for at in kept), *["rest"][: len(small)]]
        if 6 + 2 + max(4, cores) + sum(2 + max(5, len(name)) for name in names) <= WIDTH:
            return names, [*((at,) for at in kept), *[tuple(small)][: len(small)]]
        small.append(min(kept, key=lambda at: most[at]))


def _percents(shares: Sequence[float], parts: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Per cent with one decimal, blank for what never happened."""
    sums = [sum(shares[at] for at in part) for part in parts]
    return tuple(f"{one * 100:.1f}" if one else "" for one in sums)


def _bounds(result: CallFacts) -> list[str]:
    """The lower bounds of each kernel that matters, nearest first and explained.

    Those of the program that ran, then those of any program for its problem.
    """
    lines = []
    for run in advice.major_kernels(result.runs):
        lines += _shares(run, f"{run.name}: ", run.bounds)
        lines += _shares(run, "any program: ", run.problem_bounds, "    ")
    title = "BOUNDS (share of the simulated time that one resource alone would need)"
    return ["", title, *lines] if lines else []


def _shares(run: KernelRun, head: str, bounds: Sequence[Bound], indent: str = "  ") -> list[str]:
    """Bounds as shares of a kernel's time, the nearest with its reason."""
    ordered = sorted(bounds, key=lambda bound: -bound.cycles)
    parts = [
        f"{bound.resource} {percent_text(metrics.share(bound.cycles, run.cycles))}"
        for bound in ordered
        if bound.cycles
    ]
    if not parts:
        return []
    parts[0] += f" ({ordered[0].why})"
    return wrap(head + ", ".join(parts), indent, indent + "  ")


def _traffic(result: CallFacts) -> list[str]:
    """Bytes, L2 hits and mean bandwidth per path; main memory against its peak."""
    paths = metrics.path_totals(result.runs)
    if not paths:
        return []
    seconds = sum(run.cycles for run in result.runs) / result.device.clock_hz
    heads = ("TRAFFIC", "operand", "bytes", "L2 hits", "GB/s")
    rows: list[tuple[str, ...]] = [heads]
    for path in paths[:MAX_PATHS]:
        hits = "" if path.hit_share is None else percent_text(path.hit_share)
        rate = rate_text(path.bytes / seconds / 1e9) if seconds else "-"
        name = f"  {path.src}->{path.dst}"
        rows.append((name, path.operand, bytes_text(path.bytes), hits, rate))
    rest = sum(path.bytes for path in paths[MAX_PATHS:])
    if rest:
        rows.append((f"  {len(paths) - MAX_PATHS} more", "", bytes_text(rest), "", ""))
    return ["", *columns(rows, left=2, width=WIDTH), *_main_memory(result, seconds)]


def _energy(spent: Energy, time_us: float) -> list[str]:
    """What took energy, most first; or which figures the device file lacks."""
    if spent.missing or not spent.rows or spent.uj is None:
        return ["", *wrap(no_energy(spent), "ENERGY  ", "  ")] if spent.missing else []
    watt = f" ({rate_text(spent.uj / time_us)} W)" if time_us else ""
    rows: list[tuple[str, ...]] = [("ENERGY", "amount", "each", "uJ", "share")]
    for row in spent.rows[:MAX_ENERGIES]:
        amount = bytes_text(row.amount) if row.unit == "B" else f"{rate_text(row.amount)} us"
        each = f"{rate_text(row.each)} pJ/B" if row.unit == "B" else f"{rate_text(row.each)} W"
        if row.unit == "MAC":
            amount, each = f"{rate_text(row.amount / 1e6)} M", f"{rate_text(row.each)} pJ"
        name = row.figure.replace(f".{ENERGY}", "").removeprefix("paths.")
        cells = f"  {name}", amount, each, rate_text(row.uj), percent_text(row.uj / spent.uj)
        rows.append(cells)
    rest = sum(row.uj for row in spent.rows[MAX_ENERGIES:])
    if rest:
        more = f"  {len(spent.rows) - MAX_ENERGIES} more"
        rows.append((more, "", "", rate_text(rest), percent_text(rest / spent.uj)))
    whole = f"  all: {rate_text(spent.uj)} uJ{watt}; "
    known = f"{spent.assumed} of {counted(len(spent.rows), 'figure')} assumed"
    return ["", *columns(rows), whole + known]


def _main_memory(result: CallFacts, seconds: float) -> list[str]:
    """How much of main memory's bandwidth the kernels used."""
    memory = result.device.main_memory
    sums = [metrics.main_memory_bytes(run) for run in result.runs]
    read, written = (sum(column) for column in zip(*sums, strict=True))
    peak = float(memory.read_bytes_per_cycle) * result.device.clock_hz
    if not seconds or not (read or written):
        return []
    used = percent_text((read + written) / seconds / peak)
    return [
        f"  main memory: {bytes_text(read)} read, {bytes_text(written)} written, {used} of its "
        f"{rate_text(peak / 1e9)} GB/s"
    ]
