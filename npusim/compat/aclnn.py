# ruff: noqa: F403, N816, PLE0605 - the names of the C interface, gathered here
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

from typing import TYPE_CHECKING, Any

from npusim.compat import acl_operators as rows
from npusim.compat.acl_codes import *
from npusim.compat.acl_codes import MEMBERS
from npusim.compat.acl_phases import *
from npusim.compat.acl_phases import phases
from npusim.compat.acl_runtime import *
from npusim.compat.acl_types import *

aclnnConvolutionBackwardGetWorkspaceSize, aclnnConvolutionBackward = phases(
    rows.ConvolutionBackward, "aclnnConvolutionBackward"
)
aclnnConvolutionGetWorkspaceSize, aclnnConvolution = phases(rows.Convolution, "aclnnConvolution")
aclnnConvTbcBackwardGetWorkspaceSize, aclnnConvTbcBackward = phases(
    rows.ConvTbcBackward, "aclnnConvTbcBackward"
)
aclnnIm2colGetWorkspaceSize, aclnnIm2col = phases(rows.Im2col, "aclnnIm2col")
aclnnIm2colBackwardGetWorkspaceSize, aclnnIm2colBackward = phases(
    rows.Im2colBackward, "aclnnIm2colBackward"
)
aclnnMmGetWorkspaceSize, aclnnMm = phases(rows.Product, "aclnnMm")
aclnnMatmulGetWorkspaceSize, aclnnMatmul = phases(rows.Product, "aclnnMatmul")
aclnnBatchMatMulGetWorkspaceSize, aclnnBatchMatMul = phases(rows.Product, "aclnnBatchMatMul")
aclnnAddmmGetWorkspaceSize, aclnnAddmm = phases(rows.Addmm, "aclnnAddmm")

globals().update(MEMBERS)
__all__ = sorted(
    name
    for name in globals()
    if name.lower().startswith("acl") or name in ("DeviceMemory", "Executor")
)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The members of enumerations, ``ACL_FLOAT16`` and its kin."""
