"""Measured framework calls, as the operators here that launch the same work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

from npusim.base.dtypes import FP32, INT32, DType, dtype
from npusim.base.errors import ArgumentError, told_as
from npusim.call.call import simulate
from npusim.call.options import Options
from npusim.call.spec import spec
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.cast import Cast, cast
from npusim.kernels.layout.trans_data import TransData
from npusim.kernels.layout.transpose import Transpose
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.timing.trace import KernelRun
from npusim.networks.run.launched_operation import CLEARING, CONVERSIONS
from npusim.networks.run.step import step
from npusim.ops import convolution_backward, matmul
from npusim.ops.conv_backward import arguments
from npusim.problem.convolution import Convolution
from npusim.results import Result
from npusim.results.facts.least import on_silicon
from npusim.silicon.rows import PARTS, CallRow, Declined, NetworkRow, SimulatedRow, needed
from npusim.silicon.stacks import stack_keywords

#: Kernels that a call may name.
_KERNELS = (
    TransData,
    MemSet,
    Cast,
    Matmul,
    Transpose,
    ConvForward,
    ConvBackpropFilter,
    ConvBackpropInput,
)
#: Their names by the names that libraries give them; those of any rank and version.
_LIBRARY = {name: kernel.name for kernel in _KERNELS for name in kernel.library}
#: Kernels that a call with groups launches, after the filter gradients whose lists are published:
#: four conversions, two clearings, one convolution.
_GROUPED = 7
_GROUPED_NOTE = "kernels are not listed: seven launches, as published for other calls with groups"
#: Products whose library convolves plain tensors forward in one kernel, as their loads convert.
_PLAIN = ("950",)
#: A plain rule among the forms of the library's kernels, where its own is not known.
_LIBRARY_TILING = "library"
#: A call's name for a forward convolution; those measured add a bias.
_FORWARD = "convolution_forward_as_transposed_dx"
_COUNTED = re.compile(r"(\w+?)x(\d{1,6})", re.ASCII)


def simulate_call_row(row: CallRow, device: Device, tiling: Any = "production") -> SimulatedRow:
    """Simulate every kernel of a call, with ``tiling`` as the operators take it.

    Where the library's rule is not known for the call, "production" is "library", the best of ours
    in the forms of kernel that the library has. Where the row names the kernels that were launched,
    others do not count, nor does one that is launched again more often than named, and one that is
    named but not launched here counts as a launch without work. Notes say so. Kernels are those of
    a call by itself and begin with a cold L2, unless the row states ``launch`` and ``start``.
    Raises ``Declined`` for a call, dtype or size without a counterpart.
    """
    if row.call not in _CALLS:
        raise Declined(f"call {row.call!r} is not known; it is one of {', '.join(_CALLS)}")
    with told_as(Declined):
        device = device.launching(row.launch or Options.launch)
        result, notes = _run(row, device, tiling)
    launched = _launched(row, device, result.runs)
    cycles = sum(run.cycles + run.launch_cycles for run in launched.runs)
    cycles += launched.missing * device.launch.cycles("vector", device.count("vector"))
    return SimulatedRow(
        time_us=device.time_us(cycles),
        busy_us={},
        kernels=tuple(run.name for run in launched.runs),
        notes=(*notes, *launched.notes),
        bounds=on_silicon(device, result.problem_bounds),
        from_memory_us=result.at_least.cold.us,
    )


def _run(row: CallRow, device: Device, tiling: Any) -> tuple[Result, tuple[str, ...]]:
    """The result of the call, and a note where the tiling is not the one asked for."""
    call = _CALLS[row.call]
    if tiling != "production":
        return call.simulate(row, device, tiling), ()
    if not call.rule_is_known:
        rule = _LIBRARY_TILING if row.call.startswith("convolution") else "auto"
        return call.simulate(row, device, rule), ()
    try:
        return call.simulate(row, device, tiling), ()
    except ArgumentError as error:  # whatever else is wrong with the row is wrong again
        note = f"tiling 'library' instead: {error}"
        return call.simulate(row, device, _LIBRARY_TILING), (note,)


class _Launched(NamedTuple):
    """The runs that count, the number of launches that have none, and notes on both."""

    runs: tuple[KernelRun, ...]
    missing: int = 0
    notes: tuple[str, ...] = ()


def _launched(row: CallRow, device: Device, runs: tuple[KernelRun, ...]) -> _Launched:
    """The launches of a call, as the row names them or as published of calls like it."""
    if row.kernels:
        return _as_named(row, device, runs)
    if row.call != _FORWARD:
        return _Launched(runs)
    if device.product not in _PLAIN:
        if (row.groups or 1) > 1:
            return _Launched(runs, max(0, _GROUPED - len(runs)), (_GROUPED_NOTE,))
        return _Launched(runs)
    without_conversions = tuple(run for run in runs if run.name != TransData.name)
    note = "forward convolutions read plain tensors on this chip: no conversions"
    return _Launched(without_conversions, 0, (note,))


def _as_named(row: CallRow, device: Device, runs: tuple[KernelRun, ...]) -> _Launched:
    """The launches that the column ``kernels`` names, with their counts."""
    counts = _named_counts(row)
    counted: list[KernelRun] = []
    seen: Counter[str] = Counter()
    for run in runs:
        if seen[run.name] < counts.get(run.name, 0):
            counted.append(run)
        seen[run.name] += 1
    others = sorted(seen.keys() - counts.keys())
    notes = [f"not counted, as the call launched none: {name}" for name in others]
    missing = 0
    for name, count in counts.items():
        here = seen[name]
        if here != count:
            notes.append(f"{name}: launched {here} times here, {count} times by the call")
        if name == Cast.name and row.call == _FORWARD and here < count == 1:
            counted += _cast_of_bias(row, device)
            notes.append("cast: taken to be that of the bias, which the cube adds in fp32")
        else:
            missing += max(0, count - here)
    return _Launched(tuple(counted), missing, tuple(notes))


def _named_counts(row: CallRow) -> dict[str, int]:
    """The launches of each kernel in a call, by npusim's names, from texts like "TransDatax3"."""
    counts: dict[str, int] = {}
    for text in row.kernels:
        match = _COUNTED.fullmatch(text)
        if match is None or match[1] not in _LIBRARY:
            raise Declined(f"kernels: {text!r} has no counterpart here")
        name = _LIBRARY[match[1]]
        counts[name] = counts.get(name, 0) + int(match[2])
    return counts


