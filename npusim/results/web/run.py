"""The page of one call: what it took and why, then everything behind it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from npusim.base.reasons import BUSY, REASONS
from npusim.device.spec import Device
from npusim.results import advice, metrics, palette, roofline, tables
from npusim.results.lines import counted, percent_text
from npusim.results.record import Record
from npusim.results.roofline import Roofs
from npusim.results.web import bars, hierarchy, page, summary
from npusim.results.web.bars import Picture
from npusim.results.web.charts import roofline as roofline_chart
from npusim.results.web.charts import timeline as timeline_chart
from npusim.results.web.charts.timeline import AROUND, STRIP, TRACK
from npusim.results.web.page import Chart
from npusim.timing.trace import KernelRun


def render(result: Record) -> str:
    """The page as text; every string of the result is escaped."""
    drawn: list[Chart] = []
    parts = (
        page.cards(summary.cards(result)),
        page.section("What would make it faster", page.bullets(advice.advise(result.runs))),
        page.section("Timeline", _timeline(result, drawn)),
        page.section("Where the time went", _pipes(result)),
        page.section("Memory traffic", traffic(result.device, result.runs)),
        page.section("Traffic of each kernel", _kernel_traffic(result), opened=False),
        page.section("Roofline", _roofline(result, drawn)),
        page.section("Kernels", summary.kernels(result)),
        page.section("Lower bounds", _bounds(result), opened=False),
        page.section("Notes", page.bullets(result.notes)),
    )
    origin = (
        f"npusim {result.version}, device {result.device.name} "
        f"(digest {result.device.digest()}), {result.device.clock_hz / 1e9:g} GHz"
    )
    title = f"{result.operator} on {result.device.name}"
    return page.report(title, [result.problem], summary.verdict(result), parts, origin, drawn)


def _timeline(result: Record, drawn: list[Chart]) -> str:
    if not tables.has_timeline(result.runs):
        return '<p class="dim">No timeline was kept; run with timeline=True to see it.</p>'
    picture = bars.picture(result)
    if not picture.bars:
        return '<p class="dim">No instruction was executed.</p>'
    drawn.append(timeline_chart.timeline(picture))
    height = TRACK * (len(picture.tracks) + 1) + AROUND + STRIP
    caption = (
        "Drag to move; zoom with the buttons, with Ctrl and the wheel, or by dragging the frame in "
        "the strip of all kernels. Waits are the low bars before what waited. Shown are the first "
        "and the slowest core of each kernel."
    )
    if picture.gap:
        gap = picture.gap * picture.us_per_cycle * 1000
        caption += f" Gaps below {gap:,.0f} ns between alike instructions are not drawn."
    kinds = (
        (f"waits: {one.name}" if one.waits else one.name, one.colour, timeline_chart.bar_name(one))
        for one in picture.bars
    )
    return (
        _jumps(picture)
        + page.place(drawn[-1], height, "timeline by core and pipe", caption)
        + page.toggles(kinds)
    )


def _jumps(picture: Picture) -> str:
    """A button for each kernel that shows it alone, and one for the whole call."""
    us = picture.us_per_cycle
    kernels = [span for span in picture.spans if not span.launch]
    places = [("whole call", 0.0, picture.cycles * us)]
    if len(picture.spans) > 1:
        places += [(one.name, one.left * us, one.right * us) for one in kernels]
    return page.jumps(places)


def _roofline(result: Record, drawn: list[Chart]) -> str:
    named = zip(result.runs, metrics.titles(result.runs), strict=True)
    points = [roofline.point(result.device, r, name) for r, name in named if r.macs and r.cycles]
    if not points:
        return ""
    roofs = roofline.roofs(result.device, result.runs, result.dtype, points)
    drawn.append(roofline_chart.roofline(roofs, [(one, "") for one in points]))
    return page.place(drawn[-1], roofline_chart.HEIGHT, "roofline", roof_caption(roofs))


def roof_caption(roofs: Roofs) -> str:
    """What the lines and marks of a roofline stand for."""
    lines = [
        f"{roofline_chart.DASHES[name]}: {name}, {rate:.2f} TB/s"
        for name, rate in roofs.rates.items()
    ]
    if roofs.peak is not None:
        cores = counted(roofs.peak.cores, "core")
        lines.append(f"level: {roofs.peak.dtype} peak of {cores}, {roofs.top:,.3g} TFLOP/s")
    marks = (
        "Circle: bytes that cores moved from and to GM, to compare with the L2; diamond: bytes of "
        "main memory; dash: closed-form bound of the program."
    )
    return f"Roofs: {'; '.join(lines)}. {marks}"


def _pipes(result: Record) -> str:
    """Stacked bars: where each pipe's time went, mean over cores, per kernel that matters."""
    names = dict(zip(map(id, result.runs), metrics.titles(result.runs), strict=True))
    shown = [(run, metrics.pipe_shares(run)) for run in advice.major_kernels(result.runs)]
    means = [one.mean for _, shares in shown for one in shares]
    used = [name for at, name in enumerate(REASONS) if any(mean[at] for mean in means)]
    if not used:
        return ""
    waits = [(name, palette.REASON_COLOURS[name]) for name in used if name != REASONS[BUSY]]
    works: dict[str, list[str]] = {}
    for pipe in dict.fromkeys(one.pipe for _, shares in shown for one in shares):
        works.setdefault(palette.work_colour(pipe), []).append(pipe)
    busy = [(f"busy ({', '.join(pipes)})", colour) for colour, pipes in works.items()]
    parts = [page.key((*busy, *waits))]
    for run, shares in shown:
        rows = []
        critical = metrics.critical_pipe(shares)
        for one in shares:
            rows.append(_bar_row(one.pipe, "mean", one.mean))
            if one is critical:
                rows.append(_bar_row(one.pipe, f"{one.busiest_core}, busiest", one.busiest))
        parts.append(
            f'<h3>{escape(names[id(run)])}</h3><div class="scroll"><table class="pipes"><thead>'
            '<tr><th>pipe</th><th>core</th><th class="n">busy</th>'
            '<th class="wide">share of the kernel\'s cycles</th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )
    return "".join(parts)


def _bar_row(pipe: str, core: str, shares: Sequence[float]) -> str:
    parts = zip(REASONS, shares, (_reason_colour(one, pipe) for one in REASONS), strict=True)
    return (
        f'<tr><td>{escape(pipe)}</td><td>{escape(core)}</td><td class="n">'
        f"{shares[BUSY] * 100:.1f} %</td><td>{page.bar(parts)}</td></tr>"
    )


def _reason_colour(reason: str, pipe: str) -> str:
    busy = reason == REASONS[BUSY]
    return palette.work_colour(pipe) if busy else palette.REASON_COLOURS[reason]


def traffic(device: Device, runs: Sequence[KernelRun]) -> str:
    """The memories with the bytes that ``runs`` moved, and the same as a table."""
    totals = metrics.path_totals(runs)
    heads = ("path", "operand", "bytes", "L2 hits")
    rows = (
        (
            f"{one.src}\u2192{one.dst}",
            one.operand,
            summary.size_cell(one.bytes),
            "" if one.hit_share is None or device.l2 is None else percent_text(one.hit_share),
        )
        for one in totals
    )
    table = page.table(heads, rows, 2)
    drawing = hierarchy.draw(device, totals)
    return f'<div class="pair">{drawing}<div>{table}</div></div>' if totals else ""


def _kernel_traffic(result: Record) -> str:
    heads = ("kernel", "path", "operand", "bytes", "L2 hits", "L2 misses")
    rows = []
    for run, name in zip(result.runs, metrics.titles(result.runs), strict=True):
        for row in run.traffic:
            if row.bytes:
                cached = row.hit_bytes or row.miss_bytes
                split = [
                    summary.size_cell(n) if cached else "" for n in (row.hit_bytes, row.miss_bytes)
                ]
                path = f"{row.src}\u2192{row.dst}"
                rows.append((name, path, row.operand, summary.size_cell(row.bytes), *split))
    return page.table(heads, rows, 3) if len(result.runs) > 1 else ""


def _bounds(result: Record) -> str:
    heads = ("kernel", "of the", "resource", "why", "cycles", "of simulated")
    rows = []
    for run, name in zip(result.runs, metrics.titles(result.runs), strict=True):
        for row in tables.bound_rows([run]):
            if row["cycles"]:
                facts = row["of"], row["resource"], row["why"], f"{row['cycles']:,}"
                rows.append((name, *facts, percent_text(row["share"])))
    return page.table(heads, rows, 4, long=(3,))
