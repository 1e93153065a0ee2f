"""The constraint tables of the depth-wise gradients."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.device.catalog import load_device
from npusim.limits.table import check
from tests.limits.entrances import refused

Facts = dict[str, Any]

_BOTH: Facts = {
    "out_backprop.shape": (2, 2, 5, 6, 16),
    "out_backprop.dtype": "fp16",
    "filter_sizes": (24, 1, 3, 3),
    "strides": (2, 2),
    "padding": (1, 1, 1, 1),
    "dilations": (1, 1, 1, 1),
}


def of_filter(**changes: Any) -> Facts:
    """depthwise_conv2d_backprop_filter of 24 channels, kernel 3, stride 2, padding 1."""
    own = {"input_x.shape": (2, 2, 9, 11, 16), "input_x.dtype": "fp16", "res_dtype": "fp32"}
    return {**_BOTH, **own, **changes}


def of_input(**changes: Any) -> Facts:
    """depthwise_conv2d_backprop_input of the same layer."""
    own = {
        "filters.shape": (18, 1, 16, 16),
        "filters.dtype": "fp16",
        "input_sizes": (2, 24, 9, 11),
        "res_dtype": "fp16",
    }
    return {**_BOTH, **own, **changes}


WRONG: list[tuple[Facts, str]] = [
    ({"out_backprop.dtype": "bf16"}, "out_backprop.dtype"),
    ({"res_dtype": "bf16"}, "res_dtype"),
    ({"out_backprop.shape": (2, 2, 5, 6)}, "out_backprop.shape"),
    ({"out_backprop.shape": (2, 2, 6, 6, 16)}, "out_backprop.shape"),
    ({"filter_sizes": (24, 2, 3, 3)}, "filter_sizes"),
    ({"filter_sizes": (24, 1, 1, 3, 3)}, "filter_sizes"),
    ({"strides": (2, 2, 2)}, "strides"),
    ({"strides": (64, 2)}, "strides"),
    ({"padding": (1, 1)}, "padding"),
    ({"dilations": (1, 2, 1, 1)}, "dilations"),
    ({"dilations": (1, 1, 256, 1)}, "dilations"),
]


@pytest.mark.parametrize("device", ["ascend310", "ascend910"])
@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        *WRONG,
        ({"input_x.shape": (2, 3, 9, 11, 16)}, "input_x.shape"),
        ({"filter_sizes": (40, 1, 3, 3)}, "input_x.shape"),
    ],
)
def test_filter_refusals(device: str, changes: Facts, parameter: str) -> None:
    refused("depthwise_conv2d_backprop_filter", of_filter(**changes), device, parameter, None)


@pytest.mark.parametrize("device", ["ascend310", "ascend910"])
@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        *WRONG,
        ({"filter_sizes": (48, 1, 3, 3)}, "filter_sizes"),
        ({"filter_sizes": (23, 1, 3, 3)}, "filter_sizes"),
        ({"filters.shape": (9, 2, 16, 16)}, "filters.shape"),
        ({"input_sizes": (3, 24, 9, 11)}, "out_backprop.shape"),
    ],
)
def test_input_refusals(device: str, changes: Facts, parameter: str) -> None:
    refused("depthwise_conv2d_backprop_input", of_input(**changes), device, parameter, None)


def test_examples_pass_and_what_is_assumed_says_so() -> None:
    for device in ("ascend310", "ascend910"):
        chip = load_device(device)
        assert check("depthwise_conv2d_backprop_filter", of_filter(), chip) == []
        assert check("depthwise_conv2d_backprop_input", of_input(), chip) == []
    with pytest.raises(Exception, match="by an assumption"):
        check("depthwise_conv2d_backprop_filter", of_filter(strides=(64, 1)), chip)
