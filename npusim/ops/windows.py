"""im2col and its backward, unfold and fold: patches of sliding windows, and images of patches.

One undoes what the other does: ``_Direction`` has what both share, and a value of it for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

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
from npusim.ops.options import BATCH, DILATION, KERNEL, PADDING, SIZE, STRIDE, Option, integer
from npusim.problem.convolution import Convolution, Sizes, output_sizes
from npusim.problem.limits.facts import Facts, OperatorFacts, as_sizes, tensor_facts
from npusim.problem.reference import fold, unfold
from npusim.results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.call.options import Keywords

#: Channels in a block of the conversion, also for fp32 (this conversion knows no other).
C0 = 16


# -- the operators -----------------------------------------------------------------------------


def im2col(
    image: Array | Spec,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
    **options: Unpack[Keywords],
) -> Result:
    """Patches of an image, every window a column (unfold).

    ``image`` (N, C, H, W) or (C, H, W) is fp16 or fp32, an array or an ``npusim.spec``; the others
    are pairs (height, width). The result ``outputs[0]`` is (N, C * KH * KW, L) or (C * KH * KW, L)
    of the same type, with L the product over both axes of
    (size + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1; padding reads as zero.

    An image in 5HD (N, C1, H, W, 16) gives (N, C1, KH * KW, L, 16): the form of the tensor
    compiler's kernels. Where the device's ``overlap_sums`` is not fp32, other images are converted
    to 5HD before the kernel and back behind it, as in im2col_backward.

    Undocumented: its limits are assumed to be those of im2col_backward. Keywords
    are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.windows.im2col.Tiling``. Raises ``RuleError`` naming the argument that does not
    fit, ``ArgumentError`` for the rest.
    """
    array = operand(image)
    call = CARDS["im2col"].begin(options, image=array)
    checked = im2col_facts(array, kernel_size, dilation, padding, stride)
    call.check(checked)
    return _UNFOLD.run(call, array, checked, _image_read(checked), patches_shape(checked))


def im2col_backward(
    grad_output: Array | Spec,
    input_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
    **options: Unpack[Keywords],
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
    array = operand(grad_output)
    call = CARDS["im2col_backward"].begin(options, grad_output=array)
    checked = im2col_backward_facts(array, input_size, kernel_size, dilation, padding, stride)
    call.check(checked)
    image = _image_of_patches(checked)
    return _FOLD.run(call, array, checked, image, (*image.lead, image.channels, *image.size))


# -- facts for the documented limits -----------------------------------------------------------


def im2col_facts(
    image: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> dict[str, Any]:
    """The facts of an im2col; the image is anything with ``shape`` and ``dtype``."""
    return {
        **tensor_facts(image=image),
        "kernel_size": frozen(kernel_size),
        "dilation": frozen(dilation),
        "padding": frozen(padding),
        "stride": frozen(stride),
    }


def im2col_backward_facts(
    grad_output: Any, input_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> dict[str, Any]:
    """The facts of an im2col's backward; the gradient is anything with ``shape`` and ``dtype``."""
    return {
        **tensor_facts(grad_output=grad_output),
        "input_size": frozen(input_size),
        "kernel_size": frozen(kernel_size),
        "dilation": frozen(dilation),
        "padding": frozen(padding),
        "stride": frozen(stride),
    }


def _derived_facts(stated: Facts) -> dict[str, Any]:
    """The fact that follows from those stated: an operand without elements."""
    return {"empty": 0 in as_sizes(stated.get("image.shape", stated.get("grad_output.shape")))}


#: The caller of a library states the tensor that it allocated for the result, too.
_IM2COL_FACTS = OperatorFacts(
    required=("image.shape", "image.dtype", "kernel_size", "dilation", "padding", "stride"),
    optional=("out.shape", "out.dtype"),
    derive=_derived_facts,
)
_IM2COL_BACKWARD_FACTS = OperatorFacts(
    required=(
        "grad_output.shape",
        "grad_output.dtype",
        "input_size",
        "kernel_size",
        "dilation",
        "padding",
        "stride",
    ),
    optional=("out.shape", "out.dtype"),
    derive=_derived_facts,
)


# -- windows, as kernels see them --------------------------------------------------------------


class Image(NamedTuple):
    """(N,) or (), channels and size of an image."""

    lead: Sizes
    channels: int
    size: Sizes


def _image_read(checked: Facts) -> Image:
    """The image of an im2col that the limits have let pass."""
    shape = checked["image.shape"]
    if len(shape) == 5:  # 5HD
        return Image(shape[:1], shape[1] * C0, shape[2:4])
    return Image(shape[:-3], shape[-3], shape[-2:])


def _image_of_patches(checked: Facts) -> Image:
    """The image that the backward of an im2col makes, which the limits have let pass."""
    *lead, rows, _ = checked["grad_output.shape"]
    return Image(tuple(lead), int(rows) // prod(checked["kernel_size"]), checked["input_size"])


def patches_shape(checked: Facts) -> Sizes:
    """The shape of the result of an im2col; facts are those that the limits have let pass."""
    shape = checked["image.shape"]
    image = _image_read(checked)
    kernel = checked["kernel_size"]
    taps = prod(kernel)
    count = prod(windows((), 1, image.size, kernel, checked).out)
    if len(shape) == 5:
        return (*shape[:2], taps, count, C0)
    return (*image.lead, image.channels * taps, count)


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


class Windows(NamedTuple):
    """The problem of a command line: windows as a convolution, and (N,) or ()."""

    c: Convolution
    lead: Sizes

    @property
    def image(self) -> tuple[str, Sizes]:
        """Axes and shape of the image."""
        axes = "N, C, H, W" if self.lead else "C, H, W"
        return axes, (*self.lead, self.c.cin, *self.c.spatial)

    @property
    def patches(self) -> tuple[str, Sizes]:
        """Axes and shape of the patches."""
        axes = "N, C*KH*KW, L" if self.lead else "C*KH*KW, L"
        return axes, (*self.lead, self.c.cout, prod(self.c.out))

    @property
    def settings(self) -> tuple[Sizes, Sizes, Sizes, Sizes]:
        """Kernel, dilation, padding and stride, in the order of the calls' arguments."""
        c = self.c
        return c.kernel, c.dilation, tuple(before for before, _ in c.padding), c.stride


# -- what both operators share -----------------------------------------------------------------


class _Direction(Struct, frozen=True, kw_only=True):
    """From image to patches, or back.

    ``reads`` is the operand's argument, ``shown`` its name on a command line, ``makes`` that of the
    result. ``tiled`` gives the kernel for planes on so many cores, with a tiling or, for None, the
    best there is. ``expected`` computes the result in float64 of the operand and the other
    arguments.
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
        """It reads an image, and makes patches."""
        return self.reads == "image"

    def read_side(self, p: Windows) -> tuple[str, Sizes]:
        """Axes and shape of the operand."""
        return p.image if self.of_image else p.patches

    def made_side(self, p: Windows) -> tuple[str, Sizes]:
        """Axes and shape of the result."""
        return p.patches if self.of_image else p.image

    def settings(self, p: Windows) -> tuple[Sizes, ...]:
        """The arguments besides the operand, in their order."""
        return p.settings if self.of_image else (p.c.spatial, *p.settings)

    # -- a call ------------------------------------------------------------------------------

    def run(
        self, call: Call, array: Operand, checked: Facts, image: Image, result_shape: Sizes
    ) -> Result:
        """The call on ``array``, once the limits have let its facts pass."""
        kind = _require_vector(call, self.reads, array)
        out = call.output("out", result_shape, kind)
        source = call.input(self.reads, array, kind)
        count = 0
        if 0 in array.shape:
            call.notes.append(f"{self.reads} is empty: nothing is launched or written")
        else:
            c = windows(image.lead, image.channels, image.size, checked["kernel_size"], checked)
            count = c.n * c.cin
            self._convert(call, c, source, out)
        problem = f"{_problem(count, image.size, checked)}; {kind}"
        return call.result({self.makes: call.arrays.get("out")}, problem, kind)

    def _convert(self, call: Call, c: Convolution, source: Tensor, out: Tensor) -> None:
        """The kernel, between conversions to 5HD and back where it reads nothing else."""
        blocks = c.n * ceil_div(c.cin, C0)
        if len(source.shape) == 5:
            self._launch(call, planes(c, blocks, C0), source, out)
            return
        if call.device.overlap_sums == "fp32":  # this generation reads the framework layout
            self._launch(call, planes(c, c.n * c.cin, 1), source, out)
            return
        image_shape = c.x_shape
        patches_4d = (c.n, c.cin, c.taps, prod(c.out))
        source = replace(source, shape=image_shape if self.of_image else patches_4d)
        out = replace(out, shape=patches_4d if self.of_image else image_shape)
        to_5hd = Conversion(kind="to_blocked", c0=C0)
        from_5hd = Conversion(kind="from_blocked", c0=C0)
        name = f"{self.reads.removesuffix('_output')}_5hd"
        read = call.workspace(name, to_5hd.blocked_shape(source.shape), source.dtype)
        result = call.workspace("out_5hd", from_5hd.blocked_shape(out.shape), source.dtype)
        call.launch_spread(TransData(to_5hd, source, replace(read, role="out")))
        self._launch(call, planes(c, blocks, C0), replace(read, role="in"), result)
        call.launch_spread(TransData(from_5hd, replace(result, role="in"), out))

    def _launch(self, call: Call, shape: Convolution, source: Tensor, out: Tensor) -> None:
        """The kernel on tensors of planes, tiled for the cores that it uses."""
        tiling = own_tiling(call.options.tiling, self.kernel.name, self.tiling)
        kernel: Any = self.tiled(call, shape, source, out, call.vector_cores, tiling)
        if tiling is None:
            kernel = call.spread(kernel)
            cores = kernel.used(call.vector_cores)
            best: Any = self.tiled(call, shape, source, out, cores, None)
            kernel = replace(kernel, tiling=best.tiling)
        call.launch(kernel)

    # -- a command line ----------------------------------------------------------------------

    def card(
        self,
        function: Callable[..., Result],
        *,
        facts: OperatorFacts,
        options: tuple[Option, ...],
        example: str,
    ) -> Card[Windows]:
        """The card of the operator with this function."""

        def output(p: Windows) -> tuple[Output[Windows]]:
            axes, _ = self.made_side(p)
            return (
                Output(
                    name=self.makes,
                    layout=f"({axes})",
                    axes=f"({axes})",
                    expected=expected,
                    limit=self.limit,
                ),
            )

        def expected(sample: Sample[Windows]) -> Array:
            return self.expected(sample.arrays[self.shown], *self.settings(sample.problem))

        def call(p: Windows, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
            return function(operands[self.shown], *self.settings(p), **options)

        return Card(
            function=function,
            problem=self.stated,
            inputs=(
                Input(
                    name=self.shown,
                    axes=lambda p: self.read_side(p)[0],
                    shape=lambda p: self.read_side(p)[1],
                ),
            ),
            outputs=output,
            call=call,
            dtypes=(FP16, FP32),
            tilings={self.kernel: self.tiling},
            role="vector",
            without=("deterministic",),
            strided=(self.reads, "out"),
            options=options,
            example=example,
            facts=facts,
        )

    def stated(self, stated: Stated) -> Windows:
        """The call of a command line; an operand that it names shows sizes."""
        shape = stated.arrays[self.shown].shape if self.shown in stated.arrays else None
        image = shape[-2:] if self.of_image and shape is not None else ()
        if stated["size"] is None and not image:
            raise ArgumentError(f"{stated.operator} needs --size HxW; give it")
        lead, channels = self._leading(stated, shape)
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

    def _leading(self, stated: Stated, shape: Sizes | None) -> tuple[Sizes, int]:
        """(N,) or (), and channels: stated, or those of an operand of this ``shape``."""
        if shape is None:
            count = 1 if stated["batch"] is None else stated["batch"]
            return (count,) if count else (), stated.size("channels", {})
        axes, taps, forms = 3, 1, "(N, C, H, W) or (C, H, W)"
        if not self.of_image:
            taps = prod(_kernel(stated))
            axes = 2
            forms = f"(N, C*KH*KW, L), or (C*KH*KW, L), with KH*KW = {taps}"
        if len(shape) not in (axes, axes + 1) or shape[-axes] % taps:
            raise ArgumentError(f"{stated.file(self.shown)}; it must be {forms}")
        lead = shape[:-axes]
        stated.size("batch", {self.shown: lead[0] if lead else 0})
        return lead, stated.size("channels", {self.shown: shape[-axes] // taps})


def _require_vector(call: Call, name: str, value: Operand) -> DType:
    """The operand's type; raise unless the device has vector units that know it."""
    kind = dtype(value.dtype)
    call.device.core_kind("vector")  # a device without one is refused for that, not for a type
    supported = [both.name for both in (FP16, FP32) if both.name in call.device.dtypes]
    if kind.name not in supported:
        raise ArgumentError(
            f"{name} is {kind}; {call.operator} takes {' or '.join(supported)} on "
            f"{call.device.name}"
        )
    return kind


def _problem(count: int, size: Sizes, checked: Facts) -> str:
    """One line for reports, of ``count`` planes; also of empty operands."""
    h, w = size
    kh, kw = checked["kernel_size"]
    pads = checked["padding"]
    strides = checked["stride"]
    gaps = checked["dilation"]
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


# -- patches of an image -----------------------------------------------------------------------


def _unfolding(
    call: Call, shape: Convolution, x: Tensor, out: Tensor, cores: int, tiling: Any
) -> Im2col:
    room = call.device.memory("UB").size_bytes
    best = tiling or patches_tiling.auto_tiling(shape, x.dtype, cores, room)
    return Im2col(shape, best, x, out)


_UNFOLD = _Direction(
    reads="image",
    shown="x",
    makes="columns",
    kernel=Im2col,
    tiling=patches_tiling.Tiling,
    tiled=_unfolding,
    expected=unfold,
    limit=lambda _: 0.0,  # values are copied as they are
)


# -- an image of patches -----------------------------------------------------------------------


def _folding(
    call: Call, shape: Convolution, grad: Tensor, out: Tensor, cores: int, tiling: Any
) -> Im2colBackward:
    """The kernel with the precision and range of the device's sums."""
    device = call.device
    sums = FP32 if device.overlap_sums == "fp32" else grad.dtype
    room = device.memory("UB").size_bytes
    best = tiling or image_tiling.auto_tiling(shape, grad.dtype, sums, cores, room)
    return Im2colBackward(shape, best, grad, out, sums, saturate=device.saturates)


def _limit_of_sums(sample: Sample[Windows]) -> float:
    kind = dtype(sample.arrays["dy"].dtype)
    if kind is not FP16 or sample.device.overlap_sums == "fp32":
        return LIMITS[kind.name]
    # Every tap of a window rounds the sum by half a unit at most, independently.
    return max(LIMITS[kind.name], 2.0**-11 * sqrt(sample.problem.c.taps))


_FOLD = _Direction(
    reads="grad_output",
    shown="dy",
    makes="grad_input",
    kernel=Im2colBackward,
    tiling=image_tiling.Tiling,
    tiled=_folding,
    expected=fold,
    limit=_limit_of_sums,
)


# -- the cards ---------------------------------------------------------------------------------

_BATCH = replace(
    BATCH, help="images (default: as in --input, else 1; 0 for operands without this axis)"
)
_CHANNELS = Option(
    name="channels",
    read=integer(1),
    metavar="N",
    help="channels of the image (default: as in --input x)",
)
_KERNEL = replace(KERNEL, help="size of a window, taps (no default)")

CARDS: Mapping[str, Card[Windows]] = {
    "im2col": _UNFOLD.card(
        im2col,
        facts=_IM2COL_FACTS,
        options=(_BATCH, _CHANNELS, SIZE, _KERNEL, STRIDE, PADDING, DILATION),
        example=(
            "npusim run im2col --device ascend910b2 --channels 16 --size 14x14 --kernel 3 "
            "--padding 1 --dtype fp32 --check"
        ),
    ),
    "im2col_backward": _FOLD.card(
        im2col_backward,
        facts=_IM2COL_BACKWARD_FACTS,
        options=(
            _BATCH,
            replace(_CHANNELS, help="channels of the image (default: as in --input dy)"),
            replace(SIZE, help="size of the image, pixels (no default)"),
            _KERNEL,
            STRIDE,
            PADDING,
            DILATION,
        ),
        example=(
            "npusim run im2col_backward --device ascend910b2 --channels 16 --size 14x14 --kernel 3 "
            "--padding 1 --dtype fp32 --check"
        ),
    ),
}
