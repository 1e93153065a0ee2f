"""The host program around a call, as in C: initialisation, devices, streams, memory, tensors."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from npusim.base.errors import ArgumentError
from npusim.compat import aclnn as acl
from npusim.problem.reference import conv_bias_grad, conv_filter_grad, conv_input_grad
from tests.tables import rows

Array = np.ndarray[Any, Any]
EXAMPLES = Path(__file__).parent / "examples"
TO_DEVICE, TO_HOST = acl.ACL_MEMCPY_HOST_TO_DEVICE, acl.ACL_MEMCPY_DEVICE_TO_HOST

#: Patches of 2x2 pixels, and the 3x3 image they add up to.
PATCHES = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
IMAGE = [[1, 7, 6], [12, 34, 22], [11, 27, 16]]


def in_own_thread(work: Callable[[], None]) -> None:
    """Run ``work`` where no device was ever named, and raise what it raises."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=guarded)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def failed(status: int, expected: int) -> str:
    """The text of a call that must have returned ``expected``."""
    assert status == expected
    return str(acl.aclGetRecentErrMsg())


@pytest.fixture
def stream() -> Iterator[acl.aclrtStream]:
    """Device 0, initialised as a C program does."""
    acl.aclrtSetDevice("ascend910b2")
    assert acl.aclInit(None) == acl.ACL_SUCCESS
    assert acl.aclrtSetDevice(0) == acl.ACL_SUCCESS
    ret, stream = acl.aclrtCreateStream()
    assert ret == acl.ACL_SUCCESS
    yield stream
    acl.aclFinalize()
    acl.aclrtSetDevice("ascend910b2")


def malloc(size: int) -> acl.DeviceMemory:
    ret, memory = acl.aclrtMalloc(size, acl.ACL_MEM_MALLOC_HUGE_FIRST)
    assert ret == acl.ACL_SUCCESS
    assert memory is not None
    return memory


def upload(array: Array) -> acl.DeviceMemory:
    memory = malloc(array.nbytes)
    size = array.nbytes
    assert acl.aclrtMemcpy(memory, size, array, size, TO_DEVICE) == acl.ACL_SUCCESS
    return memory


def download(memory: acl.DeviceMemory, like: Array) -> Array:
    host = np.empty_like(like)
    size = host.nbytes
    assert acl.aclrtMemcpy(host, size, memory, size, TO_HOST) == acl.ACL_SUCCESS
    return host


def tensor(memory: acl.DeviceMemory | None, *shape: int, dtype: Any = acl.ACL_FLOAT) -> Any:
    return acl.aclCreateTensor(
        shape, len(shape), dtype, None, 0, acl.ACL_FORMAT_ND, shape, len(shape), memory
    )


def fold(grad: Any, out: Any, **changes: Any) -> tuple[int, int, Any]:
    """Phase one of the 3x3 image."""
    lists = {"inputSize": [3, 3], "kernelSize": [2, 2], "dilation": [1, 1], "padding": [0, 0],
             "stride": [1, 1]}  # fmt: skip
    given = {name: acl.aclCreateIntArray(value, 2) for name, value in lists.items()}
    return acl.aclnnIm2colBackwardGetWorkspaceSize(grad, out=out, **(given | changes))


# -- whole programs ------------------------------------------------------------------------


def test_the_program_around_a_convolution_runs_line_by_line() -> None:
    names: dict[str, Any] = {}
    in_own_thread(
        lambda: names.update(runpy.run_path(str(EXAMPLES / "aclnn_convolution_backward.py")))
    )
    x, w, dy = names["x"], names["w"], names["dy"]
    window: Any = ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    np.testing.assert_array_equal(names["dx"], conv_input_grad(dy, w, x.shape, *window))
    np.testing.assert_array_equal(names["dw"], conv_filter_grad(x, dy, (3, 3), *window))
    np.testing.assert_array_equal(names["db"], conv_bias_grad(dy))
    result = names["executor"].result
    assert result.device.name == "ascend910b2"
    assert result.workspace_bytes == names["workspaceSize"] > 0


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
def test_the_program_around_im2col_runs_on_the_device_named_before(device: str) -> None:
    acl.aclrtSetDevice(device)
    names = runpy.run_path(str(EXAMPLES / "aclnn_im2col_backward.py"))
    assert names["image"][0, 0].tolist() == IMAGE
    assert names["executor"].result.device.name == device
    assert acl.aclrtResetDevice(0) == acl.ACL_ERROR_RT_CONTEXT_NULL  # nothing is left


