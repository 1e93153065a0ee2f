"""The page of a network's backward pass: where its time goes, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from npusim.device.spec import Device
from npusim.results import elementwise, metrics, palette, roofline
from npusim.results.lines import counted, percent_text, rate_text, us_alike, us_text
from npusim.results.network_text import (
    kernel_cells,
    missing,
    missing_text,
    results_text,
    shape_text,
    verdict,
)
from npusim.results.record import Record
from npusim.results.web import bars, page
from npusim.results.web.bars import Span
from npusim.results.web.charts import roofline as roofline_chart
from npusim.results.web.charts import timeline as timeline_chart
from npusim.results.web.charts.timeline import AROUND, TRACK
from npusim.results.web.page import Cell, Chart
from npusim.results.web.run import roof_caption, traffic
from npusim.results.web.summary import layer_bar
from npusim.timing.trace import KernelRun

#: A row of layers or kernels, or all facts of a network, by name.
Row = Mapping[str, Any]
#: A layer's name, how often it occurs, and its result, None where it could not be simulated.
Layer = tuple[str, int, Record | None]


class _Part(NamedTuple):
    """A layer that was simulated."""

    name: str
    alike: int
    result: Record


def render(facts: Row, device: Device, layers: Sequence[Layer]) -> str:
    """The page as text; every string is escaped."""
    parts = [_Part(name, n, result) for name, n, result in layers if result is not None]
    runs = [run for one in parts for _ in range(one.alike) for run in one.result.runs]
    drawn: list[Chart] = []
    what = f"batch {facts['batch']}, {facts['dtype']}{results_text(facts)}"
    body = (
        page.cards(_cards(facts, device, runs)),
        page.section("Timeline", _timeline(facts, device, parts, drawn)),
        page.section("Layers", _layers(facts)),
        page.section("Kernels", _kernels(facts)),
        page.section("Element-wise layers", _elementwise(facts)),
        page.section("Memory traffic", traffic(device, runs)),
        page.section("Roofline", _roofline(facts, device, parts, drawn)),
        page.section("Not simulated", page.bullets(missing(facts))),
        page.section("Notes", page.bullets(facts["notes"])),
    )
    origin = (
        f"npusim {facts['npusim_version']}, device {device.name} (digest "
        f"{facts['device_digest']}), {facts['clock_hz'] / 1e9:g} GHz"
    )
    title = f"{facts['workload']} {facts['pass']} on {device.name}"
    about = [f"{facts['description']}; {what}"]
    return page.report(title, about, _verdict(facts), body, origin, drawn)


#: What a pass is, and what parts of the time are, in words.
_PASSES = {"forward": "forward only", "backward": "backward only", "training": "both passes"}
_TOLD = {"layouts": "layouts, clearing, casts"}


def _verdict(facts: Row) -> str:
    """The time, what it is spent on, and the layers that matter most."""
    text = f"{us_text(facts['time_us'])} \u00b5s. Bottleneck: {verdict(facts)}."
    known = [row for row in facts["layers"] if not row["error"]]
    most = sorted(known, key=lambda row: -row["total_us"])[:3]
    named = ", ".join(f"{row['layer']} ({percent_text(row['share'])})" for row in most)
    text += f" Most is spent in {named}."
    return text if facts["complete"] else f"{text} Partial: {missing_text(facts)}."


def _cards(facts: Row, device: Device, runs: Sequence[KernelRun]) -> Iterator[tuple[str, str]]:
    """The key figures of the network."""
    us = facts["time_us"]
    yield f"{us_text(us)} \u00b5s", f"time, {facts['cycles']:,} cycles"
    yield f"{rate_text(facts['batch'] / us * 1e6)} /s", f"images, {_PASSES[facts['pass']]}"
    for name, part in facts["split"].items():
        yield percent_text(part / us), _TOLD.get(name, name)
    least = sum(row["count"] * (row["problem_us"] or 0) for row in facts["layers"])
    yield f"{us_text(least)} \u00b5s", "least of any programs for the layers"
    macs, useful = (sum(row[key] for row in facts["kernels"]) for key in ("macs", "useful_macs"))
    if macs:
        speeds = [rate_text(metrics.tflops(device, n, facts["cycles"])) for n in (useful, macs)]
        yield f"{speeds[0]} TFLOPS", f"useful; executed {speeds[1]}"
    if facts["elementwise"]:
        told = f"element-wise layers, {elementwise.TRAFFIC_ONLY}; not in the time"
        yield f"{us_text(facts['elementwise_us'])} \u00b5s", told
    if facts.get("energy_uj") is not None:
        yield f"{rate_text(facts['energy_uj'] / 1e3)} mJ", "energy"


def _timeline(facts: Row, device: Device, parts: Sequence[_Part], drawn: list[Chart]) -> str:
    """Layers and their kernels one after another; those alike are one bar for all of them."""
    layers, kernels, now = [], [], 0
    for one in parts:
        name = f"{one.alike} \u00d7 {one.name}" if one.alike > 1 else one.name
        begin = now
        for run, title in zip(one.result.runs, metrics.titles(one.result.runs), strict=True):
            start = now + one.alike * run.launch_cycles
            end = start + one.alike * run.cycles
            if run.launch_cycles:
                kernels.append(bars.launch(title, now, start))
            colour = palette.RESULT_COLOURS[run.computes or "other"]
            kernels.append(Span(f"{title} of {name}", title, start, end, colour))
            now = end
        layers.append(Span(name, name, begin, now, palette.KERNEL))
    us = device.time_us(1)
    drawn.append(timeline_chart.rows_of_spans({"layer": layers, "kernel": kernels}, us))
    caption = (
        "Layers in the order of the network, alike ones together. Drag to move; zoom with the "
        "buttons or with Ctrl and the wheel."
    )
    slowest = sorted(layers, key=lambda span: span.left - span.right)[:6]
    places = [("whole network", 0, now)]
    places += [(span.name, span.left, span.right) for span in layers if span in slowest]
    return (
        page.jumps([(name, left * us, right * us) for name, left, right in places])
        + page.place(drawn[-1], 4 * TRACK + AROUND, "timeline of layers and kernels", caption)
        + page.key([*_results(facts), ("launch", palette.LAUNCH)])
    )


def _results(facts: Row) -> list[tuple[str, str]]:
    """What colours of results stand for, those that occur."""
    names = {"other": "other: layouts, clearing, casts", "output": "output"}
    return [
        (names.get(name, f"gradient of {name}"), palette.RESULT_COLOURS[name])
        for name in (*facts["results"], "other")
    ]


def _layers(facts: Row) -> str:
    parts = tuple(facts["split"])
    heads = ("layer", "shape", "n", "time", "total \u00b5s", "share")
    own = ("own \u00b5s", "bottleneck", "bound by", "bound", "least")
    known = [row for row in facts["layers"] if not row["error"]]
    most = max((row["total_us"] for row in known), default=1.0)
    rows = [_layer_cells(row, parts, most) for row in known]
    note = (
        '<p class="dim">\u00b5s of one layer, total and share of all n alike. own: its kernels '
        "that multiply, without launches; bound by, bound: what alone would take which share of "
        "that; least: the share that any programs for the same problems would take.</p>"
    )
    key = page.key((name, palette.PART_COLOURS[name]) for name in parts)
    return key + page.table((*heads, *parts, *own), rows, 2) + note


def _layer_cells(row: Row, parts: Sequence[str], most: float) -> tuple[Any, ...]:
    shares = (
        percent_text(row[key] / row["own_us"]) if row[key] and row["own_us"] else ""
        for key in ("own_bound_us", "own_problem_us")
    )
    return (
        row["layer"],
        shape_text(row).replace("->", "\u2192"),
        row["count"],
        layer_bar(row, most),
        us_alike(row["total_us"]),
        percent_text(row["share"], 1),
        *(_us_cell(row["split"].get(name, 0.0)) for name in parts),
        us_alike(row["own_us"]),
        row["bottleneck"],
        row["own_bound"],
        *shares,
    )


def _us_cell(us: float) -> Cell:
    """Microseconds, blank where there are none."""
    return Cell(us_alike(us) if us else "", us)


def _kernels(facts: Row) -> str:
    heads = ("kernel", "launches", "\u00b5s", "launch \u00b5s", "share", "TFLOPS", "executed")
    return page.table((*heads, "least"), kernel_cells(facts), 1)


def _elementwise(facts: Row) -> str:
    """What layers that multiply nothing move, where they were asked for."""
    if not facts["elementwise"]:
        return ""
    heads = ("layer", "input", "output", "n", "read MiB", "written MiB", "total \u00b5s")
    rows = []
    for row in sorted(facts["elementwise"], key=lambda row: -row["total_us"]):
        sizes = ("\u00d7".join(map(str, row[key])) for key in ("shape", "out"))
        moved = (
            Cell(rate_text(row[key] / 2**20), row[key]) for key in ("read_bytes", "written_bytes")
        )
        us = Cell(us_alike(row["total_us"]), row["total_us"])
        rows.append((row["kind"], *sizes, row["count"], *moved, us))
    told = f"{elementwise.TRAFFIC_ONLY.capitalize()}: {elementwise.meaning(facts)}. "
    told += "MiB of one layer, \u00b5s of all n alike."
    return page.table(heads, rows, 3) + f'<p class="dim">{escape(told)}</p>'


def _roofline(facts: Row, device: Device, parts: Sequence[_Part], drawn: list[Chart]) -> str:
    """Every kernel that multiplies, in the colour of what it computes."""
    points, runs = [], []
    for one in parts:
        for run in one.result.runs:
            if run.macs and run.cycles:
                named = f"{run.name} of {one.name}"
                colour = palette.RESULT_COLOURS[run.computes or "other"]
                points.append((roofline.point(device, run, named), colour))
                runs.append(run)
    if not points:
        return ""
    dtype = parts[0].result.dtype
    roofs = roofline.roofs(device, runs, dtype, [one for one, _ in points])
    drawn.append(roofline_chart.roofline(roofs, points, words=False))
    told = f"{counted(len(points), 'kernel')}. {roof_caption(roofs)}"
    return page.place(drawn[-1], roofline_chart.HEIGHT, "roofline", told) + page.key(
        _results(facts)[:-1]
    )
