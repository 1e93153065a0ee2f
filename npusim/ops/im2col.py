"""im2col: patches of sliding windows as columns of a matrix (unfold)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError
from npusim.call.call import Call
from npusim.call.spec import Array, Spec
from npusim.isa.operands import Tensor
from npusim.kernels.im2col import Im2col
from npusim.kernels.tilings.im2col import Tiling, auto_tiling
from npusim.limits.facts import tensor_facts
from npusim.ops.arguments import operand
from npusim.ops.card import Card, Input, Output, Stated
from npusim.ops.layer import per_axis
from npusim.ops.windows import C0, Passage, Windows, window_facts, windows
from npusim.results import Result
from npusim.shapes.convolution import Convolution
from npusim.shapes.reference import unfold


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
    ``npusim.kernels.im2col.Tiling``. Raises ``RuleError`` naming the argument that does not fit,
    ``ArgumentError`` for the rest.
    """
    array = operand(image)
    call = CARD.begin(options, image=array)
    checked = facts(array, kernel_size, dilation, padding, stride)
    call.check(checked)
    passage = Passage(CARD, "image", "columns", convolution, _tiled)
    return passage.run(call, array, checked, patches_shape(checked), _plane(checked))


def _tiled(
    call: Call, shape: Convolution, x: Tensor, out: Tensor, cores: int, tiling: Tiling | None
) -> Im2col:
    room = call.device.memory("UB").size_bytes
    return Im2col(shape, tiling or auto_tiling(shape, x.dtype, cores, room), x, out)


def facts(image: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> dict[str, Any]:
    """What the limits are checked against; the operand is anything with ``shape`` and ``dtype``."""
    return {
        **tensor_facts(image=image),
        **window_facts(kernel_size, dilation, padding, stride),
    }


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that cuts the patches; facts are those the limits have let pass."""
    shape = checked["image.shape"]
    blocked = len(shape) == 5
    lead, channels = (shape[:1], shape[1] * C0) if blocked else (shape[:-3], shape[-3])
    return windows(lead, channels, _plane(checked), checked["kernel_size"], checked)


def patches_shape(checked: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of the result; facts are those the limits have let pass."""
    shape, taps = checked["image.shape"], prod(checked["kernel_size"])
    one = windows((), 1, _plane(checked), checked["kernel_size"], checked)
    if len(shape) == 5:
        return (*shape[:2], taps, prod(one.out), C0)
    return (*shape[:-3], shape[-3] * taps, prod(one.out))


def _plane(checked: Mapping[str, Any]) -> tuple[int, ...]:
    """Height and width of the image."""
    shape: tuple[int, ...] = checked["image.shape"]
    return shape[2:4] if len(shape) == 5 else shape[-2:]


def _stated(stated: Stated) -> Windows:
    """The call of a command line; the operand is (N, C, H, W), or without N for --batch 0."""
    given = stated.arrays["x"].shape if "x" in stated.arrays else None
    if given is None:
        if stated["size"] is None:
            raise ArgumentError(f"{stated.operator} needs --size HxW; give it")
        count = 1 if stated["batch"] is None else stated["batch"]
        lead, size = (count,) if count else (), per_axis(stated, "size", 2, ())
        return Windows.stated(stated, lead, stated.size("channels", {}), size)
    if len(given) not in (3, 4):
        raise ArgumentError(f"{stated.file('x')}; it must be (N, C, H, W) or (C, H, W)")
    stated.size("batch", {"x": given[0] if len(given) == 4 else 0})
    size = per_axis(stated, "size", 2, given[-2:])
    if size != given[-2:]:
        raise ArgumentError(f"{stated.file('x')}, but --size is {'x'.join(map(str, size))}")
    channels = stated.size("channels", {"x": given[-3]})
    return Windows.stated(stated, given[:-3], channels, size)


CARD: Card[Windows] = Card(
    function=im2col,
    problem=_stated,
    inputs=(Input(name="x", axes=lambda p: p.image, shape=lambda p: p.image_shape),),
    outputs=lambda p: (
        Output(
            name="columns",
            layout=f"({p.patches})",
            axes=f"({p.patches})",
            expected=lambda sample: unfold(sample.arrays["x"], *sample.problem.settings),
            limit=lambda _: 0.0,  # values are copied as they are
        ),
    ),
    call=lambda p, given, options: im2col(given["x"], *p.settings, **options),
    dtypes=(FP16, FP32),
    tilings={Im2col: Tiling},
    role="vector",
    without=("deterministic",),
)
