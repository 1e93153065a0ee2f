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
    call_options.add_calls(parser, _add_options, numbers=False, add_net=_add_net)


def _add_options(command: Parser, simulation: Group) -> None:
    call_options.add_needless_timing_only(simulation)
    _add_what_if(command, simulation)


def _add_net(command: Parser) -> None:
    """Declare the options of a step of a network."""
    from npusim.cli import net  # noqa: PLC0415 - calls do not wait for networks

    command.epilog = """\
example:
  npusim explain net resnet50 --mode graph --batch 32 --device ascend910b2 --no-what-if"""
    net.add_step(command)
    group = command.add_argument_group("explanation")
    _add_what_if(command, group)
    group.add_argument(
        "--alternatives",
        action="store_true",
        help="list what would shorten the step in place of why it takes so long: formats, each "
        "fusion, launches, cards, HBM and L2, tilings, other batches, each simulated by a whole "
        "new step (default: no)",
    )


def _add_what_if(command: Parser, group: Group) -> None:
    group.add_argument(
        "--what-if",
        action=argparse.BooleanOptionalAction,
        help="simulate it again with every figure its time rests on at half and at twice its "
        "value, and rank them by what they save (default: yes)",
    )
    # Set apart: Python before 3.13 appends a default that it is given to the help.
    command.set_defaults(what_if=True)


def execute(arguments: argparse.Namespace) -> None:
    """Print why the call, or the step, takes its time; of a call on a terminal with colours."""
    if arguments.operator == call_options.NET:
        _explain_step(arguments)
        return
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


def _explain_step(arguments: argparse.Namespace) -> None:
    """Print why a step takes its time."""
    from npusim.cli.net import refuse_partial, timed_step  # noqa: PLC0415

    with ProgressBar() as progress:
        result = timed_step(arguments, progress)
        if arguments.alternatives:
            from npusim.networks.run.alternatives import alternatives  # noqa: PLC0415

            found = alternatives(
                result, jobs=arguments.jobs, store=arguments.store, progress=progress
            )
            print_result(found, arguments.json)
            refuse_partial(result)
            return

        def tried(done: int, total: int) -> None:
            progress("what if", "operations", done, total)

        explanation = result.explain(what_if=arguments.what_if, progress=tried)
    print_result(explanation, arguments.json)
    refuse_partial(result)
