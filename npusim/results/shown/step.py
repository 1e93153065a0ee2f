"""The report of a training step: where its time goes, by phase and kind of operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts import metrics, step_traffic
from npusim.results.facts.fact import Fact
from npusim.results.facts.number_text import (
    bytes_text,
    counted,
    counts,
    launched_text,
    percent_text,
    rate_text,
    us_alike,
    us_text,
)
from npusim.results.facts.step_rows import OPERATIONS
from npusim.results.facts.step_verdict import SAME, HalvedTime
from npusim.results.facts.verdict import saving_text
from npusim.results.shown import implausible, network_words, palette
from npusim.results.shown.call import traffic
from npusim.results.shown.figure import Span
from npusim.results.shown.figures import stacks, step_memory, timeline
from npusim.results.shown.network_words import split_text
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

#: A row of kinds or operations, or all facts of a step, by name.
Row = Mapping[str, Any]

#: Conversions that a text names one by one; more are summed up.
MAX_CONVERSIONS = 12

#: The longest operations that have a button of the timeline.
LONGEST = 6


def report(facts: Row, device: Device, launched: Sequence[Any]) -> Report:
    """The report of a step, as text and as a page; a notebook shows its kinds and notes.

    ``facts`` are those of ``StepResult.to_json``, ``launched`` its operations as they ran.
    """
    runs = [run for operation in launched for run in operation.runs]
    failed = [f"{row['operation']}: {row['error']}" for row in facts["operations"] if row["error"]]
    lines, cards = apart(_keys(facts, device, runs))
    return Report(
        title=f"{facts['workload']} {facts['pass']} step on {device.name}",
        about=[f"{facts['description']}; batch {facts['batch']}, {network_words.asked(facts)}"],
        lead=_lead(facts, device),
        lines=lines,
        cards=cards,
        sections=(
            Section("Phases", [OnPage(lambda: [stacks.phases(facts)])]),
            Section("Kinds of operations", [*kinds(facts["kinds"])], brief=True, heading="PHASE"),
            Section(
                "Far from the least",
                [*implausible.parts(facts, device)],
                brief=True,
                heading="FAR FROM THE LEAST",
            ),
            Section("Timeline", [OnPage(partial(_timeline, facts, device, launched))]),
            Section("Memory", [OnPage(partial(_memory, facts))]),
            Section("Operations", [OnPage(partial(_operations, facts))], opened=False),
            Section("Operations that lose most", [*losses(facts["losses"])], heading="LOSE MOST"),
            Section("Conversions that remain", [*_conversions(facts)], heading="CONVERSION"),
            Section("Memory traffic", [OnPage(partial(_traffic, facts, device))]),
            Section("Lower bounds", [OnPage(partial(_bounds, facts))], opened=False),
            Section("Not simulated", [Items(failed)], heading="NOT SIMULATED"),
            Section("Notes", [Items(facts["notes"])], brief=True, heading="NOTES"),
        ),
        origin=Report.origin_of(facts["npusim_version"], device),
    )


def _lead(facts: Row, device: Device) -> str:
    """The time and the kinds of operation that matter most."""
    text = f"{us_text(facts['time_us'])} \u00b5s{implausible.totals(facts, device)}."
    text += f" {split_text(facts, network_words.KINDS)}."
    if facts["verdict"]:
        text += f" Bottleneck: {verdict_text(facts['verdict'])}."
    if facts["all_reduce"]:
        text += f" All-reduce: {network_words.reduced_text(facts['all_reduce'])}."
    if not facts["complete"]:
        text = f"Partial: {network_words.step_missing(facts)}. {text}"
    return text if facts["fits"] else f"Too large: {network_words.too_large(facts)}. {text}"


def _keys(facts: Row, device: Device, runs: Sequence[KernelRun]) -> Iterator[Key]:
    """The key figures of the step: what it is, its time and speed, and what it takes besides."""
    us = facts["time_us"]
    yield Key(ReportLine("network", f"{facts['workload']}: {facts['description']}"))
    yield Key(ReportLine(facts["pass"], _what(facts)))
    yield Key(ReportLine("mode", network_words.asked(facts)))
    yield Key(ReportLine("device", network_words.device_text(facts)))
    yield from other_chips(facts)
    if not facts["complete"]:
        missing = network_words.step_missing(facts)
        yield Key(ReportLine("partial", f"{missing}; the times below lack it"))
    if not facts["fits"]:
        yield Key(ReportLine("too large", network_words.too_large(facts)))
    yield Key(ReportLine("step", _time(facts)), (f"{us_text(us)} \u00b5s", _images(facts)))
    yield from network_words.step_range(facts)
    yield from implausible.keys(facts, device)
    cached_us, cold_us = facts["at_least_us"]
    yield Key(
        ReportLine(
            "at least",
            f"{us_text(cached_us)} us (operands in the L2), {us_text(cold_us)} us (from main "
            f"memory) for any programs of its operations: {percent_text(cached_us / us)} of the "
            "time",
        )
    )
    speed = rate_text(facts["images_per_second"])
    yield Key(ReportLine("speed", _speed(facts)), (f"{speed} /s", "images"))
    yield from _shares_of_peaks(facts)
    if facts["verdict"]:
        yield Key(ReportLine("bottleneck", verdict_text(facts["verdict"])))
    yield Key(ReportLine("split, us", split_text(facts, network_words.KINDS)))
    launches_us = sum(row["launch_us"] for row in facts["kinds"])
    yield Key(card=(percent_text(launches_us / us), "launches"))
    if facts["all_reduce"]:
        yield Key(ReportLine("all-reduce", network_words.reduced_text(facts["all_reduce"])))
    if facts["plan"]:
        yield Key(ReportLine("plan", network_words.plan_text(facts)))
    yield Key(
        ReportLine("memory", network_words.memory_text(facts)),
        (bytes_text(facts["peak_bytes"]), f"of {bytes_text(facts['card_bytes'])} at most"),
    )
    if facts["fetched_bytes"] or facts["written_back_bytes"]:
        yield Key(ReportLine("main memory", _main_memory(facts)))
    useful = sum(run.useful_macs for run in runs)
    if useful:
        speed = rate_text(metrics.tflops(device, useful, facts["cycles"]))
        yield Key(card=(f"{speed} TFLOPS", "useful"))
    yield from network_words.energy(facts, " a card")


def _speed(facts: Row) -> str:
    """Images a second, and how much of the peaks of the cube and of main memory that takes."""
    text = f"{rate_text(facts['images_per_second'])} images/s"
    if facts["peak_share"] is not None:
        text += f"; {percent_text(facts['peak_share'])} of the cube's peak is useful (MFU)"
    if facts["main_memory_share"] is not None:
        text += f"; main memory at {percent_text(facts['main_memory_share'])} of its rate"
    return text


def _shares_of_peaks(facts: Row) -> Iterator[Key]:
    """The same on cards of a page."""
    if facts["peak_share"] is not None:
        yield Key(card=(percent_text(facts["peak_share"]), "of the cube's peak is useful (MFU)"))
    if facts["main_memory_share"] is not None:
        share = percent_text(facts["main_memory_share"])
        yield Key(card=(share, "of the rate of main memory"))


def verdict_text(verdict: Row) -> str:
    """The part of the device, the kind and the operation of a verdict's plain values."""
    part = saving_text(verdict["name"], verdict["saves"], verdict["busy"])
    kind = HalvedTime(**verdict["kind"]).text()
    same = SAME
    if verdict["untried"]:
        same += f"; {counted(verdict['untried'], 'part')} not tried"
    return f"{part} ({same}); {kind}; {HalvedTime(**verdict['operation']).text()}"


