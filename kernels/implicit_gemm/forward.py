"""Forward convolution: the input gradient of a transposed one.

    y[n, q, o] = sum over c, k of  x[n, c, o*s - p + k*d] * w[q, c, k]

x and y blocked (N, D, C1, H, W, C0); w FRACTAL_Z_3D, whose rows are the img2col columns
(kd, c1, kh, kw) and whose fractals [16 q][C0 c] are L0B's own: plain contiguous loads.
The loop nest is ``implicit_gemm``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.kernels.parts.transposed import MOST_FRACTALS
from npusim.language import Language, Slot, ceil_div


@dataclass(frozen=True)
class ConvForward(ImplicitGemm):
    """``shape`` is the convolution; x its input, y its output."""

    name: ClassVar[str] = "conv_forward"
    computes: ClassVar[str] = "input"  # of the transposed convolution
    uses: ClassVar[Mapping[str, str]] = {"x": "inputs", "w": "taps", "y": "outputs"}
    library: ClassVar[tuple[str, ...]] = ("Conv2D", "Conv3D")
    rotated: ClassVar[bool] = False

    def feed_weights(
        self, k: Language, b: Slot, b1: Slot, n: int, columns: range, step: range, taps: int
    ) -> None:
        n1 = ceil_div(n * self.geometry.c0, 16)
        total = len(step) * n1
        first = (step.start - columns.start) * n1
        for start in range(0, total, MOST_FRACTALS):
            count = min(MOST_FRACTALS, total - start)
            source = b1.fractals(first + start, count)
            k.load2d(b.fractals(start, count), source, self.x.dtype)
