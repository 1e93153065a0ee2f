"""The argument parser of every command: its refusals, its help, and the commands below it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import nearest, suggest

T = TypeVar("T")

#: A long option as a word of a line.
OPTION = re.compile(r"--[a-z][a-z-]*")

#: Which program this is: the CANN toolkit has a command of the same name.
IDENTITY = (
    "this is the npusim of the Python package, also installed as npusim-py, not the CANN toolkit's"
)

#: The action of commands that list things.
SHOW = "show"

#: Options that print something and end the program, whatever stands behind them.
_ENDING = ("-h", "--help", "--version")

#: Columns of a help.
_WIDTH = 80


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``ArgumentError``, with the nearest word suggested.

    Options cannot be abbreviated: scripts must not break when another option is added. ``line`` has
    the words of the line that the parser is made for: a command with many commands below it
    declares the options of those that the line names.
    """

    #: Options that other commands take, with the names of these: for errors.
    elsewhere: Callable[[], Mapping[str, Sequence[str]]] = staticmethod(dict)

    #: The end of errors of this parser: which program it belongs to.
    identity = ""

    #: The commands below this one, and how its help calls one of them.
    _commands: Any = None
    _command_metavar = ""

    def __init__(self, *, line: Sequence[str] = (), **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)
        self.line = line

    def add_commands(self, dest: str, *, title: str, required: bool = False) -> None:
        """Let commands stand below this one; the name of the one chosen is argument ``dest``."""
        self._command_metavar = dest.upper()
        self._commands = self.add_subparsers(
            dest=dest, metavar=self._command_metavar, title=title, required=required
        )

    def add_command(self, name: str, about: str, description: str | None = None) -> Parser:
        """Add a command below this one; ``about`` stands in the list of commands."""
        command: Parser = self._commands.add_parser(
            name, help=about, description=description, line=self.line
        )
        return command

    @property
    def commands(self) -> Mapping[str, Parser]:
        """The commands below this one by name."""
        return {} if self._commands is None else self._commands.choices

    def format_help(self) -> str:
        """The help, with lines of examples folded as a shell reads them."""
        if self.epilog:
            lines = re.sub(r" \\\n +", " ", self.epilog).split("\n")
            self.epilog = "\n".join(part for line in lines for part in _folded(line))
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise ``ArgumentError`` where argparse would print the usage and exit."""
        which = f"; {self.identity}" if self.identity else ""
        raise ArgumentError(f"{message}{which}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The arguments and the words that nobody knows; an unknown command is refused first."""
        if self._commands is not None and args is not None:
            self._refuse_unknown_command(args)
        return super().parse_known_args(args, namespace)

    def _refuse_unknown_command(self, words: Sequence[str]) -> None:
        """Raise ``ArgumentError`` unless the first word that is no option is a command."""
        for word in words:
            if word in _ENDING:
                return
            if not word.startswith("-"):
                break
        else:
            return
        if word in self.commands:
            return
        names = list(self.commands)
        way_out = _nearest_choice(word, names)
        if names == [SHOW] and not nearest(word, names):
            way_out = f"{way_out}; did you mean '{self.prog} {SHOW} {word}'?"
        self.error(f"argument {self._command_metavar}: unknown {word!r}{way_out}")

    def reject(self, extras: Iterable[str]) -> None:
        """Raise ``ArgumentError`` for the first of ``extras``, the words that nobody knows."""
        for extra in extras:
            word = extra.partition("=")[0]
            options = sorted(set(OPTION.findall(self.format_usage())))
            others = self.elsewhere()
            if word in others:
                owners = ", ".join(others[word])
                self.error(f"{word} is an option of {owners}; this command has none of that name")
            longer = [option for option in options if option.startswith(word)]
            near = suggest(word, options)
            if longer and word.startswith("--"):  # cut short, as argparse itself would allow
                near = f"; did you mean {' or '.join(map(repr, longer))}?"
            if "did you mean" in near:
                self.error(f"unrecognized argument {extra!r}{near}")
            which = "" if self.identity else f"; {IDENTITY}"  # perhaps another program's option
            self.error(f"unrecognized argument {extra!r}{which}")


def _folded(line: str) -> list[str]:
    """Lines of 80 columns at most; a command goes on in the next one as a shell has it."""
    indent = " " * (len(line) - len(line.lstrip()))
    is_command = line.startswith("  npusim ")
    continued = f"{indent}    " if is_command else indent
    limit = _WIDTH - 2 if is_command else _WIDTH  # a command goes on behind a backslash
    folded = []
    while len(line) > _WIDTH:
        end = line.rfind(" ", len(continued) + 1, limit + 1)
        if is_command:  # an option stays with its value
            option = line.rfind(" --", len(continued) + 1, limit + 1)
            end = option if option > 0 else end
        if end < 0:
            break
        folded.append(f"{line[:end]} \\" if is_command else line[:end])
        line = continued + line[end + 1 :]
    return [*folded, line]


# -- readers of values -------------------------------------------------------------------------


def reader(read: Callable[[str], T]) -> Callable[[str], T]:
    """A reader of values as argparse takes it as ``type``.

    The ``ArgumentError`` of ``read`` becomes argparse's error for a value, which keeps its words.
    """

    def read_value(text: str) -> T:
        try:
            return read(text)
        except ArgumentError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_value


def choice(words: Iterable[str]) -> Callable[[str], str]:
    """A reader of one of ``words``, whose error suggests the nearest.

    An option also has the words as ``choices``, which the help and the shell show.
    """
    choices = [str(word) for word in words]

    def read_word(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"unknown {text!r}{_nearest_choice(text, choices)}")
        return text

    return read_word


def _nearest_choice(word: str, choices: list[str]) -> str:
    """The end of an error about an unknown word: the nearest one, and the short list."""
    near = suggest(word, choices)
    return near if "known" in near else f"{near} (known: {', '.join(choices)})"


def _assignment(text: str) -> tuple[str, str]:
    """(name, value) of ``name=value``."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ArgumentError(f"expected NAME=VALUE, got {text!r}")
    return name.strip(), value.strip()


#: Reads (name, value) of ``name=value``.
ASSIGNMENT = reader(_assignment)


# -- values of parsed arguments ----------------------------------------------------------------


def collect(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The assignments of a repeated ``option`` by name; one given twice is an error."""
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise ArgumentError(
                f"{option} gives {name} twice, {values[name]!r} and {value!r}; keep one of them"
            )
        values[name] = value
    return values


def picked(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The values of the arguments called ``names``, as keywords for what takes them."""
    return {name: getattr(arguments, name) for name in names}
