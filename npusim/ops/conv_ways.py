"""The ways to compute a result of a convolution, and the choice of the fastest by estimates.

Some strided gradients are computed as those of another convolution. Of few channels, rows and
columns of the input may be channels; of filters of 1x1, pixels that they read may be all there are.
Results of layers whose windows lie side by side may be products of matrices
(``npusim.ops.window_products``).

Estimates are those of the products and of the conversions around them. They are made once for each
problem and the figures of the device that they look at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from npusim.base.dtypes import FP32
from npusim.base.errors import CapacityError
from npusim.call.call import Call
from npusim.kernels.estimate.costs import launch_cycles
from npusim.kernels.estimate.streams import spread_cycles, times
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.fold_map import Folded, FoldMap
from npusim.kernels.layout.fold_weights import FoldedFilters, FoldWeights
from npusim.kernels.layout.folding import (
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
from npusim.kernels.layout.layout_change import Change, LayoutChange
from npusim.kernels.layout.thin_map import ThinMap, Thinned
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.ops.blocked_gradients import ANY_GRADIENT, ANY_PRODUCT, asked
from npusim.ops.cube_math import CubeMath
from npusim.ops.window_products import product_estimate
from npusim.problem.convolution import Convolution
from npusim.reuse.answers import Answers
from npusim.reuse.tracked_device import TrackedDevice

Gradient = ImplicitGemm | ConvBackpropFilter

# -- conversions around a way ------------------------------------------------------------------


def map_change(c: Convolution, other: Convolution | None, *, loads_plain: bool) -> Change:
    """The change between the input of ``c`` and that of ``other``, which is computed in its place.

    None stands for ``c`` itself.
    """
    if isinstance(other, FoldedConvolution):
        return Folded(c.c0, loads_plain, other.fold)
    if other is not None:
        return Thinned(c.c0, loads_plain, (c.step(1), c.step(2)))
    return Conversion(kind="to_blocked" if loads_plain else "from_blocked", c0=c.c0)


def filter_change(c: Convolution, other: Convolution | None, kind: str = "from_fracz") -> Change:
    """The change of filters; ``kind`` is the conversion where these are not folded."""
    if isinstance(other, FoldedConvolution):
        return FoldedFilters(other)
    return Conversion(kind=kind, c0=c.c0, groups=c.groups)


#: The kernels of changes.
_CHANGES: Mapping[type, Callable[[Any, Tensor, Tensor], LayoutChange]] = {
    Conversion: TransData,
    Folded: FoldMap,
    Thinned: ThinMap,
    FoldedFilters: FoldWeights,
}


def changed(change: Change, src: Tensor, dst: Tensor) -> LayoutChange:
    """The kernel that makes a change."""
    return _CHANGES[type(change)](change, src, dst)


def _target(name: str, plain: Tensor, change: Change) -> Tensor:
    """The blocked tensor of a change, as a workspace."""
    return Tensor(name, change.blocked_shape(plain.shape), plain.dtype, "out")


# -- the ways of a gradient --------------------------------------------------------------------


class GradientWay(NamedTuple):
    """A way to compute a gradient: the product, and the conversions that differ.

    ``shape`` is the convolution of the product, None where that is the layer itself.
    """

    shape: Convolution | None
    product: Gradient
    around: tuple[LayoutChange, ...]


def ways(device: Device, c: Convolution, math: CubeMath, *, gradient: bool) -> list[GradientWay]:
    """All ways to compute the input ``gradient`` of ``c`` or that of its filter.

    The plain one is the first.
    """
    plain, *others = [
        _input_way(c, shape, math) if gradient else _filter_way(c, shape, math)
        for shape in _shapes(c, gradient=gradient)
    ]
    return [plain, *(way for way in others if all(change.fits(device) for change in way.around))]


def _shapes(c: Convolution, *, gradient: bool) -> list[Convolution | None]:
    """The convolutions that may be computed in place of ``c``: it first, as None."""
    shapes: list[Convolution | None] = [None]
    if can_thin(c):
        shapes.append(thinned(c))
    if can_fold(c):
        if gradient:
            shapes += [folded_gradient(c, fold) for fold in gradient_folds(c)]
        else:
            shapes += [folded_input(c, fold) for fold in input_folds(c)]
    return shapes


def _input_way(c: Convolution, shape: Convolution | None, math: CubeMath) -> GradientWay:
    """The input's gradient by the convolution ``shape``, None for ``c``."""
    kind = "to_fracz_transposed" if math.dtype is FP32 else "to_fracz"
    filters = filter_change(c, shape, kind)
    maps = map_change(c, shape, loads_plain=False)
    dy = _blocked_gradient(c, math)
    w = Tensor("w", c.w_shape, math.dtype, "in")
    dx = Tensor("x", (c.n, c.cin, *c.spatial), math.dtype, "out")
    weights = _target("weights", w, filters)
    blocked = _target("blocked", dx, maps)
    kernel = ConvForward if isinstance(shape, FoldedConvolution) else ConvBackpropInput
    product = kernel(shape or c, ANY_PRODUCT, dy, weights, blocked, math.hf32)
    return GradientWay(shape, product, (changed(filters, w, weights), changed(maps, blocked, dx)))


