"""The score card of all measurements that ship: ``python -m tools.scorecard`` (``make scorecard``).

It has the tables of ``npusim validate``, and two more parts that say how far to trust the model.
The constants of ``configs/silicon/fit.yaml`` are fitted again without each family, shape, switch
and call in turn, which are then predicted. The scored kernels are simulated again with random
starts of their cores. All of it takes some ten CPU minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from npusim.base.errors import NpusimError
from npusim.cli.files import terminal_width
from npusim.results.shown.report import Table
from npusim.results.writers.progress import Bar
from npusim.results.writers.text import table_text
from npusim.silicon.constants import load_constants
from npusim.silicon.profile import read_data
from npusim.silicon.rows import CallRow, KernelRow
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import RowOutcome, RowWorkers, Task
from npusim.silicon.tables import save_page, save_plot
from tools.scorecard.evidence import FILE, predicted, renew
from tools.scorecard.left_out import SHAPE, Study, leave_one_out
from tools.scorecard.mechanisms import FAMILIES
from tools.scorecard.starts import restarted, with_notes
from tools.scorecard.tables import scorecard


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score card and write its page and plot; 2 where a file cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m tools.scorecard", description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        action="append",
        help="measurements in place of those that ship; repeatable",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a web page")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the scatter plots")
    parser.add_argument(
        "--evidence", action="store_true", help=f"write the kernels and transposes of {FILE.name}"
    )
    options = parser.parse_args(arguments)
    try:
        card = measured(options.data, options.jobs)
    except NpusimError as error:
        print(f"tools.scorecard: {error}", file=sys.stderr)
        return 2
    for table in card.tables:
        print(f"{table_text(table, terminal_width())}\n")
    if options.plot is not None:
        save_plot(options.plot, card.outcomes)
    if options.html is not None:
        save_page(options.html, card.outcomes, card.tables)
    if options.evidence:
        _write_evidence(card)
    return 0


class Card(NamedTuple):
    """Rows as simulated, the predictions of kernels that were left out, and the tables of both."""

    outcomes: list[RowOutcome]
    kernels: Study | None
    tables: list[Table]


def _write_evidence(card: Card) -> None:
    """Renew the rows of kernels and transposes; scored kernels as predicted without their shape."""
    outcomes = {
        outcome.row.id: outcome
        for outcome in card.outcomes
        if isinstance(outcome.row, KernelRow)
        or (isinstance(outcome.row, CallRow) and outcome.row.family not in FAMILIES)
    }
    looked_at = [*outcomes]
    for fold in card.kernels.left_out if card.kernels else ():
        if fold.kind == SHAPE:
            outcomes |= {outcome.row.id: outcome for outcome in fold.outcomes}
    rows = (predicted(outcome) for outcome in outcomes.values())
    renew([row for row in rows if row is not None], looked_at)


def measured(files: Sequence[Path] | None, jobs: int) -> Card:
    """Simulate the rows of ``files``, or those that ship, and make the tables of the score card.

    Raises ``NpusimError`` for a file that is none of measurements.
    """
    sheets = [read_data(file, None) for file in files] if files else shipped_sheets()
    rows = [row for sheet in sheets for row in sheet.rows]
    constants = load_constants()
    constants_of_calls = load_constants(part="calls")
    with RowWorkers(jobs) as workers, Bar() as bar:
        simulate = partial(_simulated, workers, bar)
        outcomes = simulate([(row, {}) for row in rows])
        kernels = leave_one_out(outcomes, constants, simulate) if constants else None
        calls = None
        if constants_of_calls:
            calls = leave_one_out(outcomes, constants_of_calls, simulate, CallRow)
    again = restarted(outcomes, {})
    outcomes = with_notes(outcomes, again)
    return Card(outcomes, kernels, scorecard(outcomes, kernels, constants, again, calls))


def _simulated(workers: RowWorkers, bar: Bar, tasks: Sequence[Task]) -> list[RowOutcome]:
    return workers.outcomes(tasks, lambda done, total: bar.show("simulated", done, total, "points"))


if __name__ == "__main__":
    sys.exit(main())
