"""``npusim net``: the backward pass of a network, layer by layer."""

from __future__ import annotations

import argparse
import sys

from npusim.cli.console import print_json
from npusim.cli.machine import add_machine, add_simulation
from npusim.cli.parser import Parser, collect
from npusim.device.catalog import load_device
from npusim.dtypes import FP16, dtype
from npusim.errors import ArgumentError
from npusim.network import GRADIENTS, network
from npusim.ops.card import integer, sizes
from npusim.ops.cube_math import CUBE_MATH_TYPES, read_cube_math_type
from npusim.results.progress import ProgressBar, ProgressLines

_USUAL = ("input", "weight")


def add_arguments(parser: Parser) -> None:
    """Declare ``net``."""
    parser.epilog = "example:\n  npusim net resnet50 --device ascend910b2 --batch 32"
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
    add("--batch", type=integer(1), default=1, metavar="N", help="images (default: 1)")
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
        help=f"arithmetic of the cube: 0 to 3 or {', '.join(CUBE_MATH_TYPES)} (default: 0)",
    )
    add_machine(parser.add_argument_group("machine").add_argument, required=True)
    add_simulation(parser.add_argument_group("simulation").add_argument)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON, nothing else, on stdout (default: a text report)",
    )


def _gradients(text: str) -> tuple[str, ...]:
    words = text.split(",")
    if len(set(words)) != len(words) or not set(words) <= set(GRADIENTS):
        raise ArgumentError(f"expected at least one of {','.join(GRADIENTS)}, got {text!r}")
    return tuple(words)


def execute(arguments: argparse.Namespace) -> int:
    """Print what could be simulated; raise ``ArgumentError`` after it if layers are missing."""
    with ProgressBar() if sys.stderr.isatty() else ProgressLines() as progress:
        result = network(
            arguments.workload,
            arguments.input_shape,
            batch=arguments.batch,
            dtype=arguments.dtype,
            gradients=arguments.gradients,
            cube_math_type=arguments.cube_math_type,
            device=load_device(arguments.device, collect("--set", arguments.set)),
            every_input=arguments.every_input,
            cores=arguments.cores,
            rules=arguments.rules,
            engine=arguments.engine,
            start=arguments.start,
            progress=progress,
        )
    if arguments.json:
        print_json(result.to_json())
    else:
        sys.stdout.write(result.text())
    sys.stdout.flush()
    if result.failed:
        names = ", ".join(one.layer.name for one in result.failed)
        raise ArgumentError(
            f"{len(result.failed)} of {len(result.timed)} layers were not simulated: {names}; "
            "the totals are partial"
        )
    return 0
