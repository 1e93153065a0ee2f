"""Operands, results and copies that main memory cannot hold are refused before any kernel runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import npusim
from npusim import spec
from npusim.base.errors import CapacityError, RuleError
from npusim.call.call import Call

MAP, LAYER = spec((1, 1, 8, 8, 16), "fp16"), spec((1, 16, 8, 8), "fp16")
NHWC, SQUARE = spec((1, 8, 8, 4), "fp32"), spec((32, 32), "fp16")
WEIGHT = spec((1, 4, 4), "fp32")
PARAM = [1, 8, 8, 4, 1, 8, 8, 4, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0]


def fold(device: Any, n: int = 1) -> Any:
    patches = spec((n, 16 * 9, 64), "fp16")
    return npusim.ops.im2col_backward(
        patches, (8, 8), (3, 3), (1, 1), (1, 1), (1, 1), device=device
    )


def filter_gradient(device: Any) -> Any:
    para = {"strides": [1, 1], "padding": [0] * 4, "dilations": [1] * 4}
    return npusim.ops.conv2d_backprop_filter(MAP, MAP, [16, 16, 1, 1], para, device=device)


def volume_filter_gradient(device: Any) -> Any:
    para = {"strides": [1] * 3, "pads": [0] * 6, "dilations": [1] * 5}
    volume = spec((1, 1, 1, 8, 8, 16), "fp16")
    return npusim.ops.conv3d_backprop_filter(volume, volume, [16, 16, 1, 1, 1], para, device=device)


def input_gradient(device: Any) -> Any:
    para = {"strides": [1] * 5, "pads": [0] * 6, "dilations": [1] * 5}
    return npusim.ops.conv3d_backprop_input(
        spec((1, 1, 16, 16), "fp16"), spec((1, 1, 1, 8, 8, 16), "fp16"),
        [16, 16, 1, 1, 1], [1, 1, 8, 8, 16], para, device=device,
    )  # fmt: skip


def plane_gradient(device: Any) -> Any:
    para = {"strides": [1, 1], "padding": [0] * 4, "dilations": [1] * 4}
    return npusim.ops.conv2d_backprop_input(
        spec((1, 1, 16, 16), "fp16"), MAP, [16, 16, 1, 1], [1, 16, 8, 8], para, device=device
    )


def depthwise(name: str, *operands: Any) -> Callable[[Any], Any]:
    para = {"strides": [1, 1], "padding": [0] * 4, "dilations": [1] * 4}
    sizes = [[16, 1, 1, 1], *([] if name.endswith("filter") else [[1, 16, 8, 8]])]
    function = getattr(npusim.ops, f"depthwise_conv2d_backprop_{name}")
    return lambda device: function(*operands, *sizes, para, device=device)


def layer(device: Any, **arguments: Any) -> Any:
    weight = spec((16, 16, 1, 1), "fp16")
    return npusim.ops.convolution_backward(LAYER, LAYER, weight, (16,), device=device, **arguments)


#: Per operator: a device, the argument named, a call of operands of more than 1 KiB.
CALLS: Mapping[str, tuple[str, str, Callable[[Any], Any]]] = {
    "convolution": (
        "ascend910b2",
        "input",
        lambda device: npusim.ops.convolution(LAYER, spec((16, 16, 1, 1), "fp16"), device=device),
    ),
    "convolution_backward": ("ascend910b2", "grad_output|input", layer),
    "conv2d_backprop_filter": ("ascend910", "input_x", filter_gradient),
    "conv2d_backprop_input": ("ascend910", "out_backprop", plane_gradient),
    "depthwise_conv2d_backprop_filter": ("ascend910", "input_x", depthwise("filter", MAP, MAP)),
    "depthwise_conv2d_backprop_input": (
        "ascend910",
        "out_backprop",
        depthwise("input", spec((1, 1, 16, 16), "fp16"), MAP),
    ),
    "conv_tbc_backward": (
        "ascend910b2",
        "grad_output|input",
        lambda device: npusim.ops.conv_tbc_backward(
            *(spec((8, 8, 16), "fp16"),) * 2,
            spec((1, 16, 16), "fp16"),
            spec((16,), "fp16"),
            device=device,
        ),
    ),
    "conv3d_backprop_filter": ("ascend910", "x", volume_filter_gradient),
    "conv3d_backprop_input": ("ascend910", "out_backprop", input_gradient),
    "conv_grad_filter": (
        "ft78ne",
        "dy",
        lambda device: npusim.ops.conv_grad_filter(NHWC, NHWC, PARAM, device=device),
    ),
    "conv_grad_input": (
        "ft78ne",
        "dy",
        lambda device: npusim.ops.conv_grad_input(NHWC, WEIGHT, PARAM, device=device),
    ),
    "deconv_grad_input": (
        "ft78ne",
        "dy",
        lambda device: npusim.ops.deconv_grad_input(NHWC, WEIGHT, PARAM, device=device),
    ),
    "deconv_grad_filter": (
        "ft78ne",
        "dy",
        lambda device: npusim.ops.deconv_grad_filter(NHWC, NHWC, PARAM, device=device),
    ),
    "im2col": (
        "ascend910b2",
        "image",
        lambda device: npusim.ops.im2col(
            spec((1, 16, 8, 8), "fp16"), (3, 3), (1, 1), (1, 1), (1, 1), device=device
        ),
    ),
    "im2col_backward": ("ascend910b2", "grad_output", fold),
    "matmul": (
        "ascend910b2",
        "a",
        lambda device: npusim.ops.matmul(SQUARE, SQUARE, device=device),
    ),
}


def refused(call: Callable[[Any], Any], device: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a call that must launch nothing."""
    monkeypatch.setattr(Call, "launch", lambda *_: pytest.fail("a kernel was launched"))
    with pytest.raises(CapacityError) as error:
        call(device)
    return str(error.value)


