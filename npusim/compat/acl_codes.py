# ruff: noqa: N801 - enumerations carry the names of the C interface
"""Status codes and enumerations of the C interface, with the values of its headers."""

from __future__ import annotations

from enum import IntEnum

ACL_SUCCESS = 0
ACL_ERROR_INVALID_PARAM = 100000
ACL_ERROR_UNINITIALIZE = 100001
ACL_ERROR_REPEAT_INITIALIZE = 100002
ACL_ERROR_REPEAT_FINALIZE = 100037
ACL_ERROR_RT_PARAM_INVALID = 107000
ACL_ERROR_RT_INVALID_DEVICEID = 107001
ACL_ERROR_RT_CONTEXT_NULL = 107002
ACL_ERROR_RT_STREAM_CONTEXT = 107003

ACLNN_SUCCESS = 0
ACLNN_ERR_PARAM_NULLPTR = 161001
ACLNN_ERR_PARAM_INVALID = 161002
ACLNN_ERR_INNER_NULLPTR = 561103


class aclDataType(IntEnum):
    """Element types; the operators here compute with the first two and ``ACL_BF16``."""

    ACL_FLOAT = 0
    ACL_FLOAT16 = 1
    ACL_INT8 = 2
    ACL_INT32 = 3
    ACL_UINT8 = 4
    ACL_INT16 = 6
    ACL_INT64 = 9
    ACL_DOUBLE = 11
    ACL_BOOL = 12
    ACL_BF16 = 27

    @property
    def short_name(self) -> str:
        """The type as npusim and NumPy spell it."""
        floats = {"ACL_FLOAT": "fp32", "ACL_FLOAT16": "fp16", "ACL_DOUBLE": "float64"}
        return floats.get(self.name, self.name.removeprefix("ACL_").lower())


class aclFormat(IntEnum):
    """Meanings of the axes of a tensor."""

    ACL_FORMAT_UNDEFINED = -1
    ACL_FORMAT_NCHW = 0
    ACL_FORMAT_NHWC = 1
    ACL_FORMAT_ND = 2
    ACL_FORMAT_NC1HWC0 = 3
    ACL_FORMAT_FRACTAL_Z = 4
    ACL_FORMAT_NDHWC = 27
    ACL_FORMAT_FRACTAL_NZ = 29
    ACL_FORMAT_NCDHW = 30
    ACL_FORMAT_NDC1HWC0 = 32
    ACL_FRACTAL_Z_3D = 33
    ACL_FORMAT_NCL = 47

    @property
    def short_name(self) -> str:
        """The name without its prefix, such as NCHW."""
        return self.name.removeprefix("ACL_").removeprefix("FORMAT_")


class aclrtMemMallocPolicy(IntEnum):
    """Sizes of pages for ``aclrtMalloc``; pages cost no time in the simulator."""

    ACL_MEM_MALLOC_HUGE_FIRST = 0
    ACL_MEM_MALLOC_HUGE_ONLY = 1
    ACL_MEM_MALLOC_NORMAL_ONLY = 2


class aclrtMemcpyKind(IntEnum):
    """The sides, host or device, between which ``aclrtMemcpy`` copies."""

    ACL_MEMCPY_HOST_TO_HOST = 0
    ACL_MEMCPY_HOST_TO_DEVICE = 1
    ACL_MEMCPY_DEVICE_TO_HOST = 2
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3


# C has the members of its enumerations without a prefix.

ACL_FLOAT = aclDataType.ACL_FLOAT
ACL_FLOAT16 = aclDataType.ACL_FLOAT16
ACL_INT8 = aclDataType.ACL_INT8
ACL_INT32 = aclDataType.ACL_INT32
ACL_UINT8 = aclDataType.ACL_UINT8
ACL_INT16 = aclDataType.ACL_INT16
ACL_INT64 = aclDataType.ACL_INT64
ACL_DOUBLE = aclDataType.ACL_DOUBLE
ACL_BOOL = aclDataType.ACL_BOOL
ACL_BF16 = aclDataType.ACL_BF16

ACL_FORMAT_UNDEFINED = aclFormat.ACL_FORMAT_UNDEFINED
ACL_FORMAT_NCHW = aclFormat.ACL_FORMAT_NCHW
ACL_FORMAT_NHWC = aclFormat.ACL_FORMAT_NHWC
ACL_FORMAT_ND = aclFormat.ACL_FORMAT_ND
ACL_FORMAT_NC1HWC0 = aclFormat.ACL_FORMAT_NC1HWC0
ACL_FORMAT_FRACTAL_Z = aclFormat.ACL_FORMAT_FRACTAL_Z
ACL_FORMAT_NDHWC = aclFormat.ACL_FORMAT_NDHWC
ACL_FORMAT_FRACTAL_NZ = aclFormat.ACL_FORMAT_FRACTAL_NZ
ACL_FORMAT_NCDHW = aclFormat.ACL_FORMAT_NCDHW
ACL_FORMAT_NDC1HWC0 = aclFormat.ACL_FORMAT_NDC1HWC0
ACL_FRACTAL_Z_3D = aclFormat.ACL_FRACTAL_Z_3D
ACL_FORMAT_NCL = aclFormat.ACL_FORMAT_NCL

ACL_MEM_MALLOC_HUGE_FIRST = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST
ACL_MEM_MALLOC_HUGE_ONLY = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_ONLY
ACL_MEM_MALLOC_NORMAL_ONLY = aclrtMemMallocPolicy.ACL_MEM_MALLOC_NORMAL_ONLY

ACL_MEMCPY_HOST_TO_HOST = aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_HOST
ACL_MEMCPY_HOST_TO_DEVICE = aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE
ACL_MEMCPY_DEVICE_TO_HOST = aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST
ACL_MEMCPY_DEVICE_TO_DEVICE = aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_DEVICE
