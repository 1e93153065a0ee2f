"""Which row of the table says what a layer computes, by its kind and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npusim.networks.rules import Rule, tables
from npusim.workloads import ConvLayer, ElementwiseLayer, Layer, LinearLayer
from npusim.workloads.numbers import FEW, USUAL


def rule_of(layer: Layer | ElementwiseLayer, shapes: Sequence[tuple[int, ...]]) -> Rule:
    """The row of a layer that reads values of these shapes, of a batch."""
    rules = tables().rules
    if isinstance(layer, ConvLayer):
        return rules["biased convolution" if layer.bias else "convolution"]
    if isinstance(layer, LinearLayer):
        return rules["product" if layer.products else "linear"]
    kind = layer.kind
    if kind in FEW.values() and not layer.numbers:
        kind = f"{kind} by channel" if _by_channel(shapes) else ""
    return rules.get(kind, rules["traffic"])


def _by_channel(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the second of two values has a number for each image and channel of the first."""
    if len(shapes) != 2 or len(shapes[0]) < 3:
        return False
    (n, c, *_), few = shapes
    return few[:2] == (n, c) and prod(few) == n * c


def numbers_of(layer: Layer | ElementwiseLayer | None) -> dict[str, float]:
    """The numbers of a layer, by the names that the row of its kind has for them."""
    if not isinstance(layer, ElementwiseLayer) or layer.kind not in tables().rules:
        return {}
    numbers = layer.numbers or USUAL.get(layer.kind, ())
    named = dict(zip(tables().rules[layer.kind].numbers, numbers, strict=False))
    return {**named, "width": layer.shape[-1], "1/w": 1 / layer.shape[-1]}
