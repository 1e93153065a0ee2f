"""The report on the backward pass of a network, drawn from its plain rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npusim.results.lines import columns, items, page, percent_text, rate_text, us_text

#: A row of layers or kernels, or all facts of a network, by name.
Row = Mapping[str, Any]


def render(facts: Row) -> str:
    """Totals, layers, kernels, and what could not be simulated.

    ``facts`` are those of ``NetworkResult.to_json``.
    """
    errors: dict[str, list[str]] = {}
    for row in facts["layers"]:
        if row["error"]:
            errors.setdefault(row["error"], []).append(row["layer"])
    missing = [f"{', '.join(names)}: {error}" for error, names in errors.items()]
    sections = (
        _header(facts),
        _layers(facts),
        _kernels(facts),
        items("NOT SIMULATED", missing),
        items("NOTES", facts["notes"]),
    )
    return page(sections)


def missing_text(layers: Sequence[Row]) -> str:
    """How many of the layers have no time."""
    return f"{sum(bool(row['error']) for row in layers)} of {len(layers)} layers not simulated"


def results_text(facts: Row) -> str:
    """The gradients that are computed, behind a comma; nothing going forward."""
    return f", gradients of {', '.join(facts['gradients'])}" if facts["gradients"] else ""


def _header(facts: Row) -> Iterator[str]:
    launch_us = sum(row["launch_us"] for row in facts["kernels"])
    clock = f"{facts['clock_hz'] / 1e9:g} GHz"
    yield f"network     {facts['workload']}: {facts['description']}"
    yield f"{facts['pass']:11} batch {facts['batch']}, {facts['dtype']}{results_text(facts)}"
    yield f"device      {facts['device']}, {clock}, digest {facts['device_digest']}"
    yield (
        f"time        {us_text(facts['time_us'])} us = {facts['cycles']:,} cycles, of which "
        f"launches {us_text(launch_us)} us"
    )
    yield f"split, us   {_split(facts)}"
    if facts["energy_uj"] is not None:
        watt = rate_text(facts["energy_uj"] / facts["time_us"])
        most = facts["energy"][0]
        share = f"{percent_text(most['share'])} {most['figure']}"
        yield f"energy      {rate_text(facts['energy_uj'] / 1e3)} mJ = {watt} W; {share}"
    if not facts["complete"]:
        yield f"partial     {missing_text(facts['layers'])}; see below"


def _split(facts: Row) -> str:
    """Microseconds by gradient, repetitions of layers included."""
    texts = []
    for name in (*facts["results"], "other"):
        us = sum(row["count"] * (row[f"{name}_us"] or 0) for row in facts["layers"])
        texts.append(f"{name} {us_text(us)} ({percent_text(us / facts['time_us'])})")
    return ", ".join(texts)


def _layers(facts: Row) -> Iterator[str]:
    """A table of layers, a line of their total, and what its columns mean."""
    parts = (*facts["results"], "other")
    rows = [("LAYERS", "shape", "count", *parts, "total us", "share", "least", "bottleneck")]
    for row in facts["layers"]:
        cells = ["-"] * (len(parts) + 3) + ["not simulated"]
        if not row["error"]:
            times = [us_text(row[f"{name}_us"]) for name in (*parts, "total")]
            least = percent_text(row["problem_us"] / row["time_us"])
            cells = [*times, percent_text(row["share"]), least, row["bottleneck"]]
        rows.append((row["layer"], shape_text(row), str(row["count"]), *cells))
    counted = sum(row["count"] for row in facts["layers"] if not row["error"])
    end = us_text(facts["time_us"])
    rows.append(("total", "", str(counted), *("" for _ in parts), end, "", "", ""))
    yield ""
    yield from columns(rows, left=2)
    names = ", ".join(facts["results"])
    yield f"({names}, other: us of one layer; other is layouts, clearing and casts;"
    yield " least: share of the layer's time that any programs for it would need)"


def shape_text(row: Row) -> str:
    """Channels, input size, kernel and what is unusual: ``64->128 56x56 3x3/2``.

    Of a linear layer, the vectors of an image: ``2048->1000 x1``.
    """
    if row["rows"] is not None:
        return f"{row['cin']}->{row['cout']} x{row['rows']:,}"

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
    rows = [("KERNELS", "launches", "us", "launch us", "share", "TFLOPS", "executed", "least")]
    for row in facts["kernels"]:
        us = row["time_us"] - row["launch_us"]
        times = us_text(us), us_text(row["launch_us"]), percent_text(row["share"])
        macs = row["useful_macs"], row["macs"]
        speeds = (rate_text(2 * count / us / 1e6) if count else "-" for count in macs)
        least = percent_text(row["problem_us"] / us) if us else "-"
        rows.append((row["kernel"], f"{row['launches']:,}", *times, *speeds, least))
    yield ""
    yield from columns(rows)
    yield "(us and TFLOPS without launches; executed: with padding and zeros; least: share of us"
    yield " that any programs for the same problems would need with a cold L2)"
