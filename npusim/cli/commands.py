"""Every command by name, and its module, which is imported only when a line names it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

from npusim.cli.parser import Parser

#: What each command does. The module of a command has its name: ``npusim.cli.run``.
COMMANDS: Mapping[str, str] = {
    "run": "simulate one operator call and report its time and traffic",
    "explain": "say why a call takes its time, and what would make it shorter",
    "bound": "say how fast a call can be at most, and what is left to gain",
    "compare": "say what differs between two calls in time, waits and traffic",
    "gate": "fail where a revision made calls or networks slower",
    "tune": "find the fastest tiling of a kernel, and prove that it is",
    "net": "time the backward pass of a network, layer by layer",
    "sweep": "measure a network or an operator over many designs",
    "explore": "find the designs that none beats in time, energy and area",
    "play": "move figures of a device, and see a network's time",
    "validate": "simulate measured kernels and calls, and report the error",
    "fit": "fit the figures of a device to a profile of the chip",
    "devices": "list the devices (TFLOPS: fp16), or show every figure of one",
    "ops": "list the operators and the devices they run on",
    "cache": "show what is kept between runs, or forget it",
    "workloads": "list the workloads, or the layers of one",
    "completion": "print what a shell needs to complete npusim's commands",
}


class Command(Protocol):
    """The module of a command. One may also have ``arrange(words)``, which sorts its line."""

    def add_arguments(self, parser: Parser) -> None:
        """Declare the arguments that it takes."""

    def execute(self, arguments: argparse.Namespace) -> int | None:
        """Run it and return its exit status, None for 0."""


def command_module(name: str) -> Command:
    """The module of a command."""
    return cast(Command, import_module(f"npusim.cli.{name}"))


def arranged_line(name: str, words: Sequence[str]) -> list[str]:
    """A line of a command as its parser takes it."""
    arrange = getattr(command_module(name), "arrange", list)
    line: list[str] = arrange(words)
    return line
