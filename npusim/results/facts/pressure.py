"""How well the lines of a kernel fill their unit, and sentences on those that waste it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npusim.machine.isa.vector import BLOCK_BYTES
from npusim.machine.timing.trace import LineWork
from npusim.results.facts.number_text import percent_text

#: A line that wastes less of its pipe's work is worth no sentence, nor are more lines than these.
WORTH_SAYING, MAX_SENTENCES = 0.05, 3


def fills(line: LineWork) -> str:
    """``8/64`` lanes, or of matrix instructions ``69 %``; "" of others."""
    if line.filled is None:
        return ""
    if not line.lanes:
        return percent_text(line.filled)
    return f"{_used(line)}/{line.lanes}"


def _used(line: LineWork) -> str:
    """Lanes of a repeat that are used, on average."""
    lanes = line.lanes * line.used / line.room
    return f"{lanes:.0f}" if lanes >= 1 else f"{lanes:.1g}"


def wasted_lanes(lines: Sequence[LineWork]) -> Iterator[str]:
    """Sentences on vector instructions that leave lanes of their repeats idle, most first."""
    vector = [line for line in lines if line.lanes and line.filled is not None]
    worst = sorted(vector, key=lambda line: -_wasted(line))
    for line in worst[:MAX_SENTENCES]:
        if _wasted(line) >= WORTH_SAYING:
            name = f"{line.work.op} of {line.work.line.replace('.py:', ':')}"
            yield f"{name} uses {_used(line)} of {line.lanes} lanes: {_why(line)}"


def _wasted(line: LineWork) -> float:
    """Share of its pipe's work that a line spends on idle lanes."""
    return line.share * (1 - line.used / line.room) if line.room else 0.0


def _why(line: LineWork) -> str:
    """Why lanes are idle, and the way out."""
    rows = f"rows of {line.row_bytes} B take a block of {BLOCK_BYTES} B each"
    if line.row_bytes and line.again:
        return f"{rows}, with pitch 0 too; repeat a whole block of copies in place of one element"
    if line.row_bytes:
        return f"{rows}; give rows whole blocks, or let them follow each other"
    return "it ends before its last repeat is full; compute on more elements at once"
