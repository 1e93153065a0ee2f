"""The reports of a network, layer by layer, and of a training step: where their time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts import metrics, network_rows
from npusim.results.facts.energy import TOTAL_ENERGY, energy_of_facts
from npusim.results.facts.number_text import bytes_text, percent_text, rate_text, us_alike, us_text
from npusim.results.shown import network_words, palette
from npusim.results.shown.call import traffic
from npusim.results.shown.figure import Figure, Span
from npusim.results.shown.figures import roofline, stacks, timeline
from npusim.results.shown.network_words import split_text
from npusim.results.shown.report import Cell, Colours, Items, Note, Part, Report, Section, Table

#: A row of layers or kernels, or all facts of a network, by name.
Row = Mapping[str, Any]


def report(facts: Row, device: Device, timed: Sequence[Any]) -> Report:
    """All of a network; a notebook shows its layers and notes.

    ``facts`` are those of ``NetworkResult.to_json``, ``timed`` its layers as they ran.
    """
    parts = [one for one in timed if one.result is not None]
    runs = [run for one in parts for _ in range(one.layer.count) for run in one.result.runs]
    bars = Colours([*_results(facts), ("launch", palette.LAUNCH)])
    what = f"batch {facts['batch']}, {facts['dtype']}{network_words.results_text(facts)}"
    return Report(
        title=f"{facts['workload']} {facts['pass']} on {device.name}",
        about=[f"{facts['description']}; {what}"],
        lead=_verdict(facts),
        cards=[*_cards(facts, device, runs)],
        sections=(
            Section("Timeline", [_timeline(device, parts), bars]),
            Section("Layers", [*_layers(facts)], brief=True),
            Section("Kernels", [_kernels(facts)]),
            Section("Memory traffic", [traffic(device, runs)]),
            Section("Roofline", [*_roofline(facts, device, parts)]),
            Section("Not simulated", [Items(network_words.missing(facts))]),
            Section("Notes", [Items(facts["notes"])], brief=True),
        ),
        origin=Report.origin_of(facts["npusim_version"], device),
    )


#: What a pass is, and what parts of the time are, in words.
_PASSES = {"forward": "forward only", "backward": "backward only", "training": "both passes"}
_TOLD = {"layouts": "layouts, clearing, casts"}


def _verdict(facts: Row) -> str:
    """The time, what it is spent on, and the layers that matter most."""
    text = f"{us_text(facts['time_us'])} \u00b5s. Bottleneck: {network_words.verdict(facts)}."
    known = [row for row in facts["layers"] if not row["error"]]
    most = sorted(known, key=lambda row: -row["total_us"])[:3]
    named = ", ".join(f"{row['layer']} ({percent_text(row['share'])})" for row in most)
    text += f" Most is spent in {named}."
    return text if facts["complete"] else f"{text} Partial: {network_words.missing_text(facts)}."


def _cards(facts: Row, device: Device, runs: Sequence[KernelRun]) -> Iterator[tuple[str, str]]:
    """The key figures of the network."""
    us = facts["time_us"]
    yield f"{us_text(us)} \u00b5s", f"time, {facts['cycles']:,} cycles"
    yield f"{rate_text(facts['batch'] / us * 1e6)} /s", f"images, {_PASSES[facts['pass']]}"
    for name, part in facts["split"].items():
        yield percent_text(part / us), _TOLD.get(name, name)
    least = network_rows.least_us(facts["layers"])
    yield f"{us_text(least)} \u00b5s", "least of any programs for the layers"
    macs, useful = (sum(row[key] for row in facts["kernels"]) for key in ("macs", "useful_macs"))
    if macs:
        speeds = [rate_text(metrics.tflops(device, n, facts["cycles"])) for n in (useful, macs)]
        yield f"{speeds[0]} TFLOPS", f"useful; executed {speeds[1]}"
    yield from _energy(facts)


def _energy(facts: Row) -> Iterator[tuple[str, str]]:
    uj = energy_of_facts(facts)
    if uj is not None:
        yield TOTAL_ENERGY.text(uj), TOTAL_ENERGY.title


def _timeline(device: Device, parts: Sequence[Any]) -> Figure:
    """Layers and their kernels one after another; those alike are one bar for all of them."""
    us, pieces = device.time_us(1), []
    for one in parts:
        runs, alike = one.result.runs, one.layer.count
        name = f"{alike} \u00d7 {one.layer.name}" if alike > 1 else one.layer.name
        colours = (palette.RESULT_COLOURS[run.computes or "other"] for run in runs)
        pieces.append((name, alike, zip(runs, metrics.titles(runs), colours, strict=True)))
    layers, kernels = timeline.in_turn(pieces, us)
    slowest = sorted(layers, key=lambda span: span.left - span.right)[:6]
    named = [span for span in layers if span in slowest]
    caption = "Layers in the order of the network, alike ones together."
    return _in_rows("network", {"layer": layers, "kernel": kernels}, us, named, caption)


def _in_rows(
    what: str, rows: dict[str, list[Span]], us: float, named: Sequence[Span], caption: str
) -> Figure:
    """What runs one after another, in rows; buttons show the whole and what is ``named``."""
    (first, wholes), _ = rows.items()
    jumps = [(f"whole {what}", 0.0, wholes[-1].right * us)]
    return timeline.of_rows(
        rows,
        us,
        about=f"timeline of {first}s and kernels",
        caption=f"{caption} Drag to move; zoom with the buttons or with Ctrl and the wheel.",
        jumps=[*jumps, *((span.name, span.left * us, span.right * us) for span in named)],
    )


def _results(facts: Row) -> list[tuple[str, str]]:
    """What colours of results stand for, those that occur."""
    names = {"other": "other: layouts, clearing, casts", "output": "output"}
    return [
        (names.get(name, f"gradient of {name}"), palette.RESULT_COLOURS[name])
        for name in (*facts["results"], "other")
    ]


def _layers(facts: Row) -> Iterator[Part]:
    parts = tuple(facts["split"])
    known = [row for row in facts["layers"] if not row["error"]]
    most = max((row["total_us"] for row in known), default=1.0)
    yield Colours([(name, palette.PART_COLOURS[name]) for name in parts])
    columns: dict[str, Callable[[Row], Any]] = {
        "layer": lambda row: row["layer"],
        "shape": lambda row: network_words.shape_text(row).replace("->", "\u2192"),
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
    yield Table.of(columns, known, 2)
    yield Note(
        "\u00b5s of one layer, total and share of all n alike. own: its kernels that multiply, "
        "without launches; bound by, bound: what alone would take which share of that; least: the "
        "share that any programs for the same problems would take."
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


def _kernels(facts: Row) -> Table:
    heads = ("kernel", "launches", "\u00b5s", "launch \u00b5s", "share", "TFLOPS", "executed")
    return Table("", (*heads, "least"), [*network_words.kernel_cells(facts)], 1)


def _roofline(facts: Row, device: Device, parts: Sequence[Any]) -> Iterator[Figure]:
    """Every kernel that multiplies, in the colour of what it computes."""
    points, runs = [], []
    for one in parts:
        for run in one.result.runs:
            if run.macs and run.cycles:
                named = f"{run.name} of {one.layer.name}"
                colour = palette.RESULT_COLOURS[run.computes or "other"]
                points.append((roofline.point(device, run, named), colour))
                runs.append(run)
    if points:
        made = roofline.roofs(device, runs, parts[0].result.dtype, [one for one, _ in points])
        yield roofline.drawn(made, points, {c: n for n, c in _results(facts)[:-1]})


# -- training steps ----------------------------------------------------------------------------


def of_step(facts: Row, device: Device, launched: Sequence[Any]) -> Report:
    """All of a step; a notebook shows its phases and notes.

    ``facts`` are those of ``StepResult.to_json``, ``launched`` its operations as they ran.
    """
    runs = [run for one in launched for run in one.runs]
    failed = [f"{row['operation']}: {row['error']}" for row in facts["operations"] if row["error"]]
    return Report(
        title=f"{facts['workload']} {facts['pass']} step on {device.name}",
        about=[f"{facts['description']}; batch {facts['batch']}, {network_words.asked(facts)}"],
        lead=_step_lead(facts),
        cards=[*_step_cards(facts, device, runs)],
        sections=(
            Section("Phases", [stacks.phases(facts)]),
            Section("Kinds of operations", [_kinds(facts)], brief=True),
            Section("Timeline", [_step_timeline(device, launched), Colours(_colours(facts))]),
            Section("Operations", [*_operations(facts)], opened=False),
            Section("Conversions that remain", [*_conversions(facts)]),
            Section("Memory traffic", [traffic(device, runs, operands=False)]),
            Section("Not simulated", [Items(failed)]),
            Section("Notes", [Items(facts["notes"])], brief=True),
        ),
        origin=Report.origin_of(facts["npusim_version"], device),
    )


def _step_lead(facts: Row) -> str:
    """The time and the kinds of operation that matter most."""
    text = f"{us_text(facts['time_us'])} \u00b5s. {split_text(facts, network_words.KINDS)}."
    if facts["all_reduce"]:
        text += f" All-reduce: {network_words.reduced_text(facts['all_reduce'])}."
    return text if facts["complete"] else f"Partial: {network_words.step_missing(facts)}. {text}"


def _step_cards(facts: Row, device: Device, runs: Sequence[KernelRun]) -> Iterator[tuple[str, str]]:
    """The key figures of the step."""
    yield f"{us_text(facts['time_us'])} \u00b5s", f"a step of {facts['batch']} images"
    yield f"{rate_text(facts['images_per_second'])} /s", "images"
    launches = sum(row["launch_us"] for row in facts["kinds"])
    yield percent_text(launches / facts["time_us"]), "launches"
    yield bytes_text(facts["kept_bytes"]), "of values at most at once"
    useful = sum(run.useful_macs for run in runs)
    if useful:
        yield f"{rate_text(metrics.tflops(device, useful, facts['cycles']))} TFLOPS", "useful"
    yield from _energy(facts)


def _colours(facts: Row) -> list[tuple[str, str]]:
    """What colours of the timeline stand for."""
    groups = dict.fromkeys(palette.step_group(row["kind"]) for row in facts["kinds"])
    return [*((name, palette.STEP_COLOURS[name]) for name in groups), ("launch", palette.LAUNCH)]


def _step_timeline(device: Device, launched: Sequence[Any]) -> Figure:
    """Phases and kernels one after another."""
    us, phases, looks = device.time_us(1), dict[str, Span](), palette.STEP_COLOURS
    pieces = (
        (one.name, 1, [(run, run.name, looks[palette.step_group(kind)]) for kind, run in one.parts])
        for one in launched
    )
    wholes, kernels = timeline.in_turn(pieces, us)
    for one, span in zip(launched, wholes, strict=True):
        left = phases.get(one.phase, span).left
        phases[one.phase] = Span(one.phase, one.phase, left, span.right, palette.KERNEL)
    rows = [*phases.values()]
    drawn = {"phase": rows, "kernel": kernels}
    return _in_rows("step", drawn, us, rows, "Kernels in the order of launch.")


def _told(names: str, rows: Sequence[Row], left: int) -> Table:
    """Facts by their names, whose ends tell the units; the first ``left`` of them are texts."""
    columns = {_head(name): partial(_fact_cell, name) for name in names.split()}
    return Table.of(columns, rows, left)


def _head(name: str) -> str:
    """What stands above a fact: ``launch µs``, and ``read`` of ``read_bytes``."""
    *words, unit = name.split("_")
    return " ".join([*words, "\u00b5s"] if unit == "us" else words or [unit])


def _fact_cell(name: str, row: Row) -> Any:
    value, unit = row[name], name.rpartition("_")[2]
    if unit == "us":
        return Cell(us_alike(value), value)
    if unit == "bytes":
        return Cell.size(value)
    if unit == "share":
        return percent_text(value, 1)
    return value if isinstance(value, int | str) else ", ".join(value)


def _kinds(facts: Row) -> Table:
    return _told("phase kind kernels us launch_us share bytes", facts["kinds"], 2)


def _operations(facts: Row) -> Iterator[Part]:
    names = "operation kind kernels start_us us launch_us read_bytes written_bytes"
    yield _told(names, facts["operations"], 3)
    yield Note("In the order of launch. read, written: the values of the operation, each once.")


def _conversions(facts: Row) -> Iterator[Part]:
    rows = [{**row, "value": row["converts"]} for row in facts["operations"] if row["converts"]]
    if rows:
        yield _told("value to us", sorted(rows, key=lambda row: -row["us"]), 2)
        yield Note("\u00b5s: what it would save if nobody needed the other format.")
