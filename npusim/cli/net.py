"""``npusim net``: the passes of a network, layer by layer."""

from __future__ import annotations

import argparse
import sys

from npusim.base.errors import ArgumentError
from npusim.call.options import Options
from npusim.cli.files import PAGES, PLOTS, check_files, print_result, write_files
from npusim.cli.options import add_machine, add_options, add_simulation
from npusim.cli.parser import Parser, collect, picked
from npusim.device.catalog import load_device
from npusim.limits.table import RULES
from npusim.networks.network import GRADIENTS, PASSES, network
from npusim.ops.cube_math import CUBE_MATH_TYPE
from npusim.results.progress import ProgressBar, ProgressLines

#: Options that are keywords of what times a network, and those that are keywords of a call.
TIMED = "batch dtype passes gradients cube_math_type every_input"
OPTIONS = f"{TIMED} elementwise cores rules engine launch start jobs store"


def add_arguments(parser: Parser) -> None:
    """Declare ``net``."""
    add_network(parser)
    add_machine(parser, required=True)
    add_options(parser, "rules", rules=RULES, usual=Options.rules)
    add_simulation(parser)
    add_options(parser, "net")


def add_network(parser: Parser, batch: int = 1) -> None:
    """Declare the network and what of a training step is timed, by default of ``batch`` images."""
    names, types = ",".join(GRADIENTS), CUBE_MATH_TYPE.help
    add_options(
        parser,
        "network",
        batch=batch,
        passes=PASSES,
        gradients=_gradients,
        names=names,
        cube_math_type=types,
    )


def _gradients(text: str) -> tuple[str, ...]:
    words = text.split(",")
    if len(set(words)) != len(words) or not set(words) <= set(GRADIENTS):
        raise ArgumentError(f"expected at least one of {','.join(GRADIENTS)}, got {text!r}")
    return tuple(words)


def execute(arguments: argparse.Namespace) -> int:
    """Print what could be simulated; raise ``ArgumentError`` after it if layers are missing."""
    check_files(arguments, csv=(".csv",), plot=PLOTS, report=PAGES)
    with ProgressBar() if sys.stderr.isatty() else ProgressLines() as progress:
        result = network(
            arguments.workload,
            arguments.input_shape,
            device=load_device(arguments.device, collect("--set", arguments.set)),
            **picked(arguments, OPTIONS),
            progress=progress,
        )
    if arguments.range:
        _ = result.time_range_us  # reports show it once it is known
    print_result(result, arguments.json)
    write_files(arguments, csv=result.write, plot=result.save_plot, report=result.report)
    if result.failed:
        names = ", ".join(one.layer.name for one in result.failed)
        raise ArgumentError(
            f"{len(result.failed)} of {len(result.timed)} layers were not simulated: {names}; "
            "the totals are partial"
        )
    return 0
