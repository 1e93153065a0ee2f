"""The calls of ``tests/data/refusals.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device

TABLE = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "refusals.yaml").read_text(encoding="utf-8")
)


def fact(value: Any) -> Any:
    """What a fact is: a list of the file is a tuple."""
    return tuple(map(fact, value)) if isinstance(value, list) else value


def call(operator: str, of: str, change: dict[str, Any]) -> dict[str, Any]:
    """The facts of a right call of the file with a change."""
    return {name: fact(value) for name, value in (TABLE[operator]["valid"][of] | change).items()}


def on(device: str) -> Device:
    """A device of the file, "NAME of PRODUCT" for one of another product."""
    name, _, product = device.partition(" of ")
    loaded = load_device(name)
    return replace(loaded, product=product) if product else loaded
