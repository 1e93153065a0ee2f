"""Two calls side by side: what changed in time, waits and traffic, kernel by kernel.

What is compared are the plain facts of results (``Result.to_json``), so that a result and a file
that ``npusim run --json`` wrote are the same thing here.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from npusim.base.errors import ArgumentError
from npusim.base.reasons import REASONS
from npusim.device.catalog import describe
from npusim.results import tables
from npusim.results.answer import Answer
from npusim.results.result import Result

if TYPE_CHECKING:
    import pandas as pd

#: What a call is, and the memory between its kernels.
_OF_CALL = (
    *("operator", "problem", "device", "device_digest", "launch", "npusim_version"),
    "workspace_bytes",
)

#: Times of a call and of a kernel, in microseconds.
_TIMES = ("time_us", "launch_us", "bound_us", "problem_us")

#: What else a kernel is.
_OF_KERNEL = ("tiling", "cores", "instructions", "macs", "useful_macs", "gm_bytes", "bound")

#: A fact: its kernel, what it is, its name, and its values.
_Fact = tuple[Any, ...]

#: How JSON writes control characters.
_CONTROL = re.compile(r"\\(u00([01]|[89]|7f)|[bf])", re.IGNORECASE)

_COUNTS = ("bytes", "hit_bytes", "miss_bytes")

Row = dict[str, Any]
Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """One kernel of a call: its row of ``Result.kernels``, and what else is told of it.

    ``waits`` are microseconds by pipe and reason, the mean over those of its cores that run;
    ``traffic`` are counts of bytes by (source, destination, operand).
    """

    row: Row
    waits: Mapping[str, Mapping[str, float]]
    traffic: Mapping[tuple[str, str, str], Mapping[str, int]]

    @property
    def busiest(self) -> str:
        """The pipe that works longest, in the mean over its cores; "" where none does."""
        work = {
            pipe: by["busy"] + by["bandwidth"]
            for pipe, by in self.waits.items()
            if any(by.values())
        }
        return max(work, key=lambda pipe: work[pipe], default="")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: its plain facts, and the result itself where it is no file."""

    label: str
    facts: Mapping[str, Any]
    result: Result | None = None

    @cached_property
    def kernels(self) -> dict[str, KernelFacts]:
        """Its kernels by name; the second of a name is called ``name #2``."""
        facts = self.facts
        us = facts["time_us"] / facts["cycles"] if facts["cycles"] else 0.0
        pipes = _by_run(facts["pipes"], ("core", "pipe"))
        traffic = _by_run(facts["traffic"], ("src", "dst", "operand"))
        found: dict[str, KernelFacts] = {}
        for row in facts["kernels"]:
            name = row["name"]
            place = 1 + sum(known.partition(" #")[0] == name for known in found)
            found[name if place == 1 else f"{name} #{place}"] = KernelFacts(
                row=row,
                waits=_mean_us(next(pipes), us),
                traffic={
                    (one["src"], one["dst"], one["operand"]): {n: one[n] for n in _COUNTS}
                    for one in next(traffic)
                },
            )
        return found

    @cached_property
    def figures(self) -> dict[str, str]:
        """The figures of its device by dotted path; empty where it is a file."""
        device = self.result.device if self.result is not None else None
        return {} if device is None else {path: text for path, text, *_ in describe(device)}


class Differences(Answer, ABC):
    """What differs between two results, as far as it is the same for calls and for networks."""

    #: Columns of ``table``, and the facts of a side that JSON tells.
    columns: ClassVar[tuple[str, ...]]
    told: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def sides(self) -> tuple[tuple[str, Facts], tuple[str, Facts]]:
        """What both sides are called, and their plain facts."""

    @property
    @abstractmethod
    def rows(self) -> tuple[Row, ...]:
        """What differs, a row each; ``change`` is b less a where both are numbers."""

    def differing(self, facts: Iterable[tuple[Any, ...]]) -> tuple[Row, ...]:
        """The rows of facts that differ; a fact is what names it, its value in a and that in b."""
        return tuple(
            dict(zip(self.columns, (*fact, difference(*fact[-2:])), strict=True))
            for fact in facts
            if fact[-2] != fact[-1]
        )

    @property
    def empty(self) -> bool:
        """Whether nothing differs, as of a result and itself."""
        return not self.rows

    @cached_property
    def table(self) -> pd.DataFrame:
        """``rows`` as a data frame."""
        return tables.frame(self.rows, self.columns)

    @property
    def times(self) -> tuple[float, float]:
        """Microseconds of a and of b."""
        (_, a), (_, b) = self.sides
        return a["time_us"], b["time_us"]

    @property
    def speedup(self) -> float | None:
        """Time of a over time of b: above 1 where b is faster. None where b takes none."""
        a, b = self.times
        return a / b if b else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        sides = {
            name: {"label": label} | {fact: facts.get(fact) for fact in self.told}
            for name, (label, facts) in zip("ab", self.sides, strict=True)
        }
        return {**sides, "speedup": self.speedup, "changes": list(self.rows)}


