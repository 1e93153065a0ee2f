"""Facts of a call that follow from others, for the rows of a constraint table to refer to.

They are derived before any row is looked at, so missing and malformed values pass through here.

The gradients of the tensor compiler stand here as rows: their arguments, and the layer that facts
describe. Their facts for the limits, their signatures, their cards and their lazy forms all follow
from a row. Arguments have the names that the documentation has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from inspect import Parameter, Signature
from math import prod
from numbers import Integral
from typing import Any

from msgspec import Struct, field

from npusim.base.dtypes import dtype, promote
from npusim.base.errors import ArgumentError
from npusim.base.yamltree import Node, load_tree
from npusim.problem.convolution import Convolution, Sizes

Facts = Mapping[str, Any]


class Form(Struct, frozen=True):
    """The arguments of a gradient: operands, lists of sizes, a ``para_dict``.

    ``optional`` has the defaults of what its ``para_dict`` need not state, None where there is
    none; ``required`` is what is checked as None where it is not stated. A filter gradient reads a
    map and has one list; an input gradient reads a filter, and its second list is the input's.
    """

    operands: tuple[str, str]
    lists: tuple[str, ...]
    pads: str
    res_dtype: str
    optional: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    @property
    def of_filter(self) -> bool:
        """Whether it is the gradient of a filter."""
        return len(self.lists) == 1

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The facts that a caller states: those it must, and those it may."""
        tensors = (f"{name}.{part}" for name in self.operands for part in ("shape", "dtype"))
        groups = ("groups",) if "groups" in self.optional else ()
        stated = (*tensors, *self.lists, "strides", self.pads, "dilations", *groups, "res_dtype")
        return stated, ("group_dict",) if "group_dict" in self.optional else ()

    def takes(self, operand: str, sizes: str, returns: str, *more: Parameter) -> Signature:
        """The signature, with the words for the types of operands and of lists."""
        kinds = {
            **dict.fromkeys(self.operands, operand),
            **dict.fromkeys(self.lists, sizes),
            "para_dict": "Mapping[str, Any]",
        }
        kind = Parameter.POSITIONAL_OR_KEYWORD
        each = [Parameter(name, kind, annotation=told) for name, told in kinds.items()]
        return Signature([*each, *more], return_annotation=returns)

    def _last(self, c: Convolution) -> bool:
        """Whether its lists have channels last, as those of an input in three dimensions."""
        return c.dims == 3 and not self.of_filter

    def sizes(self, c: Convolution) -> tuple[Sizes, ...]:
        """The lists of a convolution."""
        size = (c.n, *c.spatial, c.cin) if self._last(c) else (c.n, c.cin, *c.spatial)
        return (c.w_shape, size)[: len(self.lists)]

    def para(self, c: Convolution, **more: Any) -> dict[str, Any]:
        """The ``para_dict`` of a convolution."""
        strides, dilations = c.stride, (1, 1, *c.dilation)
        if self._last(c):
            strides, dilations = (1, *c.stride, 1), (1, *c.dilation, 1)
        return {"strides": strides, self.pads: c.sides, "dilations": dilations, **more}


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


class Described(Convolution):
    """What facts say of a layer, right or wrong; axes in the order (D,) H, W in every form."""

    def __post_init__(self) -> None:
        """Nothing is refused here: that is what the limits are for."""


def form_of(facts: Mapping[str, Any]) -> Form:
    """The form whose arguments facts have; sister functions have one."""
    return next(form for form in FORMS.values() if f"{form.operands[0]}.shape" in facts)


def described(facts: Mapping[str, Any]) -> Described:
    """The layer of facts whose lists have the right lengths."""
    form = form_of(facts)
    filters, *other = (facts[name] for name in form.lists)
    cout, per_group, *kernel = filters
    strides, dilations, pads = facts["strides"], facts["dilations"][2:], facts[form.pads]
    if form.of_filter:
        n, *depth, _, height, width, _ = facts[f"{form.operands[0]}.shape"]
        spatial = [*depth, height, width]
        groups = facts.get("groups", cout)  # a depth-wise filter has one for every channel
        cin = per_group * groups
    elif len(filters) == 5:
        ((n, *spatial, cin),) = other
        strides, dilations = strides[1:4], facts["dilations"][1:4]
    else:
        ((n, cin, *spatial),) = other
    if not form.of_filter:
        groups = cin // per_group if per_group else 0
    sides = tuple(zip(pads[::2], pads[1::2], strict=True))
    return Described(
        n=n, cin=cin, cout=cout, groups=groups, spatial=tuple(spatial), kernel=tuple(kernel),
        stride=tuple(strides), padding=sides, dilation=tuple(dilations),
    )  # fmt: skip


