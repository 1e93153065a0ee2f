"""Workloads: named lists of convolution layers, read from YAML.

A file has a ``description`` and ``layers``, a mapping from layer name to its sizes::

    conv1: {cin: 3, cout: 64, spatial: [224, 224], kernel: 7, stride: 2, padding: 3}

``kernel``, ``stride``, ``padding`` and ``dilation`` are one number for all dimensions or a list
with one per dimension; an entry of a padding list may be a [before, after] pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from npusim.convolution import Convolution
from npusim.errors import ArgumentError
from npusim.resources import configs
from npusim.yamltree import Node, TextFile, load_tree, suggest

T = TypeVar("T")

_FOLDER = configs() / "workloads"
_SUFFIX = ".yaml"
_MAX_DIMS = 3
_REQUIRED = ("cin", "cout", "spatial", "kernel")
_OPTIONAL = ("stride", "padding", "dilation", "groups", "count")


@dataclass(frozen=True, kw_only=True)
class ConvLayer(Convolution):
    """One convolution of a network, and ``count``, how often the network has it."""

    name: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named list of layers, in the order of the network."""

    name: str
    description: str
    layers: tuple[ConvLayer, ...]

    def layer(self, name: str) -> ConvLayer:
        """Return the layer called ``name``."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        known = [layer.name for layer in self.layers]
        raise ArgumentError(f"workload {self.name} has no layer {name!r}{suggest(name, known)}")


def workloads() -> list[str]:
    """Return the names of the workloads that ship, sorted."""
    names = (entry.name for entry in _FOLDER.iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def load_workload(name_or_path: str | Path) -> Workload:
    """Read a workload that ships (by name) or one's own (a path ending in .yaml or .yml)."""
    if isinstance(name_or_path, Path) or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        return _workload(path, path.stem)
    known = workloads()
    if name_or_path not in known:
        raise ArgumentError(
            f"unknown workload {name_or_path!r} (a file of your own needs a path ending in .yaml)"
            f"{suggest(name_or_path, known)}"
        )
    return _shipped(name_or_path)


@lru_cache(maxsize=16)
def _shipped(name: str) -> Workload:
    """A workload that ships; its file is read once."""
    return _workload(_FOLDER / (name + _SUFFIX), name)


def find_layer(place: str) -> ConvLayer:
    """Return a layer by ``workload/layer``, such as ``resnet50/res4_3x3``."""
    workload, slash, layer = place.rpartition("/")
    if not (slash and workload and layer):
        raise ArgumentError(f"expected WORKLOAD/LAYER such as resnet50/conv1, got {place!r}")
    return load_workload(workload).layer(layer)


def _workload(source: TextFile, name: str) -> Workload:
    """Read one file."""
    tree = load_tree(source).mapping(required=("description", "layers"))
    layers = tree["layers"].mapping()
    if not layers:
        raise tree["layers"].fail("expected at least one layer")
    return Workload(
        name=name,
        description=tree["description"].text(),
        layers=tuple(_layer(key, node) for key, node in layers.items()),
    )


def _layer(name: str, node: Node) -> ConvLayer:
    """Read one layer and check that its numbers fit each other."""
    if "/" in name or not name:
        raise node.fail(f"a layer name must not be empty or contain '/', got {name!r}")
    fields = node.mapping(_REQUIRED, _OPTIONAL)
    spatial = tuple(_positive(item) for item in fields["spatial"].items())
    dims = len(spatial)
    if not 1 <= dims <= _MAX_DIMS:
        raise fields["spatial"].fail(f"expected 1 to {_MAX_DIMS} sizes, got {dims}")

    def sizes(key: str) -> tuple[int, ...]:
        return _per_dim(fields[key], dims, _positive) if key in fields else (1,) * dims

    def number(key: str) -> int:
        return _positive(fields[key]) if key in fields else 1

    padding = _per_dim(fields["padding"], dims, _pads) if "padding" in fields else ()
    try:
        return ConvLayer(
            name=name,
            cin=number("cin"),
            cout=number("cout"),
            spatial=spatial,
            kernel=sizes("kernel"),
            stride=sizes("stride"),
            padding=padding,
            dilation=sizes("dilation"),
            groups=number("groups"),
            count=number("count"),
        )
    except ArgumentError as error:
        raise node.fail(str(error)) from error


def _per_dim(node: Node, dims: int, read: Callable[[Node], T]) -> tuple[T, ...]:
    """Read one value for all dimensions, or a list of one per dimension."""
    if isinstance(node.value, str):
        return (read(node),) * dims
    items = node.items()
    if len(items) != dims:
        raise node.fail(
            f"expected one number or a list of {dims}, as spatial has, got {len(items)}"
        )
    return tuple(read(item) for item in items)


def _positive(node: Node) -> int:
    """Read an integer above 0."""
    return _integer(node, 1)


def _pads(node: Node) -> tuple[int, int]:
    """Read a padding: one number for both sides or a [before, after] pair."""
    if isinstance(node.value, str):
        return (_integer(node, 0),) * 2
    both = [_integer(item, 0) for item in node.items()]
    if len(both) != 2:
        raise node.fail(f"expected a number or a [before, after] pair, got a list of {len(both)}")
    return both[0], both[1]


def _integer(node: Node, least: int) -> int:
    """Read a decimal integer of at least ``least``."""
    text = node.text()
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise node.fail(f"expected an integer of at least {least}, got {text!r}")
    return int(text)
