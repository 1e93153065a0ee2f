# ruff: noqa: N802 - functions carry the names of the C interface
"""The C interface of the neural network library and its runtime, one to one in Python.

Every C function keeps its name and the order of its arguments. What C writes through pointers
comes back after the status: phase one returns ``(status, workspaceSize, executor)``, and so do
``aclrtCreateStream`` and ``aclrtMalloc``. A null pointer is None. The host program of the
documentation can be written down line by line::

    ret = aclInit(None)
    ret = aclrtSetDevice(0)
    ret, stream = aclrtCreateStream()
    ret, deviceAddr = aclrtMalloc(size, ACL_MEM_MALLOC_HUGE_FIRST)
    ret = aclrtMemcpy(deviceAddr, size, hostData, size, ACL_MEMCPY_HOST_TO_DEVICE)
    gradOutput = aclCreateTensor(
        shape, 4, ACL_FLOAT16, strides, 0, ACL_FORMAT_NCHW, shape, 4, deviceAddr)
    ...
    ret, workspaceSize, executor = aclnnConvolutionBackwardGetWorkspaceSize(gradOutput, ...)
    ret, workspaceAddr = aclrtMalloc(workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST)
    ret = aclnnConvolutionBackward(workspaceAddr, workspaceSize, executor, stream)
    ret = aclrtSynchronizeStream(stream)

Device numbers mean ``ascend910b2``, or the kind of device that ``aclrtSetDevice("ascend910")``
named before. A short form spares what Python has no need for: arrays instead of device memory,
names instead of numbers::

    stream = aclrtCreateStream(device="ascend910b2")
    gradOutput = aclCreateTensor(dy)
    ...
    status, size, executor = aclnnConvolutionBackwardGetWorkspaceSize(gradOutput, ...)
    status = aclnnConvolutionBackward(aclrtMalloc(size), size, executor, stream)

Phase one makes every check of the documentation, in its order, and plans the kernels for the
device of this thread; it simulates nothing. A status other than ``ACLNN_SUCCESS`` comes with
``(status, 0, None)``, its text from ``aclGetRecentErrMsg()``.

Phase two runs and writes into the output tensors, and has finished when it returns; then
``executor.result`` is the ``npusim.Result``. ``workspace`` is memory of ``aclrtMalloc`` or any
buffer of at least the bytes phase one named (None where it named 0); a ``stream`` of None is the
default stream of the planned device. An executor runs once unless it was made repeatable. A tensor
without data (of a shape, or with null as ``tensorData``) makes the run timing-only.

Of the products of matrices (aclnnMm, aclnnMatmul, aclnnBatchMatMul, aclnnAddmm) no page is at hand:
signatures are those of the library's public headers, and instead of limits of its own what the
operator ``matmul`` takes is taken. A tensor whose last two axes are swapped by its strides is read
as it lies, one that lies otherwise is copied first. Empty tensors are refused.
"""

from __future__ import annotations

