"""The argument parser of every command, and the types of its arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from npusim.errors import ArgumentError
from npusim.yamltree import suggest

#: (before, after) per spatial dimension.
Sides = tuple[tuple[int, int], ...]

#: Spatial dimensions of the largest problems.
MOST_DIMS = 3

_OPTION = re.compile(r"--[a-z][a-z-]*")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``ArgumentError``, with the nearest word suggested.

    Options cannot be abbreviated: scripts must not break when another option is added.
    """

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Raise ``ArgumentError`` where argparse would print the usage and exit."""
        raise ArgumentError(f"{message}; see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The one hook argparse has for choices; commands and options both come through it.
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"unknown {value!r}{_near(str(value), choices)}")

    def reject(self, extras: Iterable[str]) -> None:
        """Raise ``ArgumentError`` for the first of ``extras``, what nobody recognised."""
        for extra in extras:
            word = extra.partition("=")[0]
            known = sorted(set(_OPTION.findall(self.format_usage())))
            begun = [option for option in known if option.startswith(word)]
            near = suggest(word, known)
            if begun and word.startswith("--"):  # cut short, as argparse itself would allow
                near = f"; did you mean {' or '.join(map(repr, begun))}?"
            self.error(f"unrecognized argument {extra!r}{near if 'did you mean' in near else ''}")


def add_show(parser: Parser, about: str, what: str) -> Parser:
    """Add the action ``show NAME`` to a command that lists things; ``what`` may be named."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    show: Parser = actions.add_parser("show", help=about, description=about)
    show.add_argument("name", metavar="NAME", help=f"{what}, or a file ending in .yaml")
    # Suppressed, or these defaults would overwrite what stood before the word "show".
    for option, text in (("--json", "print JSON"), ("--debug", "show the traceback of an error")):
        show.add_argument(
            option, action="store_true", default=argparse.SUPPRESS, help=f"{text} (default: no)"
        )
    show.set_defaults(leaf=show)
    return show


def _near(word: str, known: list[str]) -> str:
    """The end of an "unknown" message; choices are short lists, so they are always told."""
    near = suggest(word, known)
    return near if "known" in near else f"{near} (known: {', '.join(known)})"


def integer(least: int) -> Callable[[str], int]:
    """A reader of one integer of at least ``least``."""

    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected an integer of at least {least}, got {text!r}"
            )
        return int(text)

    return read


def sizes(least: int) -> Callable[[str], tuple[int, ...]]:
    """A reader of one to three integers of at least ``least``, such as ``14x14``."""

    def read(text: str) -> tuple[int, ...]:
        parts = text.split("x")
        good = all(_NUMBER.fullmatch(part) and int(part) >= least for part in parts)
        if len(parts) > MOST_DIMS or not good:
            raise argparse.ArgumentTypeError(
                "expected one number, HxW such as 3x5 or DxHxW such as 2x3x5, each at least "
                f"{least}, got {text!r}"
            )
        return tuple(map(int, parts))

    return read


def padding(text: str) -> int | Sides:
    """One number for all sides, (before, after) per dimension of ``1x2`` or of ``U,D,L,R``."""
    good = all(_NUMBER.fullmatch(part) for part in re.split("[x,]", text))
    sides = text.split("," if "," in text else "x")
    count = len(sides) if "," in text else 2 * len(sides)
    if not good or ("x" in text and "," in text) or count not in (2, 4, 6):
        raise argparse.ArgumentTypeError(
            "expected one number for all sides, HxW such as 1x2, or all sides U,D,L,R such as "
            f"1,1,0,0, got {text!r}"
        )
    values = [int(side) for side in sides]
    if len(values) == 1:
        return values[0]
    if count > len(values):  # one per dimension
        return tuple((value, value) for value in values)
    return tuple(zip(values[::2], values[1::2], strict=True))


def assignment(text: str) -> tuple[str, str]:
    """(name, value) of ``name=value``."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
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
