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
        own = {"ACL_FLOAT": "fp32", "ACL_FLOAT16": "fp16", "ACL_DOUBLE": "float64"}
        return own.get(self.name, self.name.removeprefix("ACL_").lower())


class aclFormat(IntEnum):
    """What the axes of a tensor mean."""

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
    """Where the two sides of ``aclrtMemcpy`` lie."""

    ACL_MEMCPY_HOST_TO_HOST = 0
    ACL_MEMCPY_HOST_TO_DEVICE = 1
    ACL_MEMCPY_DEVICE_TO_HOST = 2
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3


#: The members of all enumerations, which C has without a prefix.
MEMBERS: dict[str, IntEnum] = {
    **aclDataType.__members__,
    **aclFormat.__members__,
    **aclrtMemMallocPolicy.__members__,
    **aclrtMemcpyKind.__members__,
}
