"""Random layers whose windows lie side by side, against products of matrices and against float64.

``python -m tests.ops.window_layers 200 100`` draws so many layers with one window an image and with
several. Each result is timed, and compared with ``matmul`` on operands that lie as those of the
layer, plus ``transpose`` of what does not; with numbers (of small layers) it must be what the
float64 reference says.
"""

from __future__ import annotations

import sys
from math import prod
from random import Random
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct

import npusim
from npusim import spec
from npusim.base.dtypes import DType, dtype
from npusim.base.errors import NpusimError
from npusim.kernels.layout.transpose import Transpose
from npusim.language import Tensor
from npusim.ops.window_products import WindowMatrices
from npusim.problem.convolution import Convolution
from npusim.problem.reference import conv_filter_grad, conv_forward, conv_input_grad

Array = np.ndarray[Any, Any]

RESULTS = ("output", "input", "weight")

#: Chips, with the types that their cubes multiply.
CHIPS = {
    "ascend910b2": ("fp16", "bf16", "fp32", "fp16"),
    "ascend910": ("fp16",),
    "ascend950pr": ("fp16", "bf16", "fp32"),
}


class Layer(Struct, frozen=True):
    """A layer on a chip, in a type."""

    c: Convolution
    device: str
    dtype: DType

    def __str__(self) -> str:
        c = self.c
        sizes = f"{c.n} x {c.cin} x {c.spatial} -> {c.cout}, filter {c.kernel}"
        return f"{sizes}, {self.dtype}, {self.device}"


def drawn(random: Random, *, windows: bool, large: bool) -> Layer:
    """A layer with several ``windows`` an image, or one; a ``large`` one is for times alone."""
    device = random.choice([*CHIPS])
    dims = random.choice((1, 2, 2, 3))
    taps = [random.choice((1, 2, 3, 4, 7, 14, 16)[: 7 if dims < 3 else 4]) for _ in range(dims)]
    if windows:
        taps = [max(2, tap) for tap in taps]
    if not large:
        taps = [min(tap, 5) for tap in taps]
    out = [random.choice((2, 3, 7, 14)[: 4 if large else 2]) if windows else 1 for _ in range(dims)]
    cin = random.choice((1, 3, 16, 48, 64, 256)[: 6 if large else 4])
    while cin * prod(taps) > 30_000:
        cin //= 2
    n = random.choice((1, 8, 64, 512, 4096) if large and not windows else (1, 2, 8))
    if large and n * prod(out) * cin * prod(taps) > 1 << 25:
        n = 1
    cout = random.choice((64, 100, 768, 1280) if large else (5, 16, 40))
    c = Convolution(
        n=n,
        cin=max(1, cin),
        cout=cout,
        spatial=tuple(o * tap for o, tap in zip(out, taps, strict=True)),
        kernel=tuple(taps),
        stride=tuple(taps) if windows else (1,) * dims,
    )
    return Layer(c, device, dtype(random.choice(CHIPS[device])))


def called(layer: Layer, result: str, dy: Any, x: Any, w: Any, **options: Any) -> Any:
    """One result of a layer."""
    c = layer.c
    options = {
        "stride": c.stride,
        "device": layer.device,
        "cube_math_type": "keep_dtype",
        **options,
    }
    if result == "output":
        return npusim.ops.convolution(x, w, **options)
    mask = (result == "input", result == "weight", False)
    return npusim.ops.convolution_backward(dy, x, w, output_mask=mask, **options, rules="hardware")


def time_us(layer: Layer, result: str) -> float:
    """The time of a result."""
    c = layer.c
    operands = (spec(shape, layer.dtype) for shape in (c.dy_shape, c.x_shape, c.w_shape))
    return float(called(layer, result, *operands, timeline=False).time_us)


