"""Devices from YAML files, generic over the dataclasses of ``npusim.machine.device.spec``.

Every figure reads ``<quantity> (<confidence>, <source key>)``, or with a range of its own
``<quantity> (<confidence>, <source key>, <low>..<high>)``, or ``<quantity>`` alone, which is
assumed and the user's own; whatever is wrong with a file is a ``ConfigError`` that names file, line
and dotted path and ends in the way out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import cache
from itertools import islice
from operator import index
from types import UnionType
from typing import Any, NamedTuple, SupportsIndex, get_args, get_origin, get_type_hints

from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.quantities import (
    KINDS,
    Block,
    Quantity,
    format_quantity,
    format_rate,
    parse_quantity,
    parse_range,
)
from npusim.base.records import replace
from npusim.base.yamltree import TextFile, YamlNode, suggest
from npusim.machine.device.checks import CHECKS
from npusim.machine.device.edit import edited, part_name, put, without_absent
from npusim.machine.device.files import NO, NONE, Source, lineage, merged
from npusim.machine.device.parts import (
    AT_MOST,
    CONFIDENCES,
    CubeRate,
    DeviceFigure,
    FigureValue,
    Provenance,
    key_of,
)
from npusim.machine.device.resources import by_word, with_factors
from npusim.machine.device.spec import Device

#: Source key and explanation of figures changed by ``Device.replace``.
USER = ("user", "set by the user")

_FIGURE = re.compile(
    r"(?P<quantity>.*?)\s*"
    r"\((?P<confidence>[^,()]*),(?P<source>[^,()]*)(?:,(?P<range>[^()]*))?\)",
    re.S,
)
_BUILT = ("replays", "provenance", "origin")  # fields of Device that no file states


def parse_device(source: TextFile | str, name: str = "") -> Device:
    """Read a device from a file (a path object) or from YAML text called ``name`` in errors."""
    return build_device(lineage(source, name))


def build_device(sources: tuple[Source, ...]) -> Device:
    """Read a device from the texts of its file and its bases (``npusim.machine.device.files``)."""
    root, names = merged(sources)
    return _build(without_absent(root), names)


def figures(device: Device) -> dict[str, DeviceFigure]:
    """Return every figure of ``device`` by dotted path, unstated defaults included."""
    return dict(_figures_of(device))


#: The device that was asked last for its figures, of which a study makes many variants, and these.
_walked: list[tuple[Device, dict[str, DeviceFigure]]] = []


def _figures_of(device: Device) -> dict[str, DeviceFigure]:
    """``figures``, which nobody may change here."""
    if not _walked or _walked[0][0] is not device:
        walked = {".".join(figure.keys): figure for figure in _walk(device, ())}
        _walked[:] = [(device, walked)]
    return _walked[0][1]


@dataclass(frozen=True)
class _Tree:
    """The ``Origin`` of every device: its YAML tree, and the devices in the files behind it."""

    root: YamlNode
    names: Mapping[str, str]
    read: _Read | None = field(default=None, repr=False, compare=False)  # what was made of it

    def __reduce__(self) -> tuple[type[_Tree], tuple[YamlNode, Mapping[str, str]]]:
        return _Tree, (self.root, self.names)  # nodes are others in another process

    @property
    def file(self) -> str:
        """The file of the tree's root."""
        return self.root.file

    def describe(self, device: Device) -> list[tuple[str, str, str, str]]:
        """As ``describe`` below."""
        return describe(device)

    def rebuild(self, device: Device, values: Mapping[str, FigureValue]) -> Device:
        """Return a device from the tree with some figures changed, and parts edited.

        A ``ConfigError`` names the changes: the lines of the file are not at fault.
        """
        try:
            return self._rebuilt(device, values)
        except ConfigError as error:
            changes = " ".join(f"{path}={value}" for path, value in values.items())
            reason = re.sub(r"^.*?:\d+: ", "", str(error))
            if len(values) == 1:
                reason = reason.removeprefix(f"{next(iter(values))}: ")
            raise ConfigError(f"{device.name} with {changes}: {reason}") from None

    def _rebuilt(self, device: Device, values: Mapping[str, FigureValue]) -> Device:
        """The same, with the errors of a file."""
        stated = _figures_of(device)
        root = put(self.root, ("sources", USER[0]), USER[1])
        try:
            values = with_factors(device, stated, values)
        except ArgumentError as error:
            raise root.fail(str(error)) from None
        for path, value in values.items():
            part = part_name(path) if path not in stated and isinstance(value, str) else None
            if part is not None and (value in ("yes", NO, NONE) or str(value).startswith("{")):
                root = edited(root, *part, str(value), USER[0])
                continue
            if path not in stated:
                words = by_word(device, stated)
                listed = (
                    f"`npusim devices show {device.shown_by}` lists the figures; several together "
                    f"are {', '.join(words)}"
                )
                raise root.fail(f"{path}: unknown figure{suggest(path, [*stated, *words], listed)}")
            text = value if isinstance(value, str) else _base_units(path, value, stated[path].kind)
            most = f"{path}{AT_MOST}"  # that was measured of a rate which is no more
            stale = most in stated and stated[most].value and most not in values
            for name in (path, most) if stale else (path,):
                root = put(root, stated[name].keys, f"{text} (assumed, {USER[0]})")
        built = _build(root, self.names, self.read).launching(device.launch_mode)
        memory = device.main_memory_key
        return built if memory == "main_memory" else built.with_operands_in(memory)


