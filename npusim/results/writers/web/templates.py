"""The templates of pages with what they ask for; the only module that imports Jinja."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from npusim.results.shown.figure import Figure, LineMark
from npusim.results.writers.web.files import file_text

if TYPE_CHECKING:
    from jinja2 import Environment

#: Rows that a table shows before the rest is asked for.
FOLD = 25


def macro_text(macro: str, *arguments: Any) -> str:
    """A part of the page of a game, by the name of its macro in ``told.html``."""
    module = environment().get_template("told.html").module
    return str(getattr(module, macro)(*arguments))


@cache
def environment() -> Environment:
    """The templates of this folder."""
    from jinja2 import Environment, FunctionLoader  # noqa: PLC0415 - pages are made when asked for

    templates = Environment(
        loader=FunctionLoader(file_text),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(own=file_text, fold=FOLD, keys=_keys, kind=_kind)
    templates.filters.update(inline=_inline_json, dashes=_dashes)
    return templates


def _kind(part: Any) -> str:
    """The name of the class of a part of a report."""
    return type(part).__name__


def _inline_json(value: Any) -> str:
    """JSON that cannot end the script element it is in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _keys(figure: Figure) -> Iterator[tuple[str, list[Any]]]:
    """Titles and entries of the keys of a figure: its marks that have names, then the others."""
    named = [mark for mark in figure.marks if mark.name]
    if named:
        yield "", named
    for key in figure.keys:
        yield key.title, list(key.entries)


#: Dashes of lines by matplotlib's name of them, as SVG has them.
_DASHES = {"--": "5 3", ":": "2 3", "-.": "6 2 2 2"}


def _dashes(line: Any) -> str:
    """The dashes of a line in a key, as SVG has them; "" where it is no dashed line."""
    return _DASHES.get(line.dash, "") if isinstance(line, LineMark) else ""
