"""``npusim net``: the passes of a network, layer by layer."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from npusim.cli.console import print_json
from npusim.cli.files import PAGES, PLOTS, check_file, write_files
from npusim.cli.machine import add_machine, add_simulation
from npusim.cli.parser import Parser, collect
from npusim.device.catalog import load_device
from npusim.dtypes import FP16, dtype
from npusim.errors import ArgumentError
from npusim.network import GRADIENTS, PASSES, NetworkResult, network
from npusim.ops.card import integer, sizes
from npusim.ops.cube_math import CUBE_MATH_TYPE, read_cube_math_type
from npusim.results.progress import ProgressBar, ProgressLines

_USUAL = ("input", "weight")

#: Every option that names a file: its suffixes, and what is written.
_FILES = {
    "csv": ((".csv",), "the layers as a table"),
    "plot": (PLOTS, "a figure of the time of every layer"),
    "report": (PAGES, "the whole report as one web page"),
}


def add_arguments(parser: Parser) -> None:
    """Declare ``net``."""
    parser.epilog = "example:\n  npusim net resnet50 --device ascend910b2 --batch 32"
    add_network(parser)
    add_machine(parser.add_argument_group("machine").add_argument, required=True)
    add = parser.add_argument_group("simulation").add_argument
    add_simulation(add)
    add(
        "--elementwise",
        action="store_true",
        help="beside the times, what normalisations, activations, additions and pooling move, as "
        "traffic of main memory (default: no)",
    )
    add("--jobs", type=integer(1), default=1, metavar="N",
        help="processes that simulate different layers at once (default: 1)")  # fmt: skip
    add("--store", nargs="?", const="", metavar="FILE",
        help="keep runs and tilings, and find them again: without FILE in the user's cache "
        "(default: no)")  # fmt: skip
    add = parser.add_argument_group("files to write").add_argument
    for name, (suffixes, about) in _FILES.items():
        kinds = " or ".join(suffixes)
        add(f"--{name}", type=Path, metavar="FILE", help=f"{about}, {kinds} (default: none)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON, nothing else, on stdout (default: a text report)",
    )


def add_network(parser: Parser, batch: int = 1) -> None:
    """Declare the network and what of a training step is timed, by default of ``batch`` images."""
    parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        help="a workload (see 'npusim workloads'), or a file ending in .yaml or .onnx",
    )
    parser.add_argument(
        "--input-shape",
        type=sizes(1),
        metavar="CxHxW",
        help="of one image, where an ONNX file leaves it open (default: as in the file)",
    )
    add = parser.add_argument_group("training step").add_argument
    add("--batch", type=integer(1), default=batch, metavar="N", help=f"images (default: {batch})")
    add(
        "--pass",
        choices=PASSES,
        dest="passes",
        default="backward",
        help="what is timed; training is both (default: backward)",
    )
    add(
        "--gradients",
        type=_gradients,
        default=_USUAL,
        metavar="NAMES",
        help=f"those computed, of {','.join(GRADIENTS)} (default: {','.join(_USUAL)})",
    )
    add(
        "--every-input",
        action="store_true",
        help="input gradients of the layers before which nothing is trained too (default: no)",
    )
    add(
        "--dtype",
        type=dtype,
        default=FP16,
        metavar="TYPE",
        help="element type of the operands: fp16, bf16 or fp32 (default: fp16)",
    )
    add(
        "--cube-math-type",
        type=read_cube_math_type,
        default=0,
        metavar="TYPE",
        help=CUBE_MATH_TYPE.help,
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
        check_file(f"--{name}", path, _FILES[name][0])
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
            start=arguments.start,
            jobs=arguments.jobs,
            store=arguments.store,
            progress=progress,
        )
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
