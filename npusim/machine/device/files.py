"""Device files: where they are, and how one builds on another.

A file that says ``base: NAME`` is laid over that device's tree: mappings are merged key by key,
anything else it says takes the place of what the base says, and ``none`` removes it; of a mapping
``no`` does, too, the word of edited devices. Every node
keeps the file and the line it stands in, so that errors name the place of the figure itself.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from npusim.base.errors import ConfigError
from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.base.yamltree import TextFile, YamlNode, load_tree, read_text, suggest

#: Other names of shipped devices: a family's own name means its commonest bin.
ALIASES = {"ascend910b": "ascend910b2"}

#: A file as (text, name in errors).
Source = tuple[str, str]

#: What removes an entry of the base; the second, which is also a value of a flag, only a mapping.
NONE, NO = "none", "no"
_OWN = ("name", "description", "base")  # what a device does not inherit


def devices() -> list[str]:
    """Return the names of the devices that ship, sorted; ``ALIASES`` adds names to these."""
    names = (file.name for file in (configs() / "devices").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def shipped_file(name: str) -> TextFile:
    """Return the file of a shipped device, by its name or an alias."""
    return configs() / "devices" / f"{ALIASES.get(name, name)}.yaml"


@lru_cache(maxsize=64)
def is_file(name: str) -> bool:
    """Return whether text names a file instead of a shipped device."""
    return name.endswith(".yaml") or os.sep in name or "/" in name


def lineage(source: TextFile | str, name: str = "") -> tuple[Source, ...]:
    """Return a device file and its bases, nearest first.

    ``source`` is a file (a path object) or YAML text called ``name`` in errors. A base is a shipped
    device, or a ``.yaml`` file whose place is relative to the file that names it. Raises
    ``ConfigError`` for a file that cannot be read, an unknown base and a circle of bases.
    """
    texts = [read_text(source, name)]
    while (key := _tree(*texts[-1]).mapping().get("base")) is not None:
        base = read_text(_base_file(key))
        places = [os.path.realpath(file) for _, file in texts]
        if os.path.realpath(base[1]) in places:
            circle = " -> ".join(Path(file).name for _, file in (*texts, base))
            raise key.fail(
                f"the bases go round in a circle: {circle}; remove 'base' from one of the files "
                "and state its figures there"
            )
        texts.append(base)
    return tuple(texts)


def merged(sources: tuple[Source, ...]) -> tuple[YamlNode, dict[str, str]]:
    """Return the tree of a file laid over its bases, and the name of the device in each file."""
    trees = [_tree(*source) for source in sources]
    names = {
        tree.file: tree.mapping()["name"].text() if "name" in tree.mapping() else tree.file
        for tree in trees
    }
    result = trees[-1]
    for derived in reversed(trees[:-1]):
        inherited = {key: node for key, node in result.mapping().items() if key not in _OWN}
        result = _laid_over(derived, replace(result, value=inherited))
    return result, names


def _laid_over(derived: YamlNode, base: YamlNode) -> YamlNode:
    """Return ``derived`` with everything that only ``base`` has, in the order of ``base``."""
    if not isinstance(derived.value, dict) or not isinstance(base.value, dict):
        return derived
    value = dict(base.value)
    for key, node in derived.value.items():
        dropped = key in value and node.value == NO and isinstance(value[key].value, dict)
        if node.value != NONE and not dropped:
            value[key] = _laid_over(node, value[key]) if key in value else node
        elif key in value:
            del value[key]
        else:
            raise node.fail(
                f"the base has no {key!r} that could be removed{suggest(key, base.value)}"
            )
    return replace(derived, value=value)


def _base_file(key: YamlNode) -> TextFile:
    """Return the file a ``base`` names."""
    name = key.text()
    if is_file(name):
        file = Path(key.file).parent / name
        if not file.is_file():
            raise key.fail(
                f"there is no device file {str(file)!r}; correct the path, which is relative to "
                "this file, or name a shipped device"
            )
        return file
    names = [*devices(), *ALIASES]
    if name not in names:
        raise key.fail(f"unknown device {name!r}{suggest(name, names)}; or give a .yaml file")
    return shipped_file(name)


@lru_cache(maxsize=64)
def _tree(text: str, file: str) -> YamlNode:
    """Return the tree of a file's text, which nobody changes."""
    tree = load_tree(text, file)
    if not isinstance(tree.value, dict):
        raise ConfigError(f"{file}:{tree.line}: expected a mapping (key: value) of a device")
    return tree
