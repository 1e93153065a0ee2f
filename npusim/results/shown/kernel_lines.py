"""The lines of a kernel as rows of a table."""

from __future__ import annotations

from npusim.machine.timing.trace import LineWork
from npusim.results.facts.number_text import bytes_text, percent_text
from npusim.results.facts.pressure import fills

#: Heads of the table, and how many of these columns are text.
HEAD = ("pipe", "instruction", "line", "times", "each", "share", "bytes", "fills")
LEFT = 3


def cells(line: LineWork) -> tuple[str, ...]:
    """A row under ``HEAD``: how often, cycles each, share of the pipe, bytes, and what it fills.

    That are lanes of a vector instruction's repeats, ``8/64``, or the share of the cube's blocks.
    """
    return (
        line.work.pipe,
        line.work.op,
        line.work.line,
        f"{line.count:,}",
        f"{round(line.cycles / line.count):,}",
        percent_text(line.share),
        bytes_text(line.bytes) if line.bytes else "",
        fills(line),
    )
