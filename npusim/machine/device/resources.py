"""Resources of a device: what a program may wait for, each with the figures that are its speed.

The L2, main memory, a pipe, a link, launches: one is twice as fast only if all of its figures are,
because the slowest of them holds it back. So a resource has a word, such as ``hbm``, that stands
for these figures together wherever a figure is changed: ``hbm=x2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import floor

from npusim.base.errors import ArgumentError
from npusim.base.quantities import KINDS, format_quantity
from npusim.machine.device.edit import part_name
from npusim.machine.device.files import NO, NONE
from npusim.machine.device.parts import AT_MOST, DeviceFigure, FigureValue
from npusim.machine.device.pipes import PIPES
from npusim.machine.device.spec import Device

#: Resources that are no pipe and no memory: starting kernels, and the depths of all pipes' queues.
LAUNCHES, QUEUES = "launches", "queues"

#: Kinds of figures that are rates, and those that are times. Others are no speeds.
_RATES = ("rate", "block")
_TIMES = ("cycles", "fraction_cycles", "duration")
#: Figures of other kinds that are speeds, or as good as one: how much is done at once.
_COUNTS = ("queue_depth", "elements", "piece", "window")
#: All but memory rests on the first; the second is a part of ``launch.core``.
_NO_SPEEDS = ("clock", "launch.skew", "graph.skew")

_FACTOR = re.compile(r"x(\d{1,9}(?:\.\d{1,9}|/[1-9]\d{0,8})?)", re.ASCII)


def resources(
    device: Device, by_path: Mapping[str, DeviceFigure], names: Iterable[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """The resources of ``device`` by name, each with the dotted paths of the figures it rests on.

    ``by_path`` are all figures of the device by path. Only those among ``names`` are taken, by
    default all that the device states.
    """
    by_resource: dict[str, list[str]] = {}
    for path in device.provenance if names is None else names:
        figure = by_path.get(path)
        if figure is not None and _is_speed(path, figure):
            by_resource.setdefault(resource_of(device, figure), []).append(path)
    return {name: tuple(paths) for name, paths in by_resource.items()}


def _is_speed(path: str, figure: DeviceFigure) -> bool:
    if path in _NO_SPEEDS or path.endswith(AT_MOST):
        return False
    return figure.kind in (*_RATES, *_TIMES) or figure.keys[-1] in _COUNTS


def resource_of(device: Device, figure: DeviceFigure) -> str:
    """The name of the resource that a figure is a speed of."""
    first, *middle, last = figure.keys
    engines = {facts.engine: pipe for pipe, facts in PIPES.items() if facts.engine}
    if last == "queue_depth":
        return QUEUES
    if last == "issue" or first == "sync":
        return "pipe S"
    if first == "paths":
        return f"pipe {device.paths['.'.join(middle)].pipe}"
    if first in engines:
        return f"pipe {engines[first]}"
    if first == "links":
        return resource_of_link(device, middle[0])
    names = {"l2": "L2", device.main_memory_key: device.main_memory_name}
    names |= dict.fromkeys(("launch", "graph"), LAUNCHES)
    return names.get(first, first)


def resource_of_link(device: Device, name: str) -> str:
    """Main memory, where what it reads and writes goes over the link, else the link itself."""
    to_memory = {"read_miss", "evict"} & {*device.links[name].traffic}
    return device.main_memory_name if to_memory else f"link {name}"


def word_of(name: str) -> str:
    """The word for a resource where figures are named: ``hbm``, ``l2``, ``pipe.MTE2``."""
    kind, blank, rest = name.partition(" ")
    if blank and kind in ("pipe", "link"):
        return f"{kind}.{rest}"
    return name.lower().replace(" ", "_")


def by_word(device: Device, by_path: Mapping[str, DeviceFigure]) -> dict[str, tuple[str, ...]]:
    """The figures of each resource by its word."""
    return {word_of(name): paths for name, paths in resources(device, by_path).items()}


def read_factor(text: str) -> Fraction | None:
    """The factor that ``x2``, ``x0.5`` or ``x1/2`` states; None of other texts, and of 0."""
    match = _FACTOR.fullmatch(text)
    return Fraction(match[1]) or None if match else None


def faster(
    by_path: Mapping[str, DeviceFigure], paths: Iterable[str], factor: Fraction
) -> dict[str, str]:
    """Texts of the figures that make a resource of these ``paths`` so many times as fast.

    Rates and counts are multiplied, times divided. Figures that this leaves as they are, such as a
    time of 0, have no entry.
    """
    changed: dict[str, str] = {}
    for path in paths:
        figure = by_path[path]
        text = scaled(figure, 1 / factor if figure.kind in _TIMES else factor)
        if text is not None:
            changed[path] = text
    return changed


def scaled(figure: DeviceFigure, factor: Fraction) -> str | None:
    """The text of a figure times ``factor``, None where that is no such figure, or no other one.

    Whole numbers are rounded down. A block of multiply-adds takes fewer cycles, or where these
    cannot be whole is longer in k.
    """
    if figure.kind == "bool":
        return None
    if isinstance(figure.value, tuple):
        m, k, n, cycles = figure.value
        cycles *= factor.denominator
        if cycles % factor.numerator:
            k *= factor.numerator
        else:
            cycles //= factor.numerator
        changed = (m, k, n, cycles)
        return None if changed == figure.value else format_quantity(changed, figure.kind)
    value = Fraction(figure.value) * factor
    if isinstance(figure.value, int):
        value = Fraction(floor(value))
    none_left = not (value or KINDS[figure.kind].idle)
    return None if none_left or value == figure.value else format_quantity(value, figure.kind)


def with_factors(
    device: Device, by_path: Mapping[str, DeviceFigure], values: Mapping[str, FigureValue]
) -> dict[str, FigureValue]:
    """``values`` of figures by path, with texts of figures in place of words and of factors.

    ``hbm=x2`` makes all figures of a resource twice as fast, ``l2.read=x2`` multiplies one figure,
    a time too. Raises ``ArgumentError`` for a word with another text, for a factor that leaves no
    such figure, and for a figure that is set twice.
    """
    words: dict[str, tuple[str, ...]] = {}
    if any(path not in by_path for path in values):
        words = {word.lower(): paths for word, paths in by_word(device, by_path).items()}
    changed: dict[str, FigureValue] = {}
    set_by: dict[str, str] = {}
    for path, value in values.items():
        texts = _texts(by_path, words, path, value)
        for figure in texts:
            if figure in set_by:
                raise ArgumentError(
                    f"{set_by[figure]} and {path} both set {figure}; keep one of them"
                )
            set_by[figure] = path
        changed |= texts
    return changed


def _texts(
    by_path: Mapping[str, DeviceFigure],
    words: Mapping[str, tuple[str, ...]],
    path: str,
    value: FigureValue,
) -> dict[str, FigureValue]:
    """Figures that one path or word, and its value, set: by default itself."""
    factor = read_factor(value) if isinstance(value, str) else None
    paths = words.get(path.lower(), ()) if path not in by_path else ()
    if path in by_path and factor is not None:
        return {path: _times(by_path[path], path, factor)} if factor != 1 else {}
    if paths and factor is not None:
        return {**faster(by_path, paths, factor)}
    if paths and not _drops(value):
        drop = ", or no to drop the unit" if part_name(path) is not None else ""
        raise ArgumentError(
            f"{path}: it stands for {', '.join(paths)}; give a factor such as {path}=x2, or set "
            f"these one by one{drop}"
        )
    return {path: value}


def _drops(value: FigureValue) -> bool:
    """Tell a value that drops a unit of the device from one that leaves it or puts it in."""
    return value in ("yes", NO, NONE) or str(value).startswith("{")


def _times(figure: DeviceFigure, path: str, factor: Fraction) -> str:
    text = scaled(figure, factor)
    if text is None:
        now = format_quantity(figure.value, figure.kind)
        raise ArgumentError(f"{path}: {now} times {factor} is no other figure; give its value")
    return text
