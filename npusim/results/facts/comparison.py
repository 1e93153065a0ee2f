"""Two calls side by side: what changed in time, waits and traffic, kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.base.reasons import REASONS
from npusim.machine.device.config import describe
from npusim.results.facts.differences import Differences, Facts, Row, facts_of, labels_of, numbered
from npusim.results.result import Result
from npusim.results.shown.figures.stacks import Stack, stacked
from npusim.results.writers import palette
from npusim.results.writers.plots import Axes, draw
from npusim.results.writers.text_layout import (
    WIDTH,
    bytes_text,
    columns,
    counted,
    percent_text,
    us_or_none,
    us_text,
    wrap,
)

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

_COUNTS = ("bytes", "hit_bytes", "miss_bytes")
#: Rows of waits, of traffic and of figures that are shown; the rest is counted.
MAX_ROWS = 12

#: Changes of a wait, in us, that would read 0.000.
_TINY_US = 0.0005


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
        for name, row in numbered(facts["kernels"], "name").items():
            found[name] = KernelFacts(
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


@dataclass(frozen=True, kw_only=True)
class Comparison(Differences):
    """What differs between two calls in time, waits and traffic, kernel by kernel."""

    a: Side
    b: Side

    columns = ("kernel", "what", "name", "a", "b", "change")
    named, digits = ("kernel", "name"), 3
    told = (*_OF_CALL, "time_us", "verdict")

    def __repr__(self) -> str:
        """One line: how many things differ, and both times."""
        a, b = self.times
        return f"<Comparison: {counted(len(self.rows), 'difference')}, {a:.3f} and {b:.3f} us>"

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

    def about(self, facts: Facts) -> str:
        """What one of them is."""
        return f"{facts['operator']} on {facts['device']}"

    def sections(self) -> Iterator[Iterator[str]]:
        """What the text says below its head."""
        yield _kernels(self)
        yield _bounds(self)
        yield _changes(self, "wait", "BUSIEST PIPES (us, mean)", us_text)
        yield _changes(self, "traffic", "TRAFFIC", bytes_text)
        yield _others(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the kernels of both, one bar below the other, by what their busiest pipe did.

        A bar has the launch, then the mean over the cores that run, in us, so that it is as long
        as the kernel takes.
        """
        sides = (("A", self.a), ("B", self.b))
        stacks = [
            _stack(f"{name}  {letter}", side.kernels[name])
            for name in self.names
            for letter, side in sides
            if name in side.kernels
        ]

        def titles() -> Iterator[str]:
            for letter, side in sides:
                what = self.about(side.facts) if side.label == letter else side.label
                yield f"{letter}  {what}: {us_text(side.facts['time_us'])} us"

        looks = {"launch": palette.LAUNCH, **palette.REASON_COLOURS}
        label = "us; the launch, then what the busiest pipe of the kernel did"
        drawn = stacked(stacks, looks, label, 10, title="\n".join(titles()), at="beside")
        return draw(drawn, ax)

    def save_trace(self, path: str | Path) -> None:
        """Write both timelines to one file for ui.perfetto.dev; ``.json.gz`` compresses it.

        ``ArgumentError`` where one side is a file, or kept no timeline.
        """
        from npusim.results.writers import perfetto  # noqa: PLC0415

        if self.a.result is None or self.b.result is None:
            file = self.a.label if self.a.result is None else self.b.label
            raise ArgumentError(
                f"{file} is a file of results, which has no rows per instruction; a trace needs "
                "both calls themselves, with timeline=True"
            )
        perfetto.save_both(self.a.result, self.b.result, Path(path))


def compare(
    a: Result | str | Path, b: Result | str | Path, *, labels: tuple[str, str] | None = None
) -> Comparison:
    """Compare two calls: results, or files that ``npusim run --json`` wrote.

    They may differ in anything: tilings, devices, versions, even operators. ``labels`` call them
    something better than A and B, or than their files.
    """
    first, second = labels_of(a, b, labels)
    return Comparison(a=side(a, first), b=side(b, second))


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


# -- text --------------------------------------------------------------------------------------


