"""The tables of keys say something about every key that a device file may state.

The page about kernels lists the whole language.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

import npusim.language
from npusim.language import Language
from tests.documents.device_keys import RECORDS, rows
from tests.documents.language_table import CHAPTERS, INSIDE, chapter, language, public
from tests.documents.pages import text

#: Fields that no file states: the key around a record, and what the reader adds.
NO_KEYS = {"name", "replays", "provenance", "origin"}


@pytest.mark.parametrize("section", RECORDS)
def test_every_key_has_a_meaning(section: str) -> None:
    record = RECORDS[section]
    listed = {key for key, *_ in rows(record)}
    known = {str(f.metadata.get("key", f.name)) for f in fields(record)} - NO_KEYS
    assert known == {key.strip("`") for key in listed} - NO_KEYS


def test_values_and_defaults_are_those_of_the_code() -> None:
    path = {key: cells for key, *cells in rows(RECORDS["keys of a path"])}
    assert path["`startup`"][:2] == ["cycles", "required"]
    assert path["`row`"][:2] == ["cycles, fractions", "0cycle"]
    assert path["`links`"][:2] == ["list", "none"]
    device = {key: cells[:2] for key, *cells in rows(RECORDS["keys of a device"])}
    assert device["`paths`"] == ["keys by name", "required"]
    assert device["`sources`"] == ["text by name", "required"]
    assert device["`l2`"] == ["keys", "none"]
    assert device["`name`"] == ["text", "required"]


def test_every_method_is_in_one_chapter() -> None:
    listed = [name for title in CHAPTERS for name in chapter(title)]
    assert len(listed) == len(set(listed))
    assert set(listed) == public(Language) - INSIDE


def test_every_method_says_what_it_does() -> None:
    rows = [line for line in language().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    for row in rows:
        call, what = row.strip("| ").split(" | ")
        assert what.endswith((".", "`")), call
        assert "DType(" not in call


def test_the_page_uses_the_one_public_place() -> None:
    page = text("docs/guide/kernel.md")
    assert "from npusim.language import" in page
    assert "npusim.machine.program" not in page
    for name in npusim.language.__all__:
        assert getattr(npusim.language, name) is not None
