"""The report of a network, layer by layer: where its time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts import metrics, network_rows
from npusim.results.facts.number_text import (
    launched_text,
    percent_text,
    rate_text,
    us_alike,
    us_text,
)
from npusim.results.shown import network_words, palette
from npusim.results.shown.call import traffic
from npusim.results.shown.figure import Figure
from npusim.results.shown.figures import roofline, timeline
from npusim.results.shown.network_words import shape_text, split_text
from npusim.results.shown.other_chips import other_chips
from npusim.results.shown.report import (
    Cell,
    Colours,
    InText,
    Items,
    Key,
    Note,
    OnPage,
    Part,
    Report,
    ReportLine,
    Section,
    Table,
    apart,
)

#: A row of layers or kernels, or all facts of a network, by name.
Row = Mapping[str, Any]


def report(facts: Row, device: Device, timed: Sequence[Any]) -> Report:
    """The report of a network, as text and as a page; a notebook shows its layers and notes.

    ``facts`` are those of ``NetworkResult.to_json``, ``timed`` its layers as they ran.
    """
    parts = [layer for layer in timed if layer.result is not None]
    what = f"batch {facts['batch']}, {facts['dtype']}{network_words.results_text(facts)}"
    lines, cards = apart(_keys(facts, device, what))
    missing = network_words.missing(facts)
    return Report(
        title=f"{facts['workload']} {facts['pass']} on {device.name}",
        about=[f"{facts['description']}; {what}"],
        lead=_verdict(facts),
        lines=lines,
        cards=cards,
        sections=(
            Section("Timeline", [OnPage(partial(_timeline, facts, device, parts))]),
            Section("Layers", [*_layers(facts)], brief=True, heading="LAYERS"),
            Section("Kernels", [*_kernels(facts)], heading="KERNELS"),
            Section(
                "Memory traffic",
                [OnPage(lambda: [traffic(device, metrics.path_totals(_runs(parts)))])],
            ),
            Section("Roofline", [OnPage(partial(_roofline, facts, device, parts))]),
            Section("Not simulated", [Items(missing)], heading="NOT SIMULATED"),
            Section("Notes", [Items(facts["notes"])], brief=True, heading="NOTES"),
        ),
        origin=Report.origin_of(facts["npusim_version"], device),
    )


def _runs(parts: Sequence[Any]) -> list[KernelRun]:
    """The kernels of all layers, those of one as often as it is there."""
    return [run for part in parts for _ in range(part.layer.count) for run in part.result.runs]


#: What a pass is, and what parts of the time are, in words.
_PASSES = {"forward": "forward only", "backward": "backward only", "training": "both passes"}
_PART_NAMES = {"layouts": "layouts, clearing, casts"}


def _verdict(facts: Row) -> str:
    """The time, what it is spent on, and the layers that matter most."""
    text = f"{us_text(facts['time_us'])} \u00b5s. Bottleneck: {network_words.verdict(facts)}."
    timed = [row for row in facts["layers"] if not row["error"]]
    most = sorted(timed, key=lambda row: -row["total_us"])[:3]
    named = ", ".join(f"{row['layer']} ({percent_text(row['share'])})" for row in most)
    text += f" Most is spent in {named}."
    return text if facts["complete"] else f"{text} Partial: {network_words.missing_text(facts)}."


def _keys(facts: Row, device: Device, what: str) -> Iterator[Key]:
    """The key figures of the network: what it is, its time, its parts, its speed and energy."""
    us = facts["time_us"]
    yield Key(ReportLine("network", f"{facts['workload']}: {facts['description']}"))
    yield Key(ReportLine(facts["pass"], what))
    yield Key(ReportLine("device", network_words.device_text(facts)))
    yield from other_chips(facts)
    ends = ""
    if facts["time_range_us"]:
        low_us, high_us = facts["time_range_us"]
        ends = f" ({us_text(low_us)} to {us_text(high_us)})"
    cycles = f"{facts['cycles']:,} cycles"
    text = f"{us_text(us)} us{ends} = {cycles}{launched_text(facts['launch'])}"
    yield Key(ReportLine("time", text), (f"{us_text(us)} \u00b5s", f"time, {cycles}"))
    speed = rate_text(facts["batch"] / us * 1e6)
    yield Key(card=(f"{speed} /s", f"images, {_PASSES[facts['pass']]}"))
    yield Key(ReportLine("split, us", split_text(facts)))
    for name, part in facts["split"].items():
        yield Key(card=(percent_text(part / us), _PART_NAMES.get(name, name)))
    yield Key(ReportLine("bottleneck", network_words.verdict(facts)))
    least_us = network_rows.least_us(facts["layers"])
    yield Key(card=(f"{us_text(least_us)} \u00b5s", "least of any programs for the layers"))
    executed = sum(row["macs"] for row in facts["kernels"])
    useful = sum(row["useful_macs"] for row in facts["kernels"])
    if executed:
        executed_text = rate_text(metrics.tflops(device, executed, facts["cycles"]))
        useful_text = rate_text(metrics.tflops(device, useful, facts["cycles"]))
        yield Key(card=(f"{useful_text} TFLOPS", f"useful; executed {executed_text}"))
    more = ""
    if facts["energy"]:
        most = facts["energy"][0]
        more = f"; {percent_text(most['share'])} {most['figure']}"
    yield from network_words.energy(facts, more=more)
    if not facts["complete"]:
        yield Key(ReportLine("partial", f"{network_words.missing_text(facts)}; see below"))


def _timeline(facts: Row, device: Device, parts: Sequence[Any]) -> Iterator[Part]:
    """Layers and their kernels one after another; those alike are one bar for all of them."""
    us = device.time_us(1)
    pieces = []
    for part in parts:
        runs, alike = part.result.runs, part.layer.count
        name = f"{alike} \u00d7 {part.layer.name}" if alike > 1 else part.layer.name
        colours = [palette.RESULT_COLOURS[run.computes or "other"] for run in runs]
        kernels_of_layer = [*zip(runs, metrics.titles(runs), colours, strict=True)]
        pieces.append(timeline.Piece(name, kernels_of_layer, alike))
    layers, kernels = timeline.in_turn(pieces, us)
    slowest = sorted(layers, key=lambda span: span.left - span.right)[:6]
    named = [span for span in layers if span in slowest]
    caption = "Layers in the order of the network, alike ones together."
    rows = {"layer": layers, "kernel": kernels}
    yield timeline.whole_in_rows("network", rows, us, named, caption)
    yield Colours([*_results(facts), ("launch", palette.LAUNCH)])


def _results(facts: Row) -> list[tuple[str, str]]:
    """Meanings of the colours of results, those that occur."""
    names = {"other": "other: layouts, clearing, casts", "output": "output"}
    return [
        (names.get(name, f"gradient of {name}"), palette.RESULT_COLOURS[name])
        for name in (*facts["results"], "other")
    ]


def _layers(facts: Row) -> Iterator[Part]:
    parts = tuple(facts["split"])
    timed = [row for row in facts["layers"] if not row["error"]]
    most = max((row["total_us"] for row in timed), default=1.0)
    colours = Colours([(name, palette.PART_COLOURS[name]) for name in parts])
    columns: dict[str, Callable[[Row], Any]] = {
        "layer": lambda row: row["layer"],
        "shape": lambda row: shape_text(row).replace("->", "\u2192"),
        "n": lambda row: row["count"],
        "time": lambda row: _layer_bar(row, most),
        "total \u00b5s": lambda row: us_alike(row["total_us"]),
        "share": lambda row: percent_text(row["share"], 1),
        **{name: partial(_part_cell, name) for name in parts},
        "own \u00b5s": lambda row: us_alike(row["own_us"]),
        "bottleneck": lambda row: row["bottleneck"],
        "bound by": lambda row: row["own_bound"],
        "bound": partial(_share_of_own, "own_bound_us"),
        "least": partial(_share_of_own, "own_problem_us"),
    }
    table = Table.of(columns, timed, 2)
    yield OnPage(lambda: [colours, table, _ABOUT_LAYERS])
    yield InText(_layers_of_text(facts))
    names = ", ".join(facts["results"])
    yield InText(
        Note(
            f"({names}, other: us of one layer; other is layouts, clearing and casts; bound by, "
            "least: what the kernels that multiply are bound by, and the share of their time that "
            "any programs for the same problems would need)"
        )
    )


_ABOUT_LAYERS = Note(
    "\u00b5s of one layer, total and share of all n alike. own: its kernels that multiply, "
    "without launches; bound by, bound: what alone would take which share of that; least: the "
    "share that any programs for the same problems would take."
)


def _layers_of_text(facts: Row) -> Table:
    """A narrower table of layers, with the shape of each below it and a row of their total."""
    parts = (*facts["results"], "other")
    ends = ["share", "least", "bound by"]
    if len(parts) > 3:  # so that rows fit the page
        ends = ends[len(parts) - 3 :]
    rows: list[list[str]] = []
    for row in facts["layers"]:
        name = [row["layer"], str(row["count"])]
        if row["error"]:
            rows.append([*name, *["-"] * (len(parts) + len(ends)), "not simulated"])
            continue
        times = [rate_text(row[f"{part}_us"] or 0) for part in (*parts, "total")]
        texts = {
            "share": percent_text(row["share"]),
            "least": _share_of_own("own_problem_us", row) or "-",
            "bound by": row["own_bound"].removeprefix("pipe "),
        }
        rows.append([*name, *times, *(texts[end] for end in ends)])
    count = sum(row["count"] for row in facts["layers"] if not row["error"])
    total = ["total", str(count), *["" for _ in parts], rate_text(facts["time_us"])]
    return Table(
        "",
        ("layer", "n", *parts, "total", *ends),
        rows,
        1,
        below=[shape_text(row) for row in facts["layers"]],
        total=[*total, *["" for _ in ends]],
    )


def _layer_bar(row: Row, most: float) -> Cell:
    """The parts of a layer's time, of ``most`` microseconds."""
    parts = (
        (name, row["count"] * us / most, palette.PART_COLOURS[name])
        for name, us in row["split"].items()
    )
    return Cell.bar(parts, row["total_us"])