def _filter_way(c: Convolution, shape: Convolution | None, math: CubeMath) -> GradientWay:
    """The filter's gradient by the convolution ``shape``, None for ``c``."""
    filters = filter_change(c, shape)
    maps = map_change(c, shape, loads_plain=True)
    dy = _blocked_gradient(c, math)
    x = Tensor("x", (c.n, c.cin, *c.spatial), math.dtype, "in")
    dw = Tensor("w", c.w_shape, FP32, "out")
    weights = _target("weights", dw, filters)
    blocked = _target("blocked", x, maps)
    product = ConvBackpropFilter(shape or c, ANY_GRADIENT, blocked, dy, weights, math.hf32)
    return GradientWay(shape, product, (changed(maps, x, blocked), changed(filters, weights, dw)))


def _blocked_gradient(c: Convolution, math: CubeMath) -> Tensor:
    """The gradient of the output, in blocks."""
    return Tensor("dy", (c.n, 1, c.cout1, *c.out[1:], c.c0), math.dtype, "in")


def _forward_way(c: Convolution, math: CubeMath) -> GradientWay:
    """The forward pass by its convolution kernel."""
    to_blocked = Conversion(kind="to_blocked", c0=c.c0)
    to_fractals = Conversion(kind="to_fracz", c0=c.c0, groups=c.groups)
    from_blocked = Conversion(kind="from_blocked", c0=c.c0)
    x = Tensor("x", (c.n, c.cin, *c.spatial), math.dtype, "in")
    w = Tensor("w", c.w_shape, math.dtype, "in")
    y = Tensor("y", (c.n, c.cout, *c.out), math.dtype, "out")
    x_blocked = _target("x_blocked", x, to_blocked)
    weights = _target("weights", w, to_fractals)
    y_blocked = _target("y_blocked", y, from_blocked)
    product = ConvForward(c, ANY_PRODUCT, x_blocked, weights, y_blocked, math.hf32)
    around = (
        changed(to_blocked, x, x_blocked),
        changed(to_fractals, w, weights),
        changed(from_blocked, y_blocked, y),
    )
    return GradientWay(None, product, around)


# -- the choice --------------------------------------------------------------------------------

#: How much longer than on fewer cores a leading tiling may take on all of them.
_FEWER = 1.1


def best_way(
    device: Device, groups: int, c: Convolution, math: CubeMath, *, gradient: bool
) -> GradientWay:
    """The way of least estimate to compute the input ``gradient`` of ``c``, or that of its filter.

    That is the time of the product on so many ``groups`` of cores, with its launch, and of the
    conversions. Of equal ones the plain way is taken, also where no way fits the device.
    """
    _, way = _fastest(ways(device, c, math, gradient=gradient), device, groups)
    return way


def _fastest(
    candidates: Sequence[GradientWay], device: Device, groups: int
) -> tuple[float, GradientWay]:
    """The least estimate in cycles, and its way: the first one where none fits the device."""
    best = candidates[0]
    least = inf
    for way in candidates:
        cycles = _estimate(way, device, groups, least)
        if cycles < least:
            best = way
            least = cycles
    return least, best


def _estimate(way: GradientWay, device: Device, groups: int, least: float) -> float:
    """Cycles of a way; infinite where it turns out to take longer than ``least``."""
    if not way.product.shape.reads_any:
        return inf
    cores = groups * device.core_kind(way.product.role).per_group
    vectors = groups * device.core_kind("vector").per_group
    around = 0.0
    for change in way.around:
        around += float(times(device, vectors, change.stream(device, vectors)).min())
    limit = _FEWER * (least - around)
    try:
        ranked = way.product.ranked(device, cores, 2, known=(limit, limit))
    except CapacityError:
        return inf
    return around + ranked[0][0] if ranked else inf


#: The choice for a gradient: the rows and columns of a fold, or these for thinned maps, or nothing.
_WAYS: Answers[list[int]] = Answers("fold", 256, list, list)
_THIN = [0, 0]


