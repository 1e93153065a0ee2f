"""The two-phase calls: results in place, workspace, streams, and what a thread remembers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.compat import aclnn as acl
from npusim.compat.acl_phases import Executor
from npusim.problem.reference import (
    conv_bias_grad,
    conv_filter_grad,
    conv_input_grad,
)

Array = np.ndarray[Any, Any]
OK = acl.ACLNN_SUCCESS

#: Without its types: the tests unpack generators into it.
phase_one: Callable[..., tuple[int, int, Any]] = acl.aclnnConvolutionBackwardGetWorkspaceSize


def integers(seed: int, *shape: int, kind: Any = np.float16) -> Array:
    """Small whole numbers: their sums are exact in every type."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(kind)


class Call:
    """One convolution: 20 -> 16 channels in 2 groups, 3x3, stride 2, padding [1, 0, 0, 1]."""

    def __init__(self, kind: Any = np.float16) -> None:
        self.x, self.w = integers(1, 2, 20, 7, 6, kind=kind), integers(2, 16, 10, 3, 3, kind=kind)
        self.dy = integers(3, 2, 16, 3, 3, kind=kind)
        self.dx, self.dw = np.full_like(self.x, 77), np.full_like(self.w, 77)
        self.db = np.full(16, 77, kind)
        self.mask = [True, True, True]
        self.math = 0

    def phase_one(self) -> tuple[int, int, Executor | None]:
        outputs = (self.dx, self.dw, self.db)
        pairs = zip(outputs, self.mask, strict=True)
        tensors = (acl.aclCreateTensor(a) if on else None for a, on in pairs)
        return phase_one(
            *(acl.aclCreateTensor(a) for a in (self.dy, self.x, self.w)),
            acl.aclCreateIntArray([16]),
            acl.aclCreateIntArray([2, 2]),
            acl.aclCreateIntArray([1, 0, 0, 1]),
            acl.aclCreateIntArray([1, 1]),
            False,
            acl.aclCreateIntArray([0, 0]),
            2,
            acl.aclCreateBoolArray(self.mask),
            self.math,
            *tensors,
        )

    def planned(self) -> tuple[int, Executor]:
        status, size, executor = self.phase_one()
        assert (status, acl.aclGetRecentErrMsg()) == (OK, None)
        assert executor is not None
        return size, executor

    @property
    def references(self) -> tuple[Array, Array, Array]:
        window: Any = ((2, 2), ((1, 0), (0, 1)), (1, 1), 2)
        return (
            conv_input_grad(self.dy, self.w, self.x.shape, *window),
            conv_filter_grad(self.x, self.dy, (3, 3), *window),
            conv_bias_grad(self.dy),
        )


@pytest.fixture
def stream() -> acl.aclrtStream:
    acl.aclGetRecentErrMsg()
    return acl.aclrtCreateStream(device="ascend910b2")


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_both_phases_write_the_three_gradients_in_place(stream: acl.aclrtStream, kind: Any) -> None:
    call = Call(kind)
    size, executor = call.planned()
    assert (call.dx == 77).all()  # phase one computes nothing
    status = acl.aclnnConvolutionBackward(acl.aclrtMalloc(size), size, executor, stream)
    assert status == OK
    for got, want in zip((call.dx, call.dw, call.db), call.references, strict=True):
        np.testing.assert_array_equal(got, want)
    result = executor.result
    assert result is not None
    assert result.workspace_bytes == size > 0
    assert result.device.name == "ascend910b2"
    assert {"conv_backprop_input", "conv_backprop_filter", "bias_grad"} <= {
        run.name for run in result.runs
    }


def test_a_masked_output_that_is_given_stays_untouched(stream: acl.aclrtStream) -> None:
    x, w, dy = integers(1, 1, 16, 4), integers(2, 16, 16, 1), integers(3, 1, 16, 4)
    dx, dw = np.full_like(x, 77), np.full_like(w, 77)
    one = acl.aclCreateIntArray([1])
    zero = acl.aclCreateIntArray([0])
    status, size, executor = phase_one(
        *(acl.aclCreateTensor(a) for a in (dy, x, w)), None, one, zero, one, False, zero, 1,
        acl.aclCreateBoolArray([False, True, False]), 0,
        acl.aclCreateTensor(dx), acl.aclCreateTensor(dw), None,
    )  # fmt: skip
    assert (status, acl.aclGetRecentErrMsg()) == (OK, None)
    assert acl.aclnnConvolutionBackward(bytearray(size), size, executor, stream) == OK
    assert (dx == 77).all()
    np.testing.assert_array_equal(dw, conv_filter_grad(x, dy, (1,), (1,), ((0, 0),), (1,), 1))


