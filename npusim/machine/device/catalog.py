"""Devices there are, and how a caller names one, its figures and its cores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from operator import index
from pathlib import Path
from typing import SupportsIndex

from npusim.base.content import Content, require_content
from npusim.base.errors import ArgumentError, shown
from npusim.base.quantities import KINDS, Range
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.machine.device.config import build_device, figures
from npusim.machine.device.files import ALIASES, devices, is_file, lineage, shipped_file
from npusim.machine.device.parts import DeviceFigure, Provenance
from npusim.machine.device.spec import Device

__all__ = ["devices", "load_device", "parse_core_mask", "ranges", "read_cores"]

#: How far a figure may be off where its file does not say, as a share of its value.
REACH = {"fitted": Fraction(1, 10), "hypothesis": Fraction(3, 10), "assumed": Fraction(3, 10)}

_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)


def load_device(
    device: str | os.PathLike[str] | Device, overrides: Mapping[str, str] | None = None
) -> Device:
    """Return a shipped device by name, one from a YAML file, or the ``Device`` given.

    "ascend910b", the family's name, is "ascend910b2". Text that ends in ``.yaml`` or holds a path
    separator is a file. ``overrides`` maps dotted paths of figures to new text, such as
    ``{"memories.L1.size": "2MiB"}``.
    """
    if not isinstance(device, (Device, str, os.PathLike)):
        raise ArgumentError(
            f"device is {device!r}; it is a name (`npusim devices` lists them), a device file or a "
            "Device"
        )
    if isinstance(device, Device):
        loaded = device
    else:
        name = os.fspath(device)
        loaded = _from_file(name) if is_file(name) else _shipped(name)
    return loaded.origin.rebuild(loaded, overrides) if overrides else loaded


def ranges(device: Device) -> dict[str, tuple[DeviceFigure, DeviceFigure]]:
    """Return the low and the high end of every figure that may be off, by dotted path.

    That is the range its file states, else for a figure that is fitted or assumed the share of its
    value in ``REACH`` on both sides, whole units rounded outwards. Only speeds and times have a
    range (``npusim.base.quantities.KINDS``), blocks only a stated one.
    """
    by_path = {}
    for path, figure in figures(device).items():
        ends = _ends(figure, device.provenance.get(path))
        if ends is not None and ends[0] != ends[1]:
            low, high = ends
            by_path[path] = replace(figure, value=low), replace(figure, value=high)
    return by_path


def _ends(figure: DeviceFigure, provenance: Provenance | None) -> Range | None:
    """Return both ends of a figure's range in base units, None where it has no range."""
    if provenance is None or provenance.range is not None:
        return provenance.range if provenance else None
    reach = REACH.get(provenance.confidence)
    if reach is None or not KINDS[figure.kind].ranged or isinstance(figure.value, tuple):
        return None
    value = Fraction(figure.value)
    low, high = value * (1 - reach), value * (1 + reach)
    is_integer = figure.kind not in ("rate", "fraction_cycles")
    return (floor(low), ceil(high)) if is_integer else (low, high)


def read_cores(text: str) -> str | int:
    """A mask if its prefix says so; any other text is a list of groups, decimal numbers too."""
    if not text.lower().startswith(("0b", "0x")):
        return text
    try:
        return int(text, 0)
    except ValueError:
        raise ArgumentError(
            f"expected groups such as 0-3,5, or a mask such as 0b1111 or 0xf, got {text!r}"
        ) from None


def parse_core_mask(
    cores: SupportsIndex | str | Iterable[int] | None, device: Device
) -> tuple[int, ...]:
    """Return the indices of the core groups to use, ascending.

    ``None`` means all; an int is a bit mask (bit i is group i); text such as ``"0-3,5"`` and
    iterables are indices.
    """
    if cores is None:
        return tuple(range(device.groups))
    try:
        if not isinstance(cores, Iterable):
            return _from_bits(index(cores), device)
        indices = _from_text(cores, device) if isinstance(cores, str) else [*map(index, cores)]
    except TypeError:
        raise ArgumentError(
            f"cores is {cores!r}; it is a bit mask, a list of core groups or text such as '0-3,5'"
        ) from None
    for group in indices:
        if not 0 <= group < device.groups:
            raise ArgumentError(f"there is no core group {group}; {_limit(device)}")
    if not indices:
        raise ArgumentError(f"no core group is chosen; {_limit(device)}, use at least one")
    return tuple(sorted(set(indices)))


def _from_file(file: str) -> Device:
    """Return the device in a file: read on every call, but built only if the text has changed."""
    if not Path(file).is_file():
        raise ArgumentError(
            f"there is no device file {file!r}; correct the path or use one of the names {_names()}"
        )
    require_content(Path(file), (Content.DEVICE,), "a device file")
    return _build(lineage(Path(file)))


@lru_cache(maxsize=32)
def _shipped(name: str) -> Device:
    """Return a device that ships; its files are read once."""
    names = [*devices(), *ALIASES]
    if name not in names:
        if Path(name).is_file():
            require_content(Path(name), (Content.DEVICE,), "a device file")
            raise ArgumentError(
                f"{shown(name)} is a file, and the name of a device file ends in .yaml; rename it"
            )
        near = suggest(name, names)
        hint = f"; known: {_names()}" if "known" in near else f"{near} (known: {_names()})"
        raise ArgumentError(f"unknown device {name!r}{hint}; or give a .yaml file")
    return _build(lineage(shipped_file(name)))


#: The device of some texts; a ``Device`` is never changed, so calls share it.
_build = lru_cache(maxsize=32)(build_device)


def _names() -> str:
    """Return the names of the shipped devices and what their aliases mean, in words."""
    return ", ".join((*devices(), *(f"{alias} = {name}" for alias, name in ALIASES.items())))


def _from_bits(mask: int, device: Device) -> tuple[int, ...]:
    """Return the indices of the bits set in ``mask``."""
    every, top = (1 << device.groups) - 1, mask.bit_length() - 1
    if 0 < mask <= every:
        return tuple(i for i in range(device.groups) if mask >> i & 1)
    wrong = f"{mask} chooses no core group" if mask <= 0 else f"{hex(mask)} has bit {top} set"
    raise ArgumentError(f"core mask {wrong}; {_limit(device)}, the mask of all is {hex(every)}")


def _from_text(text: str, device: Device) -> list[int]:
    """Return the indices named by text such as ``0-3,5``."""
    indices: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ArgumentError(
                f"expected core groups such as 0-3,5, got {text!r}; {_limit(device)}"
            )
        if last >= device.groups:
            raise ArgumentError(f"there is no core group {last}; {_limit(device)}")
        indices.extend(range(first, last + 1))
    return indices


def _limit(device: Device) -> str:
    """Return which groups the device has, in words."""
    return f"{device.name} has groups 0-{device.groups - 1}"
