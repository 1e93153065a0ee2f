"""The layers of a workload file: each a line of sizes by name.

    conv1: {cin: 3, cout: 64, spatial: [224, 224], kernel: 7, stride: 2, padding: 3}
    fc: {cin: 2048, cout: 1000, rows: 1}

A layer with ``spatial`` is a convolution, one with ``rows`` (vectors per image) a linear layer, or
with ``products`` (per image) products of two computed matrices, as attention has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from npusim.base.errors import told_as
from npusim.base.yamltree import YamlNode
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer

T = TypeVar("T")

_MAX_DIMS = 3
_SHARED_KEYS = ("images", "bias", "count", "input_gradient", "shared", "trained")
_REQUIRED = ("cin", "cout", "spatial", "kernel")
_OPTIONAL = ("stride", "padding", "dilation", "groups", "transposed", "output_padding")
_LINEAR = ("cin", "cout", "rows")
_MATRICES = ("products", "left_transposed", "right_transposed")


class StatedLayer(NamedTuple):
    """A layer as a file states it, and ``tree``, the place where it does.

    All uses of a ``shared`` layer have one set of parameters; one that is not ``trained`` has
    frozen ones.
    """

    layer: Layer
    tree: YamlNode
    shared: bool = False
    trained: bool = True

    def states(self, key: str) -> bool:
        """Return whether the file has this key for the layer."""
        return key in self.tree.mapping()


def read_layer(name: str, node: YamlNode, *, first: bool) -> StatedLayer:
    """Read one layer; before the ``first`` nothing is trained, unless the file says otherwise."""
    if "/" in name or not name:
        raise node.fail(f"a layer name must not be empty or contain '/', got {name!r}")
    linear = "rows" in node.mapping()
    if linear:
        fields = node.mapping(_LINEAR, (*_MATRICES, *_SHARED_KEYS))
    else:
        fields = node.mapping(_REQUIRED, (*_OPTIONAL, *_SHARED_KEYS))
    trained = _flag(fields, "trained", usual=True)
    common: dict[str, Any] = {
        "name": name,
        "n": _positive(fields["images"]) if "images" in fields else 1,
        "bias": _flag(fields, "bias"),
        "input_gradient": _flag(fields, "input_gradient", usual=not first),
        "weight_gradient": trained,
    }
    if common["bias"]:
        common["bias_gradient"] = trained
    layer = _linear(fields, common) if linear else _convolution(node, fields, common)
    return StatedLayer(layer, node, shared=_flag(fields, "shared"), trained=trained)


def _flag(fields: Mapping[str, YamlNode], key: str, *, usual: bool = False) -> bool:
    return fields[key].flag() if key in fields else usual


def _linear(fields: Mapping[str, YamlNode], common: Mapping[str, Any]) -> LinearLayer:
    """Read a linear layer or products of two computed matrices."""
    sizes: dict[str, Any] = {key: _positive(fields[key]) for key in _LINEAR}
    for key in ("products", "count"):
        if key in fields:
            sizes[key] = _positive(fields[key])
    for key in ("bias", "trained", "shared"):
        if "products" in fields and key in fields:
            raise fields[key].fail(
                f"products multiply two computed matrices, which have no {key}; remove it"
            )
    for key in ("left_transposed", "right_transposed"):
        sizes[key] = _flag(fields, key)
    return LinearLayer(**common, **sizes)


def _convolution(
    node: YamlNode, fields: Mapping[str, YamlNode], common: Mapping[str, Any]
) -> ConvLayer:
    """Read a convolution and check that its numbers fit each other."""
    spatial = tuple(_positive(item) for item in fields["spatial"].items())
    dims = len(spatial)
    if not 1 <= dims <= _MAX_DIMS:
        raise fields["spatial"].fail(f"expected 1 to {_MAX_DIMS} sizes, got {dims}")
    sizes: dict[str, Any] = {k: read(fields[k]) for k, read in _SINGLE.items() if k in fields}
    if "output_padding" in fields and not sizes.get("transposed"):
        raise fields["output_padding"].fail(
            "output_padding belongs to transposed layers; remove it or say transposed: true"
        )
    for key, read in _EACH.items():
        if key in fields:
            sizes[key] = _per_dim(fields[key], dims, read)
    with told_as(node.fail):
        return ConvLayer(**common, spatial=spatial, **sizes)


def _per_dim(node: YamlNode, dims: int, read: Callable[[YamlNode], T]) -> tuple[T, ...]:
    """Read one value for all dimensions, or a list of one per dimension."""
    if isinstance(node.value, str):
        return (read(node),) * dims
    items = node.items()
    if len(items) != dims:
        raise node.fail(
            f"expected one number or a list of {dims}, as spatial has, got {len(items)}"
        )
    return tuple(read(item) for item in items)


_positive = partial(YamlNode.integer, least=1)


def _pads(node: YamlNode) -> tuple[int, int]:
    """Read a padding: one number for both sides or a [before, after] pair."""
    if isinstance(node.value, str):
        return (node.integer(0),) * 2
    both = [item.integer(0) for item in node.items()]
    if len(both) != 2:
        raise node.fail(f"expected a number or a [before, after] pair, got a list of {len(both)}")
    return both[0], both[1]


#: What reads the keys of a convolution: those with one value, and those with one per dimension.
_SINGLE: Mapping[str, Callable[[YamlNode], Any]] = {
    **dict.fromkeys(("cin", "cout", "groups", "count"), _positive),
    "transposed": YamlNode.flag,
}
_EACH: Mapping[str, Callable[[YamlNode], Any]] = {
    **dict.fromkeys(("kernel", "stride", "dilation"), _positive),
    "padding": _pads,
    "output_padding": partial(YamlNode.integer, least=0),
}