def _main_memory(facts: Row) -> str:
    """The bytes to and from main memory, and the least time that they need."""
    text = (
        f"{bytes_text(facts['fetched_bytes'])} read, "
        f"{bytes_text(facts['written_back_bytes'])} written"
    )
    if facts["dirty_bytes"]:
        text += f", {bytes_text(facts['dirty_bytes'])} dirty in the L2 at the end"
    bounds = [row for row in facts["bounds"] if row["of"] == step_traffic.WHOLE_STEP]
    if bounds:
        longest = bounds[0]
        text += (
            f"; at least {us_text(longest['us'])} us ({longest['resource']}), "
            f"{percent_text(longest['share'])} of the time"
        )
    return text


def _what(facts: Row) -> str:
    """Batch, element types, optimizer and cards."""
    text = f"batch {facts['batch']}, {facts['dtype']}"
    if facts["normalisation_dtype"] != facts["dtype"]:
        text += f", normalisations {facts['normalisation_dtype']}"
    if facts["pass"] == "training":
        text += f", {facts['optimizer']}"
    if facts["cards"] > 1:
        text += f", {facts['cards']} cards"
    return text


def _time(facts: Row) -> str:
    """The time in microseconds and cycles, and what an all-reduce adds to it."""
    cycles = f"{facts['cycles']:,} cycles{launched_text(facts['launch'])}"
    text = f"{us_text(facts['time_us'])} us = {cycles}"
    if facts["all_reduce"]:
        added_us = facts["time_us"] - facts["compute_us"]
        text += f" and {us_text(added_us)} us of an all-reduce"
    return text


