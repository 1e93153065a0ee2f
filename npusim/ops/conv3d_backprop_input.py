"""conv3d_backprop_input: input gradient from a 6HD gradient and a FRACTAL_Z_3D filter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import Tiling
from npusim.layout import group_dict
from npusim.ops.arguments import Form, operand
from npusim.ops.card import Card, Case, Input, Option, Output, Sample, Stated
from npusim.ops.gradients import blocked_gradient
from npusim.ops.layer import (
    BATCH,
    EXAMPLES,
    LAYER,
    SIZES,
    blocked_input_grad,
    blocked_map,
    described,
    fractal_filter,
    stated_blocked,
)
from npusim.results import Result

FORM = Form(
    *(("filter", "out_backprop"), ("filter_size", "input_size"), "pads", "float16"),
    optional={"group_dict": None, "tensor_bias": None},
    required=("group_dict",),
)


def conv3d_backprop_input(
    filter: Array | Spec,
    out_backprop: Array | Spec,
    filter_size: Any,
    input_size: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 3-D convolution's input.

    ``filter`` is FRACTAL_Z_3D (real_g * KD * cin1_g * KH * KW, cout_g / 16, 16, 16) and
    ``out_backprop`` 6HD (N, Do, Co1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing
    only). ``filter_size`` is [Cout, Cin / groups, KD, KH, KW], ``input_size`` [N, D, H, W, Cin].
    ``para_dict``: strides [1, sD, sH, sW, 1]; pads [front, tail, up, down, left, right];
    dilations [1, 1, dH, dW, 1]; res_dtype "float16" or "float32"; kernel_name (not used here);
    group_dict (its ``groups`` follow from filter_size and input_size and must agree); tensor_bias,
    Cin values of res_dtype added after rounding (optional).

    The result ``outputs[0]`` is (N, D, C1, H * W, 16), channels padded with zeros. Unlike
    the vendor's function, ``input_size`` is not written to. Keywords are those of
    ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    w, dy = operand(filter), operand(out_backprop)
    given = para_dict.get("tensor_bias")
    bias = None if given is None else operand(given)
    call = CARD.begin(options, filter=w, out_backprop=dy, tensor_bias=bias)
    checked = FORM.facts(w, dy, filter_size, input_size, para_dict)
    if checked["group_dict"] is None:  # it follows from the sizes: nobody has to state it here
        del checked["group_dict"]
    return blocked_gradient(call, checked, convolution, dy, w, bias)


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that facts describe which the limits have let pass."""
    n, *spatial, cin = checked["input_size"]
    parts = checked["strides"][1:4], checked["pads"], checked["dilations"][1:4]
    return described(n, cin, tuple(spatial), checked["filter_size"], parts)


class _Wanted(NamedTuple):
    """A call: the convolution, and whether a bias is added."""

    c: Convolution
    bias: bool


def _stated(stated: Stated) -> _Wanted:
    """The call of a command line."""
    return _Wanted(stated_blocked(3)(stated), bool(stated["bias"] or "bias" in stated.arrays))


def _layer(p: _Wanted) -> Convolution:
    return p.c


def _call(p: _Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    c = p.c
    para = FORM.para(c, group_dict=group_dict(c.plan), tensor_bias=given.get("bias"))
    para |= {"strides": (1, *c.stride, 1), "dilations": (1, *c.dilation, 1)}
    size = (c.n, *c.spatial, c.cin)
    return conv3d_backprop_input(given["w"], given["dy"], c.w_shape, size, para, **options)


_GRADIENT: Output[_Wanted] = blocked_input_grad(3, _layer)


def _expected(sample: Sample[_Wanted]) -> Array:
    dx = _GRADIENT.expected(sample)
    if not sample.problem.bias:
        return dx
    added: Array = dx + sample.arrays["bias"].astype(np.float64)[:, None, None, None]
    return added


CARD: Card[_Wanted] = Card(
    function=conv3d_backprop_input,
    options=(
        *(LAYER, BATCH, *SIZES),
        Option(
            "bias",
            None,
            "",
            "add a bias per input channel to the result (default: only one given by --input)",
        ),
    ),
    problem=_stated,
    inputs=(
        blocked_map("dy", 3, _layer),
        fractal_filter(3, _layer),
        Input(name="bias", axes="Cin,", shape=lambda p: (p.c.cin,), wanted=lambda p: p.bias),
    ),
    outputs=lambda _: (replace(_GRADIENT, expected=_expected),),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropInput: Tiling},
    without=("deterministic",),
    cases=(Case(needs="fp16", calls=(EXAMPLES[3],)),),
    example="""npusim run conv3d_backprop_input --device ascend910 --cin 32 --cout 16 \\
      --size 4x14x14 --kernel 3 --padding 1 --bias --check""",
)
