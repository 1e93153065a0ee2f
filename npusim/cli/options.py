"""The argument parser of every command, the types of its arguments, and its options.

``options.yaml`` has the options as a table.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import Node, load_tree, nearest, suggest

OPTION = re.compile(r"--[a-z][a-z-]*")

#: Which program this is: the CANN toolkit has a command of the same name.
IDENTITY = (
    "this is the npusim of the Python package, also installed as npusim-py, not the CANN toolkit's"
)


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``ArgumentError``, with the nearest word suggested.

    Options cannot be abbreviated: scripts must not break when another option is added.
    """

    #: Options that others take, with the names of these: for errors.
    elsewhere: Callable[[], Mapping[str, Sequence[str]]] = staticmethod(dict)

    #: Added to errors of this parser: which program it belongs to.
    identity = ""

    #: What is said below the help, where it takes time to find out.
    examples: Callable[[], str] | None = None

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def format_help(self) -> str:
        """The help, with the examples."""
        if self.examples is not None:
            self.epilog = self.examples()
        if self.epilog:
            lines = re.sub(r" \\\n +", " ", self.epilog).split("\n")
            self.epilog = "\n".join(part for line in lines for part in _folded(line))
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise ``ArgumentError`` where argparse would print the usage and exit."""
        which = f"; {self.identity}" if self.identity else ""
        raise ArgumentError(f"{message}{which}; see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The one hook argparse has for choices; commands and options both come through it.
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            way_out = _near(str(value), choices)
            if choices == [SHOW] and not nearest(str(value), choices):
                way_out += f"; did you mean '{self.prog} {SHOW} {value}'?"
            raise argparse.ArgumentError(action, f"unknown {value!r}{way_out}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # argparse has words of its own for errors of readers; theirs are better.
        read = self._registry_get("type", action.type, action.type)
        try:
            return read(arg_string)
        except ArgumentError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def reject(self, extras: Iterable[str]) -> None:
        """Raise ``ArgumentError`` for the first of ``extras``, what nobody recognised."""
        for extra in extras:
            word = extra.partition("=")[0]
            known = sorted(set(OPTION.findall(self.format_usage())))
            others = self.elsewhere()
            if word in others:
                owners = ", ".join(others[word])
                self.error(f"{word} is an option of {owners}; this command has none of that name")
            begun = [option for option in known if option.startswith(word)]
            near = suggest(word, known)
            if begun and word.startswith("--"):  # cut short, as argparse itself would allow
                near = f"; did you mean {' or '.join(map(repr, begun))}?"
            if "did you mean" in near:
                self.error(f"unrecognized argument {extra!r}{near}")
            which = "" if self.identity else f"; {IDENTITY}"  # perhaps another program's option
            self.error(f"unrecognized argument {extra!r}{which}")


def _folded(line: str) -> list[str]:
    """Lines of 80 columns at most; a command goes on in the next one as a shell has it."""
    indent = " " * (len(line) - len(line.lstrip()))
    command = line.startswith("  npusim ")
    later, most = (f"{indent}    ", 78) if command else (indent, 80)
    found = []
    while len(line) > 80:
        at = line.rfind(" ", len(later) + 1, most + 1)
        if command:  # an option stays with its value
            option = line.rfind(" --", len(later) + 1, most + 1)
            at = option if option > 0 else at
        if at < 0:
            break
        found.append(line[:at] + " \\" * command)
        line = later + line[at + 1 :]
    return [*found, line]


def _near(word: str, known: list[str]) -> str:
    """The end of an "unknown" message; choices are short lists, so they are always told."""
    near = suggest(word, known)
    return near if "known" in near else f"{near} (known: {', '.join(known)})"


def assignment(text: str) -> tuple[str, str]:
    """(name, value) of ``name=value``."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ArgumentError(f"expected NAME=VALUE, got {text!r}")
    return name.strip(), value.strip()


def collect(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The assignments of a repeated ``option`` by name; one given twice is an error."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise ArgumentError(
                f"{option} gives {name} twice, {found[name]!r} and {value!r}; keep one of them"
            )
        found[name] = value
    return found


def picked(arguments: argparse.Namespace, names: str) -> dict[str, Any]:
    """The values of options, ``names`` with spaces between, as keywords for what takes them."""
    return {name: getattr(arguments, name) for name in names.split()}


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
    from npusim.machine.device.catalog import read_cores  # noqa: PLC0415
    from npusim.ops.cube_math import read_cube_math_type  # noqa: PLC0415
    from npusim.ops.options import integer, sizes  # noqa: PLC0415

    return {
        "integer": (integer(0), "N"),
        "count": (integer(1), "N"),
        "sizes": (sizes(1), None),
        "cube math type": (read_cube_math_type, None),
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


#: The action of commands that list things.
SHOW = "show"


def add_show(parser: Parser, about: str, what: str) -> Parser:
    """Add the action ``show NAME`` to a command that lists things; ``what`` may be named."""
    add_options(parser, "list")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    show: Parser = actions.add_parser(SHOW, help=about, description=about)
    add_options(show, "show", what=what)
    add_options(show, "debug")
    show.set_defaults(leaf=show)
    return show
