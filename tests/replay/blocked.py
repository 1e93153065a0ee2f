"""Replayed calls of the tensor compiler's operators, on blocked operands; and what operands are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim import ops
from npusim.base.dtypes import dtype

Array = np.ndarray[Any, Any]

#: What a replayed call returns: a ``Result`` or a ``NetworkResult``.
Call = Callable[[str], Any]


def integers(shape: tuple[int, ...], name: str, seed: int, rounded: bool = False) -> Array:
    """Integers from -3 to 3; with ``rounded`` plus a fraction that HF32 and fp16 drop."""
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(-3, 4, shape).astype(np.float32)
    if rounded and name == "fp32":
        values *= 1 + rng.integers(0, 2, shape).astype(np.float32) * np.float32(2.0**-14)
    return values.astype(dtype(name).numpy)


def filter_5hd(cin: int, cout: int, size: int, kernel: int, **options: Any) -> Call:
    """Build conv2d_backprop_filter on blocked operands."""
    para: dict[str, Any] = {
        "strides": [1, 1],
        "padding": [1, 1, 0, 1],
        "dilations": [1, 1, 1, 1],
    }
    para |= {key: options.pop(key) for key in ("strides", "groups", "dilations") if key in options}

    def call(device: str) -> Any:
        (sh, sw), (_, _, dh, dw) = para["strides"], para["dilations"]
        out = (size + 2 - dh * (kernel - 1) - 1) // sh + 1, (size - dw * (kernel - 1)) // sw + 1
        x = integers((2, -(-cin // 16), size, size, 16), "fp16", 0)
        dy = integers((2, -(-cout // 16), *out, 16), "fp16", 1)
        sizes = [cout, cin // para.get("groups", 1), kernel, kernel]
        return ops.conv2d_backprop_filter(x, dy, sizes, para, device=device, **options)

    return call


def filter_6hd(groups: int) -> Call:
    """Build conv3d_backprop_filter on blocked operands of 32 -> 48 channels."""

    def call(device: str) -> Any:
        para = {"strides": [1, 2, 1], "pads": [0, 0, 1, 1, 1, 1], "dilations": [1] * 5}
        return ops.conv3d_backprop_filter(
            integers((2, 3, 2, 7, 6, 16), "fp16", 0),
            integers((2, 2, 3, 4, 6, 16), "fp16", 1),
            [48, 32 // groups, 2, 3, 3],
            para | {"groups": groups},
            device=device,
        )

    return call


def input_6hd(groups: int, bias: bool, stride: int = 1) -> Call:
    """Build conv3d_backprop_input on blocked operands of 32 -> 48 channels."""

    def call(device: str) -> Any:
        from npusim.layout import group_plan  # noqa: PLC0415 - the packing of the filter

        plan = group_plan(32, 48, groups, 16)
        rows = plan.real_groups * 2 * plan.cin1_g * 3 * 3
        size = (3, 7, 6)
        out = tuple(
            (x + p - k) // stride + 1 for x, p, k in zip(size, (0, 2, 2), (2, 3, 3), strict=True)
        )
        para: dict[str, Any] = {
            "strides": [1, stride, stride, stride, 1],
            "pads": [0, 0, 1, 1, 1, 1],
            "dilations": [1, 1, 1, 1, 1],
        }
        if bias:
            para["tensor_bias"] = integers((32,), "fp16", 2)
        return ops.conv3d_backprop_input(
            integers((rows, plan.cout_g // 16, 16, 16), "fp16", 0),
            integers((2, out[0], 3, out[1], out[2], 16), "fp16", 1),
            [48, 32 // groups, 2, 3, 3],
            [2, *size, 32],
            para,
            device=device,
        )

    return call


def input_5hd(groups: int, stride: int) -> Call:
    """Build conv2d_backprop_input on blocked operands of 32 -> 48 channels."""

    def call(device: str) -> Any:
        from npusim.layout import group_plan  # noqa: PLC0415 - the packing of the filter

        plan = group_plan(32, 48, groups, 16)
        shape = (plan.real_groups * plan.cin1_g * 9, plan.cout_g // 16, 16, 16)
        out = tuple((x - 1) // stride + 1 for x in (7, 6))
        para = {"strides": [stride] * 2, "padding": [1] * 4, "dilations": [1] * 4}
        return ops.conv2d_backprop_input(
            integers(shape, "fp16", 0),
            integers((2, 3, *out, 16), "fp16", 1),
            [48, 32 // groups, 3, 3],
            [2, 32, 7, 6],
            para,
            device=device,
        )

    return call
