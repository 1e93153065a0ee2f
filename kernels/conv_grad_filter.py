"""Filter gradient of an ordinary convolution on a DSP: that of the transposed layer, turned.

    dw[g*OCG + oc, kh * KW + kw, ic] = sum over b, oh, ow of
        dy[b, oh, ow, g*OCG + oc] * x[b, oh*sh - pad_u + kh*dh, ow*sw - pad_l + kw*dw, g*ICG + ic]

The layer that has dy for its input and x for its output is transposed, and its filter gradient is
this one with the two channel axes exchanged: the loop nest, im2row of x and the GEMM with dy are
those of ``deconv_grad_filter``. Only the way out differs:

    dw (OC, KH * KW, ICG) <- acc (taps, channels, columns)    # DMA, per tap and channel of x, an
                                                              # element for every channel of dy
"""

from __future__ import annotations

from typing import ClassVar

from npusim.kernels.deconv_grad_filter import Chunk, DeconvGradFilter, Nest
from npusim.kernels.tilings.deconv_grad_filter import Tiling
from npusim.language import FP32, IntArray, Language, Slot

__all__ = ["ConvGradFilter", "Tiling"]


class ConvGradFilter(DeconvGradFilter):
    """The kernel for ``x`` and ``dy`` of the layer underneath, which are dy and x here."""

    name: ClassVar[str] = "conv_grad_filter"

    def places(self, tile: dict[str, IntArray]) -> IntArray:
        s = self.shape
        column = tile["group"] * s.cin_per_group + tile["n0"]
        return (column * s.taps + tile["t0"]) * s.cout_per_group + tile["oc0"]

    def nest(self, k: Language) -> Nest:
        return _Turned(self, k)


class _Turned(Nest):
    """The same program with another way out."""

    def store(self, acc: Slot, u: Chunk) -> None:
        s, dw = self.kernel.shape, self.kernel.dw
        done, e, count = acc, dw.dtype.bytes, u.taps * u.oc * u.n
        if self.out is not None:
            done = self.out.next()
            self.k.dsp_cast(done, acc.at(0, count * FP32.bytes), FP32, dw.dtype)
        row = s.cout_per_group * e
        for tap in range(u.taps):
            for channel in range(u.oc):
                self.k.data_move(
                    dw.at(tap * row + channel * e, e, base="dw", rows=u.n, pitch=s.taps * row),
                    done.at((tap * u.oc + channel) * u.n * e, u.n * e),
                    dw.dtype,
                )
