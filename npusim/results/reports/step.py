"""The report of a training step: where its time goes, phase by phase and kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from npusim.device.spec import Device
from npusim.results import metrics, palette, step_text
from npusim.results.figure import Figure, Span
from npusim.results.figures import stacks, timeline
from npusim.results.lines import bytes_text, percent_text, rate_text, split_text, us_alike, us_text
from npusim.results.report import (
    Cell,
    Colours,
    Items,
    Note,
    Part,
    Report,
    Section,
    Table,
    origin,
    table_of,
)
from npusim.results.reports.call import traffic
from npusim.timing.trace import KernelRun

Row = Mapping[str, Any]


def report(facts: Row, device: Device, launched: Sequence[Any]) -> Report:
    """All of a step; a notebook shows its phases and notes.

    ``facts`` are those of ``StepResult.to_json``, ``launched`` its operations as they ran.
    """
    runs = [run for one in launched for run in one.timed.runs]
    failed = [f"{row['operation']}: {row['error']}" for row in facts["operations"] if row["error"]]
    return Report(
        title=f"{facts['workload']} {facts['pass']} step on {device.name}",
        about=[f"{facts['description']}; batch {facts['batch']}, {step_text.asked(facts)}"],
        lead=_verdict(facts),
        cards=[*_cards(facts, device, runs)],
        sections=(
            Section("Phases", [stacks.phases(facts)]),
            Section("Kinds of operations", [_kinds(facts)], brief=True),
            Section("Timeline", [_timeline(device, launched), Colours(_colours(facts))]),
            Section("Operations", [*_operations(facts)], opened=False),
            Section("Conversions that remain", [*_conversions(facts)]),
            Section("Memory traffic", [traffic(device, runs, operands=False)]),
            Section("Not simulated", [Items(failed)]),
            Section("Notes", [Items(facts["notes"])], brief=True),
        ),
        origin=origin(facts),
    )


def _verdict(facts: Row) -> str:
    """The time and the kinds of operation that matter most."""
    text = f"{us_text(facts['time_us'])} \u00b5s. {split_text(facts, step_text.KINDS)}."
    if facts["all_reduce"]:
        text += f" All-reduce: {step_text.reduced_text(facts['all_reduce'])}."
    return text


def _cards(facts: Row, device: Device, runs: Sequence[KernelRun]) -> Iterator[tuple[str, str]]:
    """The key figures of the step."""
    yield f"{us_text(facts['time_us'])} \u00b5s", f"a step of {facts['batch']} images"
    yield f"{rate_text(facts['images_per_second'])} /s", "images"
    launches = sum(row["launch_us"] for row in facts["kinds"])
    yield percent_text(launches / facts["time_us"]), "launches"
    yield bytes_text(facts["kept_bytes"]), "of values at most at once"
    useful = sum(run.useful_macs for run in runs)
    if useful:
        yield f"{rate_text(metrics.tflops(device, useful, facts['cycles']))} TFLOPS", "useful"
    if facts["energy_uj"] is not None:
        yield f"{rate_text(facts['energy_uj'] / 1e3)} mJ", "energy"


def _colours(facts: Row) -> list[tuple[str, str]]:
    """What colours of the timeline stand for."""
    groups = dict.fromkeys(palette.step_group(row["kind"]) for row in facts["kinds"])
    return [*((name, palette.STEP_COLOURS[name]) for name in groups), ("launch", palette.LAUNCH)]


def _timeline(device: Device, launched: Sequence[Any]) -> Figure:
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
    places: list[tuple[str, float, float]] = [("whole step", 0, rows[-1].right * us)]
    places += [(one.name, one.left * us, one.right * us) for one in rows]
    return timeline.of_rows(
        {"phase": rows, "kernel": kernels},
        us,
        about="timeline of phases and kernels",
        caption="Kernels in the order of launch. Drag to move; zoom with the buttons or with Ctrl "
        "and the wheel.",
        jumps=places,
    )


def _kinds(facts: Row) -> Table:
    columns: dict[str, Callable[[Row], Any]] = {
        "phase": lambda row: row["phase"],
        "kind": lambda row: row["kind"],
        "kernels": lambda row: row["kernels"],
        "\u00b5s": lambda row: Cell(us_alike(row["us"]), row["us"]),
        "launch \u00b5s": lambda row: Cell(us_alike(row["launch_us"]), row["launch_us"]),
        "share": lambda row: percent_text(row["share"], 1),
        "bytes": lambda row: Cell(bytes_text(row["bytes"]), row["bytes"]),
    }
    return table_of(columns, facts["kinds"], 2)


def _operations(facts: Row) -> Iterator[Part]:
    columns: dict[str, Callable[[Row], Any]] = {
        "operation": lambda row: row["operation"],
        "kind": lambda row: row["kind"],
        "kernels": lambda row: ", ".join(row["kernels"]),
        "start \u00b5s": lambda row: Cell(us_alike(row["start_us"]), row["start_us"]),
        "\u00b5s": lambda row: Cell(us_alike(row["us"]), row["us"]),
        "launch \u00b5s": lambda row: Cell(us_alike(row["launch_us"]), row["launch_us"]),
        "read": lambda row: Cell(bytes_text(row["read_bytes"]), row["read_bytes"]),
        "written": lambda row: Cell(bytes_text(row["written_bytes"]), row["written_bytes"]),
    }
    yield table_of(columns, facts["operations"], 3)
    yield Note("In the order of launch. read, written: the values of the operation, each once.")


def _conversions(facts: Row) -> Iterator[Part]:
    columns: dict[str, Callable[[Row], Any]] = {
        "value": lambda row: row["converts"],
        "to": lambda row: row["to"],
        "\u00b5s": lambda row: Cell(us_alike(row["us"]), row["us"]),
    }
    rows = [row for row in facts["operations"] if row["converts"]]
    if rows:
        yield table_of(columns, sorted(rows, key=lambda row: -row["us"]), 2)
        yield Note("\u00b5s: what it would save if nobody needed the other format.")
