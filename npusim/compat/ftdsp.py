"""The DSP library's gradients of ordinary and transposed convolutions, as C declares them.

    fp_deconv_grad_filter_s(dy, x, dw, param, core_mask)    # operands every core shares
    fp_deconv_grad_filter_p(dy, x, dw, param)               # operands of one core's own memory

``fp_`` takes float32, ``hp_`` float16 (MT7004 only). ``dy``, ``x`` and ``dw`` are NumPy arrays,
flat as C's pointers or with their shapes: (batch, out_h, out_w, out_c), (batch, in_h, in_w, in_c)
and (group, out_c / group * kernel_h * kernel_w, in_c / group). ``dw`` is written in place.
``param`` is the array of 18 integers, or 20 as in the example. An address in param[17] other than
0 gives the call a workspace for im2row, whose traffic is in the time; where it points to does not
matter. The shared forms have their operands in DDR; with ``storage="gsm"`` they lie in the on-chip
memory that the cores share.

``deconv_grad_input``, ``conv_grad_filter`` and ``conv_grad_input`` have the same forms. No page of
theirs was at hand: they are assumed to be declared alike. The input gradients take the weight ``w``
in the shape of ``dw`` in place of ``x``, and write ``dx`` in the shape of ``x``.

Unlike the C functions these return something: the ``npusim.Result``. They run on the FT78NE
(``fp_``) or the MT7004 (``hp_``), on another device with the keyword ``device``, or in a block::

    with using("mt7004"):
        result = fp_deconv_grad_filter_s(dy, x, dw, param, 0b1111)

Further keywords are those of ``npusim.call.Options``; a call raises ``RuleError`` for what the
library refuses and ``ArgumentError`` for the rest, before ``dw`` is touched. With an
``npusim.spec`` in place of ``dy`` or ``x`` the run is timing-only and ``dw`` is neither read nor
written (it may be None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.call.options import Keywords
from npusim.call.spec import Array, Operand, Spec
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.ops.arguments import frozen, operand
from npusim.ops.dsp import facts
from npusim.ops.dsp_gradients import CARDS
from npusim.problem.limits.facts import PARAM, weight_shape
from npusim.results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "fp_conv_grad_filter_p",
    "fp_conv_grad_filter_s",
    "fp_conv_grad_input_p",
    "fp_conv_grad_input_s",
    "fp_deconv_grad_filter_p",
    "fp_deconv_grad_filter_s",
    "fp_deconv_grad_input_p",
    "fp_deconv_grad_input_s",
    "hp_conv_grad_filter_p",
    "hp_conv_grad_filter_s",
    "hp_conv_grad_input_p",
    "hp_conv_grad_input_s",
    "hp_deconv_grad_filter_p",
    "hp_deconv_grad_filter_s",
    "hp_deconv_grad_input_p",
    "hp_deconv_grad_input_s",
    "using",
]

F = TypeVar("F", bound=Callable[..., Result])

#: The parameter array of the C interface.
Parameters: TypeAlias = Sequence[int] | Array


class FormKeywords(Keywords, total=False):
    """The keywords of a form, for type checkers: where operands lie, and those of every call."""

    storage: str


#: The device of the innermost ``using`` block of this thread.
_device: ContextVar[str | Device | None] = ContextVar("ftdsp_device", default=None)


@contextmanager
def using(device: str | Device) -> Iterator[None]:
    """Run the calls inside the block on ``device`` unless they name their own."""
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)


def _usage(text: str) -> Callable[[F], F]:
    """Let a function refuse arguments that it does not take, with ``text`` for a way out."""

    def decorate(function: F) -> F:
        takes = signature(function)

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Result:
            try:
                takes.bind(*arguments, **named)
            except TypeError as error:
                raise ArgumentError(f"{function.__name__}: {error}; {text}") from None
            return function(*arguments, **named)

        return cast(F, call)

    return decorate


@_usage("it takes dy, x, dw, param and a core_mask")
def fp_deconv_grad_filter_s(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's filter to ``dw``; arrays are float32.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("deconv_grad_filter", FP32, "ft78ne", "shared")
    return _run(form, (dy, x, dw), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, x, dw, param and a core_mask")
def hp_deconv_grad_filter_s(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's filter to ``dw``; arrays are float16.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("deconv_grad_filter", FP16, "mt7004", "shared")
    return _run(form, (dy, x, dw), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, x, dw, param; the private form has no core_mask")
def fp_deconv_grad_filter_p(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's filter to ``dw``; arrays are float32.

    One core computes it, of operands in its own memory.
    """
    form = _Form("deconv_grad_filter", FP32, "ft78ne", "private")
    return _run(form, (dy, x, dw), param, options)


