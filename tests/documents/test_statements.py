"""The table of the vendors' statements: every row is shown by a test or listed as a deviation."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.documents.collected import MARK
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


def shown() -> list[str]:
    """The tests that rows name, each once."""
    found = [row[2].strip("`") for row in rows(text(PAGE)) if row[1] == "holds"]
    return sorted(set(found))


@pytest.mark.parametrize("row", rows(text(PAGE)), ids=lambda row: row[0][:60])
def test_a_statement_is_shown_or_a_listed_deviation(row: tuple[str, ...]) -> None:
    _statement, state, test = row
    if state == "deviates":
        listed = {topic[0]: topic for topic in rows(text("docs/model/deviations.md"))}
        assert test in listed, "list it in docs/model/deviations.md"
        assert all(listed[test]), "it says what npusim does, what the hardware does, and why"
        return
    assert state == "holds"
    assert re.fullmatch(r"`tests/[\w/]+\.py(::\w+)+`", test), "it names a test"


def test_every_test_of_the_page_runs() -> None:
    """Each is found by its name as the page has it, and nothing skips it or lets it fail."""
    words = ["--collect-only", "-p", "no:cacheprovider", "-p", "tests.documents.collected"]
    command = [sys.executable, "-m", "pytest", *words, *shown()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    found = [line.removeprefix(MARK).rsplit(" ", 1) for line in lines]
    marked = {node: set(names.split(",")) for node, names in found}
    for test in shown():
        own = [node for node in marked if node == test or node.startswith(f"{test}[")]
        assert own, test
        assert not any(marked[node] & {"skip", "skipif", "xfail", "slow"} for node in own), test


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
    assert counted == [16, 16, 47, 16, 15]
