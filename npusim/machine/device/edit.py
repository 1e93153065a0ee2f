"""Edits of the structure of a device: paths, memories, pipes, links and cores added or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from npusim.base.records import replace
from npusim.base.yamltree import YamlNode, load_tree
from npusim.machine.device.files import NO, NONE
from npusim.machine.device.parts import CoreKind, Link, Memory, Path, Pipe, key_of
from npusim.machine.device.spec import Device

#: Sections of a device file whose entries are parts, and what such a part is.
PARTS: Mapping[str, type[Any]] = {
    "cores": CoreKind,
    "memories": Memory,
    "pipes": Pipe,
    "paths": Path,
    "links": Link,
}


#: What a device may lack as a whole: its L2, its cube, ...
UNITS = frozenset(key for key, hint in get_type_hints(Device).items() if NoneType in get_args(hint))


def part_name(path: str) -> tuple[str, str] | None:
    """Section and name of the part that ``path`` names, ``paths.L0C->L1`` for one; None else.

    A unit that a device may lack, ``l2`` for one, is a name in no section.
    """
    section, _, name = path.partition(".")
    if path in UNITS:
        return "", path
    return (section, name) if section in PARTS and name else None


def without_absent(root: YamlNode) -> YamlNode:
    """The tree of a device file without the units of which it says that there is none."""
    entries = root.mapping()
    absent = [key for key in UNITS & entries.keys() if entries[key].value in (NO, NONE)]
    present = {key: node for key, node in entries.items() if key not in absent}
    return replace(root, value=present) if absent else root


def edited(root: YamlNode, section: str, name: str, text: str, source: str) -> YamlNode:
    """The tree of a device file with a part dropped ("no", "none"), as it is ("yes"), or put in.

    A part is put in as ``{key: value, ...}``, with figures without how well they are known: that
    is "assumed", from ``source``. With a memory go its paths, and its place in the cores that have
    it. A unit (no ``section``) is dropped or left. Raises ``ConfigError`` for other texts, and
    where there is no such part to drop.
    """
    entries = root.mapping()
    parts = entries
    if section:
        parts = entries[section].mapping() if section in entries else {}
    if section and text.startswith("{"):
        return put(root, (section,), {**parts, name: _part(root, section, name, text, source)})
    path = f"{section}.{name}" if section else name
    if text not in ("yes", NO, NONE):
        keys = ", or its keys as {key: value}" if section else ""
        raise root.fail(f"{path}: expected no to drop it, yes to leave it{keys}, got {text!r}")
    if name not in parts:
        raise root.fail(f"{path}: there is none (it has: {', '.join(parts) or 'none'})")
    if text == "yes":
        return root
    remaining = {key: part for key, part in parts.items() if key != name}
    if not section:
        return replace(root, value=remaining)
    root = put(root, (section,), remaining)
    return _without_memory(root, name) if section == "memories" else root


def put(node: YamlNode, keys: tuple[str, ...], value: str | dict[str, YamlNode]) -> YamlNode:
    """Return a copy of a tree of mappings with ``value`` at ``keys``."""
    if not keys:
        return replace(node, value=value)
    entries = node.mapping()
    path = f"{node.path}.{keys[0]}" if node.path else keys[0]
    child = entries.get(keys[0], YamlNode("", node.file, node.line, path))
    return replace(node, value={**entries, keys[0]: put(child, keys[1:], value)})


def _part(root: YamlNode, section: str, name: str, text: str, source: str) -> YamlNode:
    """The node of a part that is put in."""
    node = load_tree(text, f"{section}.{name}")
    figures = {key_of(f) for f in fields(PARTS[section]) if "unit" in f.metadata}
    children = {}
    for key, child in node.mapping().items():
        value = child.value
        if key in figures and isinstance(value, str) and "(" not in value:
            value = f"{value} (assumed, {source})"
        children[key] = YamlNode(value, root.file, root.line, f"{section}.{name}.{key}")
    return YamlNode(children, root.file, root.line, f"{section}.{name}")


def _without_memory(root: YamlNode, memory: str) -> YamlNode:
    """The tree without the paths of a memory, and without it in any core."""
    entries = root.mapping()
    paths = {
        name: node
        for name, node in entries["paths"].mapping().items()
        if memory not in name.partition(".")[0].split("->")
    }
    cores = {}
    for name, node in entries["cores"].mapping().items():
        core_entries = node.mapping()
        memories = [
            memory_node
            for memory_node in core_entries["memories"].items()
            if memory_node.text() != memory
        ]
        cores[name] = replace(
            node,
            value={**core_entries, "memories": replace(core_entries["memories"], value=memories)},
        )
    return put(put(root, ("paths",), paths), ("cores",), cores)
