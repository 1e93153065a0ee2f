"""Two networks side by side: what changed layer by layer and kernel by kernel.

What is compared are the plain facts of results (``NetworkResult.to_json``), so that a result and a
file that ``npusim net --json`` wrote are the same thing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from npusim.results.facts import fusion_matching, launched
from npusim.results.facts.differences import Differences, Facts, Row, numbered
from npusim.results.facts.energy import TOTAL_ENERGY
from npusim.results.facts.fact import Fact, names_of
from npusim.results.facts.fusion_matching import LAUNCHES, Matched
from npusim.results.facts.launched import LAUNCHED_COUNTS, LAUNCHED_TIMES
from npusim.results.facts.network_rows import ADDED, LAYER, LAYERS
from npusim.results.facts.number_text import bytes_text, counted, rate_text, us_text
from npusim.results.facts.step_rows import KIND, KINDS, OPERATION, OPERATIONS


class ComparedTimes(NamedTuple):
    """A row of both sides by name: microseconds, None where not known, and kernels launched.

    What a side does not launch takes it 0 us.
    """

    name: str
    a: float | None
    b: float | None
    launches_a: int = 0
    launches_b: int = 0


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
_OF_OPERATION = (*names_of(OPERATIONS, OPERATION), LAUNCHES)

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
    "peak_bytes",
    "fetched_bytes",
    "written_back_bytes",
)


#: The unit of times of kernels.
_WITH_LAUNCHES = "us{each}, with launches"


class _Part(NamedTuple):
    """Rows that are compared by name: what of them, their time, their title and what it is of.

    ``rows`` is their name in plain facts. ``{each}`` in ``unit`` is " an image" where both sides
    have different batches. ``launches`` is the fact that counts the kernels of a row: what a side
    launches none of takes no time there. It is "" of rows that are not known where a side lacks
    them. A text has ``most`` of them.
    """

    rows: str
    facts: tuple[str, ...]
    time: str
    title: str
    unit: str
    launches: str = ""
    most: int = 20


class PartTimes(NamedTuple):
    """The times of one kind of row by name, with their title, such as LAYERS, and their unit."""

    title: str
    unit: str
    times: list[ComparedTimes]
    most: int

    @property
    def launches_differ(self) -> bool:
        """True if the sides launch different numbers of kernels for a row."""
        return any(row.launches_a != row.launches_b for row in self.times)


class LaunchedNumber(NamedTuple):
    """A number of what two steps launch: its fact, and the values of both."""

    fact: Fact[Any]
    a: float
    b: float


#: Parts of the layers of a network, and of a whole step, by the name of their rows.
_LAYERS = {
    "layer": _Part("layers", _OF_LAYER, "total_us", "LAYERS", "us{each}, of all that are alike"),
    "kernel": _Part("kernels", _OF_KERNEL, "time_us", "KERNELS", _WITH_LAUNCHES, "launches"),
}
_STEP = {
    "kind": _Part("kinds", _OF_KIND, "us", "KINDS", _WITH_LAUNCHES, "kernels"),
    "operation": _Part("operations", _OF_OPERATION, "us", "OPERATIONS", _WITH_LAUNCHES, "launches"),
    "conversion": _Part(
        "operations", _OF_OPERATION, "us", "CONVERTED VALUES", _WITH_LAUNCHES, LAUNCHES, most=8
    ),
}

#: What tells how a step is launched; where one differs, so does what is launched.
_OF_MODE = ("mode", "launch", "layouts", "fusions")

#: Facts of a network that people read under another name, with a unit: the name, and their text.
_IN_WORDS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    TOTAL_ENERGY.name: (TOTAL_ENERGY.title, TOTAL_ENERGY.text),
    "kept_bytes": ("memory of values", bytes_text),
    "peak_bytes": ("memory at most", bytes_text),
    "fetched_bytes": ("fetched from main memory", bytes_text),
    "written_back_bytes": ("written back to main memory", bytes_text),
}

#: Facts of a network, besides times, that grow with the number of images.
_OF_ALL_IMAGES = (TOTAL_ENERGY.name, "fetched_bytes", "written_back_bytes")

#: Behind the name of a fact: that it is of one image.
PER_IMAGE = "_per_image"


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

    @property
    def of_steps(self) -> bool:
        """True if both are whole steps, False if they are layers by themselves."""
        return parts_of(self.a) is _STEP

    @property
    def modes_differ(self) -> bool:
        """True if two steps differ in how they are launched: mode, layouts or fusions asked for."""
        return self.of_steps and any(self.a.get(name) != self.b.get(name) for name in _OF_MODE)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Differences, a row each: of the network, then of its layers and of its kernels.

        ``part`` is "network", "layer" or "kernel", of steps "launched", "kind", "operation" or
        "conversion" (by the value converted). ``what`` is a fact of ``to_json``, microseconds (of
        all images) where it ends in "us". Where the numbers of images differ, times, energy and
        bytes of main memory are there of one image as well: ``what`` ends in "_per_image".
        ``change`` is b less a where both are numbers.
        """
        facts: list[tuple[Any, ...]] = []
        for name in (*_OF_NETWORK, *_OF_STEP):
            facts += self._fact("network", "", name, self.a, self.b)
        for number in self.launched(per_image=False):
            what = number.fact.name
            facts += self._fact("launched", "", what, {what: number.a}, {what: number.b})
        for name, part in parts_of(self.a).items():
            for pair in self.pairs(name):
                for what in part.facts:
                    facts += self._fact(name, pair.name, what, pair.a, pair.b)
        return self.differing(facts)

    def _fact(
        self, part: str, name: str, what: str, side_a: Facts, side_b: Facts
    ) -> Iterator[tuple[Any, ...]]:
        """A fact of both, and that of one image where their numbers differ and it adds up."""
        a, b = side_a.get(what), side_b.get(what)
        yield part, name, what, a, b
        if self.per_image and (what.endswith("us") or what in _OF_ALL_IMAGES):
            images_a, images_b = self.images
            image_a = None if a is None else a / images_a
            image_b = None if b is None else b / images_b
            yield part, name, f"{what}{PER_IMAGE}", image_a, image_b

    def launched(self, *, per_image: bool = True) -> Iterator[LaunchedNumber]:
        """What two steps launch, and what their times go to; of one image where these differ.

        ``per_image`` False asks for the times of all images. Nothing of layers by themselves.
        """
        if not self.of_steps:
            return
        images_a, images_b = self.images if self.per_image and per_image else (1, 1)
        for fact in LAUNCHED_COUNTS:
            yield LaunchedNumber(fact, fact.of(self.a), fact.of(self.b))
        for fact in LAUNCHED_TIMES:
            us_a, us_b = fact.of(self.a) / images_a, fact.of(self.b) / images_b
            yield LaunchedNumber(fact, us_a, us_b)

    @property
    def launched_differs(self) -> bool:
        """True if two steps launch different numbers of anything."""
        if not self.of_steps:
            return False
        return any(fact.of(self.a) != fact.of(self.b) for fact in LAUNCHED_COUNTS)

    def pairs(self, part: str) -> Iterator[Matched]:
        """Layers, kernels, kinds or operations of either, those of b alone last.

        They are matched by name; kinds and operations that only one side fuses are joined. The
        exchange of gradients between cards is a kind without kernels.
        """
        rows = parts_of(self.a)[part].rows
        rows_a, rows_b = self.a[rows], self.b[rows]
        if part == "kind":
            yield from fusion_matching.kinds(rows_a, rows_b)
            exchange_a, exchange_b = _exchange(self.a), _exchange(self.b)
            if exchange_a or exchange_b:
                yield Matched(launched.EXCHANGE, exchange_a, exchange_b)
        elif part == "operation":
            yield from fusion_matching.operations(rows_a, rows_b)
        elif part == "conversion":
            yield from fusion_matching.conversions(rows_a, rows_b)
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
            yield PartTimes(part.title, unit, self._times(name, part), part.most)

    def _times(self, name: str, part: _Part) -> list[ComparedTimes]:
        """The times of one kind of row by name, of one image where their numbers differ."""
        images_a, images_b = self.images if self.per_image else (1, 1)
        times = [
            ComparedTimes(
                pair.name,
                _time(pair.a, part, images_a),
                _time(pair.b, part, images_b),
                pair.a.get(part.launches, 0),
                pair.b.get(part.launches, 0),
            )
            for pair in self.pairs(name)
        ]
        return sorted(times, key=_by_change)

    @property
    def besides(self) -> list[Row]:
        """Differences of both as a whole, besides time and speed; of one image what grows so."""
        skipped = {"time_us", f"time_us{PER_IMAGE}", "device_digest", "images_per_second"}
        if self.per_image:
            skipped |= set(_OF_ALL_IMAGES)
        return [row for row in self.rows if row["part"] == "network" and row["what"] not in skipped]

    def besides_text(self, row: Row) -> str:
        """A row in words: ``"batch: 2 -> 8"``, ``"memory: 616 MiB -> 954 MiB"``."""
        what = row["what"].removesuffix(PER_IMAGE)
        if row["part"] != "network" or what not in _IN_WORDS:
            return super().besides_text(row)
        name, text = _IN_WORDS[what]
        each = " an image" if row["what"] != what else ""
        a, b = ("none" if value is None else text(value) for value in (row["a"], row["b"]))
        return f"{name}{each}: {a} -> {b}"


