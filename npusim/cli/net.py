"""``npusim net``: the passes of a network, layer by layer, or a whole step of training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from npusim.base.errors import ArgumentError
from npusim.cli.completion import complete_with, workload_names
from npusim.cli.files import (
    PAGES,
    PLOTS,
    TO_OPEN,
    TRACES,
    check_files,
    option_of,
    print_result,
    saying,
    write_files,
)
from npusim.cli.machine_options import (
    add_device_options,
    add_rules_option,
    add_simulation_options,
    add_tilings_option,
)
from npusim.cli.parser import Parser, choice, picked, reader
from npusim.cli.readers import SIZES
from npusim.cli.shared import (
    Group,
    add_debug_option,
    add_file_option,
    add_jobs_option,
    add_json_option,
    changed_figures,
)
from npusim.machine.device.catalog import load_device
from npusim.networks.network import network
from npusim.networks.options import (
    LAYERS,
    STEP,
    STEP_OPTIONS,
    TRAINING_OPTIONS,
    NetworkOption,
)
from npusim.results.writers.progress import ProgressBar
from npusim.workloads import read_network
from npusim.workloads.from_scalesim import PADDINGS

if TYPE_CHECKING:
    from npusim.networks.run.step_result import StepResult

#: Keywords of every call, which networks take besides their own.
_CALL = ("cores", "rules", "engine", "launch", "start", "tiling", "jobs", "store")

#: The option that asks for the largest batch.
LARGEST_BATCH = "--largest-batch"

#: Further options that only layers by themselves have.
_LAYERS_ONLY = ("start", "range")

#: Further options that only a whole step has.
_STEP_ONLY = ("trace",)


def _keywords(taker: str) -> list[str]:
    """The network options that ``taker`` takes, as its keywords."""
    options = (*TRAINING_OPTIONS, *STEP_OPTIONS)
    return [option.argument for option in options if taker in option.takers]


def _needless(taker: str, other: str) -> list[str]:
    """The network options that ``other`` takes and ``taker`` does not."""
    return [name for name in _keywords(other) if name not in _keywords(taker)]


def add_arguments(parser: Parser) -> None:
    """Declare ``net``."""
    parser.epilog = """\
example:
  npusim net resnet50 --device ascend910b2 --batch 32
  npusim net resnet50 --device ascend910b2 --batch 32 --mode graph --store"""
    step, simulation = add_timing(parser)
    step.add_argument(
        LARGEST_BATCH,
        action="store_true",
        help="the largest batch whose step the card's main memory holds, what it and the next one "
        "need, and its speed (mode: graph unless given; default: no)",
    )
    simulation.add_argument(
        "--range",
        action="store_true",
        help="time every layer again with every assumed or fitted figure it rests on at the ends "
        "of its range, and report the range of the time, which takes minutes (default: no)",
    )
    files = parser.add_argument_group("files to write")
    add_file_option(files, "--csv", "the layers, or operations, as a table, .csv (default: none)")
    add_file_option(
        files,
        "--plot",
        "a figure of the time of every layer, or phase, .png or .svg (default: none)",
    )
    add_file_option(files, "--report", "the whole report as one web page, .html (default: none)")
    add_file_option(
        files,
        "--trace",
        "the timeline of the whole step for ui.perfetto.dev, .json or .json.gz (default: none)",
    )
    add_json_option(parser)
    parser.set_defaults(range=None)


def add_timing(parser: Parser) -> tuple[Group, Group]:
    """Declare a network, its machine, how its step runs, and how it is simulated.

    Returns the groups of the last two.
    """
    add_network(parser)
    machine = add_device_options(parser, required=True)
    add_rules_option(machine)
    simulation = parser.add_argument_group("simulation")
    add_simulation_options(simulation)
    add_padding_option(
        parser.add_argument_group("topology"),
        "of a SCALE-Sim topology, whose rows leave it open: none, the maps as they are stated; "
        "included, K - 1 zeros of the stated sizes are padding; same, so many zeros around them "
        "(default: none)",
    )
    step = parser.add_argument_group("step as it runs")
    for option in STEP_OPTIONS:
        _add_network_option(step, option)
    add_tilings_option(simulation)
    add_jobs_option(simulation, "simulate different layers, or operations of a step, at once")
    simulation.add_argument(
        "--store",
        nargs="?",
        const="",
        metavar="FILE",
        help="keep runs and tilings, and find them again: without FILE in the user's cache "
        "(default: no)",
    )
    # The library has the same defaults, and what is given must be told from what is not.
    parser.set_defaults(rules=None, launch=None, start=None, engine=None)
    return step, simulation


def add_step(command: Parser) -> None:
    """Declare a network whose step is timed, of a command below another one."""
    add_timing(command)
    add_json_option(command)
    add_debug_option(command)
    command.set_defaults(leaf=command, largest_batch=False)


def add_network(parser: Parser, batch: int = 1) -> None:
    """Declare the network and what of it is timed, by default of ``batch`` images.

    Options have no default here: the functions that time a network have them.
    """
    workload = parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        help="a workload (see 'npusim workloads'), or a file: YAML of layers, ONNX, or a SCALE-Sim "
        "topology (CSV)",
    )
    complete_with(workload, workload_names)
    add_sizes_option(
        parser,
        "of one image, where an ONNX file leaves it open; once for each input where it has several "
        "(default: as in the file)",
    )
    group = parser.add_argument_group("training step")
    for option in TRAINING_OPTIONS:
        _add_network_option(group, option, batch)


def _add_network_option(group: Group, option: NetworkOption, batch: int = 1) -> None:
    """Declare an option of a network; ``batch`` is the number of images where none is given."""
    flag = option_of(option.name)
    about = option.help.format(batch=batch)
    if option.choices:
        group.add_argument(
            flag,
            dest=option.argument,
            type=choice(option.choices),
            choices=option.choices,
            help=about,
        )
    elif option.read is None:
        group.add_argument(flag, action="store_true", default=None, help=about)
    else:
        group.add_argument(flag, type=reader(option.read), metavar=option.metavar, help=about)


def add_sizes_option(group: Group, about: str) -> None:
    """Declare the sizes of a network's inputs."""
    group.add_argument(
        "--input-shape", type=SIZES, action="append", default=[], metavar="CxHxW", help=about
    )


