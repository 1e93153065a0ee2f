"""``npusim run``: simulate one call, check its numbers, write what is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npusim.base.atomic_files import replacing
from npusim.base.dtypes import BF16
from npusim.base.errors import ArgumentError
from npusim.cli import call_options, calls, files
from npusim.cli.calls import PreparedCall
from npusim.cli.checks import Check, checked, returned
from npusim.cli.own_kernel import check_expected
from npusim.cli.parser import Parser, choice
from npusim.cli.readers import NUMBER
from npusim.cli.shared import Group, add_file_option
from npusim.machine.program.kernel import Kernel
from npusim.ops import CARDS
from npusim.ops.card import Output
from npusim.results import Result
from npusim.results.writers.plots import save_plot
from npusim.results.writers.progress import ProgressBar

#: Layouts of --output.
_LAYOUTS = ("operator", "framework")

#: A line with the operator right behind "run", where it may also stand later.
arrange = call_options.arrange


def add_arguments(parser: Parser) -> None:
    """Declare ``run`` and a command for every operator below it."""
    if call_options.lists_operators(parser):
        examples = "".join(f"  {card.example}\n" for card in CARDS.values())
        parser.epilog = (
            f"'npusim run OPERATOR --help' lists the options of one.\n\nexamples:\n{examples}"
        )
    call_options.add_calls(parser, _add_options, numbers=True)


def _add_options(command: Parser, simulation: Group) -> None:
    simulation.add_argument(
        "--range",
        action="store_true",
        help="time the call again with every assumed or fitted figure it rests on at the ends of "
        "its range, and report the range of the time (default: no)",
    )
    simulation.add_argument(
        "--timeline",
        action=argparse.BooleanOptionalAction,
        help="keep a row per instruction (default: up to 200,000 instructions a kernel, and "
        "whenever a file needs it)",
    )
    group = command.add_argument_group("files to write")
    add_file_option(
        group, "--output", "the results by name as .npz, or the only one as .npy (default: none)"
    )
    add_file_option(
        group,
        "--trace",
        "the timeline for ui.perfetto.dev; .json.gz compresses it (default: none)",
    )
    add_file_option(group, "--plot", "a figure of the timeline, .png or .svg (default: none)")
    add_file_option(
        group, "--plot-roofline", "a figure of the roofline, .png or .svg (default: none)"
    )
    add_file_option(group, "--report", "the whole report as one web page (default: none)")
    group.add_argument(
        "--output-layout",
        type=choice(_LAYOUTS),
        choices=_LAYOUTS,
        default=_LAYOUTS[0],
        help="layout of --output: the operator's own (such as FRACTAL_Z for filters), or that of "
        "frameworks, such as (Cout, Cin/groups, KH, KW) (default: operator)",
    )
    group.add_argument(
        "--from",
        dest="since",
        type=NUMBER,
        metavar="US",
        help="first microsecond of the call that --trace and --plot show (default: 0)",
    )
    group.add_argument(
        "--to",
        dest="until",
        type=NUMBER,
        metavar="US",
        help="last microsecond that they show (default: the end)",
    )
    group.add_argument(
        "--core",
        dest="shown_cores",
        action="append",
        default=[],
        metavar="NAME",
        help="show this core, such as aic0, and no other but those named so; may be repeated "
        "(default: all cores in a trace, the first and the slowest in a plot)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run the call; the report comes first, so that nothing after it can lose it."""
    asked = {name: getattr(arguments, name) for name in FILES}
    wanted: dict[str, Path] = {name: path for name, path in asked.items() if path is not None}
    _check_arguments(wanted, arguments)
    prepared = calls.prepare(arguments, timing_only=arguments.timing_only)
    if arguments.check and isinstance(prepared.problem, Kernel):
        check_expected(prepared.problem)
    if "output" in wanted:
        check_output(wanted["output"], prepared.outputs)
    with ProgressBar() as progress:
        keep = True if {*TIMELINES} & set(wanted) else arguments.timeline
        result = prepared.run(timeline=keep, progress=progress)
    checks = _report(arguments, result, prepared)
    files.write_files(arguments, **writers(arguments, result, prepared))
    return 0 if all(check.passed for check in checks) else 1


def _report(
    arguments: argparse.Namespace, result: Result, prepared: calls.PreparedCall
) -> list[Check]:
    """Print the result, as text before it is checked, as JSON with the check in it."""
    time_range = {"time_range": result.time_range.to_json()} if arguments.range else {}
    if not arguments.json:
        sys.stdout.write(result.text())
        sys.stdout.flush()
    checks = checked(result, prepared.outputs, prepared.sample) if arguments.check else []
    if arguments.json:
        verdict = None
        if checks:
            verdict = {
                "passed": all(check.passed for check in checks),
                "outputs": [check.to_json() for check in checks],
            }
        files.print_json({**result.to_json(), **time_range, "check": verdict})
    else:
        for check in checks:
            print(check)
    sys.stdout.flush()
    return checks


