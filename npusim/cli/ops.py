"""``npusim ops``: the operators, where they run, and the documented limits of one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from npusim.cli.completion import complete_with, device_names
from npusim.cli.files import print_json, print_table
from npusim.cli.parser import Parser
from npusim.cli.shared import add_show_command
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.spec import Device
from npusim.ops import CARDS, operators
from npusim.problem.limits.table import (
    LimitRule,
    LimitTable,
    Undocumented,
    documented_products,
    load_rules,
    sister_rules,
)
from npusim.results.writers.text_layout import wrap

#: Keys of a limit in JSON, and the fields of a rule that they show.
_KEYS = ("parameter", "fact", "permitted", "when", "status", "basis", "stage", "always")
_FACTS = attrgetter(*("condition" if key == "when" else key for key in _KEYS))


def add_arguments(parser: Parser) -> None:
    """Declare ``ops`` and ``ops show``."""
    about = "show what the documentation permits for an operator, on a device or on all products"
    show = add_show_command(parser, about, f"an operator: {', '.join(operators())}")
    device = show.add_argument(
        "--device",
        metavar="NAME",
        help="a device (see 'npusim devices') or a file ending in .yaml (default: the limits of "
        "all products, side by side)",
    )
    complete_with(device, device_names)


def execute(arguments: argparse.Namespace) -> None:
    """Print the table of operators, or the limits of one."""
    if arguments.action == "show":
        undocumented = CARDS[arguments.name].undocumented if arguments.name in CARDS else None
        if undocumented is not None:
            _show_undocumented(arguments.name, undocumented, arguments.device, arguments.json)
        elif arguments.device is None:
            _show_all(arguments.name, arguments.json)
        else:
            _show(arguments.name, load_device(arguments.device), arguments.json)
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
    """True where a device has cores of a role; the cube must multiply fp16."""
    if not any(role in kind.roles for kind in device.cores.values()):
        return False
    return role != "cube" or (device.cube is not None and "fp16" in device.cube.rates)


def _show(operator: str, device: Device, as_json: bool) -> None:
    """Print the limits that hold for an operator on a device."""
    table = load_rules(device.product, operator)
    if as_json:
        facts = {"operator": operator, "title": table.title, "device": device.name}
        facts |= {"product": table.product, "product_title": table.product_title}
        print_json({**facts, "note": table.note, "rules": [_facts(rule) for rule in table.rules]})
        return
    print(f"{operator} on {device.name}: {table.title}, limits of {table.product_title}")
    if table.note:
        print(f"note: {table.note}")
    print()
    _print_limits([(rule, ()) for rule in table.rules], 0)
    _print_sources(table.rules)


def _show_all(operator: str, as_json: bool) -> None:
    """Print the limits of an operator on every product whose documentation lists it."""
    tables = _tables(operator)
    if as_json:
        listed = [
            {"product": name, "product_title": table.product_title}
            | {"rules": [_facts(rule) for rule in table.rules]}
            for name, table in tables.items()
        ]
        title = next(iter(tables.values())).title
        print_json({"operator": operator, "title": title, "products": listed})
        return
    print(f"{operator}: {next(iter(tables.values())).title}, limits of")
    _print_products(tables)
    print()
    rules = [(rule, (product,)) for product, table in tables.items() for rule in table.rules]
    _print_limits(rules, len(tables))
    _print_sources(rule for rule, _ in rules)


def _show_undocumented(
    operator: str, undocumented: Undocumented, name: str | None, as_json: bool
) -> None:
    """Print that no page of an operator's limits is at hand, and the limits of its sister."""
    title, sister = undocumented.title, undocumented.sister
    device = None if name is None else load_device(name)
    if not sister:
        tables = {}
    elif device is None:
        tables = _tables(sister)
    else:
        tables = {device.product: load_rules(device.product, sister)}
    where = "" if device is None else f" of {device.name}"
    note = f"{undocumented.no_page(operator)}: what the kernels{where} can compute is permitted"
    if as_json:
        listed = [
            {"product": product, "product_title": table.product_title}
            | {"rules": [_facts(rule) for rule in sister_rules(table)]}
            for product, table in tables.items()
        ]
        facts = {"operator": operator, "title": title, "note": note, "rules": []}
        facts |= {} if device is None else {"device": device.name}
        print_json({**facts, "sister": sister, "sister_products": listed})
        return
    print(f"{operator}{'' if device is None else f' on {device.name}'}: {title}")
    print("\n".join(wrap(f"note: {note}", later="  ")))
    if tables:
        other = next(iter(tables.values())).title
        said = (
            f"a result says so where the limits of {other} (grad_output is the output) do not "
            "permit its layer; these are those of"
        )
        print("\n".join(wrap(said)))
        _print_products(tables)
        print()
        rules = [(rule, (key,)) for key, table in tables.items() for rule in sister_rules(table)]
        _print_limits(rules, len(tables))
        _print_sources(rule for rule, _ in rules)


