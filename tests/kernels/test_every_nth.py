"""Every n-th element of a tensor, and back among zeros; boxes copied from tensor to tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError
from npusim.kernels.layout.copy_boxes import Box, CopyBoxes
from npusim.kernels.layout.every_nth import EveryNth
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel

Array = npt.NDArray[Any]

DEVICES = ("ascend310", "ascend910", "ascend910b2", "ascend950pr")

#: Elements of the part, step, the first element: less than a line, odd ends, many tiles.
CASES = ((1, 2, 1), (100, 2, 0), (777, 4, 1), (5000, 3, 2), (4100, 9, 3), (200_000, 2, 1))


def ran(kernel: Kernel, device: str, *arrays: Array) -> Array:
    """The only output of a kernel."""
    outputs = npusim.simulate(kernel, device, *arrays, check=True).outputs
    assert outputs is not None
    return np.asarray(outputs[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_elements_are_picked_and_put_among_zeros(
    case: tuple[int, int, int], dtype: DType, device: str
) -> None:
    count, step, first = case
    x = np.random.default_rng(count).standard_normal(count * step).astype(dtype.numpy)
    whole, part = Tensor("whole", x.shape, dtype), Tensor("part", (count,), dtype, "out")
    picked = ran(EveryNth(whole, part, step, first), device, x)
    np.testing.assert_array_equal(picked, x[first::step])
    whole, part = Tensor("whole", x.shape, dtype, "out"), Tensor("part", (count,), dtype)
    back = EveryNth(whole, part, step, first)
    spread = ran(back, device, picked)
    want = np.zeros_like(x)
    want[first::step] = x[first::step]
    np.testing.assert_array_equal(spread, want)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"step": 1}, "at least 2"),
        ({"first": 4}, "at least 2, the first one of its elements"),
        ({"part": Tensor("part", (5,), FP16, "out")}, "4 times the elements"),
        ({"part": Tensor("part", (6,), FP32, "out")}, "of one type of 2 or 4 bytes"),
        ({"part": Tensor("part", (6,), FP16, "in")}, "one is read"),
        (
            {"whole": Tensor("w", (24,), INT8), "part": Tensor("part", (6,), INT8, "out")},
            "2 or 4 bytes",
        ),
    ],
)
def test_what_has_no_every_nth_element_is_refused(changed: Any, words: str) -> None:
    given = {
        "whole": Tensor("whole", (24,), FP16),
        "part": Tensor("part", (6,), FP16, "out"),
        "step": 4,
    }
    with pytest.raises(ArgumentError, match=words):
        EveryNth(**{**given, **changed})


@pytest.mark.parametrize("device", DEVICES)
def test_boxes_are_copied_to_other_places(device: str) -> None:
    x = np.random.default_rng(3).standard_normal((5, 30, 41)).astype(np.float16)
    boxes = (
        Box((0, 0, 0), (1, 2, 3), (4, 7, 9)),
        Box((4, 20, 0), (0, 20, 0), (1, 10, 41)),
        Box((2, 1, 40), (6, 0, 0), (2, 8, 1)),
    )
    want = np.zeros((8, 31, 41), np.float16)
    for box in boxes:
        read, written = (
            tuple(slice(a, a + n) for a, n in zip(first, box.shape, strict=True))
            for first in (box.source, box.target)
        )
        want[written] = x[read]
    target = Tensor("y", want.shape, FP16, "inout")
    kernel = CopyBoxes(Tensor("x", x.shape, FP16), target, boxes)
    np.testing.assert_array_equal(ran(kernel, device, x, np.zeros_like(want)), want)


@pytest.mark.parametrize(
    ("boxes", "dtype", "words"),
    [
        ((), FP16, "at least one"),
        ((Box((0, 0), (0, 0), (5, 3)),), FP16, r"does not lie in x of shape \(4, 3\)"),
        ((Box((0, 0), (1, 0), (4, 3)),), FP16, r"does not lie in y of shape \(4, 3\)"),
        ((Box((0, 0), (0, 0), (0, 3)),), FP16, "needs an element"),
        ((Box((0, 0), (0, 0), (4, 3)),), FP32, "one type"),
    ],
)
def test_boxes_that_leave_a_tensor_are_refused(
    boxes: tuple[Box, ...], dtype: DType, words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        CopyBoxes(Tensor("x", (4, 3), FP16), Tensor("y", (4, 3), dtype, "out"), boxes)
