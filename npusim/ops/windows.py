"""im2col and its backward, unfold and fold: patches of sliding windows, and images of patches.

Each is a row, for one undoes what the other does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod, sqrt
from typing import Any, NamedTuple

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.call.tilings.words import own_tiling
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.kernels.parts.spread import Spread
from npusim.kernels.windows import im2col_backward_tiling as image_tiling
from npusim.kernels.windows import im2col_tiling as patches_tiling
from npusim.kernels.windows.im2col import Im2col
from npusim.kernels.windows.im2col_backward import Im2colBackward
from npusim.machine.isa.operands import Tensor
from npusim.ops.arguments import frozen, operand
from npusim.ops.card import LIMITS, Card, Input, Output, Sample, Stated
from npusim.ops.layer import per_axis
from npusim.problem.convolution import Convolution, Sizes, output_sizes
from npusim.problem.limits.facts import FACTS, tensor_facts
from npusim.problem.reference import fold, unfold
from npusim.results import Result

#: Channels in a block of the conversion, also for fp32 (this conversion knows no other).
C0 = 16


class Windows(NamedTuple):
    """The windows as a convolution that gives each tap its channel, and (N,) or ()."""

    c: Convolution
    lead: Sizes

    @property
    def image(self) -> tuple[str, Sizes]:
        """Axes and shape of the image."""
        return "N, C, H, W"[3 * (not self.lead) :], (*self.lead, self.c.cin, *self.c.spatial)

    @property
    def patches(self) -> tuple[str, Sizes]:
        """Axes and shape of the patches."""
        axes = "N, C*KH*KW, L"[3 * (not self.lead) :]
        return axes, (*self.lead, self.c.cout, prod(self.c.out))

    @property
    def settings(self) -> tuple[Sizes, Sizes, Sizes, Sizes]:
        """Kernel, dilation, padding and stride, in the order of the calls' arguments."""
        c = self.c
        return c.kernel, c.dilation, tuple(before for before, _ in c.padding), c.stride


def windows(
    lead: Sizes, channels: int, size: Sizes, kernel: Sizes, settings: Mapping[str, Any]
) -> Convolution:
    """The convolution that cuts patches: one channel out per channel and tap.

    ``settings`` has stride, padding (the same on opposite sides) and dilation.
    """
    return Convolution(
        n=prod(lead),
        cin=channels,
        cout=channels * prod(kernel),
        spatial=size,
        kernel=kernel,
        stride=settings["stride"],
        padding=tuple((p, p) for p in settings["padding"]),
        dilation=settings["dilation"],
        groups=channels,
    )


def planes(c: Convolution, n: int, block: int) -> Convolution:
    """The same windows over ``n`` planes of ``block`` channels, as the kernels see them."""
    return replace(c, n=n, cin=block, cout=block * c.taps, groups=block)


# -- facts -------------------------------------------------------------------------------------


def facts(operator: str, array: Any, *settings: Any) -> dict[str, Any]:
    """What the limits are checked against, of arguments in their order.

    The operand is anything with ``shape`` and ``dtype``.
    """
    shape, _, *names = FACTS[operator][0]
    given = dict(zip(names, map(frozen, settings), strict=True))
    return tensor_facts(**{shape.partition(".")[0]: array}) | given


def _image(checked: Mapping[str, Any]) -> tuple[Sizes, int, Sizes]:
    """(N,) or (), channels and size of the image of facts that the limits have let pass."""
    shape = checked.get("image.shape")
    if shape is None:
        *lead, rows, _ = checked["grad_output.shape"]
        return tuple(lead), int(rows) // prod(checked["kernel_size"]), checked["input_size"]
    if len(shape) == 5:
        return shape[:1], shape[1] * C0, shape[2:4]
    return shape[:-3], shape[-3], shape[-2:]


def made_shape(checked: Mapping[str, Any]) -> Sizes:
    """The shape of the result; facts are those the limits have let pass."""
    lead, channels, size = _image(checked)
    shape, kernel = checked.get("image.shape"), checked["kernel_size"]
    if shape is None:
        return (*lead, channels, *size)
    taps, count = prod(kernel), prod(windows((), 1, size, kernel, checked).out)
    return (*shape[:2], taps, count, C0) if len(shape) == 5 else (*lead, channels * taps, count)


