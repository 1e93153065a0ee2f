"""Options of a call or a network: the machine that it runs on, and how it is simulated."""

from __future__ import annotations

from npusim.call.options import Options
from npusim.cli.completion import complete_with, device_names
from npusim.cli.parser import Parser, choice, reader
from npusim.cli.shared import Group, add_set_option
from npusim.machine.device.catalog import read_cores
from npusim.machine.device.spec import LAUNCH_MODES
from npusim.problem.limits.table import RULES

_STARTS = ("cold", "warm")

#: Ways to choose the tilings of all kernels of a network.
_TILINGS = ("auto", "library")


def add_device_options(parser: Parser, *, usual: str = "", required: bool = False) -> Group:
    """Declare the device, its figures and its cores; return their group.

    ``usual`` is the device without --device.
    """
    group = parser.add_argument_group("machine")
    default = f"default: {usual}" if usual else "required, no default"
    device = group.add_argument(
        "--device",
        required=required,
        metavar="NAME",
        help=f"a device (see 'npusim devices') or a file ending in .yaml ({default})",
    )
    complete_with(device, device_names)
    add_set_option(
        group,
        "change a figure of the device, such as memories.L1.size=2MiB, or by a factor l2.read=x2; "
        "hbm=x2 makes all that main memory rests on twice as fast; repeatable (default: none)",
    )
    group.add_argument(
        "--cores",
        type=reader(read_cores),
        metavar="GROUPS",
        help="core groups such as 0-3,5 (a lone number is a group), or a bit mask such as 0b1111 "
        "or 0xf (default: all)",
    )
    return group


def add_rules_option(group: Group) -> None:
    """Declare whose limits refuse a call."""
    group.add_argument(
        "--rules",
        type=choice(RULES),
        choices=RULES,
        default=Options.rules,
        help="refuse what the product's documentation refuses, and with strict also operators that "
        f"it does not list, or only what the device cannot do (default: {Options.rules})",
    )


def add_simulation_options(group: Group) -> None:
    """Declare how calls are launched, and by which engine they are simulated."""
    group.add_argument(
        "--launch",
        type=choice(LAUNCH_MODES),
        choices=LAUNCH_MODES,
        default=Options.launch,
        help="single, of operators called one by one, or graph, of a replayed graph "
        f"(default: {Options.launch})",
    )
    group.add_argument(
        "--start",
        type=choice(_STARTS),
        choices=_STARTS,
        default=Options.start,
        help=f"L2 empty, or with the inputs in it (default: {Options.start})",
    )
    group.add_argument(
        "--engine",
        default=Options.engine,
        metavar="NAME",
        help=f"simulation engine (default: {Options.engine})",
    )


def add_tilings_option(group: Group) -> None:
    """Declare how the tilings of all kernels of a network are chosen; it has no default here."""
    group.add_argument(
        "--tiling",
        type=choice(_TILINGS),
        choices=_TILINGS,
        help="auto, our choice, or library, the public rules of the vendor's library where there "
        "are any (default: auto; of a step, library)",
    )
