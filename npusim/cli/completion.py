"""``npusim completion``: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from npusim.cli.parser import Parser, choice

#: Shells that can be taught.
SHELLS = ("bash", "zsh", "fish")

#: Set by the shell while it asks for completions, and the line it has so far.
ASKED, LINE = "_ARGCOMPLETE", "COMP_LINE"

#: The device whose figures are listed where a line names none.
_USUAL_DEVICE = "ascend910b2"


def add_arguments(parser: Parser) -> None:
    """Declare ``completion``."""
    parser.epilog = """\
add to the shell's start file:
  bash  eval "$(npusim completion bash)"
  zsh   eval "$(npusim completion zsh)"
  fish  npusim completion fish | source"""
    parser.add_argument(
        "shell", type=choice(SHELLS), choices=SHELLS, metavar="SHELL", help="bash, zsh or fish"
    )


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

    argcomplete.autocomplete(parser_of(os.environ.get(LINE, "").split()))


# -- values of options, for the shell ------------------------------------------------------------

#: Lists the values of an option that begin as ``prefix``: argcomplete drops the others.
Completer = Callable[..., list[str]]


def complete_with(action: argparse.Action, completer: Completer) -> None:
    """Let a shell complete the value of an option by ``completer``."""
    action.completer = completer  # type: ignore[attr-defined] # argcomplete looks for it


def device_names(**_: object) -> list[str]:
    """The devices that ship."""
    from npusim.machine.device.catalog import devices  # noqa: PLC0415 - no other command waits

    return list(devices())


def workload_names(**_: object) -> list[str]:
    """The workloads that ship."""
    from npusim.workloads import workloads  # noqa: PLC0415

    return list(workloads())


def layer_names(prefix: str, **_: object) -> list[str]:
    """The workloads that ship, or the layers of the one that is named."""
    from npusim.workloads import load_workload, workloads  # noqa: PLC0415

    workload, slash, _layer = prefix.partition("/")
    if not slash or workload not in workloads():
        return [f"{name}/" for name in workloads()]
    return [f"{workload}/{layer.name}" for layer in load_workload(workload).layers]


def figure_names(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """The figures of the device that is named."""
    from npusim.machine.device.catalog import load_device  # noqa: PLC0415
    from npusim.machine.device.config import figures  # noqa: PLC0415

    name = getattr(parsed_args, "device", None) or _USUAL_DEVICE
    return [f"{path}=" for path in figures(load_device(name))]
