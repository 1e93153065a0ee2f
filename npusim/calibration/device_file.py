"""A device file that states the fitted figures and inherits everything else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from npusim.calibration.search import FITTED, Found
from npusim.device.catalog import figure_text
from npusim.device.config import figures
from npusim.device.files import is_file
from npusim.device.spec import Device
from npusim.quantities import RANGED
from npusim.version import __version__

_KEY = "FIT"


def device_text(
    base: str, device: Device, target: Path, found: Sequence[Found], source: str
) -> str:
    """Return the text of the device file ``target``, built on ``base``, a name or a file.

    ``source`` says what the figures were fitted to.
    """
    key = _KEY
    while key in device.sources:
        key += "X"
    above = os.path.relpath(base, target.absolute().parent) if is_file(base) else base
    name = target.stem.lower()
    lines = [
        f"# Written by npusim {__version__}, `npusim fit`.",
        f"base: {above}",
        f"name: {name}",
        f"description: {device.description}, fitted to measurements",
        "sources:",
        f"  {key}: >-",
        *(f"    {line}" for line in source.splitlines()),
    ]
    tree: dict[str, object] = {}
    for one in found:
        if one.moved:
            for path, text in one.constant.figures(one.value).items():
                was = f"was {figure_text(figures(device)[path], device.clock_hz)}"
                _put(tree, device, path, f"{text} ({_known(one, key)})", was)
    lines += _yaml(tree, 0)
    kept = [one for one in found if not one.moved]
    if kept:
        lines.append("# As in the base:")
        lines += [f"#   {one.constant.path}: {one.verdict}" for one in kept]
    return "\n".join(lines) + "\n"


def _put(tree: dict[str, object], device: Device, path: str, figure: str, remark: str) -> None:
    """Set the figure at the keys of its path, with a remark behind it."""
    *above, last = figures(device)[path].keys
    for key in above:
        inner = tree.setdefault(key, {})
        assert isinstance(inner, dict)
        tree = inner
    tree[last] = f"{figure}  # {remark}"


def _known(one: Found, key: str) -> str:
    """How well a figure is known, from where, and between which values it may lie."""
    confidence = "fitted" if one.verdict == FITTED else "hypothesis"
    if one.span is None or one.constant.kind not in RANGED:
        return f"{confidence}, {key}"
    low, high = map(one.constant.text, one.span)
    return f"{confidence}, {key}, {low}..{high}"


def _yaml(tree: Mapping[str, object], depth: int) -> list[str]:
    lines: list[str] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            lines += [f"{'  ' * depth}{key}:", *_yaml(value, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{key}: {value}")
    return lines
