"""``npusim explain``: why a call takes its time, the critical path of its kernels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from npusim.cli import calls
from npusim.cli.files import print_json
from npusim.cli.options import add_options
from npusim.cli.parser import Parser
from npusim.results.explanation import Explanation
from npusim.results.progress import ProgressBar


def add_arguments(parser: Parser) -> None:
    """Declare ``explain`` and a command for every operator below it."""
    parser.epilog = (
        "'npusim explain OPERATOR --help' lists the options of one.\n\nexample:\n"
        "  npusim explain matmul --m 33 --k 4096 --n 4096 --device ascend910b2\n"
    )
    calls.add_calls(parser, _add_extras, numbers=False)


def arrange(words: Sequence[str]) -> list[str]:
    """A line with the operator right behind "explain", where it may also stand later."""
    return calls.arrange("explain", words)


def _add_extras(leaf: Parser) -> None:
    add_options(leaf, "explain")


def execute(arguments: argparse.Namespace) -> int:
    """Print why the call takes its time; on a terminal with colours."""
    prepared = calls.prepare(arguments, timing_only=True)
    with ProgressBar() as progress:
        result = prepared.run(timeline=False, progress=progress)

        def tried(done: int, total: int) -> None:
            progress("what if", "figures", done, total)

        explanation = result.explain(what_if=arguments.what_if, progress=tried)
    if arguments.json:
        print_json(explanation.to_json())
    else:
        _show(explanation)
    return 0


def _show(explanation: Explanation) -> None:
    """As text, unless a terminal can show more."""
    if not sys.stdout.isatty():
        sys.stdout.write(explanation.text())
        return
    from rich.console import Console  # noqa: PLC0415 - what goes to a file does not wait for it

    Console(highlight=False).print(explanation)
