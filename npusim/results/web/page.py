"""What web pages are made of: one style and script, tables, charts; nothing from outside."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from npusim.results import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows that a table shows before the rest is asked for.
FOLD = 25


class Cell(NamedTuple):
    """Text of a table's cell and what it is sorted by, where that is not the text."""

    text: str
    key: float


class Bar(NamedTuple):
    """Parts of a bar, as shares of the widest: (what, share, colour); ``key`` is what sorts it."""

    parts: tuple[tuple[str, float, str], ...]
    key: float


class Chart(NamedTuple):
    """One interactive chart: the id of its place in the page, its data, and what draws it."""

    place: str
    item: dict[str, Any]
    library: str


def page(title: str, body: Iterable[str], charts: Sequence[Chart] = ()) -> str:
    """A whole page; ``title`` and the parts of ``body`` are escaped already, empty ones vanish."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{own('style.css')}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + _scripts(charts)
        + "\n</body>\n</html>\n"
    )


def report(
    title: str,
    about: Iterable[str],
    lead: str,
    parts: Iterable[str],
    origin: str,
    charts: Sequence[Chart] = (),
) -> str:
    """A page of a result, whose ``parts`` are escaped already: what it is, what it says, all else.

    ``origin`` is what is needed to reproduce it.
    """
    body = (
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in about),
        f'<p class="lead">{escape(lead)}</p>',
        *parts,
        f'<p class="dim">{escape(origin)}</p>',
    )
    return page(escape(title), body, charts)


def own(name: str) -> str:
    """A file of this folder."""
    return (files("npusim.results.web") / name).read_text(encoding="utf-8")


def _scripts(charts: Sequence[Chart]) -> str:
    """The data of the charts, the library if there are any, then what makes the page respond."""
    parts = [
        f'<script type="application/json" class="bokeh">{_inline_json(chart.item)}</script>'
        for chart in charts
    ]
    if charts:
        parts.append(f"<script>{charts[0].library}</script>")
    parts.append(f"<script>\n{own('paint.js')}{own('script.js')}</script>")
    return "\n" + "\n".join(parts)


def _inline_json(value: Any) -> str:
    """JSON that cannot end the script element it is in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def place(chart: Chart, height: int, about: str, caption: str = "") -> str:
    """Where a chart is drawn; ``about`` is read out in its place, ``caption`` stands below it."""
    told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div class="chart" id="{chart.place}" role="img" aria-label="{escape(about)}" '
        f'style="min-height:{height}px"></div>{told}</figure>'
    )


def picture(ax: Axes, kind: str, name: str) -> str:
    """The figure of ``ax`` as a picture inside the page; ``kind`` is ``"png"`` or ``"svg"``."""
    data = base64.b64encode(plots.figure_bytes(ax, kind)).decode("ascii")
    mime = {"png": "image/png", "svg": "image/svg+xml"}[kind]
    return (
        f'<figure class="picture"><img alt="{escape(name)}" src="data:{mime};base64,{data}">'
        "</figure>"
    )


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    left: int,
    long: Sequence[int] = (),
) -> str:
    """A table that sorts by its heads; nothing without rows.

    Its first ``left`` columns are text, the others numbers; those at the places ``long`` hold
    sentences. Rows beyond ``FOLD`` are folded away.
    """
    kept = list(rows)
    if not kept:
        return ""
    kinds = ["" if at < left else "n" for at in range(len(heads))]
    plain = [at in long or isinstance(kept[0][at], Bar) for at in range(len(heads))]
    kinds = ["" if wide else kind for wide, kind in zip(plain, kinds, strict=True)]
    head = _line("th", heads, kinds)
    body = "".join(
        _line("td", row, ["long" if at in long else kind for at, kind in enumerate(kinds)])
        for row in kept
    )
    return (
        f'<div class="scroll"><table class="sorts" data-fold="{FOLD}">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def _line(tag: str, cells: Sequence[Any], kinds: Sequence[str]) -> str:
    inner = []
    for cell, name in zip(cells, kinds, strict=True):
        kind = f' class="{name}"' if name else ""
        if isinstance(cell, Bar):
            inner.append(f'<{tag} class="bars" data-k="{cell.key:g}">{bar(cell.parts)}</{tag}>')
            continue
        text, key = cell if isinstance(cell, Cell) else (str(cell), None)
        sort = "" if key is None else f' data-k="{key:g}"'
        inner.append(f"<{tag}{kind}{sort}>{escape(text)}</{tag}>")
    return f"<tr>{''.join(inner)}</tr>"


def bar(parts: Iterable[tuple[str, float, str]]) -> str:
    """A bar of (what, share of its width, colour); parts without a share are left out."""
    inner = "".join(
        f'<i style="width:{share * 100:.3f}%;background:{colour}" '
        f'title="{escape(what)} {share * 100:.1f} %"></i>'
        for what, share, colour in parts
        if share > 0
    )
    return f'<div class="bar">{inner}</div>'


def section(title: str, *parts: str, opened: bool = True) -> str:
    """A part of the page that folds away; nothing where its parts are empty."""
    inner = "".join(parts)
    if not inner:
        return ""
    state = " open" if opened else ""
    return f"<details{state}><summary><h2>{escape(title)}</h2></summary>{inner}</details>"


def cards(values: Iterable[tuple[str, str]]) -> str:
    """Key figures side by side: (value, what it is)."""
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span class="dim">{escape(name)}</span></div>'
        for value, name in values
    )
    return f'<div class="cards">{inner}</div>'


def bullets(items: Iterable[str]) -> str:
    """A list; nothing where there are no items."""
    inner = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{inner}</ul>" if inner else ""


def key(entries: Iterable[tuple[str, str]]) -> str:
    """What colours stand for: (name, colour)."""
    inner = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in entries
    )
    return f'<div class="key">{inner}</div>'


def jumps(places: Iterable[tuple[str, float, float]]) -> str:
    """Buttons that show a stretch of the timeline: (name, from, to)."""
    inner = "".join(
        f'<button data-of="timeline" data-zoom="{left:.6f} {right:.6f}">{escape(name)}</button>'
        for name, left, right in places
    )
    return f'<div class="chips">{inner}</div>'


def toggles(entries: Iterable[tuple[str, str, str]]) -> str:
    """A key whose entries hide and show parts of a chart: (name, colour, name of the part)."""
    inner = "".join(
        f'<button aria-pressed="true" data-toggle="{escape(part)}">'
        f'<i style="background:{colour}"></i>{escape(name)}</button>'
        for name, colour, part in entries
    )
    return f'<div class="key switches">{inner}</div>'
