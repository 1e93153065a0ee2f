"""The report on a training step, drawn from its plain rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npusim.results.lines import (
    WIDTH,
    bytes_text,
    columns,
    device_text,
    fact,
    items,
    launched_text,
    page,
    percent_text,
    rate_text,
    split_text,
    times_text,
    us_text,
    wrap,
)

Row = Mapping[str, Any]

#: Stands for the kernels of an operation of which only the traffic is known.
TRAFFIC = "traffic_only"

#: Conversions that a report names one by one, and kinds of operation; more are summed up.
_NAMED, KINDS = 12, 8


def render(facts: Row) -> str:
    """Totals, kinds of operations by phase, conversions that remain, what has no time, notes.

    ``facts`` are those of ``StepResult.to_json``.
    """
    failed = [f"{row['operation']}: {row['error']}" for row in facts["operations"] if row["error"]]
    return page(
        (
            _header(facts),
            _kinds(facts),
            _conversions(facts),
            items("NOT SIMULATED", failed),
            items("NOTES", facts["notes"]),
        )
    )


def asked(facts: Row) -> str:
    """How the step runs: mode, layouts, fusions."""
    fused = times_text(facts["fused"].items()) if facts["fused"] else "none"
    return f"{facts['mode']} mode, layouts {facts['layouts']}, fusions: {fused}"


def _header(facts: Row) -> Iterator[str]:
    yield from fact("network", f"{facts['workload']}: {facts['description']}")
    kinds = facts["dtype"]
    if facts["normalisation_dtype"] != kinds:
        kinds += f", normalisations {facts['normalisation_dtype']}"
    what = f"batch {facts['batch']}, {kinds}"
    if facts["pass"] == "training":
        what += f", {facts['optimizer']}"
    if facts["cards"] > 1:
        what += f", {facts['cards']} cards"
    yield from fact(facts["pass"], what)
    yield from fact("mode", asked(facts))
    yield from fact("device", device_text(facts))
    cycles = f"{facts['cycles']:,} cycles{launched_text(facts['launch'])}"
    yield from fact("step", f"{us_text(facts['time_us'])} us = {cycles}" + _added(facts))
    yield from fact("speed", f"{rate_text(facts['images_per_second'])} images/s")
    yield from fact("split, us", split_text(facts, KINDS))
    if facts["all_reduce"]:
        yield from fact("all-reduce", reduced_text(facts["all_reduce"]))
    if facts["plan"]:
        yield from fact("plan", plan_text(facts))
    yield from fact("memory", f"{bytes_text(facts['kept_bytes'])} of values at most at once")
    if facts["energy_uj"] is not None:
        watt = rate_text(facts["energy_uj"] / facts["time_us"])
        yield from fact("energy", f"{rate_text(facts['energy_uj'] / 1e3)} mJ a card = {watt} W")


def _added(facts: Row) -> str:
    more = facts["time_us"] - facts["compute_us"]
    return f" and {us_text(more)} us of an all-reduce" if facts["all_reduce"] else ""


def reduced_text(reduced: Row) -> str:
    """What the exchange of gradients takes, and how much of it shows."""
    return (
        f"{bytes_text(reduced['bytes'])} in {reduced['pieces']} pieces, {us_text(reduced['us'])} "
        f"us: {us_text(reduced['hidden_us'])} hidden, {us_text(reduced['exposed_us'])} exposed; "
        f"kernels take {us_text(reduced['slowed_us'])} us longer beside it"
    )


def plan_text(facts: Row) -> str:
    """What the plan of formats is worth, and how well that is known."""
    plan, fixed = facts["plan"], facts["layouts"] == "as_framework"
    times = f"{us_text(plan['us'])} us with every kernel by itself"
    if fixed:
        return f"{times}; formats as the framework has them"
    if plan["proved"]:
        return f"{times}; proved: no choice of formats takes less"
    return f"{times}; no choice of formats takes less than {us_text(plan['bound_us'])} us"


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
