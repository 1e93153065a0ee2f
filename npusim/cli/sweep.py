"""``npusim sweep``: a network or an operator over designs, options and tilings.

The study on a command line and its progress are those of ``npusim explore`` too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from npusim.base.content import Content, require_content
from npusim.base.errors import ArgumentError
from npusim.cli.files import PAGES, PLOTS, TABLES, check_files, print_table, write_files
from npusim.cli.options import OPTION, Parser, add_options, collect, picked
from npusim.ops import CARDS
from npusim.results.facts.number_text import counted, percent_text, us_text
from npusim.results.writers.plots import save_plot
from npusim.results.writers.progress import Bar
from npusim.results.writers.text_layout import items
from npusim.study.result import KINDS, SweepResult
from npusim.study.runner import sweep
from npusim.study.space import Study, load_study, make_study
from npusim.study.subject import DEVICE, NETWORK, OPERATOR, Row, split


def study_of_words(arguments: argparse.Namespace) -> Study:
    """The study of a file, or of the words on the command line."""
    first, *others = arguments.what
    if first.endswith((".yaml", ".yml")):
        if others or arguments.vary or arguments.set or arguments.device or arguments.option:
            raise ArgumentError(f"{first} states everything; give no further words or options")
        return load_study(Path(first))
    fixed = dict(collect("--option", arguments.option))
    if first == "net" and len(others) == 1:
        fixed[NETWORK] = others[0]
    elif first in CARDS and not others:
        fixed[OPERATOR] = first
    else:
        require_content(Path(first), (Content.STUDY,), "a study file")
        raise ArgumentError(
            f"expected a study file, 'net NETWORK' or an operator ({', '.join(CARDS)}), got "
            f"{' '.join(arguments.what)!r}"
        )
    if arguments.device:
        fixed[DEVICE] = arguments.device
    fixed |= collect("--set", arguments.set)
    combine = "zip" if getattr(arguments, "zip", False) else "grid"
    return make_study(fixed, collect("--vary", arguments.vary), combine)


def points_text(study: Study) -> str:
    """How many points a study has, and over which names."""
    over = f" over {', '.join(study.varied)}" if study.varied else "; nothing varies"
    return f"{counted(len(study), 'point')}{over}"


def arranged(words: Sequence[str], add_arguments: Callable[[Parser], None]) -> list[str]:
    """A line with the options of what is measured, which the parser does not know, as --option."""
    parser = Parser()
    add_arguments(parser)
    own = {*OPTION.findall(parser.format_usage()), "--help", "--debug"}
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if not OPTION.fullmatch(flag) or flag in own:
            found.append(word)
            continue
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "yes"
        found += ["--option", f"{flag[2:].replace('-', '_')}={value}"]
    return found


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, int], None]]:
    """A bar with points, rate and time left; a line a minute where stderr is no terminal.

    An interrupt says how many points are kept.
    """
    far = (0, 0)
    with Bar(0.0, left=True) as bar:

        def report(done: int, total: int, known: int) -> None:
            nonlocal far
            far = (done, total)
            notes = ["points"]
            if bar.speed:
                notes.append(f"{bar.speed:.1f}/s")
            if known:
                notes.append(f"{known:,} known")
            bar.show("measured", done, total, ", ".join(notes))

        try:
            yield report
        except KeyboardInterrupt as stop:
            done, total = far
            kept = f"{done:,} of {total:,} points are kept: the same command goes on with the rest"
            raise KeyboardInterrupt(kept if total else "") from stop


# -- the command -----------------------------------------------------------------------------------


#: Rows printed; all of them are in the file of --csv.
_SHOWN = 40

#: Different errors that are printed in full.
_FAILURES = 4


def add_arguments(parser: Parser) -> None:
    """Declare ``sweep``; options of what is measured are read later, by their names."""
    for section in ("study", "ways of a sweep", "work of a study"):
        add_options(parser, section)
    add_options(parser, "sweep", kinds=KINDS)


def execute(arguments: argparse.Namespace) -> None:
    """Measure the points and print their times."""
    study = study_of_words(arguments)
    check_files(arguments, csv=TABLES, plot=PLOTS, report=PAGES)
    print(points_text(study), file=sys.stderr)
    if arguments.dry_run:
        study.check()
        return
    with progress_bar() as progress:
        options = picked(arguments, "store jobs scheduler")
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
    left = (len(names) + 1, len(names) + 2)
    print_table((*names, "us", "", "bottleneck", "saves"), cells, left)
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
    """What holds the fastest memory back, where its rate varies: points that differ in nothing."""
    varied = [name for name in result.study.varied if name.endswith("memory.read")]
    found = {setting.get(name): setting for name in varied for setting in result.study.points()}
    devices = (split(setting).device for setting in found.values())
    return [note for note in (device.held_back for device in devices) if note][-1:]
