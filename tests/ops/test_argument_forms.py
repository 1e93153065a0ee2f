"""Arguments of one meaning in other forms, and those that mean nothing and used to pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError

TWELVE = np.int64(12)


def backward(**changes: Any) -> npusim.Result:
    """A small convolution on a small device, shapes only."""
    x, w = npusim.spec((1, 16, 6, 6), "fp16"), npusim.spec((16, 16, 3, 3), "fp16")
    given: dict[str, Any] = {"padding": 1, "device": "tiny", "timeline": False} | changes
    return npusim.ops.convolution_backward(x, x, w, (16,), **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 1.7}, "groups is 1.7, no integer; "),
        ({"groups": None}, "groups is None; it takes an integer"),
        ({"groups": True}, "groups is yes; "),
        ({"transposed": "no"}, "transposed: 'no' is neither True nor False"),
        ({"transposed": 2}, "transposed: 2 is neither True nor False"),
        ({"output_mask": "abc"}, "output_mask is abc; .* permit length 3"),
        ({"output_mask": 1}, "output_mask is 1; .* permit length 3"),
        ({"output_mask": ("a", "b", "c")}, "output_mask: 'a' is neither True nor False"),
        ({"stride": 1.5}, "stride is 1.5, no integer; "),
        ({"cores": 1.5}, "cores is 1.5; it is a bit mask, a list of core groups or text"),
        ({"cores": [0, 1.5]}, r"cores is \[0, 1.5\]; it is a bit mask"),
        ({"device": None}, r"device is None; it is a name \(`npusim devices` lists them\)"),
        ({"device": 910}, "device is 910; it is a name"),
        (
            {"cube_math_type": [1, 1], "device": "mt7004"},
            r"cube_math_type is \(1, 1\); it is one of",
        ),
    ],
)
def test_what_means_nothing_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        backward(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"stride": np.array([1, 1]), "padding": np.array([1, 1]), "dilation": np.array(1)},
        {"stride": np.int64(1), "padding": np.int32(1), "groups": np.array([1])},
        {"groups": np.int64(1), "transposed": np.bool_(False), "cube_math_type": np.int64(0)},
        {"output_mask": np.array([True, True, True]), "cores": np.arange(4)},
        {"output_mask": [1, 1, 1], "transposed": 0, "cores": np.int64(15)},
    ],
)
def test_numpys_numbers_are_numbers(change: dict[str, Any]) -> None:
    assert backward(**change).cycles == backward().cycles


def test_numpys_numbers_are_figures_of_a_device() -> None:
    device = npusim.load_device("ascend910b2")
    for value in (TWELVE, np.array(12)):
        assert device.replace("groups", value).groups == 12  # type: ignore[arg-type]
    for wrong in (True, np.array([12, 12]), np.float64(12)):
        with pytest.raises(ArgumentError, match="groups: expected a count"):
            device.replace("groups", wrong)  # type: ignore[arg-type]
