"""Convolutions of a step on plain operands, in the ways in which operators compute them.

Windows that lie side by side are multiplied as matrices (``npusim.ops.window_products``); gradients
may be those of another convolution, with conversions of their own (``npusim.ops.conv_ways``).
"""

from __future__ import annotations

from npusim.base.dtypes import FP32
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.folding import FoldedConvolution
from npusim.kernels.layout.layout_change import Change
from npusim.machine.isa.operands import Tensor
from npusim.ops import blocked_gradients as gradients
from npusim.ops import linear
from npusim.ops.conv_ways import changed, filter_change, map_change
from npusim.ops.window_products import WindowMatrices
from npusim.problem.convolution import Convolution


def launch_matrices(
    call: Call, s: Convolution, result: str, first: Tensor, second: Tensor, out: Tensor
) -> None:
    """Launch a ``result`` of a layer whose windows lie side by side, of plain operands as matrices.

    ``first`` and ``second`` are as the rule of the operation lists them: map and weight, of the
    input's gradient that of the output and weight, of the weight's gradient map and gradient.
    """
    m = WindowMatrices(s)
    if result == "weight":
        windows = _windows(call, m, first)
        rows = _rows(call, m, second)
        weight = replace(out, shape=(m.cout, m.depth))
        linear.launch_weight_product(call, m.weight_product(rows, windows, weight), ruled=True)
        return
    weight = replace(second, shape=(m.cout, m.depth))
    if result == "output":
        windows = _windows(call, m, first)
        rows = replace(out, shape=m.output_rows)
        if m.moves_output:
            rows = call.workspace("output_rows", m.output_rows, out.dtype)
        linear.launch_product(call, m.product("output", windows, weight, rows), ruled=True)
        if m.moves_output:
            call.launch_spread(m.to_channels(rows, out))
        return
    rows = _rows(call, m, first)
    windows = replace(out, shape=(m.windows, m.depth))
    if m.moves_map:
        windows = call.workspace("windows", windows.shape, out.dtype)
    linear.launch_product(call, m.product("input", rows, weight, windows), ruled=True)
    if m.moves_map:
        call.launch_spread(m.to_map(windows, out))


def _windows(call: Call, m: WindowMatrices, plain: Tensor) -> Tensor:
    """The matrix of the windows of a map, by a launch where it does not lie so."""
    shape = (m.windows, m.depth)
    if not m.moves_map:
        return replace(plain, shape=shape)
    windows = call.workspace("windows", shape, plain.dtype)
    call.launch_spread(m.to_windows(plain, windows))
    return windows


def _rows(call: Call, m: WindowMatrices, gradient: Tensor) -> Tensor:
    """The gradient of an output as a matrix, by a launch where it does not lie so."""
    if not m.moves_output:
        return replace(gradient, shape=m.output_rows)
    rows = call.workspace("gradient_rows", m.output_rows, gradient.dtype)
    call.launch_spread(m.to_rows(gradient, rows))
    return rows


def launch_replaced_filter(
    call: Call, s: Convolution, other: Convolution, x: Tensor, dy: Tensor, dw: Tensor
) -> None:
    """Launch the filter gradient of ``s`` as that of the ``other`` convolution.

    ``x`` and ``dw`` are plain, ``dy`` is in blocks of channels.
    """
    plain = call.view(x, (s.n, s.cin, *s.spatial))
    source = _converted(call, plain, map_change(s, other, loads_plain=True), "replaced_map")
    back = filter_change(s, other)
    fractals = call.workspace("replaced_filter", back.blocked_shape(s.w_shape), FP32)
    gradients.launch_filter_gradient(call, other, source, dy, fractals)
    call.launch_spread(changed(back, fractals, call.view(dw, s.w_shape)))


def launch_replaced_input(
    call: Call, s: Convolution, other: Convolution, dy: Tensor, w: Tensor, dx: Tensor
) -> None:
    """Launch the input gradient of ``s`` as a product of the ``other`` convolution.

    ``dy`` is in blocks of channels, ``dx`` plain; ``w`` is plain where pixels become channels, in
    fractals elsewhere.
    """
    kernel: type[ImplicitGemm] = ConvBackpropInput
    weights = w
    if isinstance(other, FoldedConvolution):
        kernel = ConvForward
        plain = call.view(w, s.w_shape)
        weights = _converted(call, plain, filter_change(s, other), "replaced_filter")
    back = map_change(s, other, loads_plain=False)
    shape = (s.n, s.cin, *s.spatial)
    blocked = call.workspace("replaced_map", back.blocked_shape(shape), dx.dtype)
    gemm = gradients.product(call, kernel, other, dy, weights, blocked)
    gradients.launch(call, gemm, blocked)
    call.launch_spread(changed(back, blocked, call.view(dx, shape)))


def _converted(call: Call, plain: Tensor, change: Change, name: str) -> Tensor:
    """A plain tensor in the layout of a change, as a workspace of this name."""
    target = call.workspace(name, change.blocked_shape(plain.shape), plain.dtype)
    kernel = changed(change, plain, target)
    if kernel.clears:
        call.clear(target)
    call.launch_spread(kernel)
    return target
