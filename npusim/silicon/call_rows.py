"""Measured framework calls, as the operators here that launch the same work."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from npusim.base.dtypes import FP32, INT32, DType, dtype
from npusim.base.errors import ArgumentError, told_as
from npusim.call.call import simulate
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
from npusim.networks.run.step import step
from npusim.networks.run.step_result import CLEARING, CONVERSIONS
from npusim.ops import convolution_backward, matmul
from npusim.ops.convolution_backward import arguments
from npusim.problem.convolution import Convolution
from npusim.results import Result
from npusim.results.facts.least import on_silicon
from npusim.silicon.sheet import PARTS, CallRow, Declined, NetworkRow, Simulated, needed

#: Kernels by the names that libraries give them; those of any rank and version.
_LIBRARY = {
    name: kernel.name
    for kernel in (
        *(TransData, MemSet, Cast, Matmul, Transpose),
        *(ConvForward, ConvBackpropFilter, ConvBackpropInput),
    )
    for name in kernel.library
}
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


def simulate_call_row(row: CallRow, device: Device, tiling: Any = "production") -> Simulated:
    """Simulate every kernel of a call, with ``tiling`` as the operators take it.

    Where the library's rule is not known for the call, "production" is "library", the best of ours
    in the forms of kernel that the library has. Where the row names
    the kernels that were launched, others do not count, nor does one that is launched again more
    often than named, and one that is named but not launched here counts as a launch without work.
    Notes say so. Raises ``Declined`` for a call, type or size without a counterpart.
    """
    if row.call not in _CALLS:
        raise Declined(f"call {row.call!r} is not known; it is one of {', '.join(_CALLS)}")
    with told_as(Declined):
        result, chosen = _run(row, device, tiling)
    runs, extra, notes = _launched(row, device, result.runs)
    cycles = sum(run.cycles + run.launch_cycles for run in runs)
    cycles += extra * device.launch.cycles("vector", device.count("vector"))
    return Simulated(
        time_us=device.time_us(cycles),
        busy_us={},
        kernels=tuple(run.name for run in runs),
        notes=(*chosen, *notes),
        bounds=on_silicon(device, result.problem_bounds),
        from_memory_us=result.at_least.cold.us,
    )


def _run(row: CallRow, device: Device, tiling: Any) -> tuple[Result, tuple[str, ...]]:
    """The result of the call, and a note where the tiling is not the one asked for."""
    simulate_call, ruled = _CALLS[row.call]
    if tiling != "production" or not ruled:
        plain = _LIBRARY_TILING if row.call.startswith("convolution") else "auto"
        return simulate_call(row, device, plain if tiling == "production" else tiling), ()
    try:
        return simulate_call(row, device, tiling), ()
    except ArgumentError as error:  # whatever else is wrong with the row is wrong again
        note = f"tiling 'library' instead: {error}"
        return simulate_call(row, device, _LIBRARY_TILING), (note,)


def _launched(
    row: CallRow, device: Device, runs: tuple[KernelRun, ...]
) -> tuple[list[KernelRun], int, tuple[str, ...]]:
    """The runs that count, how many launches are missing among them, and notes on both."""
    if not row.kernels:
        if row.call != _FORWARD:
            return list(runs), 0, ()
        if (row.groups or 1) > 1:
            return list(runs), max(0, _GROUPED - len(runs)), (_GROUPED_NOTE,)
        if device.product not in _PLAIN:
            return list(runs), 0, ()
        alone = [run for run in runs if run.name != "trans_data"]
        return alone, 0, ("forward convolutions read plain tensors on this chip: no conversions",)
    named: dict[str, int] = {}
    for text in row.kernels:
        match = _COUNTED.fullmatch(text)
        if match is None or match[1] not in _LIBRARY:
            raise Declined(f"kernels: {text!r} has no counterpart here")
        named[_LIBRARY[match[1]]] = named.get(_LIBRARY[match[1]], 0) + int(match[2])
    counted = [
        run
        for i, run in enumerate(runs)
        if sum(run.name == before.name for before in runs[:i]) < named.get(run.name, 0)
    ]
    left = sorted({run.name for run in runs} - named.keys())
    notes = [f"not counted, as the call launched none: {name}" for name in left]
    missing = 0
    for name, count in named.items():
        here = sum(run.name == name for run in runs)
        if here != count:
            notes.append(f"{name}: launched {here} times here, {count} times by the call")
        if name == Cast.name and row.call == _FORWARD and here < count == 1:
            counted += _cast_of_bias(row, device)
            notes.append("cast: taken to be that of the bias, which the cube adds in fp32")
        else:
            missing += max(0, count - here)
    return counted, missing, tuple(notes)


def _cast_of_bias(row: CallRow, device: Device) -> list[KernelRun]:
    """The run that converts the bias of a forward convolution to fp32.

    The cube's bias table holds fp32. Library calls of fp16 convert as they load, those of bf16 list
    a Cast; their other operands and their result stay bf16.
    """
    channels, name = needed(row, "Cout", "dtype")
    bias = Tensor("bias", (channels,), dtype(name))
    wide = Tensor("bias_fp32", (channels,), FP32, "out")
    return list(simulate(cast(bias, wide), device, timeline=False).runs)


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
        device=device,
        tiling=tiling,
        rules="hardware",
        timeline=False,
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
        timeline=False,
    )


def _transpose(row: CallRow, device: Device, tiling: Any) -> Result:
    """One kernel; elements of 8 bytes are moved as two of 4."""
    shape, perm, name = needed(row, "shape", "perm", "dtype")
    own_dtype: DType = INT32 if name in _EIGHT_BYTES else dtype(name)
    if name in _EIGHT_BYTES:
        shape, perm = (*shape, 2), (*perm, len(perm))
    if sorted(perm) != list(range(len(shape))):
        raise Declined(f"perm is {perm}: it must name each of the {len(shape)} axes once")
    x = Tensor("x", shape, own_dtype)
    y = Tensor("y", tuple(shape[axis] for axis in perm), own_dtype, "out")
    return simulate(Transpose(perm, x, y), device, timeline=False)


_EIGHT_BYTES = ("int64", "uint64", "float64")

#: Calls by the names of the column ``call``, and whether the library's rule for the tiling of
#: their main kernel is known.
_CALLS: Mapping[str, tuple[Callable[[CallRow, Device, Any], Result], bool]] = {
    "convolution_backward": (_convolution_backward, True),
    _FORWARD: (_forward, False),
    "transposed_forward_as_dx": (_forward, True),
    "matmul": (_matmul, False),
    "transpose": (_transpose, False),
}

# -- training steps ---------------------------------------------------------------------------

#: Parts of a step by the kind of operation.
_CONVOLUTIONS = {
    "convolution output": "forward",
    "convolution weight": "filter_gradients",
    "convolution input": "input_gradients",
}


def simulate_network_row(row: NetworkRow, device: Device) -> Simulated:
    """The step of a row with the usual settings of its mode.

    Raises ``Declined`` for what a step cannot have here, and where some of it was not simulated.
    """
    mode, batch = needed(row, "mode", "batch")
    optional: dict[str, Any] = {}
    for name in ("dtype", "normalisation", "optimizer", "cards"):
        if getattr(row, name) is not None:
            optional[name] = getattr(row, name)
    with told_as(Declined, caught=ArgumentError):
        found = step(row.network, device=device, mode=mode, batch=batch, **optional)
    for failed in found.failed[:1]:
        raise Declined(
            f"{len(found.failed)} operations, such as {failed.name}: {failed.timed.error}"
        )
    parts = dict.fromkeys(PARTS, 0.0)
    for kinds in found.kind_rows():
        part = _part(kinds["phase"], kinds["kind"])
        if part is not None:
            parts[part] += kinds["us"]
    return Simulated(found.time_us, parts)


def _part(phase: str, kind: str) -> str | None:
    """The one of ``PARTS`` that operations of a kind belong to, None for others."""
    first = kind.partition(" + ")[0]  # of what one kernel computes together
    if first in (CLEARING, CONVERSIONS) or first.startswith("cast"):
        return "casts"
    if phase == "optimizer":
        return phase
    return "normalisation" if first.startswith("normalisation") else _CONVOLUTIONS.get(first)
