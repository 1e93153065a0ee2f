"""The report of the largest batch that a card's memory holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from npusim.machine.device.spec import Device
from npusim.results.facts.number_text import bytes_text, rate_text, us_text
from npusim.results.shown import network_words
from npusim.results.shown.figures import step_memory
from npusim.results.shown.report import Items, Key, OnPage, Report, ReportLine, Section, apart

#: All facts by name.
Row = Mapping[str, Any]

#: What no count of memory has in it.
NOT_COUNTED = (
    "not counted: what the framework takes of the card, its context, rounding and fragmentation of "
    "its allocator, and buffers of an exchange between cards"
)


def report(facts: Row, step: Row, device: Device) -> Report:
    """The report, of the facts of the largest batch and those of its ``step``."""
    lines, cards = apart(_keys(facts, step))
    batch = f"{facts['batch']:,}"
    card = mebibytes_text(facts["card_bytes"])
    return Report(
        title=f"Largest batch of {facts['workload']} on {facts['device']}",
        about=[f"{step['description']}; {step['pass']}, {network_words.asked(step)}"],
        lead=f"Batch {batch} fits {card}, batch {facts['next_batch']:,} does not.",
        lines=lines,
        cards=cards,
        sections=(
            Section("Memory", [OnPage(partial(_pictures, step))]),
            Section("Notes", [Items([NOT_COUNTED, *step["notes"]])], brief=True, heading="NOTES"),
        ),
        origin=Report.origin_of(facts["npusim_version"], device),
    )


def _pictures(step: Row) -> list[Any]:
    """The memory of the step over its time."""
    return [step_memory.over_time(step)]


def _keys(facts: Row, step: Row) -> Iterator[Key]:
    """The key figures: the batch, what it and the next one need, and its speed."""
    yield Key(ReportLine("network", f"{facts['workload']}: {step['description']}"))
    yield Key(ReportLine("mode", network_words.asked(step)))
    yield Key(ReportLine("device", network_words.device_text(step)))
    if not step["complete"]:
        missing = network_words.step_missing(step)
        yield Key(ReportLine("partial", f"{missing}; their workspace is not counted"))
    card = mebibytes_text(facts["card_bytes"])
    yield Key(
        ReportLine("largest", f"batch {facts['batch']:,} fits {card}"),
        (f"{facts['batch']:,}", "images at most"),
    )
    for batch, peak, held, how in (
        (facts["batch"], facts["peak"], facts["held"], "simulated"),
        (
            facts["next_batch"],
            facts["next_peak"],
            facts["next_held"],
            "simulated" if facts["next_simulated"] else "planned, without workspace",
        ),
    ):
        text = f"{_needs(peak)}; largest: {held['value']} {bytes_text(held['bytes'])} ({how})"
        yield Key(ReportLine(f"{batch:,}", text))
    speed = rate_text(facts["images_per_second"])
    time = f"{us_text(facts['time_us'])} us a step: {speed} images/s"
    yield Key(ReportLine("speed", time), (f"{speed} /s", "images"))


def mebibytes_text(count: int) -> str:
    """Bytes in MiB, so that two that are nearly equal can be told apart: ``"65,536.0 MiB"``."""
    return f"{count / 2**20:,.1f} MiB"


def _needs(peak: Row) -> str:
    """The memory of a batch, in which operation that is, and what it holds."""
    return f"needs {mebibytes_text(peak['bytes'])}, {network_words.peak_place(peak)}"
