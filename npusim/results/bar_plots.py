"""Figures of stacked bars: the traffic of a call, the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npusim.results import metrics, palette
from npusim.results.elementwise import TRAFFIC_ONLY, by_kind
from npusim.results.lines import binary_unit, bytes_text, percent_text, us_alike, us_text
from npusim.results.network_text import verdict
from npusim.results.plots import TEXT, new_axes, tidy
from npusim.results.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Stack(NamedTuple):
    """A bar: what it is called, what stands behind its end, and how long its parts are."""

    name: str
    told: str
    parts: Mapping[str, float]


def draw_stacks(
    ax: Axes | None,
    stacks: Sequence[Stack],
    looks: Mapping[str, str | Mapping[str, Any]],
    width: float,
    **place: Any,
) -> Axes:
    """A bar per stack, one below another, its parts in the order of ``looks``.

    These are their colours, or what else they look like. Without ``ax`` they are on a new figure of
    ``width`` inches. ``place`` says where the legend is; it names the parts that are drawn.
    """
    count = len(stacks)
    ax = new_axes(ax, width, 1.5 + 0.32 * max(4, count))
    base = np.zeros(count)
    for part, look in looks.items():
        lengths = np.array([one.parts.get(part, 0.0) for one in stacks])
        drawn = np.flatnonzero(lengths)
        if len(drawn):
            style: Any = {"color": look, "zorder": 2} if isinstance(look, str) else look
            ax.barh(drawn, lengths[drawn], 0.74, left=base[drawn], label=part, **style)
        base = base + lengths
    for at, (one, end) in enumerate(zip(stacks, base.tolist(), strict=True)):
        where: Any = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(one.told, (end, at), fontsize=9, color=TEXT, **where)
    ax.set_yticks(range(count), [one.name for one in stacks])
    ax.set_ylim(count - 0.4, -0.6)
    ax.set_xlim(0, 1.2 * max(base, default=1.0))
    if base.any():
        ax.legend(fontsize=9, frameon=False, **place)
    tidy(ax)
    return ax


#: A legend beside the bars.
BESIDE: Mapping[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}


_HIT, _MISS = "read, L2 hit", "read, L2 miss"


def plot_traffic(result: Record, ax: Axes | None = None) -> Axes:
    """Bytes per path and operand over the call; reads of GM split into L2 hits and misses."""
    paths = metrics.path_totals(result.runs)
    unit, size = binary_unit(max((path.bytes for path in paths), default=1) or 1)
    stacks = []
    for path in paths:
        hits = "" if path.hit_share is None else f", {percent_text(path.hit_share)} hits"
        parts = {_HIT: path.hit_bytes, _MISS: path.missed_bytes}
        parts[path.kind] = path.bytes - path.hit_bytes - path.missed_bytes
        lengths = {name: count / size for name, count in parts.items()}
        label = path.label.replace("->", "\u2192")
        stacks.append(Stack(label, bytes_text(path.bytes) + hits, lengths))
    looks = {_HIT: palette.READ_HIT, _MISS: palette.READ_MISS, **palette.MOVES}
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 5, "borderaxespad": 0.2}
    ax = draw_stacks(ax, stacks, looks, 8, **above)
    ax.set_xlabel(f"bytes moved over the call ({unit})")
    return ax


#: What the bars of element-wise layers are called.
_OTHERS = f"element-wise, {TRAFFIC_ONLY}"


def plot_layers(facts: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """A bar per layer with a time, repetitions included: launches, layouts, and each gradient.

    Bars without a filling follow for kinds of element-wise layers, where these were asked for.
    ``facts`` are those of ``NetworkResult.to_json``.
    """
    stacks = [
        Stack(
            f"{row['count']} x {row['layer']}" if row["count"] > 1 else row["layer"],
            f"{us_alike(row['total_us'])}, {percent_text(row['share'])}",
            {name: row["count"] * us for name, us in row["split"].items()},
        )
        for row in facts["layers"]
        if not row["error"]
    ]
    stacks += [
        Stack(
            f"{row['count']} x {row['kind']}",
            f"{us_alike(row['total_us'])}, {TRAFFIC_ONLY}",
            {_OTHERS: row["total_us"]},
        )
        for row in by_kind(facts["elementwise"])
    ]
    looks: dict[str, Any] = {name: palette.PART_COLOURS[name] for name in facts["split"]}
    looks[_OTHERS] = {"fill": False, "edgecolor": palette.KERNEL, "hatch": "////"}
    ax = draw_stacks(ax, stacks, looks, 9, **BESIDE)
    title = f"{facts['workload']} {facts['pass']} on {facts['device']}, batch {facts['batch']}"
    ax.set_xlabel("us; layouts: kernels that change layouts, clear and cast")
    whole = f"{title}: {us_text(facts['time_us'])} us"
    ax.set_title(f"{whole}\n{verdict(facts)}", fontsize=10, loc="left")
    return ax
