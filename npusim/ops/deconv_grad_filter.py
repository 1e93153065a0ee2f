"""deconv_grad_filter: filter gradient of a transposed convolution, NHWC, on a DSP cluster."""

from __future__ import annotations

from typing import Any

from npusim.call.spec import Array, Spec
from npusim.device.spec import Device
from npusim.kernels.deconv_grad_filter import DeconvGradFilter, Tiling
from npusim.layout import nhwc_to_nchw
from npusim.ops.card import Card, Sample
from npusim.ops.dsp import begin, launch_filter
from npusim.ops.dsp_card import Wanted, dsp_card, filter_output
from npusim.reference import conv_filter_grad
from npusim.results import Result


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
    operands = {"dy": dy, "x": x}
    made = begin(CARD, operands, param, core_mask, storage, device, options)
    return launch_filter(made, DeconvGradFilter, transposed=True)


def _expected(sample: Sample[Wanted]) -> Array:
    """Of the plain convolution that reads dy, x is the gradient of the output."""
    c = sample.problem.c
    read, grad = nhwc_to_nchw(sample.arrays["dy"]), nhwc_to_nchw(sample.arrays["x"])
    return conv_filter_grad(read, grad, c.kernel, c.stride, c.reads, c.dilation, c.groups)


CARD: Card[Wanted] = dsp_card(
    deconv_grad_filter,
    {DeconvGradFilter: Tiling},
    filter_output("(Cin, Cout/groups, KH, KW)", _expected),
    transposed=True,
    layer="--size 8x8 --kernel 4 --stride 2 --padding 1",
)
