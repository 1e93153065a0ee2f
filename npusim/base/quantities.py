"""Text to exact numbers and back: sizes, clocks, rates, cycles, durations, counts, blocks.

A unit is part of the quantity: a bare number is an error wherever one is due. Everything is an
int or a Fraction, so nothing depends on how a machine rounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, partial
from math import ceil
from typing import cast

from msgspec import Struct, field

from npusim.base.errors import ArgumentError

#: ``m, k, n, cycles``: a block of m*k*n multiply-adds done every ``cycles`` cycles.
Block = tuple[int, int, int, int]
Quantity = int | Fraction | Block
Range = tuple[Quantity, Quantity]

_MILLI = Fraction(1, 1000)
_SIZES = {
    **{"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
#: Units in which sizes are written, the first that divides one. Memories are sold in decimal GB
#: too: 24 GB is no whole number of MiB.
_SIZE_UNITS = ("TiB", "GiB", "TB", "GB", "MiB", "KiB")
_FREQUENCIES = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
_CYCLES = {"cycle": 1, "cycles": 1}
_RATES = {f"{unit}/s": Fraction(_SIZES[unit]) for unit in ("B", "kB", "MB", "GB", "TB")}
_DURATIONS = {"s": Fraction(1), "ms": _MILLI, "us": _MILLI**2, "ns": _MILLI**3}
_BYTE_ENERGIES: Mapping[str, int | Fraction] = {
    "pJ/B": 1,
    "fJ/B": _MILLI,
    "pJ/bit": 8,
    "fJ/bit": 8 * _MILLI,
}


class Kind(Struct, frozen=True):
    """A kind of quantities: its noun in errors, an example, and a most that no machine reaches.

    ``units`` are of numbers, the base unit first; ``seconds`` those of kinds that rest on a clock,
    as numbers of their first. ``whole`` kinds have no fractions. ``idle`` ones may be 0: to say
    nothing of an energy is to leave it out. ``ranged`` ones can have a range: speeds and times, not
    capacities, counts and switches.
    """

    noun: str
    example: str
    most: str = ""
    units: Mapping[str, int | Fraction] = field(default_factory=dict)
    seconds: Mapping[str, Fraction] = field(default_factory=dict)
    whole: bool = False
    idle: bool = False
    ranged: bool = False


_TIME = partial(Kind, most="1000000000cycle", units=_CYCLES, idle=True, ranged=True)

#: With figures below the most of each, and tensors that fit in memory, times and places stay far
#: within 64 bits.
KINDS = {
    "size": Kind("a size", "512KiB", "1024TiB", _SIZES, whole=True),
    "frequency": Kind("a frequency", "1.8GHz", "1000GHz", _FREQUENCIES, whole=True, ranged=True),
    "rate": Kind(
        *("a rate", "128B/cycle or 5TB/s", "1000000000B/cycle", {"B/cycle": 1}, _RATES), ranged=True
    ),
    "cycles": _TIME("whole cycles", "12cycle", whole=True),
    "fraction_cycles": _TIME("cycles", "3.4cycle"),
    "duration": _TIME("a duration", "5us or 200cycle", seconds=_DURATIONS, whole=True),
    "count": Kind("a count of at least 1 without unit", "4", "65536"),
    "bool": Kind("yes or no", "yes"),
    "block": Kind("a block", "16x16x16 or 16x8x16/2cycle", ranged=True),
    "byte_energy": Kind("an energy per byte", "1.5pJ/B", "1000000000pJ/B", _BYTE_ENERGIES),
    "energy": Kind("an energy", "0.7pJ", "1000000000pJ", {"pJ": 1, "fJ": _MILLI}),
    "power": Kind("a power per area", "0.4W/mm2", "1000000W/mm2", {"W/mm2": 1, "mW/mm2": _MILLI}),
    "voltage": Kind("a voltage", "0.75V", "1000000V", {"V": 1, "mV": _MILLI}),
    "area": Kind("an area", "290um2", "1000000mm2", {"um2": 1, "mm2": 10**6}),
    "share": Kind("a share in per cent", "50%", "1000000%", {"%": 1}),
    "density": Kind(
        *("an area per size", "0.45mm2/MiB", "1000000mm2/MiB", {"mm2/MiB": 1, "mm2/KiB": 1024})
    ),
}

#: B/s rates are rounded to 1/1024 B/cycle, which keeps the fractions small.
_RATE_STEPS = 1024
#: The slowest rate: at less, one copy of a large tensor would take more cycles than can be counted.
_SLOWEST = Fraction(1, 2**20)

_NUMBER = re.compile(
    r"(\d{1,40}(?:\.\d{1,40}|/[1-9]\d{0,39})?)((?:[A-Za-z][A-Za-z0-9/]*|%)?)", re.ASCII
)
#: Kinds that have no unit.
_WORDS = {
    "count": re.compile(r"[1-9]\d{0,17}", re.ASCII),
    "bool": re.compile("yes|no"),
    "block": re.compile(
        r"([1-9]\d{0,5})x([1-9]\d{0,5})x([1-9]\d{0,5})(?:/([1-9]\d{0,5})cycles?)?", re.ASCII
    ),
}


def parse_quantity(text: str, kind: str, clock_hz: int) -> Quantity:
    """The number that ``text`` means as a quantity of ``kind`` (one of ``KINDS``).

    Rates come in B/cycle and durations in cycles of a clock of ``clock_hz``. Raises
    ``ArgumentError`` for other text and for what lies beyond any machine.
    """
    value = _parsed(text, kind, clock_hz)
    most = KINDS[kind].most
    if most and _amount(value) > _ceiling(kind):
        raise ArgumentError(f"{text} is beyond any machine; write at most {most}")
    if kind == "rate" and _amount(value) < _SLOWEST:
        raise ArgumentError(f"{text} is too slow to count; write at least {_SLOWEST}B/cycle")
    return value


def parse_count(text: str) -> int:
    """A plain integer of at least 1, without unit and, unlike one of a machine, without limit."""
    return cast(int, _parsed(text, "count", 1))


@cache
def _ceiling(kind: str) -> Fraction:
    return _amount(_parsed(KINDS[kind].most, kind, 1))  # none of them rests on a clock


def _parsed(text: str, kind: str, clock_hz: int) -> Quantity:
    known = KINDS[kind]
    units, seconds = known.units, known.seconds
    match = _WORDS.get(kind, _NUMBER).fullmatch(text)
    if not match or (units and match[2] not in {*units, *seconds}):
        raise _expected(kind, text)
    if kind == "bool":
        return text == "yes"
    if kind == "block":
        m, k, n, cycles = match.groups(default="1")
        return int(m), int(k), int(n), int(cycles)
    if kind == "count":
        return int(text)
    number = Fraction(match[1]) * (units.get(match[2]) or seconds[match[2]])
    if match[2] in seconds and kind == "rate":
        number = Fraction(round(number * _RATE_STEPS / clock_hz), _RATE_STEPS)
    elif match[2] in seconds:
        number *= clock_hz
    if kind == "duration":
        number = Fraction(ceil(number))
    if (known.whole and number.denominator != 1) or not (number or known.idle):
        raise _expected(kind, text)
    return int(number) if known.whole else number


def in_one_unit(
    texts: Sequence[str], kind: str, clock_hz: int
) -> tuple[list[Fraction], Callable[[Fraction], str]]:
    """Quantities as numbers of one unit, and what makes such a number a text again.

    Rates and durations that are all written in seconds stay in the unit of the last: what they are
    in cycles of the clock is rounded, and reads badly. Others are in their base unit. Raises as
    ``parse_quantity`` does, and for blocks.
    """
    values = [parse_quantity(text, kind, clock_hz) for text in texts]
    units = KINDS[kind].seconds
    written = [_NUMBER.fullmatch(text) for text in texts]
    if all(match and match[2] in units for match in written):
        split = [(Fraction(match[1]), match[2]) for match in written if match]
        last_unit = split[-1][1]
        numbers = [number * units[unit] / units[last_unit] for number, unit in split]
        return numbers, lambda number: f"{_number_text(number)}{last_unit}"
    if any(isinstance(value, tuple) for value in values):
        raise ArgumentError("blocks are no numbers; list the values")
    return [_amount(value) for value in values], partial(format_quantity, kind=kind)


def parse_range(text: str, kind: str, value: Quantity, clock_hz: int) -> Range:
    """The ends of ``3TB/s..3.6TB/s``, quantities of ``kind`` on both sides of ``value``.

    The lower one is the slower rate, clock or block, or the shorter time.
    """
    example = KINDS[kind].example.partition(" ")[0]
    if not KINDS[kind].ranged:
        raise ArgumentError(f"{KINDS[kind].noun} has no range; remove {text!r}")
    first, dots, last = text.partition("..")
    if not dots:
        raise ArgumentError(f"expected a range such as {example}..{example}, got {text!r}")
    low, high = (parse_quantity(end.strip(), kind, clock_hz) for end in (first, last))
    if not _amount(low) <= _amount(value) <= _amount(high):
        raise ArgumentError(f"the range {text} does not hold the value; write low..high around it")
    return low, high


def _amount(value: Quantity) -> Fraction:
    """A key that orders quantities of one kind; of a block, its multiply-adds per cycle."""
    if isinstance(value, tuple):
        m, k, n, cycles = value
        return Fraction(m * k * n, cycles)
    return Fraction(value)


def format_quantity(value: Quantity, kind: str) -> str:
    """Text of ``value`` (in base units) that ``parse_quantity`` reads back exactly."""
    if isinstance(value, tuple):
        m, k, n, cycles = value
        return f"{m}x{k}x{n}" + (f"/{cycles}cycle" if cycles > 1 else "")
    if kind == "bool":
        return {0: "no", 1: "yes"}.get(int(value), str(value))
    number = Fraction(value)
    if kind in _FORMATS and number.denominator == 1:
        return _FORMATS[kind](int(number))
    return _number_text(number) + next(iter(KINDS[kind].units), "")


def format_size(size_bytes: int) -> str:
    """Bytes in the largest unit that divides them, binary below a GB: ``512KiB``, ``24GB``."""
    for unit in _SIZE_UNITS:
        if size_bytes and size_bytes % _SIZES[unit] == 0:
            return f"{size_bytes // _SIZES[unit]}{unit}"
    return f"{size_bytes}B"


def format_frequency(hz: int) -> str:
    """A frequency in the largest decimal unit it reaches: ``1.85GHz``."""
    unit = max(
        (u for u in _FREQUENCIES if _FREQUENCIES[u] <= hz),
        key=_FREQUENCIES.__getitem__,
        default="Hz",
    )
    return _number_text(Fraction(hz, _FREQUENCIES[unit])) + unit


def format_rate(bytes_per_cycle: Fraction, clock_hz: int) -> str:
    """A rate for people, rounded, in both units: ``171B/cycle (307.8GB/s)``."""
    giga = float(bytes_per_cycle * clock_hz / 10**9)
    return f"{float(bytes_per_cycle):.5g}B/cycle ({giga:.4g}GB/s)"


_FORMATS: dict[str, Callable[[int], str]] = {"size": format_size, "frequency": format_frequency}


def _number_text(value: Fraction) -> str:
    """A number as a decimal where that is exact, else as ``a/b``."""
    odd, places = value.denominator, 0
    while odd % 10 == 0 or odd % 5 == 0 or odd % 2 == 0:
        odd //= 10 if odd % 10 == 0 else 5 if odd % 5 == 0 else 2
        places += 1
    if odd != 1 or value < 0:
        return str(value)
    integer, rest = divmod(int(value * 10**places), 10**places)
    return f"{integer}.{rest:0{places}d}" if places else str(integer)


def _expected(kind: str, text: str) -> ArgumentError:
    """The error of every quantity that cannot be read."""
    joint = "," if kind == "bool" else f" such as {KINDS[kind].example},"
    return ArgumentError(f"expected {KINDS[kind].noun}{joint} got {text}")
