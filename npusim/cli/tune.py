"""``npusim tune``: search the tilings of a kernel for the fastest, and prove that it is."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from math import inf

from npusim.base.atomic_files import write
from npusim.call.tilings.proof import Progress
from npusim.call.tune import tune
from npusim.cli import call_options, calls
from npusim.cli.files import ANY, PLOTS, check_files, print_json, write_files
from npusim.cli.parser import Parser, picked
from npusim.cli.readers import COUNT
from npusim.cli.shared import Group, add_file_option, add_jobs_option
from npusim.kernels.vendor.cann_export import cann_of
from npusim.machine.program.kernel import Kernel
from npusim.results.writers.progress import Bar

#: A line with the operator right behind "tune", where it may also stand later.
arrange = call_options.arrange


def add_arguments(parser: Parser) -> None:
    """Declare ``tune`` and a command for every operator below it."""
    parser.epilog = """\
'npusim tune OPERATOR --help' lists the options of one.

examples:
  npusim tune conv2d_backprop_filter --layer resnet50/res4_3x3 --batch 32 --device ascend910b2
  npusim tune matmul --m 512 --k 1024 --n 512 --device ascend910 --budget 30s --csv tilings.csv
  npusim tune --kernel scale.py:Scale --arg count=4096 --device ascend910b2 --plot tilings.png"""
    call_options.add_calls(parser, _add_options, numbers=False)


def _add_options(command: Parser, _simulation: Group) -> None:
    group = command.add_argument_group("search")
    group.add_argument(
        "--which",
        default="",
        metavar="KERNEL",
        help="the kernel to tune, where the operator launches several (default: the only one)",
    )
    group.add_argument(
        "--budget",
        metavar="RUNS|TIME",
        help="stop after so many simulations (200) or so long (30s, 2min) and state what is not "
        "proved (default: go on to the proof)",
    )
    add_jobs_option(group, "look at tilings")
    group.add_argument(
        "--store",
        default="",
        metavar="FILE",
        help="where to keep what is found, so that a search that was stopped goes on; none for "
        "nowhere (default: tuned.sqlite in the user's cache)",
    )
    group.add_argument(
        "--top", type=COUNT, default=10, metavar="N", help="tilings to print (default: 10)"
    )
    add_file_option(group, "--csv", "write a row per tiling (default: no)")
    add_file_option(
        group,
        "--cann",
        "write the fastest tiling in the vendor's words as JSON, as --tiling @FILE takes it, where "
        "they can say it (default: no)",
    )
    add_file_option(
        group,
        "--plot",
        "draw a heat map of times, and times against bytes of L1 and of global memory, into a .png "
        "or .svg file (default: no)",
    )


def execute(arguments: argparse.Namespace) -> None:
    """Search, then print the verdict and the leading tilings, and write what is asked for."""
    check_files(arguments, csv=ANY, cann=ANY, plot=PLOTS)
    prepared = calls.prepare(arguments, timing_only=True)
    what = prepared.problem if isinstance(prepared.problem, Kernel) else prepared.run
    store = None if arguments.store == "none" else arguments.store
    try:
        with Bar() as bar:
            tuned = tune(
                what,
                device=prepared.device,
                kernel=arguments.which,
                **picked(arguments, ("cores", "launch", "start", "budget", "jobs")),
                store=store,
                progress=partial(_show, bar),
            )
    except KeyboardInterrupt as stop:
        if store is not None:
            raise KeyboardInterrupt("the same command goes on where it was") from stop
        raise
    if arguments.json:
        print_json(tuned.to_json(arguments.top))
    else:
        sys.stdout.write(tuned.text(arguments.top))
    write_files(
        arguments,
        csv=tuned.to_csv,
        cann=lambda file: write(file, json.dumps(cann_of(tuned.best).words, indent=2) + "\n"),
        plot=tuned.plot,
    )


def _show(bar: Bar, progress: Progress) -> None:
    """Show how many tilings a search has ruled out so far."""
    best = f"best {progress.best:,}" if progress.best < inf else "no tiling yet"
    gap = ""
    if progress.least < progress.best < inf:
        gap = f", {1 - progress.least / progress.best:.1%} open"
    text = f"{best}{gap}, {progress.simulated:,} simulated"
    bar.show(text, progress.settled, progress.candidates, "tilings ruled out")
