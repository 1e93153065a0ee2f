"""What commands print besides reports: tables for people, JSON for machines."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Sequence
from typing import Any

from npusim.results import lines


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: int | Collection[int]
) -> None:
    """Print a table on stdout; ``left`` says which columns are text (``results.lines``).

    It is made to fit the terminal; what goes to a file or a pipe, 80 columns (or ``COLUMNS``).
    """
    width = shutil.get_terminal_size().columns
    print("\n".join(lines.table(head, rows, left, width)))


def print_result(result: Any, as_json: bool) -> None:
    """Print what a result says, as JSON or as text."""
    if as_json:
        print_json(result.to_json())
    else:
        sys.stdout.write(result.text())


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on stdout, and nothing else."""
    print(json.dumps(value, indent=2, allow_nan=False))