def _cast_of_bias(row: CallRow, device: Device) -> list[KernelRun]:
    """The run that converts the bias of a forward convolution to fp32.

    The cube's bias table holds fp32. Library calls of fp16 convert as they load, those of bf16 list
    a Cast; their other operands and their result stay bf16.
    """
    channels, name = needed(row, "Cout", "dtype")
    bias = Tensor("bias", (channels,), dtype(name))
    wide = Tensor("bias_fp32", (channels,), FP32, "out")
    return list(simulate(cast(bias, wide), device, **_conditions(row)).runs)


class _Conditions(TypedDict):
    """The keywords of ``npusim.call.Options`` that say how a call was measured."""

    launch: str
    start: str
    timeline: bool


def _conditions(row: CallRow) -> _Conditions:
    """The launches and the L2 that a row states; by default single, and cold."""
    return {
        "launch": row.launch or Options.launch,
        "start": row.start or Options.start,
        "timeline": False,
    }


# -- convolutions ------------------------------------------------------------------------------


def _layer(row: CallRow, *, transposed: bool) -> Convolution:
    """The layer of a row, whose lists have one number per dimension."""
    n, cin, cout = needed(row, "N", "Cin", "Cout")
    dims = int(*needed(row, "dims"))

    def sizes(name: str, usual: int | None = None) -> tuple[int, ...]:
        value: tuple[int, ...] | None = getattr(row, name)
        if value is None and usual is not None:
            return (usual,) * dims
        if value is None or len(value) != dims:
            raise Declined(f"{name} is {value}: {dims} numbers are needed")
        return value

    return Convolution(
        n=n,
        cin=cin,
        cout=cout,
        spatial=sizes("spatial"),
        kernel=sizes("kernel"),
        stride=sizes("stride", 1),
        padding=tuple((p, p) for p in sizes("padding", 0)),
        dilation=sizes("dilation", 1),
        groups=row.groups or 1,
        transposed=transposed,
        output_padding=sizes("output_padding", 0) if transposed else (),
    )


def _backward(row: CallRow, device: Device, tiling: Any, c: Convolution, **wanted: Any) -> Result:
    """``convolution_backward`` of a layer, timing-only."""
    return convolution_backward(
        spec(c.dy_shape, row.dtype),
        spec(c.x_shape, row.dtype),
        spec(c.w_shape, row.dtype),
        **arguments(c),
        **wanted,
        cube_math_type=row.cube_math_type or "keep_dtype",
        device=device,
        tiling=tiling,
        rules="hardware",
        **_conditions(row),
    )


