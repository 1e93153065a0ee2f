"""Gradients of ordinary and transposed convolutions, NHWC, on a DSP cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Spec
from npusim.device.spec import Device
from npusim.kernels.conv_grad_filter import ConvGradFilter
from npusim.kernels.deconv_grad_filter import DeconvGradFilter
from npusim.kernels.deconv_grad_filter import Tiling as FilterTiling
from npusim.kernels.dsp_grad_input import ConvGradInput, DeconvGradInput
from npusim.kernels.dsp_grad_input import Tiling as InputTiling
from npusim.layout import nchw_to_nhwc, nhwc_to_nchw
from npusim.ops.card import Card, Sample
from npusim.ops.dsp import begin, launch_filter, launch_input
from npusim.ops.dsp_card import Wanted, dsp_card, filter_output, input_output, plain_weight
from npusim.results import Result
from npusim.shapes.reference import conv_filter_grad, conv_forward, conv_input_grad


def deconv_grad_filter(
    dy: Array | Spec,
    x: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Device = "ft78ne",
    **options: Any,
) -> Result:
    """Gradient of a 2-D transposed convolution's filter.

    ``dy`` (batch, out_h, out_w, out_c) and ``x`` (batch, in_h, in_w, in_c) are arrays of one
    type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a timing-only run. ``param`` has the 18
    integers of the C interface (``npusim.limits.facts.PARAM``), and up to two more that are not
    read. There is no padding below or to the right: dy ends at out_h and out_w, and reads beyond
    it are zero.

    The result ``outputs[0]`` is (group, out_c / group * kernel_h * kernel_w, in_c / group) of the
    operands' type, with out_c before kernel_h and kernel_w in the middle axis: the whole gradient,
    nothing is added to what dw held before.

    ``storage`` "shared" puts the operands into main memory and uses the cores of ``core_mask``
    (bit i is core i; None: all), with the same bits whatever the mask; "gsm" is the same with the
    operands in the on-chip memory that the cores of a cluster share; "private" puts them into the
    memory of one core and takes no mask. With an address in ``param[17]`` that is not 0 the rows of
    im2row go through a workspace beside the operands, one chunk for each core, which
    ``Result.workspace_bytes`` counts; with 0 they are built in SM and stay there.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.deconv_grad_filter.Tiling``. Raises ``RuleError`` naming the argument that
    does not fit or that the library refuses, ``ArgumentError`` for the rest.
    """
    made = begin(
        CARDS["deconv_grad_filter"], {"dy": dy, "x": x}, param, core_mask, storage, device, options
    )
    return launch_filter(made, DeconvGradFilter, transposed=True)


def conv_grad_filter(
    dy: Array | Spec,
    x: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Device = "ft78ne",
    **options: Any,
) -> Result:
    """Gradient of a 2-D convolution's filter, channels last.

    ``dy`` (batch, out_h, out_w, out_c) and ``x`` (batch, in_h, in_w, in_c) are arrays of one type,
    fp32 or (MT7004) fp16, or ``npusim.spec``s for a timing-only run. ``param``, ``core_mask`` and
    ``storage`` are those of ``deconv_grad_filter``, the workspace of im2row in ``param[17]`` too.
    The result ``outputs[0]`` is (group, out_c / group * kernel_h * kernel_w, in_c / group); out_h
    and out_w say where dy ends, x reads as zero around it.

    No page of this function of the library was at hand: signature and limits are assumed to be
    those of DeconvGradFilter. Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto"
    or a ``npusim.kernels.conv_grad_filter.Tiling``. Raises ``RuleError`` or ``ArgumentError``
    naming the argument.
    """
    made = begin(
        CARDS["conv_grad_filter"], {"dy": dy, "x": x}, param, core_mask, storage, device, options
    )
    return launch_filter(made, ConvGradFilter, transposed=False)


def deconv_grad_input(
    dy: Array | Spec,
    w: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Device = "ft78ne",
    **options: Any,
) -> Result:
    """Gradient of a 2-D transposed convolution's input.

    ``dy`` (batch, out_h, out_w, out_c) and ``w`` (group, out_c / group * kernel_h * kernel_w,
    in_c / group) are arrays of one type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a
    timing-only run. ``param``, ``core_mask`` and ``storage`` are those of ``deconv_grad_filter``;
    the address of a workspace, ``param[17]``, is not read. The result ``outputs[0]`` is (batch,
    in_h, in_w, in_c); out_h and out_w say where dy ends, reads beyond it are zero.

    No page of this function of the library was at hand: signature and limits are assumed to be
    those of DeconvGradFilter. Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto"
    or a ``npusim.kernels.dsp_grad_input.Tiling``. Raises ``RuleError`` or ``ArgumentError`` naming
    the argument.
    """
    made = begin(
        CARDS["deconv_grad_input"], {"dy": dy, "w": w}, param, core_mask, storage, device, options
    )
    return launch_input(made, DeconvGradInput, transposed=True)


def conv_grad_input(
    dy: Array | Spec,
    w: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Device = "ft78ne",
    **options: Any,
) -> Result:
    """Gradient of a 2-D convolution's input.

    ``dy`` (batch, out_h, out_w, out_c) and ``w`` (group, out_c / group * kernel_h * kernel_w,
    in_c / group) are arrays of one type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a
    timing-only run. ``param``, ``core_mask`` and ``storage`` are those of ``deconv_grad_filter``;
    the address of a workspace, ``param[17]``, is not read. The result ``outputs[0]`` is (batch,
    in_h, in_w, in_c); out_h and out_w say where dy ends, reads beyond it are zero.

    No page of this function of the library was at hand: signature and limits are assumed to be
    those of DeconvGradFilter. Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto"
    or a ``npusim.kernels.dsp_grad_input.Tiling``. Raises ``RuleError`` or ``ArgumentError`` naming
    the argument.
    """
    made = begin(
        CARDS["conv_grad_input"], {"dy": dy, "w": w}, param, core_mask, storage, device, options
    )
    return launch_input(made, ConvGradInput, transposed=False)


# -- cards -------------------------------------------------------------------------------------


def _deconv_filter(sample: Sample[Wanted]) -> Array:
    """Of the plain convolution that reads dy, x is the gradient of the output."""
    c = sample.problem.c
    read, grad = nhwc_to_nchw(sample.arrays["dy"]), nhwc_to_nchw(sample.arrays["x"])
    return conv_filter_grad(read, grad, c.kernel, c.stride, c.reads, c.dilation, c.groups)


def _conv_filter(sample: Sample[Wanted]) -> Array:
    c = sample.problem.c
    x, dy = nhwc_to_nchw(sample.arrays["x"]), nhwc_to_nchw(sample.arrays["dy"])
    pads = c.exchanged().reads
    return conv_filter_grad(x, dy, c.kernel, c.stride, pads, c.dilation, c.groups)


def _deconv_input(sample: Sample[Wanted]) -> Array:
    c, dy = sample.problem.c, nhwc_to_nchw(sample.arrays["dy"])
    w = plain_weight(sample.problem, sample.arrays["w"])
    return nchw_to_nhwc(conv_forward(dy, w, c.stride, c.reads, c.dilation, c.groups))


def _conv_input(sample: Sample[Wanted]) -> Array:
    c, dy = sample.problem.c, nhwc_to_nchw(sample.arrays["dy"])
    w, pads = plain_weight(sample.problem, sample.arrays["w"]), c.exchanged().reads
    dx = conv_input_grad(dy, w, c.x_shape, c.stride, pads, c.dilation, c.groups)
    return nchw_to_nhwc(dx)


_STRIDED = "--size 8x8 --kernel 4 --stride 2 --padding 1"

CARDS: Mapping[str, Card[Any]] = {
    card.name: card
    for card in (
        dsp_card(
            deconv_grad_filter,
            {DeconvGradFilter: FilterTiling},
            filter_output("(Cin, Cout/groups, KH, KW)", _deconv_filter),
            transposed=True,
            layer=_STRIDED,
        ),
        dsp_card(
            conv_grad_filter,
            {ConvGradFilter: FilterTiling},
            filter_output("(Cout, Cin/groups, KH, KW)", _conv_filter),
            transposed=False,
            layer="--size 16x16 --kernel 3 --padding 1",
        ),
        dsp_card(
            deconv_grad_input,
            {DeconvGradInput: InputTiling},
            input_output(_deconv_input),
            transposed=True,
            layer=_STRIDED,
        ),
        dsp_card(
            conv_grad_input,
            {ConvGradInput: InputTiling},
            input_output(_conv_input),
            transposed=False,
            layer=_STRIDED,
        ),
    )
}
