"""``npusim completion``: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from npusim.cli.options import Parser, add_options

#: Shells that can be taught.
SHELLS = ("bash", "zsh", "fish")

#: Set by the shell while it asks for completions, and the line it has so far.
ASKED, LINE = "_ARGCOMPLETE", "COMP_LINE"


def add_arguments(parser: Parser) -> None:
    """Declare ``completion``."""
    add_options(parser, "completion", shells=SHELLS)


def execute(arguments: argparse.Namespace) -> None:
    """Print the code that a shell reads."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - only this needs it

    sys.stdout.write(shellcode(["npusim"], shell=arguments.shell) + "\n")


def answer(parser_of: Callable[[list[str]], argparse.ArgumentParser]) -> None:
    """Tell a shell that asks what may follow its line, and leave the process.

    ``parser_of`` makes the parser of the line's words. Nothing happens where no shell asks.
    """
    if ASKED not in os.environ:
        return
    import argcomplete  # noqa: PLC0415

    parser = parser_of(os.environ.get(LINE, "").split())
    add_names(parser)
    argcomplete.autocomplete(parser)


def add_names(parser: argparse.ArgumentParser) -> None:
    """Let options be completed: devices, workloads and layers that ship, figures of a device."""
    from npusim.machine.device.catalog import devices, load_device  # noqa: PLC0415
    from npusim.machine.device.config import figures as figures_of  # noqa: PLC0415
    from npusim.workloads import load_workload, workloads  # noqa: PLC0415

    def layers(prefix: str, **_: object) -> list[str]:
        name, slash, _rest = prefix.partition("/")
        if not slash or name not in workloads():
            return [f"{one}/" for one in workloads()]
        return [f"{name}/{layer.name}" for layer in load_workload(name).layers]

    def figures(parsed_args: argparse.Namespace, **_: object) -> list[str]:
        name = getattr(parsed_args, "device", None) or "ascend910b2"
        return [f"{path}=" for path in figures_of(load_device(name))]

    known: dict[str, Callable[..., list[str]]] = {
        "device": lambda **_: list(devices()),
        "layer": layers,
    }
    known |= {"workload": lambda **_: list(workloads()), "set": figures, "vary": figures}
    for one in _parsers(parser):
        for action in one._actions:
            if action.dest in known:
                action.completer = known[action.dest]  # type: ignore[attr-defined]


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser and those of its commands."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action._get_subactions()  # operators are declared when they are listed
            for one in dict.fromkeys(action.choices.values()):
                found += _parsers(one)
    return found
