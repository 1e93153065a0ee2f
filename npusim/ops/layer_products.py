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
    x_turned = layer.left_transposed
    # Matrices of a stack are computed; weights for all rows lie (Cout, Cin).
    w_turned = not layer.products or layer.right_transposed
    shapes = _shapes(layer, x_turned=x_turned, w_turned=w_turned)
    if result == "output":
        layouts = (_first(x_turned), _second(w_turned))
        return LayerProduct(LinearForward, ("x", "w"), "y", layouts, shapes)
    if result == "input" and not x_turned:
        layouts = ("ND", _second(not w_turned))
        return LayerProduct(LinearBackpropInput, ("y", "w"), "x", layouts, shapes)
    if result == "input":  # (cin, rows) = w y^T
        layouts = (_first(w_turned), "ND_nk")
        return LayerProduct(LinearBackpropInput, ("w", "y"), "x", layouts, shapes)
    if w_turned:  # (cout, cin) = y^T x
        layouts = ("ND_km", _second(x_turned))
        return LayerProduct(LinearBackpropWeight, ("y", "x"), "w", layouts, shapes)
    layouts = (_first(not x_turned), "ND")  # (cin, cout) = x^T y
    return LayerProduct(LinearBackpropWeight, ("x", "y"), "w", layouts, shapes)


def _shapes(layer: LinearLayer, *, x_turned: bool, w_turned: bool) -> dict[str, tuple[int, int]]:
    """The matrices of a layer in memory, those of a stack one below the other."""
    rows, cin, cout, stack = layer.all_rows, layer.cin, layer.cout, layer.stack
    return {
        "x": (stack * cin, rows) if x_turned else (stack * rows, cin),
        "w": (stack * cout, cin) if w_turned else (stack * cin, cout),
        "y": (stack * rows, cout),
    }


def _first(transposed: bool) -> str:
    """The layout of a first operand, (M, K) or its transpose."""
    return "ND_km" if transposed else "ND"


def _second(transposed: bool) -> str:
    """The layout of a second operand, (K, N) or its transpose."""
    return "ND_nk" if transposed else "ND"
