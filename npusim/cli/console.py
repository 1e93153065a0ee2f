"""What commands print besides reports: tables for people, JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

#: Columns of a table that goes to a file or a pipe: wide enough never to wrap or cut a cell.
_UNLIMITED = 10_000


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    """Print a table on stdout, the columns named in ``right`` aligned to the right."""
    # Only tables need it: JSON and reports do not wait for its import.
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    width = None if sys.stdout.isatty() else _UNLIMITED
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on stdout, and nothing else."""
    print(json.dumps(value, indent=2, allow_nan=False))
