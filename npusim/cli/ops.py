"""``npusim ops``: the operators, where they run, and the documented limits of one on a device."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from npusim.cli.files import print_json, print_table
from npusim.cli.options import Parser, add_options, add_show
from npusim.device.catalog import devices, load_device
from npusim.device.spec import Device
from npusim.limits.table import (
    UNDOCUMENTED,
    Rule,
    documented_operators,
    load_rules,
    no_page,
    sister_rules,
)
from npusim.ops import CARDS, operators
from npusim.results.lines import wrap

#: What is told of a limit, and what of it that is.
_KEYS = ("parameter", "fact", "permitted", "when", "status", "basis", "stage", "always")
_FACTS = attrgetter(*("condition" if key == "when" else key for key in _KEYS))


def add_arguments(parser: Parser) -> None:
    """Declare ``ops`` and ``ops show``."""
    about = "show what a device's documentation permits for an operator"
    names = ", ".join(sorted((*documented_operators(), *UNDOCUMENTED)))
    show = add_show(parser, about, f"an operator: {names}")
    add_options(show, "ops show")


def execute(arguments: argparse.Namespace) -> None:
    """Print the table of operators, or the limits of one."""
    if arguments.action == "show":
        device = load_device(arguments.device)
        show = _show_undocumented if arguments.name in UNDOCUMENTED else _show
        show(arguments.name, device, arguments.json)
        return
    rows = _rows()
    if arguments.json:
        print_json(rows)
    else:
        head = ("operator", "computes", "devices")
        cells = [(row["name"], row["computes"], _short(row["devices"])) for row in rows]
        print_table(head, cells, len(head))


def _short(names: list[str]) -> str:
    """The names of devices, or those that are missing where these are fewer."""
    others = [name for name in devices() if name not in names]
    return ", ".join(names) if len(names) <= len(others) else f"all but {', '.join(others)}"


def _rows() -> list[dict[str, Any]]:
    loaded = [load_device(name) for name in devices()]
    return [
        {
            "name": name,
            "computes": CARDS[name].computes,
            "devices": [device.name for device in loaded if _runs(CARDS[name].role, device)],
        }
        for name in operators()
    ]


def _runs(role: str, device: Device) -> bool:
    """Whether a device has cores of a role; the cube must multiply fp16."""
    has = any(role in kind.roles for kind in device.cores.values())
    return has and (role != "cube" or (device.cube is not None and "fp16" in device.cube.rates))


def _show(operator: str, device: Device, as_json: bool) -> None:
    table = load_rules(device.product, operator)
    rows = _facts(table.rules)
    if as_json:
        facts = {"operator": operator, "title": table.title, "device": device.name}
        facts |= {"product": table.product, "product_title": table.product_title}
        print_json({**facts, "note": table.note, "rules": rows})
        return
    print(f"{operator} on {device.name}: {table.title}, limits of {table.product_title}")
    if table.note:
        print(f"note: {table.note}")
    print()
    _print_rules(rows)


def _show_undocumented(operator: str, device: Device, as_json: bool) -> None:
    """That no page of an operator's limits is at hand, and those of its sister."""
    title, sister = UNDOCUMENTED[operator]
    table = load_rules(device.product, sister) if sister else None
    rows = _facts(sister_rules(table)) if table is not None else []
    note = f"{no_page(operator)}: what the kernels of {device.name} can compute is permitted"
    if as_json:
        facts = {"operator": operator, "title": title, "device": device.name, "sister": sister}
        facts |= {"product": "", "product_title": "", "note": note, "rules": []}
        print_json({**facts, "sister_rules": rows})
        return
    print(f"{operator} on {device.name}: {title}")
    print("\n".join(wrap(f"note: {note}", later="  ")))
    if table is None:
        return
    said = (
        f"a call that the limits of its sister {table.title} ({table.product_title}) would not "
        "permit says so in a note; they are"
    )
    print("\n".join([*wrap(said), ""]))
    _print_rules(rows)


def _facts(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    return [dict(zip(_KEYS, _FACTS(rule), strict=True)) for rule in rules]


def _print_rules(rows: Iterable[dict[str, Any]]) -> None:
    cells = [(_subject(row), row["permitted"], _status(row), row["basis"]) for row in rows]
    print_table(("parameter", "permitted", "otherwise", "basis"), cells, 4)


def _subject(row: dict[str, Any]) -> str:
    """The parameter, what of it, and when the row applies."""
    what = "" if row["fact"] == row["parameter"] else f": {row['fact']}"
    when = f" ({row['when']})" if row["when"] else ""
    return f"{row['parameter']}{what}{when}"


def _status(row: dict[str, Any]) -> str:
    return "error" if row["status"] is None else str(row["status"])