from npusim.compat import acl_operators as operators
from npusim.compat.acl_codes import (
    ACL_BF16,
    ACL_BOOL,
    ACL_DOUBLE,
    ACL_ERROR_INVALID_PARAM,
    ACL_ERROR_REPEAT_FINALIZE,
    ACL_ERROR_REPEAT_INITIALIZE,
    ACL_ERROR_RT_CONTEXT_NULL,
    ACL_ERROR_RT_INVALID_DEVICEID,
    ACL_ERROR_RT_PARAM_INVALID,
    ACL_ERROR_RT_STREAM_CONTEXT,
    ACL_ERROR_UNINITIALIZE,
    ACL_FLOAT,
    ACL_FLOAT16,
    ACL_FORMAT_FRACTAL_NZ,
    ACL_FORMAT_FRACTAL_Z,
    ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_NCDHW,
    ACL_FORMAT_NCHW,
    ACL_FORMAT_NCL,
    ACL_FORMAT_ND,
    ACL_FORMAT_NDC1HWC0,
    ACL_FORMAT_NDHWC,
    ACL_FORMAT_NHWC,
    ACL_FORMAT_UNDEFINED,
    ACL_FRACTAL_Z_3D,
    ACL_INT8,
    ACL_INT16,
    ACL_INT32,
    ACL_INT64,
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEM_MALLOC_HUGE_ONLY,
    ACL_MEM_MALLOC_NORMAL_ONLY,
    ACL_MEMCPY_DEVICE_TO_DEVICE,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
    ACL_MEMCPY_HOST_TO_HOST,
    ACL_SUCCESS,
    ACL_UINT8,
    ACLNN_ERR_INNER_NULLPTR,
    ACLNN_ERR_PARAM_INVALID,
    ACLNN_ERR_PARAM_NULLPTR,
    ACLNN_SUCCESS,
    aclDataType,
    aclFormat,
    aclrtMemcpyKind,
    aclrtMemMallocPolicy,
)
from npusim.compat.acl_phases import (
    Executor,
    Planned,
    Workspace,
    aclDestroyAclOpExecutor,
    aclSetAclOpExecutorRepeatable,
    phase_one,
    phase_two,
)
from npusim.compat.acl_runtime import (
    aclFinalize,
    aclGetRecentErrMsg,
    aclInit,
    aclrtContext,
    aclrtCreateContext,
    aclrtCreateStream,
    aclrtDestroyContext,
    aclrtDestroyStream,
    aclrtGetCurrentContext,
    aclrtGetDeviceCount,
    aclrtResetDevice,
    aclrtSetCurrentContext,
    aclrtSetDevice,
    aclrtStream,
    aclrtSynchronizeDevice,
    aclrtSynchronizeStream,
)
from npusim.compat.acl_types import (
    BoolList,
    DeviceMemory,
    IntList,
    aclBoolArray,
    aclCreateBoolArray,
    aclCreateIntArray,
    aclCreateScalar,
    aclCreateTensor,
    aclDestroyBoolArray,
    aclDestroyIntArray,
    aclDestroyScalar,
    aclDestroyTensor,
    aclIntArray,
    aclrtFree,
    aclrtFreeHost,
    aclrtMalloc,
    aclrtMallocHost,
    aclrtMemcpy,
    aclrtMemcpyAsync,
    aclrtMemset,
    aclScalar,
    aclTensor,
)

__all__ = [
    "ACLNN_ERR_INNER_NULLPTR",
    "ACLNN_ERR_PARAM_INVALID",
    "ACLNN_ERR_PARAM_NULLPTR",
    "ACLNN_SUCCESS",
    "ACL_BF16",
    "ACL_BOOL",
    "ACL_DOUBLE",
    "ACL_ERROR_INVALID_PARAM",
    "ACL_ERROR_REPEAT_FINALIZE",
    "ACL_ERROR_REPEAT_INITIALIZE",
    "ACL_ERROR_RT_CONTEXT_NULL",
    "ACL_ERROR_RT_INVALID_DEVICEID",
    "ACL_ERROR_RT_PARAM_INVALID",
    "ACL_ERROR_RT_STREAM_CONTEXT",
    "ACL_ERROR_UNINITIALIZE",
    "ACL_FLOAT",
    "ACL_FLOAT16",
    "ACL_FORMAT_FRACTAL_NZ",
    "ACL_FORMAT_FRACTAL_Z",
    "ACL_FORMAT_NC1HWC0",
    "ACL_FORMAT_NCDHW",
    "ACL_FORMAT_NCHW",
    "ACL_FORMAT_NCL",
    "ACL_FORMAT_ND",
    "ACL_FORMAT_NDC1HWC0",
    "ACL_FORMAT_NDHWC",
    "ACL_FORMAT_NHWC",
    "ACL_FORMAT_UNDEFINED",
    "ACL_FRACTAL_Z_3D",
    "ACL_INT8",
    "ACL_INT16",
    "ACL_INT32",
    "ACL_INT64",
    "ACL_MEMCPY_DEVICE_TO_DEVICE",
    "ACL_MEMCPY_DEVICE_TO_HOST",
    "ACL_MEMCPY_HOST_TO_DEVICE",
    "ACL_MEMCPY_HOST_TO_HOST",
    "ACL_MEM_MALLOC_HUGE_FIRST",
    "ACL_MEM_MALLOC_HUGE_ONLY",
    "ACL_MEM_MALLOC_NORMAL_ONLY",
    "ACL_SUCCESS",
    "ACL_UINT8",
    "DeviceMemory",
    "Executor",
    "aclBoolArray",
    "aclCreateBoolArray",
    "aclCreateIntArray",
    "aclCreateScalar",
    "aclCreateTensor",
    "aclDataType",
    "aclDestroyAclOpExecutor",
    "aclDestroyBoolArray",
    "aclDestroyIntArray",
    "aclDestroyScalar",
    "aclDestroyTensor",
    "aclFinalize",
    "aclFormat",
    "aclGetRecentErrMsg",
    "aclInit",
    "aclIntArray",
    "aclScalar",
    "aclSetAclOpExecutorRepeatable",
    "aclTensor",
    "aclnnAddmm",
    "aclnnAddmmGetWorkspaceSize",
    "aclnnBatchMatMul",
    "aclnnBatchMatMulGetWorkspaceSize",
    "aclnnConvolution",
    "aclnnConvolutionBackward",
    "aclnnConvolutionBackwardGetWorkspaceSize",
    "aclnnConvolutionGetWorkspaceSize",
    "aclnnIm2col",
    "aclnnIm2colBackward",
    "aclnnIm2colBackwardGetWorkspaceSize",
    "aclnnIm2colGetWorkspaceSize",
    "aclnnMatmul",
    "aclnnMatmulGetWorkspaceSize",
    "aclnnMm",
    "aclnnMmGetWorkspaceSize",
    "aclrtContext",
    "aclrtCreateContext",
    "aclrtCreateStream",
    "aclrtDestroyContext",
    "aclrtDestroyStream",
    "aclrtFree",
    "aclrtFreeHost",
    "aclrtGetCurrentContext",
    "aclrtGetDeviceCount",
    "aclrtMalloc",
    "aclrtMallocHost",
    "aclrtMemMallocPolicy",
    "aclrtMemcpy",
    "aclrtMemcpyAsync",
    "aclrtMemcpyKind",
    "aclrtMemset",
    "aclrtResetDevice",
    "aclrtSetCurrentContext",
    "aclrtSetDevice",
    "aclrtStream",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeStream",
]


