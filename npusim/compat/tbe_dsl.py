"""The functions of the tensor compiler: checked when called, computed when run.

Each takes placeholders (``npusim.compat.tbe.tvm.placeholder``), lists of sizes and a ``para_dict``,
and returns a ``Lazy`` tensor, whose ``run`` computes. An optional part of ``para_dict`` that is
None counts as left out; a part that is missing or unknown is an ``ArgumentError``. No list is
written to. Calls are checked against the documented limits of the 310 and the 910, which are the
same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError
from npusim.call.spec import Operand
from npusim.compat.tbe_calls import (
    TABLE_DEVICE,
    gradient,
    kernel_name_of,
    lazy_tensor,
    require_placeholders,
)
from npusim.compat.tbe_forward import forward
from npusim.compat.tbe_tvm import Lazy, Placeholder
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS
from npusim.ops.arguments import frozen
from npusim.ops.windows import im2col as run_im2col
from npusim.ops.windows import im2col_facts, patches_shape
from npusim.results import Result

__all__ = [
    "conv2d",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv3d",
    "conv3d_backprop_filter",
    "conv3d_backprop_input",
    "depthwise_conv2d_backprop_filter",
    "depthwise_conv2d_backprop_input",
    "im2col",
]


def im2col(
    x: Placeholder,
    ksizes: Sequence[int],
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    padding_mode: str = "CALCULATED",
    pads: Sequence[int] = (0, 0, 0, 0),
    kernel_name: str = "im2col",
) -> Lazy:
    """Patches of a map, (N, C1, KH * KW, L, 16) of its type.

    ``x`` is a 5HD placeholder (N, C1, H, W, 16) of float16 or float32; ``ksizes``, ``strides`` and
    ``dilations`` are [height, width], ``pads`` [up, down, left, right], the same on opposite sides,
    with ``padding_mode`` "CALCULATED", the only one. Form and limits are assumed: those of
    aclnnIm2col. Raises ``RuleError`` (an ``ArgumentError``) outside of them.
    """
    require_placeholders("im2col", {"x": x})
    sides = frozen(pads)
    if padding_mode != "CALCULATED" or len(sides) != 4 or sides[::2] != sides[1::2]:
        raise ArgumentError(
            f"im2col: padding_mode is {padding_mode!r} and pads is {sides}; they must be "
            "'CALCULATED' and [up, down, left, right] with the same number on opposite sides"
        )
    if len(x.shape) != 5:
        raise ArgumentError(f"im2col: x has shape {x.shape}; it must be (N, C1, H, W, 16)")
    settings = frozen(ksizes), frozen(dilations), sides[::2], frozen(strides)
    facts = im2col_facts(x, *settings)
    CARDS["im2col"].check(facts, load_device(TABLE_DEVICE))

    def run(image: Operand, bias: None, **options: Any) -> Result:
        return run_im2col(image, *settings, **options)

    name = kernel_name_of({"kernel_name": kernel_name}, "im2col")
    return lazy_tensor(name, patches_shape(facts), dtype(x.dtype), (x,), None, run)


def conv2d_backprop_filter(
    input_x: Placeholder,
    out_backprop: Placeholder,
    filter_sizes: Sequence[int] | None = None,
    para_dict: Mapping[str, Any] | None = None,
    *,
    filter_size: Sequence[int] | None = None,
) -> Lazy:
    """Gradient of a 2-D convolution's filter, (real_g, cin1_g * KH * KW, cout_g, 16) float32.

    ``input_x`` and ``out_backprop`` are 5HD placeholders of float16, ``filter_sizes`` is
    [Cout, Cin / groups, KH, KW]; the documentation's list of parameters calls it ``filter_size``,
    which is taken as well. ``para_dict``: strides [sH, sW]; padding [up, down, left, right];
    dilations [1, 1, dH, dW]; groups; res_dtype; kernel_name (of the returned tensor, and what its
    errors begin with). Raises ``RuleError`` (an ``ArgumentError``) where the real function refuses
    the call.
    """
    sizes = filter_size if filter_sizes is None else filter_sizes
    twice = filter_sizes is not None and filter_size is not None
    if sizes is None or twice or para_dict is None:
        raise ArgumentError(
            "conv2d_backprop_filter needs filter_sizes, by this name or filter_size, and para_dict"
        )
    return gradient("conv2d_backprop_filter", input_x, out_backprop, (sizes,), para_dict)


def conv2d_backprop_input(
    filters: Placeholder,
    out_backprop: Placeholder,
    filter_sizes: Sequence[int],
    input_sizes: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """Gradient of a 2-D convolution's input, (N, C1, H * W, 16) float16 or float32.

    ``filters`` is a FRACTAL_Z placeholder (real_g * cin1_g * KH * KW, cout_g / 16, 16, 16) and
    ``out_backprop`` a 5HD placeholder (N, Co1, Ho, Wo, 16), both of float16. ``filter_sizes`` is
    [Cout, Cin / groups, KH, KW], ``input_sizes`` [N, Cin, H, W]. ``para_dict``: strides [sH, sW];
    padding [up, down, left, right]; dilations [1, 1, dH, dW]; res_dtype "float16" or "float32";
    kernel_name (of the returned tensor, and what its errors begin with); group_dict (its ``groups``
    follow from the sizes and must agree). Limits are assumed to be those of its sister functions.
    Raises ``RuleError`` (an ``ArgumentError``) where the operator refuses the call.
    """
    sizes = (filter_sizes, input_sizes)
    return gradient("conv2d_backprop_input", filters, out_backprop, sizes, para_dict)


def conv3d_backprop_filter(
    x: Placeholder,
    out_backprop: Placeholder,
    filter_size: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """Gradient of a 3-D convolution's filter, (real_g, KD * cin1_g * KH * KW, cout_g, 16) float32.

    ``x`` (N, D, C1, H, W, 16) and ``out_backprop`` (N, Do, Co1, Ho, Wo, 16) are 6HD placeholders of
    float16; ``filter_size`` is [Cout, Cin / groups, KD, KH, KW]. ``para_dict``: strides
    [sD, sH, sW]; pads [front, tail, up, down, left, right]; dilations [1, 1, 1, dH, dW]; groups
    (default 1); group_dict (optional; it follows from the sizes and must agree); res_dtype
    "float32"; kernel_name (of the returned tensor, and what its errors begin with). Limits are
    assumed to be those of its sister functions. Raises ``RuleError`` (an ``ArgumentError``) where
    the operator refuses the call.
    """
    return gradient("conv3d_backprop_filter", x, out_backprop, (filter_size,), para_dict)


def conv3d_backprop_input(
    filter: Placeholder,
    out_backprop: Placeholder,
    filter_size: Sequence[int],
    input_size: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """Gradient of a 3-D convolution's input, (N, D, C1, H * W, 16) float16 or float32.

    ``filter`` is a FRACTAL_Z_3D placeholder (real_g * KD * cin1_g * KH * KW, cout_g / 16, 16, 16)
    and ``out_backprop`` a 6HD placeholder (N, Do, Co1, Ho, Wo, 16), both of float16.
    ``filter_size`` is [Cout, Cin / groups, KD, KH, KW], ``input_size`` [N, D, H, W, Cin]; unlike
    the vendor's function, this one does not write to it. ``para_dict``: strides [1, sD, sH, sW, 1];
    pads [front, tail, up, down, left, right]; dilations [1, 1, dH, dW, 1]; res_dtype "float16" or
    "float32"; kernel_name (of the returned tensor, and what its errors begin with); group_dict (its
    ``groups`` follow from the sizes and must agree); tensor_bias (optional: a placeholder of Cin
    values of res_dtype, added after rounding). Raises ``RuleError`` (an ``ArgumentError``) where
    the operator refuses the call.
    """
    sizes = (filter_size, input_size)
    return gradient("conv3d_backprop_input", filter, out_backprop, sizes, para_dict)


def depthwise_conv2d_backprop_filter(
    input_x: Placeholder,
    out_backprop: Placeholder,
    filter_sizes: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """Gradient of a depth-wise 2-D convolution's filter, (C1, KH * KW, 16, 16) float32.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, C1, Ho, Wo, 16) are 5HD placeholders of
    float16; ``filter_sizes`` is [C, 1, KH, KW]: every channel has one filter. ``para_dict``:
    strides [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW]; res_dtype
    "float32"; kernel_name (of the returned tensor, and what its errors begin with). No page of this
    function was at hand: signature and limits are assumed to be those of
    ``conv2d_backprop_filter``. Raises ``RuleError`` (an ``ArgumentError``) where the operator
    refuses the call.
    """
    name = "depthwise_conv2d_backprop_filter"
    return gradient(name, input_x, out_backprop, (filter_sizes,), para_dict)


def depthwise_conv2d_backprop_input(
    filters: Placeholder,
    out_backprop: Placeholder,
    filter_sizes: Sequence[int],
    input_sizes: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """Gradient of a depth-wise 2-D convolution's input, (N, C1, H * W, 16) float16 or float32.

    ``filters`` is a FRACTAL_Z placeholder (C1 * KH * KW, 1, 16, 16), weights on the diagonals of
    its fractals, and ``out_backprop`` a 5HD placeholder (N, C1, Ho, Wo, 16), both of float16.
    ``filter_sizes`` is [C, 1, KH, KW], ``input_sizes`` [N, C, H, W]. ``para_dict``: strides [sH,
    sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW]; res_dtype "float16" or
    "float32"; kernel_name (of the returned tensor, and what its errors begin with). No page of this
    function was at hand: signature and limits are assumed to be those of ``conv2d_backprop_input``.
    Raises ``RuleError`` (an ``ArgumentError``) where the operator refuses the call.
    """
    name = "depthwise_conv2d_backprop_input"
    sizes = (filter_sizes, input_sizes)
    return gradient(name, filters, out_backprop, sizes, para_dict)


def conv2d(
    input_x: Placeholder,
    filters: Placeholder,
    filter_sizes: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """A 2-D convolution, (N, Co1, Ho * Wo, 16) float16 or float32: its forward pass.

    ``input_x`` is a 5HD and ``filters`` a FRACTAL_Z placeholder of float16; ``filter_sizes`` is
    [Cout, Cin / groups, KH, KW]. ``para_dict``: strides [sH, sW]; padding [up, down, left, right];
    dilations [1, 1, dH, dW]; groups; res_dtype "float16" or "float32"; tensor_bias (a placeholder
    of Cout values of res_dtype, optional); kernel_name (of the returned tensor). No page of its
    own is at hand: names are those of ``conv2d_backprop_filter``, whose limits hold. Raises
    ``RuleError`` (an ``ArgumentError``) outside of them.
    """
    inputs = {"input_x": input_x, "filters": filters}
    return forward("conv2d", inputs, filter_sizes, para_dict)


def conv3d(
    x: Placeholder,
    filter: Placeholder,
    filter_size: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """A 3-D convolution, (N, Do, Co1, Ho * Wo, 16) float16 or float32: its forward pass.

    ``x`` is a 6HD and ``filter`` a FRACTAL_Z_3D placeholder of float16; ``filter_size`` is
    [Cout, Cin / groups, KD, KH, KW]. ``para_dict``: strides [sD, sH, sW]; pads [front, tail, up,
    down, left, right]; dilations [1, 1, 1, dH, dW]; groups; res_dtype "float16" or "float32";
    tensor_bias (a placeholder of Cout values of res_dtype, optional); kernel_name (of the returned
    tensor). Its names and limits are those of ``conv3d_backprop_filter``. Raises ``RuleError`` (an
    ``ArgumentError``) outside of them.
    """
    return forward("conv3d", {"x": x, "filter": filter}, filter_size, para_dict)
