"""Facts of a call that follow from others, for the rows of a constraint table to refer to.

They are derived before any row is looked at, so missing and malformed values pass through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from numbers import Integral
from typing import Any

from npusim.base.dtypes import dtype, promote
from npusim.base.errors import ArgumentError

Facts = Mapping[str, Any]


def _tensors(names: str, *parts: str) -> tuple[str, ...]:
    """The names of parts of tensors: ``x.shape``, ``x.dtype``, ..."""
    return tuple(f"{name}.{part}" for name in names.split() for part in parts)


def _stated(tensors: str, others: str) -> tuple[str, ...]:
    """Shapes and types of tensors, and the other facts by name."""
    return (*_tensors(tensors, "shape", "dtype"), *others.split())


#: Of the gradients of the tensor compiler that read a map, and of those that read a filter.
_FILTER = "filter_sizes strides padding dilations groups res_dtype"
_INPUT = _stated(
    "filters out_backprop", "filter_sizes input_sizes strides padding dilations res_dtype"
)

#: The facts a caller states, by operator: those it must, and those it may. Shapes and lists are
#: tuples of ints in the documentation's order, element types short names ("fp16"; any text is
#: allowed, the table judges it), formats names such as "NCHW", null pointers None. Tensors of
#: ``grad_input`` and the like are outputs that the caller allocated; ``storage`` is "shared" or
#: "private", ``cube_math_type`` 0 to 3.
FACTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "convolution_backward": (
        _stated(
            "grad_output input weight",
            "stride padding dilation output_padding groups transposed output_mask cube_math_type",
        ),
        (
            *_tensors("grad_output input weight", "format"),
            *_tensors("grad_input grad_weight grad_bias", "shape", "dtype", "format"),
            "bias_sizes",
        ),
    ),
    "conv_tbc_backward": (
        _stated("grad_output input weight bias", "pad cube_math_type"),
        _stated("grad_input grad_weight grad_bias", ""),
    ),
    "im2col": (_stated("image", "kernel_size dilation padding stride"), _stated("out", "")),
    "im2col_backward": (
        _stated("grad_output", "input_size kernel_size dilation padding stride"),
        _stated("out", ""),
    ),
    "conv2d_backprop_filter": (_stated("input_x out_backprop", _FILTER), ()),
    "conv2d_backprop_input": (_INPUT, ("group_dict",)),
    "depthwise_conv2d_backprop_filter": (
        _stated("input_x out_backprop", _FILTER.replace("groups ", "")),
        (),
    ),
    "depthwise_conv2d_backprop_input": (_INPUT, ()),
    "conv3d_backprop_filter": (
        _stated("x out_backprop", "filter_size strides pads dilations groups res_dtype"),
        ("group_dict",),
    ),
    "conv3d_backprop_input": (
        _stated("filter out_backprop", "filter_size input_size strides pads dilations res_dtype"),
        ("group_dict",),
    ),
    **dict.fromkeys(
        ("conv_grad_filter", "deconv_grad_filter"),
        (("dtype", "x.shape", "dy.shape", "param", "storage", "core_mask"), ()),
    ),
    **dict.fromkeys(
        ("conv_grad_input", "deconv_grad_input"),
        (("dtype", "dy.shape", "w.shape", "param", "storage", "core_mask"), ()),
    ),
}

#: The entries of DeconvGradFilter's parameter array by position; up to two more are not read.
PARAM = (
    *("batch", "in_h", "in_w", "in_c", "batch_dy", "out_h", "out_w", "out_c"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_u", "pad_l"),
    *("dilation_h", "dilation_w", "group", "workspace"),
)


def type_name(value: Any) -> str:
    """A type's short name; the text itself where no such type is known."""
    try:
        return dtype(value).name
    except ArgumentError:
        return str(value)


def tensor_facts(parts: tuple[str, ...] = ("shape", "dtype"), /, **tensors: Any) -> dict[str, Any]:
    """The named parts of each tensor, anything with these attributes; None for a null pointer."""
    facts: dict[str, Any] = {}
    for name, tensor in tensors.items():
        for part in parts:
            value = None if tensor is None else getattr(tensor, part)
            if part == "dtype" and value is not None:
                value = type_name(value)
            facts[f"{name}.{part}"] = tuple(value) if part == "shape" and value else value
    return facts


def sizes(value: Any) -> tuple[int, ...]:
    """A shape or list as a tuple; nothing for what is missing or no list."""
    return tuple(value) if isinstance(value, (tuple, list)) else ()


def derive_convolution(f: Facts) -> dict[str, Any]:
    """Facts of convolution_backward that follow from others."""
    weight, input_ = sizes(f.get("weight.shape")), sizes(f.get("input.shape"))
    mask = sizes(f.get("output_mask"))
    wants = mask if len(mask) == 3 else (False, False, False)
    groups = f.get("groups", 1)
    dy, w = f.get("grad_output.dtype"), f.get("weight.dtype")
    return {
        "dims": max(len(weight) - 2, 0),
        "kernel": weight[2:],
        "empty": 0 in weight or 0 in input_,
        "bias_sizes": f.get("bias_sizes"),
        "grouped": isinstance(groups, Integral) and int(groups) > 1,
        "widths": _widths(f),
        "compute_dtype": promote((dy, f.get("input.dtype"), w), "fp32"),
        "grad_weight.dtype": promote((w, dy), "fp32"),
        "wants_grad_input": bool(wants[0]),
        "wants_grad_weight": bool(wants[1]),
        "wants_grad_bias": bool(wants[2]),
    }