@_usage("it takes dy, x, dw, param; the private form has no core_mask")
def hp_deconv_grad_filter_p(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's filter to ``dw``; arrays are float16.

    One core computes it, of operands in its own memory.
    """
    form = _Form("deconv_grad_filter", FP16, "mt7004", "private")
    return _run(form, (dy, x, dw), param, options)


@_usage("it takes dy, x, dw, param and a core_mask")
def fp_conv_grad_filter_s(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's filter to ``dw``; arrays are float32.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("conv_grad_filter", FP32, "ft78ne", "shared")
    return _run(form, (dy, x, dw), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, x, dw, param and a core_mask")
def hp_conv_grad_filter_s(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's filter to ``dw``; arrays are float16.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("conv_grad_filter", FP16, "mt7004", "shared")
    return _run(form, (dy, x, dw), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, x, dw, param; the private form has no core_mask")
def fp_conv_grad_filter_p(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's filter to ``dw``; arrays are float32.

    One core computes it, of operands in its own memory.
    """
    form = _Form("conv_grad_filter", FP32, "ft78ne", "private")
    return _run(form, (dy, x, dw), param, options)


@_usage("it takes dy, x, dw, param; the private form has no core_mask")
def hp_conv_grad_filter_p(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's filter to ``dw``; arrays are float16.

    One core computes it, of operands in its own memory.
    """
    form = _Form("conv_grad_filter", FP16, "mt7004", "private")
    return _run(form, (dy, x, dw), param, options)


@_usage("it takes dy, w, dx, param and a core_mask")
def fp_deconv_grad_input_s(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's input to ``dx``; arrays are float32.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("deconv_grad_input", FP32, "ft78ne", "shared")
    return _run(form, (dy, w, dx), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, w, dx, param and a core_mask")
def hp_deconv_grad_input_s(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's input to ``dx``; arrays are float16.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("deconv_grad_input", FP16, "mt7004", "shared")
    return _run(form, (dy, w, dx), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, w, dx, param; the private form has no core_mask")
def fp_deconv_grad_input_p(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's input to ``dx``; arrays are float32.

    One core computes it, of operands in its own memory.
    """
    form = _Form("deconv_grad_input", FP32, "ft78ne", "private")
    return _run(form, (dy, w, dx), param, options)


@_usage("it takes dy, w, dx, param; the private form has no core_mask")
def hp_deconv_grad_input_p(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a transposed convolution's input to ``dx``; arrays are float16.

    One core computes it, of operands in its own memory.
    """
    form = _Form("deconv_grad_input", FP16, "mt7004", "private")
    return _run(form, (dy, w, dx), param, options)


@_usage("it takes dy, w, dx, param and a core_mask")
def fp_conv_grad_input_s(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's input to ``dx``; arrays are float32.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("conv_grad_input", FP32, "ft78ne", "shared")
    return _run(form, (dy, w, dx), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, w, dx, param and a core_mask")
def hp_conv_grad_input_s(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    core_mask: int | None,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's input to ``dx``; arrays are float16.

    The cores of ``core_mask`` compute it, of operands in DDR or, with ``storage="gsm"``, in their
    shared on-chip memory.
    """
    form = _Form("conv_grad_input", FP16, "mt7004", "shared")
    return _run(form, (dy, w, dx), param, {"core_mask": core_mask, **options})


@_usage("it takes dy, w, dx, param; the private form has no core_mask")
def fp_conv_grad_input_p(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's input to ``dx``; arrays are float32.

    One core computes it, of operands in its own memory.
    """
    form = _Form("conv_grad_input", FP32, "ft78ne", "private")
    return _run(form, (dy, w, dx), param, options)


@_usage("it takes dy, w, dx, param; the private form has no core_mask")
def hp_conv_grad_input_p(
    dy: Operand,
    w: Operand,
    dx: Array | None,
    param: Parameters,
    **options: Unpack[FormKeywords],
) -> Result:
    """Write the gradient of a convolution's input to ``dx``; arrays are float16.

    One core computes it, of operands in its own memory.
    """
    form = _Form("conv_grad_input", FP16, "mt7004", "private")
    return _run(form, (dy, w, dx), param, options)


class _Form(NamedTuple):
    """A form of an operator: its dtype, the device where none is named, and where operands lie."""

    operator: str
    dtype: DType
    device: str
    storage: str

    @property
    def inputs(self) -> tuple[str, str]:
        """The names of the gradient of the output and of the other operand."""
        return ("dy", "x") if self.operator.endswith("filter") else ("dy", "w")

    @property
    def target(self) -> str:
        """The name of the array that is written."""
        return "dw" if self.operator.endswith("filter") else "dx"


def _run(
    form: _Form,
    arrays: tuple[Operand, Operand, Array | None],
    param: Parameters,
    keywords: Mapping[str, Any],
) -> Result:
    """Check and view the operands, run the operator, copy its result into the third array."""
    options = dict(keywords)
    storage = options.pop("storage", form.storage)
    if (storage == "private") != (form.storage == "private"):
        raise ArgumentError(
            f"storage is {storage!r}; this is the {form.storage} form, call the other one"
        )
    p = frozen(param)
    first, second, written = arrays
    operands = {
        name: _viewed(name, value, form.dtype, p)
        for name, value in zip(form.inputs, (first, second), strict=True)
    }
    if options.get("device") is None:
        options["device"] = _device.get() or form.device
    target = None
    if not isinstance(first, Spec) and not isinstance(second, Spec):
        limits = facts(form.operator, operands, p, form.storage, options.get("core_mask"))
        rules = options.get("rules", "documented")
        CARDS[form.operator].check(limits, load_device(options["device"]), rules)
        target = _target(form.target, written, form.dtype, p)  # its shape follows from param
    result = CARDS[form.operator].function(*operands.values(), p, storage=storage, **options)
    if target is not None and result.outputs is not None:
        (computed,) = result.outputs
        assert computed is not None  # the one output is never masked out
        np.copyto(target, computed.reshape(target.shape), casting="equiv")
    return result


def _viewed(name: str, value: Any, wanted: DType, p: Any) -> Operand:
    """An operand of the form's dtype, as ``p`` shapes it if it is flat and has as many elements."""
    if isinstance(value, int):
        text = f"{name} is the number {value:#x}; pass the NumPy array that lies at this address"
        raise ArgumentError(f"{text}, or npusim.spec(shape, dtype) for the time alone")
    array = operand(value)
    actual = dtype(array.dtype)
    if actual != wanted:
        forms = {FP32: "fp_ takes float32", FP16: "hp_ takes float16"}
        way_out = "convert it, or call the other form"
        raise ArgumentError(f"{name} is {actual}; {forms[wanted]}: {way_out}")
    complete = isinstance(p, tuple) and len(p) >= len(PARAM) and all(isinstance(i, int) for i in p)
    if not complete or p[16] < 1:
        return array
    shape = _shape(name, p)
    if tuple(array.shape) != (prod(shape),):
        return array
    return Spec(shape, wanted) if isinstance(array, Spec) else array.reshape(shape)


def _shape(name: str, p: Sequence[int]) -> tuple[int, ...]:
    """The shape that the parameter array gives to an argument."""
    if name == "dy":
        return tuple(p[4:8])
    if name in ("x", "dx"):
        return tuple(p[:4])
    return weight_shape(p)


def _target(name: str, array: Any, wanted: DType, p: tuple[int, ...]) -> Array:
    """The caller's array that the gradient goes to, untouched so far."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        kind = "a read-only array" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise ArgumentError(f"{name} is {kind}; it must be a NumPy array that can be written")
    shape = _shape(name, p)
    if tuple(_viewed(name, array, wanted, p).shape) != shape:
        raise ArgumentError(
            f"{name} has shape {array.shape}; param makes it {shape}, or flat ({prod(shape)},)"
        )
    return array
