"""Which strided gradients are computed as those of another convolution, and how.

Of few channels, rows and columns of the input may be channels; of filters of 1x1, pixels that they
read may be all there are.

The choice is made by estimates of the products and of the conversions around them, once for each
problem and the figures of the device that estimates look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

from npusim.base.dtypes import FP32
from npusim.base.errors import CapacityError
from npusim.call.call import Call
from npusim.call.tiling import asked_tiling
from npusim.device.spec import Device
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter
from npusim.kernels.conv_backprop_filter import Tiling as FilterTiling
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.conv_forward import ConvForward
from npusim.kernels.fold_map import Folded, FoldMap
from npusim.kernels.fold_weights import FoldedFilters, FoldWeights
from npusim.kernels.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.parts.folding import (
    Fold,
    FoldedConvolution,
    can_fold,
    can_thin,
    folded_gradient,
    folded_input,
    gradient_folds,
    input_folds,
    thinned,
)
from npusim.kernels.parts.layout_change import Change, LayoutChange
from npusim.kernels.parts.spread import Spread
from npusim.kernels.thin_map import ThinMap, Thinned
from npusim.kernels.tilings.streams import times
from npusim.kernels.trans_data import Conversion, TransData
from npusim.ops.cube_math import CubeMath
from npusim.ops.gradients import ANY_GRADIENT, ANY_PRODUCT
from npusim.reuse.cache import Answers
from npusim.reuse.seen import Seen
from npusim.shapes.convolution import Convolution

#: What was chosen for a gradient: the rows and columns of a fold, or these, or nothing.
_WAYS: Answers[list[int]] = Answers("fold", 256, list, list)
_THIN = [0, 0]


class Way(NamedTuple):
    """How a gradient may be computed: the product, and the conversions that differ.

    ``shape`` is what the product computes, None where that is the layer itself.
    """

    shape: Convolution | None
    product: ImplicitGemm | ConvBackpropFilter
    around: tuple[Spread, ...]


def input_gradient_shape(call: Call, c: Convolution, math: CubeMath) -> Convolution | None:
    """The convolution that makes the input gradient of the 3-D ``c`` faster than ``c`` does."""
    if not (can_fold(c) or can_thin(c)) or not _open(call, ConvBackpropInput):
        return None
    if can_fold(c) and not _open(call, ConvForward):
        return None
    return _chosen(call, c, math, gradient=True)


def filter_gradient_shape(call: Call, c: Convolution, math: CubeMath) -> Convolution | None:
    """The convolution that makes the filter gradient of the 3-D ``c`` faster than ``c`` does."""
    if not (can_fold(c) or can_thin(c)) or not _open(call, ConvBackpropFilter):
        return None
    return _chosen(call, c, math, gradient=False)


def _open(call: Call, kernel: type[ImplicitGemm | ConvBackpropFilter]) -> bool:
    """Whether the call leaves it to us how a kernel is tiled."""
    kind = FilterTiling if kernel is ConvBackpropFilter else GemmTiling
    vendor, option = kernel.vendor_rule, call.options.tiling
    return asked_tiling(option, kernel.name, kind, vendor=vendor, library=True) in ("auto", "tuned")


def _chosen(call: Call, c: Convolution, math: CubeMath, *, gradient: bool) -> Convolution | None:
    key = f"{c} {math} {gradient} {call.groups}"
    found = _WAYS.find(key, call.device)
    if found is not None:
        fold = found.answer
    else:
        watched = Seen(call.device)
        shape = best_way(watched.device, len(call.groups), c, math, gradient=gradient).shape
        fold = [] if shape is None else list(getattr(shape, "fold", _THIN))
        _WAYS.keep(key, call.device, watched.names, fold)
    if fold == _THIN:
        return thinned(c)
    if not fold:
        return None
    return (folded_gradient if gradient else folded_input)(c, Fold(*fold))


def best_way(device: Device, groups: int, c: Convolution, math: CubeMath, *, gradient: bool) -> Way:
    """How the input ``gradient`` of ``c``, or that of its filter, has the least estimate.

    That is the time of the product on so many ``groups`` of cores, with its launch, and of the
    conversions. Of equal ones the plain way is taken, also where no way fits the device.
    """
    return min(
        ways(device, c, math, gradient=gradient), key=lambda way: _estimate(way, device, groups)
    )


def ways(device: Device, c: Convolution, math: CubeMath, *, gradient: bool) -> list[Way]:
    """All ways to compute a gradient, the plain one first."""
    return list((_gradient_ways if gradient else _filter_ways)(device, c, math))


def _estimate(way: Way, device: Device, groups: int) -> float:
    cores = groups * device.core_kind(way.product.role).per_group
    vectors = groups * device.core_kind("vector").per_group
    if not way.product.has_work:
        return inf
    try:
        time = way.product.ranked(device, cores, 1)[0][0]
    except CapacityError:
        return inf
    streams = (one.stream(device, vectors) for one in way.around)
    return time + sum(float(times(device, vectors, stream).min()) for stream in streams)


def _gradient_ways(device: Device, c: Convolution, math: CubeMath) -> Iterator[Way]:
    dtype = math.dtype
    dy = Tensor("dy", (c.n, 1, c.cout1, *c.out[1:], c.c0), dtype, "in")
    w, dx = (
        Tensor("w", c.w_shape, dtype, "in"),
        Tensor("dx", (c.n, c.cin, *c.spatial), dtype, "out"),
    )
    kind = "to_fracz_transposed" if dtype is FP32 else "to_fracz"
    for other in _others(c, gradient_folds, folded_gradient):
        kernel = ConvForward if isinstance(other, FoldedConvolution) else ConvBackpropInput
        filters = filter_change(c, other, kind)
        maps = map_change(c, other, loads_plain=False)
        weights, made = _made("weights", w, filters), _made("made", dx, maps)
        around = changed(filters, w, weights), changed(maps, made, dx)
        if other is None or all(one.fits(device) for one in around):
            yield Way(other, kernel(other or c, ANY_PRODUCT, dy, weights, made, math.hf32), around)


def _filter_ways(device: Device, c: Convolution, math: CubeMath) -> Iterator[Way]:
    dtype = math.dtype
    dy = Tensor("dy", (c.n, 1, c.cout1, *c.out[1:], c.c0), dtype, "in")
    x, dw = Tensor("x", (c.n, c.cin, *c.spatial), dtype, "in"), Tensor("dw", c.w_shape, FP32, "out")
    for other in _others(c, input_folds, folded_input):
        maps, filters = map_change(c, other, loads_plain=True), filter_change(c, other)
        read, made = _made("read", x, maps), _made("made", dw, filters)
        around = changed(maps, x, read), changed(filters, made, dw)
        product = ConvBackpropFilter(other or c, ANY_GRADIENT, read, dy, made, math.hf32)
        if other is None or all(one.fits(device) for one in around):
            yield Way(other, product, around)


def _others(
    c: Convolution,
    folds: Callable[[Convolution], list[Fold]],
    folded: Callable[[Convolution, Fold], FoldedConvolution],
) -> list[Convolution | None]:
    """What may be computed in place of ``c``: it first, as None."""
    thin = [thinned(c)] if can_thin(c) else []
    return [None, *thin, *(folded(c, fold) for fold in (folds(c) if can_fold(c) else ()))]


def _made(name: str, plain: Tensor, change: Change) -> Tensor:
    return Tensor(name, change.blocked_shape(plain.shape), plain.dtype, "out")


def map_change(c: Convolution, other: Convolution | None, *, loads_plain: bool) -> Change:
    """Between the input of ``c`` and what ``other`` computes with in its place; None is ``c``."""
    if isinstance(other, FoldedConvolution):
        return Folded(c.c0, loads_plain, other.fold)
    if other is not None:
        return Thinned(c.c0, loads_plain, (c.step(1), c.step(2)))
    return Conversion(kind="to_blocked" if loads_plain else "from_blocked", c0=c.c0)


def filter_change(c: Convolution, other: Convolution | None, kind: str = "from_fracz") -> Change:
    """The same of filters; ``kind`` is the conversion where these are not folded."""
    if isinstance(other, FoldedConvolution):
        return FoldedFilters(other)
    return Conversion(kind=kind, c0=c.c0, groups=c.groups)


def changed(change: Change, src: Tensor, dst: Tensor) -> LayoutChange:
    """The kernel that makes a change."""
    return _KERNELS[type(change)](change, src, dst)


_KERNELS: Mapping[type, Callable[[Any, Tensor, Tensor], LayoutChange]] = {
    Conversion: TransData,
    Folded: FoldMap,
    Thinned: ThinMap,
    FoldedFilters: FoldWeights,
}
