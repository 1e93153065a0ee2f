# ruff: noqa: N816 - variables carry the names of the C program
import sys
from typing import Any

import numpy as np

from npusim.compat.aclnn import (
    ACL_FLOAT16,
    ACL_FORMAT_NCHW,
    ACL_FORMAT_ND,
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
    ACL_SUCCESS,
    DeviceMemory,
    aclCreateBoolArray,
    aclCreateIntArray,
    aclCreateTensor,
    aclDestroyBoolArray,
    aclDestroyIntArray,
    aclDestroyTensor,
    aclFinalize,
    aclFormat,
    aclGetRecentErrMsg,
    aclInit,
    aclnnConvolutionBackward,
    aclnnConvolutionBackwardGetWorkspaceSize,
    aclrtCreateStream,
    aclrtDestroyStream,
    aclrtFree,
    aclrtMalloc,
    aclrtMemcpy,
    aclrtResetDevice,
    aclrtSetDevice,
    aclrtSynchronizeStream,
    aclTensor,
)


def check(call: str, ret: int) -> None:
    if ret != ACL_SUCCESS:
        sys.exit(f"{call} failed: {ret}, {aclGetRecentErrMsg()}")


def create_tensor(host_data: Any, format: aclFormat) -> tuple[aclTensor, DeviceMemory | None]:
    """Device memory with a copy of the data, and a contiguous tensor over it."""
    shape = list(host_data.shape)
    size = host_data.nbytes
    ret, device_addr = aclrtMalloc(size, ACL_MEM_MALLOC_HUGE_FIRST)
    check("aclrtMalloc", ret)
    ret = aclrtMemcpy(device_addr, size, host_data, size, ACL_MEMCPY_HOST_TO_DEVICE)
    check("aclrtMemcpy", ret)
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = shape[i + 1] * strides[i + 1]
    tensor = aclCreateTensor(
        shape, len(shape), ACL_FLOAT16, strides, 0, format, shape, len(shape), device_addr
    )
    return tensor, device_addr


# 1. Device and stream
device_id = 0
check("aclInit", aclInit(None))
check("aclrtSetDevice", aclrtSetDevice(device_id))
ret, stream = aclrtCreateStream()
check("aclrtCreateStream", ret)

# 2. Inputs and outputs: 4 -> 8 channels, 3x3, padding 1, 2 images of 6x6
dy = np.random.default_rng(1).integers(-2, 3, (2, 8, 6, 6)).astype(np.float16)
x = np.random.default_rng(2).integers(-2, 3, (2, 4, 6, 6)).astype(np.float16)
w = np.random.default_rng(3).integers(-2, 3, (8, 4, 3, 3)).astype(np.float16)
dx, dw, db = np.zeros_like(x), np.zeros_like(w), np.zeros(8, np.float16)

gradOutput, gradOutputAddr = create_tensor(dy, ACL_FORMAT_NCHW)
input, inputAddr = create_tensor(x, ACL_FORMAT_NCHW)
weight, weightAddr = create_tensor(w, ACL_FORMAT_NCHW)
gradInput, gradInputAddr = create_tensor(dx, ACL_FORMAT_NCHW)
gradWeight, gradWeightAddr = create_tensor(dw, ACL_FORMAT_NCHW)
gradBias, gradBiasAddr = create_tensor(db, ACL_FORMAT_ND)

biasSizes = aclCreateIntArray([8], 1)
stride = aclCreateIntArray([1, 1], 2)
padding = aclCreateIntArray([1, 1], 2)
dilation = aclCreateIntArray([1, 1], 2)
outputPadding = aclCreateIntArray([0, 0], 2)
outputMask = aclCreateBoolArray([True, True, True], 3)
transposed, groups, cubeMathType = False, 1, 1

# 3. Phase one, the workspace, phase two
ret, workspaceSize, executor = aclnnConvolutionBackwardGetWorkspaceSize(
    gradOutput, input, weight, biasSizes, stride, padding, dilation, transposed, outputPadding,
    groups, outputMask, cubeMathType, gradInput, gradWeight, gradBias,
)  # fmt: skip
check("aclnnConvolutionBackwardGetWorkspaceSize", ret)
workspaceAddr = None
if workspaceSize > 0:
    ret, workspaceAddr = aclrtMalloc(workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST)
    check("aclrtMalloc", ret)
ret = aclnnConvolutionBackward(workspaceAddr, workspaceSize, executor, stream)
check("aclnnConvolutionBackward", ret)

# 4. Wait, and fetch the gradients
check("aclrtSynchronizeStream", aclrtSynchronizeStream(stream))
for host, addr in ((dx, gradInputAddr), (dw, gradWeightAddr), (db, gradBiasAddr)):
    size = host.nbytes
    check("aclrtMemcpy", aclrtMemcpy(host, size, addr, size, ACL_MEMCPY_DEVICE_TO_HOST))

# 5. Give everything back
for tensor in (gradOutput, input, weight, gradInput, gradWeight, gradBias):
    check("aclDestroyTensor", aclDestroyTensor(tensor))
for array in (biasSizes, stride, padding, dilation, outputPadding):
    check("aclDestroyIntArray", aclDestroyIntArray(array))
check("aclDestroyBoolArray", aclDestroyBoolArray(outputMask))
addresses = [gradOutputAddr, inputAddr, weightAddr, gradInputAddr, gradWeightAddr, gradBiasAddr]
if workspaceSize > 0:
    addresses.append(workspaceAddr)
for addr in addresses:
    check("aclrtFree", aclrtFree(addr))
check("aclrtDestroyStream", aclrtDestroyStream(stream))
check("aclrtResetDevice", aclrtResetDevice(device_id))
check("aclFinalize", aclFinalize())