def test_an_empty_batch_gives_zeros(stream: acl.aclrtStream) -> None:
    call = Call()
    call.x, call.dy = call.x[:0], call.dy[:0]
    call.dx = call.dx[:0]
    size, executor = call.planned()
    assert acl.aclnnConvolutionBackward(None, size, executor, stream) == OK
    assert size == 0
    assert not call.dw.any()
    assert not call.db.any()


def test_shapes_alone_make_it_timing_only(stream: acl.aclrtStream) -> None:
    call = Call()
    size, executor = call.planned()
    assert acl.aclnnConvolutionBackward(acl.aclrtMalloc(size), size, executor, stream) == OK
    ints = acl.aclCreateIntArray
    status, shape_size, timed = phase_one(
        *(acl.aclCreateTensor(a.shape, acl.ACL_FLOAT16) for a in (call.dy, call.x, call.w)),
        None, ints([2, 2]), ints([1, 0, 0, 1]), ints([1, 1]), False, ints([0, 0]), 2,
        acl.aclCreateBoolArray([True] * 3), 0,
        *(acl.aclCreateTensor(npusim.spec(a.shape, "fp16")) for a in (call.dx, call.dw, call.db)),
    )  # fmt: skip
    assert (status, shape_size) == (OK, size)
    assert vars(timed)["result"] is None
    assert acl.aclnnConvolutionBackward(acl.aclrtMalloc(size), size, timed, stream) == OK
    assert timed.result is not None
    assert executor.result is not None
    assert timed.result.outputs is None
    assert timed.result.cycles == executor.result.cycles


# -- phase two refuses ---------------------------------------------------------------------


def refused(status: int, *arguments: Any) -> str:
    """The error text of a phase two that must return ``status``."""
    assert acl.aclnnConvolutionBackward(*arguments) == status
    text = str(acl.aclGetRecentErrMsg())
    assert acl.aclGetRecentErrMsg() is None  # told once
    return text


def test_a_workspace_too_small_is_refused(stream: acl.aclrtStream) -> None:
    call = Call()
    size, executor = call.planned()
    small = acl.aclrtMalloc(size - 1)
    text = refused(161002, small, size - 1, executor, stream)
    assert f"workspaceSize is {size - 1}; the call needs {size} bytes" in text
    assert f"workspace has {size - 1} bytes" in refused(161002, small, size, executor, stream)
    assert "workspace is null" in refused(161001, None, size, executor, stream)
    assert (call.dx == 77).all()
    assert acl.aclnnConvolutionBackward(bytearray(size), size, executor, stream) == OK


def test_an_executor_runs_once(stream: acl.aclrtStream) -> None:
    size, executor = Call().planned()
    memory = acl.aclrtMalloc(size)
    assert acl.aclnnConvolutionBackward(memory, size, executor, stream) == OK
    assert "it runs once" in refused(561103, memory, size, executor, stream)


def test_executors_of_other_calls_and_null_are_refused(stream: acl.aclrtStream) -> None:
    size, executor = Call().planned()
    assert "executor is null" in refused(161001, None, 0, None, stream)
    status = acl.aclnnIm2colBackward(acl.aclrtMalloc(size), size, executor, stream)
    assert status == 161002
    message = acl.aclGetRecentErrMsg()
    assert message is not None
    assert "the executor is one of aclnnConvolutionBackward" in message


