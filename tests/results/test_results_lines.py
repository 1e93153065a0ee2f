"""The helper behind every table of text: what is aligned how, and what gives way on a terminal."""

from __future__ import annotations

import pytest

from npusim.results import lines

ROWS = [("name", "what it is", "us"), ("a", "one that is long enough to be wrapped twice", "1.0")]


def test_the_widest_text_is_wrapped_to_fit() -> None:
    found = lines.columns(ROWS, left=2, width=30)
    assert max(map(len, found)) <= 30
    assert found[1] == "a     one that is long     1.0"
    assert [line.strip() for line in found[2:]] == ["enough to be", "wrapped twice"]
    assert lines.columns(ROWS, left=2, width=100) == lines.columns(ROWS, left=2)


def test_what_cannot_be_narrowed_stays_whole() -> None:
    assert lines.columns([("name", "1" * 40)], width=20) == ["name  " + "1" * 40]


def test_long_heads_are_parted_before_columns_are() -> None:
    head, rows = ("groups", "memories.L1.size", "time_us"), [("12", "1MiB", "1.5")]
    assert lines.table(head, rows, (), 30) == [
        "        memories.",
        "groups    L1.size  time_us",
        "--------------------------",
        "    12       1MiB      1.5",
    ]
    assert len(lines.table(head, rows, (), 80)) == 3
    assert max(map(len, lines.table(head, [], (), 30))) <= 30


@pytest.mark.parametrize("width", [24, 40, 80])
def test_columns_without_room_follow_below(width: int) -> None:
    head = ["id", *(f"m{i}" for i in range(30))]
    rows = [[f"row {n}", *(str(n * i) for i in range(30))] for n in range(3)]
    told = lines.table(head, rows, 1, width)
    assert max(map(len, told)) <= width
    parts = "\n".join(told).split("\n\n")
    assert all(part.startswith("id") for part in parts)
    for at, row in enumerate(rows):
        cells = [part.splitlines()[2 + at].removeprefix(row[0]).split() for part in parts]
        assert [cell for part in cells for cell in part] == row[1:]
