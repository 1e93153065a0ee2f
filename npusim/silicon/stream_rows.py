"""Measured kernels other than matrix products, as the same loop nests here."""

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
from npusim.silicon.rows import Declined, KernelRow, SimulatedRow, needed, switch_settings

#: Operations that no kernel here computes, and the reasons.
_MISSING: Mapping[str, str] = {
    "topk": "the sorting instructions of the vector unit are not modelled",
    "softmax": "this library has no kernel of a softmax",
    "layernorm": "this library has no kernel of a normalization",
    "attention": "this library has no kernel of attention",
    "flash_attention": "this library has no kernel of attention",
}


@dataclass(frozen=True)
class _Plan:
    """A kernel to run, notes on it, and the pipes whose busy time would mislead."""

    kernel: Kernel
    notes: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()


def simulate_stream_row(row: KernelRow, device: Device) -> SimulatedRow:
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
    return reported(
        result.runs[0],
        row,
        device,
        plan.kernel.role,
        plan.notes,
        cores=row.cores,
        blind=plan.blind,
    )


def _dtype(row: KernelRow) -> DType:
    """The dtype of a row's operands, which is that of its result."""
    if row.dtype_in is None or row.dtype_in != row.dtype_out:
        raise Declined(f"dtype_in {row.dtype_in}, dtype_out {row.dtype_out}: they must be the same")
    return dtype(row.dtype_in)


# -- copies and conversions --------------------------------------------------------------------


def _copy(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    """Loads of pieces of (base_m, base_n) from GM, to L1 in blocks or to UB as they lie."""
    m, n, rows, columns = needed(row, "M", "N", "base_m", "base_n")
    if (row.batch or 1) > 1 and not sets:
        raise Declined(f"batch is {row.batch}: no word tells what is read again")
    slots, _ = row.buffers_l1 or (1, 1)
    tiling = stream.CopyTiling(rows=rows, columns=columns, slots=slots, **sets)
    x = Tensor("x", (m, n), _dtype(row))
    if row.op == "copy_gm_l1":
        return _Plan(stream.CopyInNz(tiling, x))
    return _Plan(stream.CopyIn(tiling, x))


def _nd2nz(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    """A conversion of (M, N) to blocks of C0 columns, 32 B, through UB."""
    m, n, rows, columns = needed(row, "M", "N", "base_m", "base_n")
    kind = _dtype(row)
    c0 = 32 // kind.bytes
    x = Tensor("x", (m, n), kind)
    y = Tensor("y", (n // c0, m, c0), kind, "out")
    tiling = stream.NzTiling(
        rows=rows,
        columns=columns,
        pitch=sets.get("pitch", rows),
        slots=sets.get("ub_slots", 1),
    )
    notes = ("the banks of UB are not modelled: the pitch in it changes no time",)
    return _Plan(stream.NdToNz(tiling, x, y), notes)


# -- element-wise ------------------------------------------------------------------------------


def _elementwise(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    """An element-wise stream of pieces through UB; the pipes of stand-ins have no busy time."""
    m, n = needed(row, "M", "N")
    kind = _dtype(row)
    operation = _STAND_INS.get(row.op, row.op)
    inputs = len(stream.inputs_of(operation))
    slots = sets.get("ub_slots", 1)
    notes: list[str] = []
    blind: list[str] = []
    piece = (row.base_m or 1) * (row.base_n or 0)
    if not piece:
        most = device.memory("UB").size_bytes // (slots * (inputs + 1) * kind.bytes)
        piece = min(most, n) // 16 * 16
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
    z = Tensor("z", (m, n), kind, "out")
    kernel = stream.Elementwise(operation, tiling, operands, z)
    return _Plan(kernel, tuple(notes), tuple(blind))


# -- convolution -------------------------------------------------------------------------------


def _conv(row: KernelRow, device: Device, sets: Mapping[str, Any]) -> _Plan:
    """Implicit product on 5HD: base_k columns of C1 and taps per mmad, whole slabs in L1."""
    base_m, _, _, cout = needed(row, "base_m", "base_n", "base_k", "N")
    needed(row, "step_ka", "step_kb")
    layer = _layer(row, cout)
    tiling = _conv_tiling(row, layer)
    kind = _dtype(row)
    x = Tensor("x", (layer.n, 1, layer.cin1, *layer.spatial[1:], layer.c0), kind)
    w = Tensor("w", layer.fractals, kind)
    y = Tensor("y", (layer.n, 1, layer.cout1, *layer.out[1:], layer.c0), kind, "out")
    kernel = ConvForward(layer, tiling, x, w, y)
    positions = kernel.plane.most_positions
    if positions == base_m:
        return _Plan(kernel)
    note = f"a tile holds {positions} positions, not {base_m}: it is whole rows of the output"
    return _Plan(kernel, (note,))


def _layer(row: KernelRow, cout: int) -> Convolution:
    """The layer that the column ``conv`` spells, with ``cout`` output channels."""
    match = _CONV.search(row.conv or "")
    if match is None:
        raise Declined(f"conv is {row.conv!r}; expected {_CONV_FORM}")
    size = {name: int(value) for name, value in match.groupdict().items()}
    sides = (size["pad"], size["pad"])
    return Convolution(
        n=size["n"],
        cin=size["c1"] * size["c0"],
        cout=cout,
        spatial=(1, size["h"], size["w"]),
        kernel=(1, size["kh"], size["kw"]),
        stride=(1, size["stride"], size["stride"]),
        padding=((0, 0), sides, sides),
        dilation=(1, size["dilation"], size["dilation"]),
        c0=size["c0"],
    )


def _conv_tiling(row: KernelRow, layer: Convolution) -> ConvTiling:
    """The tiling of a convolution in the words of this library's loop nest."""
    base_m, base_n, base_k = needed(row, "base_m", "base_n", "base_k")
    step_a, step_b = needed(row, "step_ka", "step_kb")
    slots_a, slots_b = row.buffers_l1 or (1, 1)
    return ConvTiling(
        base_m=base_m,
        base_n=base_n,
        base_k=base_k,
        step_planes=max(1, step_a * base_k // (layer.taps * layer.c0)),
        step_columns=max(1, step_b * base_k // layer.c0),
        l1_slots=slots_a,
        weight_slots=slots_b,
        l0_slots=row.buffers_l0 or 1,
        l0c_slots=row.buffers_l0c or 1,
    )


#: Operations whose time is that of memory, by the operation that takes their place.
_STAND_INS: Mapping[str, str] = {"gelu": "gated", "gelu_eltwise": "gated"}

_CONV_FORM = "N=.. C1=.. H=.. W=.. C0=..; KHxKW stride .. pad .. dilation .."
_CONV = re.compile(
    r"N=(?P<n>\d+) C1=(?P<c1>\d+) H=(?P<h>\d+) W=(?P<w>\d+) C0=(?P<c0>\d+); "
    r"(?P<kh>\d+)x(?P<kw>\d+) stride (?P<stride>\d+) pad (?P<pad>\d+) dilation (?P<dilation>\d+)"
)

#: Makers of the kernel of an operation, from the row, the device and the settings of its switches.
_PLANS: Mapping[str, Callable[[KernelRow, Device, Mapping[str, Any]], _Plan]] = {
    "copy_gm_ub": _copy,
    "copy_gm_l1": _copy,
    "nd2nz_vector": _nd2nz,
    "add": _elementwise,
    "relu": _elementwise,
    "gelu": _elementwise,
    "gelu_eltwise": _elementwise,
    "conv2d_fwd": _conv,
}
