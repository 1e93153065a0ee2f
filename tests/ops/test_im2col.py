"""im2col: every value where torch's unfold has it, cuts, forms, and the vendor's calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError, RuleError
from npusim.compat import aclnn
from npusim.compat.tbe import dsl, tvm
from npusim.kernels.windows.im2col_tiling import Tiling, auto_tiling
from npusim.ops.windows import im2col, planes, windows
from npusim.problem.convolution import output_sizes
from npusim.problem.layouts import to_5hd
from npusim.problem.reference import unfold
from tests.sampled import examples

Array = npt.NDArray[Any]
Pair = tuple[int, int]
Geometry = tuple[Pair, Pair, Pair, Pair]  # kernel, dilation, padding, stride

EXAMPLE = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)


def columns(image: Array, geometry: Geometry, **options: Any) -> Array:
    """The patches of one call."""
    outputs = im2col(image, *geometry, timeline=False, **options).outputs
    assert outputs is not None
    assert outputs[0] is not None
    return outputs[0]


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], Geometry]:
    """(shape of the image, geometry), at least one window inside the padded image."""

    def pair(low: int, high: int) -> Pair:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    kernel, dilation, padding, stride = pair(1, 4), pair(1, 3), pair(0, 4), pair(1, 4)
    low = [
        max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    size = [draw(st.integers(least, least + 12)) for least in low]
    lead = (draw(st.integers(1, 3)),) if draw(st.booleans()) else ()
    return (*lead, draw(st.integers(1, 20)), *size), (kernel, dilation, padding, stride)


@examples(60)
@given(
    problems(), st.sampled_from((FP16, FP32)),
    st.sampled_from(("ascend310", "ascend910", "ascend910b2", "ascend950pr")), st.data(),
)  # fmt: skip
def test_every_value_is_copied_whatever_the_tiling(
    problem: tuple[tuple[int, ...], Geometry], kind: Any, device: str, data: st.DataObject
) -> None:
    shape, geometry = problem
    image = np.random.default_rng(sum(shape)).standard_normal(shape).astype(kind.numpy)
    image.flat[0] = -0.0
    tiling: Any = "auto"
    if data.draw(st.booleans()):
        rows, wide, whole = data.draw(
            st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans())
        )
        tiling = Tiling(rows=rows, columns=wide, image=whole)
    got = columns(image, geometry, device=device, tiling=tiling, rules="hardware", cores=1)
    want = unfold(image, *geometry).astype(kind.numpy)
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got) == np.signbit(want)).all()


@examples(15)
@given(problems())
def test_a_map_in_5hd_gives_patches_in_5hd(problem: tuple[tuple[int, ...], Geometry]) -> None:
    shape, geometry = problem
    image = np.random.default_rng(sum(shape)).standard_normal(shape[-3:]).astype(np.float16)[None]
    result = im2col(to_5hd(image, 16), *geometry, device="ascend910", rules="hardware")
    assert [run.name for run in result.runs] == ["im2col"]
    (got,) = result.outputs or ()
    assert got is not None
    taps = geometry[0][0] * geometry[0][1]
    want = unfold(image, *geometry).astype(np.float16).reshape(1, image.shape[1], taps, -1)
    np.testing.assert_array_equal(got, to_5hd(want, 16))


def test_unfold_then_fold_counts_the_windows_of_every_pixel() -> None:
    geometry = ((3, 2), (2, 1), (1, 0), (2, 1))
    ones = np.ones((2, 5, 9, 8), np.float32)
    patches = columns(ones, geometry, device="ascend910b2")
    back = npusim.ops.im2col_backward(patches, (9, 8), *geometry, device="ascend910b2")
    (counts,) = back.outputs or ()
    assert counts is not None
    padded = np.zeros((11, 8))
    for i, j in np.ndindex(*output_sizes((9, 8), (3, 2), (2, 1), ((1, 1), (0, 0)), (2, 1))):
        padded[2 * i : 2 * i + 5 : 2, j : j + 2] += 1
    np.testing.assert_array_equal(counts[1, 3], padded[1:10])


def test_tilings_of_its_own_choice() -> None:
    """Many small planes share a task, large images are cut, huge windows load tap by tap."""
    settings = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    small = planes(windows((64,), 16, (4, 4), (3, 3), settings), 64, 16)
    assert auto_tiling(small, FP16, 32, 256 << 10).at_once
    large = planes(windows((1,), 16, (200, 200), (3, 3), settings), 1, 16)
    cut = auto_tiling(large, FP16, 32, 256 << 10)
    assert (cut.at_once, cut.image) == (False, True)
    wide = planes(windows((1,), 16, (300, 300), (255, 255), settings), 1, 16)
    assert not auto_tiling(wide, FP16, 32, 256 << 10).image
    tiling = Tiling(rows=1, columns=1, at_once=True)
    with pytest.raises(ArgumentError, match="at_once needs whole images"):
        im2col(EXAMPLE, (2, 2), (1, 1), (0, 0), (1, 1), device="tiny", tiling=tiling)


def test_an_empty_image_launches_nothing() -> None:
    image = np.zeros((0, 3, 4, 4), np.float16)
    result = im2col(image, (2, 2), (1, 1), (0, 0), (1, 1), device="ascend910b2")
    assert result.runs == ()
    assert result.outputs is not None
    assert result.outputs[0] is not None
    assert result.outputs[0].shape == (0, 12, 9)


IMAGE = np.arange(2 * 3 * 5 * 6, dtype=np.float16).reshape(2, 3, 5, 6)


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"kernel_size": (3,)}, "kernel_size"),
        ({"kernel_size": (0, 3)}, "kernel_size"),
        ({"dilation": (1, 0)}, "dilation"),
        ({"padding": (-1, 0)}, "padding"),
        ({"stride": (1, 1, 1)}, "stride"),
        ({"kernel_size": (8, 3)}, "image.shape"),
        ({"image": IMAGE[0, 0]}, "image.shape"),
        ({"image": np.zeros((1, 1, 4, 4, 8), np.float16)}, "image.shape"),
        ({"image": IMAGE.astype(np.int8)}, "image.dtype"),
    ],
)
def test_refusals(change: dict[str, Any], parameter: str) -> None:
    usual: dict[str, Any] = {
        "image": IMAGE, "kernel_size": (3, 3), "dilation": (1, 1), "padding": (1, 1),
        "stride": (1, 1),
    }  # fmt: skip
    with pytest.raises(RuleError) as caught:
        im2col(**(usual | change), device="ascend910")
    assert (caught.value.parameter, caught.value.status) == (parameter, 161002)


def test_the_c_call_writes_the_patches_and_has_its_own_refusals() -> None:
    stream = aclnn.aclrtCreateStream(device="ascend910b2")
    out = np.zeros((2, 27, 30), np.float16)
    three, one = aclnn.aclCreateIntArray([3, 3], 2), aclnn.aclCreateIntArray([1, 1], 2)
    handles = aclnn.aclCreateTensor(IMAGE), aclnn.aclCreateTensor(out)
    plan = partial(aclnn.aclnnIm2colGetWorkspaceSize, kernelSize=three, dilation=one)
    plan = partial(plan, padding=one, stride=one)
    status, size, executor = plan(self=handles[0], out=handles[1])
    assert status == 0, aclnn.aclGetRecentErrMsg()
    assert aclnn.aclnnIm2col(aclnn.aclrtMalloc(size), size, executor, stream) == 0
    np.testing.assert_array_equal(out, unfold(IMAGE, (3, 3), (1, 1), (1, 1), (1, 1)))
    short = aclnn.aclCreateTensor(np.zeros((2, 27, 29), np.float16))
    wide = aclnn.aclCreateTensor(np.zeros((2, 27, 30), np.float32))
    for image, target, want, text in (
        (None, handles[1], 161001, "aclnnIm2col: self is null"),
        (handles[0], None, 161001, "out is null"),
        (handles[0], short, 161002, "it must be (2, 27, 30)"),
        (handles[0], wide, 161002, "the image is fp16"),
    ):
        status, *_ = plan(self=image, out=target)
        assert status == want
        assert text in str(aclnn.aclGetRecentErrMsg())


def test_the_tensor_compilers_form() -> None:
    x = tvm.placeholder((2, 1, 5, 6, 16), name="x", dtype="float16")
    lazy = dsl.im2col(x, [3, 3], pads=[1, 1, 1, 1], kernel_name="patches")
    assert (lazy.name, lazy.shape, lazy.dtype) == ("patches", (2, 1, 9, 30, 16), "float16")
    result = lazy.run({"x": to_5hd(IMAGE, 16)}, device="ascend910", timeline=False)
    want = unfold(IMAGE, (3, 3), (1, 1), (1, 1), (1, 1)).reshape(2, 3, 9, 30)
    assert result.outputs is not None
    np.testing.assert_array_equal(result.outputs[0], to_5hd(want.astype(np.float16), 16))
    with pytest.raises(ArgumentError, match="padding_mode is 'SAME'"):
        dsl.im2col(x, [3, 3], padding_mode="SAME")
    with pytest.raises(RuleError, match="kernel_size"):
        dsl.im2col(x, [0, 3])
