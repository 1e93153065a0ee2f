"""Arguments of one meaning in other forms, and those that mean nothing and used to pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from tests.tables import rows

TWELVE = np.int64(12)


def backward(**changes: Any) -> npusim.Result:
    """A small convolution on a small device, shapes only."""
    x, w = npusim.spec((1, 16, 6, 6), "fp16"), npusim.spec((16, 16, 3, 3), "fp16")
    given: dict[str, Any] = {"padding": 1, "device": "tiny", "timeline": False} | changes
    return npusim.ops.convolution_backward(x, x, w, (16,), **given)


@rows("tests/data/mistakes/ops.yaml", "what_means_nothing_is_refused", "change, message")
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