def layer_of(facts: Mapping[str, Any]) -> Convolution:
    """The convolution of facts that the limits have let pass."""
    return Convolution(**vars(described(facts)))


def derive(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a gradient that follow from others; nothing of sizes that have a wrong length."""
    try:
        form = form_of(facts)
        layer, dy = described(facts), facts["out_backprop.shape"]
        dims, numbers = len(layer.kernel), [layer.n, layer.cin, layer.cout, *layer.spatial]
        numbers += [*layer.kernel, *layer.stride, *layer.dilation, *facts[form.pads], *dy]
        right = dims in (2, 3) and len(dy) == dims + 3 and len(facts["dilations"]) == dims + 2
    except (StopIteration, KeyError, TypeError, ValueError):
        return {}
    lengths = {len(layer.spatial), len(layer.stride), len(layer.padding)}
    if not right or lengths != {dims} or not all(isinstance(n, Integral) for n in numbers):
        return {}
    derived = {
        "one_row": layer.spatial[-2] == 1,
        "groups": layer.groups,
        "stride H * W": prod(layer.stride[-2:]),
        "stride D * H * W": prod(layer.stride),
        "kernel H * W": prod(layer.kernel[-2:]),
        "kernel D * H * W": prod(layer.kernel),
    }
    if form.of_filter:
        return derived
    pads: list[int] = []  # (up, down, left, right) of the stride-1 convolution that computes dx
    spread = [(dy[axis - 1] - 1) * layer.stride[axis] for axis in (-2, -1)]
    for axis, reached in zip((-2, -1), spread, strict=True):
        before = layer.padding[axis][0]
        reach = layer.dilation[axis] * (layer.kernel[axis] - 1)
        pads += [reach - before, layer.spatial[axis] + before - reached - 1]
    inserted = tuple(dy[axis - 1] * layer.stride[axis] for axis in (-2, -1))
    return derived | {"zero-inserted dY H and W": inserted, "derived backward pads": tuple(pads)}


# -- facts of all operators -----------------------------------------------------------------------


def _listed(row: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The facts of a row of ``facts.yaml``."""
    keys = row.mapping(("must",), ("may",))
    may = keys["may"].text().split() if "may" in keys else ()
    return tuple(keys["must"].text().split()), tuple(may)


_FILE = load_tree(files("npusim.problem.limits") / "facts.yaml", "facts.yaml")

#: The facts a caller states, by operator: those it must, and those it may.
FACTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **{name: form.facts for name, form in FORMS.items()},
    **{name: _listed(row) for name, row in _FILE.mapping().items()},
}

#: The entries of DeconvGradFilter's parameter array by position; up to two more are not read.
PARAM = (
    *("batch", "in_h", "in_w", "in_c", "batch_dy", "out_h", "out_w", "out_c"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_u", "pad_l"),
    *("dilation_h", "dilation_w", "group", "workspace"),
)


def weight_shape(param: Sequence[int]) -> tuple[int, int, int]:
    """The shape of a weight in the DSP library: (group, Cout/group*KH*KW, Cin/group)."""
    cin, cout, kh, kw, groups = (param[i] for i in (3, 7, 8, 9, 16))
    return (groups, cout // groups * kh * kw, cin // groups)


def type_name(value: Any) -> str:
    """A type's short name; the text itself where no such type is known."""
    try:
        return dtype(value).name
    except ArgumentError:
        return str(value)


def tensor_facts(**tensors: Any) -> dict[str, Any]:
    """Shape and type of each tensor, anything with these attributes; None for a null pointer."""
    facts: dict[str, Any] = {}
    for name, tensor in tensors.items():
        kind = getattr(tensor, "dtype", None)
        facts[f"{name}.shape"] = None if tensor is None else tuple(tensor.shape)
        facts[f"{name}.dtype"] = None if kind is None else type_name(kind)
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


def derive_im2col(f: Facts) -> dict[str, Any]:
    """Facts of im2col and of its backward that follow from others."""
    return {"empty": 0 in sizes(f.get("image.shape", f.get("grad_output.shape")))}


def derive_deconv(f: Facts) -> dict[str, Any]:
    """Facts of the DSP library's gradients that follow from others: ``param`` by name."""
    param = sizes(f.get("param"))
    if len(param) < len(PARAM):
        return {}
    return {f"param[{i}] {name}": param[i] for i, name in enumerate(PARAM)}


DERIVE: dict[str, Callable[[Facts], dict[str, Any]]] = {
    "convolution_backward": derive_convolution,
    "im2col": derive_im2col,
    "im2col_backward": derive_im2col,
    **dict.fromkeys(FORMS, derive),
    **{name: derive_deconv for name, (stated, _) in FACTS.items() if "param" in stated},
}
