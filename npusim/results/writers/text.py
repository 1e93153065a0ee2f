"""Parts of reports as text."""

from __future__ import annotations

from npusim.results.shown.report import Table
from npusim.results.writers import text_layout


def table_text(table: Table, width: int | None = None) -> str:
    """The title and the table, in lines of at most ``width`` characters."""
    lines = text_layout.table(table.head, table.rows, table.left, width)
    return "\n".join((table.title, "", *lines))
