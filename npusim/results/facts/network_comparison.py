"""Two networks side by side: what changed layer by layer and kernel by kernel.

What is compared are the plain facts of results (``NetworkResult.to_json``), so that a result and a
file that ``npusim net --json`` wrote are the same thing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from npusim.base.errors import ArgumentError
from npusim.results.facts import fusion_matching
from npusim.results.facts.differences import (
    Differences,
    Facts,
    Row,
    Told,
    facts_of,
    labels_of,
    numbered,
)
from npusim.results.facts.fusion_matching import Matched
from npusim.results.facts.saved import Reported
from npusim.results.shown.comparison import Times, compared
from npusim.results.shown.figure import Figure
from npusim.results.shown.figures import stacks
from npusim.results.shown.report import Report
from npusim.results.writers.plots import Axes, draw
from npusim.results.writers.text_layout import (
    WIDTH,
    columns,
    counted,
    fact,
    rate_text,
    signed_text,
    us_or_none,
    us_text,
)

#: Layers, and kernels, that are shown; the rest is counted.
MAX_ROWS = 20

#: Pairs of bars in the figure; all others are one pair.
MAX_BARS = 14

#: What a network is, and what it takes in all.
_OF_NETWORK = (
    *("workload", "device", "device_digest", "launch", "npusim_version", "batch", "dtype"),
    "pass",
    *("gradients", "time_us", "energy_uj"),
)

#: What a layer is and takes; times are of one, but for ``total_us``.
_OF_LAYER = (
    *("count", "total_us", "output_us", "input_us", "weight_us", "bias_us", "other_us"),
    *("own_us", "own_problem_us", "bottleneck", "error"),
)

#: What all launches of a kernel take.
_OF_KERNEL = ("launches", "time_us", "launch_us", "macs", "problem_us")

#: What a kind of operation of a step takes in a phase, and what one operation is and takes.
_OF_KIND = ("kernels", "us", "launch_us", "bytes")
_OF_OPERATION = ("kind", "us", "launch_us", "error")

#: What a step is besides, and takes in all.
_OF_STEP = (
    *("mode", "layouts", "fusions", "optimizer", "normalisation_dtype", "cards"),
    *("images_per_second", "kept_bytes"),
)


class _Part(NamedTuple):
    """Rows that are compared by name: what of them, their time, their title and what it is of.

    ``{each}`` in ``unit`` is " an image" where both sides have different batches.
    """

    facts: tuple[str, ...]
    time: str
    title: str
    unit: str


#: Parts of the layers of a network, and of a whole step, by the name of their rows.
_LAYERS = {
    "layer": _Part(_OF_LAYER, "total_us", "LAYERS", "us{each}, of all that are alike"),
    "kernel": _Part(_OF_KERNEL, "time_us", "KERNELS", "us{each}, with launches"),
}
_STEP = {
    "kind": _Part(_OF_KIND, "us", "KINDS", "us{each}, with launches"),
    "operation": _Part(_OF_OPERATION, "us", "OPERATIONS", "us{each}, with launches"),
}


@dataclass(frozen=True, kw_only=True)
class NetworkComparison(Reported, Differences):
    """What differs between two networks, whose plain facts are ``a`` and ``b``."""

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    labels: tuple[str, str]

    columns = ("part", "name", "what", "a", "b", "change")
    named, digits, commas = ("name", "what"), 1, False
    told = _OF_NETWORK

    def __repr__(self) -> str:
        """One line: how many things differ, and how fast both are."""
        changes = counted(len(self.rows), "difference")
        if self.per_image:
            a, b = (f"{rate_text(rate)} images/s" for rate in self.rates)
        else:
            a, b = (f"{us_text(us)} us" for us in self.times)
        return f"<NetworkComparison: {changes}, {a} and {b}>"

    @property
    def sides(self) -> tuple[tuple[str, Facts], tuple[str, Facts]]:
        """What both sides are called, and their plain facts."""
        return (self.labels[0], self.a), (self.labels[1], self.b)

    @property
    def images(self) -> tuple[int, int]:
        """Images that a and b take at once, those of all cards."""
        a, b = (side["batch"] * side.get("cards", 1) for side in (self.a, self.b))
        return a, b

    @property
    def per_image(self) -> bool:
        """Whether both take different numbers of images, so that only times of one are alike."""
        return self.images[0] != self.images[1]

    @property
    def rates(self) -> tuple[float, float]:
        """Images a second of a and of b."""
        (images_a, images_b), (us_a, us_b) = self.images, self.times
        return images_a / us_a * 1e6, images_b / us_b * 1e6

    @property
    def speedup(self) -> float | None:
        """How many times as fast as a b is, of images a second where their numbers differ."""
        if not self.per_image:
            return super().speedup
        a, b = self.rates
        return b / a

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """What differs, a row each: of the network, then of its layers and of its kernels.

        ``part`` is "network", "layer" or "kernel", of steps "kind" or "operation"; ``what`` is a
        fact of ``to_json``, microseconds (of all images) where it ends in "us". ``change`` is b
        less a where both are numbers.
        """
        whole = (*_OF_NETWORK, *_OF_STEP)
        facts = [("network", "", n, self.a.get(n), self.b.get(n)) for n in whole]
        for part, (names, *_) in _parts(self.a).items():
            for name, a, b in self.pairs(part):
                facts += [(part, name, fact, a.get(fact), b.get(fact)) for fact in names]
        return self.differing(facts)

    def pairs(self, part: str) -> Iterator[Matched]:
        """Layers, kernels, kinds or operations of either, those of b alone last.

        They are matched by name; kinds and operations that only one side fuses are joined.
        """
        rows_a, rows_b = self.a[f"{part}s"], self.b[f"{part}s"]
        if part == "kind":
            yield from fusion_matching.kinds(rows_a, rows_b)
        elif part == "operation":
            yield from fusion_matching.operations(rows_a, rows_b)
        else:
            a, b = numbered(rows_a, part), numbered(rows_b, part)
            for name in {**a, **b}:
                yield Matched(name, a.get(name, {}), b.get(name, {}))

    def about(self, facts: Facts) -> str:
        """What one of them is."""
        return f"{facts['workload']} on {facts['device']}, batch {facts['batch']}"

    def change_of_all(self) -> Iterator[str]:
        """How the speed changed; of different numbers of images the images a second come first."""
        if self.per_image:
            a, b = self.rates
            change = signed_text(b / a - 1)
            yield from fact("speed", f"{rate_text(a)} -> {rate_text(b)} images/s, {change}")
        yield from super().change_of_all()

    def sections(self) -> Iterator[Iterator[str]]:
        """What the text says below its head."""
        for part, (_, _, title, unit) in _parts(self.a).items():
            yield self._changes(part, f"{title} ({self._unit(unit)})")
        yield self._others()

    def _unit(self, unit: str) -> str:
        return unit.format(each=" an image" if self.per_image else "")

    def _times(self, part: str) -> list[Times]:
        """Times by name of one kind of row, of one image where their numbers differ.

        Those that changed most come first.
        """
        time = _parts(self.a)[part].time
        images = self.images if self.per_image else (1, 1)
        times: list[Times] = []
        for name, *rows in self.pairs(part):
            us = [row.get(time) for row in rows]
            a, b = (None if u is None else u / n for u, n in zip(us, images, strict=True))
            times.append((name, a, b))
        return sorted(times, key=lambda row: (-abs((row[2] or 0.0) - (row[1] or 0.0)), row[0]))

    def _changes(self, part: str, title: str) -> Iterator[str]:
        """Times of one kind of row that differ, the largest changes first."""
        times = [row for row in self._times(part) if row[1] != row[2]]
        if not times:
            return
        rows: list[Sequence[str]] = [(title, "A", "B", "change", "")]
        for name, a, b in times[:MAX_ROWS]:
            change = self.change_texts(a, b)
            rows.append((f"  {name}", us_or_none(a), us_or_none(b), *change))
        yield ""
        yield from columns(rows, width=WIDTH)
        if len(times) > MAX_ROWS:
            yield f"  ({counted(len(times) - MAX_ROWS, 'other change')})"

    def _others(self) -> Iterator[str]:
        """What else differs: of the networks, what bounds their layers, what was not simulated."""
        words = ("count", "bottleneck", "error", "launches", "macs")
        found = [
            row
            for row in self.rows
            if (row["what"] in words and (row["a"] or row["b"]))
            or (row["part"] == "network" and row["what"] not in ("time_us", "device_digest"))
        ]
        if not found:
            return
        yield from self.besides(found[: 2 * MAX_ROWS])
        if len(found) > 2 * MAX_ROWS:
            yield f"  ({counted(len(found) - 2 * MAX_ROWS, 'more')}: see --json)"

    # -- figure and page -------------------------------------------------------------------------

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the kinds of operations of a step, or the layers of a network, as bars of both.

        Those that changed most have a pair of bars each; others are one pair. Where both take
        different numbers of images, times are of one image.
        """
        a, b = self.told_sides
        return draw(self.figure(title=f"A  {a}\nB  {b}"), ax)

    @property
    def told_sides(self) -> tuple[str, str]:
        """What each side is, and how fast."""
        texts = []
        for letter, (label, facts), rate in zip("AB", self.sides, self.rates, strict=True):
            what = self.about(facts) if label == letter else label
            texts.append(f"{what}: {us_text(facts['time_us'])} us, {rate_text(rate)} images/s")
        return texts[0], texts[1]

    def figure(self, **more: Any) -> Figure:
        """The figure of ``plot`` as data; ``more`` is as of a figure."""
        _, unit, times = next(self.tables())
        bars = [(name, a or 0.0, b or 0.0) for name, a, b in times[:MAX_BARS]]
        rest = times[MAX_BARS:]
        if rest:
            sum_a = sum(a or 0.0 for _, a, _ in rest)
            sum_b = sum(b or 0.0 for _, _, b in rest)
            bars.append((f"{len(rest):,} others", sum_a, sum_b))
        return stacks.pairs(bars, unit, **more)

    def tables(self) -> Iterator[tuple[str, str, list[Times]]]:
        """For each kind of row its title, the unit of its times, and the times of both by name."""
        for part, (_, _, title, unit) in _parts(self.a).items():
            yield title.capitalize(), self._unit(unit), self._times(part)

    def differing_besides(self) -> list[str]:
        """What else differs of both as a whole: ``"batch: 2 -> 8"``."""
        rows = [row for row in self.rows if row["part"] == "network" and row["what"] != "time_us"]
        return [self.besides_text(row) for row in rows]

    def as_report(self) -> Report:
        """The report as data: the head and the largest changes in a notebook, all on the page."""
        return compared(self)


