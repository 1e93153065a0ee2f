"""``npusim fit``: the figures of a device, fitted to a profile of the chip."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.cli.completion import complete_with, device_names
from npusim.cli.files import ANY, PLOTS, check_files, print_json, terminal_width, write_files
from npusim.cli.parser import Parser, picked
from npusim.cli.readers import INTEGER
from npusim.cli.shared import add_file_option, add_jobs_option, add_json_option
from npusim.machine.device.catalog import load_device
from npusim.results.writers.progress import Bar
from npusim.results.writers.text import table_text
from npusim.silicon.calibrate import Calibration, calibrate, not_looked_at
from npusim.silicon.fit_search import FittedFigure
from npusim.silicon.score import time_error
from npusim.silicon.tables import save_page, save_plot

#: What a shell reports for an interrupted command.
_INTERRUPTED = 130


def add_arguments(parser: Parser) -> None:
    """Declare ``fit``."""
    parser.epilog = """\
A profile is the op_summary CSV of msprof (or kernel_details.csv of a
framework's profiler) as it is; OP_SUMMARY.yaml beside it holds what it lacks:
attributes of convolutions, tilings. Another file has the columns of
configs/silicon/README.md.

examples:
  npusim fit --data op_summary.csv --device ascend910b2 --output mine.yaml
  npusim fit --data op_summary.csv --device mine.yaml --figure main_memory.read

Ctrl-C ends a fit early and keeps what it has found; a second one drops it."""
    what = parser.add_argument_group("what to fit")
    what.add_argument(
        "--data",
        type=Path,
        action="append",
        default=[],
        required=True,
        metavar="FILE",
        help="a profile, or measured kernels, as CSV; repeatable",
    )
    device = what.add_argument(
        "--device",
        required=True,
        metavar="NAME",
        help="the chip: a name of `npusim devices`, or a device file ending in .yaml",
    )
    complete_with(device, device_names)
    add_file_option(
        what,
        "--tilings",
        "YAML with what a profile lacks (default: the file beside it, .yaml for .csv)",
    )
    add_file_option(
        what,
        "--constants",
        "figures and their ranges (default: configs/silicon/fit.yaml, those of the chip and its "
        "relatives)",
    )
    what.add_argument(
        "--figure",
        action="append",
        default=[],
        metavar="PATH[=LOW..HIGH]",
        help="another figure to fit, such as main_memory.read=1.2TB/s..1.8TB/s; without a range "
        "its own; assumed stands for all figures that are assumed and have a range; repeatable "
        "(default: none)",
    )
    run = parser.add_argument_group("run")
    run.add_argument(
        "--rounds",
        type=INTEGER,
        default=2,
        metavar="N",
        help="rounds with narrower ranges after the first (default: 2)",
    )
    add_jobs_option(run, "simulate rows")
    output = parser.add_argument_group("output")
    add_file_option(
        output,
        "--output",
        "the device file to write where a figure moved, which must not exist (default: none)",
    )
    add_json_option(output, "print one object on stdout, nothing else (default: tables)")
    add_file_option(output, "--html", "write the card as a web page")
    add_file_option(output, "--plot", "write the scatter plot to a .png or .svg")


def execute(arguments: argparse.Namespace) -> int:
    """Fit, print the card and write the files; the status tells of an interrupt."""
    _check_files(arguments)
    with Bar() as bar:
        calibration = calibrate(
            arguments.data,
            arguments.device,
            figures=arguments.figure,
            **picked(arguments, ("tilings", "constants", "rounds", "jobs")),
            progress=partial(_progress, bar),
        )
    if arguments.json:
        print_json(_object(calibration))
    else:
        for table in calibration.tables:
            print(f"{table_text(table, terminal_width())}\n")
    page = partial(save_page, outcomes=calibration.after, tables=calibration.tables)
    plot = partial(save_plot, outcomes=calibration.after)
    write_files(arguments, sys.stderr, output=calibration.save, html=page, plot=plot)
    if not calibration.finished:
        print("npusim: interrupted; this is what was found until then", file=sys.stderr)
    return 0 if calibration.finished else _INTERRUPTED


def _check_files(arguments: argparse.Namespace) -> None:
    """Find out before a long run what would go wrong after it."""
    output = arguments.output
    check_files(arguments, output=(".yaml",), plot=PLOTS, html=ANY)
    if output is not None and output.exists():
        raise ArgumentError(f"--output {output} exists; remove it, or choose another name")


def _progress(bar: Bar, what: str, done: int, total: int) -> None:
    """Show which figure is looked for, and how many rows are simulated for it."""
    bar.show(what, done, total, "rows")


def _object(calibration: Calibration) -> dict[str, Any]:
    """The fit as plain values; errors are shares of 1."""
    return {
        "device": calibration.base,
        "files": list(calibration.files),
        "finished": calibration.finished,
        "figures": [_figure(fitted) for fitted in calibration.figures],
        "not_looked_at": not_looked_at(calibration.figures, load_device(calibration.base)),
        "rows": [
            {
                "id": after.row.id,
                "measured_us": after.row.time_us,
                "error_before": time_error(before),
                "error_after": time_error(after),
                "notes": [] if after.simulated is None else list(after.simulated.notes),
            }
            for before, after in zip(calibration.before, calibration.after, strict=True)
        ],
        "left": [{"id": outcome.row.id, "reason": outcome.reason} for outcome in calibration.left],
    }


def _figure(fitted: FittedFigure) -> dict[str, Any]:
    """A fitted figure as plain values."""
    constant = fitted.constant
    span = None
    if fitted.span is not None:
        span = [constant.text(value) for value in fitted.span]
    return {
        "path": constant.path,
        "also": list(constant.also),
        "verdict": fitted.verdict,
        "at_end": fitted.end,
        "before": constant.text(constant.shipped),
        "after": constant.text(fitted.value),
        "as_good": span,
        "range": [constant.text(constant.low), constant.text(constant.high)],
        "rows": list(fitted.rows),
    }
