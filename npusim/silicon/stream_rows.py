"""Measured kernels that are no matrix product, as the same loop nests here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from npusim.base.dtypes import DType, dtype
from npusim.base.errors import told_as
from npusim.call.call import simulate
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as ConvTiling
from npusim.kernels.vector import stream
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.problem.convolution import Convolution
from npusim.silicon.profiler import groups_of, reported
from npusim.silicon.rows import Declined, KernelRow, Simulated, needed, switch_settings

#: Operations that no kernel here computes, and what they would take.
_MISSING: Mapping[str, str] = {
    "topk": "the sorting instructions of the vector unit are not modelled",
    "softmax": "this library has no kernel of a softmax",
    "layernorm": "this library has no kernel of a normalization",
    "attention": "this library has no kernel of attention",
    "flash_attention": "this library has no kernel of attention",
}


@dataclass(frozen=True)
class _Plan:
    """A kernel to run, what to say of it, and the pipes whose busy time would mislead."""

    kernel: Kernel
    notes: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()


def simulate_stream_row(row: KernelRow, device: Device) -> Simulated:
    """Simulate a copy, an element-wise stream, a layout conversion or a convolution.

    Raises ``Declined`` naming the operation, word or column that has no counterpart here.
    """
    if row.op in _MISSING:
        raise Declined(f"op {row.op!r}: {_MISSING[row.op]}")
    if row.op not in _PLANS:
        raise Declined(f"op {row.op!r} is not known; there are {', '.join(sorted(_PLANS))}")
    sets = switch_settings(row, row.op)
    with told_as(Declined):
        plan = _PLANS[row.op](row, device, sets)
        groups = groups_of(row, device, plan.kernel.role)
        result = simulate(plan.kernel, device, cores=groups, timeline=False)
    run, role = result.runs[0], plan.kernel.role
    return reported(run, row, device, role, plan.notes, cores=row.cores, blind=plan.blind)


def _type(row: KernelRow) -> DType:
    if row.dtype_in is None or row.dtype_in != row.dtype_out:
        raise Declined(f"dtype_in {row.dtype_in}, dtype_out {row.dtype_out}: they must be the same")
    return dtype(row.dtype_in)


# -- copies and conversions --------------------------------------------------------------------


def _copy(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    m, n, rows, columns = needed(row, "M", "N", "base_m", "base_n")
    if (row.batch or 1) > 1 and not sets:
        raise Declined(f"batch is {row.batch}: no word tells what is read again")
    slots = row.buffers_l1[0] if row.buffers_l1 else 1
    tiling = stream.CopyTiling(rows=rows, columns=columns, slots=slots, **sets)
    x = Tensor("x", (m, n), _type(row))
    return _Plan(stream.CopyInNz(tiling, x) if row.op == "copy_gm_l1" else stream.CopyIn(tiling, x))


def _nd2nz(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    m, n, rows, columns = needed(row, "M", "N", "base_m", "base_n")
    kind, c0 = _type(row), 32 // _type(row).bytes
    x, y = Tensor("x", (m, n), kind), Tensor("y", (n // c0, m, c0), kind, "out")
    pitch, slots = sets.get("pitch", rows), sets.get("ub_slots", 1)
    tiling = stream.NzTiling(rows=rows, columns=columns, pitch=pitch, slots=slots)
    notes = ("the banks of UB are not modelled: the pitch in it changes no time",)
    return _Plan(stream.NdToNz(tiling, x, y), notes)


# -- element-wise ------------------------------------------------------------------------------


def _elementwise(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    m, n = needed(row, "M", "N")
    kind, operation = _type(row), _STAND_INS.get(row.op, row.op)
    inputs = len(stream.inputs_of(operation))
    piece, slots = (row.base_m or 1) * (row.base_n or 0), sets.get("ub_slots", 1)
    notes, blind = [], []
    if not piece:
        fit = device.memory("UB").size_bytes // (slots * (inputs + 1) * kind.bytes)
        piece = min(fit, n) // 16 * 16
        notes.append(f"base_n is empty: pieces of {piece} elements, the most of a row that fits")
    if operation != row.op:
        notes.append(f"{row.op} is simulated without exponentials, by a gate of straight lines")
        blind.append("vec")
    if "l2_bypass" in row.switches:
        notes.append("l2_bypass: the data pass through the L2, where nothing finds them again")
    if "no_bank_conflict" in row.switches:
        notes.append("no_bank_conflict: vector instructions are charged as with conflicts")
        blind.append("vec")
    tiling = stream.StreamTiling(piece=piece, slots=slots, cores=row.cores)
    operands = tuple(Tensor(f"x{i}", (m, n), kind) for i in range(inputs))
    kernel = stream.Elementwise(operation, tiling, operands, Tensor("z", (m, n), kind, "out"))
    return _Plan(kernel, tuple(notes), tuple(blind))


# -- convolution -------------------------------------------------------------------------------


def _conv(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    """Implicit product on 5HD: base_k columns of C1 and taps per mmad, whole slabs in L1."""
    base_m, base_n, base_k, cout = needed(row, "base_m", "base_n", "base_k", "N")
    step_a, step_b = needed(row, "step_ka", "step_kb")
    found = _CONV.search(row.conv or "")
    if found is None:
        raise Declined(f"conv is {row.conv!r}; expected {_CONV_FORM}")
    size = {name: int(value) for name, value in found.groupdict().items()}
    kind, c0, pad = _type(row), size["c0"], (size["pad"],) * 2
    shape = Convolution(
        n=size["n"],
        cin=size["c1"] * c0,
        cout=cout,
        spatial=(1, size["h"], size["w"]),
        kernel=(1, size["kh"], size["kw"]),
        stride=(1, size["stride"], size["stride"]),
        padding=((0, 0), pad, pad),
        dilation=(1, size["dilation"], size["dilation"]),
        c0=c0,
    )
    tiling = ConvTiling(
        base_m=base_m,
        base_n=base_n,
        base_k=base_k,
        step_planes=max(1, step_a * base_k // (shape.taps * c0)),
        step_columns=max(1, step_b * base_k // c0),
        l1_slots=row.buffers_l1[0] if row.buffers_l1 else 1,
        weight_slots=row.buffers_l1[1] if row.buffers_l1 else 1,
        l0_slots=row.buffers_l0 or 1,
        l0c_slots=row.buffers_l0c or 1,
    )
    x = Tensor("x", (shape.n, 1, shape.cin1, *shape.spatial[1:], c0), kind)
    w = Tensor("w", shape.fractals, kind)
    y = Tensor("y", (shape.n, 1, shape.cout1, *shape.out[1:], c0), kind, "out")
    kernel = ConvForward(shape, tiling, x, w, y)
    held = kernel.plane.most_positions
    note = f"a tile holds {held} positions, not {base_m}: it is whole rows of the output"
    return _Plan(kernel, () if held == base_m else (note,))


#: Operations whose time is that of memory, by what is computed in their place.
_STAND_INS: Mapping[str, str] = {"gelu": "gated", "gelu_eltwise": "gated"}

_CONV_FORM = "N=.. C1=.. H=.. W=.. C0=..; KHxKW stride .. pad .. dilation .."
_CONV = re.compile(
    r"N=(?P<n>\d+) C1=(?P<c1>\d+) H=(?P<h>\d+) W=(?P<w>\d+) C0=(?P<c0>\d+); "
    r"(?P<kh>\d+)x(?P<kw>\d+) stride (?P<stride>\d+) pad (?P<pad>\d+) dilation (?P<dilation>\d+)"
)

#: What makes the kernel of an operation, given what the switches set.
_PLANS: Mapping[str, Callable[[KernelRow, Device, Mapping[str, Any]], _Plan]] = {
    **dict.fromkeys(("copy_gm_ub", "copy_gm_l1"), _copy),
    "nd2nz_vector": _nd2nz,
    **dict.fromkeys(("add", "relu", "gelu", "gelu_eltwise"), _elementwise),
    "conv2d_fwd": _conv,
}
