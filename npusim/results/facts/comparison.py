"""Two calls side by side: what changed in time, waits and traffic, kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npusim.base.reasons import REASONS
from npusim.machine.device.config import describe
from npusim.results.facts.call import CALL_TIMES, CallFacts
from npusim.results.facts.differences import Differences, Facts, Row, numbered
from npusim.results.facts.fact import names_of
from npusim.results.facts.number_text import counted
from npusim.results.facts.tables import KERNELS

#: What a call is, and the memory between its kernels.
OF_CALL = (
    "operator",
    "problem",
    "device",
    "device_digest",
    "launch",
    "npusim_version",
    "workspace_bytes",
)

#: Times of a call, and of a kernel, in microseconds.
TIMES = names_of(CALL_TIMES)
_KERNEL_TIMES = names_of(KERNELS, "time")

#: What else a kernel is.
_OF_KERNEL = ("tiling", "cores", "instructions", "macs", "useful_macs", "gm_bytes", "bound")

#: A fact: its kernel, what it is, its name, and its values.
_Fact = tuple[Any, ...]

_COUNTS = ("bytes", "hit_bytes", "miss_bytes")


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
    result: CallFacts | None = None

    @cached_property
    def kernels(self) -> dict[str, KernelFacts]:
        """Its kernels by name; the second of a name is called ``name #2``."""
        facts = self.facts
        us = facts["time_us"] / facts["cycles"] if facts["cycles"] else 0.0
        pipes = _by_run(facts["pipes"], ("core", "pipe"))
        traffic = _by_run(facts["traffic"], ("src", "dst", "operand"))
        by_name: dict[str, KernelFacts] = {}
        for name, row in numbered(facts["kernels"], "name").items():
            by_name[name] = KernelFacts(
                row=row,
                waits=_mean_us(next(pipes), us),
                traffic={
                    (path["src"], path["dst"], path["operand"]): {n: path[n] for n in _COUNTS}
                    for path in next(traffic)
                },
            )
        return by_name

    @cached_property
    def figures(self) -> dict[str, str]:
        """The figures of its device by dotted path; empty where it is a file."""
        device = self.result.device if self.result is not None else None
        return {} if device is None else {path: text for path, text, *_ in describe(device)}


@dataclass(frozen=True, kw_only=True)
class CallDifferences(Differences):
    """Differences between two calls in time, waits and traffic, kernel by kernel."""

    a: Side
    b: Side

    columns = ("kernel", "what", "name", "a", "b", "change")
    named, digits = ("kernel", "name"), 3
    stated = (*OF_CALL, "time_us", "verdict")

    def __repr__(self) -> str:
        """One line: how many things differ, and both times."""
        a, b = self.times
        return f"<Comparison: {counted(len(self.rows), 'difference')}, {a:.3f} and {b:.3f} us>"

    @property
    def sides(self) -> tuple[tuple[str, Facts], tuple[str, Facts]]:
        """Labels of both sides, and their plain facts."""
        return (self.a.label, self.a.facts), (self.b.label, self.b.facts)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Differences, a row each: the call, its device's figures, then kernel by kernel.

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
        yield from (("", "call", name, a[name], b[name]) for name in OF_CALL)
        yield from (("", "time", name, a[name], b[name]) for name in TIMES)

    def _figures(self) -> Iterator[_Fact]:
        a, b = self.a.figures, self.b.figures
        if a and b:
            yield from (("", "figure", name, a.get(name), b.get(name)) for name in {**a, **b})

    def _of_kernels(self) -> Iterator[_Fact]:
        for name in self.names:
            a, b = self.a.kernels.get(name), self.b.kernels.get(name)
            if a is None or b is None:
                us_a = None if a is None else a.row["time_us"]
                us_b = None if b is None else b.row["time_us"]
                yield (name, "kernel", "time_us", us_a, us_b)
                continue
            for what, facts in (("time", _KERNEL_TIMES), ("size", _OF_KERNEL)):
                yield from ((name, what, fact, a.row[fact], b.row[fact]) for fact in facts)
            for pipe in {**a.waits, **b.waits}:
                waits_a, waits_b = a.waits.get(pipe, {}), b.waits.get(pipe, {})
                for reason in REASONS:
                    wait_a, wait_b = waits_a.get(reason, 0.0), waits_b.get(reason, 0.0)
                    yield (name, "wait", f"{pipe} {reason}", wait_a, wait_b)
            for path in {**a.traffic, **b.traffic}:
                moved_a, moved_b = a.traffic.get(path, {}), b.traffic.get(path, {})
                label = f"{path[0]}->{path[1]} {path[2]}".rstrip()
                for count in _COUNTS:
                    size_a, size_b = moved_a.get(count, 0), moved_b.get(count, 0)
                    yield (name, "traffic", f"{label} {count}", size_a, size_b)

    def about(self, facts: Facts) -> str:
        """Noun for one of the two."""
        return f"{facts['operator']} on {facts['device']}"


def _by_run(rows: Iterable[Row], key: tuple[str, ...]) -> Iterator[list[Row]]:
    """Rows of kernel after kernel; a new one begins with another name or a key that came before."""
    run: list[Row] = []
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        identity = tuple(row[name] for name in key)
        if run and (row["kernel"] != run[0]["kernel"] or identity in seen):
            yield run
            run, seen = [], set()
        run.append(row)
        seen.add(identity)
    yield run


def _mean_us(rows: Iterable[Row], us: float) -> dict[str, dict[str, float]]:
    """Microseconds by pipe and reason, the mean over cores that run."""
    by_pipe: dict[str, list[Row]] = {}
    all_rows = list(rows)
    at_work = {row["core"] for row in all_rows if row["busy"] + row["bandwidth"]}
    for row in (row for row in all_rows if row["core"] in at_work):
        by_pipe.setdefault(row["pipe"], []).append(row)
    return {
        pipe: {
            reason: us * sum(row[reason] for row in rows_of_pipe) / len(rows_of_pipe)
            for reason in REASONS
        }
        for pipe, rows_of_pipe in by_pipe.items()
    }