def _bounds(compared: Comparison) -> Iterator[str]:
    """What would take each kernel longest alone, of those whose time changed most."""
    pairs = [(n, compared.a.kernels.get(n), compared.b.kernels.get(n)) for n in compared.names]
    both = [(name, a, b) for name, a, b in pairs if a is not None and b is not None]
    both.sort(key=lambda one: -abs(one[1].row["time_us"] - one[2].row["time_us"]))
    rows = [
        (f"  {name}", *_nearest(a), *_nearest(b))
        for name, a, b in both[:MAX_ROWS]
        if a.row["time_us"] != b.row["time_us"]
    ]
    if rows:
        yield ""
        heads = ("BOUNDS", "A alone takes", "", "B alone takes", "")
        yield from columns([heads, *rows], left=(0, 1, 3), width=WIDTH)


def _nearest(one: KernelFacts) -> tuple[str, str]:
    us = one.row["time_us"] - one.row["launch_us"]
    bound_us = one.row["bound_us"]
    return one.row["bound"], percent_text(bound_us / us) if bound_us and us else "-"


def _kernels(compared: Comparison) -> Iterator[str]:
    """Times of every kernel of either without launches, and how much of them is necessary."""
    heads = ("KERNELS", "A us", "B us", "change", "", "least", "B", "pipe")
    rows: list[tuple[str, ...]] = [heads]
    for name in compared.names:
        pair = [side.kernels.get(name) for side in (compared.a, compared.b)]
        us = [None if one is None else one.row["time_us"] - one.row["launch_us"] for one in pair]
        pipes = ["-" if one is None else one.busiest for one in pair]
        rows.append((
            name, *map(us_or_none, us), *compared.change_texts(*us),
            *(_least(one, time) for one, time in zip(pair, us, strict=True)),
            "/".join(dict.fromkeys(pipes)),
        ))  # fmt: skip
    yield ""
    yield from columns(rows, left=(0, 7), width=WIDTH)
    yield from wrap(
        "(us without launches, mean of the cores that run; least: share that any program would "
        "need; pipe: the busiest, of A and of B)"
    )


def _least(one: KernelFacts | None, us: float | None) -> str:
    if one is None or not us or one.row["problem_us"] is None:
        return "-"
    return percent_text(one.row["problem_us"] / us)


def _changes(compared: Comparison, what: str, title: str, text: Any) -> Iterator[str]:
    """Rows of one kind, the largest changes first."""
    found = [row for row in compared.rows if row["what"] == what]
    found.sort(key=lambda row: -abs(row["change"]))
    if not found:
        return
    rows = [(title, "", "A", "B", "change")]
    shown = [row for row in found if what != "wait" or _matters(compared, row)][:MAX_ROWS]
    for row in shown:
        sign = "-" if row["change"] < 0 else "+"
        change = f"{sign}{text(abs(row['change']))}"
        rows.append((f"  {row['kernel']}", row["name"], text(row["a"]), text(row["b"]), change))
    yield ""
    yield from columns(rows, left=2, width=WIDTH)
    if len(found) > len(shown):
        yield f"  ({counted(len(found) - len(shown), 'other change')})"


def _matters(compared: Comparison, row: Row) -> bool:
    """Whether a wait is told: it is of its kernel's busiest pipe on either side, and not tiny."""
    if abs(row["change"]) < _TINY_US:
        return False
    pair = (side.kernels.get(row["kernel"]) for side in (compared.a, compared.b))
    return row["name"].partition(" ")[0] in {one.busiest for one in pair if one is not None}


def _others(compared: Comparison) -> Iterator[str]:
    """What the calls, their devices and their kernels are."""
    found = [
        row
        for row in compared.rows
        if row["what"] in ("call", "figure", "size") or row["name"] == "launch_us"
    ]
    if not found:
        return
    many = len(found) > 3 * MAX_ROWS
    kept = [row for row in found if not (many and row["what"] == "figure")]
    yield from compared.besides(kept)
    figures = sum(row["what"] == "figure" for row in found)
    if many and figures:
        yield f"  {counted(figures, 'figure')} of the devices: see to_json()"


def _stack(name: str, kernel: KernelFacts) -> Stack:
    """One kernel's stretches."""
    called = f"{name} ({kernel.busiest})" if kernel.busiest else name
    lengths = {"launch": kernel.row["launch_us"], **kernel.waits.get(kernel.busiest, {})}
    return Stack(called, us_text(kernel.row["time_us"]), lengths)
