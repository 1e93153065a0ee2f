# ruff: noqa: N816 - variables carry the names of the C program
import sys
from typing import Any

import numpy as np

from npusim.compat.aclnn import (
    ACL_FLOAT,
    ACL_FORMAT_ND,
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
    ACL_SUCCESS,
    DeviceMemory,
    aclCreateIntArray,
    aclCreateTensor,
    aclDestroyIntArray,
    aclDestroyTensor,
    aclFinalize,
    aclGetRecentErrMsg,
    aclInit,
    aclnnIm2colBackward,
    aclnnIm2colBackwardGetWorkspaceSize,
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


def create_tensor(host_data: Any) -> tuple[aclTensor, DeviceMemory | None]:
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
        shape, len(shape), ACL_FLOAT, strides, 0, ACL_FORMAT_ND, shape, len(shape), device_addr
    )
    return tensor, device_addr


# 1. Device and stream
device_id = 0
check("aclInit", aclInit(None))
check("aclrtSetDevice", aclrtSetDevice(device_id))
ret, stream = aclrtCreateStream()
check("aclrtCreateStream", ret)

# 2. Input and output: 2x2 patches of a 3x3 image of one channel
patches = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
image = np.zeros((1, 1, 3, 3), np.float32)

gradOutput, gradOutputAddr = create_tensor(patches)
out, outAddr = create_tensor(image)

inputSize = aclCreateIntArray([3, 3], 2)
kernelSize = aclCreateIntArray([2, 2], 2)
dilation = aclCreateIntArray([1, 1], 2)
padding = aclCreateIntArray([0, 0], 2)
stride = aclCreateIntArray([1, 1], 2)

# 3. Phase one, the workspace, phase two
ret, workspaceSize, executor = aclnnIm2colBackwardGetWorkspaceSize(
    gradOutput, inputSize, kernelSize, dilation, padding, stride, out
)
check("aclnnIm2colBackwardGetWorkspaceSize", ret)
workspaceAddr = None
if workspaceSize > 0:
    ret, workspaceAddr = aclrtMalloc(workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST)
    check("aclrtMalloc", ret)
ret = aclnnIm2colBackward(workspaceAddr, workspaceSize, executor, stream)
check("aclnnIm2colBackward", ret)

# 4. Wait, and fetch the image
check("aclrtSynchronizeStream", aclrtSynchronizeStream(stream))
size = image.nbytes
check("aclrtMemcpy", aclrtMemcpy(image, size, outAddr, size, ACL_MEMCPY_DEVICE_TO_HOST))

# 5. Give everything back
for tensor in (gradOutput, out):
    check("aclDestroyTensor", aclDestroyTensor(tensor))
for array in (inputSize, kernelSize, dilation, padding, stride):
    check("aclDestroyIntArray", aclDestroyIntArray(array))
addresses = [gradOutputAddr, outAddr]
if workspaceSize > 0:
    addresses.append(workspaceAddr)
for addr in addresses:
    check("aclrtFree", aclrtFree(addr))
check("aclrtDestroyStream", aclrtDestroyStream(stream))
check("aclrtResetDevice", aclrtResetDevice(device_id))
check("aclFinalize", aclFinalize())