def test_the_older_sample_with_a_context_runs_line_by_line() -> None:
    acl.aclrtSetDevice("ascend910b2")
    device_id = 0
    assert acl.aclInit(None) == acl.aclrtSetDevice(device_id) == acl.ACL_SUCCESS
    ret, context = acl.aclrtCreateContext(device_id)
    assert ret == acl.ACL_SUCCESS
    assert acl.aclrtSetCurrentContext(context) == acl.ACL_SUCCESS
    _, stream = acl.aclrtCreateStream()
    memory, out = upload(PATCHES), malloc(36)
    grad, image = tensor(memory, 1, 4, 4), tensor(out, 1, 1, 3, 3)
    ret, size, executor = fold(grad, image)
    assert ret == acl.ACL_SUCCESS
    assert acl.aclnnIm2colBackward(malloc(size), size, executor, stream) == acl.ACL_SUCCESS
    assert acl.aclrtSynchronizeStream(stream) == acl.ACL_SUCCESS
    assert download(out, np.empty((3, 3), np.float32)).tolist() == IMAGE
    assert acl.aclDestroyTensor(grad) == acl.aclDestroyTensor(image) == acl.ACL_SUCCESS
    assert acl.aclrtFree(memory) == acl.aclrtFree(out) == acl.ACL_SUCCESS
    assert acl.aclrtDestroyStream(stream) == acl.ACL_SUCCESS
    assert acl.aclrtDestroyContext(context) == acl.aclrtResetDevice(device_id) == acl.ACL_SUCCESS
    assert acl.aclFinalize() == acl.ACL_SUCCESS


# -- initialisation and devices ------------------------------------------------------------


def test_initialisation_is_of_the_process_and_happens_once(stream: acl.aclrtStream) -> None:
    assert "aclInit: called before" in failed(acl.aclInit(), acl.ACL_ERROR_REPEAT_INITIALIZE)
    seen: list[int] = []
    in_own_thread(lambda: seen.append(acl.aclrtSetDevice(0)))
    assert seen == [acl.ACL_SUCCESS]
    assert acl.aclFinalize() == acl.ACL_SUCCESS
    assert "nothing to end" in failed(acl.aclFinalize(), acl.ACL_ERROR_REPEAT_FINALIZE)
    assert "call aclInit first" in failed(acl.aclrtSetDevice(0), acl.ACL_ERROR_UNINITIALIZE)
    assert "pass None" in failed(acl.aclInit("acl.json"), acl.ACL_ERROR_INVALID_PARAM)


def test_numbers_are_devices_of_one_kind(stream: acl.aclrtStream) -> None:
    assert "devices 0 to 7" in failed(acl.aclrtSetDevice(8), acl.ACL_ERROR_RT_INVALID_DEVICEID)
    acl.aclrtSetDevice("ascend910", cores="0-1")
    assert acl.aclrtSetDevice(np.int64(1)) == acl.ACL_SUCCESS
    out = np.zeros((1, 1, 3, 3), np.float32)
    _, size, executor = fold(acl.aclCreateTensor(PATCHES), acl.aclCreateTensor(out))
    assert acl.aclnnIm2colBackward(acl.aclrtMalloc(size), size, executor, None) == 0
    assert executor.result.device.name == "ascend910"
    assert max(run.cores for run in executor.result.runs) <= 2
    with pytest.raises(ArgumentError, match="a number takes no keywords, got cores"):
        acl.aclrtSetDevice(0, cores=1)


def test_a_reset_device_takes_streams_and_memory_with_it(stream: acl.aclrtStream) -> None:
    memory, out = upload(PATCHES), malloc(36)
    _, size, executor = fold(tensor(memory, 1, 4, 4), tensor(out, 1, 1, 3, 3))
    text = failed(acl.aclrtResetDevice(1), acl.ACL_ERROR_RT_INVALID_DEVICEID)
    assert "this thread has device 0" in text
    assert acl.aclrtResetDevice(0) == acl.ACL_SUCCESS
    assert "was reset" in failed(
        acl.aclrtSynchronizeStream(stream), acl.ACL_ERROR_RT_STREAM_CONTEXT
    )
    text = failed(
        acl.aclrtMemcpy(memory, 64, PATCHES, 64, TO_DEVICE), acl.ACL_ERROR_RT_PARAM_INVALID
    )
    assert "dst: its memory was lost when aclrtResetDevice reset the device" in text
    ret, nothing = acl.aclrtMalloc(1, acl.ACL_MEM_MALLOC_NORMAL_ONLY)
    assert nothing is None
    assert "this thread has no device" in failed(ret, acl.ACL_ERROR_RT_CONTEXT_NULL)
    status = acl.aclnnIm2colBackward(bytearray(size), size, executor, None)
    assert "phase one planned for was reset" in failed(status, acl.ACL_ERROR_RT_CONTEXT_NULL)


