"""Which strided gradients are computed as those of another convolution, and how.

Of few channels, rows and columns of the input may be channels; of filters of 1x1, pixels that they
read may be all there are.

The choice is made by estimates of the products and of the conversions around them, once for each
problem and the figures of the device that estimates look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from npusim.base.dtypes import FP32, DType
from npusim.base.errors import CapacityError
from npusim.call.call import Call
from npusim.call.tiling import asked_tiling
from npusim.device.spec import Device
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter
from npusim.kernels.conv_backprop_filter import Tiling as FilterTiling
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.conv_forward import ConvForward
from npusim.kernels.fold_map import FoldMap
from npusim.kernels.fold_weights import FoldWeights, folded_weights_room, folded_weights_shape
from npusim.kernels.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.parts.folding import (
    Fold,
    can_fold,
    can_thin,
    folded_gradient,
    folded_input,
    gradient_folds,
    input_folds,
    thinned,
)
from npusim.kernels.parts.spread import Spread
from npusim.kernels.thin_map import ThinMap
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
    kind = "to_fracz_transposed" if dtype is FP32 else "to_fracz"
    w, dx = (
        Tensor("w", c.w_shape, dtype, "in"),
        Tensor("dx", (c.n, c.cin, *c.spatial), dtype, "out"),
    )
    weights = _blocked("weights", w, Conversion(kind=kind, c0=c.c0, groups=c.groups))
    made = Tensor("made", (c.n, 1, c.cin1, *c.spatial[1:], c.c0), dtype, "out")
    yield Way(
        None,
        ConvBackpropInput(c, ANY_PRODUCT, dy, weights, made, math.hf32),
        (
            TransData(Conversion(kind=kind, c0=c.c0, groups=c.groups), w, weights),
            TransData(Conversion(kind="from_blocked", c0=c.c0), made, dx),
        ),
    )
    made = Tensor("made", (c.n, 1, c.cin1, *c.out[1:], c.c0), dtype, "out")
    if can_thin(c) and (spread := _thin_map(c, made, dx, to_blocks=False)).fits(device):
        few = thinned(c)
        yield Way(
            few,
            ConvBackpropInput(few, ANY_PRODUCT, dy, weights, made, math.hf32),
            (TransData(Conversion(kind=kind, c0=c.c0, groups=c.groups), w, weights), spread),
        )
    for fold in gradient_folds(c) if can_fold(c) else ():
        shape = folded_gradient(c, fold)
        if not folded_weights_room(shape, device):
            continue
        weights = Tensor("weights", folded_weights_shape(shape), dtype, "out")
        made = folded_map("made", c, fold, dtype)
        yield Way(
            shape,
            ConvForward(shape, ANY_PRODUCT, dy, weights, made, math.hf32),
            (
                FoldWeights(shape, w, weights),
                FoldMap(c.c0, made, dx, to_blocks=False, fold=fold),
            ),
        )


def _filter_ways(device: Device, c: Convolution, math: CubeMath) -> Iterator[Way]:
    dtype = math.dtype
    dy = Tensor("dy", (c.n, 1, c.cout1, *c.out[1:], c.c0), dtype, "in")
    x, dw = Tensor("x", (c.n, c.cin, *c.spatial), dtype, "in"), Tensor("dw", c.w_shape, FP32, "out")
    read = Tensor("read", (c.n, 1, c.cin1, *c.spatial[1:], c.c0), dtype, "out")
    back = Conversion(kind="from_fracz", c0=c.c0, groups=c.groups)
    made = _blocked("made", dw, back)
    yield Way(
        None,
        ConvBackpropFilter(c, ANY_GRADIENT, read, dy, made, math.hf32),
        (
            TransData(Conversion(kind="to_blocked", c0=c.c0), x, read),
            TransData(back, made, dw),
        ),
    )
    read = Tensor("read", (c.n, 1, c.cin1, *c.out[1:], c.c0), dtype, "out")
    if can_thin(c) and (thin := _thin_map(c, x, read, to_blocks=True)).fits(device):
        few = thinned(c)
        yield Way(
            few,
            ConvBackpropFilter(few, ANY_GRADIENT, read, dy, made, math.hf32),
            (thin, TransData(back, made, dw)),
        )
    for fold in input_folds(c) if can_fold(c) else ():
        shape = folded_input(c, fold)
        if not folded_weights_room(shape, device):
            continue
        read = folded_map("read", c, fold, dtype)
        made = Tensor("made", folded_weights_shape(shape), FP32, "out")
        yield Way(
            shape,
            ConvBackpropFilter(shape, ANY_GRADIENT, read, dy, made, math.hf32),
            (
                FoldMap(c.c0, x, read, to_blocks=True, fold=fold),
                FoldWeights(shape, made, dw),
            ),
        )


def _thin_map(c: Convolution, src: Tensor, dst: Tensor, *, to_blocks: bool) -> ThinMap:
    return ThinMap(c.c0, src, dst, to_blocks, (c.step(1), c.step(2)))


def folded_map(name: str, c: Convolution, fold: Fold, dtype: DType) -> Tensor:
    """The input of ``c``, or its gradient, folded."""
    shape = (c.n, 1, fold.blocks(c.cin, c.c0), *fold.plane(*c.spatial[1:]), c.c0)
    return Tensor(name, shape, dtype, "out")


def _blocked(name: str, plain: Tensor, conversion: Conversion) -> Tensor:
    return Tensor(name, conversion.blocked_shape(plain.shape), plain.dtype, "out")
