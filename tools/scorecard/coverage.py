"""How many measured rows lie in the range of their class, each judged by others alone.

``python -m tools.scorecard.coverage`` prints it in a second: it reads the rows of
``configs/silicon/left_out.csv`` and simulates nothing. Each row is taken out once by itself and
once with its group (``tools.scorecard.evidence.group_of``); the range is then that of the rows that
are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log
from typing import NamedTuple

from npusim.cli.files import print_table
from npusim.results.facts.spread import SORTS, LeftOutRow, left_out_rows, spread_among


class Coverage(NamedTuple):
    """A class with its rows, its spread, and how many rows others hold: all, or of other groups."""

    product: str
    work: str
    rows: int
    factor: float
    alone: int
    with_group: int


def coverage(rows: Sequence[LeftOutRow]) -> list[Coverage]:
    """The coverage of every class that was measured, in the order of ``SORTS``."""
    order = [work for sort in SORTS for work in sort]
    classes = sorted({(order.index(row.work), row.product) for row in rows})
    found = []
    for place, product in classes:
        work = order[place]
        members = [row for row in rows if (row.product, row.work) == (product, work)]
        found.append(
            Coverage(
                product=product,
                work=work,
                rows=len(members),
                factor=spread_among(rows, product, work).factor,
                alone=_held(members, rows, lambda row: row.id),
                with_group=_held(members, rows, lambda row: row.group),
            )
        )
    return found


def _held(
    members: Iterable[LeftOutRow], rows: Sequence[LeftOutRow], key: Callable[[LeftOutRow], str]
) -> int:
    """How many members lie in the range of the rows with another key."""
    count = 0
    for member in members:
        others = [row for row in rows if key(row) != key(member)]
        spread = spread_among(others, member.product, member.work)
        count += abs(log(member.ratio)) <= log(spread.factor)
    return count


def _share(count: int, rows: int) -> str:
    return f"{count} ({100 * count / rows:.0f} %)"


def main() -> None:
    """Print the coverage of every class, and of all together."""
    found = coverage(left_out_rows())
    lines = [
        (
            entry.work,
            entry.product,
            str(entry.rows),
            f"{entry.factor:.2f}",
            _share(entry.alone, entry.rows),
            _share(entry.with_group, entry.rows),
        )
        for entry in found
    ]
    total = sum(entry.rows for entry in found)
    alone = sum(entry.alone for entry in found)
    with_group = sum(entry.with_group for entry in found)
    lines.append(("all", "", str(total), "", _share(alone, total), _share(with_group, total)))
    print("Rows within the range of their class, left out one by one and by group\n")
    head = ("class", "chips", "rows", "factor", "left out alone", "with its group")
    print_table(head, lines, 2)


if __name__ == "__main__":
    main()
