"""The options of commands: ``options.yaml`` has them as a table, and this declares them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from npusim.base.yamltree import Node, load_tree
from npusim.cli.parser import Parser, assignment

#: What reads a value, and how the help calls it where the table does not say.
Reader = tuple[Callable[[str], Any], str | None]

_PLAIN: Mapping[str, Reader] = {
    "file": (Path, "FILE"),
    "int": (int, "N"),
    "float": (float, None),
    "assignment": (assignment, None),
}

#: What an option may state besides what is told to argparse as it is.
_READ = ("takes", "choices", "default", "required", "repeated", "help")


@cache
def _sections() -> Mapping[str, Node]:
    return load_tree(files("npusim.cli") / "options.yaml", "options.yaml").mapping()


@cache
def _readers() -> Mapping[str, Reader]:
    """The readers that commands without them do not wait for."""
    from npusim.base.dtypes import dtype  # noqa: PLC0415
    from npusim.device.catalog import read_cores  # noqa: PLC0415
    from npusim.ops.options import READERS  # noqa: PLC0415

    return {
        **{name: (READERS[name], "N") for name in ("integer", "count")},
        **{name: (READERS[name], None) for name in ("sizes", "cube math type")},
        "cores": (read_cores, None),
        "dtype": (dtype, None),
    }


def add_options(parser: Parser, section: str, /, **given: Any) -> None:
    """Declare the options of a section of the table, in groups that are there or are made.

    ``given`` are the readers, the choices and the words of its texts that the section names.
    """
    given["processors"] = os.cpu_count() or 1
    for title, group in _sections()[section].mapping().items():
        if title == "epilog":
            parser.epilog = group.text()
            continue
        add = _group(parser, title.format(**given)).add_argument
        for name, node in group.mapping().items():
            stated = {key: str(one.value) for key, one in node.mapping().items()}
            option = add(name, **_settings(stated, given))
            # Python 3.10 appends a default of its own to a help that it is given.
            option.help = stated["help"].format(**given)


def _group(parser: Parser, title: str) -> Any:
    """What has the arguments of a title; the parser itself those of the command."""
    if title == "command":
        return parser
    made = [group for group in parser._action_groups if group.title == title]
    return made[0] if made else parser.add_argument_group(title)


def _settings(stated: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of ``add_argument`` for an option."""
    found: dict[str, Any] = {key: text for key, text in stated.items() if key not in _READ}
    if "default" in stated:
        found["default"] = stated["default"].format(**given)
        if found["default"] == argparse.SUPPRESS:  # argparse looks for this very object
            found["default"] = argparse.SUPPRESS
    if stated.get("required", "").format(**given) == "yes":
        found["required"] = True
    if "choices" in stated:
        words = stated["choices"]
        found["choices"] = given.get(words) or tuple(words.split(", "))
    takes = stated.get("takes")
    if takes == "yes or no":
        return {"action": argparse.BooleanOptionalAction, "default": "default" in stated or None}
    if takes is not None:
        own = (given[takes], None) if takes in given else _PLAIN.get(takes)
        read, metavar = own or _readers()[takes]
        found = {"type": read, "metavar": metavar, **found}
    if stated.get("repeated"):
        found |= {"action": "append", "default": []}
    elif not {"type", "metavar", "choices"} & set(found):
        found["action"] = "store_true"
    return found


def add_machine(parser: Parser, *, usual: str = "", required: bool = False) -> None:
    """Declare the device, its figures and its cores; ``usual`` is the device without --device."""
    said = f"default: {usual}" if usual else "required, no default"
    add_options(parser, "machine", usual=said, required="yes" if required else "")


def add_simulation(parser: Parser) -> None:
    """Declare how a call is simulated."""
    from npusim.call.options import Options  # noqa: PLC0415 - only commands with calls need it

    usual = {name: getattr(Options, name) for name in ("launch", "start", "engine")}
    add_options(parser, "simulation", **usual)


def add_show(parser: Parser, about: str, what: str) -> Parser:
    """Add the action ``show NAME`` to a command that lists things; ``what`` may be named."""
    add_options(parser, "list")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    show: Parser = actions.add_parser("show", help=about, description=about)
    add_options(show, "show", what=what)
    add_options(show, "debug")
    show.set_defaults(leaf=show)
    return show
