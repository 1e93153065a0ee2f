"""conv_grad_input: input gradient of an ordinary convolution, NHWC, on a DSP cluster."""

from __future__ import annotations

from typing import Any

from npusim.call.spec import Array, Spec
from npusim.device.spec import Device
from npusim.kernels.dsp_grad_input import ConvGradInput, Tiling
from npusim.layout import nchw_to_nhwc, nhwc_to_nchw
from npusim.ops.card import Card, Sample
from npusim.ops.dsp import begin, launch_input
from npusim.ops.dsp_card import Wanted, dsp_card, input_output, plain_weight
from npusim.reference import conv_input_grad
from npusim.results import Result


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
    operands = {"dy": dy, "w": w}
    made = begin(CARD, operands, param, core_mask, storage, device, options)
    return launch_input(made, ConvGradInput, transposed=False)


def _expected(sample: Sample[Wanted]) -> Array:
    c, dy = sample.problem.c, nhwc_to_nchw(sample.arrays["dy"])
    w, pads = plain_weight(sample.problem, sample.arrays["w"]), c.exchanged().reads
    dx = conv_input_grad(dy, w, c.x_shape, c.stride, pads, c.dilation, c.groups)
    return nchw_to_nhwc(dx)


CARD: Card[Wanted] = dsp_card(
    conv_grad_input,
    {ConvGradInput: Tiling},
    input_output(_expected),
    transposed=False,
    layer="--size 8x8 --kernel 4 --stride 2 --padding 1",
)
