"""The tiling of an implicit matrix product: by rule, by the vendor's rule, or as given."""

from __future__ import annotations

from npusim.call.call import Call
from npusim.call.tiling import chosen_tiling
from npusim.convolution import Convolution
from npusim.dtypes import DType
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import ImplicitGemm, Tiling
from npusim.kernels.tilings.cann import CannTiling
from npusim.kernels.tilings.cann_input import kernel_tiling, production_tiling
from npusim.kernels.tilings.implicit_gemm import auto_tiling


def gemm_tiling(call: Call, kernel: type[ImplicitGemm], shape: Convolution, kind: DType) -> Tiling:
    """What the call asks for; the vendor's words and rule are for input gradients only."""

    def cann(given: CannTiling | None) -> Tiling:
        chosen = given or production_tiling(shape, call.device, call.cube_cores, kind)
        tiling, notes = kernel_tiling(chosen, shape, call.device, kind)
        call.notes += [f"CANN tiling of {kernel.name}: {chosen}", *notes]
        return tiling

    return chosen_tiling(
        call.tiling_of(kernel.name),
        Tiling,
        lambda: auto_tiling(kernel.geometry_of(shape), call.device, call.cube_cores, kind),
        cann if kernel is ConvBackpropInput else None,
    )
