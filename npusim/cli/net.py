"""``npusim net``: the passes of a network, layer by layer."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from npusim.call.options import Options
from npusim.cli.console import print_json
from npusim.cli.files import PAGES, PLOTS, check_file, write_files
from npusim.cli.options import add_machine, add_options
from npusim.cli.parser import Parser, collect
from npusim.device.catalog import load_device
from npusim.errors import ArgumentError
from npusim.limits.table import RULES
from npusim.network import GRADIENTS, PASSES, NetworkResult, network
from npusim.ops.cube_math import CUBE_MATH_TYPE
from npusim.results.progress import ProgressBar, ProgressLines

#: Every option that names a file: its suffixes.
_FILES = {"csv": (".csv",), "plot": PLOTS, "report": PAGES}


def add_arguments(parser: Parser) -> None:
    """Declare ``net``."""
    add_network(parser)
    add_machine(parser, required=True)
    add_options(parser, "rules", rules=RULES, usual=Options.rules)
    add_options(
        parser,
        "simulation",
        launch=Options.launch,
        start=Options.start,
        engine=Options.engine,
    )
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
    wanted = {name: path for name in _FILES if (path := getattr(arguments, name)) is not None}
    for name, path in wanted.items():
        check_file(f"--{name}", path, _FILES[name])
    with ProgressBar() if sys.stderr.isatty() else ProgressLines() as progress:
        result = network(
            arguments.workload,
            arguments.input_shape,
            batch=arguments.batch,
            dtype=arguments.dtype,
            passes=arguments.passes,
            gradients=arguments.gradients,
            cube_math_type=arguments.cube_math_type,
            device=load_device(arguments.device, collect("--set", arguments.set)),
            every_input=arguments.every_input,
            elementwise=arguments.elementwise,
            cores=arguments.cores,
            rules=arguments.rules,
            engine=arguments.engine,
            launch=arguments.launch,
            start=arguments.start,
            jobs=arguments.jobs,
            store=arguments.store,
            progress=progress,
        )
    if arguments.range:
        _ = result.time_range_us  # reports show it once it is known
    if arguments.json:
        print_json(result.to_json())
    else:
        sys.stdout.write(result.text())
    files = {name: (path, partial(_write, name, result)) for name, path in wanted.items()}
    write_files(files, sys.stderr if arguments.json else sys.stdout)
    if result.failed:
        names = ", ".join(one.layer.name for one in result.failed)
        raise ArgumentError(
            f"{len(result.failed)} of {len(result.timed)} layers were not simulated: {names}; "
            "the totals are partial"
        )
    return 0


def _write(name: str, result: NetworkResult, path: Path) -> None:
    if name == "plot":
        from npusim.results.network_plot import plot_layers  # noqa: PLC0415 - rarely asked for
        from npusim.results.plots import save_figure  # noqa: PLC0415

        save_figure(plot_layers(result.to_json()), path)
    elif name == "csv":
        result.write(path)
    else:
        result.report(path)