def expected_us(layer: Layer, result: str) -> float:
    """The time of ``matmul`` on operands that lie as the layer's, and of what is transposed."""
    m = WindowMatrices(layer.c.lifted())
    windows, rows = (m.windows, m.depth), m.output_rows
    pairs = {
        "output": (windows, (m.cout, m.depth)),
        "input": (rows, (m.cout, m.depth)),
        "weight": (rows, windows),
    }
    first, second = pairs[result]
    turned: dict[str, Any] = {
        "transpose_a": result != "output" and (result == "input") == m.channels_first,
        "transpose_b": result == "output",
    }
    if result == "output" and m.channels_first:
        first, second = second, first
    product = npusim.ops.matmul(
        spec(first, layer.dtype),
        spec(second, layer.dtype),
        **turned,
        out_dtype=layer.dtype,
        device=layer.device,
        timeline=False,
    )
    x = Tensor("x", m.map_axes, layer.dtype, "in")
    y = Tensor("y", m.output_axes, layer.dtype, "in")
    matrix, lines = (
        Tensor("matrix", windows, layer.dtype, "out"),
        Tensor("lines", rows, layer.dtype, "out"),
    )
    kernels: list[Transpose] = []
    if m.moves_map:
        kernels.append(m.to_map(matrix, x) if result == "input" else m.to_windows(x, matrix))
    if m.moves_output:
        kernels.append(m.to_channels(lines, y) if result == "output" else m.to_rows(y, lines))
    device = npusim.load_device(layer.device)
    total = float(product.time_us)
    for kernel in kernels:
        read, written = replaced_roles(kernel)
        few = Transpose(kernel.perm, read, written).on_few(device, device.count("vector"))
        total += npusim.simulate(few, device, check=False, timeline=False).time_us
    return total


def replaced_roles(kernel: Transpose) -> tuple[Tensor, Tensor]:
    """The tensors of a transposition that stands by itself."""
    x, y = kernel.x, kernel.y
    return Tensor("x", x.shape, x.dtype, "in"), Tensor("y", y.shape, y.dtype, "out")


def wrong(layer: Layer, result: str, seed: int) -> str:
    """What is wrong with the numbers of a result, in words; "" if nothing is.

    Operands are small integers, whose sums are exact in fp32 and rounded once.
    """
    c, data = layer.c, np.random.default_rng(seed)
    arrays = [
        data.integers(-2, 3, shape).astype(layer.dtype.numpy)
        for shape in (c.dy_shape, c.x_shape, c.w_shape)
    ]
    made = called(layer, result, *arrays, check=True)
    (got,) = (array for array in made.outputs if array is not None)
    dy, x, w = (array.astype(np.float64) for array in arrays)
    window = (c.stride, c.padding, c.dilation, 1)
    want = {
        "output": lambda: conv_forward(x, w, *window),
        "input": lambda: conv_input_grad(dy, w, c.x_shape, *window),
        "weight": lambda: conv_filter_grad(x, dy, c.kernel, *window),
    }[result]()
    if np.array_equal(np.asarray(got, np.float64), want.astype(layer.dtype.numpy)):
        return ""
    return f"{layer}: {result} is wrong"


def compared(random: Random, count: int, *, windows: bool) -> list[tuple[float, str]]:
    """Times of results of random layers over those of products, with what they are of."""
    found = []
    for number in range(count):
        layer = drawn(random, windows=windows, large=True)
        small = drawn(random, windows=windows, large=False)
        for result in RESULTS:
            if text := wrong(small, result, number):
                raise AssertionError(text)
            try:
                ratio = time_us(layer, result) / expected_us(layer, result)
            except NpusimError as error:
                sys.stderr.write(f"{layer}: {result}: {error}\n")
                continue
            found.append((ratio, f"{result} of {layer}"))
    return sorted(found, reverse=True)


def main(one: int = 200, several: int = 100) -> None:
    """Print the ratios of so many layers."""
    for count, windows in ((one, False), (several, True)):
        found = compared(Random(count), count, windows=windows)
        if not found:
            continue
        ratios = [ratio for ratio, _ in found]
        over = sum(ratio > 1.3 for ratio in ratios)
        kind = "several windows" if windows else "one window"
        sys.stdout.write(
            f"{kind}: {len(found)} results, median {median(ratios):.3f}, worst {ratios[0]:.3f}, "
            f"{over} over 1.3\n"
        )
        for ratio, text in found[:12]:
            sys.stdout.write(f"  {ratio:.3f} {text}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
