"""Gradients of a convolution as functions of the vendor's tensor compiler, blocked layouts.

Each takes two fp16 operands, lists of sizes and a ``para_dict``, whose parts ``FORMS`` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npusim.base.dtypes import FP16
from npusim.call.spec import Array, Operand, Spec
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter
from npusim.kernels.conv_backprop_filter import Tiling as FilterTiling
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import Tiling as GemmTiling
from npusim.layout import group_dict
from npusim.ops.arguments import Form, operand
from npusim.ops.card import Card, Case, Input, Option, Output, Sample, Stated
from npusim.ops.gradients import blocked_gradient, fractal_gradient
from npusim.ops.layer import (
    BATCH,
    DEPTHWISE_EXAMPLE,
    DEPTHWISE_SIZES,
    EXAMPLES,
    LAYER,
    SIZES,
    blocked_input_grad,
    blocked_map,
    described,
    fractal_filter,
    fractal_filter_grad,
    itself,
    stated_blocked,
    stated_depthwise,
)
from npusim.results import Result
from npusim.shapes.convolution import Convolution

_FILTER = (("input_x", "out_backprop"), ("filter_sizes",), "padding", "float32")
_INPUT = (("filters", "out_backprop"), ("filter_sizes", "input_sizes"), "padding", "float16")

#: The arguments of each function.
FORMS: Mapping[str, Form] = {
    "conv2d_backprop_filter": Form(*_FILTER, {"groups": 1}),
    "conv2d_backprop_input": Form(*_INPUT, {"group_dict": None}),
    "conv3d_backprop_filter": Form(
        *(("x", "out_backprop"), ("filter_size",), "pads", "float32"),
        optional={"groups": 1, "group_dict": None},
    ),
    "conv3d_backprop_input": Form(
        *(("filter", "out_backprop"), ("filter_size", "input_size"), "pads", "float16"),
        optional={"group_dict": None, "tensor_bias": None},
        required=("group_dict",),
    ),
    "depthwise_conv2d_backprop_filter": Form(*_FILTER),
    "depthwise_conv2d_backprop_input": Form(*_INPUT),
}


def conv2d_backprop_filter(
    input_x: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [Cout, Cin / groups, KH, KW].
    ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW];
    groups (default 1); res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (real_g, cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z with C0 = 16. With several groups to a fractal the chip leaves sums across groups
    in the off-diagonal blocks, which no reader uses; here a kernel of its own clears them.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.conv_backprop_filter.Tiling``. Raises ``RuleError`` naming the argument that
    the documentation refuses or that does not fit the others, ``ArgumentError`` for the rest.
    """
    given = input_x, out_backprop, filter_sizes, para_dict
    return _filter_gradient("conv2d_backprop_filter", given, options)