def test_the_stream_is_of_the_planned_device(stream: acl.aclrtStream) -> None:
    size, executor = Call().planned()
    memory = acl.aclrtMalloc(size)
    other = acl.aclrtCreateStream(device="ascend910b4")
    text = refused(acl.ACL_ERROR_RT_STREAM_CONTEXT, memory, size, executor, other)
    assert "the stream is one of ascend910b4, phase one planned for ascend910b2" in text
    again = acl.aclrtCreateStream(device="ascend910b2", cores=0b1)
    text = refused(acl.ACL_ERROR_RT_STREAM_CONTEXT, memory, size, executor, again)
    assert "or with other keywords" in text
    assert acl.aclnnConvolutionBackward(memory, size, executor, None) == OK  # default stream


# -- devices and threads -------------------------------------------------------------------


def test_the_last_stream_or_device_decides_and_keywords_are_kept(stream: acl.aclrtStream) -> None:
    assert acl.aclrtSetDevice("ascend910", cores="0-1") == acl.ACL_SUCCESS
    size, executor = Call().planned()
    chosen = acl.aclrtCreateStream()
    assert acl.aclnnConvolutionBackward(acl.aclrtMalloc(size), size, executor, chosen) == OK
    assert executor.result is not None
    assert executor.result.device.name == "ascend910"
    assert max(run.cores for run in executor.result.runs) == 2


def test_every_thread_has_its_own_device_and_error(stream: acl.aclrtStream) -> None:
    seen: list[Any] = []

    def work() -> None:
        seen.append(Call().phase_one())
        seen.append(acl.aclGetRecentErrMsg())

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0] == (acl.ACL_ERROR_RT_CONTEXT_NULL, 0, None)
    assert "no device is chosen; call aclrtCreateStream" in seen[1]
    assert acl.aclGetRecentErrMsg() is None
    assert Call().phase_one()[0] == OK


def test_streams_need_a_device_that_exists() -> None:
    with pytest.raises(ArgumentError, match="unknown device 'ascend920'"):
        acl.aclrtCreateStream(device="ascend920")
    with pytest.raises(
        ArgumentError, match="aclrtSetDevice: unknown keyword 'core'; did you mean 'cores'"
    ):
        acl.aclrtCreateStream(device="ascend910", core=1)

    problems: list[Exception] = []

    def work() -> None:
        try:
            acl.aclrtCreateStream()
        except ArgumentError as error:
            problems.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert "no device is named; write aclrtCreateStream(device=" in str(problems[0])


# -- what tensors and lists are made of ----------------------------------------------------


def test_tensors_share_the_array_and_name_the_usual_format() -> None:
    array = np.zeros((1, 2, 3, 4), np.float16)
    tensor = acl.aclCreateTensor(array)
    assert tensor.array is array
    assert (tensor.shape, tensor.dtype, tensor.format) == ((1, 2, 3, 4), "fp16", "NCHW")
    assert acl.aclCreateTensor((2, 3, 4), acl.ACL_FLOAT).format == "NCL"
    assert acl.aclCreateTensor((2, 3, 4, 5, 6), "bfloat16").format == "NCDHW"
    bias = acl.aclCreateTensor([7], np.float32)
    assert (bias.format, bias.dtype, bias.array) == ("ND", "fp32", None)
    assert acl.aclCreateTensor(np.zeros(3)).dtype == "float64"  # the tables refuse it
    assert acl.aclCreateTensor(array, format=acl.ACL_FORMAT_NHWC).format == "NHWC"


def test_what_c_would_not_compile_is_refused() -> None:
    with pytest.raises(ArgumentError, match="dtype is fp32, the array's is fp16; leave dtype out"):
        acl.aclCreateTensor(np.zeros(3, np.float16), acl.ACL_FLOAT)
    with pytest.raises(ArgumentError, match="without an array needs a dtype"):
        acl.aclCreateTensor((1, 2))
    with pytest.raises(ArgumentError, match="it must be integers >= 0, or pass a NumPy array"):
        acl.aclCreateTensor((1, -2), acl.ACL_FLOAT)
    with pytest.raises(ArgumentError, match=r"aclCreateIntArray: \[1, 2.5\] must be integers"):
        acl.aclCreateIntArray([1, 2.5])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"aclCreateBoolArray: \[True, 2\] must be True or"):
        acl.aclCreateBoolArray([True, 2])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="size is -1; it must be at least 0"):
        acl.aclrtMalloc(-1)