# -- what both have in common ------------------------------------------------------------------


class _Row(NamedTuple):
    """One of both operators: its argument, that on a command line, its result, kernel and tiling.

    ``tiled`` gives the kernel for planes on so many cores, with that tiling or the best there is.
    ``expected`` computes the result in float64 of the operand and the other arguments.
    """

    reads: str
    shown: str
    makes: str
    kernel: type[Spread]
    tiling: type[Any]
    tiled: Callable[[Call, Convolution, Tensor, Tensor, int, Any], Spread]
    expected: Callable[..., Array]
    limit: Callable[[Sample[Windows]], float]

    @property
    def of_image(self) -> bool:
        """Whether it reads an image, and makes patches."""
        return self.reads == "image"

    def sides(self, p: Windows) -> tuple[tuple[str, Sizes], tuple[str, Sizes]]:
        """Axes and shape of what is read, and of what is made."""
        return (p.image, p.patches) if self.of_image else (p.patches, p.image)

    def settings(self, p: Windows) -> tuple[Sizes, ...]:
        """The arguments besides the operand, in their order."""
        return p.settings if self.of_image else (p.c.spatial, *p.settings)

    def run(self, name: str, options: dict[str, Any], value: Any, *settings: Any) -> Result:
        """The call of the operator ``name``, by its arguments in their order."""
        array = operand(value)
        call = CARDS[name].begin(options, **{self.reads: array})
        checked = facts(name, array, *settings)
        call.check(checked)
        own, (lead, channels, size) = _require_vector(call, self.reads, array), _image(checked)
        out = call.output("out", made_shape(checked), own)
        source, count = call.input(self.reads, array, own), 0
        if 0 in array.shape:
            call.notes.append(f"{self.reads} is empty: nothing is launched or written")
        else:
            c = windows(lead, channels, size, checked["kernel_size"], checked)
            count = c.n * c.cin
            self._convert(call, c, source, out)
        problem = f"{_problem(count, size, checked)}; {own}"
        return call.result({self.makes: call.arrays.get("out")}, problem, own)

    def _convert(self, call: Call, c: Convolution, source: Tensor, out: Tensor) -> None:
        """The kernel, between conversions to 5HD and back where it reads nothing else."""
        blocks = c.n * ceil_div(c.cin, C0)
        if len(source.shape) == 5:
            self._launch(call, planes(c, blocks, C0), source, out)
        elif call.device.overlap_sums == "fp32":  # this generation reads the framework layout
            self._launch(call, planes(c, c.n * c.cin, 1), source, out)
        else:
            both = c.x_shape, (c.n, c.cin, c.taps, prod(c.out))
            first, last = both if self.of_image else both[::-1]
            source, out = replace(source, shape=first), replace(out, shape=last)
            to_5hd = Conversion(kind="to_blocked", c0=C0)
            from_5hd = Conversion(kind="from_blocked", c0=C0)
            named = f"{self.reads.removesuffix('_output')}_5hd"
            read = call.workspace(named, to_5hd.blocked_shape(source.shape), source.dtype)
            made = call.workspace("out_5hd", from_5hd.blocked_shape(out.shape), source.dtype)
            call.launch_spread(TransData(to_5hd, source, replace(read, role="out")))
            self._launch(call, planes(c, blocks, C0), replace(read, role="in"), made)
            call.launch_spread(TransData(from_5hd, replace(made, role="in"), out))

    def _launch(self, call: Call, shape: Convolution, source: Tensor, out: Tensor) -> None:
        """The kernel on tensors of planes, tiled for the cores that it uses."""
        given = own_tiling(call.options.tiling, self.kernel.name, self.tiling)
        made: Any = self.tiled(call, shape, source, out, call.vector_cores, given)
        if given is None:
            made = call.spread(made)
            best: Any = self.tiled(call, shape, source, out, made.used(call.vector_cores), None)
            made = replace(made, tiling=best.tiling)
        call.launch(made)

    def card(self, function: Callable[..., Result]) -> Card[Windows]:
        """The card of the operator with this function."""

        def output(p: Windows) -> tuple[Output[Windows]]:
            axes = f"({self.sides(p)[1][0]})"
            return (Output(name=self.makes, layout=axes, axes=axes, expected=expected,
                           limit=self.limit),)  # fmt: skip

        def expected(sample: Sample[Windows]) -> Array:
            return self.expected(sample.arrays[self.shown], *self.settings(sample.problem))

        def call(p: Windows, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
            return function(given[self.shown], *self.settings(p), **options)

        return Card(
            function=function,
            problem=self.stated,
            inputs=(
                Input(
                    name=self.shown,
                    axes=lambda p: self.sides(p)[0][0],
                    shape=lambda p: self.sides(p)[0][1],
                ),
            ),
            outputs=output,
            call=call,
            dtypes=(FP16, FP32),
            tilings={self.kernel: self.tiling},
            role="vector",
            without=("deterministic",),
            strided=(self.reads, "out"),
        )

    def stated(self, stated: Stated) -> Windows:
        """The call of a command line; an operand that it gives shows sizes."""
        given = stated.arrays[self.shown].shape if self.shown in stated.arrays else None
        image = given[-2:] if self.of_image and given is not None else ()
        if stated["size"] is None and not image:
            raise ArgumentError(f"{stated.operator} needs --size HxW; give it")
        lead, channels = self._leading(stated, given)
        size = per_axis(stated, "size", 2, image)
        if image and size != image:
            shown = "x".join(map(str, size))
            raise ArgumentError(f"{stated.file(self.shown)}, but --size is {shown}")
        settings = {
            "stride": per_axis(stated, "stride", 2, (1,)),
            "padding": _padding(stated),
            "dilation": per_axis(stated, "dilation", 2, (1,)),
        }
        return Windows(windows(lead, channels, size, _kernel(stated), settings), lead)

    def _leading(self, stated: Stated, given: Sizes | None) -> tuple[Sizes, int]:
        """(N,) or (), and channels; stated, or as an operand of the shape ``given`` has them."""
        if given is None:
            count = 1 if stated["batch"] is None else stated["batch"]
            return (count,) if count else (), stated.size("channels", {})
        axes, taps, forms = 3, 1, "(N, C, H, W) or (C, H, W)"
        if not self.of_image:
            axes, taps = 2, prod(_kernel(stated))
            forms = f"(N, C*KH*KW, L), or (C*KH*KW, L), with KH*KW = {taps}"
        if len(given) not in (axes, axes + 1) or given[-axes] % taps:
            raise ArgumentError(f"{stated.file(self.shown)}; it must be {forms}")
        lead = given[:-axes]
        stated.size("batch", {self.shown: lead[0] if lead else 0})
        return lead, stated.size("channels", {self.shown: given[-axes] // taps})


def _require_vector(call: Call, name: str, given: Operand) -> DType:
    """The operand's type; raise unless the device has vector units that know it."""
    found = dtype(given.dtype)
    call.device.core_kind("vector")  # a device without one is refused for that, not for a type
    known = [one.name for one in (FP16, FP32) if one.name in call.device.dtypes]
    if found.name not in known:
        raise ArgumentError(
            f"{name} is {found}; {call.operator} takes {' or '.join(known)} on {call.device.name}"
        )
    return found


def _problem(count: int, size: Sizes, checked: Mapping[str, Any]) -> str:
    """One line for reports, of ``count`` planes; also of empty operands."""
    (h, w), (kh, kw), pads = size, checked["kernel_size"], checked["padding"]
    strides, gaps = checked["stride"], checked["dilation"]
    lh, lw = output_sizes((h, w), (kh, kw), strides, [(p, p) for p in pads], gaps)
    dilation = f", dilation {list(gaps)}" if gaps != (1, 1) else ""
    return (
        f"{count} planes of {h}x{w} from {lh}x{lw} windows of {kh}x{kw}, stride "
        f"{list(strides)}, pad {list(pads)}{dilation}"
    )


def _kernel(stated: Stated) -> Sizes:
    """The size of a window, which a command line must state."""
    if stated["kernel"] is None:
        raise ArgumentError(f"{stated.operator} needs --kernel HxW; give it")
    return per_axis(stated, "kernel", 2, ())


def _padding(stated: Stated) -> Sizes:
    """(height, width), the same on opposite sides."""
    value = stated["padding"] or 0
    sides = ((value, value),) * 2 if isinstance(value, int) else value
    if len(sides) != 2 or any(before != after for before, after in sides):
        raise ArgumentError(
            f"--padding of {stated.operator} is one number, or HxW such as 1x2: the same on "
            "opposite sides"
        )
    return tuple(before for before, _ in sides)


# -- the operators -----------------------------------------------------------------------------


def im2col(
    image: Array | Spec,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
    **options: Any,
) -> Result:
    """Patches of an image, every window a column (unfold).

    ``image`` (N, C, H, W) or (C, H, W) is fp16 or fp32, an array or an ``npusim.spec``; the others
    are pairs (height, width). The result ``outputs[0]`` is (N, C * KH * KW, L) or (C * KH * KW, L)
    of the same type, with L the product over both axes of
    (size + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1; padding reads as zero.

    An image in 5HD (N, C1, H, W, 16) gives (N, C1, KH * KW, L, 16): the form of the tensor
    compiler's kernels. Where the device's ``overlap_sums`` is not fp32, other images are converted
    to 5HD before the kernel and back behind it, as in im2col_backward.

    No page of the call was at hand: its limits are assumed to be those of im2col_backward. Keywords
    are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.windows.im2col.Tiling``. Raises ``RuleError`` naming the argument that does not
    fit, ``ArgumentError`` for the rest.
    """
    return _UNFOLD.run("im2col", options, image, kernel_size, dilation, padding, stride)


def im2col_backward(
    grad_output: Array | Spec,
    input_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
    **options: Any,
) -> Result:
    """Gradient of im2col: overlapping patches summed into the image they were cut from.

    ``grad_output`` (N, C * KH * KW, L) or (C * KH * KW, L) is fp16 or fp32, an array or an
    ``npusim.spec``; the others are pairs (height, width). L is the product over both axes of
    (input_size + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1.

    The result ``outputs[0]`` is (N, C, H, W) or (C, H, W) of the same type; pixels that no window
    covers are zero. Sums are made tap by tap in the tensor's type, or in fp32 with one rounding,
    as the device's ``overlap_sums`` says. Where they are of the tensor's type the kernel
    works on 5HD (16 channels to a block) between two conversions.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.windows.im2col_backward.Tiling``. Raises ``RuleError`` naming the argument that
    does not fit or that the documentation refuses, ``ArgumentError`` for the rest.
    """
    settings = input_size, kernel_size, dilation, padding, stride
    return _FOLD.run("im2col_backward", options, grad_output, *settings)


def _unfolding(
    call: Call, shape: Convolution, x: Tensor, out: Tensor, cores: int, tiling: Any
) -> Im2col:
    room = call.device.memory("UB").size_bytes
    best = tiling or patches_tiling.auto_tiling(shape, x.dtype, cores, room)
    return Im2col(shape, best, x, out)


def _folding(
    call: Call, shape: Convolution, grad: Tensor, out: Tensor, cores: int, tiling: Any
) -> Im2colBackward:
    """Of the precision and range of the device's sums."""
    device, own = call.device, grad.dtype
    sums = FP32 if device.overlap_sums == "fp32" else own
    room = device.memory("UB").size_bytes
    best = tiling or image_tiling.auto_tiling(shape, own, sums, cores, room)
    return Im2colBackward(shape, best, grad, out, sums, saturate=device.saturates)


def _limit_of_sums(sample: Sample[Windows]) -> float:
    found = dtype(sample.arrays["dy"].dtype)
    if found is not FP16 or sample.device.overlap_sums == "fp32":
        return LIMITS[found.name]
    # Every tap of a window rounds the sum by half a unit at most, independently.
    return max(LIMITS[found.name], 2.0**-11 * sqrt(sample.problem.c.taps))


_UNFOLD = _Row(
    *("image", "x", "columns", Im2col, patches_tiling.Tiling, _unfolding, unfold),
    limit=lambda _: 0.0,  # values are copied as they are
)
_FOLD = _Row(
    *("grad_output", "dy", "grad_input", Im2colBackward, image_tiling.Tiling, _folding, fold),
    limit=_limit_of_sums,
)
CARDS: dict[str, Card[Any]] = {
    function.__name__: row.card(function)
    for function, row in ((im2col, _UNFOLD), (im2col_backward, _FOLD))
}
