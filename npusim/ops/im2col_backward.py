"""im2col_backward: patches of sliding windows added back into the image (fold, col2im)."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Spec
from npusim.call.tiling import chosen_tiling
from npusim.dtypes import FP16, FP32, DType, dtype
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Tensor
from npusim.kernels.im2col_backward import FoldShape, Im2colBackward, Tiling, auto_tiling
from npusim.kernels.trans_data import Conversion, TransData
from npusim.limits.table import check
from npusim.ops.arguments import integers
from npusim.results import Result

#: Channels in a block of the conversion, also for fp32 (this conversion knows no other).
C0 = 16


def im2col_backward(
    grad_output: Array | Spec,
    input_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
    **options: Any,
) -> Result:
    """Gradient of im2col: overlapping patches summed into the image they were cut from.

    ``grad_output`` (N, C * KH * KW, L) or (C * KH * KW, L) is fp16 or fp32, an array or an
    ``npusim.spec``; the others are pairs (height, width). L is the product over both axes of
    (input_size + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1.

    The result ``outputs[0]`` is (N, C, H, W) or (C, H, W) of the same type; pixels that no window
    covers are zero. Sums are made tap by tap in the tensor's type, or in fp32 with one rounding,
    as the device's ``im2col_accumulate`` says. Where they are of the tensor's type the kernel
    works on 5HD (16 channels to a block) between two conversions.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.im2col_backward.Tiling``. Raises ``ArgumentError`` naming the argument that
    does not fit.
    """
    array = grad_output if isinstance(grad_output, Spec) else np.asarray(grad_output)
    kind = _kind(tuple(array.shape), dtype(array.dtype))
    shape = _shape(tuple(array.shape), input_size, kernel_size, dilation, padding, stride)
    wanted = Options.of(im2col_backward, options, without=("deterministic",))
    call = Call("im2col_backward", wanted, isinstance(array, Spec))
    facts = {
        "grad_output.shape": tuple(array.shape),
        "grad_output.dtype": kind.name,
        "input_size": shape.image,
        "kernel_size": shape.kernel,
        "dilation": shape.dilation,
        "padding": shape.padding,
        "stride": shape.stride,
    }
    call.notes += check("im2col_backward", facts, call.device, wanted.rules)
    call.device.core_kind("vector")  # a device without one is refused for that, not for a type
    if kind.name not in call.device.dtypes:
        raise ArgumentError(
            f"grad_output is {kind}; {call.device.name} knows {', '.join(call.device.dtypes)}"
        )
    channels = int(array.shape[-2]) // shape.taps
    out = call.output("out", (*array.shape[:-2], channels, *shape.image), kind)
    grad = call.input("grad_output", array, kind)
    if not shape.planes:
        call.notes.append("grad_output is empty: nothing is launched or written")
    elif call.device.im2col_accumulate == "fp32":  # this generation reads the framework layout
        _launch(call, shape, grad, out)
    else:
        _launch_5hd(call, shape, grad, out)
    return call.result({"grad_input": call.arrays.get("out")}, _problem(shape, kind), kind)


def _launch_5hd(call: Call, shape: FoldShape, grad: Tensor, out: Tensor) -> None:
    """The kernel between conversions to 5HD and back: the patches are maps of KH*KW x L."""
    *lead, channels, h, w = out.shape
    n, lh, lw = prod(lead), *shape.windows
    to_5hd = Conversion(kind="to_blocked", c0=C0)
    from_5hd = Conversion(kind="from_blocked", c0=C0)
    plain = replace(grad, shape=(n, channels, shape.taps, lh * lw))
    image = replace(out, shape=(n, channels, h, w))
    patches = call.workspace("grad_5hd", to_5hd.blocked_shape(plain.shape), grad.dtype)
    pixels = call.workspace("out_5hd", from_5hd.blocked_shape(image.shape), grad.dtype)
    blocks = replace(shape, planes=n * ceil_div(channels, C0), block=C0)
    call.launch(TransData(to_5hd, plain, replace(patches, role="out")))
    _launch(call, blocks, replace(patches, role="in"), pixels)
    call.launch(TransData(from_5hd, replace(pixels, role="in"), image))


def _launch(call: Call, shape: FoldShape, grad: Tensor, out: Tensor) -> None:
    """The kernel on tensors of planes, with the precision and range of the device's sums."""
    device, kind = call.device, grad.dtype
    sums = FP32 if device.im2col_accumulate == "fp32" else kind
    cores = len(call.groups) * device.core_kind("vector").per_group
    ub = device.memories["UB"].size_bytes
    tiling = chosen_tiling(
        call.options.tiling, Tiling, lambda: auto_tiling(shape, kind, sums, cores, ub)
    )
    call.launch(Im2colBackward(shape, tiling, grad, out, sums, saturate=device.saturates))


def _kind(shape: tuple[int, ...], kind: DType) -> DType:
    """The element type, after checking it and the rank."""
    if len(shape) not in (2, 3):
        raise ArgumentError(
            f"grad_output has shape {shape}; it must have 2 axes (C*KH*KW, L) or 3 axes "
            "(N, C*KH*KW, L)"
        )
    if kind not in (FP16, FP32):
        raise ArgumentError(f"grad_output is {kind}; im2col_backward takes fp16 or fp32")
    return kind


def _shape(
    grad: tuple[int, ...],
    input_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> FoldShape:
    """The geometry the arguments describe, checked against grad_output."""
    pairs = {
        name: integers(name, value, 2, least, "(height, width)")
        for name, value, least in (
            ("input_size", input_size, 1),
            ("kernel_size", kernel_size, 1),
            ("dilation", dilation, 1),
            ("padding", padding, 0),
            ("stride", stride, 1),
        )
    }
    image, kernel, dilated, padded, strided = ((p[0], p[1]) for p in pairs.values())
    taps = kernel[0] * kernel[1]
    if grad[-2] % taps:
        raise ArgumentError(
            f"grad_output has shape {grad}; axis {len(grad) - 2} must be a multiple of "
            f"KH * KW = {taps} for kernel_size {kernel}"
        )
    shape = FoldShape(
        planes=prod(grad[:-1]) // taps,
        block=1,
        image=image,
        kernel=kernel,
        dilation=dilated,
        padding=padded,
        stride=strided,
    )
    lh, lw = shape.windows
    if min(lh, lw) < 1:
        raise ArgumentError(
            f"kernel_size {kernel} with dilation {dilated} reaches past input_size {image} with "
            f"padding {padded}; dilation * (kernel_size - 1) + 1 must be at most "
            f"{tuple(size + 2 * pad for size, pad in zip(image, padded, strict=True))}"
        )
    if grad[-1] != lh * lw:
        raise ArgumentError(
            f"grad_output has shape {grad}; its last axis must be L = {lh} * {lw} = {lh * lw} for "
            f"input_size {image}, kernel_size {kernel}, dilation {dilated}, padding {padded}, "
            f"stride {strided}"
        )
    return shape


def _problem(s: FoldShape, kind: DType) -> str:
    """One line for reports."""
    (h, w), (kh, kw), (lh, lw) = s.image, s.kernel, s.windows
    dilation = f", dilation {list(s.dilation)}" if s.dilation != (1, 1) else ""
    return (
        f"{s.planes} planes of {h}x{w} from {lh}x{lw} windows of {kh}x{kw}, stride "
        f"{list(s.stride)}, pad {list(s.padding)}{dilation}; {kind}"
    )
