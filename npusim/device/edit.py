"""Edits of the structure of a device: paths, memories, pipes, links and cores added or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, replace
from typing import Any

from npusim.device.parts import CoreKind, Link, Memory, Path, Pipe
from npusim.yamltree import Node, load_tree

#: Sections of a device file whose entries are parts, and what such a part is.
PARTS: Mapping[str, type[Any]] = {
    "cores": CoreKind,
    "memories": Memory,
    "pipes": Pipe,
    "paths": Path,
    "links": Link,
}


def part_name(path: str) -> tuple[str, str] | None:
    """Section and name of the part that ``path`` names, ``paths.L0C->L1`` for one; None else."""
    section, _, name = path.partition(".")
    return (section, name) if section in PARTS and name else None


def edited(root: Node, section: str, name: str, text: str, source: str) -> Node:
    """The tree of a device file with a part dropped ("no"), as it is ("yes"), or put in.

    A part is put in as ``{key: value, ...}``, with figures without how well they are known: that
    is "assumed", from ``source``. With a memory go its paths, and its place in the cores that have
    it. Raises ``ConfigError`` for other texts, and where there is no such part to drop.
    """
    entries = root.mapping()
    parts = entries[section].mapping() if section in entries else {}
    if text.startswith("{"):
        return _put(root, section, {**parts, name: _part(root, section, name, text, source)})
    if text not in ("yes", "no"):
        raise root.fail(
            f"{section}.{name}: expected no to drop it, yes to leave it, or its keys as "
            f"{{key: value}}, got {text!r}"
        )
    if name not in parts:
        raise root.fail(f"{section}.{name}: there is none (it has: {', '.join(parts) or 'none'})")
    if text == "yes":
        return root
    root = _put(root, section, {key: part for key, part in parts.items() if key != name})
    return _without_memory(root, name) if section == "memories" else root


def _put(root: Node, section: str, parts: dict[str, Node]) -> Node:
    entries = root.mapping()
    held = entries.get(section, Node({}, root.file, root.line, section))
    return replace(root, value={**entries, section: replace(held, value=parts)})


def _part(root: Node, section: str, name: str, text: str, source: str) -> Node:
    """The node of a part that is put in."""
    node = load_tree(text, f"{section}.{name}")
    figures = {_key(f) for f in fields(PARTS[section]) if "unit" in f.metadata}
    known = {}
    for key, child in node.mapping().items():
        value = child.value
        if key in figures and isinstance(value, str) and "(" not in value:
            value = f"{value} (assumed, {source})"
        known[key] = Node(value, root.file, root.line, f"{section}.{name}.{key}")
    return Node(known, root.file, root.line, f"{section}.{name}")


def _key(field: Field[Any]) -> str:
    return str(field.metadata.get("key", field.name))


def _without_memory(root: Node, memory: str) -> Node:
    """The tree without the paths of a memory, and without it in any core."""
    entries = root.mapping()
    paths = {
        name: node
        for name, node in entries["paths"].mapping().items()
        if memory not in name.partition(".")[0].split("->")
    }
    cores = {}
    for name, node in entries["cores"].mapping().items():
        own = node.mapping()
        kept = [one for one in own["memories"].items() if one.text() != memory]
        cores[name] = replace(node, value={**own, "memories": replace(own["memories"], value=kept)})
    return _put(_put(root, "paths", paths), "cores", cores)
