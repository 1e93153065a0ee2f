"""``npusim run matmul``: its options, and the call they describe."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from npusim.call.spec import Array
from npusim.cli.parser import Parser, integer
from npusim.cli.problem import LIMITS, Inputs, Operator, Output, Prepared, numbers
from npusim.device.spec import Device
from npusim.dtypes import BF16, FP16, FP32
from npusim.errors import ArgumentError
from npusim.kernels.matmul import Tiling
from npusim.ops import matmul

_SIZES = ("m", "k", "n")
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


def prepare(arguments: argparse.Namespace, inputs: Inputs, device: Device) -> Prepared:
    """The call, its sizes from options or from operands given as files."""
    for name, array in inputs.arrays.items():
        if array.ndim != 2:
            raise ArgumentError(
                f"--input {name}={inputs.files[name]} has shape {array.shape}; matmul takes "
                "matrices, with 2 axes"
            )
    m, k, n = (_size(name, arguments, inputs) for name in _SIZES)
    a, b = inputs.get("a", {"M, K": (m, k)}), inputs.get("b", {"K, N": (k, n)})

    def expected() -> Array:
        product: Array = numbers(a).astype(np.float64) @ numbers(b).astype(np.float64)
        return product

    output = Output(
        layout="row-major",
        axes="(M, N)",
        framework=lambda c: c,
        expected=expected,
        limit=LIMITS[FP32],
    )
    return Prepared(run=partial(matmul, a, b), tiling=Tiling, outputs={"c": output})


def _size(name: str, arguments: argparse.Namespace, inputs: Inputs) -> int:
    found = {
        operand: inputs.arrays[operand].shape[axis]
        for operand, axis in _SHOWN[name]
        if operand in inputs.arrays
    }
    return inputs.size(f"--{name}", getattr(arguments, name), found)


OPERATOR = Operator(
    inputs=("a", "b"),
    options=(*_SIZES, "dtype"),
    dtypes=(FP16, BF16),
    prepare=prepare,
    add_arguments=add_arguments,
    example="npusim run matmul --device ascend910b2 --m 512 --k 1024 --n 512 --cores 0-7 "
    "--timing-only",
)
