"""Looks of results at the end of a notebook's cell."""

from __future__ import annotations

from html import escape
from typing import Any

#: Rows of a table that are shown; the table itself has all.
_ROWS = 60


class Shown:
    """Mix-in: ``text()``, or the one line of ``repr``, with the data frame ``table`` below it.

    A table unfolds where there is a text, which has the most of it.
    """

    def _repr_html_(self) -> str:
        """HTML without scripts; what the object says is escaped."""
        text_of = getattr(self, "text", None)
        said = repr(self)[1:-1] if text_of is None else text_of()
        table: Any = getattr(self, "table", None)
        if table is None:
            return _plain(said)
        rows = table.to_html(index=False, border=0, max_rows=_ROWS, justify="left", na_rep="")
        opened = " open" if text_of is None else ""
        name = f"table, {len(table):,} rows"
        return f"{_plain(said)}<details{opened}><summary>{name}</summary>{rows}</details>"


def _plain(text: str) -> str:
    return f'<pre style="line-height:1.25">{escape(text.rstrip())}</pre>'
