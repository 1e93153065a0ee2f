"""The calls that are replayed: every operator, every device, every form that takes another path.

Operands are small integers, so that every sum is exact and the bits do not depend on the machine
that runs the test. Where the cube rounds fp32 operands first, they carry a fraction that the
rounding removes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import npusim
from npusim import ops
from tests.replay.blocked import (
    Call,
    filter_5hd,
    filter_6hd,
    input_5hd,
    input_6hd,
    integers,
)

Array = np.ndarray[Any, Any]

CUBES_16 = ("ascend310", "ascend310p", "ascend910")
CUBES_32 = ("ascend910b2", "ascend950pr")
BINS = ("ascend910b1", "ascend910b3", "ascend910b4", "ascend910c")
DSPS = ("ft78ne", "mt7004")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A convolution for ``convolution_backward``; pads are (before, after) per axis."""

    n: int = 2
    cin: int = 20
    cout: int = 24
    size: tuple[int, ...] = (9, 11)
    kernel: tuple[int, ...] = (3, 3)
    stride: tuple[int, ...] = (1, 1)
    pads: tuple[tuple[int, int], ...] = ((1, 1), (1, 1))
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = (0, 0)
    dtypes: tuple[str, str, str] = ("fp16", "fp16", "fp16")
    options: dict[str, Any] = field(default_factory=dict)
    timing_only: bool = False

    @property
    def out(self) -> tuple[int, ...]:
        """Spatial sizes of grad_output."""
        rows = zip(self.size, self.kernel, self.stride, self.pads, self.dilation, strict=True)
        if not self.transposed:
            return tuple((x + sum(p) - d * (k - 1) - 1) // s + 1 for x, k, s, p, d in rows)
        plain = [(x - 1) * s - sum(p) + d * (k - 1) + 1 for x, k, s, p, d in rows]
        return tuple(y + e for y, e in zip(plain, self.output_padding, strict=True))

    def __call__(self, device: str) -> Any:
        """Run the backward pass on ``device``."""
        first, last = (self.cout, self.cin) if self.transposed else (self.cin, self.cout)
        shapes = (
            (self.n, self.cout, *self.out),
            (self.n, self.cin, *self.size),
            (last, first // self.groups, *self.kernel),
        )
        even = all(before == after for before, after in self.pads)
        padding = [b for b, _ in self.pads] if even else [p for pair in self.pads for p in pair]
        rounded = self.options.get("cube_math_type", 0) != 0
        dy, x, w = (
            npusim.spec(shape, name) if self.timing_only else integers(shape, name, i, rounded)
            for i, (shape, name) in enumerate(zip(shapes, self.dtypes, strict=True))
        )
        arguments: dict[str, Any] = {
            "bias_sizes": (self.cout,),
            "stride": list(self.stride),
            "padding": padding,
            "dilation": list(self.dilation),
            "transposed": self.transposed,
            "output_padding": list(self.output_padding),
            "groups": self.groups,
            **self.options,
        }
        return ops.convolution_backward(dy, x, w, **arguments, device=device)


def resnet(layer: str, batch: int, **options: Any) -> Call:
    """Build one timing-only layer of ResNet-50."""
    sizes = {
        "conv1": (3, 64, 224, 7, 2),
        "res2_3x3": (64, 64, 56, 3, 1),
        "res3_3x3_down": (128, 128, 56, 3, 2),
        "res4_3x3": (256, 256, 14, 3, 1),
        "res5_shortcut": (1024, 2048, 14, 1, 2),
        "res5_1x1_in": (2048, 512, 7, 1, 1),
    }
    cin, cout, size, kernel, stride = sizes[layer]
    pad = kernel // 2
    return Layer(
        n=batch,
        cin=cin,
        cout=cout,
        size=(size, size),
        kernel=(kernel, kernel),
        stride=(stride, stride),
        pads=((pad, pad), (pad, pad)),
        timing_only=True,
        options=options,
    )


def matmul(m: int, k: int, n: int, name: str = "fp16", **options: Any) -> Call:
    """Build a matrix product on integers."""

    def call(device: str) -> Any:
        a, b = integers((m, k), name, 0), integers((k, n), name, 1)
        return ops.matmul(a, b, device=device, **options)

    return call


def fold(rank: int, name: str, stride: tuple[int, int], **options: Any) -> Call:
    """Build im2col_backward of 3x2 windows over 10x13 pixels."""

    def call(device: str) -> Any:
        lh, lw = (10 + 2 - 4 - 1) // stride[0] + 1, (13 + 0 - 1 - 1) // stride[1] + 1
        shape = (2, 5 * 6, lh * lw)[3 - rank :]
        return ops.im2col_backward(
            integers(shape, name, 0), (10, 13), (3, 2), (2, 1), (1, 0), stride,
            device=device, **options,
        )  # fmt: skip

    return call


def time_first(name: str, cube_math_type: int = 0) -> Call:
    """Build conv_tbc_backward: 20 -> 24 channels, 3 taps."""

    def call(device: str) -> Any:
        shapes = ((11, 2, 24), (11, 2, 20), (3, 20, 24), (24,))
        dy, x, w, bias = (integers(shape, name, i) for i, shape in enumerate(shapes))
        return ops.conv_tbc_backward(dy, x, w, bias, 1, cube_math_type, device=device)

    return call


def unfold(rank: int, name: str, stride: tuple[int, int]) -> Call:
    """Build im2col of 3x2 windows over 10x13 pixels."""

    def call(device: str) -> Any:
        image = integers((2, 5, 10, 13)[4 - rank :], name, 0)
        return ops.im2col(image, (3, 2), (2, 1), (1, 0), stride, device=device)

    return call


def deconv(name: str, group: int, **options: Any) -> Call:
    """Build deconv_grad_filter: 8 -> 12 channels, 3x3 taps, stride 2."""
    param = [2, 6, 5, 8, 2, 13, 11, 12, 3, 3, 2, 2, 1, 1, 1, 1, group, 0, 0, 0]

    def call(device: str) -> Any:
        dy, x = integers((2, 13, 11, 12), name, 0), integers((2, 6, 5, 8), name, 1)
        return ops.deconv_grad_filter(dy, x, param, device=device, **options)

    return call


def dsp_gradient(operator: str, name: str, group: int, **options: Any) -> Call:
    """Build another gradient of the DSP library: 8 -> 12 channels, 3x3 taps, stride 2."""
    large, small = (2, 13, 11), (2, 6, 5)
    x, dy = (small, large) if operator.startswith("deconv") else (large, small)
    param = [*x, 8, *dy, 12, 3, 3, 2, 2, 1, 1, 1, 1, group, 0]
    other = (*x, 8) if operator.endswith("filter") else (group, 12 // group * 9, 8 // group)

    def call(device: str) -> Any:
        first, second = integers((*dy, 12), name, 0), integers(other, name, 1)
        return getattr(ops, operator)(first, second, param, device=device, **options)

    return call


def network(batch: int) -> Call:
    """Build the backward pass of ResNet-50."""
    return lambda device: npusim.network("resnet50", device=device, batch=batch)


FP32, BF16 = ("fp32",) * 3, ("bf16",) * 3

#: name -> (the call, the devices it runs on)
CALLS: dict[str, tuple[Call, tuple[str, ...]]] = {
    # convolution_backward
    "plain": (Layer(), (*CUBES_16, *CUBES_32, *BINS, "tiny")),
    "bf16": (Layer(dtypes=BF16), CUBES_32),
    "fp32_keep": (Layer(dtypes=FP32), CUBES_32),
    "fp32_down": (
        Layer(dtypes=FP32, options={"cube_math_type": 1}),
        (*CUBES_16, *CUBES_32, "ascend910b4"),
    ),
    "fp32_fp16": (Layer(dtypes=FP32, options={"cube_math_type": 2}), CUBES_32),
    "fp32_hf32": (Layer(dtypes=FP32, options={"cube_math_type": 3}), CUBES_32),
    "mixed": (
        Layer(dtypes=("fp16", "fp32", "fp16"), options={"cube_math_type": 1}),
        ("ascend910", "ascend910b2"),
    ),
    "strided": (
        Layer(stride=(2, 3), size=(13, 14), pads=((1, 1), (0, 0))),
        (*CUBES_16, *CUBES_32, "ascend910c"),
    ),
    "asymmetric": (Layer(pads=((0, 2), (1, 0))), ("ascend910", *CUBES_32)),
    "dilated": (Layer(dilation=(2, 3), size=(12, 15)), ("ascend310p", *CUBES_32)),
    "three_groups": (Layer(cin=24, groups=3), (*CUBES_16, *CUBES_32)),
    "depthwise": (Layer(cin=24, groups=24), ("ascend910", *CUBES_32)),
    "depthwise_fp32": (Layer(cin=24, groups=24, dtypes=FP32), CUBES_32),
    "pointwise": (
        Layer(kernel=(1, 1), pads=((0, 0), (0, 0)), cin=64, cout=96),
        ("ascend910", *CUBES_32, "ascend310"),
    ),
    "one_dimension": (
        Layer(
            size=(37,), kernel=(5,), stride=(2,), pads=((2, 2),), dilation=(1,), output_padding=(0,)
        ),
        ("ascend310p", "ascend910", *CUBES_32),
    ),
    "volume": (
        Layer(
            size=(4, 6, 7),
            kernel=(2, 3, 3),
            stride=(1, 2, 1),
            pads=((1, 1), (1, 1), (1, 1)),
            dilation=(1, 1, 1),
            output_padding=(0, 0, 0),
        ),
        (*CUBES_32, "ascend910b3"),
    ),
    "volume_hardware": (
        Layer(
            size=(4, 6, 7),
            kernel=(2, 3, 3),
            stride=(1, 2, 1),
            pads=((1, 1), (1, 1), (1, 1)),
            dilation=(1, 1, 1),
            output_padding=(0, 0, 0),
            options={"rules": "hardware"},
        ),
        ("ascend910",),
    ),
    "transposed": (
        Layer(
            transposed=True,
            stride=(2, 2),
            output_padding=(1, 0),
            size=(6, 7),
            dtypes=FP32,
            options={"cube_math_type": 1},
        ),
        ("ascend910", *CUBES_32, "ascend310p"),
    ),
    "transposed_groups": (
        Layer(transposed=True, groups=2, cout=24, size=(6, 7)),
        ("ascend910", *CUBES_32),
    ),
    "transposed_volume": (
        Layer(
            transposed=True,
            size=(3, 4, 5),
            kernel=(2, 2, 2),
            stride=(2, 2, 2),
            pads=((0, 0),) * 3,
            dilation=(1, 1, 1),
            output_padding=(0, 0, 0),
        ),
        ("ascend910b2", "ascend950pr"),
    ),
    "only_input": (
        Layer(options={"output_mask": (True, False, False)}),
        ("ascend910", "ascend910b2"),
    ),
    "only_weight": (
        Layer(options={"output_mask": (False, True, False)}),
        ("ascend910", "ascend910b2"),
    ),
    "only_bias": (
        Layer(n=3, cout=200, size=(40, 40), options={"output_mask": (False, False, True)}),
        ("ascend910", *CUBES_32),
    ),
    "deterministic": (
        Layer(n=4, size=(20, 20), options={"deterministic": True}),
        ("ascend910", *CUBES_32),
    ),
    "production": (
        Layer(cin=128, cout=128, size=(14, 14), options={"tiling": "production"}, timing_only=True),
        ("ascend910b2", "ascend910c"),
    ),
    "warm": (Layer(options={"start": "warm"}), ("ascend910", *CUBES_32)),
    "three_cores": (Layer(options={"cores": "0-2"}), ("ascend310p", "ascend910", *CUBES_32)),
    "one_core": (Layer(options={"cores": 1}), ("ascend310", "ascend910b2")),
    "simpy": (
        Layer(n=1, size=(5, 6), options={"engine": "simpy"}),
        ("ascend910", "ascend910b2"),
    ),
    "hardware_rules": (
        Layer(dtypes=BF16, options={"rules": "hardware"}),
        ("ascend910b2",),
    ),
    "empty": (Layer(n=0), ("ascend910", "ascend910b2")),
    # layers of a network, timing only
    "conv1": (resnet("conv1", 2), ("ascend910", *CUBES_32)),
    "res2_3x3": (resnet("res2_3x3", 4), ("ascend910", *CUBES_32)),
    "res3_3x3_down": (resnet("res3_3x3_down", 4), ("ascend910", *CUBES_32)),
    "res4_3x3": (resnet("res4_3x3", 8), (*CUBES_16, *CUBES_32, *BINS)),
    "res5_shortcut": (resnet("res5_shortcut", 4), ("ascend910", *CUBES_32)),
    "res5_1x1_in": (resnet("res5_1x1_in", 16), ("ascend910", *CUBES_32)),
    "resnet50": (network(1), ("ascend310p", "ascend910", *CUBES_32)),
    # the operators on blocked operands
    "filter_5hd": (filter_5hd(32, 48, 9, 3), (*CUBES_16, *CUBES_32, *BINS)),
    "filter_5hd_strided": (filter_5hd(16, 16, 12, 3, strides=[2, 3]), ("ascend910", *CUBES_32)),
    "filter_5hd_dilated": (
        filter_5hd(20, 40, 13, 2, dilations=[1, 1, 3, 2]),
        ("ascend910", "ascend910b2"),
    ),
    "filter_5hd_groups": (filter_5hd(32, 64, 8, 3, groups=8), ("ascend910", *CUBES_32)),
    "filter_5hd_deterministic": (
        filter_5hd(32, 48, 30, 3, deterministic=True),
        ("ascend910", "ascend910b2"),
    ),
    "filter_6hd": (filter_6hd(1), (*CUBES_16, *CUBES_32)),
    "filter_6hd_groups": (filter_6hd(4), ("ascend910", "ascend910b2")),
    "input_5hd": (input_5hd(1, 1), (*CUBES_16, *CUBES_32)),
    "input_5hd_groups": (input_5hd(4, 2), ("ascend910", "ascend910b2")),
    "input_6hd": (input_6hd(1, bias=False), (*CUBES_16, *CUBES_32)),
    "input_6hd_bias": (input_6hd(1, bias=True), ("ascend910", *CUBES_32)),
    "input_6hd_groups": (input_6hd(4, bias=True), ("ascend910", "ascend910b2")),
    "input_6hd_strided": (input_6hd(2, bias=False, stride=2), ("ascend910", *CUBES_32)),
    # im2col_backward
    "fold": (fold(3, "fp16", (1, 1)), (*CUBES_16, *CUBES_32)),
    "fold_fp32": (fold(3, "fp32", (2, 3)), ("ascend910", "ascend310p", *CUBES_32)),
    "fold_rank_2": (fold(2, "fp16", (2, 1)), ("ascend910", "ascend910b2", "ascend910b4")),
    # conv_tbc_backward
    "time_first": (time_first("fp16"), ("ascend310p", "ascend910", *CUBES_32)),
    "time_first_fp32": (time_first("fp32", 1), ("ascend910", *CUBES_32)),
    # im2col
    "unfold": (unfold(4, "fp16", (1, 1)), (*CUBES_16, *CUBES_32)),
    "unfold_fp32": (unfold(4, "fp32", (2, 3)), ("ascend910", "ascend310p", *CUBES_32)),
    "unfold_rank_3": (unfold(3, "fp16", (2, 1)), ("ascend910", "ascend910b2")),
    # deconv_grad_filter
    "deconv": (deconv("fp32", 1), DSPS),
    "deconv_groups": (deconv("fp32", 4), DSPS),
    "deconv_fp16": (deconv("fp16", 2), ("mt7004",)),
    "deconv_mask": (deconv("fp32", 1, core_mask=0b101), ("ft78ne",)),
    "deconv_private": (deconv("fp32", 1, storage="private"), DSPS),
    "deconv_grad_input": (dsp_gradient("deconv_grad_input", "fp32", 2), DSPS),
    "conv_grad_filter": (dsp_gradient("conv_grad_filter", "fp32", 1), DSPS),
    "conv_grad_filter_fp16": (dsp_gradient("conv_grad_filter", "fp16", 4), ("mt7004",)),
    "conv_grad_input": (dsp_gradient("conv_grad_input", "fp32", 1), DSPS),
    "conv_grad_input_private": (
        dsp_gradient("conv_grad_input", "fp32", 4, storage="private"),
        ("ft78ne",),
    ),
    # matmul
    "matmul": (matmul(100, 130, 90), (*CUBES_16, *CUBES_32, *BINS, "tiny")),
    "matmul_bf16": (matmul(64, 300, 200, "bf16", out_dtype="bf16"), CUBES_32),
    "matmul_long": (matmul(16, 5000, 48), ("ascend910", *CUBES_32)),
}


def pairs() -> list[tuple[str, str]]:
    """Every (call, device) pair."""
    return [(name, device) for name, (_, devices) in CALLS.items() for device in devices]