# -- files of a run ---------------------------------------------------------------------------

#: Every option that names a file, by its name in the parsed arguments: its suffixes.
FILES: Mapping[str, Sequence[str]] = {
    "output": (".npy", ".npz"),
    "trace": files.TRACES,
    "plot": files.PLOTS,
    "plot_roofline": files.PLOTS,
    "report": files.PAGES,
}

#: Those that need the rows of a timeline.
TIMELINES = ("trace", "plot")


def part_of(arguments: argparse.Namespace, result: Result) -> dict[str, Any]:
    """The part of a timeline that was asked for, as keywords of what shows it.

    That is some cores (None: those usual), and microseconds of it (None: all).
    """
    since, until, window = arguments.since, arguments.until, None
    if since is not None or until is not None:
        window = (since or 0.0, result.time_us if until is None else until)
    return {"cores": tuple(arguments.shown_cores) or None, "window": window}


def _check_arguments(wanted: Mapping[str, Path], arguments: argparse.Namespace) -> None:
    """Refuse, before anything is computed, what does not go together or cannot be written.

    ``wanted`` has the paths of the files asked for by the names of ``FILES``.
    """
    for name in ("check", "input", "output"):
        if arguments.timing_only and getattr(arguments, name):
            raise ArgumentError(f"--{name} needs numbers, which --timing-only leaves out; drop one")
    parts = {"--from": arguments.since, "--to": arguments.until, "--core": arguments.shown_cores}
    for option, value in parts.items():
        if value not in (None, []) and not {*TIMELINES} & set(wanted):
            raise ArgumentError(f"{option} says what --trace and --plot show; add one of them")
    taken: dict[Path, str] = {}
    for name, path in wanted.items():
        option = files.option_of(name)
        files.check_file(option, path, FILES[name])
        if path.resolve() in taken:
            raise ArgumentError(
                f"{option} and {taken[path.resolve()]} both write {path}; give two names"
            )
        taken[path.resolve()] = option
        if name in TIMELINES and arguments.timeline is False:
            raise ArgumentError(f"{option} needs the timeline; drop --no-timeline")


def check_output(path: Path, outputs: Sequence[Output[Any]]) -> None:
    """Refuse a file for one array where the call returns several."""
    names = [output.name for output in outputs]
    if len(names) > 1 and not _is_archive(path):
        raise ArgumentError(
            f"--output {path}: this call returns {', '.join(names)}; name a file ending in .npz, "
            "which holds them all, or ask for one of them"
        )


def writers(
    arguments: argparse.Namespace, result: Result, prepared: PreparedCall
) -> Mapping[str, files.Write]:
    """The writers of the files of ``FILES``, by name, for ``write_files``."""
    part = part_of(arguments, result)

    def output(path: Path) -> str:
        return _save_arrays(path, result, prepared, arguments.output_layout == "framework")

    timeline, roofline = result.plot_timeline, result.plot_roofline
    return {
        "output": output,
        "trace": files.saying(files.TO_OPEN, result.save_trace, **part),
        "plot": files.saying("timeline of who worked and who waited", save_plot, timeline, **part),
        "plot_roofline": files.saying("roofline", save_plot, roofline),
        "report": files.saying("to read it, open it in a browser", result.report),
    }


def _save_arrays(path: Path, result: Result, prepared: PreparedCall, framework: bool) -> str:
    """Write the outputs, in the layout of frameworks if asked; what they are is returned."""
    arrays: dict[str, Any] = {}
    descriptions = []
    for output in prepared.outputs:
        array = returned(result, output.name)
        if framework:
            array = output.unpack(prepared.problem, array)
        form = output.axes if framework or not output.layout else output.layout
        description = f"{output.name} {array.shape} {array.dtype.name}, {form}"
        if array.dtype == BF16.numpy:  # exact; NumPy's files know no bfloat16
            array = array.astype(np.float32)
            description += ", stored as float32"
        arrays[output.name] = array
        descriptions.append(description)
    with replacing(path) as part, part.open("wb") as file:
        if _is_archive(path):
            np.savez(file, **arrays)  # old NumPy takes other words for names of arrays
        else:
            np.save(file, next(iter(arrays.values())), allow_pickle=False)
    return "; ".join(descriptions)


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith(".npz")
