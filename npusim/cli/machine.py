"""The options that say on what a call runs and how it is simulated, which commands share."""

from __future__ import annotations

from typing import Any

from npusim.call.options import Options
from npusim.cli.parser import assignment
from npusim.device.catalog import read_cores
from npusim.limits.table import RULES


def add_machine(add: Any, *, usual: str = "", required: bool = False, rules: bool = True) -> None:
    """Declare the device, its figures, its cores and (where there are any) whose limits hold.

    ``add`` is ``add_argument`` of a group; ``usual`` is the device taken without --device.
    """
    add(
        "--device",
        required=required,
        metavar="NAME",
        help="a device (see 'npusim devices') or a file ending in .yaml "
        f"({f'default: {usual}' if usual else 'required, no default'})",
    )
    add(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="PATH=VALUE",
        help="change a figure of the device, such as memories.L1.size=2MiB; repeatable "
        "(default: none)",
    )
    add(
        "--cores",
        type=read_cores,
        metavar="GROUPS",
        help="core groups such as 0-3,5 (a lone number is a group), or a bit mask such as 0b1111 "
        "or 0xf (default: all)",
    )
    if not rules:
        return
    add(
        "--rules",
        choices=RULES,
        default=Options.rules,
        help="refuse what the product's documentation refuses, and with strict also operators that "
        f"it does not list, or only what the device cannot do (default: {Options.rules})",
    )


def add_simulation(add: Any) -> None:
    """Declare the state of the L2 and the engine; ``add`` is ``add_argument`` of a group."""
    add(
        "--start",
        choices=("cold", "warm"),
        default=Options.start,
        help=f"L2 empty, or with the inputs in it (default: {Options.start})",
    )
    add(
        "--engine",
        default=Options.engine,
        metavar="NAME",
        help=f"simulation engine (default: {Options.engine})",
    )
