"""The layers of a network as bars: where its time goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.results.elementwise import TRAFFIC_ONLY, by_kind
from npusim.results.lines import percent_text, us_alike, us_text
from npusim.results.network_text import verdict
from npusim.results.palette import KERNEL, PART_COLOURS
from npusim.results.plots import new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_layers(facts: Mapping[str, Any], ax: Axes | None = None, *, shown: bool = False) -> Axes:
    """A bar per layer with a time, repetitions included: launches, layouts, and each gradient.

    Bars without a filling follow for kinds of element-wise layers, where these were asked for.
    ``facts`` are those of ``NetworkResult.to_json``.
    """
    rows = [row for row in facts["layers"] if not row["error"]]
    others = by_kind(facts["elementwise"])
    shown_rows = len(rows) + len(others)
    ax = new_axes(ax, 9, 1.3 + 0.26 * max(4, shown_rows), shown)
    base = np.zeros(len(rows))
    for name in facts["split"]:
        colour, widths = PART_COLOURS[name], np.array([_part(row, name) for row in rows])
        if widths.any():
            ax.barh(range(len(rows)), widths, 0.72, left=base, color=colour, label=name, zorder=2)
        base = base + widths
    for place, row in enumerate(rows):
        told = f"{us_alike(row['total_us'])}, {percent_text(row['share'])}"
        _tell(ax, told, row["total_us"], place)
    names = [
        f"{row['count']} x {row['layer']}" if row["count"] > 1 else row["layer"] for row in rows
    ]
    if others:
        names += [f"{row['count']} x {row['kind']}" for row in others]
        places, times = range(len(rows), shown_rows), [row["total_us"] for row in others]
        label = f"element-wise, {TRAFFIC_ONLY}"
        ax.barh(places, times, 0.72, fill=False, edgecolor=KERNEL, hatch="////", label=label)
        for place, row in zip(places, others, strict=True):
            _tell(ax, f"{us_alike(row['total_us'])}, {TRAFFIC_ONLY}", row["total_us"], place)
        base = np.append(base, times)
    ax.set_yticks(range(shown_rows), names)
    ax.set_ylim(shown_rows - 0.4, -0.6)
    ax.set_xlim(0, max(base, default=1) * 1.18)
    title = f"{facts['workload']} {facts['pass']} on {facts['device']}, batch {facts['batch']}"
    ax.set_xlabel("us; layouts: kernels that change layouts, clear and cast")
    whole = f"{title}: {us_text(facts['time_us'])} us"
    ax.set_title(f"{whole}\n{verdict(facts)}", fontsize=10, loc="left")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9, frameon=False)
    tidy(ax)
    return ax


def _part(row: Mapping[str, Any], name: str) -> float:
    """Microseconds of a part of all layers of a row."""
    us: float = row["count"] * row["split"].get(name, 0.0)
    return us


def _tell(ax: Axes, text: str, us: float, place: int) -> None:
    """Write behind the end of a bar."""
    ax.annotate(
        text, (us, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
    )
