"""The layers of a network as bars: where its time goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.results.lines import percent_text, us_text
from npusim.results.palette import RESULT_COLOURS
from npusim.results.plots import new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_layers(facts: Mapping[str, Any], ax: Axes | None = None, *, shown: bool = False) -> Axes:
    """A bar per layer with a time, repetitions included, parted by what its kernels compute.

    ``facts`` are those of ``NetworkResult.to_json``.
    """
    rows = [row for row in facts["layers"] if not row["error"]]
    ax = new_axes(ax, 9, 1.3 + 0.26 * max(4, len(rows)), shown)
    base = np.zeros(len(rows))
    for name, colour in RESULT_COLOURS.items():
        widths = np.array([row["count"] * row[f"{name}_us"] for row in rows])
        if widths.any():
            ax.barh(range(len(rows)), widths, 0.72, left=base, color=colour, label=name, zorder=2)
        base = base + widths
    for place, row in enumerate(rows):
        ax.annotate(
            f"{us_text(row['total_us'])}, {percent_text(row['share'])}",
            (row["total_us"], place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    names = [
        f"{row['count']} x {row['layer']}" if row["count"] > 1 else row["layer"] for row in rows
    ]
    ax.set_yticks(range(len(rows)), names)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, max(base, default=1) * 1.18)
    title = f"{facts['workload']} {facts['pass']} on {facts['device']}, batch {facts['batch']}"
    ax.set_xlabel("us; other: layouts, clearing, casts, their launches")
    ax.set_title(f"{title}: {us_text(facts['time_us'])} us", fontsize=10, loc="left")
    ax.legend(loc="lower right", fontsize=9, frameon=False)
    tidy(ax)
    return ax
