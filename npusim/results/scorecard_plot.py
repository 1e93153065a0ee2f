"""Simulated over measured times, a small plot for each family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npusim.results import palette
from npusim.results.lines import percent_text
from npusim.results.plots import new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Half the width of the grey band: this share above and below the measured time.
BAND = 0.1

#: Plots side by side, and the inches of one.
_ACROSS, _INCHES = 6, 2.1


def plot_scorecard(points: Mapping[str, Sequence[tuple[float, float]]]) -> Axes:
    """A mark per (measured, simulated) pair of microseconds, all above 0; an Axes per family.

    Each has the measured time across, and how many times as long the simulated one is, on the same
    logarithmic axes. The band is 10 % around the measured time; the title has the mean error. The
    first Axes is returned.
    """
    across = max(1, min(_ACROSS, len(points)))
    down = max(1, -(-len(points) // across))
    whole = new_axes(None, _INCHES * across + 0.5, _INCHES * down + 0.5, shown=False)
    figure = whole.figure
    whole.remove()
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    axes: list[Axes] = grid.ravel().tolist()
    for ax, (family, pairs) in zip(axes, points.items(), strict=False):
        _draw(ax, family, np.array(pairs, float).reshape(-1, 2))
    axes[0].set_xscale("log")
    axes[0].set_yscale("log", base=2)
    axes[0].xaxis.set_major_formatter("{x:,.0f}")
    axes[0].yaxis.set_major_formatter("{x:g}")
    for ax in axes[len(points) :]:
        ax.set_axis_off()
    figure.supxlabel("measured (us)", fontsize=10)
    figure.supylabel("simulated / measured", fontsize=10)
    return axes[0]


def _draw(ax: Axes, family: str, pairs: np.ndarray) -> None:
    ax.axhspan(1 - BAND, 1 + BAND, color="#d9d9d9", lw=0)
    ax.axhline(1, color="#8c8c8c", lw=1)
    measured, simulated = pairs.T
    ratio = simulated / measured
    ax.scatter(measured, ratio, 18, palette.READ_MISS, lw=0, alpha=0.8, zorder=3)
    error = f", {percent_text(np.abs(ratio - 1).mean())}" if len(ratio) else ""
    ax.set_title(f"{family}{error}", fontsize=9, loc="left")
    tidy(ax)
