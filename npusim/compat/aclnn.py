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
    gradOutput, input, weight = (aclCreateTensor(a) for a in (dy, x, w))
    status, size, executor = aclnnConvolutionBackwardGetWorkspaceSize(gradOutput, ...)
    status = aclnnConvolutionBackward(aclrtMalloc(size), size, executor, stream)

Phase one makes every check of the documentation, in its order, and plans the kernels for the
device of this thread; it simulates nothing. A status other than ``ACLNN_SUCCESS`` comes with
``(status, 0, None)``, its text from ``aclGetRecentErrMsg()``. Phase two runs and writes into the
output tensors, and has finished when it returns; then ``executor.result`` is the
``npusim.Result``. An executor runs once unless it was made repeatable. A tensor without data (of a
shape, or with null as ``tensorData``) makes the run timing-only.
"""

from __future__ import annotations

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
from npusim.compat.acl_memory import (
    DeviceMemory,
    aclrtFree,
    aclrtFreeHost,
    aclrtMalloc,
    aclrtMallocHost,
    aclrtMemcpy,
    aclrtMemcpyAsync,
    aclrtMemset,
)
from npusim.compat.acl_operators import (
    aclnnConvolution,
    aclnnConvolutionBackward,
    aclnnConvolutionBackwardGetWorkspaceSize,
    aclnnConvolutionGetWorkspaceSize,
    aclnnConvTbcBackward,
    aclnnConvTbcBackwardGetWorkspaceSize,
    aclnnIm2col,
    aclnnIm2colBackward,
    aclnnIm2colBackwardGetWorkspaceSize,
    aclnnIm2colGetWorkspaceSize,
)
from npusim.compat.acl_phases import (
    Executor,
    aclDestroyAclOpExecutor,
    aclSetAclOpExecutorRepeatable,
)
from npusim.compat.acl_products import (
    aclnnAddmm,
    aclnnAddmmGetWorkspaceSize,
    aclnnBatchMatMul,
    aclnnBatchMatMulGetWorkspaceSize,
    aclnnMatmul,
    aclnnMatmulGetWorkspaceSize,
    aclnnMm,
    aclnnMmGetWorkspaceSize,
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
    aclScalar,
    aclTensor,
)

__all__ = [
    "ACLNN_ERR_INNER_NULLPTR", "ACLNN_ERR_PARAM_INVALID", "ACLNN_ERR_PARAM_NULLPTR",
    "ACLNN_SUCCESS", "ACL_BF16", "ACL_BOOL", "ACL_DOUBLE", "ACL_ERROR_INVALID_PARAM",
    "ACL_ERROR_REPEAT_FINALIZE", "ACL_ERROR_REPEAT_INITIALIZE", "ACL_ERROR_RT_CONTEXT_NULL",
    "ACL_ERROR_RT_INVALID_DEVICEID", "ACL_ERROR_RT_PARAM_INVALID", "ACL_ERROR_RT_STREAM_CONTEXT",
    "ACL_ERROR_UNINITIALIZE", "ACL_FLOAT", "ACL_FLOAT16", "ACL_FORMAT_FRACTAL_NZ",
    "ACL_FORMAT_FRACTAL_Z", "ACL_FORMAT_NC1HWC0", "ACL_FORMAT_NCDHW", "ACL_FORMAT_NCHW",
    "ACL_FORMAT_NCL", "ACL_FORMAT_ND", "ACL_FORMAT_NDC1HWC0", "ACL_FORMAT_NDHWC",
    "ACL_FORMAT_NHWC", "ACL_FORMAT_UNDEFINED", "ACL_FRACTAL_Z_3D", "ACL_INT8", "ACL_INT16",
    "ACL_INT32", "ACL_INT64", "ACL_MEMCPY_DEVICE_TO_DEVICE", "ACL_MEMCPY_DEVICE_TO_HOST",
    "ACL_MEMCPY_HOST_TO_DEVICE", "ACL_MEMCPY_HOST_TO_HOST", "ACL_MEM_MALLOC_HUGE_FIRST",
    "ACL_MEM_MALLOC_HUGE_ONLY", "ACL_MEM_MALLOC_NORMAL_ONLY", "ACL_SUCCESS", "ACL_UINT8",
    "DeviceMemory", "Executor", "aclBoolArray", "aclCreateBoolArray", "aclCreateIntArray",
    "aclCreateScalar", "aclCreateTensor", "aclDataType", "aclDestroyAclOpExecutor",
    "aclDestroyBoolArray", "aclDestroyIntArray", "aclDestroyScalar", "aclDestroyTensor",
    "aclFinalize", "aclFormat", "aclGetRecentErrMsg", "aclInit", "aclIntArray", "aclScalar",
    "aclSetAclOpExecutorRepeatable", "aclTensor", "aclnnAddmm", "aclnnAddmmGetWorkspaceSize",
    "aclnnBatchMatMul", "aclnnBatchMatMulGetWorkspaceSize", "aclnnConvTbcBackward",
    "aclnnConvTbcBackwardGetWorkspaceSize", "aclnnConvolution", "aclnnConvolutionBackward",
    "aclnnConvolutionBackwardGetWorkspaceSize", "aclnnConvolutionGetWorkspaceSize", "aclnnIm2col",
    "aclnnIm2colBackward", "aclnnIm2colBackwardGetWorkspaceSize", "aclnnIm2colGetWorkspaceSize",
    "aclnnMatmul", "aclnnMatmulGetWorkspaceSize", "aclnnMm", "aclnnMmGetWorkspaceSize",
    "aclrtContext", "aclrtCreateContext", "aclrtCreateStream", "aclrtDestroyContext",
    "aclrtDestroyStream", "aclrtFree", "aclrtFreeHost", "aclrtGetCurrentContext",
    "aclrtGetDeviceCount", "aclrtMalloc", "aclrtMallocHost", "aclrtMemMallocPolicy", "aclrtMemcpy",
    "aclrtMemcpyAsync", "aclrtMemcpyKind", "aclrtMemset", "aclrtResetDevice",
    "aclrtSetCurrentContext", "aclrtSetDevice", "aclrtStream", "aclrtSynchronizeDevice",
    "aclrtSynchronizeStream",
]  # fmt: skip
