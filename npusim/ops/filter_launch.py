"""The launches of one filter gradient: with atomic adds, or deterministic through parts."""

from __future__ import annotations

from dataclasses import replace

from npusim.call.call import Call
from npusim.call.tiling import chosen_tiling
from npusim.convolution import Convolution
from npusim.dtypes import FP32, DType
from npusim.errors import ArgumentError
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter, Tiling
from npusim.kernels.conv_filter_units import ConvFilterUnits, UnitTiling
from npusim.kernels.sum_parts import SumParts
from npusim.kernels.tilings.cann import CannTiling
from npusim.kernels.tilings.cann_filter import kernel_tiling, production_tiling
from npusim.kernels.tilings.conv_filter import auto_tiling


def launch_filter_gradient(
    call: Call, shape: Convolution, x: Tensor, dy: Tensor, dw: Tensor, hf32: bool = False
) -> None:
    """Compute ``dw`` (fp32 FRACTAL_Z_3D): clearing, the kernel, and the sum of parts if asked.

    Where K is split over cores, parts add atomically into a cleared ``dw``; with the option (or
    the tiling's field) ``deterministic`` each writes its own copy, and a vector kernel adds the
    copies in order.
    """
    tiling = chosen_tiling(
        call.tiling_of(ConvBackpropFilter.name),
        Tiling,
        lambda: auto_tiling(shape, call.device, call.cube_cores),
        lambda given: _cann(call, shape, x.dtype, given),
    )
    if isinstance(tiling, UnitTiling):
        _launch(call, ConvFilterUnits(shape, tiling, x, dy, dw, hf32))
        return
    if call.options.deterministic:
        tiling = replace(tiling, deterministic=True)
    kernel = ConvBackpropFilter(shape, tiling, x, dy, dw, hf32)
    apart = tiling.deterministic and kernel.parts > 1
    if apart:
        copies = call.workspace(f"{dw.name}_parts", (kernel.parts, *dw.shape), FP32)
        kernel = ConvBackpropFilter(shape, tiling, x, dy, copies, hf32)
    _launch(call, kernel)
    if apart:
        call.launch(SumParts(kernel.dw, dw))


def _launch(call: Call, kernel: ConvBackpropFilter) -> None:
    """The kernel, and clearing where it adds or leaves gaps."""
    if call.options.deterministic and isinstance(kernel, ConvFilterUnits):
        raise ArgumentError(
            "deterministic: units of work add into the gradient in the order they finish; use "
            "tiling 'auto', or deterministic=False"
        )
    if kernel.needs_clear:
        call.clear(kernel.dw)
    if kernel.has_work:
        call.launch(kernel)


def _cann(call: Call, shape: Convolution, kind: DType, given: CannTiling | None) -> UnitTiling:
    """A tiling in the vendor's words, given or by the vendor's rule, as the kernel's."""
    chosen = given or production_tiling(shape, call.device, call.cube_cores, kind)
    tiling, notes = kernel_tiling(chosen, shape, call.device, kind)
    call.notes += [f"CANN tiling of {ConvBackpropFilter.name}: {chosen}", *notes]
    return tiling
