"""Gradients of a convolution as functions of the vendor's tensor compiler, blocked layouts.

Each takes two fp16 operands, lists of sizes and a ``para_dict``, and is made of its row in
``npusim.problem.limits.facts.FORMS``; here stands what one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, getdoc
from typing import Any

from npusim.base.dtypes import FP16
from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.call.spec import Operand
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.ops.arguments import declared, frozen, operand
from npusim.ops.blocked import (
    blocked_input_grad,
    blocked_map,
    fractal_filter,
    fractal_filter_grad,
    stated_blocked,
)
from npusim.ops.blocked_gradients import blocked_gradient, fractal_gradient
from npusim.ops.card import Card, Input
from npusim.ops.layer import Wanted
from npusim.problem.layouts import group_dict
from npusim.problem.limits.facts import FORMS, Form, tensor_facts, type_name
from npusim.results import Result

#: Parts of a ``para_dict`` that no limit speaks of.
_UNLIMITED = ("kernel_name", "tensor_bias")


def stated(form: Form, *arguments: Any) -> dict[str, Any]:
    """What the limits are checked against: operands, lists and ``para_dict``, in this order.

    Operands are anything with ``shape`` and ``dtype``. Optional parts that are None are as if
    left out. Raises ``ArgumentError`` where a part is missing or unknown.
    """
    first, second, *lists, para_dict = arguments
    para = _parameters(form, para_dict)
    return {
        **tensor_facts(**dict(zip(form.operands, (first, second), strict=True))),
        **{name: frozen(value) for name, value in zip(form.lists, lists, strict=True)},
        **dict.fromkeys(form.required),
        **{name: value for name, value in para.items() if name not in _UNLIMITED},
        "res_dtype": type_name(para["res_dtype"]),
    }


def _parameters(form: Form, para_dict: Mapping[str, Any]) -> dict[str, Any]:
    """What ``para_dict`` states and its defaults, out of reach of later changes to it."""
    needed = ("strides", form.pads, "dilations")
    usual = {"res_dtype": form.res_dtype, "kernel_name": None, **form.optional}
    missing = [key for key in needed if key not in para_dict]
    if missing:
        raise ArgumentError(f"para_dict lacks {missing}; it needs {', '.join(needed)}")
    for key in para_dict:
        if key not in needed and key not in usual:
            hint = suggest(str(key), [*needed, *usual])
            raise ArgumentError(f"para_dict has the unknown key {key!r}{hint}")
    given = {key: frozen(value) for key, value in para_dict.items()}
    filled = {k: default if given.get(k) is None else given[k] for k, default in usual.items()}
    told = {key: value for key, value in filled.items() if value is not None}
    return {key: given[key] for key in needed} | told


def _run(name: str, arguments: dict[str, Any]) -> Result:
    """A call of the function ``name``, by its arguments."""
    form, options = FORMS[name], arguments.pop("options")
    first, dy, *lists = arguments.values()
    first, dy = operand(first), operand(dy)
    given = lists[-1].get("tensor_bias") if "tensor_bias" in form.optional else None
    bias = None if given is None else operand(given)
    named = dict(zip(form.operands, (first, dy), strict=True))
    call = CARDS[name].begin(options, **named, tensor_bias=bias)
    checked = stated(form, first, dy, *lists)
    if form.of_filter:
        return fractal_gradient(call, checked, first, dy)
    if checked.get("group_dict", ()) is None:  # it follows from the sizes: nobody has to state it
        del checked["group_dict"]
    return blocked_gradient(call, checked, dy, first, bias)


# -- cards -------------------------------------------------------------------------------------


def _card(function: Callable[..., Result]) -> Card[Wanted]:
    """The card of a function."""
    name = function.__name__
    form, depthwise = FORMS[name], name.startswith("depthwise")
    dims, biased = 3 if "3d" in name else 2, "tensor_bias" in form.optional

    def call(p: Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        first = given["x" if form.of_filter else "w"]
        groups, bias = {"groups": p.c.groups, "group_dict": group_dict(p.c.plan)}, given.get("bias")
        more = groups | {"tensor_bias": bias}
        para = form.para(p.c, **{name: more[name] for name in form.optional})
        return function(first, given["dy"], *form.sizes(p.c), para, **options)

    dy = blocked_map("dy", dims)
    bias: Input[Wanted] = Input(
        name="bias", axes="Cin,", shape=lambda p: (p.c.cin,), wanted=lambda p: p.bias
    )
    read = (blocked_map("x", dims), dy) if form.of_filter else (dy, fractal_filter(dims))
    tilings: Mapping[Any, type[Any]] = {ConvBackpropInput: GemmTiling}
    if form.of_filter:
        tilings = {ConvBackpropFilter: FilterTiling}
    output = (fractal_filter_grad if form.of_filter else blocked_input_grad)(dims)
    return Card(
        function=function,
        problem=stated_blocked(dims, depthwise=depthwise),
        inputs=(*read, bias) if biased else read,
        outputs=lambda _: (output,),
        call=call,
        dtypes=(FP16,),
        tilings=tilings,
        without=() if form.of_filter else ("deterministic",),
    )


def _of_row(says: Callable[[], None]) -> Callable[..., Result]:
    """The function of the row that bears this name, with its card."""
    name = says.__name__
    options = Parameter("options", Parameter.VAR_KEYWORD, annotation="Any")
    takes = FORMS[name].takes("Array | Spec", "Any", "Result", options)
    function = declared(name, __name__, getdoc(says), takes, lambda given: _run(name, given))
    CARDS[name] = _card(function)
    return function


CARDS: dict[str, Card[Any]] = {}


# -- the functions -----------------------------------------------------------------------------


@_of_row
def conv2d_backprop_filter() -> None:
    """Gradient of a 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [Cout, Cin / groups, KH, KW].
    ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW];
    groups (default 1); res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (real_g, cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z with C0 = 16. With several groups to a fractal the chip leaves sums across groups
    in the off-diagonal blocks, which no reader uses; here a kernel of its own clears them.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.filter_gradient.filter_gradient.Tiling``. Raises ``RuleError`` naming the
    argument that the documentation refuses or that does not fit the others, ``ArgumentError`` for
    the rest.
    """


@_of_row
def depthwise_conv2d_backprop_filter() -> None:
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


@_of_row
def conv3d_backprop_filter() -> None:
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


@_of_row
def conv2d_backprop_input() -> None:
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


@_of_row
def depthwise_conv2d_backprop_input() -> None:
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


@_of_row
def conv3d_backprop_input() -> None:
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
