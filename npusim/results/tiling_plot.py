"""A search among tilings in pictures: a heat map of times, and times against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.results import palette
from npusim.results.lines import binary_unit
from npusim.results.plots import new_axes, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Fields that a map is of where they vary.
_SIDES = ("base_n", "base_m")

#: How many times the least the most cycles are that a logarithmic axis shows.
_LOG_FROM = 5

#: Most values of a field along an axis of the map that are written out.
_LABELS = 24


def draw_tilings(
    frame: pd.DataFrame, fields: Sequence[str], title: str, x: str = "", y: str = ""
) -> Axes:
    """A map over two ``fields``, and two Pareto fronts; the Axes of the map is returned.

    ``frame`` has a row per tiling, as ``Tuned.table`` makes it.
    """
    values = {name: frame[name].nunique() for name in fields}
    sides = [name for name in _SIDES if values.get(name, 0) > 1]
    ranked = [*sides, *sorted(values, key=lambda name: -values[name])]
    ranked = list(dict.fromkeys(ranked))
    across, along = _axis(x, ranked, fields), _axis(y, ranked[1:] or ranked, fields)
    first = new_axes(None, 14, 4.8, shown=False)
    figure = first.figure
    first.remove()
    left: Axes
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
    _map(left, frame, across, along)
    legal = frame[frame.state != "illegal"]
    memories = [name for name in map(str, frame) if name.endswith("_bytes") and name != "gm_bytes"]
    memory = "L1_bytes" if "L1_bytes" in memories else memories[0]
    of = memory.removesuffix("_bytes")
    for ax, column, label in (
        (middle, memory, f"buffers in {of}"),
        (right, "gm_bytes", "moved from and to global memory"),
    ):
        unit, size = binary_unit(legal[column].max())
        _pareto(ax, legal, column, size)
        ax.set_xlabel(f"{label} ({unit})")
    figure.suptitle(title, fontsize=11)
    return left


def _axis(asked: str, usual: Sequence[str], fields: Sequence[str]) -> str:
    if asked and asked not in fields:
        raise ArgumentError(f"plot: the tiling has no field {asked!r}{suggest(asked, fields)}")
    return asked or usual[0]


def _map(ax: Axes, frame: pd.DataFrame, x: str, y: str) -> None:
    """The least cycles by two fields: simulated, else the least bound; hatched: nothing runs."""
    legal = frame[frame.state != "illegal"]
    columns, rows = (sorted(frame[name].unique()) for name in (x, y))
    best = np.full((len(rows), len(columns)), np.nan)
    done = np.zeros_like(best, bool)
    known = legal.cycles.fillna(legal.bound).to_numpy()
    for column, row, cycles, state in zip(legal[x], legal[y], known, legal.state, strict=True):
        at = rows.index(row), columns.index(column)
        best[at] = np.nanmin([best[at], cycles])
        done[at] |= state == "simulated"
    ax.set_facecolor("#ffffff")
    mesh = ax.pcolormesh(np.log10(best), cmap="viridis_r", edgecolors="#ffffff", linewidth=0.5)
    for y0, x0 in np.argwhere(np.isnan(best)).tolist():
        corners = [x0, x0 + 1, x0 + 1, x0], [y0, y0, y0 + 1, y0 + 1]
        ax.fill(*corners, fill=False, hatch="xxx", edgecolor="#c8c8c8", lw=0)
    for row, column in np.argwhere(done).tolist():
        ax.plot(column + 0.5, row + 0.5, "o", color="#ffffff", markersize=3)
    winner = np.unravel_index(np.nanargmin(np.where(done, best, np.inf)), best.shape)
    ax.plot(winner[1] + 0.5, winner[0] + 0.5, "*", color=palette.BEST, markersize=13)
    for name, axis, values in ((x, ax.xaxis, columns), (y, ax.yaxis, rows)):
        step = -(-len(values) // _LABELS)
        axis.set_ticks(np.arange(len(values))[::step] + 0.5, [str(v) for v in values[::step]])
        axis.set_label_text(name)
    ax.tick_params(axis="x", labelrotation=90)
    bar = ax.figure.colorbar(mesh, ax=ax)
    ticks = np.linspace(np.nanmin(np.log10(best)), np.nanmax(np.log10(best)), 5)
    bar.set_ticks(ticks.tolist(), labels=[f"{10**tick:,.0f}" for tick in ticks])
    ax.set_title(
        "cycles: dots are simulated, the star is the best;\nother cells are lower bounds, hatched "
        "ones have no tiling",
        fontsize=9,
    )
    tidy(ax)


def _pareto(ax: Axes, legal: pd.DataFrame, column: str, unit: int) -> None:
    """Simulated tilings, grey the bounds of others; the line of those that none beats in both."""
    done, rest = (legal[(legal.state == "simulated") == flag] for flag in (True, False))
    rest = rest[rest[column].notna()]
    ax.scatter(rest[column] / unit, rest.bound, 8, palette.POINT, lw=0, label="lower bound")
    size, cycles = done[column].to_numpy() / unit, done.cycles.to_numpy()
    ax.scatter(size, cycles, 20, palette.KERNEL, lw=0, alpha=0.8, label="simulated")
    order = np.lexsort((cycles, size))
    front = [i for n, i in enumerate(order) if cycles[i] < min(cycles[order[:n]], default=np.inf)]
    ax.step(size[front], cycles[front], where="post", color=palette.BEST, lw=1.2)
    ax.scatter(size[front], cycles[front], 30, palette.BEST, lw=0, zorder=3, label="Pareto")
    low, high = ax.get_ylim()
    if low > 0 and high > _LOG_FROM * low:
        ax.set_yscale("log")
        minor: Any = ax.yaxis.get_minor_locator()
        minor.set_params(subs=(2, 5))
        ax.yaxis.set_minor_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.locator_params(axis="x", nbins=6)
    ax.set_ylabel("cycles, launches included")
    ax.legend(fontsize=8, frameon=False)
    tidy(ax)
