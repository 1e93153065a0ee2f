"""``npusim net``: the passes of a network, layer by layer, or a whole step of training."""

from __future__ import annotations

import argparse
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.call.options import Options
from npusim.cli.files import PAGES, PLOTS, check_files, option_of, print_result, write_files
from npusim.cli.options import Parser, add_machine, add_options, add_simulation, collect, picked
from npusim.machine.device.catalog import load_device
from npusim.networks.network import GRADIENTS, PASSES, network
from npusim.ops.options import CUBE_MATH_TYPE
from npusim.problem.limits.table import RULES
from npusim.results.writers.progress import ProgressBar
from npusim.workloads import read_network
from npusim.workloads.from_scalesim import PADDINGS

#: Options that are keywords of what times a network, and those that are keywords of a call.
TIMED = "batch dtype passes gradients cube_math_type every_input"
OPTIONS = f"{TIMED} cores rules engine launch start jobs store"

#: Those that only layers by themselves have, and those that only a step has.
_LAYERS = "gradients cube_math_type every_input start range"
_STEP = "layouts fusions optimizer normalisation cards"


def add_arguments(parser: Parser) -> None:
    """Declare ``net``."""
    add_network(parser)
    add_machine(parser, required=True)
    add_options(parser, "rules", rules=RULES, usual=Options.rules)
    add_simulation(parser)
    add_options(parser, "net", paddings=tuple(PADDINGS))
    # The library has the same defaults, and what is given must be told from what is not.
    parser.set_defaults(**dict.fromkeys(f"{OPTIONS} range".split()))


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


def sizes_of_inputs(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sizes that are given of one input, or of each of several, as keywords of a reader."""
    shapes = arguments.input_shape
    if len(shapes) > 1:
        return {"inputs": shapes}
    return {"input_shape": shapes[0]} if shapes else {}


def _gradients(text: str) -> tuple[str, ...]:
    words = text.split(",")
    if len(set(words)) != len(words) or not set(words) <= set(GRADIENTS):
        raise ArgumentError(f"expected at least one of {','.join(GRADIENTS)}, got {text!r}")
    return tuple(words)


def execute(arguments: argparse.Namespace) -> None:
    """Print what could be simulated; raise ``ArgumentError`` after it if something is missing."""
    check_files(arguments, csv=(".csv",), plot=PLOTS, report=PAGES)
    mode, names = arguments.mode, OPTIONS
    run: Any = network
    _refuse(arguments, _STEP if mode is None else _LAYERS)
    if mode is not None:
        from npusim.networks.run.step import step as run  # noqa: PLC0415 - it takes time to import

        names = f"mode {_STEP} {OPTIONS}"
    given = {name: value for name, value in picked(arguments, names).items() if value is not None}
    workload: Any = arguments.workload
    sizes = sizes_of_inputs(arguments)
    if arguments.padding is not None:
        workload, sizes = read_network(workload, **sizes, padding=arguments.padding), {}
    with ProgressBar() as progress:
        result = run(
            workload,
            **sizes,
            device=load_device(arguments.device, collect("--set", arguments.set)),
            **given,
            progress=progress,
        )
    if arguments.range:
        _ = result.time_range_us  # reports show it once it is known
    print_result(result, arguments.json)
    write_files(arguments, csv=result.write, plot=result.save_plot, report=result.report)
    if result.failed:
        parts, several = ("operations", result.launched) if mode else ("layers", result.timed)
        failed = ", ".join(one.name if mode else one.layer.name for one in result.failed)
        raise ArgumentError(
            f"{len(result.failed)} of {len(several)} {parts} were not simulated: {failed}; "
            "the totals are partial"
        )


def _refuse(arguments: argparse.Namespace, names: str) -> None:
    """Refuse options that have no meaning with, or without, a mode."""
    given = [option_of(n) for n, value in picked(arguments, names).items() if value is not None]
    if given and arguments.mode is None:
        raise ArgumentError(f"{given[0]} is of a whole step; add --mode eager or --mode graph")
    if given:
        raise ArgumentError(f"{given[0]} is of layers by themselves; leave it out, or --mode")
