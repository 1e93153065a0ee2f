"""conv_grad_filter: filter gradient of an ordinary convolution, NHWC, on a DSP cluster."""

from __future__ import annotations

from typing import Any

from npusim.call.spec import Array, Spec
from npusim.device.spec import Device
from npusim.kernels.conv_grad_filter import ConvGradFilter, Tiling
from npusim.layout import nhwc_to_nchw
from npusim.ops.card import Card, Sample
from npusim.ops.dsp import begin, launch_filter
from npusim.ops.dsp_card import Wanted, dsp_card, filter_output
from npusim.reference import conv_filter_grad
from npusim.results import Result


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
    operands = {"dy": dy, "x": x}
    made = begin(CARD, operands, param, core_mask, storage, device, options)
    return launch_filter(made, ConvGradFilter, transposed=False)


def _expected(sample: Sample[Wanted]) -> Array:
    c = sample.problem.c
    x, dy = nhwc_to_nchw(sample.arrays["x"]), nhwc_to_nchw(sample.arrays["dy"])
    pads = c.exchanged().reads
    return conv_filter_grad(x, dy, c.kernel, c.stride, pads, c.dilation, c.groups)


CARD: Card[Wanted] = dsp_card(
    conv_grad_filter,
    {ConvGradFilter: Tiling},
    filter_output("(Cout, Cin/groups, KH, KW)", _expected),
    transposed=False,
    layer="--size 16x16 --kernel 3 --padding 1",
)
