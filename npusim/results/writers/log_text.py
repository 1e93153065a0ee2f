"""The summary of the convolution backwards of a trace, drawn from their plain rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from npusim.results.facts.number_text import counted, percent_text, sizes_text, times_text, us_text
from npusim.results.writers.text_layout import columns, wrap

#: A call of the log by the columns of its table.
Row = Mapping[str, Any]

GRADIENTS = ("grad_input", "grad_weight", "grad_bias")

#: Characters for the name of a layer.
_NAME = 48


def render(
    device: str, time_us: float, rows: Sequence[Row], untimed: Mapping[str, int] | None = None
) -> str:
    """Layers with their time, refusals, and what was met and is not timed, by operation.

    ``rows`` are those of ``Log.rows``.
    """
    refused = Counter((r["layer"], _sizes(r), r["reason"]) for r in rows if r["result"] is None)
    distinct = len({row["result"] for row in rows} - {None})
    bad = sum(row["ok"] is False for row in rows)
    products = sum(not row["stride"] for row in rows)
    folds = sum(bool(row["stride"]) and len(row["weight"]) == 2 for row in rows)
    kinds = {
        "convolution backward": len(rows) - products - folds,
        "product backward": products,
        "fold backward": folds,
    }
    counts = [counted(n, kind) for kind, n in kinds.items() if n or kind.startswith("conv")]
    lines = [
        f"{device}: {', '.join(counts)}, {distinct} distinct, "
        f"{us_text(time_us)} us"
        + (f", {sum(refused.values())} refused" if refused else "")
        + (f", {bad} beyond tolerance" if bad else "")
    ]
    lines += _layers(time_us, rows)
    for (layer, sizes, reason), count in refused.items():
        lines += ["", *wrap(f"refused {count} x {layer}, {sizes}: {reason}", later="  ")]
    timed = [row for row in rows if row["result"] is not None]
    wrong = Counter((r["layer"], r["reason"]) for r in timed if r["ok"] is False and r["reason"])
    for (layer, reason), count in wrong.items():
        lines += ["", *wrap(f"beyond tolerance {count} x {layer}: {reason}", later="  ")]
    if untimed:
        lines += ["", *wrap(f"not in the time: {times_text(untimed.items())}", later="  ")]
    return "\n".join(lines)


def _layers(time_us: float, rows: Sequence[Row]) -> list[str]:
    """A heading, and per layer and distinct call two lines, in order of appearance."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row["result"] is not None:
            groups.setdefault((row["layer"], row["result"]), []).append(row)
    table = [("layer: type, input, weight", "count", "us each", "share", "error")]
    for (layer, _), calls in groups.items():
        each = calls[0]["time_us"]
        share = percent_text(each * len(calls) / time_us) if time_us else ""
        table.append((_clipped(layer), str(len(calls)), us_text(each), share, _worst(calls)))
    head, *lines = columns(table)
    sizes = [f"  {_operands(calls[0])}" for calls in groups.values()]
    both = [text for pair in zip(lines, sizes, strict=True) for text in pair]
    return ["", head, *both] if groups else []


def _clipped(name: str) -> str:
    """The end of a name that is longer than a line holds, with dots for its beginning."""
    return name if len(name) <= _NAME else "..." + name[3 - _NAME :]


def _worst(calls: Sequence[Row]) -> str:
    """The largest error of any gradient, "nan" where one is not finite; empty without errors."""
    errors = [call[f"error_{name}"] for call in calls for name in GRADIENTS]
    finite_or_nan = [error for error in errors if error is not None]
    if not finite_or_nan:
        return ""
    return f"{max(finite_or_nan, key=lambda error: (isnan(error), error)):.1e}"


def _operands(row: Row) -> str:
    return f"{row['dtype']} {sizes_text(row['input'])} {sizes_text(row['weight'])}"


def _sizes(row: Row) -> str:
    sizes = f"input {sizes_text(row['input'])}, weight {sizes_text(row['weight'])}"
    return f"{sizes}, {row['dtype']}"
