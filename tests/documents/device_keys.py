"""The tables of the keys of a device file, from the dataclasses that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import partial
from inspect import getsource
from typing import Any, get_origin, get_type_hints

from npusim.base.quantities import format_quantity
from npusim.machine.device import parts
from npusim.machine.device.all_reduce import Cards
from npusim.machine.device.silicon import Silicon
from npusim.machine.device.spec import Device

#: The records of a device file by the section that lists their keys.
RECORDS: dict[str, type] = {
    "keys of a device": Device,
    "keys of a core": parts.CoreKind,
    "keys of a memory": parts.Memory,
    "keys of a pipe": parts.Pipe,
    "keys of a path": parts.Path,
    "keys of a link": parts.Link,
    "keys of the cube": parts.Cube,
    "keys of the vector unit": parts.Vector,
    "keys of gemm": parts.Gemm,
    "keys of sync": parts.Sync,
    "keys of l2": parts.L2Cache,
    "keys of main memory": parts.MainMemory,
    "keys of silicon": Silicon,
    "keys of launch": parts.Launch,
    "keys of cards": Cards,
}

#: What kinds of quantities are called in the tables.
UNITS = {
    "bool": "flag",
    "fraction_cycles": "cycles, fractions",
    "byte_energy": "energy per byte",
    "density": "area per size",
}


def rows(record: type) -> Iterator[tuple[str, str, str, str]]:
    """Key, value, default and meaning of each field that a file may state."""
    hints, told = get_type_hints(record), _meanings(record)
    for field in fields(record):
        if field.name in told:
            key = str(field.metadata.get("key", field.name))
            value = _value(field, hints[field.name])
            yield f"`{key}`", value, _default(field, hints[field.name]), told[field.name]


def _meanings(record: type) -> dict[str, str]:
    """What the comments above fields say, by field."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in getsource(record).splitlines():
        text = line.strip()
        if text.startswith("#: "):
            above.append(text[3:])
        elif above:
            found[text.partition(":")[0]] = " ".join(above)
            above = []
    return found


def _value(field: Field[Any], hint: Any) -> str:
    """What stands after the key."""
    unit = str(field.metadata.get("unit", ""))
    if unit.startswith("map:"):
        return f"{UNITS.get(unit[4:], unit[4:])} by name"
    if unit:
        return UNITS.get(unit, unit)
    if hint in (str, tuple[str, ...]):
        return "text" if hint is str else "list"
    if get_origin(hint) is Mapping:
        return "text by name" if hint == Mapping[str, str] else "keys by name"
    return "keys"


def _default(field: Field[Any], hint: Any) -> str:
    """What holds where the file says nothing."""
    default = field.default
    if field.default_factory is not MISSING or "None" in str(hint) or default in ((), ""):
        return "none"
    if default is MISSING:
        return "required"
    if not default and "digest" in field.metadata:
        return "none"
    unit = field.metadata.get("unit")
    return format_quantity(default, unit) if unit else str(default)


def _table(record: type) -> str:
    lines = [("key", "value", "default", "meaning"), ("---",) * 4, *rows(record)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


#: The tables by section.
KEY_TABLES: dict[str, Callable[[], str]] = {
    name: partial(_table, record) for name, record in RECORDS.items()
}
