"""The functions of the tensor compiler: checked when called, computed when run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npusim.call.spec import Operand
from npusim.compat.tbe_tvm import Lazy, Placeholder
from npusim.device.catalog import load_device
from npusim.dtypes import dtype
from npusim.errors import ArgumentError
from npusim.layout import group_plan
from npusim.limits.table import check
from npusim.ops.conv2d_backprop_filter import conv2d_backprop_filter as run_filter
from npusim.ops.conv3d_backprop_input import conv3d_backprop_input as run_input
from npusim.results import Result
from npusim.yamltree import suggest

#: Holds the table that calls are checked against: the 310's and the 910's are the same.
_TABLE_DEVICE = "ascend910"

#: Channels to a block in all layouts of these functions, whatever the type.
_C0 = 16

Feed = Callable[[Placeholder], Operand]


def conv2d_backprop_filter(
    input_x: Placeholder,
    out_backprop: Placeholder,
    filter_sizes: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """Gradient of a 2-D convolution's filter, (real_g, cin1_g * KH * KW, cout_g, 16) float32.

    ``input_x`` and ``out_backprop`` are 5HD placeholders of float16, ``filter_sizes`` is
    [Cout, Cin / groups, KH, KW]. ``para_dict``: strides [sH, sW]; padding [up, down, left, right];
    dilations [1, 1, dH, dW]; groups; res_dtype; kernel_name. Raises ``RuleError`` (an
    ``ArgumentError``) where the real function refuses the call.
    """
    inputs = _placeholders("conv2d_backprop_filter", input_x=input_x, out_backprop=out_backprop)
    optional = {"groups": 1, "res_dtype": "float32", "kernel_name": "conv2d_backprop_filter"}
    para = _parameters(para_dict, ("strides", "padding", "dilations"), optional)
    sizes = _frozen(filter_sizes)
    facts = {
        **_facts(inputs),
        "filter_sizes": sizes,
        **{key: para[key] for key in ("strides", "padding", "dilations", "groups")},
        "res_dtype": _short(para["res_dtype"]),
    }
    check("conv2d_backprop_filter", facts, load_device(_TABLE_DEVICE))
    cout, cg, kh, kw = sizes
    groups = para["groups"]
    plan = group_plan(cg * groups, cout, groups, _C0)

    def call(feed: Feed, options: dict[str, Any]) -> Result:
        return run_filter(feed(input_x), feed(out_backprop), sizes, _lists(para), **options)

    return Lazy(
        shape=(plan.real_groups, plan.cin1_g * kh * kw, plan.cout_g, _C0),
        dtype="float32",
        name=str(para["kernel_name"]),
        inputs=tuple(dict.fromkeys(inputs.values())),
        call=call,
    )


def conv3d_backprop_input(
    filter: Placeholder,
    out_backprop: Placeholder,
    filter_size: Sequence[int],
    input_size: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """Gradient of a 3-D convolution's input, (N, D, C1, H * W, 16) float16.

    ``filter`` is a FRACTAL_Z_3D and ``out_backprop`` a 6HD placeholder of float16; ``filter_size``
    is [Cout, Cin / groups, KD, KH, KW], ``input_size`` [N, D, H, W, Cin]. ``para_dict``: strides
    [1, sD, sH, sW, 1]; pads [front, tail, up, down, left, right]; dilations [1, 1, dH, dW, 1];
    group_dict; res_dtype; kernel_name; tensor_bias (a placeholder of Cin values, optional).
    Raises ``RuleError`` (an ``ArgumentError``) where the real function refuses the call, and
    leaves ``input_size`` as it is, unlike the real one.
    """
    inputs = _placeholders("conv3d_backprop_input", filter=filter, out_backprop=out_backprop)
    optional = {
        "res_dtype": "float16", "kernel_name": "conv3d_backprop_input", "tensor_bias": None,
        "group_dict": None,
    }  # fmt: skip
    para = _parameters(para_dict, ("strides", "pads", "dilations"), optional)
    kernel, size = _frozen(filter_size), _frozen(input_size)
    _check_input(inputs, kernel, size, para)
    n, d, h, w, cin = size
    bias = _bias(para.pop("tensor_bias"), cin)

    def call(feed: Feed, options: dict[str, Any]) -> Result:
        given = _lists(para) | ({} if bias is None else {"tensor_bias": feed(bias)})
        return run_input(feed(filter), feed(out_backprop), kernel, size, given, **options)

    used = [*inputs.values(), *([] if bias is None else [bias])]
    return Lazy(
        shape=(n, d, -(-cin // _C0), h * w, _C0),
        dtype="float16",
        name=str(para["kernel_name"]),
        inputs=tuple(dict.fromkeys(used)),
        call=call,
    )


def _check_input(
    inputs: Mapping[str, Placeholder], kernel: Any, size: Any, para: Mapping[str, Any]
) -> None:
    """Hold conv3d_backprop_input's arguments against its table."""
    facts = {
        **_facts(inputs),
        "filter_size": kernel,
        "input_size": size,
        **{key: para[key] for key in ("strides", "pads", "dilations", "group_dict")},
        "res_dtype": _short(para["res_dtype"]),
    }
    check("conv3d_backprop_input", facts, load_device(_TABLE_DEVICE))
    if facts["res_dtype"] != "fp16":
        raise ArgumentError(
            f"res_dtype is {para['res_dtype']!r}; the compiler has it, npusim computes "
            "'float16' only"
        )


