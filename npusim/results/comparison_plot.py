"""Two calls as bars: every kernel of both, by what the pipe that works longest did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.reasons import REASONS
from npusim.results.compared import Compared, KernelFacts, Side
from npusim.results.lines import us_text
from npusim.results.palette import LAUNCH, REASON_COLOURS
from npusim.results.plots import new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_comparison(compared: Compared, ax: Axes | None = None, *, shown: bool = False) -> Axes:
    """A bar for A above a bar for B per kernel, in us: the launch, then the busiest pipe's time.

    That is the mean over its cores that run, so that a bar is as long as the kernel takes.
    """
    rows = [
        (f"{name}  {letter}", side.kernels[name])
        for name in compared.names
        for letter, side in (("A", compared.a), ("B", compared.b))
        if name in side.kernels
    ]
    ax = new_axes(ax, 10, 1.6 + 0.34 * max(4, len(rows)), shown)
    named: set[str] = set()
    for place, (_, kernel) in enumerate(rows):
        _bar(ax, place, kernel, named)
    ax.set_yticks(range(len(rows)), [_label(name, kernel) for name, kernel in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    longest = max((kernel.row["time_us"] for _, kernel in rows), default=1.0)
    ax.set_xlim(0, 1.12 * longest)
    ax.set_xlabel("us; the launch, then what the busiest pipe of the kernel did")
    titles = f"A  {_title(compared.a, 'A')}\nB  {_title(compared.b, 'B')}"
    ax.set_title(titles, fontsize=9, loc="left")
    tidy(ax)
    handles, names = ax.get_legend_handles_labels()
    by_name = dict(zip(names, handles, strict=True))
    shown_names = [name for name in ("launch", *REASONS) if name in by_name]
    if shown_names:
        ax.legend(
            [by_name[name] for name in shown_names],
            shown_names,
            loc="upper left",
            bbox_to_anchor=(1, 1),
            fontsize=9,
            frameon=False,
        )
    return ax


def _title(side: Side, letter: str) -> str:
    """What ran, where it is not called something better, and how long."""
    what = f"{side.facts['operator']} on {side.facts['device']}"
    return f"{what if side.label == letter else side.label}: {us_text(side.facts['time_us'])} us"


def _label(name: str, kernel: KernelFacts) -> str:
    return f"{name} ({kernel.busiest})" if kernel.busiest else name


def _bar(ax: Axes, place: int, kernel: KernelFacts, named: set[str]) -> None:
    """One kernel's stretches, each kind named once in the legend."""
    start = kernel.row["launch_us"]
    waits = kernel.waits.get(kernel.busiest, {})
    stretches = [("launch", LAUNCH, 0.0, start)]
    for reason in REASONS:
        width = waits.get(reason, 0.0)
        stretches.append((reason, REASON_COLOURS[reason], start, width))
        start += width
    for name, colour, left, width in stretches:
        if width:
            label = "_nolegend_" if name in named else name
            ax.barh(place, width, 0.8, left=left, color=colour, label=label, zorder=2)
            named.add(name)
    ax.annotate(
        us_text(kernel.row["time_us"]),
        (kernel.row["time_us"], place),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )
