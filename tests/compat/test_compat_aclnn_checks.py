"""Phase one's checks: status codes, their order and their texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.base.errors import ArgumentError
from npusim.compat import aclnn as acl
from npusim.compat.aclnn import aclCreateBoolArray, aclCreateIntArray, aclCreateTensor

NULL, INVALID, INNER = 161001, 161002, 561103


@pytest.fixture(autouse=True)
def stream() -> acl.aclrtStream:
    acl.aclGetRecentErrMsg()
    return acl.aclrtCreateStream(device="ascend910b2")


def zeros(*shape: int, kind: Any = np.float16) -> acl.aclTensor:
    return aclCreateTensor(np.zeros(shape, kind))


#: A good call: 16 -> 32 channels, 3x3, padding 1.
GOOD: dict[str, Any] = {
    "gradOutput": zeros(2, 32, 5, 5),
    "input": zeros(2, 16, 5, 5),
    "weight": zeros(32, 16, 3, 3),
    "biasSizes": aclCreateIntArray([32]),
    "stride": aclCreateIntArray([1, 1]),
    "padding": aclCreateIntArray([1, 1]),
    "dilation": aclCreateIntArray([1, 1]),
    "transposed": False,
    "outputPadding": aclCreateIntArray([0, 0]),
    "groups": 1,
    "outputMask": aclCreateBoolArray([True, True, True]),
    "cubeMathType": 0,
    "gradInput": zeros(2, 16, 5, 5),
    "gradWeight": zeros(32, 16, 3, 3),
    "gradBias": zeros(32),
}


def convolution(**changes: Any) -> tuple[int, str]:
    """Status and error text of phase one for the good call with changes."""
    status, size, executor = acl.aclnnConvolutionBackwardGetWorkspaceSize(**{**GOOD, **changes})
    text = acl.aclGetRecentErrMsg() or ""
    assert (executor is None) == (status != 0) == bool(text)
    assert size == 0 or status == 0
    return status, text


def test_the_good_call_is_good() -> None:
    assert convolution() == (0, "")
    assert convolution(biasSizes=None) == (0, "")  # read for empty inputs only
    assert convolution(biasSizes=aclCreateIntArray([1])) == (0, "")


ints = aclCreateIntArray


def test_an_empty_input_needs_its_bias_size_and_nothing_more() -> None:
    empty = {
        "gradOutput": zeros(0, 32, 5, 5),
        "input": zeros(0, 16, 5, 5),
        "gradInput": zeros(0, 16, 5, 5),
    }
    assert convolution(**empty) == (0, "")
    status, text = convolution(**empty, biasSizes=None)
    assert status == INVALID
    assert "biasSizes is null" in text
    status, text = convolution(**empty, biasSizes=ints([31]))
    assert status == INVALID
    assert "it must be (32,)" in text


def test_a_wrong_bias_size_that_nobody_reads_gets_a_note() -> None:
    for size, noted in (([32], False), ([31], True)):
        _, workspace, executor = acl.aclnnConvolutionBackwardGetWorkspaceSize(
            **{**GOOD, "biasSizes": ints(size)}
        )
        assert acl.aclnnConvolutionBackward(bytearray(workspace), workspace, executor, None) == 0
        assert executor is not None
        assert executor.result is not None
        notes = [note for note in executor.result.notes if "the layer has 32 output" in note]
        assert len(notes) == noted


def test_lists_may_be_any_list_or_array_of_numbers() -> None:
    lists = {"stride": [1, 1], "padding": np.array([1, 1]), "dilation": (np.int64(1), np.int64(1))}
    assert convolution(**lists, groups=np.int32(1), outputMask=np.array([True] * 3)) == (0, "")
    assert convolution(stride=acl.aclCreateIntArray(np.array([1, 1]))) == (0, "")
    status, text = convolution(stride=[1.5, 1])
    assert status == INVALID
    assert "stride is (1.5, 1)" in text
    with pytest.raises(ArgumentError, match="input is a ndarray; pass aclCreateTensor"):
        convolution(input=np.zeros((2, 16, 5, 5), np.float16))


def test_products_differ() -> None:
    volume = {
        "gradOutput": zeros(1, 16, 2, 2, 2), "input": zeros(1, 16, 2, 2, 2),
        "weight": zeros(16, 16, 1, 1, 1), "biasSizes": ints([16]), "stride": ints([1] * 3),
        "padding": ints([0] * 3), "dilation": ints([1] * 3), "outputPadding": ints([0] * 3),
        "gradInput": zeros(1, 16, 2, 2, 2), "gradWeight": zeros(16, 16, 1, 1, 1),
        "gradBias": zeros(16),
    }  # fmt: skip
    assert convolution(**volume) == (0, "")
    acl.aclrtSetDevice("ascend910")
    status, text = convolution(**volume)
    assert status == INVALID
    assert "1-D and 2-D" in text


def test_hardware_rules_still_need_fitting_outputs() -> None:
    acl.aclrtSetDevice("ascend910b2", rules="hardware")
    status, text = convolution(gradBias=zeros(32, kind=np.float32))
    assert status == INVALID
    assert "gradBias is fp32; the call writes fp16" in text


def test_strict_rules_refuse_products_that_the_page_does_not_list() -> None:
    acl.aclrtSetDevice("ascend910c", rules="strict")
    status, text = convolution()
    assert status == INNER
    assert "of Atlas A3 products (910C) does not list convolution_backward" in text
    assert "rules='documented' those of Atlas A2 training" in text


def test_a_read_only_output_is_refused() -> None:
    array = np.zeros(32, np.float16)
    array.flags.writeable = False
    status, text = convolution(gradBias=aclCreateTensor(array))
    assert status == INVALID
    assert "the array of gradBias, of shape (32,), is read-only; pass a copy" in text


# -- im2col --------------------------------------------------------------------------------

PATCHES = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)


#: A good call: 3x3 patches of 2x2, and the image they are added into.
FOLD: dict[str, Any] = {
    "gradOutput": aclCreateTensor(PATCHES),
    "inputSize": ints([3, 3]),
    "kernelSize": ints([2, 2]),
    "dilation": ints([1, 1]),
    "padding": ints([0, 0]),
    "stride": ints([1, 1]),
    "out": zeros(1, 1, 3, 3, kind=np.float32),
}


def fold(**changes: Any) -> tuple[int, int, Any]:
    """Phase one of the good call with changes."""
    return acl.aclnnIm2colBackwardGetWorkspaceSize(**{**FOLD, **changes})


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("wanted", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("stride", "padding", "want"),
    [
        (1, 0, [[1, 7, 6], [12, 34, 22], [11, 27, 16]]),
        (2, 1, [[13, 10, 14], [7, 4, 8], [15, 12, 16]]),
    ],
)
def test_patches_are_summed_in_place(
    kind: Any, wanted: Any, stride: int, padding: int, want: list[list[int]]
) -> None:
    image = np.full((1, 1, 3, 3), 77, wanted)
    status, size, executor = fold(
        gradOutput=aclCreateTensor(PATCHES.astype(kind)),
        padding=ints([padding] * 2),
        stride=ints([stride] * 2),
        out=aclCreateTensor(image),
    )
    assert (status, acl.aclGetRecentErrMsg()) == (0, None)
    assert (image == 77).all()
    assert acl.aclnnIm2colBackward(acl.aclrtMalloc(size), size, executor, None) == 0
    assert image[0, 0].tolist() == want
    names = [run.name for run in executor.result.runs]
    assert ("cast" in names) == (kind != wanted)
    assert executor.result.workspace_bytes == size


def test_a_cast_is_timed_without_arrays_too() -> None:
    sizes = []
    for grad, out in (
        (aclCreateTensor(PATCHES), zeros(1, 1, 3, 3)),
        (aclCreateTensor(PATCHES.shape, "fp32"), aclCreateTensor((1, 1, 3, 3), "fp16")),
    ):
        _, size, executor = fold(gradOutput=grad, out=out)
        assert acl.aclnnIm2colBackward(acl.aclrtMalloc(size), size, executor, None) == 0
        sizes.append((size, executor.result.cycles))
    assert sizes[0] == sizes[1]


def test_an_empty_fold_succeeds_and_writes_nothing() -> None:
    image = np.full((1, 1, 3, 3), 77, np.float16)
    status, size, executor = fold(gradOutput=zeros(0, 4, 4), out=aclCreateTensor(image))
    assert (status, acl.aclGetRecentErrMsg()) == (0, None)
    assert acl.aclnnIm2colBackward(acl.aclrtMalloc(size), size, executor, None) == 0
    assert (image == 77).all()
