"""What web pages are made of: one style, tables and figures, no outside assets."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from npusim.results import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1d2125;--dim:#5d666f;--line:#d9dee3;--card:#f4f6f8}
@media(prefers-color-scheme:dark){:root{--bg:#16191c;--fg:#e6e9ec;--dim:#9aa4ad;--line:#353b41;
--card:#20252a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px;max-width:1120px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:32px 0 8px}h3{font-size:15px;margin:16px 0 6px}
p{margin:4px 0}.dim{color:var(--dim)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin:18px 0}
.card{background:var(--card);border-radius:8px;padding:10px 14px}
.card b{display:block;font-size:20px}
figure{margin:0 0 12px;background:#fff;border:1px solid var(--line);border-radius:8px;padding:8px}
figure img{display:block;max-width:100%;margin:0 auto}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));gap:12px;
align-items:start}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:4px 8px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th.n,td.n{text-align:right;white-space:nowrap}
.bar{display:flex;height:16px;border-radius:3px;overflow:hidden;min-width:240px}
.bar i{display:block;height:100%}
td.wide{width:65%}
.key{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:13px;margin:6px 0}
.key i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:5px;
vertical-align:-1px}
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole page; ``title`` and the parts of ``body`` are escaped already, empty ones vanish."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def figure(ax: Axes, kind: str, name: str) -> str:
    """The figure of ``ax`` as a picture inside the page; ``kind`` is ``"png"`` or ``"svg"``."""
    data = base64.b64encode(plots.figure_bytes(ax, kind)).decode("ascii")
    mime = {"png": "image/png", "svg": "image/svg+xml"}[kind]
    return f'<figure><img alt="{escape(name)}" src="data:{mime};base64,{data}"></figure>'


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], left: int) -> str:
    """A table whose first ``left`` columns read left to right and whose others are numbers."""

    def line(tag: str, cells: Sequence[Any]) -> str:
        kinds = ("" if place < left else ' class="n"' for place, _ in enumerate(cells))
        inner = "".join(
            f"<{tag}{kind}>{escape(str(cell))}</{tag}>"
            for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="scroll"><table><thead>{line("th", heads)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
