"""im2col_backward: patches of sliding windows added back into the image (fold, col2im)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any

from npusim.base.dtypes import FP16, FP32, dtype
from npusim.base.errors import ArgumentError
from npusim.call.call import Call
from npusim.call.spec import Array, Spec
from npusim.isa.operands import Tensor
from npusim.kernels.im2col_backward import Im2colBackward
from npusim.kernels.tilings.im2col_backward import Tiling, auto_tiling
from npusim.limits.facts import tensor_facts
from npusim.ops.arguments import frozen, operand
from npusim.ops.card import LIMITS, Card, Input, Output, Sample, Stated
from npusim.ops.layer import per_axis
from npusim.ops.windows import Passage, Windows, stated_kernel, window_facts, windows
from npusim.results import Result
from npusim.shapes.convolution import Convolution, Sizes
from npusim.shapes.reference import fold


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
    ``npusim.kernels.im2col_backward.Tiling``. Raises ``RuleError`` naming the argument that does
    not fit or that the documentation refuses, ``ArgumentError`` for the rest.
    """
    array = operand(grad_output)
    call = CARD.begin(options, grad_output=array)
    checked = facts(array, input_size, kernel_size, dilation, padding, stride)
    call.check(checked)
    *lead, rows, _ = array.shape
    shape = (*lead, int(rows) // prod(checked["kernel_size"]), *checked["input_size"])
    passage = Passage(CARD, "grad_output", "grad_input", convolution, _tiled)
    return passage.run(call, array, checked, shape, checked["input_size"])


def _tiled(
    call: Call, shape: Convolution, grad: Tensor, out: Tensor, cores: int, tiling: Tiling | None
) -> Im2colBackward:
    """Of the precision and range of the device's sums."""
    device, own = call.device, grad.dtype
    sums = FP32 if device.overlap_sums == "fp32" else own
    room = device.memory("UB").size_bytes
    best = tiling or auto_tiling(shape, own, sums, cores, room)
    return Im2colBackward(shape, best, grad, out, sums, saturate=device.saturates)


def facts(
    grad_output: Any, input_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> dict[str, Any]:
    """What the limits are checked against; the operand is anything with ``shape`` and ``dtype``."""
    return {
        **tensor_facts(grad_output=grad_output),
        "input_size": frozen(input_size),
        **window_facts(kernel_size, dilation, padding, stride),
    }


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that would cut the patches; facts are those the limits have let pass."""
    *lead, rows, _ = checked["grad_output.shape"]
    kernel = checked["kernel_size"]
    return windows(tuple(lead), rows // prod(kernel), checked["input_size"], kernel, checked)


def _stated(stated: Stated) -> Windows:
    """The call of a command line; the operand is (N, C*KH*KW, L), or without N for --batch 0."""
    if stated["size"] is None:
        raise ArgumentError(f"{stated.operator} needs --size HxW; give it")
    channels, lead = _leading(stated, prod(stated_kernel(stated)))
    return Windows.stated(stated, lead, channels, per_axis(stated, "size", 2, ()))


def _leading(stated: Stated, taps: int) -> tuple[int, Sizes]:
    """Channels, and (N,) or nothing; stated, or as the operand has them."""
    if "dy" not in stated.arrays:
        count = 1 if stated["batch"] is None else stated["batch"]
        return stated.size("channels", {}), (count,) if count else ()
    given = stated.arrays["dy"].shape
    if len(given) not in (2, 3) or given[-2] % taps:
        raise ArgumentError(
            f"{stated.file('dy')}; it must be (N, C*KH*KW, L), or (C*KH*KW, L), with KH*KW = {taps}"
        )
    count = stated.size("batch", {"dy": given[0] if len(given) == 3 else 0})
    channels = stated.size("channels", {"dy": given[-2] // taps})
    return channels, (count,) if len(given) == 3 else ()


def _settings(p: Windows) -> tuple[Sizes, ...]:
    """The arguments besides the operand, in their order."""
    return p.c.spatial, *p.settings


def _limit(sample: Sample[Windows]) -> float:
    found = dtype(sample.arrays["dy"].dtype)
    if found is not FP16 or sample.device.overlap_sums == "fp32":
        return LIMITS[found.name]
    # Every tap of a window rounds the sum by half a unit at most, independently.
    return max(LIMITS[found.name], 2.0**-11 * sqrt(sample.problem.c.taps))


CARD: Card[Windows] = Card(
    function=im2col_backward,
    problem=_stated,
    inputs=(
        Input(
            name="dy",
            axes=lambda p: p.patches,
            shape=lambda p: (*p.lead, p.c.cout, prod(p.c.out)),
        ),
    ),
    outputs=lambda p: (
        Output(
            name="grad_input",
            layout=f"({p.image})",
            axes=f"({p.image})",
            expected=lambda sample: fold(sample.arrays["dy"], *_settings(sample.problem)),
            limit=_limit,
        ),
    ),
    call=lambda p, given, options: im2col_backward(given["dy"], *_settings(p), **options),
    dtypes=(FP16, FP32),
    tilings={Im2colBackward: Tiling},
    role="vector",
    without=("deterministic",),
)
