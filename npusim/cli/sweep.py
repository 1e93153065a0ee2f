"""``npusim sweep``: a network or an operator over designs, options and tilings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from npusim.base.errors import ArgumentError
from npusim.cli.files import PAGES, PLOTS, TABLES, check_files, print_table, write_files
from npusim.cli.parser import Parser, choice, picked
from npusim.cli.shared import add_file_option
from npusim.cli.study import (
    add_study_options,
    add_work_options,
    arranged,
    points_text,
    progress_bar,
    study_of_words,
)
from npusim.results.facts.number_text import counted, percent_text, us_text
from npusim.results.writers.plots import save_plot
from npusim.results.writers.text_layout import items
from npusim.study.result import KINDS, SweepResult
from npusim.study.runner import sweep
from npusim.study.subject import Row, split

#: Rows printed; all of them are in the file of --csv.
_SHOWN = 40

#: Different errors that are printed in full.
_FAILURES = 4


def add_arguments(parser: Parser) -> None:
    """Declare ``sweep``."""
    parser.epilog = """\
examples:
  npusim sweep study.yaml --csv study.csv --plot study.png
  npusim sweep net resnet50 --batch 32 --device ascend910b2 \\
      --vary memories.L1.size=256KiB,512KiB,1MiB --vary groups=8:24:4
  npusim sweep conv2d_backprop_filter --layer resnet50/res4_3x3 --device ascend910 \\
      --vary batch=1,8
"""
    varies = add_study_options(parser)
    varies.add_argument(
        "--zip",
        action="store_true",
        help="first values, second values, ... (default: all pairs)",
    )
    work = add_work_options(parser)
    work.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask scheduler such as tcp://host:8786"
    )
    work.add_argument(
        "--dry-run", action="store_true", help="check the study and count its points only"
    )
    results = parser.add_argument_group("results")
    add_file_option(results, "--csv", "write the table (or .parquet by its suffix)")
    add_file_option(results, "--plot", "write a .png or .svg")
    add_file_option(results, "--report", "write a web page, .html (default: none)")
    results.add_argument(
        "--kind",
        type=choice(KINDS),
        choices=KINDS,
        help="of the plot (default: lines, or heat of two long axes)",
    )
    results.add_argument(
        "--x", default="", metavar="NAME", help="across the plot (default: the longest axis)"
    )


def execute(arguments: argparse.Namespace) -> None:
    """Measure the points and print their times."""
    study = study_of_words(arguments)
    check_files(arguments, csv=TABLES, plot=PLOTS, report=PAGES)
    print(points_text(study), file=sys.stderr)
    if arguments.dry_run:
        study.check()
        return
    with progress_bar() as progress:
        options = picked(arguments, ("store", "jobs", "scheduler"))
        result = sweep(study, **options, progress=progress)
    _print(result)
    plot = partial(result.plot, x=arguments.x, kind=arguments.kind or "")
    figure = partial(save_plot, draw=plot)
    write_files(arguments, csv=result.write, plot=figure, report=result.report)
    if result.failed:
        raise ArgumentError(
            f"{len(result.failed)} of {len(result)} points failed; the first: "
            f"{result.failed[0].error}"
        )


def arrange(words: Sequence[str]) -> list[str]:
    """A line with the options of what is measured, which the parser does not know, as --option."""
    return arranged(words, add_arguments)


def _print(result: SweepResult) -> None:
    """The varied names with times, the fastest marked."""
    rows = result.rows()
    names = result.study.varied
    best = min((row["time_us"] for row in rows if not row["error"]), default=None)
    cells = [
        (
            *(str(row.get(name, "")) for name in names),
            us_text(row["time_us"]) if not row["error"] else "-",
            "*" if row.get("time_us") == best and not row["error"] else "",
            row["bottleneck"] if not row["error"] else "failed, see below",
            percent_text(row["bottleneck_saves"]) if row.get("bottleneck_saves") else "",
        )
        for row in rows[:_SHOWN]
    ]
    texts = (len(names) + 1, len(names) + 2)
    print_table((*names, "us", "", "bottleneck", "saves"), cells, texts)
    if len(rows) > _SHOWN:
        print(f"... {len(rows) - _SHOWN:,} more; --csv FILE writes all of them")
    for line in (*items("FAILED", _failures(rows, names)), *items("NOTES", _held_back(result))):
        print(line)


def _failures(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Each error once, with the first point that has it and how many have it."""
    points: dict[str, list[Row]] = {}
    for row in rows:
        if row["error"]:
            points.setdefault(row["error"], []).append(row)
    for error, (first, *others) in list(points.items())[:_FAILURES]:
        where = ", ".join(f"{name}={first[name]}" for name in names if name in first)
        more = f" and {counted(len(others), 'other point')}" if others else ""
        yield f"{where}{more}: {error}"
    if len(points) > _FAILURES:
        yield f"{len(points) - _FAILURES:,} other errors; --csv FILE writes all of them"


def _held_back(result: SweepResult) -> list[str]:
    """The note on the fastest memory where its rate varies, and points differ in nothing."""
    varied = [name for name in result.study.varied if name.endswith("memory.read")]
    by_rate = {setting.get(name): setting for name in varied for setting in result.study.points()}
    notes = [split(setting).device.held_back for setting in by_rate.values()]
    return [note for note in notes if note][-1:]