def _part_cell(name: str, row: Row) -> Cell:
    """Microseconds of a part of the time, blank where there are none."""
    us = row["split"].get(name, 0.0)
    return Cell(us_alike(us) if us else "", us)


def _share_of_own(name: str, row: Row) -> str:
    """A time as a share of that of the layer's own kernels, blank where there is none."""
    return percent_text(row[name] / row["own_us"]) if row[name] and row["own_us"] else ""


def _kernels(facts: Row) -> Iterator[Part]:
    """A row per kind of kernel, and what its columns mean."""
    heads = ("kernel", "n", "\u00b5s", "launch \u00b5s", "share", "TFLOPS", "executed", "least")
    yield Table("", heads, [*network_words.kernel_cells(facts)], 1)
    yield Note(
        "(n: launches; \u00b5s and TFLOPS without them; executed: with padding and zeros; least: "
        "share of \u00b5s that any programs for the same problems would need)"
    )


def _roofline(facts: Row, device: Device, parts: Sequence[Any]) -> Iterator[Figure]:
    """Every kernel that multiplies, in the colour of what it computes."""
    points, runs = [], []
    for part in parts:
        for run in part.result.runs:
            if run.macs and run.cycles:
                named = f"{run.name} of {part.layer.name}"
                colour = palette.RESULT_COLOURS[run.computes or "other"]
                points.append((roofline.point(device, run, named), colour))
                runs.append(run)
    if points:
        ceilings = roofline.roofs(device, runs, parts[0].result.dtype, [part for part, _ in points])
        yield roofline.drawn(ceilings, points, {c: n for n, c in _results(facts)[:-1]})
