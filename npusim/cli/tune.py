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
from npusim.cli import calls
from npusim.cli.files import ANY, PLOTS, check_files, print_json, write_files
from npusim.cli.options import Parser, add_options, picked
from npusim.kernels.vendor.cann_export import cann_of
from npusim.machine.program.kernel import Kernel
from npusim.results.writers.progress import Bar

#: A line with the operator right behind "tune", where it may also stand later.
arrange = calls.arrange


def add_arguments(parser: Parser) -> None:
    """Declare ``tune`` and a command for every operator below it."""
    add_options(parser, "about tune")
    calls.add_calls(parser, "tune", numbers=False)


def execute(arguments: argparse.Namespace) -> None:
    """Search, then print the verdict and the leading tilings, and write what is asked for."""
    check_files(arguments, csv=ANY, cann=ANY, plot=PLOTS)
    prepared = calls.prepare(arguments, timing_only=True)
    own = isinstance(prepared.problem, Kernel)
    what = prepared.problem if own else prepared.run
    store = None if arguments.store == "none" else arguments.store
    try:
        with Bar() as bar:
            tuned = tune(
                what,
                device=prepared.device,
                kernel=arguments.which,
                **picked(arguments, "cores launch start budget jobs"),
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


def _show(bar: Bar, told: Progress) -> None:
    """What a search has ruled out so far."""
    best = f"best {told.best:,}" if told.best < inf else "no tiling yet"
    gap = f", {1 - told.least / told.best:.1%} open" if told.least < told.best < inf else ""
    text = f"{best}{gap}, {told.simulated:,} simulated"
    bar.show(text, told.settled, told.candidates, "tilings ruled out")
