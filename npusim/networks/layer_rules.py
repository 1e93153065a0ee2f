"""Which row of the table says what a layer computes, by its kind and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npusim.networks.rules import Rule, tables
from npusim.workloads import ConvLayer, ElementwiseLayer, Layer, LinearLayer
from npusim.workloads.numbers import FEW, USUAL

#: Normalisations of each image by itself, over channels of a group or one, and all positions.
OF_IMAGES = ("group_norm", "instance_norm")


def rule_of(layer: Layer | ElementwiseLayer, shapes: Sequence[tuple[int, ...]]) -> Rule:
    """The row of a layer that reads values of these shapes, of a batch."""
    rules = tables().rules
    if isinstance(layer, ConvLayer):
        return rules["biased convolution" if layer.bias else "convolution"]
    if isinstance(layer, LinearLayer):
        return rules["product" if layer.products else "linear"]
    kind = layer.kind
    if kind in FEW.values() and not layer.numbers:
        kind = f"{kind} by {_by(layer, shapes)}"
    rule = rules.get(kind, rules["traffic"])
    seen, own = ((one[:1], prod(one)) for one in (shapes[0][1:], layer.shape))
    other = "channels" in rule.parameters.values() and seen != own  # a view of other channels
    flat = kind in OF_IMAGES and len(layer.shape) < 2
    return rules["traffic"] if other or flat else rule


def _by(layer: ElementwiseLayer, shapes: Sequence[tuple[int, ...]]) -> str:
    """Of what there is a factor or term each, "" where no kernel takes them."""
    weight, shape = layer.weight, layer.shape
    if not weight:
        return "channel" if _by_channel(shapes) else ""
    if len(shape) > 1 and weight == (shape[0], *(1 for _ in shape[1:])):
        turned = len(shapes[0]) == 2 and shapes[0][-1] == prod(weight)  # rows, each of all channels
        if not turned:
            return "weights of channels"
        weight = shape = weight[:1]
    return "weights of rows" if prod(weight) % 8 == 0 and shape[-len(weight) :] == weight else ""


def _by_channel(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the second of two values has a number for each image and channel of the first."""
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
        width = layer.shape[0] // int(named.get("groups", layer.shape[0]))
        return {**named, "width": width, "1/n": 1 / (width * prod(layer.shape[1:]))}
    return {**named, "width": layer.shape[-1], "1/w": 1 / layer.shape[-1]}