def _images(facts: Row) -> str:
    return f"a step of {counted(facts['batch'], 'image')}"


def _colours(facts: Row) -> list[tuple[str, str]]:
    """Meanings of the colours of the timeline."""
    groups = dict.fromkeys(palette.step_group(row["kind"]) for row in facts["kinds"])
    return [*((name, palette.STEP_COLOURS[name]) for name in groups), ("launch", palette.LAUNCH)]


def _timeline(facts: Row, device: Device, launched: Sequence[Any]) -> Iterator[Part]:
    """Phases, operations and kernels one after another; buttons show phases and what is longest."""
    us = device.time_us(1)
    operations, kernels = timeline.in_turn([_piece(operation) for operation in launched], us)
    phases: dict[str, list[Span]] = {}
    for operation, span in zip(launched, operations, strict=True):
        phases.setdefault(operation.phase, []).append(span)
    named = [_phase(name, spans, facts["cycles"], us) for name, spans in phases.items()]
    rows = {"phase": named, "operation": operations, "kernel": kernels}
    longest = sorted(operations, key=lambda span: span.left - span.right)[:LONGEST]
    caption = "Operations and their kernels in the order of launch."
    yield timeline.whole_in_rows("step", rows, us, [*named, *longest], caption)
    yield Colours(_colours(facts))


def _piece(operation: Any) -> timeline.Piece:
    """An operation with its kernels, for a timeline; a tooltip has its kind and its bytes."""
    kernels = [
        (run, run.name, palette.STEP_COLOURS[palette.step_group(kind)])
        for kind, run in operation.parts
    ]
    sizes = (
        f"reads {bytes_text(operation.read_bytes)}, writes {bytes_text(operation.written_bytes)}"
    )
    return timeline.Piece(
        operation.name,
        kernels,
        colour=palette.STEP_COLOURS[palette.step_group(operation.kind)],
        details=f"{operation.kind}\n{sizes}",
        waiting_cycles=operation.waiting_cycles,
    )


def _phase(name: str, operations: Sequence[Span], all_cycles: int, us: float) -> Span:
    """A phase from its first to its last operation, ``us`` microseconds a cycle."""
    left, right = operations[0].left, operations[-1].right
    share = timeline.share_text(right - left, all_cycles, us)
    details = f"{counted(len(operations), 'operation')}\n{share}"
    return Span(name, name, left, right, palette.KERNEL, details=details)


def _memory(facts: Row) -> Iterator[Part]:
    """Memory over the step, and the largest values when it is at its peak."""
    yield step_memory.over_time(facts)
    heads = ("at the peak", "format", "what", "made by", "bytes")
    rows = [
        (
            row["value"],
            row["format"],
            row["holds"],
            row["operation"] or "there before",
            Cell.size(row["bytes"]),
        )
        for row in facts["held"]
    ]
    yield Table("", heads, rows, 4)
    yield Note(
        "A value is there until its last reader is done; weights and state always, and are updated "
        "in place. Without what the framework takes: its context, rounding, fragmentation."
    )


def _head(fact: Fact[Any]) -> str:
    """The head above a column: ``launch \u00b5s``."""
    return f"{fact.title} {fact.unit}" if fact.unit else fact.title


def _fact_cell(fact: Fact[Any], row: Row) -> Any:
    """A cell of a column; those of numbers know them."""
    value = row[fact.name]
    if fact.unit == "\u00b5s":
        return Cell(us_alike(value), value)
    if fact.format is bytes_text:
        return Cell.size(value)
    return value if isinstance(value, int | str) else fact.format(value)


def _us_cell(us: float) -> Cell:
    """Microseconds, on a page with as many digits as those above and below."""
    return Cell(us_alike(us), us, plain=us_text(us))