def _time(row: Row, part: _Part, images: int) -> float | None:
    """Microseconds of a row of one image; 0 if a side does not launch it, None if not known."""
    if not row and part.launches:
        return 0.0
    us = row.get(part.time)
    if us is None or row.get("error"):
        return None
    return float(us / images)


def _exchange(step: Facts) -> Row:
    """The exchange of gradients between cards as a kind of operation; {} of one card."""
    reduced = step.get("all_reduce")
    if not reduced:
        return {}
    us = launched.exchange_us(step)
    return {"kernels": 0, "us": us, "launch_us": 0.0, "bytes": reduced["bytes"]}


def _by_change(row: ComparedTimes) -> tuple[float, str]:
    """A key that puts large changes first, and of equal ones sorts by name."""
    return -abs((row.b or 0.0) - (row.a or 0.0)), row.name


def parts_of(facts: Mapping[str, Any]) -> Mapping[str, _Part]:
    """The kinds of rows that are compared of plain facts of a network, or of a step."""
    return _STEP if "operations" in facts else _LAYERS


def lacking(facts: Mapping[str, Any]) -> list[str]:
    """Keys that facts lack to be those of a network, or of a step."""
    needed = ("workload", *(part.rows for part in parts_of(facts).values()), "device")
    return [name for name in needed if name not in facts]


def is_network(facts: Mapping[str, Any]) -> bool:
    """True if plain facts are those of a network or of a step."""
    return not lacking(facts)
