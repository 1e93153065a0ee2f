"""Two calls as stacked bars, kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.results import palette
from npusim.results.compared import Compared, KernelFacts
from npusim.results.figure import Figure
from npusim.results.figures.stacks import Stack, stacked
from npusim.results.lines import us_text


def comparison(compared: Compared) -> Figure:
    """A bar for A above a bar for B per kernel, in us: the launch, then the busiest pipe's time.

    That is the mean over its cores that run, so that a bar is as long as the kernel takes.
    """
    sides = (("A", compared.a), ("B", compared.b))
    stacks = [
        _of_kernel(f"{name}  {letter}", side.kernels[name])
        for name in compared.names
        for letter, side in sides
        if name in side.kernels
    ]

    def titles() -> Iterator[str]:
        for letter, side in sides:
            what = f"{side.facts['operator']} on {side.facts['device']}"
            what = what if side.label == letter else side.label
            yield f"{letter}  {what}: {us_text(side.facts['time_us'])} us"

    looks = {"launch": palette.LAUNCH, **palette.REASON_COLOURS}
    label = "us; the launch, then what the busiest pipe of the kernel did"
    return stacked(stacks, looks, label, 10, title="\n".join(titles()), at="beside")


def _of_kernel(name: str, kernel: KernelFacts) -> Stack:
    """One kernel's stretches."""
    called = f"{name} ({kernel.busiest})" if kernel.busiest else name
    lengths = {"launch": kernel.row["launch_us"], **kernel.waits.get(kernel.busiest, {})}
    return Stack(called, us_text(kernel.row["time_us"]), lengths)
