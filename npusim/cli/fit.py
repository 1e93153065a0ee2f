"""``npusim fit``: the figures of a device, fitted to a profile of the chip."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.cli.files import ANY, PLOTS, check_files, print_json, terminal_width, write_files
from npusim.cli.options import Parser, add_options, picked
from npusim.machine.device.catalog import load_device
from npusim.results.writers.progress import Bar
from npusim.results.writers.text import table_text
from npusim.silicon.calibrate import Calibration, calibrate, not_looked_at
from npusim.silicon.score import time_error
from npusim.silicon.tables import save_page, save_plot

#: What a shell reports for an interrupted command.
_INTERRUPTED = 130


def add_arguments(parser: Parser) -> None:
    """Declare ``fit``."""
    add_options(parser, "fit")


def execute(arguments: argparse.Namespace) -> int:
    """Fit, print the card and write the files; the status tells of an interrupt."""
    _check_files(arguments)
    with Bar() as bar:
        found = calibrate(
            arguments.data,
            arguments.device,
            figures=arguments.figure,
            **picked(arguments, "tilings constants rounds jobs"),
            progress=partial(_progress, bar),
        )
    if arguments.json:
        print_json(_object(found))
    else:
        for table in found.tables:
            print(f"{table_text(table, terminal_width())}\n")
    page = partial(save_page, outcomes=found.after, tables=found.tables)
    plot = partial(save_plot, outcomes=found.after)
    write_files(arguments, sys.stderr, output=found.save, html=page, plot=plot)
    if not found.finished:
        print("npusim: interrupted; this is what was found until then", file=sys.stderr)
    return 0 if found.finished else _INTERRUPTED


def _check_files(arguments: argparse.Namespace) -> None:
    """Find out before a long run what would go wrong after it."""
    output = arguments.output
    check_files(arguments, output=(".yaml",), plot=PLOTS, html=ANY)
    if output is not None and output.exists():
        raise ArgumentError(f"--output {output} exists; remove it, or choose another name")


def _progress(bar: Bar, what: str, done: int, total: int) -> None:
    """Show which figure is looked for, and how many rows are simulated for it."""
    bar.show(what, done, total, "rows")


def _object(found: Calibration) -> dict[str, Any]:
    """The fit as plain values; errors are shares of 1."""
    return {
        "device": found.base,
        "files": list(found.files),
        "finished": found.finished,
        "figures": [
            {
                "path": one.constant.path,
                "also": list(one.constant.also),
                "verdict": one.verdict,
                "at_end": one.end,
                "before": one.constant.text(one.constant.shipped),
                "after": one.constant.text(one.value),
                "as_good": None if one.span is None else [*map(one.constant.text, one.span)],
                "range": [
                    one.constant.text(one.constant.low),
                    one.constant.text(one.constant.high),
                ],
                "rows": list(one.rows),
            }
            for one in found.figures
        ],
        "not_looked_at": not_looked_at(found.figures, load_device(found.base)),
        "rows": [
            {
                "id": after.row.id,
                "measured_us": after.row.time_us,
                "error_before": time_error(before),
                "error_after": time_error(after),
                "notes": [] if after.simulated is None else list(after.simulated.notes),
            }
            for before, after in zip(found.before, found.after, strict=True)
        ],
        "left": [{"id": one.row.id, "reason": one.reason} for one in found.left],
    }
