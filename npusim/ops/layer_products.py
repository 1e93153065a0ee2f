"""The products of a linear layer, or of two computed matrices: operands, and how these lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from npusim.kernels.matmul.linear import LinearBackpropInput, LinearBackpropWeight, LinearForward
from npusim.kernels.matmul.matmul import Matmul

if TYPE_CHECKING:
    from npusim.workloads.layers import LinearLayer


class LayerProduct(NamedTuple):
    """One product of a layer.

    Operands and result are called "x" (what the layer reads), "w" (its weights, or the right
    matrix) and "y" (its output, or the gradient of that). ``operands`` are those of the kernel in
    its order, with their ``layouts`` as ``npusim.kernels.matmul.matmul`` has them; ``shapes`` are
    the matrices in memory, those of a stack one below the other.
    """

    kernel: type[Matmul]
    operands: tuple[str, str]
    result: str
    layouts: tuple[str, str]
    shapes: Mapping[str, tuple[int, int]]


def layer_product(layer: LinearLayer, result: str) -> LayerProduct:
    """The product of a layer that has this ``result``: "output", "input" or "weight"."""
    rows, stack = layer.all_rows, layer.stack
    # Matrices of a stack are computed; weights for all rows lie (Cout, Cin).
    turned = {"x": layer.left_transposed, "w": not layer.products or layer.right_transposed}
    sizes = {"x": (rows, layer.cin), "w": (layer.cin, layer.cout), "y": (rows, layer.cout)}
    shapes = {}
    for name, size in sizes.items():
        height, width = size[::-1] if turned.get(name, False) else size
        shapes[name] = (stack * height, width)
    left, right = turned["x"], turned["w"]
    kernel: type[Matmul]
    if result == "output":
        kernel, operands, layouts = LinearForward, ("x", "w"), (_first(left), _second(right))
    elif result == "input" and not left:
        kernel, operands, layouts = LinearBackpropInput, ("y", "w"), ("ND", _second(not right))
    elif result == "input":  # (cin, rows) = w y^T
        kernel, operands, layouts = LinearBackpropInput, ("w", "y"), (_first(right), "ND_nk")
    elif right:  # (cout, cin) = y^T x
        kernel, operands, layouts = LinearBackpropWeight, ("y", "x"), ("ND_km", _second(left))
    else:  # (cin, cout) = x^T y
        kernel, operands, layouts = LinearBackpropWeight, ("x", "y"), (_first(not left), "ND")
    name = {"output": "y", "input": "x", "weight": "w"}[result]
    return LayerProduct(kernel, operands, name, layouts, shapes)


def _first(transposed: bool) -> str:
    """The layout of a first operand, (M, K) or its transpose."""
    return "ND_km" if transposed else "ND"


def _second(transposed: bool) -> str:
    """The layout of a second operand, (K, N) or its transpose."""
    return "ND_nk" if transposed else "ND"
