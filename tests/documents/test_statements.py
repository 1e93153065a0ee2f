"""The table of the vendors' statements: every row is shown by a test or listed as a deviation."""

from __future__ import annotations

import ast
import re

import pytest

from tests.documents.pages import ROOT, text

PAGE = "docs/reference/documents.md"
_SECTION = re.compile(r"^## (.*?)\n\n(\d+) statements: (\d+) hold, (\d+) deviate\.\n", re.M)


def rows(page: str) -> list[tuple[str, ...]]:
    """The cells of the rows of a page's tables, without the heads."""
    found = [line for line in page.splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in found]
    return [
        row for row in cells if not set(row[0]) <= {"-"} and row[0] not in ("statement", "topic")
    ]


@pytest.mark.parametrize("row", rows(text(PAGE)), ids=lambda row: row[0][:60])
def test_a_statement_is_shown_or_a_listed_deviation(row: tuple[str, ...]) -> None:
    _statement, state, shown = row
    if state == "deviates":
        listed = {topic[0]: topic for topic in rows(text("docs/model/deviations.md"))}
        assert shown in listed, "list it in docs/model/deviations.md"
        assert all(listed[shown]), "it says what npusim does, what the hardware does, and why"
        return
    assert state == "holds"
    match = re.fullmatch(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
    assert match, "it names a test"
    file, name = match.groups()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_the_counts_are_those_of_the_tables() -> None:
    page = text(PAGE)
    sections = list(_SECTION.finditer(page))
    ends = [*(match.start() for match in sections[1:]), len(page)]
    counted = []
    for match, end in zip(sections, ends, strict=True):
        states = [row[1] for row in rows(page[match.end() : end])]
        counts = (len(states), states.count("holds"), states.count("deviates"))
        assert counts == tuple(map(int, match.groups()[1:])), match.group(1)
        counted.append(len(states))
    assert counted == [16, 16, 44, 16, 15]
