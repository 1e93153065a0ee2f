"""``npusim play``: a network on a device whose figures move, in a browser."""

from __future__ import annotations

import argparse

from npusim.base.errors import ArgumentError
from npusim.cli.net import TIMED, add_network, sizes_of_inputs
from npusim.cli.options import Parser, add_options, collect, picked
from npusim.results.writers.progress import ProgressBar
from npusim.reuse.answers import answers_in

#: Images where nothing is said: of one image launches take most of the time, and nothing moves it.
_BATCH = 32


def add_arguments(parser: Parser) -> None:
    """Declare ``play``."""
    add_options(parser, "what is played")
    add_network(parser, _BATCH)
    add_options(parser, "play")


def execute(arguments: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    from npusim.study.play import Play, serve  # noqa: PLC0415 - it takes time to import

    kind, workload = arguments.kind, arguments.workload
    if kind != "net":
        raise ArgumentError(f"play {kind}: it plays networks; `npusim play net {workload}`")
    if arguments.port > 65535:
        raise ArgumentError(f"--port is {arguments.port}; ports end at 65535")
    if not arguments.folder.is_dir():
        raise ArgumentError(f"--folder {arguments.folder}: there is no such folder; create it")
    with answers_in(""):
        with ProgressBar() as progress:
            game = Play(
                workload,
                arguments.device,
                vary=collect("--vary", arguments.vary),
                **sizes_of_inputs(arguments),
                **picked(arguments, TIMED),
                progress=progress,
            )

        def ready(address: str) -> None:
            print(f"open {address} (Ctrl-C ends it)", flush=True)

        serve(game, arguments.port, arguments.folder, ready)
