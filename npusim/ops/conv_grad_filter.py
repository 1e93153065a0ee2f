"""conv_grad_filter: filter gradient of an ordinary convolution, NHWC, on a DSP cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Operand, Spec
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32
from npusim.kernels.conv_grad_filter import ConvGradFilter, Tiling
from npusim.layout import nhwc_to_nchw
from npusim.ops.arguments import operand
from npusim.ops.card import Card, Output, Sample
from npusim.ops.dsp import (
    CASES,
    WORKSPACE,
    Wanted,
    begin,
    described_layer,
    dsp_limit,
    dsp_options,
    dsp_problem,
    launch_filter,
    map_nhwc,
    plain_weight,
    stated_dsp,
)
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
    operands = {"dy": operand(dy), "x": operand(x)}
    made = begin(CARD, operands, param, core_mask, storage, device, options)
    c = described_layer(made.checked["param"], transposed=False)
    # The layer that reads dy and makes x is transposed; its filter gradient is this one, turned.
    launch_filter(made, ConvGradFilter, c.exchanged(), operands, ("dy", "x"), storage)
    outputs = {"dw": made.call.arrays.get("dw")}
    return made.call.result(outputs, dsp_problem("dw", c, made.dtype, storage), made.dtype)


def _call(p: Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    cores = options.pop("cores", None)
    return conv_grad_filter(given["dy"], given["x"], p.param, cores, p.storage, **options)


def _expected(sample: Sample[Wanted]) -> Array:
    c = sample.problem.c
    x, dy = nhwc_to_nchw(sample.arrays["x"]), nhwc_to_nchw(sample.arrays["dy"])
    pads = c.exchanged().reads
    return conv_filter_grad(x, dy, c.kernel, c.stride, pads, c.dilation, c.groups)


CARD: Card[Wanted] = Card(
    function=conv_grad_filter,
    options=(*dsp_options(transposed=False), WORKSPACE),
    problem=stated_dsp(transposed=False),
    inputs=(map_nhwc("x"), map_nhwc("dy")),
    outputs=lambda _: (
        Output(
            name="dw",
            layout="(group, Cout/group*KH*KW, Cin/group)",
            axes="(Cout, Cin/groups, KH, KW)",
            unpack=plain_weight,
            expected=_expected,
            limit=dsp_limit,
        ),
    ),
    call=_call,
    dtypes=(FP32, FP16),
    tilings={ConvGradFilter: Tiling},
    role="dsp",
    device="ft78ne",
    without=("deterministic",),
    cases=CASES,
    example="npusim run conv_grad_filter --cin 16 --cout 32 --size 16x16 --kernel 3 --padding 1 "
    "\\\n      --cores 0-3 --check",
)