def depthwise_conv2d_backprop_filter(
    input_x: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a depth-wise 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, C1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [C, 1, KH, KW]: every channel has
    one filter. ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations
    [1, 1, dH, dW]; res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (C1, KH * KW, 16, 16) fp32, byte for byte FRACTAL_Z: what stands
    off the diagonal of a fractal is zero. The cube computes it as the gradient of C groups,
    sixteen to a fractal. No page of this function was at hand: signature and limits are assumed to
    be those of ``conv2d_backprop_filter``. Keywords are those of ``npusim.call.Options``. Raises
    ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    given = input_x, out_backprop, filter_sizes, para_dict
    return _filter_gradient("depthwise_conv2d_backprop_filter", given, options)


def conv3d_backprop_filter(
    x: Array | Spec,
    out_backprop: Array | Spec,
    filter_size: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 3-D convolution's filter.

    ``x`` (N, D, C1, H, W, 16) and ``out_backprop`` (N, Do, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_size`` is [Cout, Cin / groups, KD, KH, KW].
    ``para_dict``: strides [sD, sH, sW]; pads [front, tail, up, down, left, right]; dilations
    [1, 1, 1, dH, dW]; groups (default 1); group_dict (optional; it follows from the sizes and must
    agree); res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (real_g, KD * cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z_3D with C0 = 16, with zeros in blocks between groups. The signature is that of the
    vendor's tensor compiler; its limits are assumed to be those of its sister functions. Keywords
    are those of ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the
    argument.
    """
    given = x, out_backprop, filter_size, para_dict
    return _filter_gradient("conv3d_backprop_filter", given, options)


def conv2d_backprop_input(
    filters: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    input_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 2-D convolution's input.

    ``filters`` is FRACTAL_Z (real_g * cin1_g * KH * KW, cout_g / 16, 16, 16) and ``out_backprop``
    5HD (N, Co1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing only). ``filter_sizes``
    is [Cout, Cin / groups, KH, KW], ``input_sizes`` [N, Cin, H, W]. ``para_dict``: strides
    [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW]; res_dtype "float16" or
    "float32"; kernel_name (not used here); group_dict (its ``groups`` follow from the sizes and
    must agree).

    The result ``outputs[0]`` is (N, C1, H * W, 16), channels padded with zeros. The signature is
    that of the vendor's tensor compiler; its limits are assumed to be those of its sister
    functions. Keywords are those of ``npusim.call.Options``. Raises ``RuleError`` or
    ``ArgumentError`` naming the argument.
    """
    given = filters, out_backprop, filter_sizes, input_sizes, para_dict
    return _input_gradient("conv2d_backprop_input", given, options)


def depthwise_conv2d_backprop_input(
    filters: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    input_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a depth-wise 2-D convolution's input.

    ``filters`` is FRACTAL_Z (C1 * KH * KW, 1, 16, 16), weights on the diagonals of its fractals,
    and ``out_backprop`` 5HD (N, C1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing
    only). ``filter_sizes`` is [C, 1, KH, KW]: every channel has one filter; ``input_sizes`` is
    [N, C, H, W]. ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations
    [1, 1, dH, dW]; res_dtype "float16" or "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (N, C1, H * W, 16), channels padded with zeros. The cube computes
    it as the gradient of C groups, sixteen to a fractal. No page of this function was at hand:
    signature and limits are assumed to be those of ``conv2d_backprop_input``. Keywords are those of
    ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    given = filters, out_backprop, filter_sizes, input_sizes, para_dict
    return _input_gradient("depthwise_conv2d_backprop_input", given, options)


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
    given = filter, out_backprop, filter_size, input_size, para_dict
    bias = para_dict.get("tensor_bias")
    return _input_gradient("conv3d_backprop_input", given, options, bias)


def _filter_gradient(name: str, given: tuple[Any, ...], options: dict[str, Any]) -> Result:
    form, (x, dy, *lists) = FORMS[name], given
    x, dy = operand(x), operand(dy)
    call = CARDS[name].begin(options, **dict(zip(form.operands, (x, dy), strict=True)))
    return fractal_gradient(call, form.facts(x, dy, *lists), layer_reader(form), x, dy)


def _input_gradient(
    name: str, given: tuple[Any, ...], options: dict[str, Any], bias: Any = None
) -> Result:
    form, (w, dy, *lists) = FORMS[name], given
    w, dy = operand(w), operand(dy)
    bias = None if bias is None else operand(bias)
    named = dict(zip(form.operands, (w, dy), strict=True))
    call = CARDS[name].begin(options, **named, tensor_bias=bias)
    checked = form.facts(w, dy, *lists)
    if checked.get("group_dict", ()) is None:  # it follows from the sizes: nobody has to state it
        del checked["group_dict"]
    return blocked_gradient(call, checked, layer_reader(form), dy, w, bias)


def layer_reader(form: Form) -> Callable[[Mapping[str, Any]], Convolution]:
    """What makes a convolution of the facts of a form which the limits have let pass."""

    def read(checked: Mapping[str, Any]) -> Convolution:
        filters, *other = (checked[name] for name in form.lists)
        strides, dilations = checked["strides"], checked["dilations"][2:]
        if not other:
            n, *depth, _, height, width, _ = checked[f"{form.operands[0]}.shape"]
            spatial = (*depth, height, width)
            # A depth-wise filter has one channel for each of the groups.
            cin = filters[1] * checked.get("groups", filters[0])
        elif len(filters) == 5:
            ((n, *spatial, cin),) = other
            strides, dilations = strides[1:4], checked["dilations"][1:4]
        else:
            ((n, cin, *spatial),) = other
        parts = strides, checked[form.pads], dilations
        return described(n, cin, tuple(spatial), filters, parts)

    return read


# -- cards -------------------------------------------------------------------------------------


def _para(form: Form, c: Convolution) -> dict[str, Any]:
    """The ``para_dict`` of a convolution, with the groups where the form has them."""
    groups = {"groups": c.groups, "group_dict": group_dict(c.plan)}
    return form.para(c, **{name: groups[name] for name in form.optional if name in groups})


def _card(
    function: Callable[..., Result], example: str, *, dims: int = 2, depthwise: bool = False
) -> Card[Convolution]:
    """The card of a gradient; ``example`` states the layer that it shows."""
    name = function.__name__
    form, of_filter = FORMS[name], name.endswith("filter")

    def call(c: Convolution, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        para = _para(form, c)
        if of_filter:
            return function(given["x"], given["dy"], c.w_shape, para, **options)
        size = (c.n, c.cin, *c.spatial)
        return function(given["w"], given["dy"], c.w_shape, size, para, **options)

    dy = blocked_map("dy", dims, itself)
    operands = (blocked_map("x", dims, itself), dy), (dy, fractal_filter(dims, itself))
    result = fractal_filter_grad if of_filter else blocked_input_grad
    return Card(
        function=function,
        options=(LAYER, BATCH, *(DEPTHWISE_SIZES if depthwise else SIZES)),
        problem=stated_depthwise if depthwise else stated_blocked(dims),
        inputs=operands[0] if of_filter else operands[1],
        outputs=lambda _: (result(dims, itself),),
        call=call,
        dtypes=(FP16,),
        tilings={ConvBackpropFilter: FilterTiling} if of_filter else _INPUT_TILINGS,
        without=() if of_filter else ("deterministic",),
        cases=(Case(needs="fp16", calls=(DEPTHWISE_EXAMPLE if depthwise else EXAMPLES[dims],)),),
        example=f"npusim run {name} --device ascend910 {example}",
    )


_INPUT_TILINGS: Mapping[Any, type[Any]] = {ConvBackpropInput: GemmTiling}


class _Wanted(NamedTuple):
    """A call in three dimensions: the convolution, and whether a bias is added."""

    c: Convolution
    bias: bool


def _stated(stated: Stated) -> _Wanted:
    """The call of a command line."""
    return _Wanted(stated_blocked(3)(stated), bool(stated["bias"] or "bias" in stated.arrays))


def _layer(p: _Wanted) -> Convolution:
    return p.c


def _call(p: _Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    c = p.c
    para = _para(FORMS["conv3d_backprop_input"], c) | {"tensor_bias": given.get("bias")}
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


_WITH_BIAS: Card[_Wanted] = Card(
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
    tilings=_INPUT_TILINGS,
    without=("deterministic",),
    cases=(Case(needs="fp16", calls=(EXAMPLES[3],)),),
    example="""npusim run conv3d_backprop_input --device ascend910 --cin 32 --cout 16 \\
      --size 4x14x14 --kernel 3 --padding 1 --bias --check""",
)

_LINES = " \\\n      "
_RESNET = "--layer resnet50/res4_3x3"
_MOBILENET = f"{_LINES}--layer mobilenet_v1/dw5 --batch 2 --check"

CARDS: Mapping[str, Card[Any]] = {
    card.name: card
    for card in (
        _card(conv2d_backprop_filter, f"{_RESNET}{_LINES}--batch 2 --check --trace trace.json"),
        _card(conv2d_backprop_input, f"{_RESNET}{_LINES}--batch 2 --check"),
        _card(
            conv3d_backprop_filter,
            f"--cin 32 --cout 16{_LINES}--size 4x14x14 --kernel 3 --padding 1 --check",
            dims=3,
        ),
        _WITH_BIAS,
        _card(depthwise_conv2d_backprop_filter, _MOBILENET.lstrip(" "), depthwise=True),
        _card(depthwise_conv2d_backprop_input, _MOBILENET.lstrip(" "), depthwise=True),
    )
}
