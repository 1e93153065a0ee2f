"""What a call took, in a few figures and a table: for its page and for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from npusim.results import metrics, palette
from npusim.results.elementwise import TRAFFIC_ONLY
from npusim.results.lines import bytes_text, percent_text, rate_text, us_alike, us_text
from npusim.results.network_text import split_text
from npusim.results.record import Record
from npusim.results.text import kernel_cells
from npusim.results.web import page
from npusim.results.web.page import Bar, Cell


def verdict(result: Record) -> str:
    """The time and what holds it up, in a sentence or two."""
    launches = sum(run.launch_cycles for run in result.runs)
    text = f"{us_text(result.time_us)} \u00b5s"
    if launches:
        share = percent_text(metrics.share(launches, result.cycles))
        text += f", {share} of it to launch kernels"
    if result.verdict is not None:
        text += f". Bottleneck: {result.verdict.text()}"
    return text + "."


def cards(result: Record) -> list[tuple[str, str]]:
    """The key figures of the call."""
    device, macs = result.device, sum(run.macs for run in result.runs)
    found = [(f"{us_text(result.time_us)} \u00b5s", f"time, {result.cycles:,} cycles")]
    if result.known_time_range is not None:
        low, high = result.known_time_range.low_us, result.known_time_range.high_us
        found.append((f"{us_text(low)} to {us_text(high)} \u00b5s", "range of the time"))
    bound = metrics.call_bound(result.runs)
    if bound is not None:
        us = us_text(device.time_us(bound.cycles))
        found.append((f"{us} \u00b5s", f"least of this program: {bound.resource}"))
    if result.problem_us is not None:
        least = result.problem_bounds[0].resource
        found.append((f"{us_text(result.problem_us)} \u00b5s", f"least of any program: {least}"))
    executed = rate_text(metrics.tflops(device, macs, result.cycles))
    useful = rate_text(metrics.tflops(device, sum(result.useful_macs.values()), result.cycles))
    if result.useful_macs:
        found.append((f"{useful} TFLOPS", f"useful over the call; executed {executed}"))
    elif macs:
        found.append((f"{executed} TFLOPS", "executed over the call"))
    found.append((bytes_text(sum(run.gm_bytes for run in result.runs)), "from and to GM"))
    return found


def kernels(result: Record) -> str:
    """A row per kernel; columns that are empty for all of them are left out."""
    cells = [
        {_HEADS.get(head, head): text for head, text in one.items() if head != "share"}
        | {"GM": size_cell(run.gm_bytes)}
        for one, run in zip(kernel_cells(result), result.runs, strict=True)
    ]
    heads = [head for head in cells[0] if any(one[head] for one in cells)] if cells else []
    table = page.table(
        heads,
        [[one[head] for head in heads] for one in cells],
        left=1 + ("tiling" in heads),
        long=(1,) if "tiling" in heads else (),
    )
    note = (
        '<p class="dim">bound, problem: share of the time that the program, or any for its '
        "problem, would need at least</p>"
    )
    return table + note if cells else table


#: Heads of columns that need their unit.
_HEADS = {"us": "\u00b5s", "launch": "launch \u00b5s"}


def size_cell(count: int) -> Cell:
    """Bytes as text, sorted by their number."""
    return Cell(bytes_text(count), count)


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


def call(result: Record) -> str:
    """A call: time, bounds and kernels."""
    return _block(
        f"{result.operator} on {result.device.name}",
        result.problem,
        verdict(result),
        page.cards(cards(result)),
        _folded("kernels", kernels(result)),
        _folded("notes", page.bullets(result.notes)),
    )


def layer_bar(row: Mapping[str, Any], most: float) -> Bar:
    """The parts of a layer's time, of ``most`` microseconds."""
    parts = tuple(
        (name, row["count"] * us / most, palette.PART_COLOURS[name])
        for name, us in row["split"].items()
    )
    return Bar(parts, row["total_us"])


def network(facts: Mapping[str, Any]) -> str:
    """A network: its time and its layers; ``facts`` are those of ``NetworkResult.to_json``."""
    known = [row for row in facts["layers"] if not row["error"]]
    most = max((row["total_us"] for row in known), default=1.0)
    rows = [
        (
            row["layer"],
            row["count"],
            layer_bar(row, most),
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
