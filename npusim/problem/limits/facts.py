"""Facts of a call: what the rows of a constraint table refer to.

An operator's card says which facts describe its calls (``OperatorFacts``). Here stands what
operators share: how a tensor is described, and the parameter array of the DSP library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError

Facts = Mapping[str, Any]


def _none_derived(facts: Facts) -> dict[str, Any]:
    """No facts that follow from others."""
    return {}


class OperatorFacts(Struct, frozen=True, kw_only=True):
    """The facts that describe the calls of an operator to the limits.

    A caller states all ``required`` ones, None for a null pointer, and may state the ``optional``
    ones: shapes and lists as tuples of integers in the documentation's order, element types by
    their short names ("fp16"; any text is allowed, the table judges it), formats by names such as
    "NCHW". ``derive`` computes the facts that follow from others. It runs before any row is looked
    at, so missing and malformed values must pass through it.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    derive: Callable[[Facts], dict[str, Any]] = _none_derived


#: The entries of DeconvGradFilter's parameter array by position; up to two more are not read.
PARAM = (
    "batch",
    "in_h",
    "in_w",
    "in_c",
    "batch_dy",
    "out_h",
    "out_w",
    "out_c",
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "pad_u",
    "pad_l",
    "dilation_h",
    "dilation_w",
    "group",
    "workspace",
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


def as_sizes(value: Any) -> tuple[int, ...]:
    """A shape or list as a tuple; nothing for what is missing or no list."""
    return tuple(value) if isinstance(value, (tuple, list)) else ()