def test_every_operator_is_here() -> None:
    assert set(CALLS) == set(npusim.ops.OPERATORS)


@pytest.mark.parametrize("name", CALLS)
def test_operands_beyond_main_memory_are_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, argument, call = CALLS[name]
    small = npusim.load_device(device).replace("main_memory.size", "1KiB")
    text = refused(call, small, monkeypatch)
    assert text.startswith(f"{name}: {device} has 1.0 KiB of main memory, but tensors with copies")
    assert any(f"use a smaller {one}, or a device with more" in text for one in argument.split("|"))


@pytest.mark.parametrize("name", CALLS)
def test_main_memory_holds_just_what_is_counted(name: str) -> None:
    """With all the bytes that a call counts it runs, with one byte less it does not."""
    device, _, call = CALLS[name]
    chip = npusim.load_device(device)
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            call(chip.replace("main_memory.size", f"{middle}B"))
            high = middle
        except CapacityError:
            low = middle
    operands = {"matmul": 2 * 2048, "deconv_grad_filter": 2 * 1024}.get(name, 0)
    results = {"matmul": 4096, "deconv_grad_filter": 64}.get(name, 0)
    if results:  # nothing between operands and results
        assert high == operands + results
    assert 1024 < high < 1 << 20


def test_results_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = npusim.load_device("ascend910b2").replace("main_memory.size", "1MiB")
    a, b = spec((1024, 1), "fp16"), spec((1, 1024), "fp16")
    text = refused(lambda device: npusim.ops.matmul(a, b, device=device), chip, monkeypatch)
    assert "take 4.0 MiB: a 2.0 KiB, b 2.0 KiB, c 4.0 MiB; use a smaller a" in text


def test_copies_in_other_layouts_count_before_the_first_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One channel takes the room of sixteen."""
    one, weight = spec((1, 1, 64, 64), "fp16"), spec((1, 1, 1, 1), "fp16")
    chip = npusim.load_device("ascend910b2").replace("main_memory.size", "256KiB")
    text = refused(
        lambda device: npusim.ops.convolution_backward(one, one, weight, (1,), device=device),
        chip,
        monkeypatch,
    )
    assert "grad_output 136.0 KiB, input 272.0 KiB" in text


def test_a_broken_rule_comes_first() -> None:
    chip = npusim.load_device("ascend910b2").replace("main_memory.size", "1KiB")
    with pytest.raises(RuleError, match="groups"):
        layer(chip, groups=3)
