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
from typing import ClassVar, NamedTuple

from npusim.kernels.implicit_gemm.geometry import Rows, weight_rows
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
        """True if the weights come with the roles of their channel axes exchanged."""
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
        taps = len(places)
        load = _Load.of(columns, taps)
        if self.exchanged:
            start = load.plane * taps + load.low
            super().load_weights(k, n, b1, range(start, start + len(columns)), places)
            return
        all_taps = self.geometry.taps
        if load.taps == taps:  # whole planes: rows of all input-channel blocks follow each other
            rows = weight_rows(places, range(len(n) * taps), all_taps)
        else:
            rows = _rows_of_part(places[load.low : load.low + load.taps], len(n), all_taps)
        offset = load.plane * FRACTAL_BYTES + n.start * all_taps * self.weight_row
        self.load_rows(k, b1, rows, offset, load.planes * FRACTAL_BYTES)

    def feed_weights(
        self, k: Language, b: Slot, b1: Slot, n: int, columns: range, step: range, taps: int
    ) -> None:
        n1 = ceil_div(n * self.geometry.c0, 16)
        load = _Load.of(columns, taps)
        for i, column in enumerate(step):
            row = _rotated(column, taps)
            if self.exchanged:
                start = (row - load.plane * taps - load.low) * n1
                stride = 1
            else:
                tap = row % taps - load.low
                start = tap * load.planes + column // taps - load.plane
                stride = load.taps * load.planes
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


class _Load(NamedTuple):
    """A load of weights, whole planes or part of one: of ``planes`` some ``taps``.

    ``plane`` is the first, ``low`` the first row of the weights in it.
    """

    plane: int
    planes: int
    taps: int
    low: int

    @classmethod
    def of(cls, columns: range, taps: int) -> _Load:
        """The load of img2col ``columns``; taps run backwards, so the last has the first row."""
        first = columns.start // taps
        last = (columns.stop - 1) // taps
        planes = last - first + 1
        return cls(first, planes, len(columns) // planes, taps - 1 - (columns.stop - 1) % taps)


def _rows_of_part(places: Sequence[int], blocks: int, taps: int) -> list[Rows]:
    """Rows of some ``places`` of the filter for so many input-channel blocks, block by block."""
    used = len(places)
    return [
        rows._replace(l1=block * used + rows.l1)
        for block in range(blocks)
        for rows in weight_rows(places, range(block * used, (block + 1) * used), taps)
    ]
