"""Quantities: what text means, that formatting loses nothing, and what every error says."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError
from npusim.base.quantities import (
    KINDS,
    Quantity,
    format_quantity,
    format_rate,
    format_size,
    parse_count,
    parse_quantity,
)
from tests.tables import rows

GHZ = 10**9

WHOLE = st.integers(0, 10**9)
POSITIVE = st.integers(1, 10**12)
FRACTIONS = st.fractions(0, 10**6, max_denominator=10**6)
PART = st.integers(1, 999)
VALUES: dict[str, st.SearchStrategy[Quantity]] = {
    "size": POSITIVE,
    "frequency": POSITIVE,
    "rate": st.fractions(Fraction(1, 1024), 10**9, max_denominator=10**6),
    "cycles": WHOLE,
    "fraction_cycles": FRACTIONS,
    "duration": WHOLE,
    "count": st.integers(1, 65536),
    "bool": st.booleans(),
    "block": st.tuples(PART, PART, PART, PART),
    **dict.fromkeys(
        ("byte_energy", "energy", "power", "area", "density", "voltage", "share"),
        FRACTIONS.filter(bool),
    ),
}


def test_every_kind_has_a_round_trip() -> None:
    assert VALUES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), clock_hz=st.integers(1, 10**10))
def test_formatting_and_parsing_round_trip(kind: str, data: st.DataObject, clock_hz: int) -> None:
    value = data.draw(VALUES[kind])
    assert parse_quantity(format_quantity(value, kind), kind, clock_hz) == value


@rows("tests/data/rows/quantities.yaml", "what_texts_mean", "kind, texts, clock_hz, value")
def test_what_texts_mean(kind: str, texts: str, clock_hz: int, value: Any) -> None:
    """Of texts of one value each; a fraction is written as one, a block as a list."""
    if isinstance(value, str):
        value = Fraction(value)
    elif isinstance(value, list):
        value = tuple(value)
    for text in texts.split():
        found = parse_quantity(text, kind, clock_hz)
        assert (found, type(found)) == (value, type(value))


def test_how_values_are_written() -> None:
    sizes = {512 * 1024: "512KiB", 1000: "1000B", 24 * 10**9: "24GB", 3 * 10**12: "3TB"}
    sizes |= {24 << 30: "24GiB", 24 * 10**9 + 1024: "23437501KiB"}
    assert {size: format_size(size) for size in sizes} == sizes
    assert format_rate(Fraction(171), 1_800_000_000) == "171B/cycle (307.8GB/s)"
    for value, kind, text in (
        (1_850_000_000, "frequency", "1.85GHz"),
        (Fraction(1263, 10), "rate", "126.3B/cycle"),
        (Fraction(1, 3), "rate", "1/3B/cycle"),
        (Fraction(9, 20), "density", "0.45mm2/MiB"),
        ((16, 8, 4, 2), "block", "16x8x4/2cycle"),
    ):
        assert format_quantity(value, kind) == text


def test_a_count_of_no_machine_has_no_limit() -> None:
    assert parse_count("1000000") == 1_000_000


@rows("tests/data/mistakes/calls.yaml", "errors_say_what_is_expected", "kind, text, message")
def test_errors_say_what_is_expected(kind: str, text: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_quantity(text, kind, GHZ)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "kind"),
    [(-1, "size"), (Fraction(1, 2), "size"), (-1, "frequency"), (0, "frequency"), (-2, "cycles"),
     (Fraction(-1, 2), "rate"), (3, "bool"), (0, "count")],
)  # fmt: skip
def test_numbers_out_of_range_do_not_read_back(value: Quantity, kind: str) -> None:
    with pytest.raises(ArgumentError, match=r"^expected "):
        parse_quantity(format_quantity(value, kind), kind, GHZ)
