"""Simulated against measured times, by family, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npusim.results import palette
from npusim.results.plots import new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Half the width of the grey band: this share above and below the measured time.
BAND = 0.1

_MARKERS = "os^Dv"
_COLOURS = palette.scale(6)


def plot_scorecard(
    points: Mapping[str, Sequence[tuple[float, float]]], ax: Axes | None = None
) -> Axes:
    """One mark per (measured, simulated) pair of microseconds, all above 0, by family.

    The line is where both agree, the band 10 % around it.
    """
    ax = new_axes(ax, 9, 7)
    both = np.array([pair for family in points.values() for pair in family] or [(1.0, 1.0)])
    ends = np.array([both.min() / 1.5, both.max() * 1.5])
    ax.fill_between(
        ends, ends * (1 - BAND), ends * (1 + BAND), color="#d9d9d9", lw=0, label="within 10 %"
    )
    ax.plot(ends, ends, color="#8c8c8c", lw=1)
    for place, (family, pairs) in enumerate(points.items()):
        measured, simulated = zip(*pairs, strict=True) if pairs else ((), ())
        colour = _COLOURS[place % len(_COLOURS)]
        marker = _MARKERS[place // len(_COLOURS) % len(_MARKERS)]
        ax.scatter(
            measured, simulated, 26, colour, marker=marker, lw=0, alpha=0.85, label=family, zorder=3
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(*ends)
    ax.set_ylim(*ends)
    ax.set_aspect("equal")
    ax.set_xlabel("measured (us)")
    ax.set_ylabel("simulated (us)")
    tidy(ax)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9, frameon=False)
    return ax
