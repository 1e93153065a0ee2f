"""``npusim validate``: measured points against their simulation, and the score card of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.cli.files import ANY, PLOTS, check_files, print_json, terminal_width, write_files
from npusim.cli.main import FAILED
from npusim.cli.options import Parser, add_options, collect
from npusim.results.facts.number_text import counted
from npusim.results.writers.progress import Bar
from npusim.results.writers.text import table_text
from npusim.silicon.constants import Constant, load_constants
from npusim.silicon.fit import leave_one_out
from npusim.silicon.profile import read_data
from npusim.silicon.score import busy_errors, is_scored, time_error
from npusim.silicon.sheet import CallRow, Row, Sheet, Unreadable, shipped_sheets, shipped_steps
from npusim.silicon.simulate import Outcome, Task, Workers, effort, on_device
from npusim.silicon.steadiness import restarted, with_notes
from npusim.silicon.tables import save_page, save_plot, scorecard

#: Products of base blocks above which --quick leaves a point out.
_QUICK = 20_000


def add_arguments(parser: Parser) -> None:
    """Declare ``validate``."""
    add_options(parser, "validate")


def execute(arguments: argparse.Namespace) -> int:
    """Simulate the points chosen and print the score card; what is declined is no error.

    The status tells of a score card in which no measured time is beside a simulated one.
    """
    check_files(arguments, plot=PLOTS, html=ANY)
    figures = collect("--set", arguments.set)
    constants = _constants(arguments, figures)
    given = arguments.data
    if arguments.device and not given:
        raise ArgumentError(
            "--device is the chip that --data was measured on; name the file with --data, too"
        )
    shipped = [shipped_steps()] if arguments.networks else list(shipped_sheets())
    sheets = [read_data(file, arguments.device) for file in given] if given else shipped
    _tell_ignored(sheets)
    rows = [row for sheet in sheets for row in sheet.rows if _chosen(row, arguments)]
    if not rows:
        raise ArgumentError("no point is left to simulate; choose another chip or family")
    if arguments.device:
        rows = on_device(rows, arguments.device)
    with Workers(arguments.jobs) as workers, Bar() as bar:
        run = partial(_run, workers, bar)
        outcomes = run([(row, figures) for row in rows])
        study = leave_one_out(outcomes, constants, run) if constants else None
        own = load_constants(part="calls") if constants else []
        calls = leave_one_out(outcomes, own, run, CallRow) if own else None
    again = restarted(outcomes, figures) if arguments.starts else []
    outcomes = with_notes(outcomes, again)
    tables = scorecard(outcomes, study, constants, again, calls)
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


def _nothing_compared(outcomes: Sequence[Outcome]) -> str:
    """Why no measured time is beside a simulated one, and what to do."""
    reasons = [outcome.reason for outcome in outcomes if outcome.reason]
    without = len(outcomes) - len(reasons)
    parts = []
    if without:
        parts.append(f"{counted(without, 'row')} without a measured time")
    if reasons:
        parts.append(
            f"{counted(len(reasons), 'row')} not simulated, the first because {reasons[0]}"
        )
    told = "; ".join(parts)
    return f"nothing was compared: {told}; correct the rows, or choose others"


def _constants(arguments: argparse.Namespace, figures: Mapping[str, str]) -> list[Constant]:
    """The constants to fit again; none without --leave-one-out."""
    if not arguments.leave_one_out:
        return []
    if figures:
        raise ArgumentError("--leave-one-out begins with the figures that ship; leave out --set")
    constants = load_constants()
    if not constants:
        raise ArgumentError("--leave-one-out: configs/silicon/fit.yaml lists no constants")
    return constants


def _run(workers: Workers, bar: Bar, tasks: Sequence[Task]) -> list[Outcome]:
    return workers.outcomes(tasks, lambda done, total: bar.show("simulated", done, total, "points"))


def _tell_ignored(sheets: Sequence[Sheet]) -> None:
    for sheet in sheets:
        if sheet.ignored:
            names = ", ".join(sheet.ignored)
            print(f"npusim: note: {sheet.file}: ignored columns: {names}", file=sys.stderr)


def _chosen(row: Row | Unreadable, arguments: argparse.Namespace) -> bool:
    """Whether the options leave this row."""
    return (
        arguments.chip in (None, row.chip)
        and arguments.family in (None, row.family)
        and (not arguments.scored or is_scored(row))
        and (not arguments.quick or effort(row) <= _QUICK)
    )


def _object(outcome: Outcome) -> dict[str, Any]:
    """Return one point: what was measured and simulated, a kernel's busy times included."""
    row, simulated = outcome.row, outcome.simulated
    found: dict[str, Any] = {"id": row.id, "family": row.family, "chip": row.chip}
    found |= {"measured_us": row.time_us, "simulated_us": getattr(simulated, "time_us", None)}
    found["error"] = time_error(outcome)
    found["bound_us"] = getattr(simulated, "from_memory_us", None) or None
    found |= {f"{pipe}_us": outcome.busy_us.get(pipe) for pipe in row.parts}
    if simulated is None:
        found["reason"] = outcome.reason
    else:
        found["kernels"], found["notes"] = list(simulated.kernels), list(simulated.notes)
    return found
