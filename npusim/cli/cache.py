"""``npusim cache``: what is kept between runs, and how to be rid of it."""

from __future__ import annotations

import argparse
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.base.resources import user_cache
from npusim.base.yamltree import suggest
from npusim.cli.files import print_json, print_table
from npusim.cli.parser import Parser
from npusim.cli.shared import add_debug_option, add_json_option
from npusim.machine.timing.fast import library
from npusim.results.facts.number_text import bytes_text
from npusim.reuse.store import KINDS, MOST_BYTES, Store, files_of, opened, usual_file

#: Compiled code, which has no store but folders of the user's cache.
_CODE = "compiled"


def add_arguments(parser: Parser) -> None:
    """Declare ``cache``."""
    parser.epilog = """\
examples:
  npusim cache info
  npusim cache clear sweeps"""
    parser.add_commands("action", title="actions")
    info = parser.add_command("info", "what is kept, and where")
    add_json_option(info, "print JSON (default: no)")
    clear = parser.add_command("clear", "forget it")
    names = ", ".join((*KINDS, _CODE))
    clear.add_argument("names", nargs="*", metavar="NAME", help=f"of {names} (default: all)")
    for action in (info, clear):
        add_debug_option(action)
        action.set_defaults(leaf=action)


def execute(arguments: argparse.Namespace) -> None:
    """Print what is kept, or forget it."""
    if arguments.action == "clear":
        _clear(arguments.names)
        return
    rows = [*map(_row, (*KINDS, _CODE))]
    if getattr(arguments, "json", False):
        print_json(rows)
        return
    columns: Mapping[str, Callable[[dict[str, Any]], str]] = {
        "name": lambda row: row["name"],
        "holds": lambda row: row["holds"],
        "count": lambda row: f"{row['count']:,}",
        "size": lambda row: bytes_text(row["bytes"]),
        "at most": lambda row: bytes_text(row["most_bytes"]) if row["most_bytes"] else "-",
        "file": lambda row: Path(row["place"]).name if row["name"] != _CODE else f"{_CODE}-*",
    }
    print_table([*columns], [[cell(row) for cell in columns.values()] for row in rows], (0, 1, 5))
    print(f"in {user_cache()}")
    engine = library.found()
    if engine is not None:
        print(f"the engine that runs is {engine}")
    if (folder := library.folder().parent) != user_cache():
        print(f"code is compiled into {folder}")


def _row(name: str) -> dict[str, Any]:
    """The row of a store, or of compiled code."""
    if name == _CODE:
        holds = "compiled code, a folder per version"
        most = 0
        place = library.folder().parent
        folders = _code()
        files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
        count = len(folders)
    else:
        holds = KINDS[name]
        most = MOST_BYTES
        place = usual_file(name)
        count = 0
        if place.exists():
            with opened("", name) as store:
                count = len(store)
        files = files_of(place)
    size = sum(file.stat().st_size for file in files)
    facts = {"name": name, "holds": holds, "count": count, "bytes": size}
    return {**facts, "most_bytes": most, "place": str(place)}


def _code() -> list[Path]:
    """The folders of compiled code: where it is compiled, and of the user's cache."""
    places = {user_cache(), library.folder().parent}
    paths = [path for place in places for path in place.glob(f"{_CODE}-*")]
    return sorted(path for path in paths if path.is_dir() and any(path.iterdir()))


def _clear(names: list[str]) -> None:
    """Forget the stores called ``names``, or all."""
    stores = (*KINDS, _CODE)
    for name in names:
        if name not in stores:
            raise ArgumentError(f"unknown store {name!r}{suggest(name, stores)}")
    for name in names or stores:
        if name == _CODE:
            folders = _code()
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            print(f"{name}: removed {len(folders)}")
        elif usual_file(name).exists():
            _empty(name)
        else:
            print(f"{name}: nothing is kept")


def _empty(name: str) -> None:
    """Forget what a store has; one that cannot be read is removed."""
    try:
        with Store(usual_file(name), KINDS[name]) as store:
            print(f"{name}: removed {store.clear():,}")
    except (ArgumentError, sqlite3.Error) as error:
        for part in files_of(usual_file(name)):
            part.unlink()
        print(f"{name}: removed the file ({error.__cause__ or error})")
