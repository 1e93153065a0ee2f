"""Which strided gradients are computed as those of another convolution, and how.

Of few channels, rows and columns of the input may be channels; of filters of 1x1, pixels that they
read may be all there are.

The choice is made by estimates of the products and of the conversions around them, once for each
problem and the figures of the device that estimates look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

from npusim.base.dtypes import FP32
from npusim.base.errors import CapacityError
from npusim.call.call import Call
from npusim.device.spec import Device
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.conv_forward import ConvForward
from npusim.kernels.fold_map import Folded, FoldMap
from npusim.kernels.fold_weights import FoldedFilters, FoldWeights
from npusim.kernels.implicit_gemm import ImplicitGemm
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
from npusim.ops.arguments import CubeMath
from npusim.ops.gradients import ANY_GRADIENT, ANY_PRODUCT, asked
from npusim.reuse.cache import Answers, Seen
from npusim.shapes.convolution import Convolution

#: What was chosen for a gradient: the rows and columns of a fold, or these, or nothing.
_WAYS: Answers[list[int]] = Answers("fold", 256, list, list)
_THIN = [0, 0]

#: How much longer than on fewer cores a leading tiling may take on all of them.
_FEWER = 1.1


class Way(NamedTuple):
    """How a gradient may be computed: the product, and the conversions that differ.

    ``shape`` is what the product computes, None where that is the layer itself.
    """

    shape: Convolution | None
    product: ImplicitGemm | ConvBackpropFilter
    around: tuple[Spread, ...]


def faster_shape(
    call: Call, c: Convolution, math: CubeMath, *, gradient: bool
) -> Convolution | None:
    """What makes the input ``gradient`` of the 3-D ``c``, or that of its filter, faster."""
    inputs = (ConvBackpropInput, *[ConvForward] * can_fold(c))
    kernels = inputs if gradient else (ConvBackpropFilter,)
    if not (can_fold(c) or can_thin(c)) or any(
        asked(call, kernel) not in ("auto", "tuned") for kernel in kernels
    ):
        return None
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
    least = inf
    best, *others = ways(device, c, math, gradient=gradient)
    for way in (best, *others):
        time = _estimate(way, device, groups, least)
        if time < least:
            best, least = way, time
    return best


def ways(device: Device, c: Convolution, math: CubeMath, *, gradient: bool) -> list[Way]:
    """All ways to compute a gradient, the plain one first."""
    dtype, found = math.dtype, list[Way]()
    dy = Tensor("dy", (c.n, 1, c.cout1, *c.out[1:], c.c0), dtype, "in")
    x = Tensor("x", (c.n, c.cin, *c.spatial), dtype, "out" if gradient else "in")
    w = Tensor("w", c.w_shape, dtype if gradient else FP32, "in" if gradient else "out")
    kind = "from_fracz"
    if gradient:
        kind = "to_fracz_transposed" if dtype is FP32 else "to_fracz"
    folds = (gradient_folds, folded_gradient) if gradient else (input_folds, folded_input)
    for other in _others(c, *folds):
        filters = filter_change(c, other, kind)
        maps = map_change(c, other, loads_plain=not gradient)
        weights, blocked = _made("weights", w, filters), _made("blocked", x, maps)
        product: ImplicitGemm | ConvBackpropFilter
        if gradient:
            kernel = ConvForward if isinstance(other, FoldedConvolution) else ConvBackpropInput
            product = kernel(other or c, ANY_PRODUCT, dy, weights, blocked, math.hf32)
            around = changed(filters, w, weights), changed(maps, blocked, x)
        else:
            product = ConvBackpropFilter(other or c, ANY_GRADIENT, blocked, dy, weights, math.hf32)
            around = changed(maps, x, blocked), changed(filters, weights, w)
        if other is None or all(one.fits(device) for one in around):
            found.append(Way(other, product, around))
    return found


def _estimate(way: Way, device: Device, groups: int, least: float) -> float:
    """Cycles of a way; infinite where it is found to take longer than ``least``."""
    cores = groups * device.core_kind(way.product.role).per_group
    vectors = groups * device.core_kind("vector").per_group
    if not way.product.shape.reads_any:
        return inf
    streams = (one.stream(device, vectors) for one in way.around)
    around = sum(float(times(device, vectors, stream).min()) for stream in streams)
    try:
        limit = _FEWER * (least - around)
        found = way.product.ranked(device, cores, 2, known=(limit,) * 2)
    except CapacityError:
        return inf
    return around + found[0][0] if found else inf


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
