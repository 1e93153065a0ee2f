"""The study on a command line, and its progress: of ``npusim sweep`` and ``npusim explore``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from npusim.base.content import Content, require_content
from npusim.base.errors import ArgumentError
from npusim.cli.completion import complete_with, device_names, figure_names
from npusim.cli.parser import ASSIGNMENT, OPTION, Parser, collect
from npusim.cli.shared import Group, add_jobs_option, add_set_option, changed_figures
from npusim.ops import CARDS
from npusim.results.facts.number_text import counted
from npusim.results.writers.progress import Bar
from npusim.study.space import Study, load_study, make_study
from npusim.study.subject import DEVICE, NETWORK, OPERATOR

# -- options -----------------------------------------------------------------------------------


def add_study_options(parser: Parser) -> Group:
    """Declare the study and what varies; return the group of the latter.

    Options of what is measured are read later, by their names: ``arranged``.
    """
    parser.add_argument(
        "what",
        nargs="+",
        metavar="STUDY",
        help="a study file ending in .yaml, or 'net NETWORK', or an operator, with options of "
        "'npusim net' or 'npusim run' such as --batch 32 behind it",
    )
    varies = parser.add_argument_group("what varies")
    device = varies.add_argument(
        "--device", metavar="NAME", help="the device; it can also vary (default: the operator's)"
    )
    complete_with(device, device_names)
    add_vary_option(
        varies,
        "a figure of the device or an option, and its values: a,b,c or first:last:step or "
        "first:last:*2; repeatable (default: nothing varies)",
    )
    add_set_option(varies, "a figure of the device at all points; repeatable (default: none)")
    varies.add_argument(
        "--option",
        type=ASSIGNMENT,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of what is measured at all points, also written --NAME VALUE; repeatable "
        "(default: none)",
    )
    return varies


def add_vary_option(group: Group, about: str) -> None:
    """Declare names that vary, with their values."""
    option = group.add_argument(
        "--vary", type=ASSIGNMENT, action="append", default=[], metavar="NAME=VALUES", help=about
    )
    complete_with(option, figure_names)


def add_work_options(parser: Parser) -> Group:
    """Declare how the points are measured and kept; return their group."""
    work = parser.add_argument_group("work")
    add_jobs_option(work, "measure points")
    work.add_argument(
        "--store",
        default="",
        metavar="FILE",
        help="where points are kept and found again (default: a file of the user's cache)",
    )
    return work


def arranged(words: Sequence[str], add_arguments: Callable[[Parser], None]) -> list[str]:
    """A line with the options of what is measured, which the parser does not know, as --option."""
    parser = Parser()
    add_arguments(parser)
    declared = {*OPTION.findall(parser.format_usage()), "--help", "--debug"}
    line: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if not OPTION.fullmatch(flag) or flag in declared:
            line.append(word)
            continue
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "yes"
        line += ["--option", f"{flag[2:].replace('-', '_')}={value}"]
    return line


# -- the study ---------------------------------------------------------------------------------


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
    fixed |= changed_figures(arguments)
    combine = "zip" if getattr(arguments, "zip", False) else "grid"
    return make_study(fixed, collect("--vary", arguments.vary), combine)


def points_text(study: Study) -> str:
    """The number of points of a study, and over which names they go."""
    over = f" over {', '.join(study.varied)}" if study.varied else "; nothing varies"
    return f"{counted(len(study), 'point')}{over}"


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, int], None]]:
    """A bar with points, rate and time left; a line a minute where stderr is no terminal.

    An interrupt says how many points are kept.
    """
    last = (0, 0)
    with Bar(0.0, left=True) as bar:

        def report(done: int, total: int, known: int) -> None:
            nonlocal last
            last = (done, total)
            notes = ["points"]
            if bar.speed:
                notes.append(f"{bar.speed:.1f}/s")
            if known:
                notes.append(f"{known:,} known")
            bar.show("measured", done, total, ", ".join(notes))

        try:
            yield report
        except KeyboardInterrupt as stop:
            done, total = last
            if not total:
                raise KeyboardInterrupt from stop
            raise KeyboardInterrupt(
                f"{done:,} of {total:,} points are kept: the same command goes on with the rest"
            ) from stop