def test_a_stream_shows_its_device_and_can_be_destroyed(stream: acl.aclrtStream) -> None:
    assert repr(stream) == "<aclrtStream on ascend910b2>"
    assert acl.aclrtSynchronizeStream(None) == acl.ACL_SUCCESS
    assert acl.aclrtDestroyStream(stream) == acl.ACL_SUCCESS
    for call in (acl.aclrtDestroyStream, acl.aclrtSynchronizeStream):
        text = failed(call(stream), acl.ACL_ERROR_RT_STREAM_CONTEXT)
        assert "the stream was destroyed by aclrtDestroyStream" in text
    assert "is null" in failed(acl.aclrtDestroyStream(None), acl.ACL_ERROR_INVALID_PARAM)
    out = np.zeros((1, 1, 3, 3), np.float32)
    _, size, executor = fold(acl.aclCreateTensor(PATCHES), acl.aclCreateTensor(out))
    status = acl.aclnnIm2colBackward(bytearray(size), size, executor, stream)
    assert "was destroyed" in failed(status, acl.ACL_ERROR_RT_STREAM_CONTEXT)


def test_contexts_are_made_chosen_and_given_back(stream: acl.aclrtStream) -> None:
    bad = acl.ACL_ERROR_INVALID_PARAM
    _, usual = acl.aclrtGetCurrentContext()
    ret, context = acl.aclrtCreateContext(0)
    assert (ret, acl.aclrtGetCurrentContext()) == (acl.ACL_SUCCESS, (acl.ACL_SUCCESS, context))
    ret, own = acl.aclrtCreateStream()
    memory = upload(PATCHES)
    seen: list[int] = []
    in_own_thread(lambda: seen.append(acl.aclrtSetCurrentContext(context)))
    assert seen == [acl.ACL_SUCCESS]
    assert acl.aclrtDestroyContext(context) == acl.ACL_SUCCESS
    assert acl.aclrtGetCurrentContext() == (acl.ACL_SUCCESS, usual)
    text = failed(acl.aclrtSynchronizeStream(own), acl.ACL_ERROR_RT_STREAM_CONTEXT)
    assert "the context of the stream was destroyed by aclrtDestroyContext" in text
    assert acl.aclrtSynchronizeStream(stream) == acl.ACL_SUCCESS
    assert download(memory, PATCHES).tolist() == PATCHES.tolist()  # it lies on the device
    for call in (acl.aclrtDestroyContext, acl.aclrtSetCurrentContext):
        assert "given back" in failed(call(context), bad)
        assert "context is" in failed(call(None), bad)
    assert "none of aclrtCreateContext" in failed(acl.aclrtDestroyContext(usual), bad)
    ret, nothing = acl.aclrtCreateContext(8)
    assert nothing is None
    assert "aclrtCreateContext: deviceId is 8" in failed(ret, acl.ACL_ERROR_RT_INVALID_DEVICEID)
    _, context = acl.aclrtCreateContext(0)
    assert acl.aclrtResetDevice(0) == acl.ACL_SUCCESS
    assert "given back" in failed(acl.aclrtSetCurrentContext(context), bad)
    for status in (acl.aclrtSynchronizeDevice(), acl.aclrtGetCurrentContext()[0]):
        assert status == acl.ACL_ERROR_RT_CONTEXT_NULL


