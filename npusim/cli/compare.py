"""``npusim compare``: two calls side by side, as files of results or as lines of ``npusim run``.

Files of networks, which ``npusim net --json`` writes, are compared layer by layer.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from npusim.base.errors import ArgumentError
from npusim.cli import calls
from npusim.cli.files import (
    PAGES,
    PLOTS,
    TO_OPEN,
    TRACES,
    check_files,
    print_result,
    saying,
    write_files,
)
from npusim.cli.main import parsed
from npusim.cli.parser import Parser
from npusim.cli.shared import add_file_option, add_json_option
from npusim.results import Result
from npusim.results.comparison import Comparison, compare
from npusim.results.facts.differences import facts_of
from npusim.results.facts.network_comparison import is_network
from npusim.results.network_comparison import NetworkComparison, compare_networks
from npusim.results.writers.progress import ProgressBar

#: Files that can be written, by the name of their option: their suffixes.
_FILES: dict[str, Sequence[str]] = {"plot": PLOTS, "report": PAGES, "trace": TRACES}


def add_arguments(parser: Parser) -> None:
    """Declare ``compare``."""
    parser.epilog = """\
examples:
  npusim compare "matmul --m 512 --k 512 --n 512 --device ascend910b2" \\
      "--device ascend910b3"
  npusim compare before.json after.json --plot change.png
  npusim net resnet50 --json > one.json
  npusim net resnet50 --device ascend910b4 --json > other.json
  npusim compare one.json other.json
  npusim net resnet50 --mode eager --json > eager.json
  npusim net resnet50 --mode graph --json > graph.json
  npusim compare eager.json graph.json --report modes.html
"""
    parser.add_argument(
        "a",
        metavar="A",
        help="a file that 'npusim run --json' wrote, or both sides 'npusim net --json'; or, "
        "quoted, what follows 'npusim run' on a command line",
    )
    parser.add_argument(
        "b",
        metavar="B",
        help="the same, or, quoted and beginning with --, options that come after those of A, such "
        'as "--tiling base_m=64,base_n=64,base_k=64" or "--device ascend910"',
    )
    add_json_option(
        parser, "print what differs as JSON, nothing else, on stdout (default: a text report)"
    )
    files = parser.add_argument_group("files to write")
    add_file_option(
        files,
        "--plot",
        "a figure of the kernels, layers or kinds of operations of both, or of what two modes "
        "launch, .png or .svg (default: none)",
    )
    add_file_option(files, "--report", "the whole comparison as one web page (default: none)")
    add_file_option(
        files,
        "--trace",
        "both timelines for ui.perfetto.dev, of lines only; .json.gz compresses it (default: none)",
    )


def arrange(words: Sequence[str]) -> list[str]:
    """A line in which B cannot be taken for an option, although it may begin like one."""
    return [f" {word}" if word.startswith("--") and " " in word.strip() else word for word in words]


def execute(arguments: argparse.Namespace) -> None:
    """Print what differs and write what is asked for."""
    check_files(arguments, **_FILES)
    networks = _networks(arguments)
    if networks is not None:
        print_result(networks, arguments.json)
        plot = saying("both networks", networks.save_plot)
        write_files(arguments, plot=plot, report=networks.report)
        return
    comparison = _compared(arguments)
    print_result(comparison, arguments.json)

    plot = saying("the kernels of both", comparison.save_plot)
    trace = saying(TO_OPEN, comparison.save_trace)
    write_files(arguments, plot=plot, report=comparison.report, trace=trace)


def _networks(arguments: argparse.Namespace) -> NetworkComparison | None:
    """The differences of two networks; None unless both sides are files of one."""
    sides = arguments.a.strip(), arguments.b.strip()
    if not all(_is_file(side) for side in sides):
        return None
    kinds = [is_network(facts_of(side, side)) for side in sides]
    if not any(kinds):
        return None
    if arguments.trace is not None:
        raise ArgumentError(
            f"--trace shows kernels of calls, and {sides[kinds.index(True)]} is a network; leave "
            "it out, or compare one of its layers, given as a line of npusim run"
        )
    return compare_networks(*sides)


def _compared(arguments: argparse.Namespace) -> Comparison:
    """Both sides; a line is simulated, for its time only."""
    a, b = arguments.a.strip(), arguments.b.strip()
    further = b.startswith("--")
    if further and _is_file(a):
        raise ArgumentError(
            f"B is {b!r}, options to be added to those of A, but A is the file {a}; give the whole "
            "line"
        )
    lines = a, f"{a} {b}" if further else b
    with ProgressBar() as progress:
        sides = [
            line if _is_file(line) else _simulated(line, arguments, progress) for line in lines
        ]
    return compare(*sides, labels=(a, b))


def _is_file(text: str) -> bool:
    return " " not in text.strip() and text.lower().endswith(".json")


def _simulated(line: str, arguments: argparse.Namespace, progress: ProgressBar) -> Result:
    """The result of a line of ``npusim run``."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ArgumentError(f"{line!r}: {error}; check its quotes") from error
    prepared = calls.prepare(parsed(["run", *words]), timing_only=True)
    return prepared.run(timeline=arguments.trace is not None, progress=progress)
