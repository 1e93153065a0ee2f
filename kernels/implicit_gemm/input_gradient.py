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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from npusim.kernels.implicit_gemm.geometry import weight_rows
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.language import FRACTAL_BYTES, IntArray, Language, Slot, ceil_div


@dataclass(frozen=True)
class ConvBackpropInput(ImplicitGemm):
    """``shape`` is the forward convolution; x is dy, y is dx. fp32 takes exchanged weights."""

    name: ClassVar[str] = "conv_backprop_input"
    computes: ClassVar[str] = "input"
    uses: ClassVar[Mapping[str, str]] = {"x": "outputs", "w": "taps", "y": "inputs"}
    library: ClassVar[tuple[str, ...]] = ("Conv2DBackpropInput", "Conv3DBackpropInput")
    vendor_rule: ClassVar[bool] = True
    rotated: ClassVar[bool] = True

    @property
    def exchanged(self) -> bool:
        """Whether the weights come with the roles of their channel axes exchanged."""
        return self.x.dtype.bytes == 4

    def weight_base(self, group: IntArray, kd: IntArray, n0: IntArray) -> IntArray:
        if self.exchanged:
            return super().weight_base(group, kd, n0)
        g = self.geometry
        row = (group * g.kernel_d + kd) * g.planes_out * g.taps
        return (row + n0 * g.taps) * self.weight_row

    @property
    def weight_row(self) -> int:
        return super().weight_row if self.exchanged else self.geometry.planes_in * FRACTAL_BYTES

    def load_weights(
        self, k: Language, n: range, b1: Slot, columns: range, places: Sequence[int]
    ) -> None:
        taps, all_taps = len(places), self.geometry.taps
        first, last = columns.start // taps, (columns.stop - 1) // taps
        used, low = len(columns) // (last - first + 1), _least_tap(columns, taps)
        if self.exchanged:
            start = first * taps + low
            super().load_weights(k, n, b1, range(start, start + len(columns)), places)
            return
        if used == taps:  # whole planes: the rows of all input-channel blocks follow each other
            rows = weight_rows(places, range(len(n) * taps), all_taps)
        else:
            rows = [
                r._replace(l1=b * used + r.l1)
                for b in range(len(n))
                for r in weight_rows(
                    places[low : low + used], range(b * used, (b + 1) * used), all_taps
                )
            ]
        at = first * FRACTAL_BYTES + n.start * all_taps * self.weight_row
        self.load_rows(k, b1, rows, at, (last - first + 1) * FRACTAL_BYTES)

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
