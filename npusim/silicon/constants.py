"""The constants fitted to whole kernels, and their ranges: ``configs/silicon/fit.yaml``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from npusim.base.errors import ArgumentError, told_as
from npusim.base.quantities import format_quantity, parse_quantity
from npusim.base.resources import configs
from npusim.base.yamltree import TextFile, YamlNode, load_tree
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures

#: Steps between the ends of a range that a fit looks at.
STEPS = 40

_SHIPPED = configs() / "silicon" / "fit.yaml"
FRACTIONAL = ("rate", "fraction_cycles")
_WHOLE_KINDS = ("cycles", "duration", "size", "count")


@dataclass(frozen=True)
class Constant:
    """A figure that some devices share: its kind, and its range and shipped value in base units.

    ``also`` are figures of the same value, fitted as one with it.
    """

    path: str
    devices: tuple[str, ...]
    kind: str
    low: Fraction
    high: Fraction
    shipped: Fraction
    also: tuple[str, ...] = ()

    def figures(self, value: Fraction) -> dict[str, str]:
        """Return the figures of a device with this value, as text by dotted path."""
        return dict.fromkeys((self.path, *self.also), self.text(value))

    def text(self, value: Fraction) -> str:
        """Return a value as a device file would state it."""
        return format_quantity(value, self.kind)

    def level(self, step: int) -> Fraction:
        """Return the value at a step, of ``STEPS``, of the range."""
        value = self.low + (self.high - self.low) * Fraction(step, STEPS)
        return value if self.kind in FRACTIONAL else Fraction(round(value))


def stated(values: Iterable[tuple[Constant, Fraction]]) -> dict[str, str]:
    """The changed figures, by path, that give constants these values."""
    figures: dict[str, str] = {}
    for constant, value in values:
        figures |= constant.figures(value)
    return figures


def load_constants(source: TextFile | str = _SHIPPED, part: str = "constants") -> list[Constant]:
    """Read the list that ships, or another, of those fitted to kernels; a ``str`` is YAML text.

    ``part`` "calls" are those fitted to calls, of which a file may have none.
    Raises ``ConfigError`` for a figure that a device lacks, that is not fitted there, that
    differs between the devices of an entry, or that lies outside its range.
    """
    parts = load_tree(source).mapping(("constants",), optional=("calls",))
    entries = parts[part].items() if part in parts else []
    constants = [_constant(entry) for entry in entries]
    counts = Counter((name, c.path) for c in constants for name in c.devices)
    for entry, constant in zip(entries, constants, strict=True):
        for name in constant.devices:
            if counts[name, constant.path] > 1:
                raise entry.fail(f"{constant.path} of {name} is there twice; keep one of them")
    return constants


def _constant(node: YamlNode) -> Constant:
    keys = node.mapping(("path", "devices", "low", "high"), optional=("also",))
    path = keys["path"].text()
    names = tuple(item.text() for item in keys["devices"].items())
    if not names:
        raise keys["devices"].fail("expected at least one device")
    kind, shipped = _shipped(keys["path"], path, names[0])
    for name in names[1:]:
        if _shipped(keys["path"], path, name)[1] != shipped:
            raise keys["devices"].fail(
                f"{path} differs between {names[0]} and {name}; give each an entry of its own"
            )
    also = tuple(item.text() for item in keys["also"].items()) if "also" in keys else ()
    for other in also:
        for name in names:
            if _shipped(keys["also"], other, name)[1] != shipped:
                raise keys["also"].fail(
                    f"{other} of {name} differs from {path}; they are fitted as one"
                )
    low = _bound(keys["low"], kind, names[0])
    high = _bound(keys["high"], kind, names[0])
    if not low <= shipped <= high or low == high:
        text = format_quantity(shipped, kind)
        raise node.fail(f"{path} is {text}; expected a range from low to high that holds it")
    return Constant(path, names, kind, low, high, shipped, also)


def _shipped(node: YamlNode, path: str, name: str) -> tuple[str, Fraction]:
    """Return kind and value of a figure, which its device must call fitted."""
    device = load_device(name)
    figure = figures(device).get(path)
    origin = device.provenance.get(path)
    if figure is None or origin is None:
        raise node.fail(f"{name} states no figure {path!r}; `npusim devices show {name}` lists all")
    if origin.confidence not in ("fitted", "hypothesis"):
        raise node.fail(
            f"{path} of {name} is {origin.confidence}, only fitted figures are refitted"
        )
    if isinstance(figure.value, tuple) or figure.kind not in (*FRACTIONAL, *_WHOLE_KINDS):
        raise node.fail(f"{path} is {figure.kind}, which has no range")
    return figure.kind, Fraction(figure.value)


def _bound(node: YamlNode, kind: str, name: str) -> Fraction:
    """Return one end of a range in base units."""
    with told_as(node.fail, caught=ArgumentError):
        value = parse_quantity(node.text(), kind, load_device(name).clock_hz)
    if isinstance(value, tuple):
        raise node.fail("a block has no range")
    return Fraction(value)
