"""The reference of the command line, which ``make docs`` writes, has every command and option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim.cli.commands import COMMANDS
from npusim.cli.main import main
from npusim.ops import CARDS
from tests.documents.pages import WRITTEN, text
from tools.command_line import page


def test_every_command_and_operator_has_a_chapter() -> None:
    chapters = re.findall(r"^## npusim (.*)$", page(), re.M)
    assert [name for name in chapters if " " not in name] == list(COMMANDS)
    assert {f"run {name}" for name in CARDS} | {"run kernel", "devices show"} <= set(chapters)


def test_a_chapter_has_the_options_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    chapter = page().partition("## npusim net\n")[2].partition("\n## ")[0]
    assert main(["net", "--help"]) == 0
    shown = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.M))
    assert set(re.findall(r"^\| `(--[a-z-]+)", chapter, re.M)) == shown
    assert len(shown) > 20


def test_the_page_is_written_where_the_site_looks_for_it() -> None:
    (place,) = WRITTEN
    assert f"tools.command_line {place}" in text("Makefile")
    assert place in text(".gitignore").splitlines()
    assert Path(place).relative_to("docs").as_posix() in text("mkdocs.yml")
