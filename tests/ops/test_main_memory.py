"""Operands, results and copies that main memory cannot hold are refused before any kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import npusim
from npusim import spec
from npusim.base.errors import CapacityError, RuleError
from npusim.call.call import Call
from npusim.ops import CARDS
from tests.ops.small_calls import CALLS, called

#: The largest operand of each call.
NAMED = {
    "conv2d_backprop_filter": "input_x",
    "conv2d_backprop_input": "filters",
    "conv3d_backprop_filter": "x",
    "conv3d_backprop_input": "filter",
    "conv_grad_filter": "x",
    "conv_grad_input": "w",
    "conv_tbc_backward": "weight",
    "convolution": "weight",
    "convolution_backward": "weight",
    "deconv_grad_filter": "dy",
    "deconv_grad_input": "w",
    "depthwise_conv2d_backprop_filter": "input_x",
    "depthwise_conv2d_backprop_input": "filters",
    "im2col": "image",
    "im2col_backward": "grad_output",
    "matmul": "a",
}


def refused(call: Callable[[Any], Any], device: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a call that must launch nothing."""
    monkeypatch.setattr(Call, "launch", lambda *_: pytest.fail("a kernel was launched"))
    with pytest.raises(CapacityError) as error:
        call(device)
    return str(error.value)


@pytest.mark.parametrize("name", NAMED)
def test_operands_beyond_main_memory_are_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CARDS[name].device or "ascend910"
    small = npusim.load_device(device).replace("main_memory.size", "1KiB")
    text = refused(lambda chip: called(name, device=chip), small, monkeypatch)
    assert text.startswith(f"{name}: {device} has 1.0 KiB of main memory, but tensors with copies")
    assert f"use a smaller {NAMED[name]}, or a device with more" in text


@pytest.mark.parametrize("name", CALLS)
def test_main_memory_holds_just_what_is_counted(name: str) -> None:
    """With all the bytes that a call counts it runs, with one byte less it does not."""
    chip = npusim.load_device(CARDS[name].device or "ascend910")
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            called(name, device=chip.replace("main_memory.size", f"{middle}B"), timeline=False)
            high = middle
        except CapacityError:
            low = middle
    alone = {"matmul": 2 * 2048 + 4096, "deconv_grad_filter": 4096 + 2304 + 9216}
    assert high == alone.get(name, high)  # nothing between operands and results
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
        called("convolution_backward", device=chip, groups=3)
