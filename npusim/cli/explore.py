"""``npusim explore``: the designs that none beats in time, energy and area."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from npusim.base.errors import ArgumentError
from npusim.cli.files import PAGES, PLOTS, TABLES, check_files, print_table, write_files
from npusim.cli.options import Parser, add_options, picked
from npusim.cli.sweep import arranged, points_text, progress_bar, study_of_words
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
    """Declare ``explore``; options of what is measured are read later, by their names."""
    add_options(parser, "study")
    add_options(
        parser, "goals", goals=_goals, limit=lambda text: limit(text).text, names=", ".join(GOALS)
    )
    add_options(parser, "work of a study")
    add_options(parser, "explore")


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
    common = picked(arguments, "store jobs")
    goals = arguments.goals or study.goals
    failed = 0
    if arguments.trials != 0:
        _quiet()
        with progress_bar() as progress:
            result = explore(
                study,
                goals=goals,
                trials=arguments.trials or 0,
                **picked(arguments, "subject_to seed storage name"),
                progress=progress,
                **common,
            )
        _print_front(result)
        failed = len(result.failed)
        write_files(arguments, csv=result.write, plot=result.save_plot, report=result.report)
    if arguments.tornado:
        with progress_bar() as progress:
            moved = sensitivities(study, goal=[*goals, "time_us"][0], progress=progress, **common)
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
    """What the goal is at both ends of each name."""
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
