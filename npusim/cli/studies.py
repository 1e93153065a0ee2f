"""What ``sweep`` and ``explore`` share: the study on a command line, and its progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from npusim.base.errors import ArgumentError
from npusim.cli.options import OPTION, Parser, collect
from npusim.ops import CARDS
from npusim.results.progress import Bar
from npusim.study.space import Study, load_study, make_study
from npusim.study.subject import DEVICE, NETWORK, OPERATOR


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
        raise ArgumentError(
            f"expected a study file, 'net NETWORK' or an operator ({', '.join(CARDS)}), got "
            f"{' '.join(arguments.what)!r}"
        )
    if arguments.device:
        fixed[DEVICE] = arguments.device
    fixed |= collect("--set", arguments.set)
    combine = "zip" if getattr(arguments, "zip", False) else "grid"
    return make_study(fixed, collect("--vary", arguments.vary), combine)


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
    """A bar with points, rate and time left; none where stderr is no terminal.

    An interrupt says how many points are kept.
    """
    far = (0, 0)
    with Bar(0.0, left=True) if sys.stderr.isatty() else nullcontext() as bar:

        def report(done: int, total: int, known: int) -> None:
            nonlocal far
            far = (done, total)
            if bar is not None:
                note = f"{bar.speed:.1f}/s" if bar.speed else ""
                bar.show("", done, total, note + (f", {known:,} known" if known else ""))

        try:
            yield report
        except KeyboardInterrupt as stop:
            done, total = far
            kept = f"{done:,} of {total:,} points are kept: the same command goes on with the rest"
            raise KeyboardInterrupt(kept if total else "") from stop
