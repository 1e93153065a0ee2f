"""``npusim explain``: why a call takes its time, the critical path of its kernels."""

from __future__ import annotations

import argparse
import sys

from npusim.cli import calls
from npusim.cli.files import print_result
from npusim.cli.options import Parser, add_options
from npusim.results.writers.progress import ProgressBar

#: A line with the operator right behind "explain", where it may also stand later.
arrange = calls.arrange


def add_arguments(parser: Parser) -> None:
    """Declare ``explain`` and a command for every operator below it."""
    add_options(parser, "about explain")
    calls.add_calls(parser, "explain", numbers=False)


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