def _placeholders(function: str, **inputs: Any) -> dict[str, Placeholder]:
    """The inputs, all of them placeholders."""
    for name, value in inputs.items():
        if isinstance(value, Lazy):
            raise ArgumentError(
                f"{function}: {name} is the result {value.name!r} of another function; these "
                "functions cannot be combined: run that one, and feed its array to a placeholder"
            )
        if not isinstance(value, Placeholder):
            raise ArgumentError(
                f"{function}: {name} is a {type(value).__name__}; it must be a tvm.placeholder"
            )
    return inputs


def _parameters(
    para: Mapping[str, Any], required: tuple[str, ...], optional: Mapping[str, Any]
) -> dict[str, Any]:
    """``para_dict`` with its defaults, as values that later changes by the caller do not reach."""
    missing = [key for key in required if key not in para]
    if missing:
        raise ArgumentError(f"para_dict lacks {missing}; it needs {', '.join(required)}")
    for key in para:
        if key not in required and key not in optional:
            hint = suggest(str(key), [*required, *optional])
            raise ArgumentError(f"para_dict has the unknown key {key!r}{hint}")
    return {key: _frozen(value) for key, value in {**optional, **para}.items()}


def _bias(bias: Any, channels: int) -> Placeholder | None:
    """The bias: one value of the result's type per input channel."""
    if bias is None:
        return None
    _placeholders("conv3d_backprop_input", tensor_bias=bias)
    if bias.shape != (channels,) or _short(bias.dtype) != "fp16":
        raise ArgumentError(
            f"tensor_bias is {bias.dtype} of shape {bias.shape}; it must be float16 of "
            f"({channels},), one value per channel of input_size"
        )
    assert isinstance(bias, Placeholder)  # checked above
    return bias


def _facts(inputs: Mapping[str, Placeholder]) -> dict[str, Any]:
    """Shapes and types of the inputs, for the constraint table."""
    shapes = {f"{name}.shape": value.shape for name, value in inputs.items()}
    return shapes | {f"{name}.dtype": _short(value.dtype) for name, value in inputs.items()}


def _short(name: Any) -> str:
    """A type's short name, or the text itself where no such type is known."""
    try:
        return dtype(name).name
    except ArgumentError:
        return str(name)


def _frozen(value: Any) -> Any:
    """A list as a tuple, a dictionary as a copy; other values as they are."""
    if isinstance(value, Mapping):
        return dict(value)
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _lists(para: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the operator takes them: without what was not given."""
    return {key: value for key, value in para.items() if value is not None}