def add_padding_option(group: Group, about: str) -> None:
    """Declare the padding of a topology."""
    group.add_argument("--padding", type=choice(PADDINGS), choices=tuple(PADDINGS), help=about)


def sizes_of_inputs(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sizes that are given of one input, or of each of several, as keywords of a reader."""
    shapes = arguments.input_shape
    if len(shapes) > 1:
        return {"inputs": shapes}
    return {"input_shape": shapes[0]} if shapes else {}


def layer_keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given of those that ``network`` takes, as its keywords."""
    return _given(arguments, _keywords(LAYERS))


def _given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The values of arguments that the command has and that were given."""
    declared = [name for name in names if hasattr(arguments, name)]
    values = picked(arguments, declared)
    return {name: value for name, value in values.items() if value is not None}


def execute(arguments: argparse.Namespace) -> None:
    """Print what could be simulated; raise ``ArgumentError`` after it if something is missing."""
    check_files(arguments, csv=(".csv",), plot=PLOTS, report=PAGES, trace=TRACES)
    is_step = arguments.mode is not None or arguments.largest_batch
    _refuse_needless(arguments, is_step)
    with ProgressBar() as progress:
        result = _timed(arguments, is_step, progress)
    if arguments.range:
        _ = result.time_range_us  # reports show it once it is known
    print_result(result, arguments.json)
    writers: dict[str, Any] = {
        "csv": result.write,
        "plot": result.save_plot,
        "report": result.report,
    }
    timed = result.step if arguments.largest_batch else result
    if is_step:
        writers["trace"] = saying(TO_OPEN, timed.save_trace)
    write_files(arguments, **writers)
    refuse_partial(timed, is_step)


def _timed(arguments: argparse.Namespace, is_step: bool, progress: ProgressBar) -> Any:
    """The network, or its step, that arguments state."""
    workload: Any = arguments.workload
    sizes = sizes_of_inputs(arguments)
    if arguments.padding is not None:
        workload = read_network(workload, **sizes, padding=arguments.padding)
        sizes = {}
    run: Any = network
    if arguments.largest_batch:
        _refuse_batch(arguments)
        from npusim.networks.run.largest_batch import largest_batch as run  # noqa: PLC0415
    elif is_step:
        from npusim.networks.run.step import step as run  # noqa: PLC0415 - it takes time to import
    keywords = _given(arguments, [*_keywords(STEP if is_step else LAYERS), *_CALL])
    return run(
        workload,
        **sizes,
        device=load_device(arguments.device, changed_figures(arguments)),
        **keywords,
        progress=progress,
    )


def timed_step(arguments: argparse.Namespace, progress: ProgressBar) -> StepResult:
    """The step that arguments of ``add_step`` state.

    Raises ``ArgumentError`` without a mode, and for options of layers by themselves.
    """
    if arguments.mode is None:
        raise ArgumentError(
            f"npusim {arguments.command} net needs --mode eager or --mode graph: it is of a whole "
            f"step; 'npusim net {arguments.workload}' times layers by themselves, and 'npusim "
            f"{arguments.command} OPERATOR --layer {arguments.workload}/LAYER' takes one of them"
        )
    _refuse_needless(arguments, is_step=True)
    result: StepResult = _timed(arguments, True, progress)
    return result


def refuse_partial(result: Any, is_step: bool = True) -> None:
    """Raise ``ArgumentError`` behind a report of which not all parts could be simulated."""
    if result.failed:
        raise ArgumentError(_incomplete(result, is_step))


def _incomplete(result: Any, is_step: bool) -> str:
    """The error of a network of which not all parts could be simulated."""
    if is_step:
        parts, count = "operations", len(result.launched)
        names = [operation.name for operation in result.failed]
    else:
        parts, count = "layers", len(result.timed)
        names = [timed.layer.name for timed in result.failed]
    return (
        f"{len(names)} of {count} {parts} were not simulated: {', '.join(names)}; "
        "the totals are partial"
    )


def _refuse_batch(arguments: argparse.Namespace) -> None:
    """Raise ``ArgumentError`` where the batch is given that is looked for."""
    if arguments.batch is not None:
        raise ArgumentError(f"{LARGEST_BATCH} looks for the batch; leave out --batch")


def _refuse_needless(arguments: argparse.Namespace, is_step: bool) -> None:
    """Raise ``ArgumentError`` for options without meaning for a step, or for layers alone."""
    if is_step:
        needless = _given(arguments, [*_needless(STEP, LAYERS), *_LAYERS_ONLY])
        why = "is of layers by themselves; leave it out, or --mode"
    else:
        needless = _given(arguments, [*_needless(LAYERS, STEP), *_STEP_ONLY])
        why = "is of a whole step; add --mode eager or --mode graph"
    for name in needless:
        raise ArgumentError(f"{option_of(name)} {why}")