def test_the_rest_of_the_runtime(stream: acl.aclrtStream) -> None:
    assert acl.aclrtGetDeviceCount() == (acl.ACL_SUCCESS, 8)
    assert acl.aclrtSynchronizeDevice() == acl.ACL_SUCCESS
    _, host = acl.aclrtMallocHost(64)
    assert host is not None
    host[:] = np.frombuffer(PATCHES.tobytes(), np.uint8)
    memory = malloc(64)
    assert acl.aclrtMemset(memory, 64, 0x3C, 32) == acl.ACL_SUCCESS
    assert download(memory, host)[:32].tolist() == [0x3C] * 32
    assert acl.aclrtMemcpyAsync(memory, 64, host, 64, TO_DEVICE, stream) == acl.ACL_SUCCESS
    assert download(memory, PATCHES).tolist() == PATCHES.tolist()
    assert acl.aclrtFreeHost(host) == acl.ACL_SUCCESS
    bad = acl.ACL_ERROR_INVALID_PARAM
    assert "hostPtr is null" in failed(acl.aclrtFreeHost(None), bad)
    assert "size is 0" in failed(acl.aclrtMallocHost(0)[0], bad)
    status = acl.aclrtMemset(memory, 64, 0, 65)
    assert "count is 65" in failed(status, acl.ACL_ERROR_RT_PARAM_INVALID)
    scalar = acl.aclCreateScalar(1.5, acl.ACL_FLOAT16)
    assert scalar.value == np.float16(1.5)
    assert acl.aclDestroyScalar(scalar) == acl.ACL_SUCCESS
    assert "destroyed before" in failed(acl.aclDestroyScalar(scalar), bad)
    assert acl.aclrtDestroyStream(stream) == acl.ACL_SUCCESS
    status = acl.aclrtMemcpyAsync(memory, 64, host, 64, TO_DEVICE, stream)
    assert "was destroyed" in failed(status, acl.ACL_ERROR_RT_STREAM_CONTEXT)


# -- memory --------------------------------------------------------------------------------


def test_bytes_go_there_and_back_and_fresh_memory_is_poisoned(stream: acl.aclrtStream) -> None:
    data = np.arange(6, dtype=np.float16)
    first, second = upload(data), malloc(16)
    kind = acl.ACL_MEMCPY_DEVICE_TO_DEVICE
    assert acl.aclrtMemcpy(second, 16, first, data.nbytes, kind) == acl.ACL_SUCCESS
    whole = download(second, np.zeros(8, np.float16))
    np.testing.assert_array_equal(whole[:6], data)
    assert np.isnan(whole[6:]).all()
    other = bytearray(12)
    assert acl.aclrtMemcpy(other, 12, data, 12, acl.ACL_MEMCPY_HOST_TO_HOST) == acl.ACL_SUCCESS
    assert other == data.tobytes()


#: dst, destMax, src, count, kind, and what is wrong; "device" stands for 8 bytes of memory.
COPIES: dict[str, tuple[Any, int, Any, int, Any, str]] = {
    "null": (None, 8, "device", 8, TO_HOST, "dst is null"),
    "room": ("device", 4, np.zeros(1), 8, TO_DEVICE, "count is 8; destMax leaves room for 4"),
    "dst": ("device", 16, np.zeros(2), 16, TO_DEVICE, "destMax is 16; dst has 8 bytes"),
    "src": (np.zeros(2), 16, "device", 16, TO_HOST, "count is 16; src has 8 bytes"),
    "direction": ("device", 8, np.zeros(1), 8, TO_HOST, "src is a ndarray; kind makes it memory"),
    "kind": ("device", 8, np.zeros(1), 8, 7, "kind is 7; it is one of ACL_MEMCPY_HOST_TO_HOST"),
    "gaps": ("device", 8, np.zeros(4)[::2], 8, TO_DEVICE, "src has gaps between its elements"),
    "list": ("device", 8, [1.0], 8, TO_DEVICE, "src is a list; pass a NumPy array or a buffer"),
    "read-only": (bytes(8), 8, "device", 8, TO_HOST, "dst is read-only"),
}


@pytest.mark.parametrize("case", COPIES)
def test_a_copy_that_cannot_be_is_refused(stream: acl.aclrtStream, case: str) -> None:
    dst, room, src, count, kind, message = COPIES[case]
    memory = malloc(8)
    dst, src = (memory if isinstance(side, str) else side for side in (dst, src))
    null = dst is None
    status = acl.ACL_ERROR_INVALID_PARAM if null else acl.ACL_ERROR_RT_PARAM_INVALID
    assert message in failed(acl.aclrtMemcpy(dst, room, src, count, kind), status)


