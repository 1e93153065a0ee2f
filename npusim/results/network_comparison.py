"""Two networks side by side: what changed layer by layer and kernel by kernel.

What is compared are the plain facts of results (``NetworkResult.to_json``), so that a result and a
file that ``npusim net --json`` wrote are the same thing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npusim.base.errors import ArgumentError
from npusim.results.facts.differences import HasFacts, facts_of, labels_of
from npusim.results.facts.network_comparison import (
    NetworkDifferences,
    lacking,
    parts_of,
)
from npusim.results.saved import Reported
from npusim.results.shown.comparison import compared, network_sides, networks_figure
from npusim.results.shown.report import Report
from npusim.results.writers import comparison_text
from npusim.results.writers.plots import Axes, draw


@dataclass(frozen=True, kw_only=True)
class NetworkComparison(NetworkDifferences, Reported):
    """Differences between two networks, whose plain facts are ``a`` and ``b``."""

    __repr__ = NetworkDifferences.__repr__

    def text(self) -> str:
        """The comparison for people, at most 80 columns wide."""
        return comparison_text.of_networks(self)

    def plot(self, ax: Axes | None = None, *, what: str = "") -> Axes:
        """Draw both, as suits what differs, or ``what`` is asked for.

        "times" are bars of both for the kinds of operations of a step, or the layers of a network;
        those that changed most have a pair of bars each, others are one pair. "launched" are two
        bars of what steps launch, which is drawn unless asked otherwise where their modes, layouts
        or fusions differ. Where both take different numbers of images, times are of one image.
        Raises ``ArgumentError`` for another ``what``, and for "launched" of layers.
        """
        side_a, side_b = network_sides(self)
        return draw(networks_figure(self, what, title=f"A  {side_a}\nB  {side_b}"), ax)

    def as_report(self) -> Report:
        """The report as data: the head and the largest changes in a notebook, all on the page."""
        return compared(self)


def compare_networks(
    a: HasFacts | str | Path,
    b: HasFacts | str | Path,
    *,
    labels: tuple[str, str] | None = None,
) -> NetworkComparison:
    """Compare two networks, or two steps: results, or files that ``npusim net --json`` wrote.

    They may differ in anything: devices, batches, options, versions, even networks; layers and
    kernels are compared by name. ``labels`` call them something better than A and B, or than their
    files. Raises ``ArgumentError`` for what is no network.
    """
    called = labels_of(a, b, labels)
    sides = [facts_of(result, label) for result, label in zip((a, b), called, strict=True)]
    for side, label in zip(sides, called, strict=True):
        missing = lacking(side)
        if missing:
            raise ArgumentError(
                f"{label} is no result of a network: it lacks {', '.join(missing)}; write one with "
                "`npusim net ... --json`, or compare calls with npusim.compare"
            )
    if parts_of(sides[0]) is not parts_of(sides[1]):
        raise ArgumentError(
            f"of {called[0]} and {called[1]} one is a whole step and one is layers by themselves; "
            "give both a mode (npusim.step, --mode), or none"
        )
    return NetworkComparison(a=sides[0], b=sides[1], labels=called)
