"""Options that several commands have: each is declared here, once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Protocol

from npusim.cli.completion import complete_with, figure_names
from npusim.cli.parser import ASSIGNMENT, SHOW, Parser, collect
from npusim.cli.readers import COUNT


class Group(Protocol):
    """A parser, or a group of its options under a title of their own."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Declare an option."""


# -- options of devices ---------------------------------------------------------------------------


def add_set_option(group: Group, about: str) -> None:
    """Declare the figures of a device that are changed."""
    option = group.add_argument(
        "--set", type=ASSIGNMENT, action="append", default=[], metavar="PATH=VALUE", help=about
    )
    complete_with(option, figure_names)


def changed_figures(arguments: argparse.Namespace) -> dict[str, str]:
    """The figures that --set changes, as texts by their paths; one given twice is an error."""
    return collect("--set", arguments.set)


# -- processes ------------------------------------------------------------------------------------


def add_jobs_option(group: Group, about: str) -> None:
    """Declare the number of processes; ``about`` says what they do."""
    group.add_argument(
        "--jobs",
        type=COUNT,
        metavar="N",
        help=f"processes that {about} (default: one per processor, if the work is worth their "
        "start)",
    )


# -- what is printed and written -----------------------------------------------------------------


def add_json_option(
    group: Group,
    about: str = "print the result as JSON, nothing else, on stdout (default: a text report)",
) -> None:
    """Declare --json."""
    group.add_argument("--json", action="store_true", help=about)


def add_debug_option(parser: Parser) -> None:
    """Declare --debug of a command below another.

    It has no default, which would overwrite what stood before the command.
    """
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show the traceback of an error (default: no)",
    )


def add_file_option(group: Group, name: str, about: str) -> None:
    """Declare an option that names a file."""
    group.add_argument(name, type=Path, metavar="FILE", help=about)


# -- commands that list things -------------------------------------------------------------------


def add_show_command(parser: Parser, about: str, name_help: str) -> Parser:
    """Declare --json of a command that lists things, and add its action ``show NAME``.

    ``about`` says what the action does, ``name_help`` what may be named.
    """
    add_json_option(parser, "print JSON (default: a table)")
    parser.add_commands("action", title="actions")
    show = parser.add_command(SHOW, about, about)
    show.add_argument("name", metavar="NAME", help=name_help)
    show.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,  # as of --debug
        help="print JSON (default: no)",
    )
    add_debug_option(show)
    show.set_defaults(leaf=show)
    return show
