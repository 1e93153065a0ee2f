"""``npusim explore``: the designs that none beats in time, energy and area."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from npusim.base.errors import ArgumentError
from npusim.cli.files import PAGES, PLOTS, TABLES, check_files, print_table, write_files
from npusim.cli.parser import Parser, picked, reader
from npusim.cli.readers import INTEGER, SIGNED
from npusim.cli.shared import add_file_option
from npusim.cli.study import (
    add_study_options,
    add_work_options,
    arranged,
    points_text,
    progress_bar,
    study_of_words,
)
from npusim.results.facts.number_text import counted, rate_text
from npusim.results.shown.study import nearly
from npusim.results.writers.text_layout import items, ruled, wrap
from npusim.study.formula import GOALS, limit
from npusim.study.result import Exploration
from npusim.study.runner import Sensitivities, sensitivities
from npusim.study.search import check_searchable, explore
from npusim.study.space import check_goals

#: Rows of a front that are printed; --csv writes all points.
_SHOWN = 30


def add_arguments(parser: Parser) -> None:
    """Declare ``explore``."""
    parser.epilog = """\
examples:
  npusim explore study.yaml --trials 200 --csv points.csv --plot front.png
  npusim explore net resnet18 --batch 32 --device ascend910b2 \\
      --vary memories.L1.size=128KiB:2MiB:*2 --vary groups=8:48:4 \\
      --vary l2.size=24MiB:192MiB:*2 --goals time_us,area_mm2 --storage explored.db
"""
    add_study_options(parser)
    search = parser.add_argument_group("search")
    search.add_argument(
        "--goals",
        type=reader(_goals),
        metavar="NAMES",
        help=f"what is made small, of {', '.join(GOALS)}, or formulas of them such as "
        "time_us*energy_uj (default: the file's, or time_us,area_mm2)",
    )
    search.add_argument(
        "--subject-to",
        type=reader(_limit),
        action="append",
        default=[],
        metavar="LIMIT",
        help='what the front keeps, such as "area_mm2<=60"; repeatable (default: the file\'s)',
    )
    search.add_argument(
        "--trials",
        type=INTEGER,
        metavar="N",
        help="points to look at; 0: none, with --tornado (default: the file's, or 100)",
    )
    search.add_argument(
        "--seed", type=SIGNED, default=0, metavar="N", help="of the search (default: 0)"
    )
    search.add_argument(
        "--storage",
        default="",
        metavar="FILE",
        help="where Optuna keeps the search, to continue it and for its own tools; a file or a URL "
        "such as sqlite:///FILE (default: nowhere)",
    )
    search.add_argument(
        "--name", default="", metavar="NAME", help="of the search in it (default: by content)"
    )
    add_work_options(parser)
    results = parser.add_argument_group("results")
    add_file_option(results, "--csv", "write all points (or .parquet by its suffix)")
    add_file_option(results, "--plot", "draw points and front: a .png or .svg")
    add_file_option(results, "--report", "write a web page, .html (default: none)")
    add_file_option(
        results,
        "--tornado",
        "move each name to both ends of its values alone, and draw how far the first goal goes: a "
        ".png or .svg",
    )


def arrange(words: Sequence[str]) -> list[str]:
    """A line with the options of what is measured, which the parser does not know, as --option."""
    return arranged(words, add_arguments)


def execute(arguments: argparse.Namespace) -> None:
    """Search, and print the front."""
    study = study_of_words(arguments)
    check_files(arguments, csv=TABLES, plot=PLOTS, tornado=PLOTS, report=PAGES)
    if arguments.trials == 0 and not arguments.tornado:
        raise ArgumentError("--trials 0 searches nothing; give --tornado FILE with it")
    check_searchable(study)
    print(points_text(study), file=sys.stderr)
    common = picked(arguments, ("store", "jobs"))
    goals = arguments.goals or study.goals
    failed = 0
    if arguments.trials != 0:
        _quiet()
        with progress_bar() as progress:
            result = explore(
                study,
                goals=goals,
                trials=arguments.trials or 0,
                **picked(arguments, ("subject_to", "seed", "storage", "name")),
                progress=progress,
                **common,
            )
        _print_front(result)
        failed = len(result.failed)
        write_files(arguments, csv=result.write, plot=result.save_plot, report=result.report)
    if arguments.tornado:
        with progress_bar() as progress:
            goal = goals[0] if goals else "time_us"
            moved = sensitivities(study, goal=goal, progress=progress, **common)
        _print_sensitivities(moved)
        write_files(arguments, tornado=moved.save_plot)
    if failed:
        print(f"{counted(failed, 'point')} failed; --csv FILE has the errors", file=sys.stderr)


def _quiet() -> None:
    """Keep Optuna from writing a line about each search on stderr."""
    with suppress(ModuleNotFoundError):  # explore says what to install
        optuna = import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)


def _goals(text: str) -> tuple[str, ...]:
    return check_goals(text.split(","))


def _limit(text: str) -> str:
    return limit(text).text


def _print_front(result: Exploration) -> None:
    """The points that none beats, by the first goal; what all of them share is said once."""
    rows = [row for row in result.rows() if row["front"]]
    rows.sort(key=lambda row: row[result.goals[0]])
    within = f", of those with {' and '.join(result.limits)}" if result.limits else ""
    points = counted(len(result.points), "point")
    verb = "is" if len(rows) == 1 else "are"
    for line in wrap(f"{len(rows)} of {points} {verb} beaten by none in all goals{within}"):
        print(line)
    varied = result.study.varied
    names = [name for name in varied if len(rows) < 2 or len({row[name] for row in rows}) > 1]
    shared = ", ".join(f"{name}={rows[0][name]}" for name in varied if name not in names)
    cells = [
        (*(row[name] for name in names), *(rate_text(row[goal]) for goal in result.goals))
        for row in rows[:_SHOWN]
    ]
    heads = [name.split(".") for name in (*names, *result.goals)]
    if rows:
        print("\n".join(ruled(heads, cells, (), None)))
    if len(rows) > _SHOWN:
        print(f"... {len(rows) - _SHOWN:,} more; --csv FILE writes all points")
    if shared:
        print("\n".join(wrap(f"all of them: {shared}")))
    first = result.goals[0]
    title = f"WITHIN 2 % OF THE LEAST {first}"
    least = (
        f"least {row['least']} {rate_text(row[row['least']])} (at the least {first} "
        f"{rate_text(rows[0][row['least']])}): "
        + ", ".join(f"{name}={row[name]}" for name in names)
        for row in (result.cheapest(0.02) if len(rows) > 1 else ())
    )
    near = nearly(result)
    for line in (
        *items(title, least),
        *items("NEARLY WITHIN THE LIMITS", near),
        *items("NOTES", result.notes),
    ):
        print(line)


def _print_sensitivities(moved: Sensitivities) -> None:
    """Print the goal at both ends of each name."""
    goal = moved.goal
    head = ("figure", "own", "first", "last", "at first", "at last", "swing")
    cells = [
        (
            *(row[name] for name in ("name", "own", "first", "last")),
            *(
                rate_text(row[f"{goal} {end}"]) if row[f"{goal} {end}"] is not None else "-"
                for end in ("first", "last")
            ),
            rate_text(row["swing"]),
        )
        for row in moved.rows()
    ]
    print(f"{goal} is {rate_text(moved.base)}; with one figure moved:")
    print_table(head, cells, left=4)
