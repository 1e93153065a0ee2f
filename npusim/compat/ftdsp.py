"""The DSP library's filter gradient of a transposed convolution, as its C header declares it.

    fp_deconv_grad_filter_s(dy, x, dw, param, core_mask)    # operands every core shares
    fp_deconv_grad_filter_p(dy, x, dw, param)               # operands of one core's own memory

``fp_`` takes float32, ``hp_`` float16 (MT7004 only). ``dy``, ``x`` and ``dw`` are NumPy arrays,
flat as C's pointers or with their shapes: (batch, out_h, out_w, out_c), (batch, in_h, in_w, in_c)
and (group, out_c / group * kernel_h * kernel_w, in_c / group). ``dw`` is written in place.
``param`` is the array of 18 integers, or 20 as in the example. An address in param[17] other than
0 gives the call a workspace for im2row, whose traffic is in the time; where it points to does not
matter. The shared forms have their operands in DDR; with ``storage="gsm"`` they lie in the on-chip
memory that the cores share.

Unlike the C functions these return something: the ``npusim.Result``. They run on the FT78NE
(``fp_``) or the MT7004 (``hp_``), on another device with the keyword ``device``, or in a block::

    with using("mt7004"):
        result = fp_deconv_grad_filter_s(dy, x, dw, param, 0b1111)

Further keywords are those of ``npusim.call.Options``. With an ``npusim.spec`` in place of
``dy`` or ``x`` the run is timing-only and ``dw`` is neither read nor written (it may be None).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np

from npusim.call.spec import Array, Operand, Spec
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32, DType, dtype
from npusim.errors import ArgumentError
from npusim.limits.table import check
from npusim.ops.arguments import frozen
from npusim.ops.deconv_grad_filter import deconv_grad_filter, facts
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


def fp_deconv_grad_filter_s(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Sequence[int],
    core_mask: int,
    **options: Any,
) -> Result:
    """Write the float32 gradient to ``dw``, on the cores whose bits are set in ``core_mask``."""
    return _run(FP32, "ft78ne", (dy, x, dw), param, "shared", {"core_mask": core_mask} | options)


def hp_deconv_grad_filter_s(
    dy: Operand,
    x: Operand,
    dw: Array | None,
    param: Sequence[int],
    core_mask: int,
    **options: Any,
) -> Result:
    """Write the float16 gradient to ``dw``, on the cores whose bits are set in ``core_mask``."""
    return _run(FP16, "mt7004", (dy, x, dw), param, "shared", {"core_mask": core_mask} | options)


def fp_deconv_grad_filter_p(
    dy: Operand, x: Operand, dw: Array | None, param: Sequence[int], **options: Any
) -> Result:
    """Write the float32 gradient to ``dw``, on one core with operands in its own memory."""
    return _run(FP32, "ft78ne", (dy, x, dw), param, "private", options)


def hp_deconv_grad_filter_p(
    dy: Operand, x: Operand, dw: Array | None, param: Sequence[int], **options: Any
) -> Result:
    """Write the float16 gradient to ``dw``, on one core with operands in its own memory."""
    return _run(FP16, "mt7004", (dy, x, dw), param, "private", options)


def _run(
    wanted: DType,
    default: str,
    arrays: tuple[Operand, Operand, Array | None],
    param: Sequence[int],
    form: str,
    options: dict[str, Any],
) -> Result:
    """Check and view the operands, run the operator, copy its result into ``dw``."""
    storage = options.pop("storage", form)
    if (storage == "private") != (form == "private"):
        raise ArgumentError(f"storage is {storage!r}; this is the {form} form, call the other one")
    dy, x, dw = arrays
    p = frozen(param)
    sizes = p if isinstance(p, tuple) else ()
    grad, read = _viewed("dy", dy, wanted, sizes[4:8]), _viewed("x", x, wanted, sizes[:4])
    if options.get("device") is None:
        options = options | {"device": _device.get() or default}
    target = None
    if not (isinstance(dy, Spec) or isinstance(x, Spec)):
        limits = facts(grad, read, p, form, options.get("core_mask"))
        rules = options.get("rules", "documented")
        check("deconv_grad_filter", limits, load_device(options["device"]), rules)
        target = _target(dw, wanted, p)  # after the limits, as its shape follows from param
    result = deconv_grad_filter(grad, read, p, storage=storage, **options)
    if target is not None and result.outputs is not None:
        (computed,) = result.outputs
        assert computed is not None  # the one output is never masked out
        np.copyto(target, computed.reshape(target.shape), casting="no")
    return result


def _viewed(name: str, value: Any, wanted: DType, shape: tuple[int, ...]) -> Operand:
    """An operand of the form's type, as ``shape`` if it is flat and has that many elements."""
    array = value if isinstance(value, Spec) else np.asarray(value)
    found = dtype(array.dtype)
    if found != wanted:
        forms = {FP32: "fp_ takes float32", FP16: "hp_ takes float16"}
        way_out = "convert it, or call the other form"
        raise ArgumentError(f"{name} is {found}; {forms[wanted]}: {way_out}")
    whole = all(isinstance(size, int) for size in shape)
    if not shape or not whole or tuple(array.shape) != (prod(shape),):
        return array
    return Spec(shape, wanted) if isinstance(array, Spec) else array.reshape(shape)


def _target(dw: Any, wanted: DType, p: tuple[int, ...]) -> Array:
    """The caller's array that the gradient goes to, untouched so far."""
    if not isinstance(dw, np.ndarray) or not dw.flags.writeable:
        what = "a read-only array" if isinstance(dw, np.ndarray) else f"a {type(dw).__name__}"
        raise ArgumentError(f"dw is {what}; it must be a NumPy array that can be written")
    shape = (p[16], p[7] // p[16] * p[8] * p[9], p[3] // p[16])
    if tuple(_viewed("dw", dw, wanted, shape).shape) != shape:
        raise ArgumentError(
            f"dw has shape {dw.shape}; param makes it {shape}, or flat ({prod(shape)},)"
        )
    return dw
