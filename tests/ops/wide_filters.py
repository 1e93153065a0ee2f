"""Random filters of 200 to 400 taps along an axis: one tap more, and numbers against float64.

``python -m tests.ops.wide_filters 200`` draws so many layers. A load of img2col slides at most 255
taps, so every second layer has just these, and with one tap more it is cut into bands.
"""

from __future__ import annotations

import sys
from random import Random
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct

import npusim
from npusim import spec
from npusim.base.dtypes import DType, dtype
from npusim.base.records import replace
from npusim.ops.conv_backward import arguments
from npusim.ops.layer import expected
from npusim.problem.convolution import Convolution

RESULTS = ("output", "grad_input", "grad_weight")
CHIPS = {
    "ascend910b2": ("fp16", "bf16", "fp32"),
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
        way = "transposed, " * c.transposed
        sizes = f"{c.n} x {c.cin} x {c.spatial} -> {c.cout}, {way}filter {c.kernel}"
        places = f"stride {c.stride}, padding {c.padding}, dilation {c.dilation}"
        return f"{sizes}, {places}, {self.dtype}, {self.device}"

    def wider(self) -> Layer:
        """The layer with one tap more and as many inputs."""
        *rest, last = self.c.kernel
        return replace(self, c=replace(self.c, kernel=(*rest, last + 1)))


def drawn(random: Random, taps: int, *, large: bool) -> Layer:
    """A layer with so many taps along its last axis; a ``large`` one is for times alone."""
    device = random.choice([*CHIPS])
    dims = random.choice((1, 2))
    high = random.choice((1, 3)) if dims > 1 else 1
    transposed, stride = random.random() < 0.3, random.choice((1, 1, 2))
    dilation = random.choice((1, 1, 1, 2)) if stride == 1 else 1
    pad = random.choice((0, 0, taps // 2, 3))
    reach = dilation * taps + 1
    wide = random.choice((500, 2000, 4000) if large else (60, 90))
    wide = wide if transposed else reach + wide
    c = Convolution(
        n=random.choice((1, 4)) if large else 1,
        cin=random.choice((1, 16, 64) if large else (1, 5, 20)),
        cout=random.choice((16, 64, 100) if large else (1, 20)),
        spatial=(random.choice((4, 16)) if large else 3, wide)[2 - dims :],
        kernel=(high, taps)[2 - dims :],
        stride=(1, stride)[2 - dims :],
        padding=((0, 0), (pad, pad))[2 - dims :],
        dilation=(1, dilation)[2 - dims :],
        transposed=transposed,
    )
    return Layer(c, device, dtype(random.choice(CHIPS[device])))


def called(layer: Layer, result: str, arrays: dict[str, Any], **options: Any) -> Any:
    """One result of a layer."""
    usual: dict[str, Any] = {
        "device": layer.device,
        "cube_math_type": "keep_dtype",
        **arguments(layer.c),
    }
    if result == "output":
        return npusim.ops.convolution(arrays["x"], arrays["w"], **usual, **options)
    mask = (result == "grad_input", result == "grad_weight", False)
    usual |= {"output_mask": mask, "rules": "hardware"}
    return npusim.ops.convolution_backward(
        arrays["dy"], arrays["x"], arrays["w"], **usual, **options
    )


def time_us(layer: Layer, result: str) -> float:
    """The time of a result."""
    c = layer.c
    shapes = {"dy": c.dy_shape, "x": c.x_shape, "w": c.w_shape}
    arrays = {name: spec(shape, layer.dtype) for name, shape in shapes.items()}
    return float(called(layer, result, arrays, timeline=False).time_us)


def wrong(layer: Layer, result: str, seed: int) -> str:
    """What is wrong with the numbers of a result, in words; "" if nothing is.

    Operands are small integers, whose sums are exact in fp32 and rounded once.
    """
    c, data = layer.c, np.random.default_rng(seed)
    shapes = {"dy": c.dy_shape, "x": c.x_shape, "w": c.w_shape}
    arrays = {
        name: data.integers(-2, 3, shape).astype(layer.dtype.numpy)
        for name, shape in shapes.items()
    }
    made = called(layer, result, arrays, check=True)
    (got,) = (array for array in made.outputs if array is not None)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    want = expected(c, result, wide)
    if np.array_equal(np.asarray(got, np.float64), want.astype(layer.dtype.numpy)):
        return ""
    return f"{layer}: {result} is wrong"


def compared(random: Random, count: int) -> list[tuple[float, str]]:
    """Times of results with one tap more over those without, with what they are of."""
    found = []
    for number in range(count):
        taps = 255 if number % 2 else random.randint(200, 400)
        layer = drawn(random, taps, large=True)
        small = drawn(random, random.randint(200, 400), large=False)
        for result in RESULTS:
            if text := wrong(small, result, number):
                raise AssertionError(text)
            ratio = time_us(layer.wider(), result) / time_us(layer, result)
            found.append((ratio, f"{result} of {layer}"))
    return sorted(found, reverse=True)


def main(count: int = 200) -> None:
    """Print the ratios of so many layers."""
    found = compared(Random(count), count)
    for result in RESULTS:
        rows = [(ratio, text) for ratio, text in found if text.startswith(f"{result} ")]
        ratios = [ratio for ratio, _ in rows]
        over = sum(ratio > 1.1 for ratio in ratios)
        sys.stdout.write(
            f"{result}: {len(rows)} layers, median {median(ratios):.3f}, worst {ratios[0]:.3f}, "
            f"{over} over 1.1\n"
        )
        for ratio, text in rows[:8]:
            sys.stdout.write(f"  {ratio:.3f} {text}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
