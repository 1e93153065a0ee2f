"""Two networks side by side: what changed layer by layer and kernel by kernel.

What is compared are the plain facts of results (``NetworkResult.to_json``), so that a result and a
file that ``npusim net --json`` wrote are the same thing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from npusim.results.facts import fusion_matching
from npusim.results.facts.differences import Differences, Facts, Row, numbered
from npusim.results.facts.energy import TOTAL_ENERGY
from npusim.results.facts.fact import names_of
from npusim.results.facts.fusion_matching import Matched
from npusim.results.facts.network_rows import ADDED, LAYER, LAYERS
from npusim.results.facts.number_text import counted, rate_text, us_text
from npusim.results.facts.step_rows import KIND, KINDS, OPERATION, OPERATIONS

#: A name, and its microseconds on both sides; None where a side lacks it.
Times = tuple[str, float | None, float | None]

#: What a network is, and what it takes in all.
_OF_NETWORK = (
    "workload",
    "device",
    "device_digest",
    "launch",
    "npusim_version",
    "batch",
    "dtype",
    "pass",
    "gradients",
    "time_us",
    TOTAL_ENERGY.name,
)

#: What a layer is and takes; times are of one, but for ``total_us``.
_OF_LAYER = names_of(LAYERS, LAYER)

#: What all launches of a kernel take.
_OF_KERNEL = names_of(ADDED, "kernel")

#: What a kind of operation of a step takes in a phase, and what one operation is and takes.
_OF_KIND = names_of(KINDS, KIND)
_OF_OPERATION = names_of(OPERATIONS, OPERATION)

#: What a step is besides, and takes in all.
_OF_STEP = (
    "mode",
    "layouts",
    "fusions",
    "optimizer",
    "normalisation_dtype",
    "cards",
    "images_per_second",
    "kept_bytes",
)


class _Part(NamedTuple):
    """Rows that are compared by name: what of them, their time, their title and what it is of.

    ``{each}`` in ``unit`` is " an image" where both sides have different batches.
    """

    facts: tuple[str, ...]
    time: str
    title: str
    unit: str


class PartTimes(NamedTuple):
    """The times of one kind of row by name, with their title, such as LAYERS, and their unit."""

    title: str
    unit: str
    times: list[Times]


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
class NetworkDifferences(Differences):
    """Differences between two networks, whose plain facts are ``a`` and ``b``."""

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    labels: tuple[str, str]

    columns = ("part", "name", "what", "a", "b", "change")
    named, digits, commas = ("name", "what"), 1, False
    stated = _OF_NETWORK

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
        """Labels of both sides, and their plain facts."""
        return (self.labels[0], self.a), (self.labels[1], self.b)

    @property
    def images(self) -> tuple[int, int]:
        """Images that a and b take at once, those of all cards."""
        a, b = (side["batch"] * side.get("cards", 1) for side in (self.a, self.b))
        return a, b

    @property
    def per_image(self) -> bool:
        """True if both take different numbers of images, so that only times of one are alike."""
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
        """Differences, a row each: of the network, then of its layers and of its kernels.

        ``part`` is "network", "layer" or "kernel", of steps "kind" or "operation"; ``what`` is a
        fact of ``to_json``, microseconds (of all images) where it ends in "us". ``change`` is b
        less a where both are numbers.
        """
        of_all = (*_OF_NETWORK, *_OF_STEP)
        facts = [("network", "", n, self.a.get(n), self.b.get(n)) for n in of_all]
        for part, (names, *_) in parts_of(self.a).items():
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
        """Noun for one of the two."""
        return f"{facts['workload']} on {facts['device']}, batch {facts['batch']}"

    def times_of_parts(self) -> Iterator[PartTimes]:
        """The times of both by name, for each kind of row; those that changed most come first."""
        for name, part in parts_of(self.a).items():
            unit = part.unit.format(each=" an image" if self.per_image else "")
            yield PartTimes(part.title, unit, self._times(name, part.time))

    def _times(self, part: str, fact: str) -> list[Times]:
        """A fact by name of one kind of row, of one image where their numbers differ."""
        images_a, images_b = self.images if self.per_image else (1, 1)
        times: list[Times] = []
        for name, row_a, row_b in self.pairs(part):
            us_a, us_b = row_a.get(fact), row_b.get(fact)
            each_a = None if us_a is None else us_a / images_a
            each_b = None if us_b is None else us_b / images_b
            times.append((name, each_a, each_b))
        return sorted(times, key=_by_change)


def _by_change(times: Times) -> tuple[float, str]:
    """A key that puts large changes first, and of equal ones sorts by name."""
    name, a, b = times
    return -abs((b or 0.0) - (a or 0.0)), name


def parts_of(facts: Mapping[str, Any]) -> Mapping[str, _Part]:
    """The kinds of rows that are compared of plain facts of a network, or of a step."""
    return _STEP if "operations" in facts else _LAYERS


def lacking(facts: Mapping[str, Any]) -> list[str]:
    """Keys that facts lack to be those of a network, or of a step."""
    needed = ("workload", *(f"{part}s" for part in parts_of(facts)), "device")
    return [name for name in needed if name not in facts]


def is_network(facts: Mapping[str, Any]) -> bool:
    """True if plain facts are those of a network or of a step."""
    return not lacking(facts)
