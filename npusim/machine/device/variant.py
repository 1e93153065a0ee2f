"""A device file that states some figures and inherits the others from its base."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from npusim.machine.device.config import figure_text, figures
from npusim.machine.device.files import is_file
from npusim.machine.device.spec import Device
from npusim.version import __version__


class Head(NamedTuple):
    """The head of the file: who wrote it, what it is, and the source of its figures."""

    writer: str
    description: str
    key: str
    source: str


def variant_text(
    base: str, device: Device, target: Path, head: Head, stated: Mapping[str, str]
) -> str:
    """The text of the file ``target``, built on ``base``, a name or a file.

    ``device`` has the figures of the base, for the keys of those that are ``stated``: texts by
    dotted path, with how well they are known. A remark says what each is in the base.
    """
    above = os.path.relpath(base, target.absolute().parent) if is_file(base) else base
    lines = [
        f"# Written by npusim {__version__}, `{head.writer}`.",
        f"base: {above}",
        f"name: {target.stem.lower()}",
        f"description: {head.description}",
        "sources:",
        f"  {head.key}: >-",
        *(f"    {line}" for line in head.source.splitlines()),
    ]
    tree: dict[str, object] = {}
    known = figures(device)
    for path, text in stated.items():
        *keys, last = known[path].keys
        at = tree
        for key in keys:
            inner = at.setdefault(key, {})
            assert isinstance(inner, dict)
            at = inner
        at[last] = f"{text}  # was {figure_text(known[path], device.clock_hz)}"
    return "\n".join([*lines, *_yaml(tree, 0)]) + "\n"


def free_key(device: Device, key: str) -> str:
    """A key for a source that the device has not yet."""
    while key in device.sources:
        key += "X"
    return key


def _yaml(tree: Mapping[str, object], depth: int) -> list[str]:
    lines: list[str] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            lines += [f"{'  ' * depth}{key}:", *_yaml(value, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{key}: {value}")
    return lines
