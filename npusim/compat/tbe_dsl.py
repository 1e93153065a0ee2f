"""The functions of the tensor compiler: checked when called, computed when run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError, RuleError
from npusim.base.records import replace
from npusim.call.spec import Operand
from npusim.compat.tbe_tvm import Lazy, Placeholder
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS
from npusim.ops.arguments import declared, frozen
from npusim.ops.blocked import blocked_problem, fractal_columns
from npusim.ops.blocked_gradients import blocked_product
from npusim.ops.compiled import FORMS, stated
from npusim.ops.conv_forward import CARD
from npusim.ops.windows import im2col as run_im2col
from npusim.ops.windows import im2col_facts, patches_shape
from npusim.problem.convolution import Convolution, Sizes
from npusim.problem.limits.facts import type_name
from npusim.problem.limits.forms import layer_of
from npusim.results import Result

#: Holds the table that calls are checked against: the 310's and the 910's are the same.
_TABLE_DEVICE = "ascend910"


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
    _placeholders("im2col", x=x)
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
    CARDS["im2col"].check(facts, load_device(_TABLE_DEVICE))

    def run(image: Operand, bias: None, **options: Any) -> Result:
        return run_im2col(image, *settings, **options)

    named = _kernel_name({"kernel_name": kernel_name}, "im2col")
    return _lazy(named, patches_shape(facts), dtype(x.dtype), (x,), None, run)


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
    if (filter_sizes is None) == (filter_size is None) or para_dict is None:
        raise ArgumentError(
            "conv2d_backprop_filter needs filter_sizes, by this name or filter_size, and para_dict"
        )
    sizes = (filter_size if filter_sizes is None else filter_sizes,)
    return _gradient("conv2d_backprop_filter", (input_x, out_backprop, *sizes, para_dict))


def _lazily(name: str) -> Callable[..., Lazy]:
    """The function of a gradient, whose operands are placeholders."""
    doc = f"""{CARDS[name].computes[:-1]}, which is checked now and computed when it is run.

Operands are placeholders of float16. The kernel_name of ``para_dict`` names the returned tensor
and is what its errors begin with; a tensor_bias is a placeholder, too. No list is written to.
Raises ``RuleError`` (an ``ArgumentError``) where the operator refuses the call. Of that:

{CARDS[name].function.__doc__}"""
    takes = FORMS[name].takes("Placeholder", "Sequence[int]", "Lazy")
    return declared(name, __name__, doc, takes, lambda given: _gradient(name, (*given.values(),)))


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
    inputs = _placeholders("conv2d", input_x=input_x, filters=filters)
    return _forward("conv2d", inputs, filter_sizes, para_dict)


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
    return _forward("conv3d", _placeholders("conv3d", x=x, filter=filter), filter_size, para_dict)


def _gradient(name: str, arguments: tuple[Any, ...]) -> Lazy:
    """The gradient ``name``, whose arguments its limits let pass."""
    form, (first, dy, *sizes, para_dict) = FORMS[name], arguments
    read = first, dy
    _placeholders(name, **dict(zip(form.operands, read, strict=True)))
    facts = stated(form, first, dy, sizes, para_dict)
    CARDS[name].check(facts, load_device(_TABLE_DEVICE))
    c, para, kept = layer_of(facts), _kept(para_dict), tuple(map(frozen, sizes))
    result = dtype(facts["res_dtype"])
    para.pop("tensor_bias", None)
    bias = _bias(name, para_dict.get("tensor_bias"), c.cin, result)

    def run(first: Operand, dy: Operand, bias: Operand | None, **options: Any) -> Result:
        given = para | ({} if bias is None else {"tensor_bias": bias})
        return CARDS[name].function(first, dy, *kept, given, **options)

    shape = fractal_columns(c) if form.of_filter else _flat_map(c, c.cin1, c.spatial)
    return _lazy(_kernel_name(para, name), shape, result, read, bias, run)


def _lazy(
    name: str,
    shape: Sizes,
    result: DType,
    read: tuple[Placeholder, ...],
    bias: Placeholder | None,
    run: Callable[..., Result],
) -> Lazy:
    """What ``run`` computes of operands that are ``read``, of the bias or None, and keywords."""

    def call(feed: Callable[[Placeholder], Operand], options: dict[str, Any]) -> Result:
        return run(*map(feed, read), None if bias is None else feed(bias), **options)

    used = dict.fromkeys(one for one in (*read, bias) if one is not None)
    return Lazy(shape=shape, dtype=result.numpy.name, name=name, inputs=tuple(used), call=call)


def _flat_map(c: Convolution, blocks: int, size: Sizes) -> Sizes:
    """The shape of a map, (N, C1, H * W, 16) or with D behind N."""
    return (c.n, *size[:-2], blocks, prod(size[-2:]), c.c0)


def _forward(
    function: str,
    inputs: Mapping[str, Placeholder],
    filter_sizes: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """A forward pass, once its layer has passed the limits of its filter gradient."""
    (x_name, x), (w_name, w) = inputs.items()
    para = _kept(para_dict)
    bias, name = para.pop("tensor_bias", None), _kernel_name(para, function)
    result = _result_type(function, para.pop("res_dtype", "float16"))
    c = _layer_of(function, x_name, x, filter_sizes, para)
    if w.shape != c.fractals or type_name(w.dtype) != FP16.name:
        raise RuleError(
            f"{function}: {w_name} is {w.dtype} of shape {w.shape}; it must be float16 of "
            f"{c.fractals}, as {x_name} and the sizes of the filter give it",
            parameter=f"{w_name}.shape",
        )
    added = _bias(function, bias, c.cout, result)

    def run(x: Operand, w: Operand, bias: Operand | None, **options: Any) -> Result:
        return blocked_convolution(x, w, c, result, bias, **options)

    return _lazy(name, _flat_map(c, c.cout1, c.out), result, (x, w), added, run)


def _result_type(function: str, name: Any) -> DType:
    """The type of a forward pass's result."""
    if type_name(name) not in (FP16.name, FP32.name):
        raise RuleError(
            f"{function}: res_dtype is {name!r}; it must be float16 or float32",
            parameter="res_dtype",
        )
    return dtype(name)