def _widths(f: Facts) -> tuple[int, ...]:
    """Width of input, and of grad_output with the zeros that a stride puts between columns."""
    x, dy, stride = (sizes(f.get(n)) for n in ("input.shape", "grad_output.shape", "stride"))
    return (x[-1], dy[-1] * stride[-1]) if x and dy and stride else ()


def derive_tbc(f: Facts) -> dict[str, Any]:
    """Facts of conv_tbc_backward that follow from others."""
    names = ("grad_output.dtype", "input.dtype", "weight.dtype")
    return {"compute_dtype": promote([f.get(name) for name in names], "fp32")}


def derive_im2col(f: Facts) -> dict[str, Any]:
    """Facts of im2col and of its backward that follow from others."""
    return {"empty": 0 in sizes(f.get("image.shape", f.get("grad_output.shape")))}


def derive_filter(f: Facts) -> dict[str, Any]:
    """Facts of conv2d_backprop_filter that follow from others."""
    x = sizes(f.get("input_x.shape"))
    return {"one_row": len(x) == 5 and x[2] == 1}


def derive_depthwise_filter(f: Facts) -> dict[str, Any]:
    """Facts of depthwise_conv2d_backprop_filter that follow from others: a group per channel."""
    return derive_filter(f) | {"groups": (*sizes(f.get("filter_sizes")), 1)[0]}


def derive_volume_filter(f: Facts) -> dict[str, Any]:
    """Facts of conv3d_backprop_filter that follow from others."""
    strides, kernel = (sizes(f.get(name)) for name in ("strides", "filter_size"))
    return _products(strides, kernel[2:]) if (len(strides), len(kernel)) == (3, 5) else {}


def derive_input(f: Facts) -> dict[str, Any]:
    """Facts of conv3d_backprop_input that follow from others."""
    parts = [sizes(f.get(name)) for name in ("strides", "filter_size", "out_backprop.shape")]
    if [len(part) for part in parts] != [5, 5, 6]:
        return {}
    strides, kernel, dy = parts
    derived = _products(strides[1:4], kernel[2:])
    derived["zero-inserted dY H and W"] = (dy[3] * strides[2], dy[4] * strides[3])
    return derived | _backward_pads(f, strides, kernel, dy)


def _products(strides: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """Products over the axes (D, H, W) that have limits of their own."""
    return {
        "stride H * W": prod(strides[1:]),
        "stride D * H * W": prod(strides),
        "kernel H * W": prod(kernel[1:]),
        "kernel D * H * W": prod(kernel),
    }


def lifted(f: Facts) -> dict[str, Any]:
    """Facts of conv2d_backprop_input as those of conv3d_backprop_input at depth 1."""
    names = ("filter_sizes", "input_sizes", "strides", "padding", "dilations", "out_backprop.shape")
    kernel, size, strides, pads, dilations, dy = (sizes(f.get(name)) for name in names)
    if [len(one) for one in (kernel, size, strides, pads, dilations, dy)] != [4, 4, 2, 4, 4, 5]:
        return {}
    (n, cin, *plane), (cout, per_group, *taps) = size, kernel
    return {
        "filter.shape": f.get("filters.shape"),
        "out_backprop.shape": (dy[0], 1, *dy[1:]),
        "filter_size": (cout, per_group, 1, *taps),
        "input_size": (n, 1, *plane, cin),
        "strides": (1, 1, *strides, 1),
        "pads": (0, 0, *pads),
        "dilations": (1, 1, *dilations[2:], 1),
        "group_dict": f.get("group_dict"),
    }


def derive_plane_input(f: Facts) -> dict[str, Any]:
    """Facts of conv2d_backprop_input that follow from others."""
    size, derived = sizes(f.get("input_sizes")), derive_input(lifted(f))
    pads = ("derived backward pads",)
    one_row = {"one_row": len(size) == 4 and size[2] == 1}
    return one_row | {name: derived[name] for name in pads if name in derived}


def _backward_pads(
    f: Facts, strides: tuple[int, ...], kernel: tuple[int, ...], dy: tuple[int, ...]
) -> dict[str, Any]:
    """Pads (up, down, left, right) of the stride-1 convolution that computes dx."""
    pads, size, dilations = (sizes(f.get(n)) for n in ("pads", "input_size", "dilations"))
    if (len(pads), len(size), len(dilations)) != (6, 5, 5):
        return {}
    derived: list[int] = []
    for axis, before in ((0, pads[2]), (1, pads[4])):
        reach = dilations[2 + axis] * (kernel[3 + axis] - 1)
        spread = (dy[3 + axis] - 1) * strides[2 + axis]
        derived += [reach - before, size[2 + axis] + before - spread - 1]
    return {"derived backward pads": tuple(derived)}


def derive_deconv(f: Facts) -> dict[str, Any]:
    """Facts of the DSP library's gradients that follow from others: ``param`` by name."""
    param = sizes(f.get("param"))
    if len(param) < len(PARAM):
        return {}
    return {f"param[{i}] {name}": param[i] for i, name in enumerate(PARAM)}


DERIVE: dict[str, Callable[[Facts], dict[str, Any]]] = {
    "convolution_backward": derive_convolution,
    "conv_tbc_backward": derive_tbc,
    "im2col": derive_im2col,
    "im2col_backward": derive_im2col,
    "conv2d_backprop_filter": derive_filter,
    "conv2d_backprop_input": derive_plane_input,
    "depthwise_conv2d_backprop_filter": derive_depthwise_filter,
    "depthwise_conv2d_backprop_input": derive_plane_input,
    "conv3d_backprop_filter": derive_volume_filter,
    "conv3d_backprop_input": derive_input,
    **dict.fromkeys(
        ("conv_grad_filter", "conv_grad_input", "deconv_grad_filter", "deconv_grad_input"),
        derive_deconv,
    ),
}
