"""Two calls as bars: every kernel of both, by what the pipe that works longest did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.results import palette
from npusim.results.bar_plots import BESIDE, Stack, draw_stacks
from npusim.results.compared import Compared, KernelFacts, Side
from npusim.results.lines import us_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_comparison(compared: Compared, ax: Axes | None = None) -> Axes:
    """A bar for A above a bar for B per kernel, in us: the launch, then the busiest pipe's time.

    That is the mean over its cores that run, so that a bar is as long as the kernel takes.
    """
    stacks = [
        _stack(f"{name}  {letter}", side.kernels[name])
        for name in compared.names
        for letter, side in (("A", compared.a), ("B", compared.b))
        if name in side.kernels
    ]
    ax = draw_stacks(ax, stacks, {"launch": palette.LAUNCH, **palette.REASON_COLOURS}, 10, **BESIDE)
    ax.set_xlabel("us; the launch, then what the busiest pipe of the kernel did")
    titles = f"A  {_title(compared.a, 'A')}\nB  {_title(compared.b, 'B')}"
    ax.set_title(titles, fontsize=9, loc="left")
    return ax


def _title(side: Side, letter: str) -> str:
    """What ran, where it is not called something better, and how long."""
    what = f"{side.facts['operator']} on {side.facts['device']}"
    return f"{what if side.label == letter else side.label}: {us_text(side.facts['time_us'])} us"


def _stack(name: str, kernel: KernelFacts) -> Stack:
    """One kernel's stretches."""
    called = f"{name} ({kernel.busiest})" if kernel.busiest else name
    waits = kernel.waits.get(kernel.busiest, {})
    return Stack(
        called, us_text(kernel.row["time_us"]), {"launch": kernel.row["launch_us"], **waits}
    )
