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
        self, k: Language, n: int, slots: tuple[Slot, Slot], at: tuple[range, range], taps: int
    ) -> None:
        (b, b1), (columns, now) = slots, at
        n1 = ceil_div(n * self.geometry.c0, 16)
        total, first = len(now) * n1, (now.start - columns.start) * n1
        for done in range(0, total, 255):
            count = min(255, total - done)
            k.load2d(b.fractals(done, count), b1.fractals(first + done, count), self.x.dtype)
