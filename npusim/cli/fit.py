"""``npusim fit``: the figures of a device, fitted to a profile of the chip."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from npusim.calibration import Calibration, calibrate
from npusim.cli.console import print_json, print_table
from npusim.cli.files import ANY, PLOTS, Write, check_files, write_files
from npusim.cli.parser import Parser
from npusim.errors import ArgumentError
from npusim.ops.card import integer
from npusim.validation.card import save_page, save_plot
from npusim.validation.score import time_error

#: What a shell reports for an interrupted command.
_INTERRUPTED = 130


def add_arguments(parser: Parser) -> None:
    """Declare ``fit``."""
    parser.epilog = (
        "A profile is the op_summary CSV of msprof (or kernel_details.csv of a\n"
        "framework's profiler) as it is; OP_SUMMARY.yaml beside it holds what it lacks:\n"
        "attributes of convolutions, tilings. Another file has the columns of\n"
        "configs/silicon/README.md.\n\n"
        "examples:\n"
        "  npusim fit --data op_summary.csv --device ascend910b2 --output mine.yaml\n"
        "  npusim fit --data op_summary.csv --device mine.yaml --figure main_memory.read\n\n"
        "Ctrl-C ends a fit early and keeps what it has found; a second one drops it."
    )
    add = parser.add_argument_group("what to fit").add_argument
    add(
        "--data",
        action="append",
        required=True,
        type=Path,
        metavar="FILE",
        help="a profile, or measured kernels, as CSV; repeatable",
    )
    add(
        "--device",
        required=True,
        metavar="NAME",
        help="the chip: a name of `npusim devices`, or a device file ending in .yaml",
    )
    add(
        "--tilings",
        type=Path,
        metavar="FILE",
        help="YAML with what a profile lacks (default: the file beside it, .yaml for .csv)",
    )
    add(
        "--constants",
        type=Path,
        metavar="FILE",
        help="figures and their ranges (default: configs/silicon/fit.yaml, those of the chip and "
        "its relatives)",
    )
    add(
        "--figure",
        action="append",
        default=[],
        metavar="PATH[=LOW..HIGH]",
        help="another figure to fit, such as main_memory.read=1.2TB/s..1.8TB/s; without a range "
        "its own; repeatable (default: none)",
    )
    _add_run(parser.add_argument_group("run").add_argument)
    _add_output(parser.add_argument_group("output").add_argument)


def _add_run(add: Any) -> None:
    add(
        "--rounds",
        type=integer(0),
        default=2,
        metavar="N",
        help="rounds with narrower ranges after the first (default: 2)",
    )
    add(
        "--jobs",
        type=integer(1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that simulate rows (default: one per processor)",
    )


def _add_output(add: Any) -> None:
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="the device file to write, which must not exist (default: none is written)",
    )
    add(
        "--json",
        action="store_true",
        help="print one object on stdout, nothing else (default: tables)",
    )
    add("--html", type=Path, metavar="FILE", help="write the card as a web page")
    add("--plot", type=Path, metavar="FILE", help="write the scatter plot to a .png or .svg")


def execute(arguments: argparse.Namespace) -> int:
    """Fit, print the card and write the files; the status tells of an interrupt."""
    _check_files(arguments)
    found = calibrate(
        arguments.data,
        arguments.device,
        tilings=arguments.tilings,
        constants=arguments.constants,
        figures=arguments.figure,
        rounds=arguments.rounds,
        jobs=arguments.jobs,
        progress=_progress if sys.stderr.isatty() else None,
    )
    if arguments.json:
        print_json(_object(found))
    else:
        for table in found.tables:
            print(f"{table.title}\n")
            print_table(table.head, table.rows, table.left)
            print()
    files: dict[str, tuple[Path | None, Write]] = {
        "output": (arguments.output, found.save),
        "html": (arguments.html, partial(save_page, outcomes=found.after, tables=found.tables)),
        "plot": (arguments.plot, partial(save_plot, outcomes=found.after)),
    }
    write_files(files, sys.stderr)
    if not found.finished:
        print("npusim: interrupted; this is what was found until then", file=sys.stderr)
    return 0 if found.finished else _INTERRUPTED


def _check_files(arguments: argparse.Namespace) -> None:
    """Find out before a long run what would go wrong after it."""
    output = arguments.output
    html = (arguments.html, ANY)
    check_files(output=(output, (".yaml",)), plot=(arguments.plot, PLOTS), html=html)
    if output is not None and output.exists():
        raise ArgumentError(f"--output {output} exists; remove it, or choose another name")


def _progress(what: str, done: int, total: int) -> None:
    """One line on stderr, written over."""
    end = "\n" if done == total else ""
    print(f"\r\x1b[K{what}: row {done} of {total}", end=end, file=sys.stderr, flush=True)


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
        "rows": [
            {
                "id": after.row.id,
                "measured_us": getattr(after.row, "time_us", None),
                "error_before": time_error(before),
                "error_after": time_error(after),
                "notes": [] if after.simulated is None else list(after.simulated.notes),
            }
            for before, after in zip(found.before, found.after, strict=True)
        ],
        "left": [{"id": one.row.id, "reason": one.reason} for one in found.left],
    }