def _layer_of(
    function: str, x_name: str, x: Placeholder, filter_sizes: Any, para: Mapping[str, Any]
) -> Convolution:
    """The layer of a forward pass; ``RuleError`` where its filter gradient would be refused."""
    sister = f"{function}_backprop_filter"
    # What the limits say of the gradient that goes back is true of the output with its sizes.
    unknown = Placeholder((*(1,) * (4 if function == "conv2d" else 5), 16), "float16", "output")
    para_dict = {**para, "res_dtype": "float32"}
    facts = stated(FORMS[sister], x, unknown, (filter_sizes,), para_dict)
    try:
        c = layer_of(facts)
        whole = (c.n, *c.out[:-2], c.cout1, *c.out[-2:], c.c0)
        facts["out_backprop.shape"] = whole
    except (TypeError, ValueError, ZeroDivisionError):
        pass  # sizes that do not fit each other, which the limits say before they read the output
    try:
        CARDS[sister].check(facts, load_device(_TABLE_DEVICE))
    except RuleError as error:
        if error.parameter.startswith("out_backprop"):  # which a forward pass has not
            return layer_of(facts)
        told = f"{function} has the limits of {sister}: {error}"
        raise RuleError(told, parameter=error.parameter) from None
    return layer_of(facts)


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


def _kept(para: Mapping[str, Any]) -> dict[str, Any]:
    """What ``para_dict`` gives, as values that later changes by the caller do not reach."""
    return {key: frozen(value) for key, value in para.items() if value is not None}


def _kernel_name(para: Mapping[str, Any], usual: str) -> str:
    """What the caller calls the operator; the kernels of a result keep npusim's names."""
    name = para.get("kernel_name", usual)
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"kernel_name is {name!r}; it must be text, such as {usual!r}")
    return name


def _bias(function: str, bias: Any, channels: int, result: DType) -> Placeholder | None:
    """The bias: one value of the result's type per channel of the result."""
    if bias is None:
        return None
    _placeholders(function, tensor_bias=bias)
    if bias.shape != (channels,) or type_name(bias.dtype) != result.name:
        raise ArgumentError(
            f"tensor_bias is {bias.dtype} of shape {bias.shape}; it must be {result.numpy.name} of "
            f"({channels},), one value per channel of the result"
        )
    assert isinstance(bias, Placeholder)  # checked above
    return bias


globals().update({name: _lazily(name) for name in FORMS if name not in globals()})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Lazy]:
        """The other gradients, which are made of their forms."""

# -- forward passes on blocked operands -------------------------------------------------------


def blocked_convolution(
    x: Operand,
    w: Operand,
    c: Convolution,
    result: DType,
    bias: Operand | None = None,
    **options: Any,
) -> Result:
    """The output of ``c`` in fp16 or fp32, ``result``, from fp16 operands in blocked layouts.

    ``x`` is 5HD (N, C1, H, W, 16), in three dimensions 6HD (N, D, C1, H, W, 16), ``w`` FRACTAL_Z or
    FRACTAL_Z_3D; ``bias`` has one value of ``result`` per output channel, added after rounding. The
    result ``outputs[0]`` is (N, Co1, Ho * Wo, 16), in three dimensions (N, Do, Co1, Ho * Wo, 16).
    Keywords are those of ``npusim.call.Options``.
    """
    call = CARD.begin(options, input=x, weight=w, bias=bias)
    call.require_dtype(FP16)
    names = ("output", "input", "weight", "bias")
    made = blocked_product(call, ConvForward, c, names, (x, w, bias), result)
    call.runs = [replace(run, computes="output" if run.computes else "") for run in call.runs]
    problem, sizes = blocked_problem("y", c, result), c.channel_blocks(16)
    return call.result({"output": call.arrays.get(made.name)}, problem, FP16, sizes=sizes)
