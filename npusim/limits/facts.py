"""Facts of a call that follow from others, for the rows of a constraint table to refer to.

They are derived before any row is looked at, so missing and malformed values pass through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from numbers import Integral
from typing import Any

from npusim.base.dtypes import dtype, promote
from npusim.base.errors import ArgumentError
from npusim.base.yamltree import Node, load_tree
from npusim.limits.forms import FORMS, derive

Facts = Mapping[str, Any]


def _listed(row: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The facts of a row of ``facts.yaml``."""
    keys = row.mapping(("must",), ("may",))
    may = keys["may"].text().split() if "may" in keys else ()
    return tuple(keys["must"].text().split()), tuple(may)


_FILE = load_tree(files("npusim.limits") / "facts.yaml", "facts.yaml")

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


def derive_tbc(f: Facts) -> dict[str, Any]:
    """Facts of conv_tbc_backward that follow from others."""
    names = ("grad_output.dtype", "input.dtype", "weight.dtype")
    return {"compute_dtype": promote([f.get(name) for name in names], "fp32")}


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
    "conv_tbc_backward": derive_tbc,
    "im2col": derive_im2col,
    "im2col_backward": derive_im2col,
    **dict.fromkeys(FORMS, derive),
    **{name: derive_deconv for name, (stated, _) in FACTS.items() if "param" in stated},
}
