# ruff: noqa: N802, N816 - functions carry the names of the C interface
"""The operators of the C interface: what phase one checks and plans, what phase two runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from npusim.base.dtypes import dtype, promote
from npusim.base.errors import ArgumentError
from npusim.call.call import simulate
from npusim.call.spec import Operand
from npusim.compat.acl_phases import (
    Executor,
    Plan,
    by_operator,
    phase_one,
    second_phase,
    tensors,
)
from npusim.compat.acl_types import aclBoolArray, aclIntArray, aclTensor
from npusim.device.catalog import parse_core_mask
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
    numbers = {"transposed": bool(transposed), "groups": groups, "cubeMathType": cubeMathType}
    return phase_one(_convolution(inputs, outputs, lists, by_operator(lists | numbers)))


aclnnConvolutionBackward = second_phase(
    "aclnnConvolutionBackward", "Compute the gradients and write them in place"
)


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
    numbers = {"transposed": bool(transposed), "groups": groups, "cubeMathType": cubeMathType}
    arguments = by_operator(lists | numbers)
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


aclnnConvolution = second_phase("aclnnConvolution", "Compute the convolution and write it in place")


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
    numbers = by_operator({"pad": pad, "cubeMathType": cubeMathType})
    read = {"self": self, "input": input, "weight": weight, "bias": bias}
    made = {"gradInput": gradInput, "gradWeight": gradWeight, "gradBias": gradBias}

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        dy_x_w = (feed(self), feed(input), feed(weight))
        return conv_tbc_backward(*dy_x_w, feed(bias), pad, numbers["cube_math_type"], **options)

    plan = Plan(
        function=name,
        operator="conv_tbc_backward",
        arguments={**tensors(name, **read), **tensors(name, **made)},
        facts={
            **tensor_facts(grad_output=self, input=input, weight=weight, bias=bias),
            **tensor_facts(**by_operator(made)),
            **numbers,
        },
        inputs=tuple(read),
        outputs=tuple(made),
        dtypes=_gradient_types(self, input, weight),
        run=run,
        names={"grad_output": "self"},
    )
    return phase_one(plan)


aclnnConvTbcBackward = second_phase(
    "aclnnConvTbcBackward", "Compute the gradients and write them in place"
)


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
    lists = {
        "kernelSize": kernelSize,
        "dilation": dilation,
        "padding": padding,
        "stride": stride,
    }
    read = by_operator(lists)

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        return im2col(feed(self), **read, **options | {"deterministic": False})

    plan = Plan(
        function="aclnnIm2col",
        operator="im2col",
        arguments={**tensors("aclnnIm2col", self=self, out=out), **lists},
        facts=tensor_facts(image=self, out=out) | read,
        inputs=("self",),
        outputs=("out",),
        dtypes=("" if self is None else self.dtype,),
        run=run,
        names={"image.shape": "self.shape", "image.dtype": "self.dtype"},
    )
    return phase_one(plan)


aclnnIm2col = second_phase("aclnnIm2col", "Write the patches to ``out``, in place")


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
    lists = {
        "inputSize": inputSize,
        "kernelSize": kernelSize,
        "dilation": dilation,
        "padding": padding,
        "stride": stride,
    }
    read = by_operator(lists)
    given = tensors("aclnnIm2colBackward", gradOutput=gradOutput, out=out)

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        assert gradOutput is not None  # phase one has checked that
        assert out is not None
        usable = options | {"deterministic": False}  # the thread's, which has no say in this call
        result = im2col_backward(feed(gradOutput), **read, **usable)
        alike = out.dtype == gradOutput.dtype or 0 in gradOutput.shape
        return result if alike else _cast(result, gradOutput, out, options)

    plan = Plan(
        function="aclnnIm2colBackward",
        operator="im2col_backward",
        arguments={**given, **lists},
        facts=tensor_facts(grad_output=gradOutput, out=out) | read,
        inputs=("gradOutput",),
        outputs=("out",),
        dtypes=("" if out is None else out.dtype,),
        run=run,
    )
    return phase_one(plan)


aclnnIm2colBackward = second_phase(
    "aclnnIm2colBackward", "Sum the patches into the image of ``out``, in place"
)


def _convolution(
    inputs: dict[str, aclTensor | None],
    outputs: dict[str, aclTensor | None],
    lists: dict[str, Any],
    arguments: dict[str, Any],
) -> Plan:
    """The plan of aclnnConvolutionBackward; ``arguments`` are the operator's besides tensors."""
    gradOutput, input, weight = inputs.values()
    asked = arguments["output_mask"]
    mask = (*(asked if isinstance(asked, tuple) else ()), False, False, False)[:3]

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        return convolution_backward(
            feed(gradOutput), feed(input), feed(weight), **arguments, **options
        )

    return Plan(
        function="aclnnConvolutionBackward",
        operator="convolution_backward",
        arguments={**inputs, **lists, **outputs},
        facts={
            **tensor_facts(_PARTS, **by_operator(inputs | outputs)),
            **arguments,
        },
        inputs=tuple(inputs),
        outputs=tuple(
            name if on and outputs[name] is not None else None
            for name, on in zip(outputs, mask, strict=True)
        ),
        dtypes=_gradient_types(gradOutput, input, weight),
        run=run,
    )


def _gradient_types(
    dy: aclTensor | None, x: aclTensor | None, w: aclTensor | None
) -> tuple[str, str, str]:
    """What an operator gives the gradients of input, weight and bias."""
    of_dy, of_x, of_w = (None if t is None else t.dtype for t in (dy, x, w))
    return promote((of_x, of_dy), "fp32"), promote((of_w, of_dy), "fp32"), promote((of_dy,), "fp32")


def _cast(result: Result, gradOutput: aclTensor, out: aclTensor, options: dict[str, Any]) -> Result:
    """``result`` followed by the kernel that casts it, which finds it in L2 where that has room."""
    image = Tensor("image", out.shape, dtype(gradOutput.dtype), "in")
    kernel = Cast(
        image, Tensor("out", out.shape, dtype(out.dtype), "out"), saturate=result.device.saturates
    )
    passed = {k: v for k, v in options.items() if k in {"cores", "engine", "timeline", "progress"}}
    arrays = [a for a in result.outputs or () if a is not None]
    warm = "cold" if result.device.l2 is None else "warm"
    groups = parse_core_mask(options.get("cores"), result.device)
    cores = len(groups) * result.device.core_kind("vector").per_group
    few = kernel.on_few(result.device, cores)
    cast = simulate(few, result.device, *arrays, start=warm, **passed)
    return replace(
        result,
        runs=(*result.runs, *cast.runs),
        outputs=cast.outputs,
        workspace_bytes=result.workspace_bytes + image.size_bytes,
    )
