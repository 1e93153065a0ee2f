"""The launches of a bias's gradient: the sum of a plain map or matrix over all but channels."""

from __future__ import annotations

from math import prod

from npusim.base.dtypes import FP32
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.tilings.words import is_library
from npusim.kernels.layout.cast import cast
from npusim.kernels.vector.bias_grad import BiasGrad, channel_parts
from npusim.kernels.vector.library_bias_grad import LibraryBiasGrad
from npusim.kernels.vector.row_sums import RowSums, row_parts
from npusim.machine.isa.operands import Tensor


def launch_bias(call: Call, dy: Tensor, db: Tensor, parts: str, *, cleared: bool = False) -> None:
    """The sum of a plain ``dy`` (N, C, positions...) over all but channels, into ``db`` (C,).

    Channels and rows that are cut need a workspace, which is called ``parts``.
    ``tiling="library"`` sums as the library does on chips whose rules are known. ``db`` may be
    ``cleared`` already.
    """
    images, channels, *places = dy.shape
    flat = replace(dy, shape=(images, channels, prod(places)))
    if runs_library_bias(call):
        _launch_library_bias(call, flat, db, cleared=cleared)
        return
    if prod(places) == 1 and row_parts(images, call.vector_cores) > 1:
        _launch_row_sums(call, replace(dy, shape=(images, channels)), db, parts)
        return
    kernel = call.spread(BiasGrad(flat, db, saturate=call.device.saturates))
    count = channel_parts(flat.shape, kernel.used(call.vector_cores))
    partial = call.workspace(parts, (channels, count), FP32) if count > 1 else None
    call.launch(replace(kernel, partial=partial))


def _launch_row_sums(call: Call, dy: Tensor, db: Tensor, parts: str) -> None:
    """Launch the sum of many rows ``dy`` (R, C), cut into ``parts`` for different cores."""
    rows, channels = dy.shape
    most = row_parts(rows, call.vector_cores)
    any_parts = Tensor(parts, (most, channels), FP32, "out")
    kernel = call.spread(RowSums(dy, db, any_parts, saturate=call.device.saturates))
    count = row_parts(rows, kernel.used(call.vector_cores))
    call.launch(replace(kernel, partial=call.workspace(parts, (count, channels), FP32)))


def runs_library_bias(call: Call) -> bool:
    """Tell whether a call sums the gradients of biases as the vendor's library does."""
    return call.device.library_rules and is_library(call.options.tiling, BiasGrad.name)


def _launch_library_bias(call: Call, dy: Tensor, db: Tensor, *, cleared: bool) -> None:
    """Launch the library's sum, which is fp32, with clearing before it and a cast behind it."""
    sums = db if db.dtype is FP32 else call.workspace(f"{db.name}_fp32", db.shape, FP32)
    kernel = LibraryBiasGrad.on(call.device, call.vector_cores, dy, sums)
    if sums is not db or not cleared:
        for clearing in kernel.before:
            call.launch(clearing)
    call.launch(kernel)
    note = (
        f"{kernel.name}: the gradient of a bias as the vendor's library sums it (BiasAddGrad); "
        "tiling 'auto' has kernels of npusim's own"
    )
    if call.device.product != LibraryBiasGrad.known_for:
        note += (
            f". Its schedule is public for the {LibraryBiasGrad.known_for}; on {call.device.name} "
            "it is extrapolated, with the cores and the UB of this chip"
        )
    call.notes.append(note)
    if sums is not db:
        call.launch_spread(cast(sums, db, saturate=call.device.saturates))
