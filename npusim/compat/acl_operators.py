# ruff: noqa: N802 - functions carry the names of the C interface
"""The operators of the C interface: what phase one checks and plans, what phase two runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from npusim.call.call import simulate
from npusim.call.spec import Operand
from npusim.compat.acl_phases import (
    Executor,
    Plan,
    phase_one,
    phase_two,
    tensors,
    values,
)
from npusim.compat.acl_runtime import aclrtStream
from npusim.compat.acl_types import aclBoolArray, aclIntArray, aclTensor
from npusim.dtypes import dtype, promote
from npusim.errors import ArgumentError
from npusim.isa.operands import Tensor
from npusim.kernels.cast import Cast
from npusim.limits.facts import tensor_facts
from npusim.ops.conv_tbc_backward import conv_tbc_backward
from npusim.ops.convolution import convolution, layer_of
from npusim.ops.convolution_backward import convolution_backward
from npusim.ops.im2col import im2col
from npusim.ops.im2col_backward import im2col_backward
from npusim.results import Result

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
        "bias_sizes": values(biasSizes),
        "stride": values(stride),
        "padding": values(padding),
        "dilation": values(dilation),
        "transposed": bool(transposed),
        "output_padding": values(outputPadding),
        "groups": values(groups),
        "output_mask": values(outputMask),
        "cube_math_type": values(cubeMathType),
    }
    name = "aclnnConvolutionBackward"
    inputs = tensors(name, gradOutput=gradOutput, input=input, weight=weight)
    outputs = tensors(name, gradInput=gradInput, gradWeight=gradWeight, gradBias=gradBias)
    lists = {
        "biasSizes": biasSizes,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "outputPadding": outputPadding,
        "outputMask": outputMask,
    }
    return phase_one(_convolution(inputs, outputs, lists, arguments))


def aclnnConvolutionBackward(
    workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
) -> int:
    """Compute the gradients and write them in place; the status.

    ``workspace`` is memory of ``aclrtMalloc`` or any buffer of at least the bytes phase one named
    (None where it named 0). A ``stream`` of None is the default stream of the planned device.
    """
    return phase_two("aclnnConvolutionBackward", workspace, workspaceSize, executor, stream)


def aclnnConvolutionGetWorkspaceSize(
    input: aclTensor | None,
    weight: aclTensor | None,
    bias: aclTensor | None,
    stride: aclIntArray | None,
    padding: aclIntArray | None,
    dilation: aclIntArray | None,
    transposed: bool,
    outputPadding: aclIntArray | None,
    groups: int,
    output: aclTensor | None,
    cubeMathType: int,
) -> tuple[int, int, Executor | None]:
    """Check and plan a convolution: (status, workspace size in bytes, executor).

    Tensors are NCL, NCHW or NCDHW; ``bias`` may be None. The limits of the library's page are not
    applied: what the arguments and the kernels allow is taken.
    """
    lists = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "outputPadding": outputPadding,
    }
    arguments: dict[str, Any] = {
        "stride": values(stride),
        "padding": values(padding),
        "dilation": values(dilation),
        "transposed": bool(transposed),
        "output_padding": values(outputPadding),
        "groups": values(groups),
        "cube_math_type": values(cubeMathType),
    }
    name = "aclnnConvolution"
    given = tensors(name, input=input, weight=weight, bias=bias, output=output)
    x, w = (None if t is None else t.dtype for t in (input, weight))

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        added = None if bias is None else feed(bias)
        usable = {k: v for k, v in options.items() if k not in ("deterministic", "rules")}
        result = convolution(feed(input), feed(weight), added, **arguments, **usable)
        _check_shape(output, arguments, (input, weight))
        return result

    plan = Plan(
        function=name,
        operator="convolution",
        arguments={**given, **lists},
        facts=None,
        inputs=("input", "weight", *([] if bias is None else ["bias"])),
        outputs=("output",),
        dtypes=(promote((x, w), "fp32"),),
        run=run,
        needed=("input", "weight", "output", "stride", "padding", "dilation"),
    )
    return phase_one(plan)


def aclnnConvolution(
    workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
) -> int:
    """Compute the convolution and write it in place; the status.

    The arguments are those of ``aclnnConvolutionBackward``.
    """
    return phase_two("aclnnConvolution", workspace, workspaceSize, executor, stream)


def _check_shape(
    output: aclTensor | None,
    arguments: dict[str, Any],
    operands: tuple[aclTensor | None, aclTensor | None],
) -> None:
    """Raise unless the caller's output has the shape of the layer's."""
    x, w = operands
    assert output is not None  # phase one has checked that
    assert x is not None
    assert w is not None
    layer = {name: value for name, value in arguments.items() if name != "cube_math_type"}
    made = layer_of({"input": x.shape, "weight": w.shape}, **layer).dy_shape
    if output.shape != made:
        raise ArgumentError(f"output has shape {output.shape}; the call writes {made}")


def aclnnConvTbcBackwardGetWorkspaceSize(
    self: aclTensor | None,
    input: aclTensor | None,
    weight: aclTensor | None,
    bias: aclTensor | None,
    pad: int,
    cubeMathType: int,
    gradInput: aclTensor | None,
    gradWeight: aclTensor | None,
    gradBias: aclTensor | None,
) -> tuple[int, int, Executor | None]:
    """Check and plan the gradients of a time-first convolution: (status, bytes, executor).

    ``self`` is the gradient (T, N, Cout), ``input`` (T, N, Cin), ``weight`` (K, Cin, Cout) and
    ``bias`` (Cout,); the outputs have the shapes of the last three. The limits are assumed to be
    those of aclnnConvolutionBackward.
    """
    name = "aclnnConvTbcBackward"
    numbers = {"pad": values(pad), "cube_math_type": values(cubeMathType)}
    read = {"self": self, "input": input, "weight": weight, "bias": bias}
    made = {"gradInput": gradInput, "gradWeight": gradWeight, "gradBias": gradBias}
    dy, x, w = (None if t is None else t.dtype for t in (self, input, weight))

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        dy_x_w = (feed(self), feed(input), feed(weight))
        return conv_tbc_backward(*dy_x_w, feed(bias), pad, numbers["cube_math_type"], **options)

    plan = Plan(
        function=name,
        operator="conv_tbc_backward",
        arguments={**tensors(name, **read), **tensors(name, **made)},
        facts={
            **tensor_facts(grad_output=self, input=input, weight=weight, bias=bias),
            **tensor_facts(grad_input=gradInput, grad_weight=gradWeight, grad_bias=gradBias),
            **numbers,
        },
        inputs=tuple(read),
        outputs=tuple(made),
        dtypes=(promote((x, dy), "fp32"), promote((w, dy), "fp32"), promote((dy,), "fp32")),
        run=run,
        names={"grad_output": "self"},
    )
    return phase_one(plan)


def aclnnConvTbcBackward(
    workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
) -> int:
    """Compute the gradients and write them in place; the status.

    The arguments are those of ``aclnnConvolutionBackward``.
    """
    return phase_two("aclnnConvTbcBackward", workspace, workspaceSize, executor, stream)


def aclnnIm2colGetWorkspaceSize(
    self: aclTensor | None,
    kernelSize: aclIntArray | None,
    dilation: aclIntArray | None,
    padding: aclIntArray | None,
    stride: aclIntArray | None,
    out: aclTensor | None,
) -> tuple[int, int, Executor | None]:
    """Check and plan the patches of an image: (status, workspace size in bytes, executor).

    ``self`` is (N, C, H, W) or (C, H, W), ``out`` (N, C * KH * KW, L) or (C * KH * KW, L) of the
    same type. The limits are assumed to be those of aclnnIm2colBackward.
    """
    lists: dict[str, Any] = {
        "kernel_size": values(kernelSize),
        "dilation": values(dilation),
        "padding": values(padding),
        "stride": values(stride),
    }

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        return im2col(feed(self), **lists, **options | {"deterministic": False})

    plan = Plan(
        function="aclnnIm2col",
        operator="im2col",
        arguments={
            **tensors("aclnnIm2col", self=self, out=out),
            "kernelSize": kernelSize,
            "dilation": dilation,
            "padding": padding,
            "stride": stride,
        },
        facts=tensor_facts(image=self, out=out) | lists,
        inputs=("self",),
        outputs=("out",),
        dtypes=("" if self is None else self.dtype,),
        run=run,
        names={"image.shape": "self.shape", "image.dtype": "self.dtype"},
    )
    return phase_one(plan)


def aclnnIm2col(
    workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
) -> int:
    """Write the patches to ``out``, in place; the status.

    The arguments are those of ``aclnnConvolutionBackward``.
    """
    return phase_two("aclnnIm2col", workspace, workspaceSize, executor, stream)


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
        "input_size": values(inputSize),
        "kernel_size": values(kernelSize),
        "dilation": values(dilation),
        "padding": values(padding),
        "stride": values(stride),
    }
    given = tensors("aclnnIm2colBackward", gradOutput=gradOutput, out=out)
    facts = tensor_facts(grad_output=gradOutput, out=out) | lists

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
        arguments={
            **given,
            "inputSize": inputSize,
            "kernelSize": kernelSize,
            "dilation": dilation,
            "padding": padding,
            "stride": stride,
        },
        facts=facts,
        inputs=("gradOutput",),
        outputs=("out",),
        dtypes=("" if out is None else out.dtype,),
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
    inputs: dict[str, aclTensor | None],
    outputs: dict[str, aclTensor | None],
    lists: dict[str, Any],
    arguments: dict[str, Any],
) -> Plan:
    """The plan of aclnnConvolutionBackward; ``arguments`` are the operator's besides tensors."""
    gradOutput, input, weight = inputs.values()
    gradInput, gradWeight, gradBias = outputs.values()
    asked = arguments["output_mask"]
    mask = (*(asked if isinstance(asked, tuple) else ()), False, False, False)[:3]
    dy, x, w = (None if t is None else t.dtype for t in inputs.values())

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        return convolution_backward(
            feed(gradOutput), feed(input), feed(weight), **arguments, **options
        )

    return Plan(
        function="aclnnConvolutionBackward",
        operator="convolution_backward",
        arguments={**inputs, **lists, **outputs},
        facts={
            **tensor_facts(_PARTS, grad_output=gradOutput, input=input, weight=weight),
            **tensor_facts(
                _PARTS, grad_input=gradInput, grad_weight=gradWeight, grad_bias=gradBias
            ),
            **arguments,
        },
        inputs=tuple(inputs),
        outputs=tuple(
            name if on and outputs[name] is not None else None
            for name, on in zip(outputs, mask, strict=True)
        ),
        dtypes=(promote((x, dy), "fp32"), promote((w, dy), "fp32"), promote((dy,), "fp32")),
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
