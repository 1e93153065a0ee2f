"""Numbers as people read them, for sentences, tables and axes: units, precision, counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

Number = int | float | Fraction

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def binary_unit(count: Number) -> tuple[str, int]:
    """The largest binary unit not above ``count`` bytes: its name and its size in bytes."""
    power = 0
    while power < len(_BINARY) - 1 and count >= 1024 ** (power + 1):
        power += 1
    return _BINARY[power], 1024**power


def bytes_text(count: Number) -> str:
    """``count`` bytes in binary units, one decimal: ``"512 B"``, ``"1.5 MiB"``."""
    unit, size = binary_unit(count)
    return f"{float(count):.0f} B" if size == 1 else f"{float(count) / size:.1f} {unit}"


def percent_text(share: Number, digits: int = 0) -> str:
    """A share of 1 as per cent: ``"71 %"``; what would round to nothing reads ``"<1 %"``."""
    step = 10.0**-digits
    percent = float(share) * 100
    if 0 < percent < step / 2:
        return f"<{step:.{digits}f} %"
    return f"{percent:.{digits}f} %"


def signed_text(share: Number) -> str:
    """A share of 1 as per cent with its sign, one decimal: ``"+4.2 %"``."""
    return f"{float(share) * 100:+.1f} %"


def us_text(time_us: Number) -> str:
    """Microseconds with a precision that suits their size: ``"3.214"``, ``"812.4"``."""
    value = float(time_us)
    digits = 3 if value < 100 else 1
    return f"{value:,.{digits}f}"


def us_or_none(value: Number | None) -> str:
    """Microseconds, a dash where there are none."""
    return "-" if value is None else us_text(value)


def us_alike(time_us: Number) -> str:
    """Microseconds that stand below others, which all have one digit: ``"3.2"``, ``"812.4"``."""
    return f"{float(time_us):,.1f}"


def rate_text(value: Number) -> str:
    """A rate with three significant digits and no exponent: ``"0.0123"``, ``"1.23"``, ``"353"``."""
    number = float(value)
    if number == 0:
        return "0"
    digits = 0
    while digits < 6 and abs(number) * 10**digits < 99.95:
        digits += 1
    return f"{number:,.{digits}f}"


def precise_text(value: Number) -> str:
    """A number with at least four digits: ``"198.8"``, ``"12,684"``, ``"0.1235"``."""
    number = float(value)
    digits = 0
    while digits < 6 and abs(number) * 10**digits < 999.95:
        digits += 1
    return f"{number:,.{digits}f}"


def counts(value: int) -> str:
    """A whole number with commas: ``"12,684"``."""
    return f"{value:,}"


def sizes_text(sizes: Iterable[int]) -> str:
    """``3x224x224``."""
    return "x".join(map(str, sizes))


def alike_text(sizes: Sequence[int]) -> str:
    """The same; one size where all are alike: ``3``, ``1x2``."""
    return sizes_text(sizes[:1] if len(set(sizes)) == 1 else sizes)


def launched_text(mode: str) -> str:
    """Words behind the time of launches; "" for the usual mode."""
    return " (replayed graph)" if mode == "graph" else ""


def times_text(counts: Iterable[tuple[str, int]]) -> str:
    """Things by how often they were met, most often first: ``"2 x softmax, 1 x cumsum"``."""
    most = sorted(counts, key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count:,} x {name}" for name, count in most)


def counted(count: int, noun: str) -> str:
    """``count`` things: ``"1 core"``, ``"2 cores"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
