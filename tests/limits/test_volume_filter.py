"""The constraint table of conv3d_backprop_filter."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.device.catalog import load_device
from npusim.layout.groups import group_dict, group_plan
from npusim.limits.table import check
from tests.limits.entrances import refused

Facts = dict[str, Any]

WRONG_GROUPS = group_dict(group_plan(32, 48, 1, 16)) | {"real_g": 2}


def tbe_volume(**changes: Any) -> Facts:
    """conv3d_backprop_filter of 32 -> 48 channels, kernel 2x3x3, stride 2 in the plane."""
    facts: Facts = {
        "x.shape": (2, 4, 2, 9, 11, 16),
        "x.dtype": "fp16",
        "out_backprop.shape": (2, 3, 3, 5, 6, 16),
        "out_backprop.dtype": "fp16",
        "filter_size": (48, 32, 2, 3, 3),
        "strides": (1, 2, 2),
        "pads": (0, 0, 1, 1, 1, 1),
        "dilations": (1, 1, 1, 1, 1),
        "groups": 1,
        "res_dtype": "fp32",
        "group_dict": group_dict(group_plan(32, 48, 1, 16)),
    }
    return facts | changes


def tall(size: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...]) -> Facts:
    """The same of 16 -> 16 channels without padding, whose sizes fit together."""
    d, h, w = ((x - k) // s + 1 for x, k, s in zip(size, kernel, strides, strict=True))
    return tbe_volume(
        **{
            "x.shape": (1, size[0], 1, *size[1:], 16),
            "out_backprop.shape": (1, d, 1, h, w, 16),
            "filter_size": (16, 16, *kernel),
            "strides": strides,
            "pads": (0,) * 6,
            "group_dict": group_dict(group_plan(16, 16, 1, 16)),
        }
    )


@pytest.mark.parametrize("device", ["ascend310", "ascend910"])
@pytest.mark.parametrize(
    ("facts", "parameter"),
    [
        (tbe_volume(**{"x.dtype": "fp32"}), "x.dtype"),
        (tbe_volume(**{"out_backprop.dtype": "bf16"}), "out_backprop.dtype"),
        (tbe_volume(res_dtype="fp16"), "res_dtype"),
        (tbe_volume(**{"x.shape": (2, 2, 9, 11, 16)}), "x.shape"),
        (tbe_volume(**{"x.shape": (2, 4, 2, 9, 11, 8)}), "x.shape"),
        (tbe_volume(**{"x.shape": (2, 4, 3, 9, 11, 16)}), "x.shape"),
        (tbe_volume(**{"out_backprop.shape": (2, 3, 3, 5, 5, 16)}), "out_backprop.shape"),
        (tbe_volume(**{"out_backprop.shape": (1, 3, 3, 5, 6, 16)}), "out_backprop.shape"),
        (tbe_volume(filter_size=(48, 32, 3, 3)), "filter_size"),
        (tbe_volume(filter_size=(48, 32, 0, 3, 3)), "filter_size"),
        (tbe_volume(strides=(1, 1, 2, 2, 1)), "strides"),
        (tbe_volume(strides=(0, 2, 2)), "strides"),
        (tbe_volume(pads=(1, 1, 1, 1)), "pads"),
        (tbe_volume(pads=(0, 0, 1, 1, 1, -1)), "pads"),
        (tbe_volume(dilations=(1, 1, 1)), "dilations"),
        (tbe_volume(dilations=(1, 2, 1, 1, 1)), "dilations"),
        (tbe_volume(dilations=(1, 1, 2, 1, 1)), "dilations"),
        (tbe_volume(dilations=(1, 1, 1, 256, 1)), "dilations"),
        (tbe_volume(groups=5), "groups"),
        (tbe_volume(group_dict={"real_g": 1}), "group_dict"),
        (tbe_volume(group_dict=WRONG_GROUPS), "group_dict"),
        (tall((1, 64, 4), (1, 1, 1), (1, 64, 1)), "strides"),
        (tall((1, 64, 64), (1, 1, 1), (1, 17, 16)), "strides"),
        (tall((129, 2, 2), (129, 1, 1), (1, 1, 1)), "filter_size"),
        (tall((1, 256, 4), (1, 256, 1), (1, 1, 1)), "filter_size"),
        (tall((1, 17, 16), (1, 17, 16), (1, 1, 1)), "filter_size"),
        (tall((2, 14, 14), (2, 14, 14), (1, 1, 1)), "filter_size"),
        (tall((1, 2, 4097), (1, 1, 1), (1, 1, 1)), "x.shape"),
    ],
)
def test_volume_filter_refusals(device: str, facts: Facts, parameter: str) -> None:
    refused("conv3d_backprop_filter", facts, device, parameter, None)


def test_examples_pass() -> None:
    for device in ("ascend310", "ascend910"):
        for facts in (tbe_volume(), tall((7, 7, 7), (7, 7, 7), (1, 1, 1))):
            assert check("conv3d_backprop_filter", facts, load_device(device)) == []