def aclnnConvolutionBackwardGetWorkspaceSize(
    gradOutput: aclTensor | None,
    input: aclTensor | None,
    weight: aclTensor | None,
    biasSizes: IntList,
    stride: IntList,
    padding: IntList,
    dilation: IntList,
    transposed: bool,
    outputPadding: IntList,
    groups: int,
    outputMask: BoolList,
    cubeMathType: int,
    gradInput: aclTensor | None,
    gradWeight: aclTensor | None,
    gradBias: aclTensor | None,
) -> Planned:
    """Check and plan a convolution's gradients: (status, workspace size in bytes, executor).

    Tensors are NCL, NCHW or NCDHW; ``outputMask`` says which of the three gradients to compute,
    and the tensors of the others may be None. ``biasSizes`` is read for empty inputs only.
    """
    return phase_one(operators.ConvolutionBackwardCall, "aclnnConvolutionBackward", locals())


def aclnnConvolutionBackward(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Compute the gradients and write them in place; the status."""
    return phase_two("aclnnConvolutionBackward", workspace, workspaceSize, executor, stream)


def aclnnConvolutionGetWorkspaceSize(
    input: aclTensor | None,
    weight: aclTensor | None,
    bias: aclTensor | None,
    stride: IntList,
    padding: IntList,
    dilation: IntList,
    transposed: bool,
    outputPadding: IntList,
    groups: int,
    output: aclTensor | None,
    cubeMathType: int,
) -> Planned:
    """Check and plan a convolution: (status, workspace size in bytes, executor).

    Tensors are NCL, NCHW or NCDHW; ``bias`` may be None. No page of its limits is at hand: what the
    arguments and the kernels allow is taken, as a note of the result says.
    """
    return phase_one(operators.ConvolutionCall, "aclnnConvolution", locals())


def aclnnConvolution(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Compute the convolution and write it in place; the status."""
    return phase_two("aclnnConvolution", workspace, workspaceSize, executor, stream)


def aclnnIm2colGetWorkspaceSize(
    self: aclTensor | None,
    kernelSize: IntList,
    dilation: IntList,
    padding: IntList,
    stride: IntList,
    out: aclTensor | None,
) -> Planned:
    """Check and plan the patches of an image: (status, workspace size in bytes, executor).

    ``self`` is (N, C, H, W) or (C, H, W), ``out`` (N, C * KH * KW, L) or (C * KH * KW, L) of the
    same type. The limits are assumed to be those of aclnnIm2colBackward.
    """
    return phase_one(operators.Im2colCall, "aclnnIm2col", locals())


def aclnnIm2col(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Write the patches to ``out``, in place; the status."""
    return phase_two("aclnnIm2col", workspace, workspaceSize, executor, stream)


def aclnnIm2colBackwardGetWorkspaceSize(
    gradOutput: aclTensor | None,
    inputSize: IntList,
    kernelSize: IntList,
    dilation: IntList,
    padding: IntList,
    stride: IntList,
    out: aclTensor | None,
) -> Planned:
    """Check and plan the sum of patches: (status, workspace size in bytes, executor).

    ``gradOutput`` is (N, C * KH * KW, L) or (C * KH * KW, L), ``out`` (N, C, H, W) or (C, H, W);
    where ``out`` has another type, the result is cast to it.
    """
    return phase_one(operators.Im2colBackwardCall, "aclnnIm2colBackward", locals())


def aclnnIm2colBackward(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Sum the patches into the image of ``out``, in place; the status."""
    return phase_two("aclnnIm2colBackward", workspace, workspaceSize, executor, stream)


def aclnnMmGetWorkspaceSize(
    self: aclTensor | None,
    mat2: aclTensor | None,
    out: aclTensor | None,
    cubeMathType: int,
) -> Planned:
    """Check and plan ``out`` = ``self`` @ ``mat2``: (status, workspace size in bytes, executor).

    ``self`` is (M, K), ``mat2`` (K, N), ``out`` (M, N).
    """
    return phase_one(operators.ProductCall, "aclnnMm", locals())


def aclnnMm(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Compute the product and write it in place; the status."""
    return phase_two("aclnnMm", workspace, workspaceSize, executor, stream)


def aclnnMatmulGetWorkspaceSize(
    self: aclTensor | None,
    mat2: aclTensor | None,
    out: aclTensor | None,
    cubeMathType: int,
) -> Planned:
    """Check and plan ``out`` = ``self`` @ ``mat2``: (status, workspace size in bytes, executor).

    ``self`` is (M, K) or (batch, M, K), ``mat2`` (K, N) or (batch, K, N). Vectors, and batches that
    are not alike, are not modelled.
    """
    return phase_one(operators.ProductCall, "aclnnMatmul", locals())


def aclnnMatmul(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Compute the product and write it in place; the status."""
    return phase_two("aclnnMatmul", workspace, workspaceSize, executor, stream)


def aclnnBatchMatMulGetWorkspaceSize(
    self: aclTensor | None,
    mat2: aclTensor | None,
    out: aclTensor | None,
    cubeMathType: int,
) -> Planned:
    """Check and plan ``out`` = ``self`` @ ``mat2``: (status, workspace size in bytes, executor).

    ``self`` is (batch, M, K), ``mat2`` (batch, K, N), ``out`` (batch, M, N).
    """
    return phase_one(operators.ProductCall, "aclnnBatchMatMul", locals())


def aclnnBatchMatMul(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Compute the products and write them in place; the status."""
    return phase_two("aclnnBatchMatMul", workspace, workspaceSize, executor, stream)


def aclnnAddmmGetWorkspaceSize(
    self: aclTensor | None,
    mat1: aclTensor | None,
    mat2: aclTensor | None,
    beta: aclScalar | None,
    alpha: aclScalar | None,
    out: aclTensor | None,
    cubeMathType: int,
) -> Planned:
    """Check and plan ``out`` = ``self`` + ``mat1`` @ ``mat2``: (status, workspace size, executor).

    ``self`` is a row (N,), ``mat1`` (M, K), ``mat2`` (K, N); ``beta`` and ``alpha`` are 1. A matrix
    that is added, and other factors, are not modelled.
    """
    return phase_one(operators.ProductSumCall, "aclnnAddmm", locals())


def aclnnAddmm(
    workspace: Workspace,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Compute the product and the sum, and write it in place; the status."""
    return phase_two("aclnnAddmm", workspace, workspaceSize, executor, stream)
