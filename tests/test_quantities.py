"""Quantities: what text means, that formatting loses nothing, and what every error says."""

from __future__ import annotations

from fractions import Fraction

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
        ("byte_energy", "energy", "power", "area", "density", "voltage"), FRACTIONS.filter(bool)
    ),
}


def test_every_kind_has_a_round_trip() -> None:
    assert VALUES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), clock_hz=st.integers(1, 10**10))
def test_formatting_and_parsing_round_trip(kind: str, data: st.DataObject, clock_hz: int) -> None:
    value = data.draw(VALUES[kind])
    assert parse_quantity(format_quantity(value, kind), kind, clock_hz) == value


#: Texts of one value each, with a clock where it matters.
READ: list[tuple[str, str, int, Quantity]] = [
    ("size", "512KiB 0.5MiB", 1, 512 * 1024),
    ("size", "1.5KiB", 1, 1536),
    ("size", "2MiB", 1, 2 << 20),
    ("size", "3GiB", 1, 3 << 30),
    ("size", "1TiB", 1, 1 << 40),
    ("size", "1B", 1, 1),
    ("size", "1kB", 1, 10**3),
    ("size", "1GB 1000MB", 1, 10**9),
    ("frequency", "1.85GHz 1850MHz", 1, 1_850_000_000),
    ("frequency", "50kHz", 1, 50_000),
    ("frequency", "50Hz", 1, 50),
    ("rate", "126.3B/cycle", GHZ, Fraction(1263, 10)),
    ("rate", "64GB/s", GHZ, Fraction(64)),
    ("rate", "5TB/s 5000GB/s", 1_800_000_000, Fraction(2844444, 1024)),  # 2777.777... * 1024
    ("rate", "1B/s", 1, Fraction(1)),
    ("byte_energy", "1.5pJ/B", 1, Fraction(3, 2)),
    ("byte_energy", "4pJ/bit", 1, Fraction(32)),
    ("energy", "250fJ", 1, Fraction(1, 4)),
    ("area", "2mm2", 1, Fraction(2 * 10**6)),
    ("cycles", "12cycle 12cycles", 1, 12),
    ("cycles", "0cycle", 1, 0),
    ("fraction_cycles", "3.4cycle", 1, Fraction(17, 5)),
    ("fraction_cycles", "1/3cycles", 1, Fraction(1, 3)),
    ("duration", "5us", 1_800_000_000, 9000),
    ("duration", "1ns", 1_800_000_000, 2),  # rounded up
    ("duration", "200cycle", 1, 200),
    ("duration", "2ms", GHZ, 2_000_000),
    ("duration", "1s", GHZ, GHZ),
    ("count", "4", 1, 4),
    ("bool", "yes", 1, True),
    ("bool", "no", 1, False),
    ("block", "16x8x4/2cycle", 1, (16, 8, 4, 2)),
    ("block", "16x8x4", 1, (16, 8, 4, 1)),
]


@pytest.mark.parametrize(("kind", "texts", "clock_hz", "value"), READ)
def test_what_texts_mean(kind: str, texts: str, clock_hz: int, value: Quantity) -> None:
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


ERRORS = [
    ("size", "512", "expected a size such as 512KiB, got 512"),
    ("size", "512 KiB", "expected a size such as 512KiB, got 512 KiB"),
    ("size", "512kb", "expected a size such as 512KiB, got 512kb"),
    ("size", "0KiB", "expected a size such as 512KiB, got 0KiB"),
    ("size", "0.3B", "expected a size such as 512KiB, got 0.3B"),
    ("size", "-1B", "expected a size such as 512KiB, got -1B"),
    ("frequency", "1.8", "expected a frequency such as 1.8GHz, got 1.8"),
    ("frequency", "0Hz", "expected a frequency such as 1.8GHz, got 0Hz"),
    ("rate", "128", "expected a rate such as 128B/cycle or 5TB/s, got 128"),
    ("rate", "128KiB/s", "expected a rate such as 128B/cycle or 5TB/s, got 128KiB/s"),
    ("rate", "0B/cycle", "expected a rate such as 128B/cycle or 5TB/s, got 0B/cycle"),
    ("rate", "1B/s", "expected a rate such as 128B/cycle or 5TB/s, got 1B/s"),  # rounds to nothing
    ("cycles", "12", "expected whole cycles such as 12cycle, got 12"),
    ("cycles", "3.4cycle", "expected whole cycles such as 12cycle, got 3.4cycle"),
    ("fraction_cycles", "3.4", "expected cycles such as 3.4cycle, got 3.4"),
    ("fraction_cycles", "1/0cycle", "expected cycles such as 3.4cycle, got 1/0cycle"),
    ("duration", "5", "expected a duration such as 5us or 200cycle, got 5"),
    ("count", "0", "expected a count of at least 1 without unit such as 4, got 0"),
    ("count", "4B", "expected a count of at least 1 without unit such as 4, got 4B"),
    ("count", "1e3", "expected a count of at least 1 without unit such as 4, got 1e3"),
    ("bool", "true", "expected yes or no, got true"),
    ("block", "16x16", "expected a block such as 16x16x16 or 16x8x16/2cycle, got 16x16"),
    ("count", "65537", "65537 is beyond any machine; write at most 65536"),
    ("size", "1025TiB", "1025TiB is beyond any machine; write at most 1024TiB"),
    ("frequency", "1001GHz", "1001GHz is beyond any machine; write at most 1000GHz"),
    ("cycles", "1e28cycle", "expected whole cycles such as 12cycle, got 1e28cycle"),
    ("cycles", "4611686018427387904cycle",
     "4611686018427387904cycle is beyond any machine; write at most 1000000000cycle"),
    ("duration", "2s", "2s is beyond any machine; write at most 1000000000cycle"),
    ("rate", "1000000001B/cycle",
     "1000000001B/cycle is beyond any machine; write at most 1000000000B/cycle"),
    ("rate", "1/1048577B/cycle",
     "1/1048577B/cycle is too slow to count; write at least 1/1048576B/cycle"),
    ("power", "1000001W/mm2", "1000001W/mm2 is beyond any machine; write at most 1000000W/mm2"),
    ("block", "0x1x1", "expected a block such as 16x16x16 or 16x8x16/2cycle, got 0x1x1"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "message"), ERRORS)
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
