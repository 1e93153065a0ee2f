"""Measured kernels that are no matrix product, as the same loop nests here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from npusim.base.dtypes import DType, dtype
from npusim.base.errors import NpusimError
from npusim.call.call import simulate
from npusim.device.spec import Device
from npusim.isa.operands import Tensor
from npusim.kernels.conv_forward import ConvForward
from npusim.kernels.implicit_gemm import Tiling as ConvTiling
from npusim.kernels.stream import (
    OPERATIONS,
    CopyIn,
    CopyInNz,
    CopyTiling,
    Elementwise,
    NdToNz,
    NzTiling,
    StreamTiling,
)
from npusim.program.kernel import Kernel
from npusim.shapes.convolution import Convolution
from npusim.validation.profiler import groups_of, reported
from npusim.validation.rows import Declined, KernelRow, Simulated

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
    words, make = _PLANS[row.op]
    for word in row.switches:
        if word not in words:
            raise Declined(f"switches: {row.op} with {word!r} is not modelled")
    try:
        plan = make(row, device)
        groups = groups_of(row, device, plan.kernel.role)
        result = simulate(plan.kernel, device, cores=groups, timeline=False)
    except NpusimError as error:
        raise Declined(str(error)) from error
    run, role = result.runs[0], plan.kernel.role
    return reported(run, row, device, role, plan.notes, cores=row.cores, blind=plan.blind)


def _need(row: KernelRow, *columns: str) -> tuple[int, ...]:
    """The integers in ``columns``."""
    for column in columns:
        if getattr(row, column) is None:
            raise Declined(f"{column} is empty: a {row.op} needs it")
    return tuple(int(getattr(row, column)) for column in columns)


def _type(row: KernelRow) -> DType:
    if row.dtype_in is None or row.dtype_in != row.dtype_out:
        raise Declined(f"dtype_in {row.dtype_in}, dtype_out {row.dtype_out}: they must be the same")
    return dtype(row.dtype_in)


# -- copies and conversions --------------------------------------------------------------------


def _copy(row: KernelRow, device: Device) -> _Plan:
    m, n, rows, columns = _need(row, "M", "N", "base_m", "base_n")
    words = set(row.switches)
    quarters, shared = "repeat4_quarters" in words, bool(words & _SHARED)
    again = quarters or "repeat4_whole" in words
    if (row.batch or 1) > 1 and not shared and not again:
        raise Declined(f"batch is {row.batch}: no word tells what is read again")
    tiling = CopyTiling(
        rows=rows,
        columns=columns,
        bands=_REPEATS if quarters else 1,
        passes=_REPEATS if again else 1,
        shared=shared,
        rotated="all_cores_rotated" in words,
        slots=row.buffers_l1[0] if row.buffers_l1 else 1,
    )
    x = Tensor("x", (m, n), _type(row))
    return _Plan(CopyInNz(tiling, x) if row.op == "copy_gm_l1" else CopyIn(tiling, x))


def _nd2nz(row: KernelRow, device: Device) -> _Plan:
    m, n, rows, columns = _need(row, "M", "N", "base_m", "base_n")
    kind, pitch = _type(row), rows
    for word in row.switches:
        if word.startswith(_PITCH):
            pitch = int(word.removeprefix(_PITCH))
    c0 = 32 // kind.bytes
    x, y = Tensor("x", (m, n), kind), Tensor("y", (n // c0, m, c0), kind, "out")
    tiling = NzTiling(rows=rows, columns=columns, pitch=pitch, slots=_slots(row))
    notes = ("the banks of UB are not modelled: the pitch in it changes no time",)
    return _Plan(NdToNz(tiling, x, y), notes)


def _slots(row: KernelRow) -> int:
    return 2 if "double_buffer_ub" in row.switches else 1


# -- element-wise ------------------------------------------------------------------------------


def _elementwise(row: KernelRow, device: Device) -> _Plan:
    m, n = _need(row, "M", "N")
    kind, operation = _type(row), _STAND_INS.get(row.op, row.op)
    inputs = OPERATIONS[operation][1]
    piece = (row.base_m or 1) * row.base_n if row.base_n else 0
    notes, blind = [], []
    if not piece:
        fit = device.memory("UB").size_bytes // (_slots(row) * (inputs + 1) * kind.bytes)
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
    tiling = StreamTiling(piece=piece, slots=_slots(row), cores=row.cores)
    operands = tuple(Tensor(f"x{i}", (m, n), kind) for i in range(inputs))
    kernel = Elementwise(operation, tiling, operands, Tensor("z", (m, n), kind, "out"))
    return _Plan(kernel, tuple(notes), tuple(blind))


# -- convolution -------------------------------------------------------------------------------


def _conv(row: KernelRow, device: Device) -> _Plan:
    """Implicit product on 5HD: base_k columns of C1 and taps per mmad, whole slabs in L1."""
    base_m, base_n, base_k, cout = _need(row, "base_m", "base_n", "base_k", "N")
    step_a, step_b = _need(row, "step_ka", "step_kb")
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
    out, fractals = shape.out, shape.plan.cin1_g * shape.taps
    x = Tensor("x", (shape.n, 1, shape.cin1, *shape.spatial[1:], c0), kind)
    w = Tensor("w", (fractals, shape.plan.cout_g // 16, 16, c0), kind)
    y = Tensor("y", (shape.n, 1, shape.cout1, *out[1:], c0), kind, "out")
    kernel = ConvForward(shape, tiling, x, w, y)
    return _Plan(kernel, _conv_notes(kernel, base_m))


def _conv_notes(kernel: ConvForward, base_m: int) -> tuple[str, ...]:
    positions = kernel.plane.most_positions
    if positions == base_m:
        return ()
    return (f"a tile holds {positions} positions, not {base_m}: it is whole rows of the output",)


#: Words that say how often and by whom the data of a copy are read.
_REPEATS = 4
_SHARED = frozenset(("all_cores_same_order", "all_cores_rotated"))

#: Followed by the distance of NZ columns in UB, in blocks of 32 B.
_PITCH = "dst_c0_stride_"

#: Operations whose time is that of memory, by what is computed in their place.
_STAND_INS: Mapping[str, str] = {"gelu": "gated", "gelu_eltwise": "gated"}

_CONV_FORM = "N=.. C1=.. H=.. W=.. C0=..; KHxKW stride .. pad .. dilation .."
_CONV = re.compile(
    r"N=(?P<n>\d+) C1=(?P<c1>\d+) H=(?P<h>\d+) W=(?P<w>\d+) C0=(?P<c0>\d+); "
    r"(?P<kh>\d+)x(?P<kw>\d+) stride (?P<stride>\d+) pad (?P<pad>\d+) dilation (?P<dilation>\d+)"
)

_UB_WORDS = ("single_buffer_ub", "double_buffer_ub")
_COPY_WORDS = ("unaligned", "repeat4_whole", "repeat4_quarters", *sorted(_SHARED))

#: Operation -> the words that mean something for it, and what makes its kernel.
_PLANS: Mapping[str, tuple[tuple[str, ...], Callable[[KernelRow, Device], _Plan]]] = {
    "copy_gm_ub": (_COPY_WORDS, _copy),
    "copy_gm_l1": ((*_COPY_WORDS, "nd2nz", "nd2nz_in_mte2"), _copy),
    "nd2nz_vector": ((*_UB_WORDS, "dst_c0_stride_144", "dst_c0_stride_145"), _nd2nz),
    "add": ((*_UB_WORDS, "l2_bypass", "no_bank_conflict"), _elementwise),
    "relu": (_UB_WORDS, _elementwise),
    "gelu": (_UB_WORDS, _elementwise),
    "gelu_eltwise": (
        (*_UB_WORDS, "vec_width_128B", "vec_width_256B", "loop_split", "unroll"),
        _elementwise,
    ),
    "conv2d_fwd": (("double_buffer_l1", "double_buffer_l0", "img2col_in_mte1"), _conv),
}