def faster_shape(
    call: Call, c: Convolution, math: CubeMath, *, gradient: bool
) -> Convolution | None:
    """The convolution that makes the input ``gradient`` of the 3-D ``c``, or its filter's, faster.

    None where that is ``c`` itself, or where the call asks for a tiling of a kernel that it has.
    """
    if not (can_fold(c) or can_thin(c)):
        return None
    kernels: list[type[Gradient]] = [ConvBackpropFilter]
    if gradient:
        kernels = [ConvBackpropInput, ConvForward] if can_fold(c) else [ConvBackpropInput]
    if not all(_asks_for(("auto", "tuned"), call, kernel, c, math) for kernel in kernels):
        return None
    fold = _chosen_fold(call, c, math, gradient=gradient)
    if fold == _THIN:
        return thinned(c)
    if not fold:
        return None
    rows, columns = fold
    if gradient:
        return folded_gradient(c, Fold(rows, columns))
    return folded_input(c, Fold(rows, columns))


def _asks_for(
    words: Collection[str], call: Call, kernel: type[Gradient], c: Convolution, math: CubeMath
) -> bool:
    """True if a call asks for the tiling of a kernel of ``c`` by one of these words."""
    wanted = asked(call, kernel, c, math.dtype)
    return isinstance(wanted, str) and wanted in words


def _chosen_fold(call: Call, c: Convolution, math: CubeMath, *, gradient: bool) -> list[int]:
    """The choice for a gradient, as ``_WAYS`` has it."""
    key = f"{c} {math} {gradient} {call.groups}"
    known_answer = _WAYS.find(key, call.device)
    if known_answer is not None:
        return known_answer.answer
    watched = TrackedDevice(call.device)
    shape = best_way(watched.device, len(call.groups), c, math, gradient=gradient).shape
    if shape is None:
        fold: list[int] = []
    elif isinstance(shape, FoldedConvolution):
        fold = list(shape.fold)
    else:
        fold = _THIN
    _WAYS.keep(key, call.device, watched.names, fold)
    return fold


# -- products of matrices ----------------------------------------------------------------------

#: The kernels that compute a result unless it is a product.
_KERNELS_OF: Mapping[str, tuple[type[Gradient], ...]] = {
    "output": (ConvForward,),
    "input": (ConvBackpropInput, ConvForward),
    "weight": (ConvBackpropFilter,),
}

#: The words for tilings under which a result may be a product.
_WORDS = ("auto", "tuned", "library")

#: The choice for a result, true for a product, in a list.
_MULTIPLIED: Answers[list[bool]] = Answers("multiplied", 256, list, list)


def can_multiply(c: Convolution) -> bool:
    """True if windows of the ordinary ``c`` are rows of a matrix, which its filter multiplies.

    A filter of 1x1 may be multiplied only where it is the whole input.
    """
    return c.one_window or (c.side_by_side and c.taps > 1)


def multiplied(call: Call, c: Convolution, math: CubeMath, result: str) -> bool:
    """Choose a product of matrices for a ``result`` of ``c``, whose windows lie side by side.

    It is chosen for a single window an image, as in the vendor's library, and where the library
    does so on the chip; else where it takes less time than convolution kernels by an estimate of
    both. A tiling that is given for a convolution kernel asks for this kernel.
    """
    kernels = _KERNELS_OF[result]
    if not all(_asks_for(_WORDS, call, kernel, c, math) for kernel in kernels):
        return False
    if c.one_window:
        return True
    if any(_asks_for(("library",), call, kernel, c, math) for kernel in kernels):
        return call.device.library_multiplies
    key = f"{c} {math} {result} {call.groups}"
    known_answer = _MULTIPLIED.find(key, call.device)
    if known_answer is not None:
        return known_answer.answer[0]
    watched = TrackedDevice(call.device)
    groups = len(call.groups)
    convolved = _convolved_estimate(watched.device, groups, c, math, result)
    answer = product_estimate(watched.device, groups, c, math, result) < convolved
    _MULTIPLIED.keep(key, call.device, watched.names, [answer])
    return answer


def _convolved_estimate(
    device: Device, groups: int, c: Convolution, math: CubeMath, result: str
) -> float:
    """Cycles of a ``result`` by convolution kernels, with conversions and all launches."""
    vectors = groups * device.core_kind("vector").per_group
    conversion = 0.0
    if result == "output":
        candidates = [_forward_way(c, math)]
    else:
        candidates = ways(device, c, math, gradient=result == "input")
        dy = Tensor("dy", (c.n, c.cout, *c.out), math.dtype, "in")
        to_blocked = Conversion(kind="to_blocked", c0=c.c0)
        kernel = changed(to_blocked, dy, _target("dy_blocked", dy, to_blocked))
        conversion = spread_cycles(device, vectors, kernel)
    least, best = _fastest(candidates, device, groups)
    launches = len(best.around) * float(launch_cycles(device, "vector", 0))
    return least + launches + conversion