def _parts(facts: Mapping[str, Any]) -> Mapping[str, _Part]:
    return _STEP if "operations" in facts else _LAYERS


def _lacking(facts: Mapping[str, Any]) -> list[str]:
    """What facts lack to be those of a network, or of a step."""
    needed = ("workload", *(f"{part}s" for part in _parts(facts)), "device")
    return [name for name in needed if name not in facts]


def is_network(facts: Mapping[str, Any]) -> bool:
    """Whether plain facts are those of a network or of a step."""
    return not _lacking(facts)


def compare_networks(
    a: Told | str | Path,
    b: Told | str | Path,
    *,
    labels: tuple[str, str] | None = None,
) -> NetworkComparison:
    """Compare two networks, or two steps: results, or files that ``npusim net --json`` wrote.

    They may differ in anything: devices, batches, options, versions, even networks; layers and
    kernels are compared by name. ``labels`` call them something better than A and B, or than their
    files. Raises ``ArgumentError`` for what is no network.
    """
    called = labels_of(a, b, labels)
    sides = [facts_of(one, label) for one, label in zip((a, b), called, strict=True)]
    for side, label in zip(sides, called, strict=True):
        if not is_network(side):
            raise ArgumentError(
                f"{label} is no result of a network: it lacks "
                f"{', '.join(_lacking(side))}; write one with "
                "`npusim net ... --json`, or compare calls with npusim.compare"
            )
    if _parts(sides[0]) is not _parts(sides[1]):
        raise ArgumentError(
            f"of {called[0]} and {called[1]} one is a whole step and one is layers by themselves; "
            "give both a mode (npusim.step, --mode), or none"
        )
    return NetworkComparison(a=sides[0], b=sides[1], labels=called)