def _convolution_backward(row: CallRow, device: Device, tiling: Any) -> Result:
    """The gradients that ``output_mask`` names; of a transposed layer too."""
    (mask,) = needed(row, "output_mask")
    c = _layer(row, transposed=bool(row.transposed))
    bias = (c.cout,) if mask[2] else None
    return _backward(row, device, tiling, c, output_mask=mask, bias_sizes=bias)


def _forward(row: CallRow, device: Device, tiling: Any) -> Result:
    """A layer's output is the input gradient of the layer it is exchanged with."""
    c = _layer(row, transposed=row.call == "transposed_forward_as_dx").exchanged()
    return _backward(row, device, tiling, c, output_mask=(True, False, False))


# -- the others --------------------------------------------------------------------------------


def _matmul(row: CallRow, device: Device, tiling: Any) -> Result:
    """C[M, Ncols] = A[M, K] @ B[K, Ncols], all of one type."""
    m, n, k, name = needed(row, "M", "Ncols", "K", "dtype")
    return matmul(
        spec((m, k), name),
        spec((k, n), name),
        out_dtype=name,
        device=device,
        tiling=tiling,
        **_conditions(row),
    )


def _transpose(row: CallRow, device: Device, tiling: Any) -> Result:
    """One kernel; elements of 8 bytes are moved as two of 4."""
    shape, perm, name = needed(row, "shape", "perm", "dtype")
    if name in _EIGHT_BYTES:
        moved: DType = INT32
        shape = (*shape, 2)
        perm = (*perm, len(perm))
    else:
        moved = dtype(name)
    if sorted(perm) != list(range(len(shape))):
        raise Declined(f"perm is {perm}: it must name each of the {len(shape)} axes once")
    x = Tensor("x", shape, moved)
    y = Tensor("y", tuple(shape[axis] for axis in perm), moved, "out")
    return simulate(Transpose(perm, x, y), device, **_conditions(row))


_EIGHT_BYTES = ("int64", "uint64", "float64")


class _Call(NamedTuple):
    """A call: its simulation, and if the library's rule for its main kernel's tiling is known."""

    simulate: Callable[[CallRow, Device, Any], Result]
    rule_is_known: bool


#: Calls by the names of the column ``call``.
_CALLS: Mapping[str, _Call] = {
    "convolution_backward": _Call(_convolution_backward, rule_is_known=True),
    _FORWARD: _Call(_forward, rule_is_known=False),
    "transposed_forward_as_dx": _Call(_forward, rule_is_known=True),
    "matmul": _Call(_matmul, rule_is_known=False),
    "transpose": _Call(_transpose, rule_is_known=False),
}

# -- training steps ---------------------------------------------------------------------------

#: Parts of a step by the kind of operation.
_CONVOLUTIONS = {
    "convolution output": "forward",
    "convolution weight": "filter_gradients",
    "convolution input": "input_gradients",
}


def simulate_network_row(row: NetworkRow, device: Device) -> SimulatedRow:
    """The step of a row with the usual settings of its mode, in the types of its stack.

    Raises ``Declined`` for what a step cannot have here, and where some of it was not simulated.
    """
    mode, batch = needed(row, "mode", "batch")
    optional: dict[str, Any] = {**stack_keywords(row)}
    for name in ("optimizer", "cards"):
        if getattr(row, name) is not None:
            optional[name] = getattr(row, name)
    with told_as(Declined, caught=ArgumentError):
        result = step(row.network, device=device, mode=mode, batch=batch, jobs=1, **optional)
    if result.failed:
        first = result.failed[0]
        raise Declined(
            f"{len(result.failed)} operations, such as {first.name}: {first.timed.error}"
        )
    parts = dict.fromkeys(PARTS, 0.0)
    for kinds in result.kind_rows():
        part = _part(kinds["phase"], kinds["kind"])
        if part is not None:
            parts[part] += kinds["us"]
    return SimulatedRow(result.time_us, parts)


def _part(phase: str, kind: str) -> str | None:
    """The one of ``PARTS`` that operations of a kind belong to, None for others."""
    first = kind.partition(" + ")[0]  # one kernel may compute several
    if first in (CLEARING, CONVERSIONS) or first.startswith("cast"):
        return "casts"
    if phase == "optimizer":
        return phase
    if first.startswith("normalisation"):
        return "normalisation"
    return _CONVOLUTIONS.get(first)
