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

from npusim.kernels.deconv_grad_filter import DeconvGradFilter
from npusim.kernels.tilings.deconv_grad_filter import Tiling

__all__ = ["ConvGradFilter", "Tiling"]


class ConvGradFilter(DeconvGradFilter):
    """The kernel for ``x`` and ``dy`` of the layer underneath, which are dy and x here."""

    name: ClassVar[str] = "conv_grad_filter"
    turned: ClassVar[bool] = True