def _base_units(path: str, value: object, kind: str) -> str:
    """Return the text of a number given in base units."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with suppress(TypeError):  # an array of several numbers is none
            value = index(value)  # NumPy's integers, too
    if not isinstance(value, (int, Fraction)) or (isinstance(value, bool) and kind != "bool"):
        raise ArgumentError(
            f"{path}: expected {KINDS[kind].noun} as text such as {KINDS[kind].example}, as an int "
            f"or as a Fraction, got {value!r}"
        )
    return format_quantity(value, kind)


def _walk(value: Any, keys: tuple[str, ...]) -> Iterator[DeviceFigure]:
    """Yield the figures of a spec dataclass, in its own order."""
    for f in fields(value):
        here, item = (*keys, key_of(f)), getattr(value, f.name)
        kind = f.metadata.get("unit", "")
        if f.name in _BUILT:
            continue
        if kind.startswith("map:"):
            for name, entry in item.items():
                yield DeviceFigure((*here, name), kind[4:], _plain(entry))
        elif kind:
            yield DeviceFigure(here, kind, item)
        elif is_dataclass(item):
            yield from _walk(item, here)
        elif isinstance(item, Mapping):
            for name, entry in item.items():
                if is_dataclass(entry):
                    yield from _walk(entry, (*here, name))


def _plain(value: Any) -> Quantity:
    """Return a figure as ``npusim.base.quantities`` knows it."""
    if isinstance(value, CubeRate):
        return value.m, value.k, value.n, value.cycles
    number: Fraction = value
    return number


def _has_default(field: Field[Any]) -> bool:
    """Return whether a file may leave the field out."""
    return field.default is not MISSING or field.default_factory is not MISSING


class _Part(NamedTuple):
    """The part a node was read as, and where its figures come from."""

    node: YamlNode
    value: Any
    provenance: dict[str, Provenance]


class _Read(NamedTuple):
    """Parts of a tree by the identity of their nodes, and the clock that counts their cycles.

    A variant shares all nodes that no change lies below, and need not read them again.
    """

    clock_hz: int
    parts: dict[int, _Part]


def _build(root: YamlNode, names: Mapping[str, str], before: _Read | None = None) -> Device:
    """Read the whole tree, then check what no single value can show.

    ``before`` is what was read of another tree, some of whose nodes this one may have.
    """
    entries = _entries(Device, root, named=False)
    source_nodes = entries["sources"].mapping()
    sources = {key: node.text() for key, node in source_nodes.items()}
    if sources.get(USER[0], USER[1]) != USER[1]:
        raise (
            entries["sources"]
            .mapping()[USER[0]]
            .fail(f"the key {USER[0]!r} is kept for figures {USER[1]}; choose another")
        )
    bases = {file: name for file, name in names.items() if file != root.file}
    explained_by = {key: bases.get(node.file, "") for key, node in source_nodes.items()}
    clock_hz = _Reader(sources, explained_by, 1, bases, {}).figure(entries["clock"], "frequency")
    usable = before is not None and before.clock_hz == clock_hz
    earlier = before.parts if before is not None and usable else {}
    reader = _Reader(sources, explained_by, clock_hz, bases, {}, earlier)
    tree = _Tree(root, names, _Read(clock_hz, reader.parts))
    device: Device = reader.record(
        Device, root, None, {"provenance": reader.provenance, "origin": tree}
    )
    for check in CHECKS:
        check(device, root)
    if any(origin.source == USER[0] for origin in device.provenance.values()):
        device = replace(device, sources={**device.sources, USER[0]: USER[1]})
    return device.by_role()


def _entries(cls: type, node: YamlNode, *, named: bool) -> dict[str, YamlNode]:
    """Return the nodes of a record by YAML key, all of them known and none missing."""
    skip = (*_BUILT, "name") if named else _BUILT
    for key, child in node.mapping().items():
        if key.endswith(")") and child.value == "":
            raise child.fail(
                "inside {...} the comma of a figure starts a new key; put the figure in quotes "
                "or each key on a line of its own"
            )
    hints = _hints(cls)
    required: list[str] = []
    optional: list[str] = []
    for f in fields(cls):
        if f.name not in skip:
            may_lack = _has_default(f) or type(None) in get_args(hints[f.name])
            (optional if may_lack else required).append(key_of(f))
    return node.mapping(required, optional)


@dataclass(frozen=True)
class _Reader:
    """Reads values by their declared type and notes where each figure comes from."""

    sources: Mapping[str, str]
    explained_by: Mapping[str, str]  # source key -> base in whose file it is explained, or ""
    clock_hz: int
    bases: Mapping[str, str]  # file -> name of a device whose figures are inherited
    provenance: dict[str, Provenance]
    earlier: Mapping[int, _Part] = field(default_factory=dict)  # of an earlier reader
    parts: dict[int, _Part] = field(default_factory=dict)

    def part(self, cls: Any, node: YamlNode, name: str | None) -> Any:
        """Return ``record``, or what an earlier reader made of this very node."""
        part = self.earlier.get(id(node))
        if part is None or part.node is not node:
            before = len(self.provenance)
            value = self.record(cls, node, name, {})
            part = _Part(node, value, dict(islice(self.provenance.items(), before, None)))
        else:
            self.provenance.update(part.provenance)
        self.parts[id(node)] = part
        return part.value

    def record(self, cls: Any, node: YamlNode, name: str | None, preset: dict[str, Any]) -> Any:
        """Return a ``cls`` read from a mapping; ``name`` is its key in the mapping around it."""
        entries = _entries(cls, node, named=name is not None)
        hints, values = _hints(cls), dict(preset)
        if name is not None:
            values["name"] = name
        for f in fields(cls):
            if f.name in values:
                continue
            child = entries.get(key_of(f))
            if child is not None:
                kind = f.metadata.get("unit", "")
                values[f.name] = (
                    self._figures(child, kind) if kind else self._value(hints[f.name], child, None)
                )
            elif not _has_default(f):
                values[f.name] = None
        return cls(**values)

    def figure(self, node: YamlNode, kind: str) -> Any:
        """Return one figure in base units; a bare quantity is the user's."""
        text = node.text()
        bare = "" if "(" in text else f" (assumed, {USER[0]})"
        match = _FIGURE.fullmatch(text + bare)
        if not match:
            raise node.fail(
                f"expected a figure with confidence and source, such as "
                f"{KINDS[kind].example.partition(' ')[0]} (measured, KEY), got {text!r}; "
                f"confidences: {', '.join(CONFIDENCES)}"
            )
        confidence, source = match["confidence"].strip(), match["source"].strip()
        if confidence not in CONFIDENCES:
            listed = ", ".join(CONFIDENCES)
            raise node.fail(f"unknown confidence {confidence!r}; use one of: {listed}")
        if source not in self.sources and not bare:
            hint = suggest(source, self.sources)
            raise node.fail(f"unknown source {source!r}{hint} (explain new ones under 'sources')")
        try:
            value = parse_quantity(match["quantity"], kind, self.clock_hz)
            text = match["range"]
            ends = None if text is None else parse_range(text.strip(), kind, value, self.clock_hz)
        except ArgumentError as error:
            raise node.fail(str(error)) from None
        self.provenance[node.path] = Provenance(
            confidence=confidence,
            source=source,
            range=ends,
            inherited="" if source == USER[0] else self.bases.get(node.file, ""),
            explained_by=self.explained_by.get(source, ""),
        )
        return _cube_rate(value) if isinstance(value, tuple) else value

    def _figures(self, node: YamlNode, kind: str) -> Any:
        """Return a figure, or for a kind ``map:...`` a mapping of figures."""
        if not kind.startswith("map:"):
            return self.figure(node, kind)
        return {key: self.figure(child, kind[4:]) for key, child in node.mapping().items()}

    def _value(self, hint: Any, node: YamlNode, name: str | None) -> Any:
        """Return what is no figure: text, lists of words, records and mappings of them."""
        if hint is str:
            return node.text()
        if get_origin(hint) is tuple:
            return _words(node)
        if isinstance(hint, UnionType):
            (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
        if get_origin(hint) is Mapping:
            inner = get_args(hint)[1]
            return {key: self._value(inner, child, key) for key, child in node.mapping().items()}
        return self.part(hint, node, name)


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of a record's fields; working them out takes as long as reading it."""
    return get_type_hints(cls)


def _cube_rate(block: Block) -> CubeRate:
    """Return a block as the spec names its parts."""
    m, k, n, cycles = block
    return CubeRate(m=m, k=k, n=n, cycles=cycles)


def _words(node: YamlNode) -> tuple[str, ...]:
    """Return a list of distinct words, at least one."""
    words: list[str] = []
    for item in node.items():
        if item.text() in words:
            raise item.fail(f"{item.text()!r} is listed twice; remove one")
        words.append(item.text())
    if not words:
        around = node.path.rpartition(".")[0]
        way_out = f"add one, or drop {around}" if around else "add one"
        raise node.fail(f"expected at least one entry, got an empty list; {way_out}")
    return tuple(words)


def figure_text(figure: DeviceFigure, clock_hz: int) -> str:
    """Return the value of a figure for people: rates rounded, and durations, in both units."""
    text = format_quantity(figure.value, figure.kind)
    if isinstance(figure.value, tuple):
        return text
    if figure.kind == "rate":
        return format_rate(Fraction(figure.value), clock_hz)
    if figure.kind == "duration":
        return f"{text} ({float(figure.value / Fraction(clock_hz, 10**6)):.4g}us)"
    return text


def describe(device: Device) -> list[tuple[str, str, str, str]]:
    """Return (dotted path, value, confidence, source) of every figure the device states."""
    rows = []
    for path, figure in figures(device).items():
        if path in device.provenance:
            origin = device.provenance[path]
            text = figure_text(figure, device.clock_hz)
            base = f" (inherited from {origin.inherited})" if origin.inherited else ""
            rows.append((path, text, origin.confidence, device.sources[origin.source] + base))
    return rows
