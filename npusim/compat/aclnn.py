# ruff: noqa: N816, PLE0605 - the names of the C interface, gathered here
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

from npusim.compat import acl_codes, acl_phases, acl_runtime, acl_types
from npusim.compat import acl_operators as rows
from npusim.compat.acl_phases import phases

aclnnConvolutionBackwardGetWorkspaceSize, aclnnConvolutionBackward = phases(
    rows.ConvolutionBackward, "aclnnConvolutionBackward"
)
aclnnConvolutionGetWorkspaceSize, aclnnConvolution = phases(rows.Convolution, "aclnnConvolution")
aclnnIm2colGetWorkspaceSize, aclnnIm2col = phases(rows.Im2col, "aclnnIm2col")
aclnnIm2colBackwardGetWorkspaceSize, aclnnIm2colBackward = phases(
    rows.Im2colBackward, "aclnnIm2colBackward"
)
aclnnMmGetWorkspaceSize, aclnnMm = phases(rows.Product, "aclnnMm")
aclnnMatmulGetWorkspaceSize, aclnnMatmul = phases(rows.Product, "aclnnMatmul")
aclnnBatchMatMulGetWorkspaceSize, aclnnBatchMatMul = phases(rows.Product, "aclnnBatchMatMul")
aclnnAddmmGetWorkspaceSize, aclnnAddmm = phases(rows.Addmm, "aclnnAddmm")

#: What the modules beside this one have under names of C, members of enumerations included.
_PARTS = (acl_codes, acl_phases, acl_runtime, acl_types)
_FOUND = {name: value for part in _PARTS for name, value in vars(part).items()}


def _of_c(name: str) -> bool:
    own = name in ("DeviceMemory", "Executor")
    return own or (name.lower().startswith("acl") and not name.startswith("acl_"))


globals().update({n: v for n, v in (_FOUND | acl_codes.MEMBERS).items() if _of_c(n)})
__all__ = sorted(filter(_of_c, globals()))

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What is gathered above."""
