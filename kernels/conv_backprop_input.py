"""Input gradient of a convolution on the cube.

    dx[n, c, o*s - p + k*d] += w[q, c, k] * dy[n, q, o]

As one ordinary convolution: dy with s-1 zeros inserted between rows and columns (in L1, never in
global memory), the filter rotated by 180 degrees, stride 1, and ``before = d*(K-1) - p`` padding,
which crops when negative. Depth is a loop over the filter depths whose
``(i + p - kd*d) / s`` is an output depth, all in one accumulation. M = positions of dx,
N = input channels, K = (co1, kh, kw, co0).

dy and dx blocked (N, D, C1, H, W, C0). Weights in one of two forms:

* FRACTAL_Z_3D, rows (kd, c1, kh, kw) of fractals [16 q][16 c]: one transposing load2d per
  column walks the input-channel blocks (16-bit types);
* its exchange of roles, rows (kd, q1, kh, kw) of fractals [16 c][C0 q]: plain loads (fp32,
  because the transposing load moves 16-bit elements).

Rotation is free: the loads walk the taps backwards. The loop nest is ``implicit_gemm``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npusim.convolution import Convolution
from npusim.kernels.implicit_gemm import ImplicitGemm
from npusim.kernels.parts.implicit_gemm_shape import Geometry
from npusim.language import IntArray, Language, Slot, ceil_div


@dataclass(frozen=True)
class ConvBackpropInput(ImplicitGemm):
    """``shape`` is the forward convolution; x is dy, y is dx. fp32 takes exchanged weights."""

    name: ClassVar[str] = "conv_backprop_input"

    @staticmethod
    def geometry_of(shape: Convolution) -> Geometry:
        s, plan = shape, shape.plan
        depth, taps = s.gradient_axis(0), s.kernel[0]
        reads = [
            [(kd, depth.real(i, taps - 1 - kd)) for kd in range(taps)] for i in range(depth.out)
        ]
        return Geometry(
            images=s.n,
            depth_in=s.out[0],
            depth_out=s.spatial[0],
            h=s.gradient_axis(1),
            w=s.gradient_axis(2),
            kernel_d=s.kernel[0],
            live=tuple(tuple((kd, at) for kd, at in pairs if at is not None) for pairs in reads),
            groups=plan.real_groups,
            c0=s.c0,
            planes_in=plan.cout_g // s.c0,
            planes_out=plan.cin1_g,
            all_in=ceil_div(s.cout, s.c0),
            all_out=s.cin1,
        )

    @property
    def exchanged(self) -> bool:
        """Whether the weights come with the roles of their channel axes exchanged."""
        return self.x.dtype.bytes == 4

    @property
    def _row(self) -> int:
        """Fractals in a row of the weights."""
        g = self.geometry
        return ceil_div(g.planes_out * g.c0, 16) if self.exchanged else g.planes_in

    def weight_base(self, group: IntArray, kd: IntArray, n0: IntArray) -> IntArray:
        g = self.geometry
        planes = g.planes_in if self.exchanged else g.planes_out
        row = (group * g.kernel_d + kd) * planes * g.taps
        if self.exchanged:
            return (row * self._row + n0 * g.c0 // 16) * 512
        return (row + n0 * g.taps) * self._row * 512

    def load_weights(self, k: Language, n: int, b1: Slot, columns: range) -> None:
        g, row = self.geometry, self._row * 512
        first, last = columns.start // g.taps, (columns.stop - 1) // g.taps
        if self.exchanged:
            low = first * g.taps + _least_tap(columns, g.taps)
            size = ceil_div(n * g.c0, 16) * 512
            k.data_move(
                b1,
                self.w.at(low * row, size, base="w", rows=len(columns), pitch=row),
                self.x.dtype,
            )
            return
        taps = len(columns) // (last - first + 1)
        low = _least_tap(columns, g.taps)
        size = (last - first + 1) * 512
        if taps == g.taps:  # whole planes: the rows of all input-channel blocks follow each other
            k.data_move(
                b1,
                self.w.at(first * 512, size, base="w", rows=n * taps, pitch=row),
                self.x.dtype,
            )
            return
        for block in range(n):
            k.data_move(
                b1.at(block * taps * size, taps * size),
                self.w.at(
                    (block * g.taps + low) * row + first * 512, size, base="w", rows=taps, pitch=row
                ),
                self.x.dtype,
            )

    def feed_weights(
        self, k: Language, n: int, slots: tuple[Slot, Slot], at: tuple[range, range]
    ) -> None:
        (b, b1), (columns, now) = slots, at
        g, n1 = self.geometry, ceil_div(n * self.geometry.c0, 16)
        first = columns.start // g.taps
        planes = (columns.stop - 1) // g.taps - first + 1
        taps = len(columns) // planes
        low = _least_tap(columns, g.taps)
        base = first * g.taps + low
        for i, j in enumerate(now):
            if self.exchanged:
                start, stride = (_rotated(j, g.taps) - base) * n1, 1
            else:
                tap = _rotated(j, g.taps) % g.taps - low
                start, stride = tap * planes + j // g.taps - first, taps * planes
            k.load2d(
                b.fractals(i * n1, n1),
                b1.fractals(start, n1, stride=stride),
                self.x.dtype,
                transpose=not self.exchanged,
            )


def _rotated(column: int, taps: int) -> int:
    """The weights' row of an img2col column: the same plane, the taps backwards."""
    plane, tap = divmod(column, taps)
    return plane * taps + taps - 1 - tap


def _least_tap(columns: range, taps: int) -> int:
    """The first weights' row, in its plane, of a load: the last column's, taps run backwards.

    A load is whole planes or part of one.
    """
    return taps - 1 - (columns.stop - 1) % taps