def test_memory_is_freed_once_and_unused_from_then_on(stream: acl.aclrtStream) -> None:
    memory, out = upload(PATCHES), malloc(36)
    _, size, executor = fold(tensor(memory, 1, 4, 4), tensor(out, 1, 1, 3, 3))
    workspace = malloc(size)
    for freed, name in ((workspace, "workspace"), (memory, "gradOutput")):
        assert acl.aclrtFree(freed) == acl.ACL_SUCCESS
        status = acl.aclnnIm2colBackward(workspace, size, executor, stream)
        text = failed(status, acl.ACLNN_ERR_PARAM_INVALID)
        assert f"{name}: its memory was freed by aclrtFree" in text
        text = failed(acl.aclrtFree(freed), acl.ACL_ERROR_RT_PARAM_INVALID)
        assert "freed by aclrtFree" in text
    with pytest.raises(ArgumentError, match="tensorData: its memory was freed"):
        tensor(memory, 1, 4, 4)
    assert "is null" in failed(acl.aclrtFree(None), acl.ACL_ERROR_INVALID_PARAM)
    ret, nothing = acl.aclrtMalloc(0, acl.ACL_MEM_MALLOC_HUGE_FIRST)
    assert nothing is None
    assert "size is 0" in failed(ret, acl.ACL_ERROR_INVALID_PARAM)


def test_memory_and_streams_of_another_device_are_refused(stream: acl.aclrtStream) -> None:
    memory, out = upload(PATCHES), malloc(36)
    assert acl.aclrtSetDevice(1) == acl.ACL_SUCCESS
    _, size, executor = fold(tensor(memory, 1, 4, 4), tensor(out, 1, 1, 3, 3))
    status = acl.aclnnIm2colBackward(malloc(size), size, executor, stream)
    text = failed(status, acl.ACL_ERROR_RT_STREAM_CONTEXT)
    assert "one of ascend910b2, phase one planned for ascend910b2 (device 1)" in text
    status = acl.aclnnIm2colBackward(malloc(size), size, executor, None)
    text = failed(status, acl.ACLNN_ERR_PARAM_INVALID)
    assert "gradOutput: its memory lies on ascend910b2, the call runs on" in text


# -- tensors, lists, executors -------------------------------------------------------------


def test_strides_and_offset_place_a_tensor_in_its_storage(stream: acl.aclrtStream) -> None:
    """Patches every second element from the third on; the image turned, inside a larger one."""
    wide = np.zeros((4, 10), np.float32)
    wide[:, 2::2] = PATCHES[0]
    memory, image = upload(wide), upload(np.full((4, 5), 77, np.float32))
    grad = acl.aclCreateTensor(
        [1, 4, 4], 3, acl.ACL_FLOAT, [40, 10, 2], 2, acl.ACL_FORMAT_ND, [4, 10], 2, memory
    )
    out = acl.aclCreateTensor(
        [1, 1, 3, 3], 4, acl.ACL_FLOAT, [9, 9, 1, 5], 6, acl.ACL_FORMAT_ND, [4, 5], 2, image
    )
    status, size, executor = fold(grad, out)
    assert (status, acl.aclGetRecentErrMsg()) == (0, None)
    assert acl.aclnnIm2colBackward(malloc(size), size, executor, stream) == 0
    got = download(image, np.zeros((4, 5), np.float32))
    want = np.full((4, 5), 77, np.float32)
    want[1:4, 1:4] = np.array(IMAGE).T
    np.testing.assert_array_equal(got, want)


def test_a_tensor_without_data_is_timed_only(stream: acl.aclrtStream) -> None:
    status, size, executor = fold(tensor(None, 1, 4, 4), tensor(None, 1, 1, 3, 3))
    assert status == 0
    assert acl.aclnnIm2colBackward(malloc(size), size, executor, stream) == 0
    assert executor.result.outputs is None
    assert executor.result.cycles > 0


def test_types_and_formats_have_the_values_of_c(stream: acl.aclrtStream) -> None:
    assert (acl.ACL_FLOAT, acl.ACL_FLOAT16, acl.ACL_BF16) == (0, 1, 27)
    assert (acl.ACL_FORMAT_NCHW, acl.ACL_FORMAT_ND, acl.ACL_FORMAT_NCL) == (0, 2, 47)
    memory = malloc(48)
    for dtype, name, item in ((acl.ACL_BF16, "bf16", 2), (0, "fp32", 4), (11, "float64", 8)):
        made = acl.aclCreateTensor([2, 3, 1], 3, dtype, [3, 1, 1], 0, 47, [6], 1, memory)
        assert (made.dtype, made.format, made.shape) == (name, "NCL", (2, 3, 1))
        assert made.array is not None
        assert made.array.itemsize == item
    status, _, _ = fold(tensor(memory, 1, 2, 3, dtype=acl.ACL_DOUBLE), tensor(None, 1, 1, 3, 3))
    assert "gradOutput.dtype is float64" in failed(status, acl.ACLNN_ERR_PARAM_INVALID)


