"""``npusim sweep``: a network or an operator over designs, options and tilings."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npusim.cli.console import print_table
from npusim.cli.parser import Parser, assignment, collect
from npusim.errors import ArgumentError
from npusim.ops import CARDS
from npusim.ops.card import integer
from npusim.results.lines import us_text
from npusim.results.plots import figure_bytes
from npusim.study import Study, SweepResult, load_study, sweep
from npusim.study.plots import KINDS
from npusim.study.space import make_axis
from npusim.study.subject import DEVICE, NETWORK, OPERATOR

_FLAG = re.compile(r"--[a-z][a-z-]*")

#: Rows printed; all of them are in the file of --csv.
_SHOWN = 40

_EXAMPLES = """examples:
  npusim sweep study.yaml --csv study.csv --plot study.png
  npusim sweep net resnet50 --batch 32 --device ascend910b2 \\
      --vary memories.L1.size=256KiB,512KiB,1MiB --vary groups=8:24:4
  npusim sweep conv2d_backprop_filter --layer resnet50/res4_3x3 --device ascend910 \\
      --vary batch=1,8"""


def add_arguments(parser: Parser) -> None:
    """Declare ``sweep``; options of what is measured are read later, by their names."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "what",
        nargs="+",
        metavar="STUDY",
        help="a study file ending in .yaml, or 'net NETWORK', or an operator, with options of "
        "'npusim net' or 'npusim run' such as --batch 32 behind it",
    )
    add = parser.add_argument_group("what varies").add_argument
    add("--device", metavar="NAME", help="the device; it can also vary (default: the operator's)")
    add(
        "--vary",
        action="append",
        default=[],
        type=assignment,
        metavar="NAME=VALUES",
        help="a figure of the device or an option, and its values: a,b,c or first:last:step or "
        "first:last:*2; repeatable (default: nothing varies)",
    )
    add(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="PATH=VALUE",
        help="a figure of the device at all points; repeatable (default: none)",
    )
    add(
        "--option",
        action="append",
        default=[],
        type=assignment,
        metavar="NAME=VALUE",
        help="an option of what is measured at all points, also written --NAME VALUE; repeatable "
        "(default: none)",
    )
    add("--zip", action="store_true", help="first values, second values, ... (default: all pairs)")
    add = parser.add_argument_group("work").add_argument
    add("--jobs", type=integer(1), metavar="N", help="processes (default: one per processor)")
    add("--scheduler", metavar="ADDRESS", help="a Dask scheduler such as tcp://host:8786")
    add(
        "--store",
        default="",
        metavar="FILE",
        help="where points are kept and found again (default: a file of the user's cache)",
    )
    add("--dry-run", action="store_true", help="check the study and count its points only")
    add = parser.add_argument_group("results").add_argument
    add("--csv", type=Path, metavar="FILE", help="write the table (or .parquet by its suffix)")
    add("--plot", type=Path, metavar="FILE", help="write a .png or .svg")
    add("--kind", choices=KINDS, help="of the plot (default: lines, or heat of two long axes)")
    add("--x", default="", metavar="NAME", help="across the plot (default: the longest axis)")


def execute(arguments: argparse.Namespace) -> int:
    """Measure the points and print their times."""
    study = _study(arguments)
    _check_files(arguments)
    points = f"{len(study):,} point{'s' * (len(study) != 1)}"
    print(f"{points} over {', '.join(study.varied) or 'nothing'}", file=sys.stderr)
    if arguments.dry_run:
        study.check()
        return 0
    with _bar() as progress:
        result = sweep(
            study,
            store=arguments.store,
            jobs=arguments.jobs,
            scheduler=arguments.scheduler,
            progress=progress,
        )
    _print(result)
    if arguments.csv:
        result.write(arguments.csv)
        print(f"wrote {arguments.csv}")
    if arguments.plot:
        ax = result.plot(x=arguments.x, kind=arguments.kind or "")
        arguments.plot.write_bytes(figure_bytes(ax, arguments.plot.suffix.lower()[1:]))
        print(f"wrote {arguments.plot}")
    sys.stdout.flush()
    if result.failed:
        raise ArgumentError(
            f"{len(result.failed)} of {len(result)} points failed; the first: "
            f"{result.failed[0].error}"
        )
    return 0


def _study(arguments: argparse.Namespace) -> Study:
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
    axes = collect("--vary", arguments.vary)
    study = Study(
        fixed=fixed,
        axes=tuple(make_axis(name, values, fixed) for name, values in axes.items()),
        combine="zip" if arguments.zip else "grid",
    )
    study.check()
    return study


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse suffixes that nothing writes before anything is measured."""
    for name, suffixes in (("csv", (".csv", ".parquet")), ("plot", (".png", ".svg"))):
        path = getattr(arguments, name)
        if path is not None and path.suffix.lower() not in suffixes:
            raise ArgumentError(f"--{name} {path}: the file must end in {' or '.join(suffixes)}")


def arrange(words: Sequence[str]) -> list[str]:
    """A line with the options of what is measured, which the parser does not know, as --option."""
    parser = Parser()
    add_arguments(parser)
    own = {*_FLAG.findall(parser.format_usage()), "--help", "--debug"}
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if not _FLAG.fullmatch(flag) or flag in own:
            found.append(word)
            continue
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "yes"
        found += ["--option", f"{flag[2:].replace('-', '_')}={value}"]
    return found


@contextmanager
def _bar() -> Iterator[Any]:
    """A bar with points, rate and time left; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        *(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, note="")

        def report(done: int, total: int, known: int) -> None:
            speed = bar.tasks[0].speed
            note = f"{speed:.1f}/s" if speed else ""
            note += f", {known:,} known" if known else ""
            bar.update(task, completed=done, total=total, note=note)

        yield report


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
            row.get("bottleneck", "") or row["error"][:40],
        )
        for row in rows[:_SHOWN]
    ]
    left = (len(names) + 1, len(names) + 2)
    print_table((*names, "us", "", "bottleneck"), cells, left)
    if len(rows) > _SHOWN:
        print(f"... {len(rows) - _SHOWN:,} more; --csv FILE writes all of them")
