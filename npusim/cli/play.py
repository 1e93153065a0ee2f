"""``npusim play``: a network on a device whose figures move, in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from npusim.base.errors import ArgumentError
from npusim.cli.completion import complete_with, device_names
from npusim.cli.net import add_network, layer_keywords, sizes_of_inputs
from npusim.cli.parser import Parser, collect
from npusim.cli.readers import INTEGER
from npusim.cli.study import add_vary_option
from npusim.results.writers.progress import ProgressBar
from npusim.reuse.answers import answers_in

#: Images where nothing is said: of one image launches take most of the time, and nothing moves it.
_BATCH = 32


def add_arguments(parser: Parser) -> None:
    """Declare ``play``."""
    parser.epilog = """\
examples:
  npusim play net resnet50 --device ascend910b2
  npusim play net resnet18 --batch 8 --device tiny --vary memories.L1.size=64KiB:1MiB:*2
"""
    parser.add_argument("kind", metavar="net", help="what is played: networks")
    add_network(parser, _BATCH)
    moves = parser.add_argument_group("what moves")
    device = moves.add_argument(
        "--device", required=True, metavar="NAME", help="a device or a file ending in .yaml"
    )
    complete_with(device, device_names)
    add_vary_option(
        moves,
        "a figure and its values: a,b,c or first:last:step or first:last:*2; repeatable (default: "
        "sizes of memories, rates of L2 and main memory, groups, launch)",
    )
    page = parser.add_argument_group("page")
    page.add_argument(
        "--port",
        type=INTEGER,
        default=5006,
        metavar="N",
        help="of this computer; 0: any that is free (default: 5006)",
    )
    page.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where device files are saved (default: the current one)",
    )


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
                **{"batch": _BATCH, **layer_keywords(arguments)},
                progress=progress,
            )

        def ready(address: str) -> None:
            print(f"open {address} (Ctrl-C ends it)", flush=True)

        serve(game, arguments.port, arguments.folder, ready)
