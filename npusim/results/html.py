"""One self-contained web page per call: figures, plots and tables, no outside assets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from npusim.reasons import REASONS
from npusim.results import advice, metrics, page, palette, plots, tables
from npusim.results.lines import bytes_text, percent_text, rate_text, us_text
from npusim.results.record import Record
from npusim.timing.trace import KernelRun


def save(result: Record, path: Path) -> None:
    """Write the page to ``path``."""
    path.write_text(render(result), encoding="utf-8")


def render(result: Record) -> str:
    """The page as text; every string of the result is escaped."""
    title = escape(f"{result.operator} on {result.device.name}")
    body = (
        f"<h1>{title}</h1>",
        f"<p>{escape(result.problem)}</p>",
        _origin(result),
        _cards(result),
        _list("What would make it faster", advice.advise(result.runs)),
        _plots(result),
        _kernels(result),
        _pipes(result),
        _traffic(result),
        _bounds(result),
        _list("Notes", result.notes),
    )
    return page.page(title, body)


def _origin(result: Record) -> str:
    """What is needed to reproduce the figures."""
    text = (
        f"npusim {result.version}, device {result.device.name} "
        f"(digest {result.device.digest()}), {result.device.clock_hz / 1e9:g} GHz"
    )
    return f'<p class="dim">{escape(text)}</p>'


def _cards(result: Record) -> str:
    """The key figures of the call."""
    macs = sum(run.macs for run in result.runs)
    executed = rate_text(metrics.tflops(result.device, macs, result.cycles))
    needed = sum(result.useful_macs.values())
    useful = rate_text(metrics.tflops(result.device, needed, result.cycles))
    speed = (f"{useful} TFLOPS", f"over the call, executed {executed}")
    if not needed:
        speed = (f"{executed} TFLOPS", "executed over the call")
    bound = metrics.call_bound(result.runs)
    in_kernels = sum(run.cycles for run in result.runs)
    cards = [
        (f"{us_text(result.time_us)} \u00b5s", f"time, {result.cycles:,} cycles"),
        speed,
        (bytes_text(sum(run.gm_bytes for run in result.runs)), "from and to GM"),
    ]
    if result.known_time_range is not None:
        low, high = result.known_time_range.low_us, result.known_time_range.high_us
        cards.insert(1, (f"{us_text(low)} to {us_text(high)} \u00b5s", "range of the time"))
    if bound is not None:
        near = percent_text(metrics.share(bound.cycles, in_kernels))
        cards.append((f"{bound.resource} {near}", "bottleneck, share of the time in kernels"))
    if result.problem_us is not None:
        least = result.problem_bounds[0].resource
        cards.append((f"{us_text(result.problem_us)} \u00b5s", f"least of any program, {least}"))
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span class="dim">{escape(name)}</span></div>'
        for value, name in cards
    )
    return f'<div class="cards">{inner}</div>'


def _list(title: str, items: Iterable[str]) -> str:
    inner = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<h2>{escape(title)}</h2><ul>{inner}</ul>" if inner else ""


def _plots(result: Record) -> str:
    """The plots; the timeline as pixels because it may hold a hundred thousand bars."""
    parts = ["<h2>Plots</h2>"]
    if tables.has_timeline(result.runs):
        parts.append(page.figure(plots.plot_timeline(result), "png", "timeline by core and pipe"))
    else:
        parts.append('<p class="dim">No timeline was kept; run with timeline=True to see it.</p>')
    parts.append('<div class="pair">')
    parts.append(page.figure(plots.plot_roofline(result), "svg", "roofline"))
    parts.append(page.figure(plots.plot_traffic(result), "svg", "bytes moved per path"))
    parts.append("</div>")
    return "".join(parts)


def _kernels(result: Record) -> str:
    heads = (
        "kernel",
        "tiling",
        "\u00b5s",
        "launch \u00b5s",
        "cycles",
        "TFLOPS",
        "executed",
        "of peak",
    )
    rows = [_kernel_cells(result, run) for run in result.runs]
    return "<h2>Kernels</h2>" + page.table((*heads, "GM", "cores", "instructions"), rows, 2)


def _kernel_cells(result: Record, run: KernelRun) -> tuple[str, ...]:
    device, useful = result.device, run.useful_macs
    peak = metrics.cube_peak(device, run, result.dtype) if run.macs else None
    executed = metrics.tflops(device, run.macs, run.cycles)
    return (
        run.name,
        run.tiling,
        us_text(device.time_us(run.cycles)),
        us_text(device.time_us(run.launch_cycles)),
        f"{run.cycles:,}",
        rate_text(metrics.tflops(device, useful, run.cycles)) if useful else "\u2013",
        rate_text(executed) if run.macs else "\u2013",
        percent_text(executed / peak.tflops) if peak is not None else "\u2013",
        bytes_text(run.gm_bytes),
        str(run.cores),
        f"{run.instructions:,}",
    )


def _pipes(result: Record) -> str:
    """Stacked bars: where each pipe's time went, mean over cores, per kernel that matters."""
    shown = [(run, metrics.pipe_shares(run)) for run in advice.major_kernels(result.runs)]
    means = [one.mean for _, shares in shown for one in shares]
    key = "".join(
        f'<span><i style="background:{palette.REASON_COLOURS[reason]}"></i>{reason}</span>'
        for place, reason in enumerate(REASONS)
        if any(mean[place] for mean in means)
    )
    parts = [f'<h2>Where the time went</h2><div class="key">{key}</div>']
    for run, shares in shown:
        rows = []
        critical = metrics.critical_pipe(shares)
        for one in shares:
            rows.append(_bar_row(one.pipe, "mean of cores", one.mean))
            if one is critical:
                rows.append(_bar_row(one.pipe, f"{one.busiest_core}, busiest", one.busiest))
        parts.append(
            f"<h3>{escape(run.name)}</h3><table><thead><tr><th>pipe</th><th>core</th>"
            f'<th class="n">busy</th><th>share of the kernel\'s cycles</th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table>"
        )
    return "".join(parts)


