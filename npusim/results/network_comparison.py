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
from npusim.results.differences import Differences, Facts, Row, Told, facts_of, labels_of, numbered
from npusim.results.lines import WIDTH, columns, counted, us_or_none

#: Layers, and kernels, that are shown; the rest is counted.
MAX_ROWS = 20

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
    """Rows that are compared by name: what of them, their time, and the title of these."""

    facts: tuple[str, ...]
    time: str
    title: str


#: Parts of the layers of a network, and of a whole step, by the name of their rows.
_LAYERS = {
    "layer": _Part(_OF_LAYER, "total_us", "LAYERS (us of all that are alike)"),
    "kernel": _Part(_OF_KERNEL, "time_us", "KERNELS (us with launches)"),
}
_STEP = {
    "kind": _Part(_OF_KIND, "us", "KINDS (us with launches; #2: of a later phase)"),
    "operation": _Part(_OF_OPERATION, "us", "OPERATIONS (us with launches)"),
}


@dataclass(frozen=True, kw_only=True)
class NetworkComparison(Differences):
    """What differs between two networks, whose plain facts are ``a`` and ``b``."""

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    labels: tuple[str, str]

    columns = ("part", "name", "what", "a", "b", "change")
    named, digits, commas = ("name", "what"), 1, False
    told = _OF_NETWORK

    def __repr__(self) -> str:
        """One line: how many things differ, and both times."""
        a, b = self.times
        return f"<NetworkComparison: {counted(len(self.rows), 'difference')}, {a:.1f}, {b:.1f} us>"

    @property
    def sides(self) -> tuple[tuple[str, Facts], tuple[str, Facts]]:
        """What both sides are called, and their plain facts."""
        return (self.labels[0], self.a), (self.labels[1], self.b)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """What differs, a row each: of the network, then of its layers and of its kernels.

        ``part`` is "network", "layer" or "kernel", of steps "kind" or "operation"; ``what`` is a
        fact of ``to_json``, microseconds where it ends in "us". ``change`` is b less a where both
        are numbers.
        """
        whole = (*_OF_NETWORK, *_OF_STEP)
        facts = [("network", "", n, self.a.get(n), self.b.get(n)) for n in whole]
        for part, (names, *_) in _parts(self.a).items():
            for name, a, b in self.pairs(part):
                facts += [(part, name, fact, a.get(fact), b.get(fact)) for fact in names]
        return self.differing(facts)

    def pairs(self, part: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """Layers or kernels of either by name, those of b alone last; {} where one has none."""
        a, b = (numbered(side[f"{part}s"], part) for side in (self.a, self.b))
        for name in {**a, **b}:
            yield name, a.get(name, {}), b.get(name, {})

    def about(self, facts: Facts) -> str:
        """What one of them is."""
        return f"{facts['workload']} on {facts['device']}, batch {facts['batch']}"

    def sections(self) -> Iterator[Iterator[str]]:
        """What the text says below its head."""
        for part, (_, time, title) in _parts(self.a).items():
            yield self._changes(part, time, title)
        yield self._others()

    def _changes(self, part: str, time: str, title: str) -> Iterator[str]:
        """Times of one kind of row that differ, the largest changes first."""
        found = [
            (abs((b.get(time) or 0.0) - (a.get(time) or 0.0)), name, a.get(time), b.get(time))
            for name, a, b in self.pairs(part)
            if a.get(time) != b.get(time)
        ]
        if not found:
            return
        found.sort(key=lambda one: (-one[0], one[1]))
        rows: list[Sequence[str]] = [(title, "A", "B", "change", "")]
        for _, name, a, b in found[:MAX_ROWS]:
            change = self.change_texts(a, b)
            rows.append((f"  {name}", us_or_none(a), us_or_none(b), *change))
        yield ""
        yield from columns(rows, width=WIDTH)
        if len(found) > MAX_ROWS:
            yield f"  ({counted(len(found) - MAX_ROWS, 'other change')})"

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
