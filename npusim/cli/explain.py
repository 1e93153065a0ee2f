"""``npusim explain``: why a call takes its time, the critical path of its kernels."""

from __future__ import annotations

import argparse
import sys

from npusim.cli import call_options, calls
from npusim.cli.files import print_result
from npusim.cli.parser import Parser
from npusim.cli.shared import Group
from npusim.results.writers.progress import ProgressBar

#: A line with the operator right behind "explain", where it may also stand later.
arrange = call_options.arrange


def add_arguments(parser: Parser) -> None:
    """Declare ``explain`` and a command for every operator below it."""
    parser.epilog = """\
'npusim explain OPERATOR --help' lists the options of one.

example:
  npusim explain matmul --m 33 --k 4096 --n 4096 --device ascend910b2"""
    call_options.add_calls(parser, _add_options, numbers=False)


def _add_options(command: Parser, simulation: Group) -> None:
    call_options.add_needless_timing_only(simulation)
    simulation.add_argument(
        "--what-if",
        action=argparse.BooleanOptionalAction,
        help="simulate the call again with every figure its time rests on at half and at twice its "
        "value, and rank them by what they save (default: yes)",
    )
    # Set apart: Python before 3.13 appends a default that it is given to the help.
    command.set_defaults(what_if=True)


def execute(arguments: argparse.Namespace) -> None:
    """Print why the call takes its time; on a terminal with colours."""
    prepared = calls.prepare(arguments, timing_only=True)
    with ProgressBar() as progress:
        result = prepared.run(timeline=False, progress=progress)

        def tried(done: int, total: int) -> None:
            progress("what if", "figures", done, total)

        explanation = result.explain(what_if=arguments.what_if, progress=tried)
    if arguments.json or not sys.stdout.isatty():
        print_result(explanation, arguments.json)
    else:
        from rich.console import Console  # noqa: PLC0415 - what goes to a file does not wait for it

        Console(highlight=False).print(explanation)
