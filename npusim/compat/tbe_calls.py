"""Calls of the tensor compiler: arguments checked at once, and the lazy tensor that is returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from npusim.base.dtypes import DType, dtype
from npusim.base.errors import ArgumentError
from npusim.call.spec import Operand
from npusim.compat.tbe_tvm import Lazy, Placeholder
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS
from npusim.ops.arguments import frozen
from npusim.ops.blocked import fractal_columns
from npusim.ops.compiled import FORMS, stated
from npusim.problem.convolution import Convolution, Sizes
from npusim.problem.limits.facts import type_name
from npusim.problem.limits.forms import layer_of
from npusim.results import Result

#: The device whose table calls are checked against: the 310's and the 910's are the same.
TABLE_DEVICE = "ascend910"


def gradient(
    function: str,
    first: Placeholder,
    out_backprop: Placeholder,
    sizes: Sequence[Sequence[int]],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """The gradient that the operator ``function`` computes, once its limits let the call pass.

    ``first`` is the map or the filter, ``sizes`` the lists of sizes in the order of the function's
    arguments.
    """
    form = FORMS[function]
    operands = (first, out_backprop)
    require_placeholders(function, dict(zip(form.operands, operands, strict=True)))
    facts = stated(form, first, out_backprop, sizes, para_dict)
    CARDS[function].check(facts, load_device(TABLE_DEVICE))
    c = layer_of(facts)
    lists = tuple(frozen(values) for values in sizes)
    result = dtype(facts["res_dtype"])
    settings = settings_of(para_dict)
    settings.pop("tensor_bias", None)
    bias = bias_of(function, para_dict.get("tensor_bias"), c.cin, result)

    def run(first: Operand, dy: Operand, bias: Operand | None, **options: Any) -> Result:
        more = {} if bias is None else {"tensor_bias": bias}
        return CARDS[function].function(first, dy, *lists, settings | more, **options)

    shape = fractal_columns(c) if form.of_filter else flat_map(c, c.cin1, c.spatial)
    name = kernel_name_of(settings, function)
    return lazy_tensor(name, shape, result, operands, bias, run)


def lazy_tensor(
    name: str,
    shape: Sizes,
    result: DType,
    operands: tuple[Placeholder, ...],
    bias: Placeholder | None,
    run: Callable[..., Result],
) -> Lazy:
    """The tensor that ``run`` computes from operands, from the bias or None, and from keywords."""

    def call(feed: Callable[[Placeholder], Operand], options: dict[str, Any]) -> Result:
        return run(*map(feed, operands), None if bias is None else feed(bias), **options)

    inputs = list(dict.fromkeys(operands))  # one placeholder may serve twice
    if bias is not None and bias not in inputs:
        inputs.append(bias)
    return Lazy(shape=shape, dtype=result.numpy.name, name=name, inputs=tuple(inputs), call=call)


def flat_map(c: Convolution, blocks: int, size: Sizes) -> Sizes:
    """The shape of a map with ``blocks`` channel blocks, (N, C1, H * W, 16) or with D behind N."""
    return (c.n, *size[:-2], blocks, prod(size[-2:]), c.c0)


def require_placeholders(function: str, inputs: Mapping[str, Any]) -> None:
    """Raise ``ArgumentError`` for an input that is no placeholder."""
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


def settings_of(para_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of ``para_dict`` that are not None, out of reach of later changes to it."""
    return {key: frozen(value) for key, value in para_dict.items() if value is not None}


def kernel_name_of(settings: Mapping[str, Any], usual: str) -> str:
    """The caller's name of the operator; the kernels of a result keep npusim's names."""
    name = settings.get("kernel_name", usual)
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"kernel_name is {name!r}; it must be text, such as {usual!r}")
    return name


def bias_of(function: str, bias: Any, channels: int, result: DType) -> Placeholder | None:
    """The bias, one value of the result's dtype per channel of the result; None for none."""
    if bias is None:
        return None
    require_placeholders(function, {"tensor_bias": bias})
    if bias.shape != (channels,) or type_name(bias.dtype) != result.name:
        raise ArgumentError(
            f"tensor_bias is {bias.dtype} of shape {bias.shape}; it must be {result.numpy.name} of "
            f"({channels},), one value per channel of the result"
        )
    assert isinstance(bias, Placeholder)  # checked above
    return bias
