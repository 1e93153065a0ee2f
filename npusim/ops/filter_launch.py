"""The launches of one filter gradient: with atomic adds, or deterministic through parts."""

from __future__ import annotations

from dataclasses import replace

from npusim.dtypes import FP32
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter, Tiling
from npusim.kernels.conv_filter_tiling import auto_tiling
from npusim.kernels.conv_shape import ConvShape
from npusim.kernels.sum_parts import SumParts
from npusim.ops.arguments import chosen_tiling
from npusim.session import Call


def launch_filter_gradient(
    call: Call, shape: ConvShape, x: Tensor, dy: Tensor, dw: Tensor, hf32: bool = False
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
    )
    if call.options.deterministic:
        tiling = replace(tiling, deterministic=True)
    kernel = ConvBackpropFilter(shape, tiling, x, dy, dw, hf32)
    apart = tiling.deterministic and kernel.parts > 1
    if apart:
        copies = call.workspace(f"{dw.name}_parts", (kernel.parts, *dw.shape), FP32)
        kernel = ConvBackpropFilter(shape, tiling, x, dy, copies, hf32)
    if kernel.needs_clear:
        call.clear(kernel.dw)
    if kernel.has_work:
        call.launch(kernel)
    if apart:
        call.launch(SumParts(kernel.dw, dw))
