"""The constraint table of conv2d_backprop_input."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from npusim.device.catalog import load_device
from npusim.layout.groups import group_dict, group_plan
from npusim.limits.table import check
from tests.limits.entrances import refused

Facts = dict[str, Any]

WRONG_GROUPS = group_dict(group_plan(32, 48, 1, 16)) | {"real_g": 2}


def tbe_plane(**changes: Any) -> Facts:
    """conv2d_backprop_input of 32 -> 48 channels, kernel 3, stride 2, padding 1."""
    facts: Facts = {
        "filters.shape": (18, 3, 16, 16),
        "filters.dtype": "fp16",
        "out_backprop.shape": (2, 3, 5, 6, 16),
        "out_backprop.dtype": "fp16",
        "filter_sizes": (48, 32, 3, 3),
        "input_sizes": (2, 32, 9, 11),
        "strides": (2, 2),
        "padding": (1, 1, 1, 1),
        "dilations": (1, 1, 1, 1),
        "res_dtype": "fp16",
        "group_dict": group_dict(group_plan(32, 48, 1, 16)),
    }
    return facts | changes


def row_plane(size: tuple[int, int], kernel: Any, strides: Any, /, **changes: Any) -> Facts:
    """The same of 16 -> 16 channels without padding, whose sizes fit together."""
    out = [(x - k) // s + 1 for x, k, s in zip(size, kernel, strides, strict=True)]
    return tbe_plane(
        **{
            "filters.shape": (prod(kernel), 1, 16, 16),
            "out_backprop.shape": (1, 1, *out, 16),
            "filter_sizes": (16, 16, *kernel),
            "input_sizes": (1, 16, *size),
            "strides": strides,
            "padding": (0, 0, 0, 0),
            "group_dict": group_dict(group_plan(16, 16, 1, 16)),
        }
        | changes
    )


@pytest.mark.parametrize("device", ["ascend310", "ascend910"])
@pytest.mark.parametrize(
    ("facts", "parameter"),
    [
        (tbe_plane(**{"filters.dtype": "fp32"}), "filters.dtype"),
        (tbe_plane(**{"out_backprop.dtype": "bf16"}), "out_backprop.dtype"),
        (tbe_plane(res_dtype="bf16"), "res_dtype"),
        (tbe_plane(**{"out_backprop.shape": (2, 3, 5, 6)}), "out_backprop.shape"),
        (tbe_plane(**{"out_backprop.shape": (2, 3, 5, 6, 8)}), "out_backprop.shape"),
        (tbe_plane(**{"out_backprop.shape": (1, 3, 5, 6, 16)}), "out_backprop.shape"),
        (tbe_plane(**{"out_backprop.shape": (2, 3, 6, 6, 16)}), "out_backprop.shape"),
        (tbe_plane(**{"out_backprop.shape": (2, 2, 5, 6, 16)}), "filter_sizes"),
        (tbe_plane(**{"filters.shape": (18, 3, 16)}), "filters.shape"),
        (tbe_plane(**{"filters.shape": (27, 2, 16, 16)}), "filters.shape"),
        (tbe_plane(filter_sizes=(48, 32, 1, 3, 3)), "filter_sizes"),
        (tbe_plane(filter_sizes=(48, 20, 3, 3)), "filter_sizes"),
        (tbe_plane(input_sizes=(2, 32, 9)), "input_sizes"),
        (tbe_plane(strides=(1, 2, 2, 1)), "strides"),
        (tbe_plane(strides=(0, 2)), "strides"),
        (tbe_plane(padding=(1, 1)), "padding"),
        (tbe_plane(padding=(1, 1, 1, -1)), "padding"),
        (tbe_plane(dilations=(1, 2, 1, 1)), "dilations"),
        (tbe_plane(dilations=(1, 1, 256, 1)), "dilations"),
        (tbe_plane(group_dict={"real_g": 1}), "group_dict"),
        (tbe_plane(group_dict=WRONG_GROUPS), "group_dict"),
        (row_plane((64, 4), (1, 1), (64, 1)), "strides"),
        (row_plane((256, 4), (256, 1), (1, 1)), "filter_sizes"),
        (row_plane((2, 4097), (1, 1), (1, 1)), "input_sizes"),
        (row_plane((200_001, 1), (1, 1), (1, 1)), "input_sizes"),
        (row_plane((9, 9), (1, 1), (1, 1), **{
            "padding": (1, 0, 0, 0), "out_backprop.shape": (1, 1, 10, 9, 16)}), "padding"),
    ],
)  # fmt: skip
def test_plane_input_refusals(device: str, facts: Facts, parameter: str) -> None:
    refused("conv2d_backprop_input", facts, device, parameter, None)


def test_examples_pass() -> None:
    for device in ("ascend310", "ascend910"):
        for facts in (tbe_plane(), row_plane((1, 64_000), (1, 1), (1, 2))):
            assert check("conv2d_backprop_input", facts, load_device(device)) == []
