# ruff: noqa: PLE0604 - the names of functions follow from those of operators
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

Further keywords are those of ``npusim.call.Options``. With an ``npusim.spec`` in place of
``dy`` or ``x`` the run is timing-only and ``dw`` is neither read nor written (it may be None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import Parameter, Signature
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.call.spec import Array, Operand, Spec
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.ops.arguments import declared, frozen, operand
from npusim.ops.dsp import facts
from npusim.ops.dsp_gradients import CARDS
from npusim.problem.limits.facts import PARAM, weight_shape
from npusim.results import Result

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


#: The shapes of arguments by name, of the parameter array.
_SHAPES: dict[str, Callable[[Sequence[int]], tuple[int, ...]]] = {
    "dy": lambda p: tuple(p[4:8]),
    **dict.fromkeys(("x", "dx"), lambda p: tuple(p[:4])),
    **dict.fromkeys(("w", "dw"), weight_shape),
}


class _Form(NamedTuple):
    """A form of an operator: its type, the device where none is named, and where operands lie."""

    operator: str
    prefix: str
    dtype: DType
    device: str
    storage: str

    @property
    def operands(self) -> tuple[str, str, str]:
        """The gradient of the output, the other operand, and the result."""
        return ("dy", "x", "dw") if self.operator.endswith("filter") else ("dy", "w", "dx")

    @property
    def name(self) -> str:
        """The function's name."""
        return f"{self.prefix}_{self.operator}_{self.storage[0]}"


def _function(form: _Form) -> Callable[..., Result]:
    """The function of a form."""
    shared = form.storage == "shared"
    names = (*form.operands, "param", *(("core_mask",) if shared else ()))
    each = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    takes = Signature([*each, Parameter("options", Parameter.VAR_KEYWORD)])

    where = "the cores of ``core_mask``" if shared else "one core with operands in its own memory"
    doc = f"Write the {form.dtype.numpy.name} gradient to ``{names[2]}``, on {where}."
    more = " and a core_mask" if shared else "; the private form has no core_mask"
    usage = f"it takes {', '.join(names[:4])}{more}"
    return declared(form.name, __name__, doc, takes, lambda given: _run(form, given), usage)


_FORMS = [
    _Form(operator, *kind, storage)
    for operator in CARDS
    for storage in ("shared", "private")
    for kind in (("fp", FP32, "ft78ne"), ("hp", FP16, "mt7004"))
]
globals().update({form.name: _function(form) for form in _FORMS})
__all__ = ["using", *(form.name for form in _FORMS)]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Result]:
        """The functions, which are made above."""


def _run(form: _Form, given: dict[str, Any]) -> Result:
    """Check and view the operands, run the operator, copy its result into the third array."""
    wanted, kind, (*names, target_name) = form.dtype, form.storage, form.operands
    options = {key: given[key] for key in ("core_mask",) if key in given} | given["options"]
    storage = options.pop("storage", kind)
    if (storage == "private") != (kind == "private"):
        raise ArgumentError(f"storage is {storage!r}; this is the {kind} form, call the other one")
    p = frozen(given["param"])
    operands = {name: _viewed(name, given[name], wanted, p) for name in names}
    if options.get("device") is None:
        options = options | {"device": _device.get() or form.device}
    target = None
    if not any(isinstance(given[name], Spec) for name in names):
        limits = facts(form.operator, operands, p, kind, options.get("core_mask"))
        rules = options.get("rules", "documented")
        CARDS[form.operator].check(limits, load_device(options["device"]), rules)
        target = _target(target_name, given[target_name], wanted, p)  # its shape follows from param
    made = CARDS[form.operator].function(*operands.values(), p, storage=storage, **options)
    if target is not None and made.outputs is not None:
        (computed,) = made.outputs
        assert computed is not None  # the one output is never masked out
        np.copyto(target, computed.reshape(target.shape), casting="equiv")
    return made


def _viewed(name: str, value: Any, wanted: DType, p: Any) -> Operand:
    """An operand of the form's type, as ``p`` shapes it if it is flat and has as many elements."""
    if isinstance(value, int):
        text = f"{name} is the number {value:#x}; pass the NumPy array that lies at this address"
        raise ArgumentError(f"{text}, or npusim.spec(shape, dtype) for the time alone")
    array = operand(value)
    found = dtype(array.dtype)
    if found != wanted:
        forms = {FP32: "fp_ takes float32", FP16: "hp_ takes float16"}
        way_out = "convert it, or call the other form"
        raise ArgumentError(f"{name} is {found}; {forms[wanted]}: {way_out}")
    whole = isinstance(p, tuple) and len(p) >= len(PARAM) and all(isinstance(i, int) for i in p)
    shape = _SHAPES[name](p) if whole and p[16] > 0 else ()
    if not shape or tuple(array.shape) != (prod(shape),):
        return array
    return Spec(shape, wanted) if isinstance(array, Spec) else array.reshape(shape)


def _target(name: str, array: Any, wanted: DType, p: tuple[int, ...]) -> Array:
    """The caller's array that the gradient goes to, untouched so far."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        what = "a read-only array" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise ArgumentError(f"{name} is {what}; it must be a NumPy array that can be written")
    shape = _SHAPES[name](p)
    if tuple(_viewed(name, array, wanted, p).shape) != shape:
        raise ArgumentError(
            f"{name} has shape {array.shape}; param makes it {shape}, or flat ({prod(shape)},)"
        )
    return array
