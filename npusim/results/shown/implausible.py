"""Operations of a step that take many times their least: its totals, a table, and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npusim.machine.device.spec import Device
from npusim.results.facts.number_text import (
    counted,
    percent_text,
    times_text,
    us_alike,
    us_text,
)
from npusim.results.shown.report import Cell, Items, Key, Note, Part, ReportLine, Table

#: A row of operations, or all facts of a step, by name.
Row = Mapping[str, Any]

#: Share of the time from which on the headline has both totals.
HEADLINE = 0.10

#: Operations that the headline names, and rows of the table that a text has.
NAMED, ROWS = 3, 12


def totals(facts: Row, device: Device) -> str:
    """What the time of a step is as tiled, what it is as tuned, and by which operations.

    It goes on from the time; "" where both totals are much alike.
    """
    if not _is_headline(facts):
        return ""
    return (
        f" as {_tiled_by(device)} tiles it, {us_text(facts['tuned_us'])} \u00b5s as tuned: "
        f"{_savers(facts)}"
    )


def keys(facts: Row, device: Device) -> Iterator[Key]:
    """The line and the card of the total as tuned, where that is much less."""
    if not _is_headline(facts):
        return
    tuned = us_text(facts["tuned_us"])
    less = percent_text(1 - facts["tuned_us"] / facts["time_us"])
    text = f"{tuned} us, {less} less than as {_tiled_by(device)} tiles it: {_savers(facts)}"
    yield Key(ReportLine("as tuned", text), (f"{tuned} \u00b5s", "as tuned, the better tilings"))


def parts(facts: Row, device: Device) -> Iterator[Part]:
    """The operations that were tried with automatic tilings, and those far from their least."""
    retiled = facts["retiled"]
    if retiled:
        yield _table(retiled, facts)
        yield Note(
            f"(\u00b5s of all runs of an operation: as {_tiled_by(device)} tiles it, with the "
            "better of this and an automatic tiling, and what any program needs at least)"
        )
    beyond = facts["extrapolated"]
    far = facts["far_from_least"]
    yield Items(
        [
            *(f"extrapolated: {', '.join(names)} ({why})" for why, names in beyond.items()),
            *_sentences([row for row in far if row["why"]]),
        ]
    )
    others = [row for row in far if not row["why"]]
    if others:
        yield Note(_summed_up(others, facts["time_us"]))


def _is_headline(facts: Row) -> bool:
    """True if the step takes much less as tuned."""
    return bool(facts["tuned_us"] < (1 - HEADLINE) * facts["time_us"])


def _tiled_by(device: Device) -> str:
    """The tilings of ``tiling="library"`` on a device, in words."""
    return "the public rule" if device.library_rules else "the plain choice for the library"


def _saved_us(row: Row) -> float:
    saved: float = row["us"] - row["tuned_us"]
    return saved


def _savers(facts: Row) -> str:
    """The operations that get fastest, with both times."""
    faster = sorted(facts["retiled"], key=lambda row: -_saved_us(row))
    faster = [row for row in faster if _saved_us(row) > 0]
    texts = [
        f"{row['operation']} {us_text(row['us'])} -> {us_text(row['tuned_us'])}"
        for row in faster[:NAMED]
    ]
    if len(faster) > NAMED:
        texts.append(f"{len(faster) - NAMED} more")
    return ", ".join(texts)


def _table(retiled: Sequence[Row], facts: Row) -> Table:
    """A row for each operation that was tried, and what the rest of the step takes."""
    rows = [
        (
            row["operation"],
            Cell(us_alike(row["us"]), row["us"], plain=us_text(row["us"])),
            Cell(us_alike(row["tuned_us"]), row["tuned_us"], plain=us_text(row["tuned_us"])),
            Cell(us_alike(row["least_us"]), row["least_us"], plain=us_text(row["least_us"])),
            "yes" if row["extrapolated"] else "",
        )
        for row in retiled
    ]
    left = retiled[ROWS:]
    return Table(
        "",
        ("operation", "as tiled \u00b5s", "as tuned \u00b5s", "least \u00b5s", "extrapolated"),
        rows,
        1,
        most=ROWS,
        rest=(
            f"{len(left):,} more",
            us_text(sum(row["us"] for row in left)),
            us_text(sum(row["tuned_us"] for row in left)),
            us_text(sum(row["least_us"] for row in left)),
            "",
        ),
        total=("step", us_text(facts["time_us"]), us_text(facts["tuned_us"]), "", ""),
    )


def _sentences(far: Sequence[Row]) -> Iterator[str]:
    """Sentences on operations, those that take as long for the same reason together."""
    names: dict[str, list[str]] = {}
    for row in far:
        us = us_text(row["us"])
        least = us_text(row["least_us"])
        sentence = f"{us} us, at least {least}; {'; '.join(row['why'])}"
        names.setdefault(sentence, []).append(row["operation"])
    for sentence, operations in names.items():
        yield f"{', '.join(operations)}: {sentence}"


def _summed_up(far: Sequence[Row], time_us: float) -> str:
    """A sentence on operations that are far from their least and matter little each."""
    us = sum(row["us"] for row in far)
    launch_us = sum(row["launch_us"] for row in far)
    kinds: Counter[str] = Counter()
    for row in far:
        kinds[row["kind"]] += 1
    return (
        f"(more than 10 times their least, each of little weight: "
        f"{counted(len(far), 'operation')}, "
        f"{us_text(us)} us or {percent_text(us / time_us)} of the step together, "
        f"{us_text(launch_us)} us of it launches: {times_text(kinds.most_common())})"
    )
