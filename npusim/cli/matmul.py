"""``npusim run matmul``: its options, and the call they describe."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from npusim.cli.parser import Parser, integer
from npusim.cli.problem import Inputs, Prepared
from npusim.errors import ArgumentError
from npusim.kernels.matmul import Tiling
from npusim.ops import matmul
from npusim.session import Array

INPUTS = ("a", "b")
OPTIONS = ("m", "k", "n")
#: Size -> (operand, axis) that shows it.
_SHOWN = {"m": (("a", 0),), "k": (("a", 1), ("b", 0)), "n": (("b", 1),)}


def add_arguments(parser: Parser) -> None:
    """Declare the sizes of C[M, N] = A[M, K] @ B[K, N]."""
    group = parser.add_argument_group("matmul: sizes of C[M, N] = A[M, K] @ B[K, N]")
    for name, text in (
        ("m", "rows of A and C, elements (default: as in --input a)"),
        ("k", "columns of A and rows of B, elements (default: as in --input a or b)"),
        ("n", "columns of B and C, elements (default: as in --input b)"),
    ):
        group.add_argument(f"--{name}", type=integer(1), metavar="N", help=text)


def prepare(arguments: argparse.Namespace, inputs: Inputs) -> Prepared:
    """The call, its sizes from options or from operands given as files."""

    for name, array in inputs.arrays.items():
        if array.ndim != 2:
            raise ArgumentError(
                f"--input {name}={inputs.files[name]} has shape {array.shape}; matmul takes "
                "matrices, with 2 axes"
            )
    m, k, n = (_size(name, arguments, inputs) for name in OPTIONS)
    a, b = inputs.get("a", (m, k)), inputs.get("b", (k, n))

    def expected() -> Array:
        product: Array = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
        return product

    return Prepared(
        run=partial(matmul, a, b),
        tiling=Tiling,
        what="product",
        layout="row-major",
        axes="(M, N)",
        framework=lambda c: c,
        expected=expected,
    )


def _size(name: str, arguments: argparse.Namespace, inputs: Inputs) -> int:
    found = {
        operand: inputs.arrays[operand].shape[axis]
        for operand, axis in _SHOWN[name]
        if operand in inputs.arrays
    }
    return inputs.size(f"--{name}", getattr(arguments, name), found)
