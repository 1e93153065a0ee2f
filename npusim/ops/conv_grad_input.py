"""conv_grad_input: input gradient of an ordinary convolution, NHWC, on a DSP cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from npusim.call.spec import Array, Operand, Spec
from npusim.call.tiling import own_tiling
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32
from npusim.kernels.dsp_grad_input import ConvGradInput
from npusim.kernels.tilings.dsp_grad_input import Tiling, auto_tiling
from npusim.layout import nchw_to_nhwc, nhwc_to_nchw
from npusim.ops.arguments import operand
from npusim.ops.card import Card, Output, Sample
from npusim.ops.dsp import (
    CASES,
    WEIGHT,
    Wanted,
    begin,
    described_layer,
    dsp_limit,
    dsp_options,
    dsp_problem,
    map_nhwc,
    note_accumulation,
    place_operands,
    plain_weight,
    stated_dsp,
)
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
    operands = {"dy": operand(dy), "w": operand(w)}
    call, checked, kind = made = begin(CARD, operands, param, core_mask, storage, device, options)
    c = described_layer(checked["param"], transposed=False)
    dy_gm, w_gm = (call.input(name, value, kind) for name, value in operands.items())
    dx_gm = call.output("dx", (c.n, *c.spatial, c.cin), kind)
    place_operands(call, storage)
    first = Tiling(rows=1, width=1, columns=1, taps=1, channels=1)
    kernel = ConvGradInput(c, first, dy_gm, w_gm, dx_gm)
    tiling = own_tiling(call.options.tiling, kernel.name, Tiling)
    if tiling is None:
        tiling = auto_tiling(kernel.extents, kind, call.device, made.cores)
    call.launch(replace(kernel, tiling=tiling))
    note_accumulation(call, kind, "dx")
    outputs = {"grad_input": call.arrays.get("dx")}
    return call.result(outputs, dsp_problem("dx", c, kind, storage), kind)


def _call(p: Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    cores = options.pop("cores", None)
    return conv_grad_input(given["dy"], given["w"], p.param, cores, p.storage, **options)


def _expected(sample: Sample[Wanted]) -> Array:
    c, dy = sample.problem.c, nhwc_to_nchw(sample.arrays["dy"])
    w, pads = plain_weight(sample.problem, sample.arrays["w"]), c.exchanged().reads
    dx = conv_input_grad(dy, w, c.x_shape, c.stride, pads, c.dilation, c.groups)
    return nchw_to_nhwc(dx)


CARD: Card[Wanted] = Card(
    function=conv_grad_input,
    options=dsp_options(transposed=False),
    problem=stated_dsp(transposed=False),
    inputs=(map_nhwc("dy"), WEIGHT),
    outputs=lambda _: (
        Output(name="grad_input", axes="NHWC", expected=_expected, limit=dsp_limit),
    ),
    call=_call,
    dtypes=(FP32, FP16),
    tilings={ConvGradInput: Tiling},
    role="dsp",
    device="ft78ne",
    without=("deterministic",),
    cases=CASES,
    example="""npusim run conv_grad_input --cin 16 --cout 32 --size 8x8 --kernel 4 --stride 2 \\
      --padding 1 --cores 0-3 --check""",
)