def _bar_row(pipe: str, core: str, shares: Sequence[float]) -> str:
    segments = "".join(
        f'<i style="width:{share * 100:.3f}%;background:{palette.REASON_COLOURS[reason]}" '
        f'title="{reason} {share * 100:.1f} %"></i>'
        for reason, share in zip(REASONS, shares, strict=True)
        if share > 0
    )
    return (
        f'<tr><td>{escape(pipe)}</td><td>{escape(core)}</td><td class="n">'
        f'{shares[0] * 100:.1f} %</td><td class="wide"><div class="bar">{segments}</div></td></tr>'
    )


def _traffic(result: Record) -> str:
    heads = ("kernel", "path", "operand", "bytes", "L2 hits", "L2 misses")
    rows = (
        (
            row["kernel"],
            f"{row['src']}\u2192{row['dst']}",
            row["operand"],
            bytes_text(row["bytes"]),
            bytes_text(row["hit_bytes"]) if row["hit_bytes"] or row["miss_bytes"] else "",
            bytes_text(row["miss_bytes"]) if row["hit_bytes"] or row["miss_bytes"] else "",
        )
        for row in tables.traffic_rows(result.runs)
        if row["bytes"]
    )
    return "<h2>Traffic</h2>" + page.table(heads, rows, 3)


def _bounds(result: Record) -> str:
    heads = ("kernel", "of the", "resource", "why", "cycles", "of simulated")
    rows = (
        (
            row["kernel"],
            row["of"],
            row["resource"],
            row["why"],
            f"{row['cycles']:,}",
            percent_text(row["share"]),
        )
        for row in tables.bound_rows(result.runs)
        if row["cycles"]
    )
    return "<h2>Lower bounds</h2>" + page.table(heads, rows, 4)
