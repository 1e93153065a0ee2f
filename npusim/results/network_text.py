"""The report on the backward pass of a network, drawn from its plain rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npusim.results.lines import (
    WIDTH,
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
from npusim.workloads import Workload

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
    if facts["untimed"]:
        texts.append(f"without {times_text(facts['untimed'].items())}")
    return ", ".join(texts)


def left_out(workload: Workload) -> Iterator[str]:
    """Notes on what the time of a network leaves out."""
    kinds: Counter[str] = Counter()
    for one in workload.elementwise:
        kinds[one.kind] += one.count
    if kinds:
        met = times_text(kinds.items())
        yield f"not in the time: {met}; npusim.step times what lies between layers"
    if workload.untimed:
        yield f"not in the time, nor known: {times_text(workload.untimed)}"


def results_text(facts: Row) -> str:
    """The gradients that are computed, behind a comma; nothing going forward."""
    return f", gradients of {', '.join(facts['gradients'])}" if facts["gradients"] else ""


def _header(facts: Row) -> Iterator[str]:
    yield from fact("network", f"{facts['workload']}: {facts['description']}")
    what = f"batch {facts['batch']}, {facts['dtype']}{results_text(facts)}"
    yield from fact(facts["pass"], what)
    yield from fact("device", device_text(facts))
    low, high = map(us_text, facts["time_range_us"] or (0, 0))
    ends = f" ({low} to {high})" if facts["time_range_us"] else ""
    cycles = f"{facts['cycles']:,} cycles{launched_text(facts['launch'])}"
    yield from fact("time", f"{us_text(facts['time_us'])} us{ends} = {cycles}")
    yield from fact("split, us", split_text(facts))
    yield from fact("bottleneck", verdict(facts))
    if facts["energy_uj"] is not None:
        watt = rate_text(facts["energy_uj"] / facts["time_us"])
        most = facts["energy"][0]
        share = f"{percent_text(most['share'])} {most['figure']}"
        yield from fact("energy", f"{rate_text(facts['energy_uj'] / 1e3)} mJ = {watt} W; {share}")
    if not facts["complete"]:
        yield from fact("partial", f"{missing_text(facts)}; see below")


def verdict(facts: Row) -> str:
    """The part that saves most if it takes half as long."""
    share = facts["split"][facts["bottleneck"]] / facts["time_us"]
    return f"{facts['bottleneck']}: in half the time they save {percent_text(share / 2)}"


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


def shape_text(row: Row) -> str:
    """Channels, input size, kernel and what is unusual: ``64->128 56x56 3x3/2``.

    Of a linear layer, the vectors of an image: ``2048->1000 x1``; of products of two computed
    matrices also how many an image has: ``64->197 x197, 6 products``.
    """
    if row["rows"] is not None:
        products = f", {row['products']:,} products" if row["products"] else ""
        return f"{row['cin']}->{row['cout']} x{row['rows']:,}{products}"

    def sizes(values: Sequence[int]) -> str:
        return "x".join(map(str, values))

    def unusual(sign: str, values: Sequence[int]) -> str:
        alike = sizes(values[:1] if len(set(values)) == 1 else values)
        return "" if set(values) == {1} else sign + alike

    text: str = (
        f"{row['cin']}->{row['cout']} {sizes(row['spatial'])} {sizes(row['kernel'])}"
        + unusual("/", row["stride"])
        + unusual(" d", row["dilation"])
        + unusual(" g", (row["groups"],))
        + " transposed" * row["transposed"]
    )
    return text


def _kernels(facts: Row) -> Iterator[str]:
    heads = ("KERNELS", "n", "us", "launch us", "share", "TFLOPS", "executed", "least")
    yield ""
    yield from columns([heads, *kernel_cells(facts)], width=WIDTH)
    yield from wrap(
        "(n: launches; us and TFLOPS without them; executed: with padding and zeros; least: share "
        "of us that any programs for the same problems would need)"
    )


def kernel_cells(facts: Row) -> Iterator[tuple[str, ...]]:
    """Kernels: launches, their times and share of the time, speeds, and how much is necessary."""
    for row in facts["kernels"]:
        us = row["time_us"] - row["launch_us"]
        times = us_text(us), us_text(row["launch_us"]), percent_text(row["share"])
        macs = row["useful_macs"], row["macs"]
        speeds = (rate_text(2 * count / us / 1e6) if count else "-" for count in macs)
        least = percent_text(row["problem_us"] / us) if us else "-"
        yield row["kernel"], f"{row['launches']:,}", *times, *speeds, least
