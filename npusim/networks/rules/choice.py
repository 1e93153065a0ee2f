"""Which row of the table says what a layer computes, by its kind and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npusim.networks.rules.table import KindRule, tables
from npusim.workloads import ConvLayer, ElementwiseLayer, Layer, LinearLayer
from npusim.workloads.graph import Node
from npusim.workloads.kinds import USUAL
from npusim.workloads.numbers import FEW

#: Normalisations of each image by itself, over channels of a group or one, and all positions.
OF_IMAGES = ("group_norm", "instance_norm")


#: The parameter of a node whose factors or terms belong to the network.
_SYMBOLS = {"scale": ("gamma",), "shift": ("beta",)}


def rule_of(node: Node, shapes: Sequence[tuple[int, ...]]) -> KindRule:
    """The row of a node that reads values in these shapes."""
    rules = tables().rules
    layer = node.layer
    if isinstance(layer, ConvLayer):
        return rules["biased convolution" if layer.bias else "convolution"]
    if isinstance(layer, LinearLayer):
        return rules["product" if layer.products else "linear"]
    kind = layer.kind
    if kind in FEW.values() and not layer.numbers:
        kind = f"{kind} by {_by(layer, shapes)}"
    flat = kind in OF_IMAGES and len(layer.shape) < 3
    if kind not in rules or flat:
        return _with_parameters(rules["traffic"], node)
    return rules[kind]


def _with_parameters(rule: KindRule, node: Node) -> KindRule:
    """The row of an operation of which only the traffic is known, with the node's parameters.

    Each is read forward, and its gradient is written beside those of the operands.
    """
    layer = node.layer
    assert isinstance(layer, ElementwiseLayer)
    symbols = tuple(node.parameters or ())
    if node.parameters is None and layer.has_parameters:
        symbols = tuple(tables().rules[layer.kind].parameters) or _SYMBOLS[layer.kind]
    if not symbols:
        return rule
    forward = rule.forward[0]
    backward = rule.backward[0]
    gradients = tuple(f"d{symbol}" for symbol in symbols)
    return rule._replace(
        parameters=dict.fromkeys(symbols, "vector"),
        forward=(forward._replace(reads=(*forward.reads, *symbols)),),
        backward=(
            backward._replace(
                reads=(*backward.reads, *symbols), writes=(*backward.writes, *gradients)
            ),
        ),
    )


def _by(layer: ElementwiseLayer, shapes: Sequence[tuple[int, ...]]) -> str:
    """Of what there is a factor or term each, "" where no kernel takes them."""
    weight = layer.weight
    image = layer.shape[1:]
    if not weight:
        return "channel" if _by_channel(shapes) else ""
    if len(image) > 1 and weight == (image[0], *(1 for _ in image[1:])):
        return "weights of channels"
    return "weights of rows" if image[-len(weight) :] == weight else ""


def _by_channel(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether the second of two values has a number per image and channel of the first."""
    if len(shapes) != 2 or len(shapes[0]) < 3:
        return False
    (n, c, *_), few = shapes
    return few[:2] == (n, c) and prod(few) == n * c


def named_numbers(layer: Layer | ElementwiseLayer | None) -> dict[str, float]:
    """The numbers of a layer, by the names that the row of its kind has for them."""
    if not isinstance(layer, ElementwiseLayer) or layer.kind not in tables().rules:
        return {}
    numbers = layer.numbers or USUAL.get(layer.kind, ())
    named = dict(zip(tables().rules[layer.kind].numbers, numbers, strict=False))
    if layer.kind in OF_IMAGES:
        channels = layer.shape[1]
        width = channels // int(named.get("groups", channels))
        return {**named, "width": width, "1/n": 1 / (width * prod(layer.shape[2:]))}
    return {**named, "width": layer.shape[-1], "1/w": 1 / layer.shape[-1]}
