"""``npusim play``: a network on a device whose figures move, in a browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from npusim.cli.net import add_network
from npusim.cli.parser import Parser, assignment, collect
from npusim.device.answers import answers_in
from npusim.errors import ArgumentError
from npusim.ops.card import integer
from npusim.results.progress import ProgressBar, ProgressLines

_EXAMPLES = """examples:
  npusim play net resnet50 --device ascend910b2
  npusim play net resnet18 --batch 8 --device tiny --vary memories.L1.size=64KiB:1MiB:*2"""

#: Images where nothing is said: of one image launches take most of the time, and nothing moves it.
_BATCH = 32


def add_arguments(parser: Parser) -> None:
    """Declare ``play``."""
    parser.epilog = _EXAMPLES
    parser.add_argument("kind", metavar="net", help="what is played: networks")
    add_network(parser, _BATCH)
    add = parser.add_argument_group("what moves").add_argument
    add("--device", required=True, metavar="NAME", help="a device or a file ending in .yaml")
    add(
        "--vary",
        action="append",
        default=[],
        type=assignment,
        metavar="NAME=VALUES",
        help="a figure and its values: a,b,c or first:last:step or first:last:*2; repeatable "
        "(default: sizes of memories, rates of L2 and main memory, groups, launch)",
    )
    add = parser.add_argument_group("page").add_argument
    add("--port", type=integer(0), default=5006, metavar="N",
        help="of this computer; 0: any that is free (default: 5006)")  # fmt: skip
    add("--folder", type=Path, default=Path(), metavar="DIR",
        help="where device files are saved (default: the current one)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from npusim.study.play import Play  # noqa: PLC0415 - it takes time to import
    from npusim.study.played import serve  # noqa: PLC0415

    kind, workload = arguments.kind, arguments.workload
    if kind != "net":
        raise ArgumentError(f"play {kind}: it plays networks; `npusim play net {workload}`")
    if arguments.port > 65535:
        raise ArgumentError(f"--port is {arguments.port}; ports end at 65535")
    if not arguments.folder.is_dir():
        raise ArgumentError(f"--folder {arguments.folder}: there is no such folder; create it")
    with answers_in(""):
        with ProgressBar() if sys.stderr.isatty() else ProgressLines() as progress:
            game = Play(
                workload,
                arguments.device,
                vary=collect("--vary", arguments.vary),
                input_shape=arguments.input_shape,
                batch=arguments.batch,
                dtype=arguments.dtype,
                passes=arguments.passes,
                gradients=arguments.gradients,
                cube_math_type=arguments.cube_math_type,
                every_input=arguments.every_input,
                progress=progress,
            )

        def ready(address: str) -> None:
            print(f"open {address} (Ctrl-C ends it)", flush=True)

        serve(game, arguments.port, arguments.folder, ready)
    return 0
