"""deconv_grad_filter: filter gradient of a transposed convolution, NHWC, on a DSP cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Spec
from npusim.call.tiling import chosen_tiling
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32, DType
from npusim.errors import ArgumentError
from npusim.kernels.deconv_grad_filter import DeconvGradFilter, DeconvShape, Tiling, auto_tiling
from npusim.limits.table import check
from npusim.ops.arguments import operand
from npusim.results import Result

_NAME = "deconv_grad_filter"
_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1


class _Entry(NamedTuple):
    """One entry of the parameter array: its name and the values it may have."""

    name: str
    low: int
    high: int


#: The parameter array, in order.
PARAM = (
    _Entry("input_batch", 1, _INT32),
    _Entry("in_h", 1, _INT32),
    _Entry("in_w", 1, _INT32),
    _Entry("in_c", 1, _INT32),
    _Entry("batch", 1, _INT32),
    _Entry("out_h", 1, _INT32),
    _Entry("out_w", 1, _INT32),
    _Entry("out_c", 1, _INT32),
    _Entry("kernel_h", 1, _INT32),
    _Entry("kernel_w", 1, _INT32),
    _Entry("stride_h", 1, _INT32),
    _Entry("stride_w", 1, _INT32),
    _Entry("pad_u", 0, _INT32),
    _Entry("pad_l", 0, _INT32),
    _Entry("dilation_h", 1, _INT32),
    _Entry("dilation_w", 1, _INT32),
    _Entry("group", 1, _INT32),
    _Entry("workspace address", 0, _INT64),
    _Entry("unused", -_INT64 - 1, _INT64),
    _Entry("unused", -_INT64 - 1, _INT64),
)


def deconv_grad_filter(
    dy: Array | Spec,
    x: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Device = "ft78ne",
    **options: Any,
) -> Result:
    """Gradient of a 2-D transposed convolution's filter.

    ``dy`` (batch, out_h, out_w, out_c) and ``x`` (batch, in_h, in_w, in_c) are arrays of one
    type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a timing-only run. ``param`` has the 20
    integers of ``PARAM``. There is no padding below or to the right: dy ends at out_h and out_w,
    and reads beyond it are zero.

    The result ``outputs[0]`` is (group, out_c / group * kernel_h * kernel_w, in_c / group) of the
    operands' type: the whole gradient, nothing is added to what dw held before.

    ``storage`` "shared" puts the operands into main memory and uses the cores of ``core_mask``
    (bit i is core i; None: all), with the same bits whatever the mask; "private" puts them into
    the memory of one core and takes no mask. The im2row workspace is the chunk buffer in SM,
    filled and paid for by the kernel; the address in ``param`` is not read.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.deconv_grad_filter.Tiling``. Raises ``ArgumentError`` naming the argument
    that does not fit.
    """
    grad, kind = operand("dy", dy, 4, "(batch, out_h, out_w, out_c)")
    read, read_kind = operand("x", x, 4, "(batch, in_h, in_w, in_c)")
    if kind != read_kind:
        raise ArgumentError(f"dy is {kind}, x is {read_kind}; {_NAME} takes one type for both")
    shape = _shape(param, tuple(grad.shape), tuple(read.shape))
    mask = _mask(core_mask, storage, options)
    timing_only = isinstance(dy, Spec) or isinstance(x, Spec)
    wanted = Options.of(
        deconv_grad_filter,
        options | {"device": device, "cores": mask},
        without=("deterministic",),
    )
    call = Call(_NAME, wanted, timing_only)
    _require(call, kind)
    facts = {
        "dtype": kind.name,
        "x.shape": tuple(read.shape),
        "dy.shape": tuple(grad.shape),
        "param": tuple(int(value) for value in param),
        "storage": storage,
        "core_mask": None if core_mask is None else sum(1 << group for group in call.groups),
    }
    call.notes += check(_NAME, facts, call.device, wanted.rules)
    size = (shape.group, shape.ocg * shape.taps, shape.icg)
    x_gm, dy_gm = call.input("x", read, kind), call.input("dy", grad, kind)
    dw_gm = call.output("dw", size, kind)
    if storage == "private":
        _use_private_memory(call, x_gm.size_bytes + dy_gm.size_bytes + dw_gm.size_bytes)
    cores = len(call.groups) * call.device.core_kind("dsp").per_group
    tiling = chosen_tiling(
        call.options.tiling, Tiling, lambda: auto_tiling(shape, kind, call.device, cores)
    )
    call.launch(DeconvGradFilter(shape, tiling, x_gm, dy_gm, dw_gm))
    if kind is FP16:
        call.notes.append(
            "hp accumulates in fp32 and rounds once, as dw is stored; the library does not "
            "document its own accumulation"
        )
    return call.result({"dw": call.arrays.get("dw")}, _problem(shape, kind, storage), kind)


def _shape(param: Any, dy: tuple[int, ...], x: tuple[int, ...]) -> DeconvShape:
    """The problem in ``param``, checked against both operands."""
    p = _entries(param)
    if p[0] != p[4]:
        raise ArgumentError(
            f"param[0] input_batch is {p[0]}, param[4] batch is {p[4]}; they must be equal"
        )
    for i in (3, 7):
        if p[i] % p[16]:
            raise ArgumentError(
                f"param[{i}] {PARAM[i].name} is {p[i]}; it must be a multiple of param[16] group, "
                f"which is {p[16]}"
            )
    for name, got, at in (("x", x, 0), ("dy", dy, 4)):
        if got != p[at : at + 4]:
            names = ", ".join(f"{PARAM[i].name} {p[i]}" for i in range(at, at + 4))
            raise ArgumentError(
                f"{name} has shape {got}; param[{at}] to param[{at + 3}] ({names}) make it "
                f"{p[at : at + 4]}"
            )
    return DeconvShape(
        batch=p[0],
        in_size=(p[1], p[2]),
        in_c=p[3],
        out_size=(p[5], p[6]),
        out_c=p[7],
        kernel=(p[8], p[9]),
        stride=(p[10], p[11]),
        pad=(p[12], p[13]),
        dilation=(p[14], p[15]),
        group=p[16],
    )


def _entries(param: Any) -> tuple[int, ...]:
    """The parameter array as ints, each in its range."""
    values = param.tolist() if isinstance(param, np.ndarray) else param
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(PARAM):
        count = f" of {len(values)}" if isinstance(values, Sequence) else ""
        raise ArgumentError(
            f"param is a {type(param).__name__}{count}; it must be a list of {len(PARAM)} "
            "integers, the last two unused"
        )
    for i, (value, entry) in enumerate(zip(values, PARAM, strict=True)):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not entry.low <= value <= entry.high:
            raise ArgumentError(
                f"param[{i}] {entry.name} is {value!r}; it must be an integer from {entry.low} to "
                f"{entry.high}"
            )
    return tuple(int(value) for value in values)


def _mask(core_mask: Any, storage: str, options: dict[str, Any]) -> Any:
    """The cores to use; the option ``cores`` of other operators is another word for the mask."""
    if storage not in ("shared", "private"):
        raise ArgumentError(f"storage is {storage!r}; it is 'shared' or 'private'")
    cores = options.pop("cores", None)
    if core_mask is not None and cores is not None:
        raise ArgumentError(
            f"core_mask is {core_mask!r} and cores is {cores!r}; they mean the same, give one"
        )
    mask = cores if core_mask is None else core_mask
    if storage == "private":
        if mask is not None:
            raise ArgumentError(
                f"core_mask is {mask!r}; with storage 'private' one core works on its own memory: "
                "leave the mask out, or use storage 'shared'"
            )
        return 1
    return mask


def _require(call: Call, kind: DType) -> None:
    """Raise unless the device is a DSP that multiplies ``kind``."""
    device = call.device
    device.core_kind("dsp")
    rates = device.gemm.rates if device.gemm else {}
    if kind.name not in rates:
        form = "hp (fp16)" if kind is FP16 else str(kind)
        raise ArgumentError(
            f"{_NAME}: {device.name} has no {form} form; it has {', '.join(rates)}"
            f"{': use float32, or device mt7004' if kind is FP16 else ''}"
        )
    if device.l2 is None and call.options.start == "warm":
        raise ArgumentError(
            f"start is 'warm'; {device.name} has no L2 that could hold inputs, use 'cold'"
        )


def _use_private_memory(call: Call, size: int) -> None:
    """Let GM mean the memory of the one core that runs, where ``size`` bytes must fit."""
    memory = call.device.private_memory
    if memory is None:
        raise ArgumentError(
            f"storage is 'private'; {call.device.name} has no private memory for operands, use "
            "'shared'"
        )
    if size > memory.size_bytes:
        raise ArgumentError(
            f"storage is 'private'; x, dy and dw take {size} B, the private memory of a core of "
            f"{call.device.name} holds {memory.size_bytes} B: use a smaller batch or 'shared'"
        )
    call.device = replace(call.device, main_memory=memory)
    call.notes.append("operands lie in the private memory of one core; main memory is not used")


def _problem(s: DeconvShape, kind: DType, storage: str) -> str:
    """One line for reports."""
    (h, w), (oh, ow), (kh, kw) = s.in_size, s.out_size, s.kernel
    groups = f", groups {s.group}" if s.group > 1 else ""
    dilation = f", dilation {list(s.dilation)}" if s.dilation != (1, 1) else ""
    form = "fp" if kind is FP32 else "hp"
    return (
        f"dw of transposed {s.in_c} -> {s.out_c} channels, {kh}x{kw}, stride {list(s.stride)}, "
        f"pad {list(s.pad)}{dilation}{groups}; x {s.batch}x{h}x{w}, dy {s.batch}x{oh}x{ow}; "
        f"{form}, {storage}"
    )
