"""The argument parser of every command, and the types of its arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest

OPTION = re.compile(r"--[a-z][a-z-]*")


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``ArgumentError``, with the nearest word suggested.

    Options cannot be abbreviated: scripts must not break when another option is added.
    """

    #: Options that others take, with the names of these: for errors.
    elsewhere: Callable[[], Mapping[str, Sequence[str]]] = staticmethod(dict)

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
        raise ArgumentError(f"{message}; see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The one hook argparse has for choices; commands and options both come through it.
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"unknown {value!r}{_near(str(value), choices)}")

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
            self.error(f"unrecognized argument {extra!r}{near if 'did you mean' in near else ''}")


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
