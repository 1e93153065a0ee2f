"""Forward convolution: the input gradient of a transposed one.

    y[n, q, o] = sum over c, k of  x[n, c, o*s - p + k*d] * w[q, c, k]

x and y blocked (N, D, C1, H, W, C0); w FRACTAL_Z_3D, whose rows are the img2col columns
(kd, c1, kh, kw) and whose fractals [16 q][C0 c] are L0B's own: plain contiguous loads.
The loop nest is ``implicit_gemm``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from npusim.kernels.implicit_gemm import ImplicitGemm
from npusim.kernels.parts.implicit_gemm_shape import Geometry, weight_rows
from npusim.language import IntArray, Language, Slot, ceil_div
from npusim.shapes.convolution import Convolution


@dataclass(frozen=True)
class ConvForward(ImplicitGemm):
    """``shape`` is the convolution; x its input, y its output."""

    name: ClassVar[str] = "conv_forward"
    computes: ClassVar[str] = "input"  # of the transposed convolution
    library: ClassVar[tuple[str, ...]] = ("Conv2D", "Conv3D")
    rotated: ClassVar[bool] = False

    @staticmethod
    def geometry_of(shape: Convolution) -> Geometry:
        s, plan = shape, shape.plan
        depth, taps = s.axis(0), s.kernel[0]
        reads = [[(kd, depth.real(o, kd)) for kd in range(taps)] for o in range(depth.out)]
        return Geometry(
            images=s.n,
            depth_in=s.spatial[0],
            depth_out=s.out[0],
            h=s.axis(1),
            w=s.axis(2),
            kernel_d=s.kernel[0],
            live=tuple(tuple((kd, at) for kd, at in pairs if at is not None) for pairs in reads),
            groups=plan.real_groups,
            c0=s.c0,
            planes_in=plan.cin1_g,
            planes_out=plan.cout_g // s.c0,
            all_in=s.cin1,
            all_out=ceil_div(s.cout, s.c0),
        )

    def weight_base(self, group: IntArray, kd: IntArray, n0: IntArray) -> IntArray:
        g = self.geometry
        row = (group * g.kernel_d + kd) * g.planes_in * g.taps
        return row * self.weight_row + n0 * g.c0 // 16 * 512

    @property
    def weight_row(self) -> int:
        return self.shape.plan.cout_g // 16 * 512

    def load_weights(
        self, k: Language, n: range, b1: Slot, columns: range, places: Sequence[int]
    ) -> None:
        row, c0 = self.weight_row, self.geometry.c0
        first, size = n.start * c0 // 16 * 512, ceil_div(len(n) * c0, 16) * 512
        for r in weight_rows(places, columns, self.geometry.taps):
            source = self.w.at(
                r.gm * row + first, size, base="w", rows=r.number, pitch=r.gm_pitch * row
            )
            target = b1.at(r.l1 * size, size, rows=r.number, pitch=r.l1_pitch * size)
            k.data_move(target, source, self.x.dtype)

    def feed_weights(
        self, k: Language, n: int, slots: tuple[Slot, Slot], at: tuple[range, range], taps: int
    ) -> None:
        (b, b1), (columns, now) = slots, at
        n1 = ceil_div(n * self.geometry.c0, 16)
        total, first = len(now) * n1, (now.start - columns.start) * n1
        for done in range(0, total, 255):
            count = min(255, total - done)
            k.load2d(b.fractals(done, count), b1.fractals(first + done, count), self.x.dtype)
