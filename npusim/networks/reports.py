"""How the result of a network is shown: text, table, figure, page, and in notebooks."""

# Each way of showing it is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.results.answer import Reported

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from npusim.device.spec import Device
    from npusim.results.report import Report


class NetworkReports(Reported):
    """What ``NetworkResult`` offers to look at; its figures come from ``to_json``."""

    device: Device
    timed: Sequence[Any]
    to_json: Callable[[], dict[str, Any]]
    layer_rows: Callable[[], list[dict[str, Any]]]

    def time_us_on(self, device: Device) -> float:
        """``time_us`` on a variant of the device, with the tilings of this result.

        Layers without a result are in neither. Raises as ``Result.time_us_on`` does.
        """
        known = [(one.layer.count, one.result) for one in self.timed if one.result is not None]
        return float(sum(count * result.time_us_on(device) for count, result in known))

    @property
    def time_range_us(self) -> tuple[float, float]:
        """Ends of ``time_us``: those of its layers summed, for what is wrong is so in all of them.

        Every layer is timed again as for ``Result.time_range``; reports show it from then on.
        """
        ranges = [(one.layer.count, one.result.time_range) for one in self.timed if one.result]
        return sum(n * r.low_us for n, r in ranges), sum(n * r.high_us for n, r in ranges)

    def known_range_us(self) -> list[float] | None:
        """``time_range_us`` if it has been computed."""
        known = [one.result.known_time_range for one in self.timed if one.result]
        return list(self.time_range_us) if known and all(known) else None

    def text(self) -> str:
        """The report for people: totals, layers, kernels, and what could not be simulated."""
        from npusim.results.network_text import render

        return render(self.to_json())

    if TYPE_CHECKING:

        @property
        def layers(self) -> pd.DataFrame: ...

    @property
    def table(self) -> pd.DataFrame:
        """The layers."""
        return self.layers

    def write(self, path: str | Path) -> None:
        """Write ``layers`` as CSV, where lists of sizes read ``3x3``, or as Parquet."""
        from npusim.results.network_rows import write_csv

        if Path(path).suffix.lower() == ".parquet":
            super().write(path)
            return
        rows = self.layer_rows()
        write_csv(Path(path), tuple(rows[0]), rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the time of every layer by what it computes, repetitions included."""
        from npusim.results.figures import stacks
        from npusim.results.plots import draw

        return draw(stacks.layers(self.to_json()), ax)

    def as_report(self) -> Report:
        """The report as data; the page and what a notebook shows are made of it."""
        from npusim.results.reports import network

        runs = [(one.layer.name, one.layer.count, one.result) for one in self.timed]
        return network.report(self.to_json(), self.device, runs)