@rows(
    "tests/data/mistakes/compat.yaml",
    "a_tensor_that_does_not_fit_its_memory_is_refused",
    "case, dims, count, strides, offset, storage, size, message",
)
def test_a_tensor_that_does_not_fit_its_memory_is_refused(
    stream: acl.aclrtStream, case: str, dims: Any, count: int, strides: Any, offset: int,
    storage: Any, size: int, message: str,
) -> None:  # fmt: skip
    with pytest.raises(ArgumentError, match=message):
        acl.aclCreateTensor(
            dims, count, acl.ACL_FLOAT, strides, offset, acl.ACL_FORMAT_ND, storage, 1, malloc(size)
        )


def test_data_is_memory_of_the_device() -> None:
    given: Any = PATCHES
    with pytest.raises(ArgumentError, match="tensorData is a ndarray; pass memory of aclrtMalloc"):
        tensor(given, 1, 4, 4)


def test_lists_have_the_length_that_is_said() -> None:
    assert acl.aclCreateIntArray(np.array([1, 2, 3]), 2).values == (1, 2)
    assert acl.aclCreateBoolArray([True, False], 1).values == (True,)
    with pytest.raises(ArgumentError, match="the number is 3, of 2 values"):
        acl.aclCreateIntArray([1, 2], 3)


def test_what_was_destroyed_is_refused_by_name(stream: acl.aclrtStream) -> None:
    grad, out = acl.aclCreateTensor(PATCHES), acl.aclCreateTensor((1, 1, 3, 3), "fp32")
    sizes = acl.aclCreateIntArray([3, 3])
    assert acl.aclDestroyIntArray(sizes) == acl.ACL_SUCCESS
    status, _, _ = fold(grad, out, inputSize=sizes)
    assert "inputSize was destroyed" in failed(status, acl.ACLNN_ERR_PARAM_NULLPTR)
    _, size, executor = fold(grad, out)
    assert acl.aclDestroyTensor(grad) == acl.ACL_SUCCESS
    status = acl.aclnnIm2colBackward(malloc(size), size, executor, stream)
    assert "gradOutput: it was destroyed" in failed(status, acl.ACLNN_ERR_PARAM_INVALID)
    status, _, _ = fold(grad, out)
    assert "gradOutput was destroyed" in failed(status, acl.ACLNN_ERR_PARAM_NULLPTR)
    mask = acl.aclCreateBoolArray([True])
    assert "destroyed before" in failed(acl.aclDestroyTensor(grad), acl.ACL_ERROR_INVALID_PARAM)
    assert "destroyed before" in failed(acl.aclDestroyIntArray(sizes), acl.ACL_ERROR_INVALID_PARAM)
    assert "is null" in failed(acl.aclDestroyBoolArray(None), acl.ACL_ERROR_INVALID_PARAM)
    assert acl.aclDestroyBoolArray(mask) == acl.ACL_SUCCESS


def test_a_repeatable_executor_runs_until_it_is_destroyed(stream: acl.aclrtStream) -> None:
    memory, image = upload(PATCHES), malloc(36)
    _, size, executor = fold(tensor(memory, 1, 4, 4), tensor(image, 1, 1, 3, 3))
    assert acl.aclSetAclOpExecutorRepeatable(executor) == acl.ACL_SUCCESS
    workspace = malloc(size)
    for factor in (1, 2):
        data = factor * PATCHES
        acl.aclrtMemcpy(memory, data.nbytes, data, data.nbytes, TO_DEVICE)
        assert acl.aclnnIm2colBackward(workspace, size, executor, stream) == 0
        got = download(image, np.zeros((3, 3), np.float32))
        np.testing.assert_array_equal(got, factor * np.array(IMAGE))
    assert acl.aclDestroyAclOpExecutor(executor) == acl.ACL_SUCCESS
    status = acl.aclnnIm2colBackward(workspace, size, executor, stream)
    assert "executor was destroyed" in failed(status, acl.ACLNN_ERR_PARAM_NULLPTR)
    for call in (acl.aclDestroyAclOpExecutor, acl.aclSetAclOpExecutorRepeatable):
        assert "executor is null or was" in failed(call(executor), acl.ACL_ERROR_INVALID_PARAM)
