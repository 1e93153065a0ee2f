"""What a convolution's backward launches, in order, for operands in framework layout.

Some strided gradients are computed as those of another convolution. Of few channels, rows and
columns of the input may be channels; of filters of 1x1, pixels that they read may be all there are.
Results of layers whose windows lie side by side may be products of matrices
(``npusim.ops.window_products``).

The choice is made by estimates of the products and of the conversions around them, once for each
problem and the figures of the device that estimates look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Any, ClassVar, NamedTuple

from npusim.base.dtypes import FP32, DType, dtype, promote
from npusim.base.errors import CapacityError
from npusim.call.call import Call
from npusim.call.spec import Operand
from npusim.call.tilings.words import is_library
from npusim.kernels.estimate.costs import launch_cycles
from npusim.kernels.estimate.streams import spread_cycles, times
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.cast import cast
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
from npusim.kernels.layout.library_trans_data import LibraryGroups, LibraryTransData
from npusim.kernels.layout.thin_map import ThinMap, Thinned
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.kernels.parts.spread import Spread
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.ops.arguments import CubeMath
from npusim.ops.blocked_gradients import (
    ANY_GRADIENT,
    ANY_PRODUCT,
    asked,
    launch,
    launch_bias,
    launch_filter_gradient,
    product,
    require_time,
)
from npusim.ops.window_products import LIBRARY_MULTIPLIES, WindowProducts, product_estimate
from npusim.problem.convolution import Convolution
from npusim.reuse.answers import Answers
from npusim.reuse.tracked_device import TrackedDevice


class Launcher:
    """Launches the kernels of one call; operands are converted once and shared.

    ``layer`` is what the caller described, ``self.shape`` the ordinary convolution that the
    kernels compute: of a transposed layer, gradOutput is its input and the input its output
    gradient.
    """

    #: Whether operands lie as frameworks have them, so that matrices may be views of them.
    lies_plain: ClassVar[bool] = True

    def __init__(
        self, call: Call, layer: Convolution, operands: Mapping[str, Operand], math: CubeMath
    ) -> None:
        self.call, self.operands, self.math = call, operands, math
        self.transposed, self.deep = layer.transposed, len(layer.spatial) == 3
        self.c0 = 32 // math.dtype.bytes
        self.shape = layer.plain().lifted(self.c0)
        self.ready: dict[str, Tensor] = {}  # operands by what has been made of them
        self.folded: list[FoldedConvolution] = []  # products with pixels as channels
        self.multiplied: set[str] = set()  # results that are products of matrices
        self.products = WindowProducts(self) if self._can_multiply else None

    @property
    def _can_multiply(self) -> bool:
        """Whether windows of the layer are rows of a matrix; a filter of 1x1 has to be one."""
        s = self.shape
        rows = s.one_window or (s.side_by_side and prod(s.kernel) > 1)
        return self.lies_plain and not self.transposed and rows

    def decide(self, *results: str) -> None:
        """Choose which of the ``results``, "output", "input" and "weight", are products."""
        if self.products is None:
            return
        self.multiplied = {
            one for one in results if multiplied(self.call, self.shape, self.math, one)
        }
        if self.multiplied:
            names = ("output", "grad_input", "grad_weight")
            words = [name for name in names if name.removeprefix("grad_") in self.multiplied]
            self.call.notes.append(self.products.note(" and ".join(words)))

    def require(self, mask: Sequence[bool]) -> None:
        """Raise ``CapacityError`` unless operands, results and their copies all have room.

        So are products that take many minutes of which nobody sees the progress.
        """
        wanted = {name for name, on in zip(("input", "weight"), mask, strict=False) if on}
        self.decide(*wanted)
        sizes = {
            "grad_output": self._size("grad_output", wanted, result=""),
            "input": self._size("input", wanted & {"weight"}, result="input" if mask[0] else ""),
            "weight": self._size("weight", wanted & {"input"}, result="weight" if mask[1] else ""),
        }
        self.call.require_memory(sizes)
        self.require_time(wanted)

    def require_time(self, wanted: set[str]) -> None:
        """Raise ``CapacityError`` for results that take many minutes unseen."""
        convolved = wanted - self.multiplied
        if convolved:
            require_time(self.call, self.shape, len(convolved), self.math.dtype)
        if self.products is not None and self.multiplied:
            self.products.require_time(len(self.multiplied))

    def _size(self, name: str, readers: set[str], *, result: str) -> int:
        """Bytes of an operand, of what its ``readers`` make of it, and of its gradient.

        ``readers`` are the results that are computed of it; ``result`` names its gradient as one
        of them, "" where that is not wanted.
        """
        value, filters = self.operands[name], name == "weight"
        shape, kind, computed = tuple(value.shape), dtype(value.dtype), self.math.dtype
        blocked = prod(
            self._conversion("to_fracz" if filters else "to_blocked").blocked_shape(shape)
        )
        size: int = prod(shape) * kind.bytes
        if readers:
            size += prod(shape) * computed.bytes if kind is not computed else 0
        if readers - self.multiplied:
            size += blocked * computed.bytes
        if readers & self.multiplied and self.products is not None:
            size += self.products.copy_bytes(name)
        if result:
            made, own = FP32 if filters else computed, self.wider(name)
            size += prod(shape) * own.bytes
            if result in self.multiplied and self.products is not None:
                made = own if filters and own is computed else made
                size += self.products.copy_bytes(name)
            else:
                size += blocked * made.bytes
            size += prod(shape) * made.bytes if made is not own else 0
        return size

    def needed(self, whole: str = "") -> dict[str, int]:
        """Bytes of the operands that the results need; of ``whole``, and of a bias, all."""
        used = dict(zip((*self._roles(), "weight"), ("inputs", "outputs", "taps"), strict=True))
        sizes = {
            name: prod(value.shape) * dtype(value.dtype).bytes
            for name, value in self.operands.items()
        }
        return {
            name: size if name in ("bias", whole) else self.shape.used(used[name], size)
            for name, size in sizes.items()
        }

    def sizes(self, layer: Convolution, products: int) -> dict[str, tuple[int, int]]:
        """Channels of ``layer`` that the cube rounds up, by name, with what blocks make of them.

        Of so many ``products`` launched; with pixels as channels these count too.
        """
        if self.products is not None and len(self.multiplied) == products > 0:
            return self.products.sizes()
        found = layer.channel_blocks(self.c0)
        if not self.folded:
            return found
        (name, read), *rest = found.items()
        sizes = {} if len(self.folded) == products else {name: read}
        for one in self.folded:
            (h, w), s = one.fold, self.shape
            whole = one.fold.blocks(s.cin, self.c0) * self.c0
            sizes[f"{name} x {h} x {w}"] = (s.cin * h * w, whole)
        return sizes | dict(rest)

    # -- the three products ----------------------------------------------------------------

    def input_grad(self) -> Tensor:
        """gradInput: an input gradient, or for a transposed layer a forward convolution."""
        if self.products is not None and "input" in self.multiplied:
            return self.products.input_grad()
        s, call = self.shape, self.call
        other = None if self.transposed else faster_shape(call, s, self.math, gradient=True)
        folded, (first, last) = self._note_fold(other), self._roles()
        source = self.blocked(first if self.transposed else last)
        if folded:
            weights = self._converted("weight", "weight_folded", filter_change(s, other))
        else:
            weights = self.fractal(exchanged=not self.transposed and self.math.dtype is FP32)
        shape = (s.n, s.cout, *s.out) if self.transposed else (s.n, s.cin, *s.spatial)
        back = map_change(s, other, loads_plain=False)
        name = "grad_input_folded" if folded else "grad_input_blocked"
        made = call.workspace(name, back.blocked_shape(shape), self.math.dtype)
        kernel = ConvForward if self.transposed or folded else ConvBackpropInput
        one = product(call, kernel, other or s, source, weights, made, self.math.hf32)
        launch(call, one, made)
        return self._leave("grad_input", made, shape, self.wider("input"), back)

    def weight_grad(self) -> Tensor:
        """gradWeight: an fp32 filter gradient, converted last."""
        if self.products is not None and "weight" in self.multiplied:
            return self.products.weight_grad()
        s, call = self.shape, self.call
        first, last = self._roles()
        # An input that is converted already is read as it is.
        known = f"{first}_blocked" in self.ready
        other = None if known else faster_shape(call, s, self.math, gradient=False)
        if other is None:
            x = self.blocked(first)
        else:
            name = f"{first}_folded" if self._note_fold(other) else f"{first}_thin"
            x = self._converted(first, name, map_change(s, other, loads_plain=True))
        dy, back = self.blocked(last), filter_change(s, other)
        made = call.workspace("grad_weight_fractal", back.blocked_shape(s.w_shape), FP32)
        launch_filter_gradient(call, other or s, x, dy, made, self.math.hf32)
        return self._leave("grad_weight", made, s.w_shape, self.wider("weight"), back)

    def _note_fold(self, other: Convolution | None) -> bool:
        """Note a product with pixels as channels; returns whether it is one."""
        if not isinstance(other, FoldedConvolution):
            return False
        self.folded.append(other)
        return True

    def bias_grad(self) -> Tensor:
        """gradBias: gradOutput as it came, summed in fp32 and rounded once."""
        dy, call = self.operand("grad_output"), self.call
        db = call.output("grad_bias", dy.shape[1:2], dy.dtype)
        launch_bias(call, dy, db, "grad_bias_parts")
        return db

    # -- operands --------------------------------------------------------------------------

    def operand(self, name: str) -> Tensor:
        """An operand as the caller gave it, 3-D."""
        if name not in self.ready:
            value = self.operands[name]
            n, c, *size = value.shape
            shape = (n, c, *(1,) * (3 - len(size)), *size)
            self.ready[name] = self.call.input(name, value, dtype(value.dtype), shape)
        return self.ready[name]

    def computed(self, name: str) -> Tensor:
        """An operand in the type the cube computes with."""
        tensor, key = self.operand(name), f"{name}_{self.math.dtype}"
        if tensor.dtype is self.math.dtype:
            return tensor
        if key not in self.ready:
            self.ready[key] = self._cast(tensor, key, self.math.dtype)
        return self.ready[key]

    def blocked(self, name: str) -> Tensor:
        """A feature map as (N, D, C1, H, W, C0)."""
        key = f"{name}_blocked"
        if key not in self.ready:
            self.ready[key] = self._converted(name, key, self._conversion("to_blocked"))
        return self.ready[key]

    def fractal(self, *, exchanged: bool) -> Tensor:
        """The weight as FRACTAL_Z_3D, or with its channel roles exchanged."""
        key = "weight_exchanged" if exchanged else "weight_fractal"
        if key not in self.ready:
            kind = "to_fracz_transposed" if exchanged else "to_fracz"
            self.ready[key] = self._converted("weight", key, self._conversion(kind))
        return self.ready[key]

    # -- results ---------------------------------------------------------------------------

    def _leave(
        self, name: str, blocked: Tensor, shape: tuple[int, ...], dtype: DType, back: Change
    ) -> Tensor:
        """Convert a kernel's result to the framework's layout and type."""
        same = blocked.dtype is dtype
        plain = (
            self._result(name, shape, dtype)
            if same
            else self.call.workspace(f"{name}_{blocked.dtype}", shape, blocked.dtype)
        )
        self.call.launch_spread(self._changed(back, blocked, plain))
        return plain if same else self._cast(plain, name, dtype, output=True)

    def _result(self, name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """Memory for a gradient of input or weight."""
        return self.call.output(name, shape, dtype)

    def _converted(self, name: str, made: str, change: Change) -> Tensor:
        plain = self.computed(name)
        target = self.call.workspace(made, change.blocked_shape(plain.shape), plain.dtype)
        kernel = self._changed(change, plain, target)
        if kernel.clears:
            self.call.clear(target)
        self.call.launch_spread(kernel)
        return target

    def _changed(self, change: Change, src: Tensor, dst: Tensor) -> LayoutChange:
        """Our conversion, or the one of the library, where its rule is known."""
        if (
            isinstance(change, Conversion)
            and change.kind != "to_fracz_transposed"
            and is_library(self.call.options.tiling, TransData.name)
        ):
            if not change.maps and self.shape.groups > 1:
                return LibraryGroups(change, src, dst)
            if self.deep:
                return LibraryTransData(change, src, dst)
        return changed(change, src, dst)

    def _conversion(self, kind: str) -> Conversion:
        return Conversion(kind=kind, c0=self.c0, groups=self.shape.groups)

    def _cast(self, tensor: Tensor, name: str, dtype: DType, *, output: bool = False) -> Tensor:
        make = self._result if output else self.call.workspace
        target = make(name, tensor.shape, dtype)
        self.call.launch_spread(cast(tensor, target, saturate=self.call.device.saturates))
        return target

    def _roles(self) -> tuple[str, str]:
        """Operands that are input and output gradient of the plain convolution."""
        return ("grad_output", "input") if self.transposed else ("input", "grad_output")

    def type_of(self, name: str) -> DType:
        """The type in which an operand came."""
        return dtype(self.operands[name].dtype)

    def wider(self, name: str) -> DType:
        """The type of a gradient: the one that an operand and gradOutput are computed in."""
        return promote((dtype(self.operands[n].dtype) for n in (name, "grad_output")), FP32)


# -- strided gradients -----------------------------------------------------------------------------


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
        watched = TrackedDevice(call.device)
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
    return _fastest(ways(device, c, math, gradient=gradient), device, groups)[1]


def _fastest(some: Sequence[Way], device: Device, groups: int) -> tuple[float, Way]:
    """The least estimate in cycles, and its way: the first one where none fits the device."""
    best, least = some[0], inf
    for way in some:
        time = _estimate(way, device, groups, least)
        if time < least:
            best, least = way, time
    return least, best


def multiplied(call: Call, c: Convolution, math: CubeMath, result: str) -> bool:
    """Whether a ``result`` of ``c``, whose windows lie side by side, is a product of matrices.

    It is for a single window an image, as in the vendor's library, and where the library does so
    on the chip; else where it takes less time than convolution kernels by an estimate of both. A
    tiling that is given for a convolution kernel asks for this kernel.
    """
    words = [asked(call, kernel) for kernel in _KERNELS_OF[result]]
    if not all(word in ("auto", "tuned", "library") for word in words):
        return False
    if c.one_window:
        return True
    if "library" in words:
        return call.device.product in LIBRARY_MULTIPLIES
    key = f"{c} {math} {result} {call.groups}"
    found = _MULTIPLIED.find(key, call.device)
    if found is not None:
        return found.answer[0]
    watched, groups = TrackedDevice(call.device), len(call.groups)
    convolved = _convolved_estimate(watched.device, groups, c, math, result)
    answer = product_estimate(watched.device, groups, c, math, result) < convolved
    _MULTIPLIED.keep(key, call.device, watched.names, [answer])
    return answer


#: The kernels that compute a result unless it is a product.
_KERNELS_OF: Mapping[str, tuple[type[ImplicitGemm | ConvBackpropFilter], ...]] = {
    "output": (ConvForward,),
    "input": (ConvBackpropInput, ConvForward),
    "weight": (ConvBackpropFilter,),
}

#: Whether a result is a product, in a list.
_MULTIPLIED: Answers[list[bool]] = Answers("multiplied", 256, list, list)


def _convolved_estimate(
    device: Device, groups: int, c: Convolution, math: CubeMath, result: str
) -> float:
    """Cycles of a ``result`` by convolution kernels, with conversions and all launches."""
    dtype, vectors = math.dtype, groups * device.core_kind("vector").per_group
    before = []
    if result == "output":
        some = [_forward(c, math)]
    else:
        some = ways(device, c, math, gradient=result == "input")
        dy = Tensor("dy", (c.n, c.cout, *c.out), dtype, "in")
        change = Conversion(kind="to_blocked", c0=c.c0)
        before.append(changed(change, dy, _made("dy_blocked", dy, change)))
    least, best = _fastest(some, device, groups)
    launches = len(best.around) * float(launch_cycles(device, "vector", 0))
    return least + launches + sum(spread_cycles(device, vectors, one) for one in before)


def _forward(c: Convolution, math: CubeMath) -> Way:
    """The forward pass by its convolution kernel."""
    dtype, into = math.dtype, Conversion(kind="to_blocked", c0=c.c0)
    out, filters = (
        Conversion(kind="from_blocked", c0=c.c0),
        Conversion(kind="to_fracz", c0=c.c0, groups=c.groups),
    )
    x = Tensor("x", (c.n, c.cin, *c.spatial), dtype, "in")
    w = Tensor("w", c.w_shape, dtype, "in")
    y = Tensor("y", (c.n, c.cout, *c.out), dtype, "out")
    blocked, weights, made = (
        _made("x_blocked", x, into),
        _made("weights", w, filters),
        _made("made", y, out),
    )
    product = ConvForward(c, ANY_PRODUCT, blocked, weights, made, math.hf32)
    around = changed(into, x, blocked), changed(filters, w, weights), changed(out, made, y)
    return Way(None, product, around)


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
