"""What a notebook shows of a result at the end of a cell: its key figures, and tables that fold."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from npusim.results import palette
from npusim.results.elementwise import TRAFFIC_ONLY
from npusim.results.lines import percent_text, us_alike, us_text
from npusim.results.network_text import split_text
from npusim.results.result import Result
from npusim.results.web import page, summary
from npusim.results.web.page import Bar

#: Colours are those of the notebook, whatever its theme.
_STYLE = """<style>
.npusim{max-width:60em}.npusim p{margin:2px 0}.npusim .dim{opacity:.75}
.npusim .cards{display:flex;flex-wrap:wrap;gap:8px;margin:8px 0}
.npusim .card{background:#80808020;border-radius:6px;padding:4px 10px}
.npusim .card b,.npusim .card span{display:block}.npusim .card span{font-size:85%}
.npusim .scroll{overflow-x:auto}.npusim td,.npusim th{padding:2px 7px}
.npusim td.n,.npusim th.n{text-align:right;white-space:nowrap}
.npusim tr>*{text-align:left}.npusim td.bars{min-width:10em}
.npusim .bar{display:flex;height:1em}.npusim .bar i{display:block;height:100%}
.npusim .key span{margin-right:1em}
.npusim .key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
</style>"""


def call(result: Result) -> str:
    """A call: time, bounds and kernels."""
    return _block(
        f"{result.operator} on {result.device.name}",
        result.problem,
        summary.verdict(result),
        page.cards(summary.cards(result)),
        _folded("kernels", summary.kernels(result)),
        _folded("notes", page.bullets(result.notes)),
    )


def network(facts: Mapping[str, Any]) -> str:
    """A network: its time and its layers; ``facts`` are those of ``NetworkResult.to_json``."""
    known = [row for row in facts["layers"] if not row["error"]]
    most = max((row["total_us"] for row in known), default=1.0)
    rows = [
        (
            row["layer"],
            row["count"],
            Bar(
                tuple(
                    (name, row["count"] * us / most, palette.PART_COLOURS[name])
                    for name, us in row["split"].items()
                ),
                row["total_us"],
            ),
            us_alike(row["total_us"]),
            percent_text(row["share"], 1),
            row["bottleneck"],
        )
        for row in known
    ]
    heads = ("layer", "n", "time", "total \u00b5s", "share", "bottleneck")
    failed = len(facts["layers"]) - len(known)
    missing = f", {failed} layers not simulated" if failed else ""
    return _block(
        f"{facts['workload']} {facts['pass']} on {facts['device']}",
        f"batch {facts['batch']}, {facts['dtype']}",
        f"{us_text(facts['time_us'])} \u00b5s{missing}; {split_text(facts)}{_elementwise(facts)}",
        page.key((name, palette.PART_COLOURS[name]) for name in facts["split"]),
        _folded("layers", page.table(heads, rows, 1), opened=True),
        _folded("notes", page.bullets(facts["notes"])),
    )


def _elementwise(facts: Mapping[str, Any]) -> str:
    """The time of element-wise layers, where they were asked for, and that it is another."""
    us = facts["elementwise_us"]
    return "" if us is None else f"; element-wise layers {us_text(us)} \u00b5s, {TRAFFIC_ONLY}"


def _block(title: str, about: str, told: str, *parts: str) -> str:
    return (
        f'{_STYLE}<div class="npusim"><p><b>{escape(title)}</b></p>'
        f'<p class="dim">{escape(about)}</p><p>{escape(told)}</p>{"".join(parts)}</div>'
    )


def _folded(name: str, inner: str, opened: bool = False) -> str:
    """A part that unfolds; nothing where it is empty."""
    state = " open" if opened else ""
    return f"<details{state}><summary>{name}</summary>{inner}</details>" if inner else ""
