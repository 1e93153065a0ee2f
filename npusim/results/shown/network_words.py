"""Sentences and cells on networks and training steps that text and page have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from npusim.results.facts.energy import TOTAL_ENERGY, energy_of_facts
from npusim.results.facts.memory_rows import shares_of
from npusim.results.facts.number_text import (
    alike_text,
    bytes_text,
    percent_text,
    rate_text,
    sizes_text,
    times_text,
    us_text,
)
from npusim.results.facts.spread import NO_SPREAD, Spread, spread_text
from npusim.results.facts.tables import least_share
from npusim.results.shown.report import Key, ReportLine
from npusim.workloads import Workload

#: A row of layers or kernels, or all facts of a network, by name.
Row = Mapping[str, Any]

#: Stands for the kernels of an operation of which only the traffic is known.
TRAFFIC = "traffic_only"

#: Kinds of operation that a report names one by one; more are summed up.
KINDS = 8

#: Values that the line of memory names.
LARGEST = 3


def device_text(facts: Mapping[str, Any]) -> str:
    """The device of plain facts, its clock, and what it is by content."""
    clock = f"{facts['clock_hz'] / 1e9:g} GHz"
    return f"{facts['device']}, {clock}, digest {facts['device_digest']}"


def step_range(facts: Mapping[str, Any]) -> Iterator[Key]:
    """The range of the time of a step, where measured steps tell of one."""
    known = facts["time_range"]
    spread = Spread(**known["spread"])
    if spread != NO_SPREAD:
        ends = f"{us_text(known['low_us'])} to {us_text(known['high_us'])}"
        text = f"{ends} us: {spread_text(spread, known['work'])}"
        yield Key(ReportLine("range", text), (f"{ends} \u00b5s", "range of the time"))


def split_text(facts: Mapping[str, Any], most: int | None = None) -> str:
    """Microseconds by part of plain facts; of more than ``most`` what is little is summed up."""
    parts, time_us = list(facts["split"].items()), facts["time_us"]
    listed = [(name, us) for name, us in parts[:most] if most is None or us >= time_us / 50]
    texts = [f"{name} {us_text(us)} ({percent_text(us / time_us)})" for name, us in listed]
    rest = sum(us for _, us in parts) - sum(us for _, us in listed)
    return ", ".join([*texts, f"others {us_text(rest)}"] if rest else texts)


def missing(facts: Row) -> list[str]:
    """Why layers have no time, those with one reason together."""
    errors: dict[str, list[str]] = {}
    for row in facts["layers"]:
        if row["error"]:
            errors.setdefault(row["error"], []).append(row["layer"])
    return [f"{', '.join(names)}: {error}" for error, names in errors.items()]


def missing_text(facts: Row) -> str:
    """How many of the layers have no time, and what else is left out."""
    layers = facts["layers"]
    failed = sum(bool(row["error"]) for row in layers)
    texts = [f"{failed} of {len(layers)} layers not simulated"] if failed else []
    # Results of older versions count all unknown operations, and do not say which multiply.
    unknown = facts.get("unknown_products", facts["untimed"])
    if unknown:
        texts.append(f"without {times_text(unknown.items())}, which multiply and are not known")
    return ", ".join(texts)


def left_out(workload: Workload) -> Iterator[str]:
    """Notes on what the time of a network leaves out."""
    kinds: Counter[str] = Counter()
    for operation in workload.elementwise:
        kinds[operation.kind] += operation.count
    if kinds:
        met = times_text(kinds.items())
        yield f"not in the time: {met}; npusim.step times what lies between layers"
    if workload.untimed:
        yield f"not in the time, nor known: {times_text(workload.untimed)}"


def results_text(facts: Row) -> str:
    """The gradients that are computed, behind a comma; nothing going forward."""
    return f", gradients of {', '.join(facts['gradients'])}" if facts["gradients"] else ""


def verdict(facts: Row) -> str:
    """The part that saves most if it takes half as long."""
    share = facts["split"][facts["bottleneck"]] / facts["time_us"]
    return f"{facts['bottleneck']}: in half the time they save {percent_text(share / 2)}"


def shape_text(row: Row) -> str:
    """Channels, input size, kernel and what is unusual: ``64->128 56x56 3x3/2``.

    Of a linear layer, the vectors of an image: ``2048->1000 x1``; of products of two computed
    matrices also how many an image has: ``64->197 x197, 6 products``.
    """
    if row["rows"] is not None:
        products = f", {row['products']:,} products" if row["products"] else ""
        return f"{row['cin']}->{row['cout']} x{row['rows']:,}{products}"

    def unusual(sign: str, values: Sequence[int]) -> str:
        return "" if set(values) == {1} else sign + alike_text(values)

    text: str = (
        f"{row['cin']}->{row['cout']} {sizes_text(row['spatial'])} "
        f"{sizes_text(row['kernel'])}"
        + unusual("/", row["stride"])
        + unusual(" d", row["dilation"])
        + unusual(" g", (row["groups"],))
        + " transposed" * row["transposed"]
    )
    return text


def kernel_cells(facts: Row) -> Iterator[tuple[str, ...]]:
    """Kernels: launches, their times and share of the time, speeds, and how much is necessary."""
    for row in facts["kernels"]:
        us = row["time_us"] - row["launch_us"]
        share = least_share(row)
        times = us_text(us), us_text(row["launch_us"]), percent_text(row["share"])
        macs = row["useful_macs"], row["macs"]
        speeds = (rate_text(2 * count / us / 1e6) if count else "-" for count in macs)
        least = "-" if share is None else percent_text(share)
        yield row["kernel"], f"{row['launches']:,}", *times, *speeds, least


def asked(facts: Row) -> str:
    """How the step runs: mode, layouts, fusions."""
    fused = times_text(facts["fused"].items()) if facts["fused"] else "none"
    return f"{facts['mode']} mode, layouts {facts['layouts']}, fusions: {fused}"


def step_missing(facts: Row) -> str:
    """Gaps in the time of a step: operations without one, and unknown ones that multiply."""
    failed = sum(bool(row["error"]) for row in facts["operations"])
    texts = [f"{failed} operations not simulated"] if failed else []
    if facts["unknown_products"]:
        names = times_text(facts["unknown_products"].items())
        texts.append(f"operations that multiply and are not known: {names}")
    return "; ".join(texts)


def memory_text(facts: Row) -> str:
    """The most memory that a step takes, when, what that holds, and its largest values."""
    largest = [f"{row['value']} {bytes_text(row['bytes'])}" for row in facts["held"][:LARGEST]]
    return f"{peak_text(facts['peak'])}; largest: {', '.join(largest)}"


def peak_text(peak: Row) -> str:
    """The memory of a step at its peak, in which operation that is, and what it holds."""
    return f"{bytes_text(peak['bytes'])} at most, {peak_place(peak)}"


def peak_place(peak: Row) -> str:
    """The operation in which memory is at its peak, its start if simulated, and what it holds."""
    when = f"{peak['phase']}, at {us_text(peak['start_us'])} us" if peak["us"] else peak["phase"]
    shares = [f"{holds} {bytes_text(size)}" for holds, size in shares_of(peak).items()]
    return f"in {peak['operation']} ({when}): {', '.join(shares)}"


def too_large(facts: Row) -> str:
    """Need and size of a card whose memory does not hold a step, and a batch that fits."""
    text = (
        f"needs {bytes_text(facts['peak_bytes'])}, the card has {bytes_text(facts['card_bytes'])}"
    )
    fitting = facts["fitting_batch"]
    if fitting is None:
        return text
    return f"{text}: {f'batch {fitting:,} fits' if fitting else 'no batch fits'}"


def reduced_text(reduced: Row) -> str:
    """Time of the exchange of gradients, and how much of it shows."""
    return (
        f"{bytes_text(reduced['bytes'])} in {reduced['pieces']} pieces, {us_text(reduced['us'])} "
        f"us: {us_text(reduced['hidden_us'])} hidden, {us_text(reduced['exposed_us'])} exposed; "
        f"kernels take {us_text(reduced['slowed_us'])} us longer beside it"
    )


def plan_text(facts: Row) -> str:
    """Worth of the plan of formats, and how well that is known."""
    plan, fixed = facts["plan"], facts["layouts"] == "as_framework"
    times = f"{us_text(plan['us'])} us with every kernel by itself"
    if fixed:
        return f"{times}; formats as the framework has them"
    if plan["proved"]:
        best = f"{times}; proved: no choice of formats takes less"
    else:
        best = f"{times}; no choice of formats takes less than {us_text(plan['bound_us'])} us"
    framework_us = plan.get("framework_us")  # files of older versions have none
    same = framework_us is not None and isclose(framework_us, plan["us"], rel_tol=1e-9)
    return f"{best}: as_framework is already best" if same and plan["proved"] else best


def energy(facts: Row, of: str = "", more: str = "") -> Iterator[Key]:
    """The energy, and the power that makes; nothing where it is not known."""
    uj = energy_of_facts(facts)
    if uj is None:
        return
    watt = rate_text(uj / facts["time_us"])
    line = ReportLine(TOTAL_ENERGY.title, f"{TOTAL_ENERGY.text(uj)}{of} = {watt} W{more}")
    yield Key(line, (TOTAL_ENERGY.text(uj), TOTAL_ENERGY.title))
