"""A device YAML file to a ``Device``: generic over the dataclasses of ``npusim.device.spec``.

Every figure reads ``<quantity> (<confidence>, <source key>)``; whatever is wrong with a file is
a ``ConfigError`` that names file, line and dotted path and ends in the way out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from fractions import Fraction
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from npusim.device.spec import (
    CONFIDENCES,
    GLOBAL_PLACES,
    CubeRate,
    Device,
    Path,
    Provenance,
)
from npusim.dtypes import DTYPES
from npusim.errors import ArgumentError, ConfigError
from npusim.units import KINDS, Block, Quantity, format_quantity, parse_quantity
from npusim.yamltree import Node, TextFile, load_tree, suggest

#: Source key and explanation of figures changed by ``Device.replace``.
USER = ("user", "set by the user")

#: Roles of cores, and the pipe a core needs for each.
ROLES = {"cube": "M", "vector": "V", "dsp": "VPU"}

FigureValue = str | int | Fraction

_FIGURE = re.compile(r"(?P<quantity>.*?)\s*\((?P<confidence>[^,()]*),(?P<source>[^()]*)\)", re.S)
_PATH_NAME = re.compile(r"\w+->\w+(\.\w+)?")
_BUILT = ("provenance", "origin")  # fields of Device that no file states


@dataclass(frozen=True)
class Figure:
    """One figure of a device: keys that lead to it in the file, kind of quantity, base units."""

    keys: tuple[str, ...]
    kind: str
    value: Quantity


def parse_device(source: TextFile | str, name: str = "") -> Device:
    """Read a device from a file (a path object) or from YAML text called ``name`` in errors."""
    return _build(load_tree(source, name))


def replace_figure(device: Device, path: str, value: FigureValue) -> Device:
    """Return ``device`` with the figure at dotted ``path`` set to text or to base units."""
    return replace_figures(device, {path: value})


def replace_figures(device: Device, values: Mapping[str, FigureValue]) -> Device:
    """Return ``device`` with several figures set at once, then checked like a file."""
    return device.origin.rebuild(device, values)


def figures(device: Device) -> dict[str, Figure]:
    """Return every figure of ``device`` by dotted path, unstated defaults included."""
    return {".".join(figure.keys): figure for figure in _walk(device, ())}


@dataclass(frozen=True)
class _Tree:
    """The ``Origin`` of every device: its YAML tree."""

    root: Node

    def rebuild(self, device: Device, values: Mapping[str, FigureValue]) -> Device:
        """Return a device from the tree with the texts of some figures changed."""
        known = figures(device)
        root = _with(self.root, ("sources", USER[0]), USER[1])
        for path, value in values.items():
            if path not in known:
                near = difflib.get_close_matches(path, known, n=1)
                way_out = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else (f"`npusim devices show {device.name}` lists the figures")
                )
                raise ConfigError(f"{root.file}:{root.line}: {path}: unknown figure; {way_out}")
            text = value if isinstance(value, str) else _base_units(path, value, known[path].kind)
            root = _with(root, known[path].keys, f"{text} (assumed, {USER[0]})")
        return _build(root)


def _base_units(path: str, value: object, kind: str) -> str:
    """Return the text of a number given in base units."""
    if not isinstance(value, (int, Fraction)):
        noun, example = KINDS[kind]
        raise ArgumentError(
            f"{path}: expected {noun} as text such as {example}, as an int or as a Fraction, "
            f"got {value!r}"
        )
    return format_quantity(value, kind)


def _with(node: Node, keys: tuple[str, ...], text: str) -> Node:
    """Return a copy of a tree of mappings with ``text`` at ``keys``."""
    if not keys:
        return replace(node, value=text)
    entries = node.mapping()
    path = f"{node.path}.{keys[0]}" if node.path else keys[0]
    child = entries.get(keys[0], Node("", node.file, node.line, path))
    return replace(node, value={**entries, keys[0]: _with(child, keys[1:], text)})


def _walk(value: Any, keys: tuple[str, ...]) -> Iterator[Figure]:
    """Yield the figures of a spec dataclass, in its own order."""
    for f in fields(value):
        here, item = (*keys, _key(f)), getattr(value, f.name)
        kind = f.metadata.get("unit", "")
        if f.name in _BUILT:
            continue
        if kind.startswith("map:"):
            for name, entry in item.items():
                yield Figure((*here, name), kind[4:], _plain(entry))
        elif kind:
            yield Figure(here, kind, item)
        elif is_dataclass(item):
            yield from _walk(item, here)
        elif isinstance(item, Mapping):
            for name, entry in item.items():
                if is_dataclass(entry):
                    yield from _walk(entry, (*here, name))


def _plain(value: Any) -> Quantity:
    """Return a figure as ``npusim.units`` knows it."""
    if isinstance(value, CubeRate):
        return value.m, value.k, value.n, value.cycles
    number: Fraction = value
    return number


def _key(field: Field[Any]) -> str:
    """Return the YAML key of a field."""
    return str(field.metadata.get("key", field.name))


def _build(root: Node) -> Device:
    """Read the whole tree, then check what no single value can show."""
    entries = _entries(Device, root, named=False)
    sources = {key: node.text() for key, node in entries["sources"].mapping().items()}
    if sources.get(USER[0], USER[1]) != USER[1]:
        raise (
            entries["sources"]
            .mapping()[USER[0]]
            .fail(f"the key {USER[0]!r} is kept for figures {USER[1]}; choose another")
        )
    clock_hz = _Reader(sources, 1, {}).figure(entries["clock"], "frequency")
    reader = _Reader(sources, clock_hz, {})
    device: Device = reader.record(
        Device, root, None, {"provenance": reader.provenance, "origin": _Tree(root)}
    )
    for check in _CHECKS:
        check(device, root)
    return device


def _entries(cls: type, node: Node, *, named: bool) -> dict[str, Node]:
    """Return the nodes of a record by YAML key, all of them known and none missing."""
    skip = (*_BUILT, "name") if named else _BUILT
    for key, child in node.mapping().items():
        if key.endswith(")") and child.value == "":
            raise child.fail(
                "inside {...} the comma of a figure starts a new key; put the figure in quotes "
                "or each key on a line of its own"
            )
    hints = get_type_hints(cls)
    required: list[str] = []
    optional: list[str] = []
    for f in fields(cls):
        if f.name not in skip:
            may_lack = f.default is not MISSING or type(None) in get_args(hints[f.name])
            (optional if may_lack else required).append(_key(f))
    return node.mapping(required, optional)


@dataclass(frozen=True)
class _Reader:
    """Reads values by their declared type and notes where each figure comes from."""

    sources: Mapping[str, str]
    clock_hz: int
    provenance: dict[str, Provenance]

    def record(self, cls: Any, node: Node, name: str | None, given: dict[str, Any]) -> Any:
        """Return a ``cls`` read from a mapping; ``name`` is its key in the mapping around it."""
        entries = _entries(cls, node, named=name is not None)
        hints, values = get_type_hints(cls), dict(given)
        if name is not None:
            values["name"] = name
        for f in fields(cls):
            if f.name in values:
                continue
            child = entries.get(_key(f))
            if child is not None:
                kind = f.metadata.get("unit", "")
                values[f.name] = (
                    self._figures(child, kind) if kind else self._value(hints[f.name], child, None)
                )
            elif f.default is MISSING:
                values[f.name] = None
        return cls(**values)

    def figure(self, node: Node, kind: str) -> Any:
        """Return one figure in base units."""
        text = node.text()
        match = _FIGURE.fullmatch(text)
        if not match:
            raise node.fail(
                f"expected a figure with confidence and source, such as "
                f"{KINDS[kind][1].partition(' ')[0]} (measured, KEY), got {text!r}; "
                f"confidences: {', '.join(CONFIDENCES)}"
            )
        confidence, source = match["confidence"].strip(), match["source"].strip()
        if confidence not in CONFIDENCES:
            known = ", ".join(CONFIDENCES)
            raise node.fail(f"unknown confidence {confidence!r}; use one of: {known}")
        if source not in self.sources:
            hint = suggest(source, self.sources)
            raise node.fail(f"unknown source {source!r}{hint} (explain new ones under 'sources')")
        try:
            value = parse_quantity(match["quantity"], kind, self.clock_hz)
        except ArgumentError as error:
            raise node.fail(str(error)) from None
        self.provenance[node.path] = Provenance(confidence=confidence, source=source)
        return _cube_rate(value) if isinstance(value, tuple) else value

    def _figures(self, node: Node, kind: str) -> Any:
        """Return a figure, or for a kind ``map:...`` a mapping of figures."""
        if not kind.startswith("map:"):
            return self.figure(node, kind)
        return {key: self.figure(child, kind[4:]) for key, child in node.mapping().items()}

    def _value(self, hint: Any, node: Node, name: str | None) -> Any:
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
        return self.record(hint, node, name, {})


def _cube_rate(block: Block) -> CubeRate:
    """Return a block as the spec names its parts."""
    m, k, n, cycles = block
    return CubeRate(m=m, k=k, n=n, cycles=cycles)


def _words(node: Node) -> tuple[str, ...]:
    """Return a list of distinct words, at least one."""
    words: list[str] = []
    for item in node.items():
        if item.text() in words:
            raise item.fail(f"{item.text()!r} is listed twice; remove one")
        words.append(item.text())
    if not words:
        raise node.fail("expected at least one entry, got an empty list")
    return tuple(words)


def _at(root: Node, *keys: str) -> Node:
    """Return the node at ``keys``."""
    for key in keys:
        root = root.mapping()[key]
    return root


def _check_cores(device: Device, root: Node) -> None:
    """Core kinds name declared memories, pipes and roles, and each role is held once."""
    if not device.cores:
        raise _at(root, "cores").fail("a device needs at least one kind of core; add one")
    held: dict[str, str] = {}
    declared = {"memories": device.memories, "pipes": device.pipes, "roles": ROLES}
    for kind in device.cores.values():
        for key, known in declared.items():
            for item in _at(root, "cores", kind.name, key).items():
                word = item.text()
                if word not in known:
                    raise item.fail(f"{word!r} is not among the {key}{suggest(word, known)}")
        for role in kind.roles:
            where = _at(root, "cores", kind.name, "roles")
            if role in held:
                raise where.fail(f"role {role!r} is held by {held[role]!r} already; drop one")
            held[role] = kind.name
        for pipe in ("S", *(ROLES[role] for role in kind.roles)):
            if pipe not in kind.pipes:
                why = "issues instructions" if pipe == "S" else "works for its roles"
                raise _at(root, "cores", kind.name, "pipes").fail(
                    f"no pipe {pipe}, which {why}; add {pipe} to the list"
                )


def _check_paths(device: Device, root: Node) -> None:
    """Every path joins known places and runs on a core that has its pipe and its memories."""
    places = (*device.memories, *GLOBAL_PLACES)
    for path in device.paths.values():
        node = _at(root, "paths", path.name)
        if not _PATH_NAME.fullmatch(path.name):
            raise node.fail("expected a path name such as GM->L1 or GM->L1.nd2nz; rename it")
        for place in (path.src, path.dst):
            if place not in places:
                raise node.fail(f"unknown memory {place!r}{suggest(place, places)}")
        if path.dst == "IMM":
            raise node.fail("an immediate operand (IMM) cannot be written; swap the two ends")
        private = [place for place in (path.src, path.dst) if place in device.memories]
        if not any(
            path.pipe in kind.pipes and set(private) <= set(kind.memories)
            for kind in device.cores.values()
        ):
            raise node.mapping()["pipe"].fail(
                f"no kind of core has pipe {path.pipe} together with {' and '.join(private)}; "
                f"kinds: {'; '.join(_has(device))}"
            )
        _check_window(path, node)


def _has(device: Device) -> list[str]:
    """Return the kinds of core with their pipes and memories, in words."""
    return [
        f"{kind.name} has {' '.join(kind.pipes)} and {' '.join(kind.memories)}"
        for kind in device.cores.values()
    ]


def _check_window(path: Path, node: Node) -> None:
    """The window is what an img2col path fetches at once: those need it, others lack it."""
    if path.variant in ("load3d", "load3d_transpose") and not path.window_bytes:
        raise node.fail("a load3d path needs 'window', the bytes it fetches per cycle; add it")
    if not path.variant.startswith("load3d") and path.window_bytes:
        raise node.mapping()["window"].fail("only load3d paths have a window; remove it")


def _check_cache(device: Device, root: Node) -> None:
    """Sectors fill blocks, a word has a bit for each of them, and blocks fit the cache."""
    l2 = device.l2
    if l2 is None:
        return
    node = _at(root, "l2", "block")
    sectors = l2.block_bytes / l2.sector_bytes
    if any(n & (n - 1) for n in (l2.block_bytes, l2.sector_bytes)) or not 1 <= sectors <= 64:
        raise node.fail(
            f"a block of {l2.block_bytes} B with sectors of {l2.sector_bytes} B: both must be "
            "powers of two, with 1 to 64 sectors to a block; change one of them"
        )
    if l2.block_bytes > l2.size_bytes:
        raise node.fail(
            f"the block of {l2.block_bytes} B exceeds the cache of {l2.size_bytes} B; "
            "make it smaller"
        )


def _check_units(device: Device, root: Node) -> None:
    """Element types are known, rates are of the device's, and a role that multiplies has any."""
    known = [dtype.name for dtype in DTYPES]
    for item in _at(root, "dtypes").items():
        if item.text() not in known:
            raise item.fail(f"unknown dtype {item.text()!r}{suggest(item.text(), known)}")
    for key, unit in (("cube", device.cube), ("gemm", device.gemm)):
        for dtype, rate in unit.rates.items() if unit else ():
            node = _at(root, key, "rates", dtype)
            operand = "fp32" if dtype == "hf32" else dtype  # HF32 multiplies fp32 operands
            if operand not in device.dtypes:
                raise node.fail(
                    f"dtype {dtype!r} is not among the device's ({', '.join(device.dtypes)}); "
                    "add it to 'dtypes' or remove the rate"
                )
            if key == "gemm" and rate.k != 1:
                raise node.fail(f"the block takes {rate.k} steps of k; write it as 6x1x96/6cycle")
    needs = {"cube": ("cube", "a matrix unit"), "dsp": ("gemm", "a matrix micro-kernel")}
    for kind in device.cores.values():
        for role, (key, what) in needs.items():
            if role in kind.roles and getattr(device, key) is None:
                raise _at(root, "cores", kind.name, "roles").fail(
                    f"the role {role!r} needs {what}; add the key {key!r} or drop the role"
                )


def _check_im2col(device: Device, root: Node) -> None:
    """The sums of im2col's backward have one of two precisions."""
    if device.im2col_accumulate not in ("tensor", "fp32"):
        raise _at(root, "im2col_accumulate").fail("expected tensor or fp32; use one of them")


_CHECKS: tuple[Callable[[Device, Node], None], ...] = (
    _check_im2col,
    _check_cores,
    _check_paths,
    _check_cache,
    _check_units,
)
