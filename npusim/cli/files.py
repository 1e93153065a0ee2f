"""Files that commands write: checked before anything is computed, written after the report."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TextIO

from npusim.base.errors import ArgumentError, NpusimError, shown
from npusim.base.resources import optional
from npusim.results.writers import text_layout as lines

#: Suffixes of plots, of tables, of web pages, of timelines, and of what may have any name.
PLOTS, TABLES, PAGES, ANY = (".png", ".svg"), (".csv", ".parquet"), (".html",), ("",)
TRACES = (".json", ".json.gz")

#: What is said of a timeline.
TO_OPEN = "to open it, drag it into https://ui.perfetto.dev"

#: Writes a file; may return what it says of it.
Write = Callable[[Path], object]


def check_file(option: str, path: Path, suffixes: Sequence[str]) -> None:
    """Refuse a name that nothing writes here or at all, a folder, or one in no folder."""
    if not path.name.lower().endswith(tuple(suffixes)):
        raise ArgumentError(f"{option} {path}: the file's name must end in {' or '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(
            f"{option} {path}: there is no folder {str(path.parent)!r}; create it first"
        )
    if path.is_dir():
        raise ArgumentError(f"{option} {path}: a folder has this name; give a file's")
    if path.suffix.lower() == ".parquet":
        optional("pyarrow", f"{option} {path}: Parquet needs the package pyarrow")


def check_files(arguments: argparse.Namespace, **suffixes: Sequence[str]) -> None:
    """The same for files by option, those that are asked for."""
    for name, ends in suffixes.items():
        path = getattr(arguments, name)
        if path is not None:
            check_file(option_of(name), path, ends)


def write_files(
    arguments: argparse.Namespace, stream: TextIO | None = None, /, **writers: Write
) -> None:
    """Write the files asked for, by option, and say so on ``stream``.

    That is stdout, or stderr where stdout has JSON. One that cannot be written stops no other.
    Raises ``ArgumentError`` for those after the last.
    """
    usual = sys.stderr if getattr(arguments, "json", False) else sys.stdout
    stream = stream or usual
    failures = []
    for name, write in writers.items():
        path = getattr(arguments, name)
        if path is None:
            continue
        try:
            about = write(path)
        except (NpusimError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            failures.append(f"{option_of(name)} {path} was not written: {why}")
        else:
            print(f"wrote {shown(str(path))}{f': {about}' if about else ''}", file=stream)
    stream.flush()
    if failures:
        raise ArgumentError("; ".join(failures))


def saying(about: str, write: Callable[..., None], *arguments: Any, **keywords: Any) -> Write:
    """A writer of a file that returns ``about``, what is said of it.

    ``write`` takes the path, and the ``arguments`` and ``keywords`` behind it.
    """

    def write_and_say(path: Path) -> str:
        write(path, *arguments, **keywords)
        return about

    return write_and_say


def option_of(name: str) -> str:
    """The spelling of an option on a command line."""
    return "--" + name.replace("_", "-")


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: int | Collection[int]
) -> None:
    """Print a table on stdout; ``left`` says which columns are text (``results.lines``).

    It is made to fit the terminal; what goes to a file or a pipe, 80 columns (or ``COLUMNS``).
    """
    print("\n".join(lines.table(head, rows, left, terminal_width())))


def terminal_width() -> int:
    """Columns of the terminal, 80 where there is none (or ``COLUMNS``)."""
    return shutil.get_terminal_size().columns


def print_result(result: Any, as_json: bool) -> None:
    """Print what a result says, as JSON or as text."""
    if as_json:
        print_json(result.to_json())
    else:
        sys.stdout.write(result.text())


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on stdout, and nothing else."""
    print(json.dumps(value, indent=2, allow_nan=False))
