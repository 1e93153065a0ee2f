"""The launches of a convolution's gradients that several operators compute, on blocked layouts."""

from __future__ import annotations

from dataclasses import replace

from npusim.call.call import Call
from npusim.call.tiling import asked_tiling
from npusim.convolution import Convolution
from npusim.dtypes import FP32, DType
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter
from npusim.kernels.conv_backprop_filter import Tiling as FilterTiling
from npusim.kernels.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.sum_parts import SumParts
from npusim.kernels.tilings import cann_filter, cann_input, conv_filter, implicit_gemm


def launch_product(
    call: Call,
    kernel: type[ImplicitGemm],
    c: Convolution,
    source: Tensor,
    weights: Tensor,
    out: Tensor,
    hf32: bool = False,
) -> None:
    """An input gradient or a forward convolution of the 3-D ``c``: clearing and the kernel."""
    tiling = product_tiling(call, kernel, c, source.dtype)
    _launch(call, kernel(c, tiling, source, weights, out, hf32), out)


def launch_filter_gradient(
    call: Call, c: Convolution, x: Tensor, dy: Tensor, dw: Tensor, hf32: bool = False
) -> None:
    """Compute ``dw`` (fp32 FRACTAL_Z_3D): clearing, the kernel, and the sum of parts if asked.

    Where K is split over cores, parts add atomically into a cleared ``dw``; with the option (or
    the tiling's field) ``deterministic`` each writes its own copy, and a vector kernel adds the
    copies in order.
    """
    tiling = filter_tiling(call, c, x.dtype)
    if call.options.deterministic:
        tiling = replace(tiling, deterministic=True)
    kernel = ConvBackpropFilter(c, tiling, x, dy, dw, hf32)
    if not (tiling.deterministic and kernel.parts > 1):
        _launch(call, kernel, dw)
        return
    copies = call.workspace(f"{dw.name}_parts", (kernel.parts, *dw.shape), FP32)
    _launch(call, ConvBackpropFilter(c, tiling, x, dy, copies, hf32), copies)
    call.launch(SumParts(copies, dw))


def require_time(call: Call, c: Convolution, products: int, kind: DType) -> None:
    """Raise ``CapacityError`` for so many products of ``c`` that take many minutes unseen.

    Counts what the least number of `mmad`s needs: two loads each, L0A full, all channels of a tile.
    """
    plan, wide = c.plan, 256
    blocks = plan.real_groups * plan.cin1_g * c.c0 * plan.cout_g
    padded = c.useful_macs * blocks / (c.groups * c.cin_per_group * c.cout_per_group)
    columns = min(wide, max(plan.cin1_g * c.c0, plan.cout_g))
    most = call.device.memory("L0A").size_bytes // kind.bytes * columns
    macs = products * c.useful_macs
    call.require_time(3 * products * int(padded // most), macs)


def _launch(call: Call, kernel: ConvBackpropFilter | ImplicitGemm, out: Tensor) -> None:
    """The kernel, tuned if asked for, and clearing where it adds or leaves gaps."""
    if kernel.has_work and not call.options.deterministic:  # copies are laid out already
        kernel = call.tuned(kernel)
    if kernel.needs_clear:
        call.clear(out)
    if kernel.has_work:
        call.launch(kernel)


def product_tiling(
    call: Call, kernel: type[ImplicitGemm], c: Convolution, kind: DType
) -> GemmTiling:
    """What the call asks for; the vendor's words and rule are for input gradients only."""
    asked = asked_tiling(call.options.tiling, kernel.name, GemmTiling, vendor=kernel.vendor_rule)
    if isinstance(asked, GemmTiling):
        return asked
    if asked == "production":
        asked = cann_input.production_tiling(c, call.device, call.cube_cores, kind)
    if isinstance(asked, str):
        return implicit_gemm.auto_tiling(
            *(kernel.geometry_of(c), call.device, call.cube_cores, kind),
            library=asked == "library",
        )
    tiling, notes = cann_input.kernel_tiling(asked, c, call.device, kind)
    call.notes += [f"CANN tiling of {kernel.name}: {asked}", *notes]
    return tiling


def filter_tiling(call: Call, c: Convolution, kind: DType) -> FilterTiling:
    """What the call asks for: ours by rule, the vendor's by rule, or the one given."""
    asked = asked_tiling(call.options.tiling, ConvBackpropFilter.name, FilterTiling, vendor=True)
    if isinstance(asked, FilterTiling):
        return asked
    if asked == "production":
        asked = cann_filter.production_tiling(c, call.device, call.cube_cores, kind)
    if isinstance(asked, str):
        return conv_filter.auto_tiling(c, call.device, call.cube_cores)
    tiling, notes = cann_filter.kernel_tiling(asked, c, call.device, kind)
    call.notes += [f"CANN tiling of {ConvBackpropFilter.name}: {asked}", *notes]
    return tiling
