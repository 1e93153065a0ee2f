"""A comparison as text of at most 80 columns: what changed, most first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npusim.results.compared import Compared, Differences, KernelFacts, Row
from npusim.results.lines import (
    WIDTH,
    bytes_text,
    columns,
    counted,
    fact,
    page,
    percent_text,
    signed_text,
    us_text,
    wrap,
)
from npusim.results.verdict import told

#: Rows of waits, of traffic and of figures that are shown; the rest is counted.
MAX_ROWS = 12

#: Changes of a wait, in us, that would read 0.000.
_TINY_US = 0.0005


def render(compared: Compared) -> str:
    """The whole comparison, with a final newline."""
    if compared.empty:
        return page([_header(compared), ["", "no difference"]])
    sections = (
        _header(compared),
        _kernels(compared),
        _bounds(compared),
        _changes(compared, "wait", "BUSIEST PIPES (us, mean)", us_text),
        _changes(compared, "traffic", "TRAFFIC", bytes_text),
        _others(compared),
    )
    return page(sections)


def _header(compared: Compared) -> Iterator[str]:
    for name, side in (("A", compared.a), ("B", compared.b)):
        facts = side.facts
        label = f"{side.label}: " if side.label != name else ""
        yield from fact(
            name, f"{label}{facts['operator']} on {facts['device']}, {us_text(facts['time_us'])} us"
        )
        verdict = facts.get("verdict")
        if verdict:
            yield from fact("bottleneck", told(verdict["name"], verdict["saves"]))
    yield from time_fact(compared)


def time_fact(compared: Differences) -> list[str]:
    """How the time changed; nothing where it did not."""
    a, b = compared.times
    if a == b or not a:
        return []
    return fact("time", f"{us_text(a)} -> {us_text(b)} us, {signed_text(b / a - 1)}")


def _bounds(compared: Compared) -> Iterator[str]:
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


def _kernels(compared: Compared) -> Iterator[str]:
    """Times of every kernel of either without launches, and how much of them is necessary."""
    heads = ("KERNELS", "A us", "B us", "change", "", "least", "B", "pipe")
    rows: list[tuple[str, ...]] = [heads]
    for name in compared.names:
        pair = [side.kernels.get(name) for side in (compared.a, compared.b)]
        us = [None if one is None else one.row["time_us"] - one.row["launch_us"] for one in pair]
        pipes = ["-" if one is None else one.busiest for one in pair]
        rows.append((
            name, *map(us_or_none, us), *_change(*us),
            *(_least(one, time) for one, time in zip(pair, us, strict=True)),
            "/".join(dict.fromkeys(pipes)),
        ))  # fmt: skip
    yield ""
    yield from columns(rows, left=(0, 7), width=WIDTH)
    yield from wrap(
        "(us without launches, mean of the cores that run; least: share that any program would "
        "need; pipe: the busiest, of A and of B)"
    )


def _change(a: float | None, b: float | None) -> tuple[str, str]:
    """From a to b, in us and as a share of a."""
    if a is None or b is None:
        return "", ""
    return f"{b - a:+,.3f}", signed_text(b / a - 1) if a else ""


def us_or_none(value: float | None) -> str:
    """Microseconds, a dash where there are none."""
    return "-" if value is None else us_text(value)


def _least(one: KernelFacts | None, us: float | None) -> str:
    if one is None or not us or one.row["problem_us"] is None:
        return "-"
    return percent_text(one.row["problem_us"] / us)


def _changes(compared: Compared, what: str, title: str, text: Any) -> Iterator[str]:
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


def _matters(compared: Compared, row: Row) -> bool:
    """Whether a wait is told: it is of its kernel's busiest pipe on either side, and not tiny."""
    if abs(row["change"]) < _TINY_US:
        return False
    pair = (side.kernels.get(row["kernel"]) for side in (compared.a, compared.b))
    return row["name"].partition(" ")[0] in {one.busiest for one in pair if one is not None}


def _others(compared: Compared) -> Iterator[str]:
    """What the calls, their devices and their kernels are."""
    found = [
        row
        for row in compared.rows
        if row["what"] in ("call", "figure", "size") or row["name"] == "launch_us"
    ]
    if not found:
        return
    yield ""
    yield "WHAT DIFFERS BESIDES"
    for row in found:
        if row["what"] == "figure" and len(found) > 3 * MAX_ROWS:
            continue
        of = f"{row['kernel']} " if row["kernel"] else ""
        yield from wrap(
            f"{of}{row['name']}: {value_text(row['a'])} -> {value_text(row['b'])}", "  ", "    "
        )
    figures = sum(row["what"] == "figure" for row in found)
    if len(found) > 3 * MAX_ROWS and figures:
        yield f"  {counted(figures, 'figure')} of the devices: see to_json()"


def value_text(value: Any, commas: bool = True) -> str:
    """A value as people read it."""
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return us_text(value)
    return f"{value:,}" if commas and isinstance(value, int) else str(value)