@dataclass(frozen=True, kw_only=True)
class Compared(Differences):
    """What differs between two calls in time, waits and traffic, kernel by kernel."""

    a: Side
    b: Side

    columns = ("kernel", "what", "name", "a", "b", "change")
    told = (*_OF_CALL, "time_us", "verdict")

    @property
    def sides(self) -> tuple[tuple[str, Facts], tuple[str, Facts]]:
        """What both sides are called, and their plain facts."""
        return (self.a.label, self.a.facts), (self.b.label, self.b.facts)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """What differs, a row each: the call, its device's figures, then kernel by kernel.

        ``what`` is "call", "figure", "kernel" (there on one side only), "time" (us), "size",
        "wait" (us, mean over cores that run) or "traffic" (bytes). ``change`` is b less a where
        both are numbers.
        """
        return self.differing((*self._of_call(), *self._figures(), *self._of_kernels()))

    @property
    def names(self) -> tuple[str, ...]:
        """Kernels of either, in the order of a, those of b alone after them."""
        return tuple(dict.fromkeys([*self.a.kernels, *self.b.kernels]))

    def _of_call(self) -> Iterator[_Fact]:
        a, b = self.a.facts, self.b.facts
        yield from (("", "call", name, a[name], b[name]) for name in _OF_CALL)
        yield from (("", "time", name, a[name], b[name]) for name in ("time_us", "problem_us"))

    def _figures(self) -> Iterator[_Fact]:
        a, b = self.a.figures, self.b.figures
        if a and b:
            yield from (("", "figure", name, a.get(name), b.get(name)) for name in {**a, **b})

    def _of_kernels(self) -> Iterator[_Fact]:
        for name in self.names:
            a, b = self.a.kernels.get(name), self.b.kernels.get(name)
            if a is None or b is None:
                times = [one.row["time_us"] if one is not None else None for one in (a, b)]
                yield (name, "kernel", "time_us", *times)
                continue
            for what, facts in (("time", _TIMES), ("size", _OF_KERNEL)):
                yield from ((name, what, fact, a.row[fact], b.row[fact]) for fact in facts)
            for pipe in {**a.waits, **b.waits}:
                one, other = a.waits.get(pipe, {}), b.waits.get(pipe, {})
                for reason in REASONS:
                    times = [side.get(reason, 0.0) for side in (one, other)]
                    yield (name, "wait", f"{pipe} {reason}", *times)
            for path in {**a.traffic, **b.traffic}:
                one, other = a.traffic.get(path, {}), b.traffic.get(path, {})
                label = f"{path[0]}->{path[1]} {path[2]}".rstrip()
                for count in _COUNTS:
                    sizes = [side.get(count, 0) for side in (one, other)]
                    yield (name, "traffic", f"{label} {count}", *sizes)


def labels_of(
    a: object, b: object, labels: tuple[str, str] | None, usual: tuple[str, str] = ("A", "B")
) -> tuple[str, str]:
    """What both sides are called: as asked, else by their files, else A and B."""
    first, second = (
        str(one) if isinstance(one, (str, Path)) else name
        for one, name in zip((a, b), usual, strict=True)
    )
    return labels or (first, second)


def side(given: Result | str | Path, label: str) -> Side:
    """A result, or the file of one.

    Raises ``ArgumentError`` for what is neither.
    """
    if isinstance(given, Result):
        return Side(label=label, facts=given.to_json(), result=given)
    if not isinstance(given, (str, Path)):
        raise ArgumentError(
            f"{label} is {given!r}; it is a Result, or a file that `npusim run --json` wrote; "
            "npusim.compare_networks takes networks"
        )
    facts = facts_of(given, label)
    lacking = [name for name in (*_OF_CALL, "kernels", "pipes", "traffic", "time_us", "problem_us")
               if name not in facts]  # fmt: skip
    if lacking:
        raise ArgumentError(
            f"{given} is no result of a call: it lacks {', '.join(lacking[:3])}; write one with "
            "`npusim run ... --json`"
        )
    return Side(label=label, facts=facts)


class Told(Protocol):
    """A result that says all of itself."""

    def to_json(self) -> dict[str, Any]: ...


def facts_of(given: Told | str | Path, label: str) -> dict[str, Any]:
    """The plain facts of a result, or those in the file of one.

    Raises ``ArgumentError`` for what is neither.
    """
    if not isinstance(given, (str, Path)):
        if not hasattr(given, "to_json"):
            raise ArgumentError(f"{label} is {given!r}; it is a result, or the file of one")
        return given.to_json()
    try:
        text = Path(given).read_text(encoding="utf-8")
        facts = json.loads(text)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{given}: cannot be read as JSON: {error}") from error
    if _CONTROL.search(text):
        raise ArgumentError(f"{given}: a text in it has a control character; write it without")
    if not isinstance(facts, dict):
        raise ArgumentError(
            f"{given} is no result: it holds a {type(facts).__name__}; write one with "
            "`npusim run ... --json`"
        )
    return facts


def difference(a: Any, b: Any) -> Any:
    """``b`` less ``a`` where both are numbers, else None."""
    return b - a if all(isinstance(one, (int, float)) for one in (a, b)) else None


def _by_run(rows: Iterable[Row], key: tuple[str, ...]) -> Iterator[list[Row]]:
    """Rows of kernel after kernel; a new one begins with another name or a key that came before."""
    run: list[Row] = []
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        own = tuple(row[name] for name in key)
        if run and (row["kernel"] != run[0]["kernel"] or own in seen):
            yield run
            run, seen = [], set()
        run.append(row)
        seen.add(own)
    yield run


def _mean_us(rows: Iterable[Row], us: float) -> dict[str, dict[str, float]]:
    """Microseconds by pipe and reason, the mean over cores that run."""
    by_pipe: dict[str, list[Row]] = {}
    known = list(rows)
    at_work = {row["core"] for row in known if row["busy"] + row["bandwidth"]}
    for row in (row for row in known if row["core"] in at_work):
        by_pipe.setdefault(row["pipe"], []).append(row)
    return {
        pipe: {reason: us * sum(row[reason] for row in own) / len(own) for reason in REASONS}
        for pipe, own in by_pipe.items()
    }
