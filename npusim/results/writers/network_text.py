"""The reports on a network, layer by layer, and on a training step, drawn from plain rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npusim.results.facts.energy import TOTAL_ENERGY, energy_of_facts
from npusim.results.facts.number_text import (
    bytes_text,
    launched_text,
    percent_text,
    rate_text,
    us_text,
)
from npusim.results.shown.network_words import (
    KINDS,
    asked,
    device_text,
    kernel_cells,
    missing,
    missing_text,
    plan_text,
    reduced_text,
    results_text,
    shape_text,
    split_text,
    step_missing,
    verdict,
)
from npusim.results.writers.text_layout import WIDTH, columns, fact, items, page, wrap

#: A row of layers or kernels, or all facts of a network, by name.
Row = Mapping[str, Any]


def render(facts: Row) -> str:
    """Totals, layers, kernels, and what could not be simulated.

    ``facts`` are those of ``NetworkResult.to_json``.
    """
    sections = (
        _header(facts),
        _layers(facts),
        _kernels(facts),
        items("NOT SIMULATED", missing(facts)),
        items("NOTES", facts["notes"]),
    )
    return page(sections)


def _of_network(facts: Row, what: str, **more: str) -> Iterator[str]:
    """What is computed, how, and where; ``more`` are facts by name."""
    told = {"network": f"{facts['workload']}: {facts['description']}", facts["pass"]: what}
    for name, text in (told | more | {"device": device_text(facts)}).items():
        yield from fact(name, text)


def _cycles(facts: Row) -> str:
    return f"{facts['cycles']:,} cycles{launched_text(facts['launch'])}"


def _energy(facts: Row, of: str = "", more: str = "") -> Iterator[str]:
    """The energy, and the power that makes; nothing where it is not known."""
    uj = energy_of_facts(facts)
    if uj is not None:
        watt = rate_text(uj / facts["time_us"])
        yield from fact(TOTAL_ENERGY.title, f"{TOTAL_ENERGY.text(uj)}{of} = {watt} W{more}")


def _header(facts: Row) -> Iterator[str]:
    what = f"batch {facts['batch']}, {facts['dtype']}{results_text(facts)}"
    yield from _of_network(facts, what)
    low, high = map(us_text, facts["time_range_us"] or (0, 0))
    ends = f" ({low} to {high})" if facts["time_range_us"] else ""
    yield from fact("time", f"{us_text(facts['time_us'])} us{ends} = {_cycles(facts)}")
    yield from fact("split, us", split_text(facts))
    yield from fact("bottleneck", verdict(facts))
    for most in facts["energy"][:1]:
        yield from _energy(facts, more=f"; {percent_text(most['share'])} {most['figure']}")
    if not facts["complete"]:
        yield from fact("partial", f"{missing_text(facts)}; see below")


def _layers(facts: Row) -> Iterator[str]:
    """A table of layers, two lines for each, a line of their total, and what its columns mean."""
    parts = (*facts["results"], "other")
    ends = ["share", "least", "bound by"][len(parts) > 3 :]  # so that rows fit the page
    rows = [("LAYERS", "n", *parts, "total", *ends)]
    for row in facts["layers"]:
        cells = ["-"] * (len(parts) + len(ends)) + ["not simulated"]
        if not row["error"]:
            times = [rate_text(row[f"{name}_us"] or 0) for name in (*parts, "total")]
            own, needed = row["own_us"], row["own_problem_us"]
            least = percent_text(needed / own) if own and needed else "-"
            bound = row["own_bound"].removeprefix("pipe ")
            told = {"share": percent_text(row["share"]), "least": least, "bound by": bound}
            cells = [*times, *(told[end] for end in ends)]
        rows.append((row["layer"], str(row["count"]), *cells))
    counted = sum(row["count"] for row in facts["layers"] if not row["error"])
    whole = rate_text(facts["time_us"])
    rows.append(("total", str(counted), *("" for _ in parts), whole, *("" for _ in ends)))
    head, *lines, total = columns(rows)
    yield ""
    yield head
    for row, line in zip(facts["layers"], lines, strict=True):
        yield line
        yield f"  {shape_text(row)}"
    yield total
    names = ", ".join(facts["results"])
    yield from wrap(
        f"({names}, other: us of one layer; other is layouts, clearing and casts; bound by, least: "
        "what the kernels that multiply are bound by, and the share of their time that any "
        "programs for the same problems would need)"
    )


def _kernels(facts: Row) -> Iterator[str]:
    heads = ("KERNELS", "n", "us", "launch us", "share", "TFLOPS", "executed", "least")
    yield ""
    yield from columns([heads, *kernel_cells(facts)], width=WIDTH)
    yield from wrap(
        "(n: launches; us and TFLOPS without them; executed: with padding and zeros; least: share "
        "of us that any programs for the same problems would need)"
    )


# -- training steps ----------------------------------------------------------------------------

#: Conversions that a report names one by one; more are summed up.
_NAMED = 12


def render_step(facts: Row) -> str:
    """Totals, kinds of operations by phase, conversions that remain, what has no time, notes.

    ``facts`` are those of ``StepResult.to_json``.
    """
    failed = [f"{row['operation']}: {row['error']}" for row in facts["operations"] if row["error"]]
    return page(
        (
            _step_header(facts),
            _kinds(facts),
            _conversions(facts),
            items("NOT SIMULATED", failed),
            items("NOTES", facts["notes"]),
        )
    )


def _step_header(facts: Row) -> Iterator[str]:
    kinds = facts["dtype"]
    if facts["normalisation_dtype"] != kinds:
        kinds += f", normalisations {facts['normalisation_dtype']}"
    what = f"batch {facts['batch']}, {kinds}"
    if facts["pass"] == "training":
        what += f", {facts['optimizer']}"
    if facts["cards"] > 1:
        what += f", {facts['cards']} cards"
    yield from _of_network(facts, what, mode=asked(facts))
    if not facts["complete"]:
        yield from fact("partial", f"{step_missing(facts)}; the times below lack it")
    yield from fact("step", f"{us_text(facts['time_us'])} us = {_cycles(facts)}" + _added(facts))
    cached, cold = facts["at_least_us"]
    least = f"{us_text(cached)} us (operands in the L2), {us_text(cold)} us (from main memory)"
    share = percent_text(cached / facts["time_us"])
    yield from fact("at least", f"{least} for any programs of its operations: {share} of the time")
    yield from fact("speed", f"{rate_text(facts['images_per_second'])} images/s")
    yield from fact("split, us", split_text(facts, KINDS))
    if facts["all_reduce"]:
        yield from fact("all-reduce", reduced_text(facts["all_reduce"]))
    if facts["plan"]:
        yield from fact("plan", plan_text(facts))
    yield from fact("memory", f"{bytes_text(facts['kept_bytes'])} of values at most at once")
    yield from _energy(facts, " a card")


def _added(facts: Row) -> str:
    more = us_text(facts["time_us"] - facts["compute_us"])
    return f" and {more} us of an all-reduce" if facts["all_reduce"] else ""


def _kinds(facts: Row) -> Iterator[str]:
    """A table of phases and kinds of operation."""
    rows = [("PHASE", "kind", "kernels", "us", "launch us", "share", "GB/s")]
    before = ""
    for row in facts["kinds"]:
        own = row["us"] - row["launch_us"]
        rate = rate_text(row["bytes"] / own / 1e3) if own else "-"
        phase = row["phase"] if row["phase"] != before else ""
        before = row["phase"]
        times = us_text(row["us"]), us_text(row["launch_us"]), percent_text(row["share"])
        rows.append((phase, row["kind"], f"{row['kernels']:,}", *times, rate))
    yield ""
    yield from columns(rows, left=2, width=WIDTH)
    yield from wrap("(us with launches; GB/s: what the cores read and write, without launches)")


def _conversions(facts: Row) -> Iterator[str]:
    """The conversions that remain, the longest first: what it would save to do without each."""
    rows = sorted(
        (row for row in facts["operations"] if row["converts"]), key=lambda row: -row["us"]
    )
    if not rows:
        return
    table = [("CONVERSION", "to", "us")]
    table += [(row["converts"], row["to"], us_text(row["us"])) for row in rows[:_NAMED]]
    if len(rows) > _NAMED:
        rest = sum(row["us"] for row in rows[_NAMED:])
        table.append((f"{len(rows) - _NAMED:,} more", "", us_text(rest)))
    yield ""
    yield from columns(table, left=2, width=WIDTH)
