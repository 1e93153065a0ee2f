"""``npusim ops``: the operators, what each computes and which devices have what it needs."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from npusim.cli.console import print_json, print_table
from npusim.cli.parser import Parser
from npusim.device.catalog import devices, load_device
from npusim.ops import OPERATORS, operators


def add_arguments(parser: Parser) -> None:
    """Declare ``ops``."""
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")


def execute(arguments: argparse.Namespace) -> int:
    """Print the table of operators."""
    rows = _rows()
    if arguments.json:
        print_json(rows)
    else:
        head = ("operator", "computes", "devices")
        cells = [(row["name"], row["computes"], ", ".join(row["devices"])) for row in rows]
        print_table(head, cells, ())
    return 0


def _rows() -> list[dict[str, Any]]:
    loaded = [load_device(name) for name in devices()]
    # All operators so far multiply fp16 on the cube and would refuse any other device.
    able = [device.name for device in loaded if device.cube and "fp16" in device.cube.rates]
    return [
        {
            "name": name,
            "computes": (inspect.getdoc(OPERATORS[name]) or "").partition("\n")[0],
            "devices": able,
        }
        for name in operators()
    ]
