"""The tables of keys say something about every key that a device file may state."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.documents.device_keys import RECORDS, rows

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