def _tables(operator: str) -> dict[str, LimitTable]:
    """The limits of an operator by product, of every product whose documentation lists it."""
    products = documented_products(operator)
    return {product: load_rules(product, operator) for product in products or [""]}


def _print_products(tables: Mapping[str, LimitTable]) -> None:
    """Print the products of tables with their devices."""
    for product, table in tables.items():
        named = [name for name in devices() if load_device(name).product == product]
        print(f"  {product or table.product}: {table.product_title} ({', '.join(named)})")


def _print_limits(rules: Sequence[tuple[LimitRule, tuple[str, ...]]], products: int) -> None:
    """Print rules, each with the products it holds on where it does not hold on all ``products``.

    Rules that permit the same of several parameters, or on several products, share a row. Rows
    stand in the order of their first rules.
    """
    names_of: dict[tuple[str, str, str], list[str]] = {}
    for rule, holds_on in rules:
        permitted, otherwise = _limit(rule)
        names = names_of.setdefault((_subject(rule), permitted, otherwise), [])
        names += [product for product in holds_on if product not in names]
    parameters_of: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (subject, permitted, otherwise), names in names_of.items():
        parameter, _, condition = subject.partition("|")
        row = (condition, permitted, otherwise, tuple(names))
        parameters_of.setdefault(row, []).append(parameter)
    cells = []
    for (condition, permitted, otherwise, on), parameters in parameters_of.items():
        where = f" [{', '.join(on)}]" if len(on) < products else ""
        cells.append((f"{_listed(parameters)}{condition}", f"{permitted}{where}", otherwise))
    print_table(("parameter", "permitted", "otherwise, by"), cells, 3)


def _listed(parameters: Sequence[str]) -> str:
    """Names of parameters; of several with the same field the field once, behind them."""
    operands = [name.partition(".") for name in parameters]
    fields = {field for _, _, field in operands}
    if len(parameters) > 1 and len(fields) == 1 and fields != {""}:
        return f"{fields.pop()} of {', '.join(operand for operand, _, _ in operands)}"
    return ", ".join(parameters)


def _subject(rule: LimitRule) -> str:
    """The parameter, and behind a bar which fact of it is looked at and when."""
    what = "" if rule.fact == rule.parameter else f": {rule.fact}"
    when = f" if {', '.join(map(_condition, rule.when.items()))}" if rule.when else ""
    return f"{rule.parameter}|{what}{when}"


def _condition(condition: tuple[str, Sequence[Any]]) -> str:
    """A fact and the values that it must have, in words."""
    fact, values = condition
    if list(values) == [True]:
        return fact
    if list(values) == [False]:
        return f"not {fact}"
    return f"{fact} = {' or '.join(map(str, values))}"


def _limit(rule: LimitRule) -> tuple[str, str]:
    """The permission of a rule, and the status otherwise with the short name of its source."""
    status = "error" if rule.status is None else str(rule.status)
    return rule.permitted, f"{status} {rule.source}"


def _facts(rule: LimitRule) -> dict[str, Any]:
    """A rule as JSON has it."""
    return dict(zip(_KEYS, _FACTS(rule), strict=True))


def _print_sources(rules: Iterable[LimitRule]) -> None:
    """Print what the short names of the sources stand for."""
    sources: dict[str, str] = {}
    for rule in rules:
        sources.setdefault(rule.source, rule.basis)
    print()
    for name, words in sources.items():
        print("\n".join(wrap(f"{name}: {words}", later="  ")))
