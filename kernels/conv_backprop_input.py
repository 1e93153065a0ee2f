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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from npusim.kernels.implicit_gemm import ImplicitGemm
from npusim.kernels.parts.implicit_gemm_shape import Geometry, weight_rows
from npusim.language import IntArray, Language, Slot, ceil_div
from npusim.shapes.convolution import Convolution


@dataclass(frozen=True)
class ConvBackpropInput(ImplicitGemm):
    """``shape`` is the forward convolution; x is dy, y is dx. fp32 takes exchanged weights."""

    name: ClassVar[str] = "conv_backprop_input"
    computes: ClassVar[str] = "input"
    library: ClassVar[tuple[str, ...]] = ("Conv2DBackpropInput", "Conv3DBackpropInput")
    vendor_rule: ClassVar[bool] = True
    rotated: ClassVar[bool] = True

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
            return row * self.weight_row + n0 * g.c0 // 16 * 512
        return (row + n0 * g.taps) * self.weight_row

    @property
    def weight_row(self) -> int:
        g = self.geometry
        return (ceil_div(g.planes_out * g.c0, 16) if self.exchanged else g.planes_in) * 512

    def load_weights(
        self, k: Language, n: range, b1: Slot, columns: range, places: Sequence[int]
    ) -> None:
        taps, row = len(places), self.weight_row
        first, last = columns.start // taps, (columns.stop - 1) // taps
        used, count = len(columns) // (last - first + 1), len(n)
        low = _least_tap(columns, taps)
        if self.exchanged:
            start, size = first * taps + low, ceil_div(count * self.geometry.c0, 16) * 512
            moves = [(0, range(start, start + len(columns)), places)]
            at = n.start * self.geometry.c0 // 16 * 512
        elif used == taps:  # whole planes: the rows of all input-channel blocks follow each other
            moves, at = [(0, range(count * taps), places)], first * 512
            size = (last - first + 1) * 512
        else:
            chosen = places[low : low + used]
            moves = [(b * used, range(b * used, (b + 1) * used), chosen) for b in range(count)]
            at, size = first * 512, (last - first + 1) * 512
        at += 0 if self.exchanged else n.start * self.geometry.taps * row
        for l1, rows, those in moves:
            for r in weight_rows(those, rows, self.geometry.taps):
                pitch = r.gm_pitch * row
                source = self.w.at(r.gm * row + at, size, base="w", rows=r.number, pitch=pitch)
                target = b1.at((l1 + r.l1) * size, size, rows=r.number, pitch=r.l1_pitch * size)
                k.data_move(target, source, self.x.dtype)

    def feed_weights(
        self, k: Language, n: int, slots: tuple[Slot, Slot], at: tuple[range, range], taps: int
    ) -> None:
        (b, b1), (columns, now) = slots, at
        n1 = ceil_div(n * self.geometry.c0, 16)
        first = columns.start // taps
        planes = (columns.stop - 1) // taps - first + 1
        used = len(columns) // planes
        low = _least_tap(columns, taps)
        base = first * taps + low
        for i, j in enumerate(now):
            if self.exchanged:
                start, stride = (_rotated(j, taps) - base) * n1, 1
            else:
                tap = _rotated(j, taps) % taps - low
                start, stride = tap * planes + j // taps - first, used * planes
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
