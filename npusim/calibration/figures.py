"""Which figures of a device are fitted, and within which ranges.

Shipped ranges are those of ``configs/silicon/fit.yaml`` for the device or for one that is built on
the same base; a device without such relatives has the figures that its file calls fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from npusim.base.errors import ArgumentError
from npusim.base.quantities import Range, parse_range
from npusim.base.yamltree import suggest
from npusim.device.catalog import load_device, ranges
from npusim.device.config import figures
from npusim.device.spec import Device
from npusim.validation.constants import Constant, load_constants

_FITTED = ("fitted", "hypothesis")


def constants_of(
    name: str, device: Device, source: Path | None = None, extra: Sequence[str] = ()
) -> list[Constant]:
    """Return the constants to fit of a device called ``name`` (a shipped name or a file).

    ``source`` is a list of one's own in the form of ``fit.yaml``; ``extra`` are further figures as
    ``PATH`` or ``PATH=LOW..HIGH``, which takes the place of the range in the list. Raises
    ``ArgumentError`` or ``ConfigError`` for a figure that the device lacks or that has no range.
    """
    listed = load_constants() if source is None else load_constants(source)
    found: dict[str, Constant] = {}
    for constant in _nearest(device, listed):
        own = _moved(name, device, constant)
        if own is not None:
            found.setdefault(constant.path, own)
    if not found:
        known = ((path, device.provenance.get(path)) for path in ranges(device))
        for path in [path for path, of in known if of is not None and of.confidence in _FITTED]:
            found[path] = _extra(name, device, path)
    for text in extra:
        own = _extra(name, device, text)
        also = found[own.path].also if own.path in found else ()
        found[own.path] = replace(own, also=also)
    return list(found.values())


def _nearest(device: Device, listed: Sequence[Constant]) -> list[Constant]:
    """The constants of the device itself first, then those of its relatives."""
    own = [c for c in listed if device.name in c.devices]
    near = [c for c in listed if c not in own and _related(device, c)]
    return own + near


def _related(device: Device, constant: Constant) -> bool:
    """Whether a device and one of a constant build on each other, or on the same base."""
    return any(_bases(device) & _bases(load_device(name)) for name in constant.devices)


def _bases(device: Device) -> set[str]:
    """The names of the device and of those whose figures it inherits."""
    return {device.name} | {known.inherited for known in device.provenance.values()} - {""}


def _moved(name: str, device: Device, constant: Constant) -> Constant | None:
    """A constant as one of ``device``; None where it has no such figure.

    A value outside the range widens it: the file of the device knows better. Figures of other
    values are not tied to it.
    """
    known = figures(device)
    figure = known.get(constant.path)
    if figure is None or isinstance(figure.value, tuple) or figure.kind != constant.kind:
        return None
    value = Fraction(figure.value)
    tied = tuple(p for p in constant.also if p in known and known[p].value == figure.value)
    low, high = min(constant.low, value), max(constant.high, value)
    return Constant(constant.path, (name,), constant.kind, low, high, value, tied)


def _extra(name: str, device: Device, text: str) -> Constant:
    """A figure with the range stated in ``PATH=LOW..HIGH``, or else its own."""
    path, equals, stated = text.partition("=")
    known = figures(device)
    figure = known.get(path)
    if figure is None:
        raise ArgumentError(
            f"figure {path!r}: {device.name} has none of that name{suggest(path, known)}"
            if len(suggest(path, known)) < 200
            else f"figure {path!r}: {device.name} has none; `npusim devices show` lists all"
        )
    if isinstance(figure.value, tuple):
        raise ArgumentError(f"figure {path!r} is a {figure.kind}, which is not fitted")
    low, high = (
        parse_range(stated, figure.kind, figure.value, device.clock_hz)
        if equals
        else _own_range(device, path)
    )
    if isinstance(low, tuple) or isinstance(high, tuple) or low == high:
        raise ArgumentError(f"figure {path!r}: expected a range such as {path}=LOW..HIGH")
    ends = (Fraction(low), Fraction(high))
    return Constant(path, (name,), figure.kind, *ends, Fraction(figure.value))


def _own_range(device: Device, path: str) -> Range:
    """The range that a device gives a figure; ``ArgumentError`` if it gives none."""
    ends = ranges(device).get(path)
    if ends is None:
        confidence = device.provenance[path].confidence if path in device.provenance else "unstated"
        raise ArgumentError(
            f"figure {path!r} is {confidence} and has no range; give one: {path}=LOW..HIGH"
        )
    low, high = (end.value for end in ends)
    return low, high
