# ruff: noqa: N802 - functions carry the names of the C interface
"""The two-phase calls of the neural network library, one to one in Python.

Every C function keeps its name and the order of its arguments. What C writes through pointers
comes back after the status: phase one returns ``(status, workspaceSize, executor)``. A null
pointer is None. A program reads as its C original::

    stream = aclrtCreateStream(device="ascend910b2")
    gradOutput, input, weight = (aclCreateTensor(a) for a in (dy, x, w))
    gradInput = aclCreateTensor(np.zeros_like(x))
    ...
    status, size, executor = aclnnConvolutionBackwardGetWorkspaceSize(
        gradOutput, input, weight, aclCreateIntArray([16]), aclCreateIntArray([1, 1]),
        aclCreateIntArray([1, 1]), aclCreateIntArray([1, 1]), False, aclCreateIntArray([0, 0]), 1,
        aclCreateBoolArray([True, True, True]), 1, gradInput, gradWeight, gradBias)
    status = aclnnConvolutionBackward(aclrtMalloc(size), size, executor, stream)

Phase one makes every check of the documentation, in its order, and plans the kernels for the
device of this thread (that of the last stream created, or of ``aclrtSetDevice``). A status other
than ``ACLNN_SUCCESS`` comes with ``(status, 0, None)``, its text from ``aclGetRecentErrMsg()``.
Phase two runs and writes into the arrays of the output tensors; then ``executor.result`` is the
``npusim.Result``. An executor runs once. A tensor made from a shape makes the run timing-only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from npusim.call.call import simulate
from npusim.call.spec import Operand
from npusim.compat.acl_phases import (
    Executor,
    Plan,
    booleans,
    integers,
    phase_one,
    phase_two,
)
from npusim.compat.acl_types import (
    ACL_BF16,
    ACL_ERROR_RT_CONTEXT_NULL,
    ACL_ERROR_RT_STREAM_CONTEXT,
    ACL_FLOAT,
    ACL_FLOAT16,
    ACL_FORMAT_NCDHW,
    ACL_FORMAT_NCHW,
    ACL_FORMAT_NCL,
    ACL_FORMAT_ND,
    ACL_FORMAT_NDHWC,
    ACL_FORMAT_NHWC,
    ACL_INT8,
    ACL_INT32,
    ACL_SUCCESS,
    ACLNN_ERR_INNER_NULLPTR,
    ACLNN_ERR_PARAM_INVALID,
    ACLNN_ERR_PARAM_NULLPTR,
    ACLNN_SUCCESS,
    DeviceMemory,
    aclBoolArray,
    aclCreateBoolArray,
    aclCreateIntArray,
    aclCreateTensor,
    aclGetRecentErrMsg,
    aclIntArray,
    aclrtCreateStream,
    aclrtMalloc,
    aclrtSetDevice,
    aclrtStream,
    aclTensor,
)
from npusim.dtypes import dtype, promote
from npusim.isa.operands import Tensor
from npusim.kernels.cast import Cast
from npusim.limits.facts import tensor_facts
from npusim.ops.convolution_backward import convolution_backward
from npusim.ops.im2col_backward import im2col_backward
from npusim.results import Result

__all__ = [
    "ACLNN_ERR_INNER_NULLPTR",
    "ACLNN_ERR_PARAM_INVALID",
    "ACLNN_ERR_PARAM_NULLPTR",
    "ACLNN_SUCCESS",
    "ACL_BF16",
    "ACL_ERROR_RT_CONTEXT_NULL",
    "ACL_ERROR_RT_STREAM_CONTEXT",
    "ACL_FLOAT",
    "ACL_FLOAT16",
    "ACL_FORMAT_NCDHW",
    "ACL_FORMAT_NCHW",
    "ACL_FORMAT_NCL",
    "ACL_FORMAT_ND",
    "ACL_FORMAT_NDHWC",
    "ACL_FORMAT_NHWC",
    "ACL_INT8",
    "ACL_INT32",
    "ACL_SUCCESS",
    "DeviceMemory",
    "Executor",
    "aclBoolArray",
    "aclCreateBoolArray",
    "aclCreateIntArray",
    "aclCreateTensor",
    "aclGetRecentErrMsg",
    "aclIntArray",
    "aclTensor",
    "aclnnConvolutionBackward",
    "aclnnConvolutionBackwardGetWorkspaceSize",
    "aclnnIm2colBackward",
    "aclnnIm2colBackwardGetWorkspaceSize",
    "aclrtCreateStream",
    "aclrtMalloc",
    "aclrtSetDevice",
    "aclrtStream",
]

#: What the limits of a convolution ask of its tensors.
_PARTS = ("shape", "dtype", "format")

#: The operand of a tensor; phase one has found that it is not a null pointer.
Feed = Callable[[aclTensor | None], Operand]


def aclnnConvolutionBackwardGetWorkspaceSize(
    gradOutput: aclTensor | None,
    input: aclTensor | None,
    weight: aclTensor | None,
    biasSizes: aclIntArray | None,
    stride: aclIntArray | None,
    padding: aclIntArray | None,
    dilation: aclIntArray | None,
    transposed: bool,
    outputPadding: aclIntArray | None,
    groups: int,
    outputMask: aclBoolArray | None,
    cubeMathType: int,
    gradInput: aclTensor | None,
    gradWeight: aclTensor | None,
    gradBias: aclTensor | None,
) -> tuple[int, int, Executor | None]:
    """Check and plan a convolution's gradients: (status, workspace size in bytes, executor).

    Tensors are NCL, NCHW or NCDHW; ``outputMask`` says which of the three gradients to compute,
    and the tensors of the others may be None. ``biasSizes`` is read for empty inputs only.
    """
    arguments: dict[str, Any] = {
        "bias_sizes": integers(biasSizes),
        "stride": integers(stride),
        "padding": integers(padding),
        "dilation": integers(dilation),
        "transposed": bool(transposed),
        "output_padding": integers(outputPadding),
        "groups": groups,
        "output_mask": booleans(outputMask),
        "cube_math_type": cubeMathType,
    }
    return phase_one(
        _convolution((gradOutput, input, weight), (gradInput, gradWeight, gradBias), arguments)
    )


def aclnnConvolutionBackward(
    workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
) -> int:
    """Compute the gradients and write them in place; the status.

    ``workspace`` is memory of ``aclrtMalloc`` or any buffer of at least the bytes phase one named
    (None where it named 0). A ``stream`` of None is the default stream of the planned device.
    """
    return phase_two("aclnnConvolutionBackward", workspace, workspaceSize, executor, stream)


def aclnnIm2colBackwardGetWorkspaceSize(
    gradOutput: aclTensor | None,
    inputSize: aclIntArray | None,
    kernelSize: aclIntArray | None,
    dilation: aclIntArray | None,
    padding: aclIntArray | None,
    stride: aclIntArray | None,
    out: aclTensor | None,
) -> tuple[int, int, Executor | None]:
    """Check and plan the sum of patches: (status, workspace size in bytes, executor).

    ``gradOutput`` is (N, C * KH * KW, L) or (C * KH * KW, L), ``out`` (N, C, H, W) or (C, H, W);
    where ``out`` has another type, the result is cast to it.
    """
    lists: dict[str, Any] = {
        "input_size": integers(inputSize),
        "kernel_size": integers(kernelSize),
        "dilation": integers(dilation),
        "padding": integers(padding),
        "stride": integers(stride),
    }
    tensors = tensor_facts(grad_output=gradOutput, out=out)

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        assert gradOutput is not None  # phase one has checked that
        assert out is not None
        usable = options | {"deterministic": False}  # the thread's, which has no say in this call
        result = im2col_backward(feed(gradOutput), **lists, **usable)
        alike = out.dtype == gradOutput.dtype or 0 in gradOutput.shape
        return result if alike else _cast(result, gradOutput, out, options)

    plan = Plan(
        function="aclnnIm2colBackward",
        operator="im2col_backward",
        facts=tensors | lists,
        inputs=(gradOutput,),
        outputs=(out,),
        kinds=("" if out is None else out.dtype,),
        run=run,
    )
    return phase_one(plan)


def aclnnIm2colBackward(
    workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
) -> int:
    """Sum the patches into the image of ``out``, in place; the status.

    The arguments are those of ``aclnnConvolutionBackward``.
    """
    return phase_two("aclnnIm2colBackward", workspace, workspaceSize, executor, stream)


def _convolution(
    inputs: tuple[aclTensor | None, ...],
    outputs: tuple[aclTensor | None, ...],
    arguments: dict[str, Any],
) -> Plan:
    """The plan of aclnnConvolutionBackward; ``arguments`` are the operator's besides tensors."""
    gradOutput, input, weight = inputs
    gradInput, gradWeight, gradBias = outputs
    mask = (*(arguments["output_mask"] or ()), False, False, False)[:3]
    dy, x, w = (None if t is None else t.dtype for t in inputs)

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        return convolution_backward(
            feed(gradOutput), feed(input), feed(weight), **arguments, **options
        )

    return Plan(
        function="aclnnConvolutionBackward",
        operator="convolution_backward",
        facts={
            **tensor_facts(_PARTS, grad_output=gradOutput, input=input, weight=weight),
            **tensor_facts(
                _PARTS, grad_input=gradInput, grad_weight=gradWeight, grad_bias=gradBias
            ),
            **arguments,
        },
        inputs=inputs,
        outputs=tuple(t if on else None for t, on in zip(outputs, mask, strict=True)),
        kinds=(promote((x, dy), "fp32"), promote((w, dy), "fp32"), promote((dy,), "fp32")),
        run=run,
    )


def _cast(result: Result, gradOutput: aclTensor, out: aclTensor, options: dict[str, Any]) -> Result:
    """``result`` followed by the kernel that casts it, which finds it in L2 where that has room."""
    image = Tensor("image", out.shape, dtype(gradOutput.dtype), "in")
    kernel = Cast(
        image, Tensor("out", out.shape, dtype(out.dtype), "out"), saturate=result.device.saturates
    )
    passed = {k: v for k, v in options.items() if k in {"cores", "engine", "timeline", "progress"}}
    arrays = [a for a in result.outputs or () if a is not None]
    warm = "cold" if result.device.l2 is None else "warm"
    cast = simulate(kernel, result.device, *arrays, start=warm, **passed)
    return replace(
        result,
        runs=(*result.runs, *cast.runs),
        outputs=cast.outputs,
        workspace_bytes=result.workspace_bytes + image.size_bytes,
    )
