"""``npusim bound``: what no program for a call can beat, and no schedule of its kernels."""

from __future__ import annotations

import argparse
from typing import cast

from npusim.base.errors import ArgumentError, told_as
from npusim.base.quantities import parse_quantity
from npusim.cli import call_options, calls
from npusim.cli.files import print_result
from npusim.cli.parser import Parser
from npusim.cli.shared import Group, changed_figures
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.results.writers.progress import ProgressBar

#: A line with the operator right behind "bound", where it may also stand later.
arrange = call_options.arrange


def add_arguments(parser: Parser) -> None:
    """Declare ``bound`` and a command for every operator below it."""
    parser.epilog = """\
'npusim bound OPERATOR --help' lists the options of one.

example:
  npusim bound matmul --m 1024 --k 4096 --n 4096 --device ascend910b2 --measured 130us"""
    call_options.add_calls(parser, _add_options, numbers=False, add_net=_add_net)


def _add_options(command: Parser, simulation: Group) -> None:
    _add_measured(command)
    call_options.add_needless_timing_only(simulation)


def _add_net(command: Parser) -> None:
    """Declare the options of a step of a network."""
    from npusim.cli import net  # noqa: PLC0415 - calls do not wait for networks

    command.epilog = """\
example:
  npusim bound net resnet50 --mode graph --batch 32 --device ascend910b2 --measured 14ms"""
    net.add_step(command)
    _add_measured(command)


def _add_measured(command: Parser) -> None:
    command.add_argument_group("measured").add_argument(
        "--measured",
        metavar="TIME",
        help="a measured time, such as 123us: its share of the bounds, and what is left to gain "
        "(default: none)",
    )


def execute(arguments: argparse.Namespace) -> None:
    """Print the least time of the call, or of the step."""
    if arguments.operator == call_options.NET:
        _bound_step(arguments)
        return
    prepared = calls.prepare(arguments, timing_only=True)
    measured = _microseconds(arguments.measured, prepared.device)
    with ProgressBar() as progress:
        result = prepared.run(timeline=False, progress=progress)
    print_result(result.bound(measured), arguments.json)


def _bound_step(arguments: argparse.Namespace) -> None:
    """Print the least time of a step."""
    from npusim.cli.net import refuse_partial, timed_step  # noqa: PLC0415

    measured = _microseconds(
        arguments.measured, load_device(arguments.device, changed_figures(arguments))
    )
    with ProgressBar() as progress:
        result = timed_step(arguments, progress)
    print_result(result.bound(measured), arguments.json)
    refuse_partial(result)


def _microseconds(text: str | None, device: Device) -> float | None:
    """A measured time, None without one; ``ArgumentError`` if it is no duration."""
    if text is None:
        return None
    with told_as(ArgumentError, "--measured: "):
        return device.time_us(cast(int, parse_quantity(text, "duration", device.clock_hz)))
