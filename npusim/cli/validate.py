"""``npusim validate``: measured points against their simulation, and the score card of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.cli.completion import complete_with, device_names
from npusim.cli.files import ANY, PLOTS, check_files, print_json, terminal_width, write_files
from npusim.cli.main import FAILED
from npusim.cli.parser import Parser
from npusim.cli.shared import (
    add_file_option,
    add_jobs_option,
    add_json_option,
    add_set_option,
    changed_figures,
)
from npusim.results.facts.number_text import counted
from npusim.results.writers.progress import Bar
from npusim.results.writers.text import table_text
from npusim.silicon.profile import read_data
from npusim.silicon.rows import Row, Unreadable
from npusim.silicon.score import busy_errors, is_scored, time_error
from npusim.silicon.sheet import Sheet, shipped_sheets, shipped_steps
from npusim.silicon.simulate import RowOutcome, RowWorkers, Task, effort, of_each_chip, on_device
from npusim.silicon.tables import save_page, save_plot, scorecard

#: Products of base blocks above which --quick leaves a point out.
_QUICK = 20_000


def add_arguments(parser: Parser) -> None:
    """Declare ``validate``."""
    parser.epilog = """\
examples:
  npusim validate --scored --html scorecard.html
  npusim validate --data mine.csv --json
  npusim validate --data op_summary.csv --device mine.yaml
  npusim validate --networks --family STEP-ONE
The schemas of such a file are explained in configs/silicon/README.md."""
    points = parser.add_argument_group("points")
    points.add_argument(
        "--data",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="measured kernels, calls or training steps, or a profile, as CSV; repeatable "
        "(default: the kernels and calls that ship)",
    )
    points.add_argument(
        "--networks",
        action="store_true",
        help="the training steps that ship instead, which takes minutes (default: no)",
    )
    device = points.add_argument(
        "--device",
        metavar="NAME",
        help="the chip that the rows of --data were measured on, a device or a device file; a "
        "profile names none, rows that name another chip are declined (default: the chip of each "
        "row)",
    )
    complete_with(device, device_names)
    points.add_argument("--chip", metavar="NAME", help="only points of this chip (default: all)")
    points.add_argument(
        "--family", metavar="NAME", help="only points of this family (default: all)"
    )
    points.add_argument(
        "--scored", action="store_true", help="only the scored kernels (default: no)"
    )
    points.add_argument(
        "--quick",
        action="store_true",
        help="without points that take long to simulate (default: no)",
    )
    simulation = parser.add_argument_group("simulation")
    add_set_option(
        simulation,
        "change a figure of every device, such as clock=1.8GHz; repeatable (default: none)",
    )
    add_jobs_option(simulation, "simulate points")
    output = parser.add_argument_group("output")
    add_json_option(
        output,
        "print a list with one object per point on stdout, nothing else (default: tables)",
    )
    add_file_option(output, "--html", "write the score card as a web page")
    add_file_option(output, "--plot", "write the scatter plot to a .png or .svg")


def execute(arguments: argparse.Namespace) -> int:
    """Simulate the points chosen and print the score card; what is declined is no error.

    The status tells of a score card in which no measured time is beside a simulated one.
    """
    check_files(arguments, plot=PLOTS, html=ANY)
    figures = changed_figures(arguments)
    files = arguments.data
    if arguments.device and not files:
        raise ArgumentError(
            "--device is the chip that --data was measured on; name the file with --data, too"
        )
    shipped = [shipped_steps()] if arguments.networks else list(shipped_sheets())
    sheets = [read_data(file, arguments.device) for file in files] if files else shipped
    _tell_ignored(sheets)
    rows = [row for sheet in sheets for row in sheet.rows]
    if not arguments.device:
        rows = of_each_chip(rows)
    rows = [row for row in rows if _chosen(row, arguments)]
    if not rows:
        raise ArgumentError("no point is left to simulate; choose another chip or family")
    if arguments.device:
        rows = on_device(rows, arguments.device)
    with RowWorkers(arguments.jobs) as workers, Bar() as bar:
        run = partial(_run, workers, bar)
        outcomes = run([(row, figures) for row in rows])
    tables = scorecard(outcomes)
    if arguments.json:
        print_json([_object(outcome) for outcome in outcomes])
    else:
        for table in tables:
            print(f"{table_text(table, terminal_width())}\n")
    page = partial(save_page, outcomes=outcomes, tables=tables)
    write_files(arguments, sys.stderr, plot=partial(save_plot, outcomes=outcomes), html=page)
    if any(time_error(outcome) is not None or busy_errors(outcome) for outcome in outcomes):
        return 0
    print(f"npusim: {_nothing_compared(outcomes)}", file=sys.stderr)
    return FAILED


def _nothing_compared(outcomes: Sequence[RowOutcome]) -> str:
    """The reasons why no measured time is beside a simulated one, and what to do."""
    reasons = [outcome.reason for outcome in outcomes if outcome.reason]
    without = len(outcomes) - len(reasons)
    parts = []
    if without:
        parts.append(f"{counted(without, 'row')} without a measured time")
    if reasons:
        parts.append(
            f"{counted(len(reasons), 'row')} not simulated, the first because {reasons[0]}"
        )
    return f"nothing was compared: {'; '.join(parts)}; correct the rows, or choose others"


def _run(workers: RowWorkers, bar: Bar, tasks: Sequence[Task]) -> list[RowOutcome]:
    return workers.outcomes(tasks, lambda done, total: bar.show("simulated", done, total, "points"))


def _tell_ignored(sheets: Sequence[Sheet]) -> None:
    for sheet in sheets:
        if sheet.ignored:
            names = ", ".join(sheet.ignored)
            print(f"npusim: note: {sheet.file}: ignored columns: {names}", file=sys.stderr)


def _chosen(row: Row | Unreadable, arguments: argparse.Namespace) -> bool:
    """True for a row that the options leave."""
    return (
        arguments.chip in (None, row.chip)
        and arguments.family in (None, row.family)
        and (not arguments.scored or is_scored(row))
        and (not arguments.quick or effort(row) <= _QUICK)
    )


def _object(outcome: RowOutcome) -> dict[str, Any]:
    """Return one point: what was measured and simulated, a kernel's busy times included."""
    row = outcome.row
    simulated = outcome.simulated
    point: dict[str, Any] = {
        "id": row.id,
        "family": row.family,
        "chip": row.chip,
        "possible_chips": list(row.possible_chips),
        "measured_us": row.time_us,
        "simulated_us": getattr(simulated, "time_us", None),
        "error": time_error(outcome),
        "bound_us": getattr(simulated, "from_memory_us", None) or None,
        **{f"{pipe}_us": outcome.busy_us.get(pipe) for pipe in row.parts},
    }
    if simulated is None:
        point["reason"] = outcome.reason
    else:
        point["kernels"] = list(simulated.kernels)
        point["notes"] = list(simulated.notes)
    return point
