"""The launches of average pooling as the vendor's library runs it, on chips whose rules are known.

Where windows have several columns of results the library makes a depth-wise convolution of it: of
fp16 weights 1 / taps where every window has all of them; else of ones, and each sum is multiplied
by a table of what its window has inside the map. Its gradient multiplies by the same table first,
and is the gradient of that convolution for its input.

Source: the library's graph passes for AvgPool and AvgPoolGrad and its operators avg_pool.py and
avg_pool_grad_d.py (CANN 8.1), retold. Not public, and taken here: the table has the shape of the
windows, as the gradient's has; the gradient is a kernel of this convolution, where the library's
own multiplies and spreads dy in UB.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.base.dtypes import FP16
from npusim.base.integers import IntArray
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Operand, Spec
from npusim.call.tilings.words import is_library
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.trans_data import Conversion
from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.kernels.windows.pool import Pool
from npusim.machine.isa.operands import Tensor
from npusim.ops import blocked_gradients as gradients
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import to_fracz_3d

#: Largest stride that a convolution has.
_STRIDE = 63


def launch_library_average(
    call: Call, shape: Convolution, read: Tensor, out: Tensor, *, inside: bool, back: bool
) -> bool:
    """Launch average pooling, or ``back`` its gradient, as the library does.

    ``shape`` are the windows of planes; maps are (N, C1, H, W, 16). The mean is that of the taps
    ``inside`` the map, else of all. Launch nothing and return False where another tiling is asked
    for, where the library of a chip is not known, and for what is no convolution to it: fp32,
    windows with taps apart or of other than two dimensions, and windows with one column of results,
    such as the whole map.
    """
    if not (call.device.library_rules and is_library(call.options.tiling, Pool.name)):
        return False
    small = max(shape.stride) <= _STRIDE and shape.out[1] > 1
    plain = len(shape.spatial) == 2 and set(shape.dilation) == {1}
    if read.dtype is not FP16 or read.shape[-1] != 16 or not (small and plain):
        return False
    counts = _counts(shape) if inside else np.full(shape.out, shape.taps)
    alike = bool((counts == shape.taps).all())
    c = _convolution(shape, read.shape[0], read.shape[1] * 16)
    weights = _weights(call, f"{out.name}_weights", c, 1 / shape.taps if alike else 1.0)
    windows = read if back else out
    table = None if alike else _table(call, f"{out.name}_table", windows, counts)
    if back:
        source = read
        if table is not None:
            source = call.workspace(f"{read.name}_shares", read.shape, FP16)
            call.launch_spread(_product(call, read, table, source))
        _launch(call, c, source, weights, out, back=True)
    else:
        sums = out if table is None else call.workspace(f"{out.name}_sums", out.shape, FP16)
        _launch(call, c, read, weights, sums, back=False)
        if table is not None:
            call.launch_spread(_product(call, sums, table, out))
    call.notes.append(
        "average pooling is a depth-wise convolution, as the vendor's library runs it; tiling "
        "'auto' has a vector kernel of npusim's own"
    )
    return True


def _counts(s: Convolution) -> IntArray:
    """The taps of each window that are inside the map, at least 1."""
    down, across = (_counts_along(s, axis) for axis in (0, 1))
    counts: IntArray = np.maximum(1, np.outer(down, across))
    return counts


def _counts_along(s: Convolution, axis: int) -> IntArray:
    """The taps of each window along one axis that are inside the map."""
    taps = np.arange(s.kernel[axis]) - s.padding[axis][0]
    pixels = np.arange(s.out[axis])[:, None] * s.stride[axis] + taps
    inside: IntArray = ((pixels >= 0) & (pixels < s.spatial[axis])).sum(axis=1)
    return inside


def _convolution(s: Convolution, images: int, channels: int) -> Convolution:
    """The depth-wise convolution over the windows of planes, lifted to three dimensions."""
    return Convolution(
        n=images,
        cin=channels,
        cout=channels,
        spatial=s.spatial,
        kernel=s.kernel,
        stride=s.stride,
        padding=s.padding,
        outputs=s.outputs,
        groups=channels,
    ).lifted(16)


def _weights(call: Call, name: str, c: Convolution, value: float) -> Tensor:
    """Equal weights of a convolution as fractals: a constant of the graph."""
    plain = (c.cout, 1, *c.kernel)
    shape = Conversion(kind="to_fracz", c0=16, groups=c.groups).blocked_shape(plain)
    weights: Operand = Spec(shape, FP16)
    if not call.timing_only:
        weights = to_fracz_3d(np.full(plain, value, np.float16), c.groups, 16).reshape(shape)
    return call.input(name, weights, FP16, shape)


def _table(call: Call, name: str, windows: Tensor, counts: IntArray) -> Tensor:
    """What the sum of each window is multiplied by: a constant of the graph."""
    table: Operand = Spec(windows.shape, FP16)
    if not call.timing_only:
        each = (1 / counts)[:, :, None]
        table = np.broadcast_to(each, windows.shape).astype(np.float16)
    return call.input(name, table, FP16, windows.shape)


def _product(call: Call, first: Tensor, second: Tensor, target: Tensor) -> Elementwise:
    """The kernel that multiplies two maps."""
    flat = (prod(target.shape),)
    return Elementwise(
        called="mul",
        steps=(Step(target.name, "mul", first.name, second.name, dtype=FP16),),
        reads=(
            replace(first, shape=flat, role="in"),
            replace(second, shape=flat, role="in"),
        ),
        writes=(replace(target, shape=flat, role="out"),),
        saturate=call.device.saturates,
    )


def _launch(
    call: Call, c: Convolution, source: Tensor, weights: Tensor, target: Tensor, *, back: bool
) -> None:
    """Launch the convolution, or its gradient for the input."""
    ends = []
    for tensor, role in ((source, "in"), (target, "out")):
        images, c1, *sizes = tensor.shape
        ends.append(replace(tensor, shape=(images, 1, c1, *sizes), role=role))
    kind = ConvBackpropInput if back else ConvForward
    kernel = gradients.product(call, kind, c, ends[0], weights, ends[1])
    gradients.launch(call, kernel, ends[1])