def kinds(facts: Sequence[Row]) -> Iterator[Part]:
    """Phases and kinds of operation; a text names each phase once, and has no bytes."""
    heads = (
        "phase",
        "kind",
        "kernels",
        "\u00b5s",
        "launch \u00b5s",
        "share",
        "least",
        "bytes",
        "GB/s",
    )
    rows: list[tuple[Cell | str, ...]] = []
    before = ""
    for row in facts:
        phase = row["phase"]
        own_us = row["us"] - row["launch_us"]
        rows.append(
            (
                Cell(phase, plain="" if phase == before else phase),
                row["kind"],
                counts(row["kernels"]),
                _us_cell(row["us"]),
                _us_cell(row["launch_us"]),
                Cell(percent_text(row["share"], 1), plain=percent_text(row["share"])),
                percent_text(row["least_us"] / row["us"]) if row["us"] else "-",
                Cell.size(row["bytes"]),
                rate_text(row["bytes"] / own_us / 1e3) if own_us else "-",
            )
        )
        before = phase
    yield Table("", heads, rows, 2, in_text=(0, 1, 2, 3, 4, 5, 6, 8))
    yield Note(
        "(\u00b5s with launches; least: the share of it that any programs need; GB/s: what the "
        "cores read and write, without launches)"
    )


#: Columns of the table of operations, of which the first ``_OPERATION_TEXTS`` are texts.
_OPERATION_COLUMNS = (
    "operation",
    "kind",
    "kernels",
    "start_us",
    "us",
    "launch_us",
    "least_us",
    "least_by",
    "read_bytes",
    "written_bytes",
    "fetched_bytes",
    "written_back_bytes",
)
_OPERATION_TEXTS = 3


def _operations(facts: Row) -> Iterator[Part]:
    """Every operation and conversion in the order of launch."""
    by_name = {fact.name: fact for fact in OPERATIONS}
    columns = {
        _head(by_name[name]): partial(_fact_cell, by_name[name]) for name in _OPERATION_COLUMNS
    }
    yield Table.of(columns, facts["operations"], _OPERATION_TEXTS)
    yield Note("In the order of launch. read, written: the values of the operation, each once.")
    yield Note(
        "fetched: bytes from main memory; written back: bytes to it, dirty lines of any operation."
    )


def _traffic(facts: Row, device: Device) -> Iterator[Part]:
    """The memories of the device with the bytes of the step, and the same as a table."""
    yield traffic(device, step_traffic.path_totals(facts["traffic"]), operands=False)
    if facts["dirty_bytes"]:
        left = bytes_text(facts["dirty_bytes"])
        yield Note(f"{left} are dirty in the L2 when the step ends, and are not written back.")


def _bounds(facts: Row) -> Iterator[Part]:
    """The least time that each resource needs."""
    columns = {
        "of the": lambda row: row["of"],
        "resource": lambda row: row["resource"],
        "why": lambda row: row["why"],
        "\u00b5s": lambda row: _us_cell(row["us"]),
        "of simulated": lambda row: percent_text(row["share"]),
    }
    yield Table.of(columns, facts["bounds"], 3, long=("why",))


def losses(rows: Sequence[Row]) -> Iterator[Part]:
    """The operations that lose most against their least time, and what theirs is spent on."""
    if not rows:
        return
    heads = ("operation", "kind", "times", "\u00b5s", "least", "lost", "spent on")
    yield OnPage(lambda: [Table("", heads, [_loss_cells(row) for row in rows], 2, long=(6,))])
    cells = [
        (
            row["operation"],
            counts(row["count"]),
            us_text(row["us"]),
            us_text(row["least_us"]),
            us_text(row["lost_us"]),
        )
        for row in rows
    ]
    below = [f"{row['kind']}{': ' if row['reason'] else ''}{row['reason']}" for row in rows]
    yield InText(Table("", ("operation", "times", "us", "least", "lost"), cells, 1, below=below))
    yield Note(
        "(\u00b5s of all times, with launches; least: what any programs for them need; lost: the "
        "rest)"
    )


def _loss_cells(row: Row) -> tuple[Any, ...]:
    """Cells of an operation that loses, on a page."""
    times = (_us_cell(row[name]) for name in ("us", "least_us", "lost_us"))
    return (row["operation"], row["kind"], counts(row["count"]), *times, row["reason"])


def _conversions(facts: Row) -> Iterator[Part]:
    """The conversions that remain, the longest first: what it would save to do without each."""
    rows = [row for row in facts["operations"] if row["converts"]]
    if not rows:
        return
    rows.sort(key=lambda row: -row["us"])
    rest_us = sum(row["us"] for row in rows[MAX_CONVERSIONS:])
    yield Table(
        "",
        ("value", "to", "\u00b5s"),
        [(row["converts"], row["to"], _us_cell(row["us"])) for row in rows],
        2,
        most=MAX_CONVERSIONS,
        rest=(f"{len(rows) - MAX_CONVERSIONS:,} more", "", us_text(rest_us)),
    )
    note = Note("\u00b5s: what it would save if nobody needed the other format.")
    yield OnPage(lambda: [note])
