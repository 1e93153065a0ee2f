"""Maps and filters with pixels as channels, against NumPy, and the convolutions that read them."""

from __future__ import annotations

from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import replace
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
from npusim.kernels.layout.thin_map import ThinMap, Thinned
from npusim.kernels.parts.spread import Spread
from npusim.machine.isa.operands import Tensor
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import to_6hd
from npusim.problem.reference import conv_filter_grad, conv_forward, conv_input_grad
from tests.sampled import examples

Array = np.ndarray[Any, Any]

DEVICES = ("tiny", "ascend910", "ascend910b2")


def folded_shape(shape: tuple[int, ...], fold: Fold, c0: int) -> tuple[int, ...]:
    """Of a map of so many images, channels, rows and columns."""
    n, c, h, w = shape
    lane = c0 // fold.w
    return (n, 1, -(-c * fold.h // lane), -(-h // fold.h), -(-w // fold.w), c0)


def thin_shape(shape: tuple[int, ...], step: tuple[int, int], c0: int) -> tuple[int, ...]:
    """Of the blocks that have every so manieth row and column."""
    n, c, h, w = shape
    return (n, 1, -(-c // c0), -(-h // step[0]), -(-w // step[1]), c0)


def folded(x: Array, fold: Fold, c0: int) -> Array:
    """The map ``x`` (N, C, H, W) folded, one pixel after another."""
    n, channels, h, w = x.shape
    y = np.zeros(folded_shape(x.shape, fold, c0), x.dtype)
    lane = c0 // fold.w
    for c, i, j in product(range(channels), range(h), range(w)):
        block, row = divmod(c * fold.h + i % fold.h, lane)
        place = (slice(n), 0, block, i // fold.h, j // fold.w, j % fold.w * lane + row)
        y[place] = x[:, c, i, j]
    return y


def ran(kernel: Spread, device: Any, source: Array) -> Array:
    """What the kernel makes of ``source``; races are searched for."""
    outputs = npusim.simulate(kernel, device, source).outputs
    assert outputs is not None
    return np.asarray(outputs[0])


def map_kernel(shape: tuple[int, ...], fold: Fold, dtype: DType, *, folds: bool) -> FoldMap:
    """The kernel for a plain map of ``shape``."""
    c0 = 32 // dtype.bytes
    shapes = (shape, folded_shape(shape, fold, c0))
    first, second = shapes if folds else shapes[::-1]
    source, target = Tensor("source", first, dtype, "in"), Tensor("target", second, dtype, "out")
    return FoldMap(Folded(c0, folds, fold), source, target)


def layer(**sizes: Any) -> Convolution:
    """A layer of planes as kernels see it."""
    padding = tuple((p, p) for p in sizes.pop("padding", (0, 0)))
    return Convolution(padding=padding, **sizes).lifted(sizes.get("c0", 16))


def fractals_of(s: FoldedConvolution) -> tuple[int, ...]:
    """Shape of the weights or filter gradient of a folded convolution."""
    return FoldedFilters(s).blocked_shape(s.whole.w_shape)


CONV1 = layer(n=2, cin=3, cout=64, spatial=(20, 24), kernel=(7, 7), stride=(2, 2), padding=(3, 3))


@examples(40)
@given(
    shape=st.tuples(*(st.integers(1, most) for most in (2, 8, 20, 70))),
    fold=st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 4, 8])).map(lambda f: Fold(*f)),
    dtype=st.sampled_from([FP16, FP32]),
    device=st.sampled_from(DEVICES),
)
def test_maps_are_folded_and_back(
    shape: tuple[int, ...], fold: Fold, dtype: DType, device: str
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)
    made = ran(map_kernel(shape, fold, dtype, folds=True), device, x)
    want = folded(x, fold, 32 // dtype.bytes)
    np.testing.assert_array_equal(made, want)
    noisy = np.where(want == 0, np.nan, want).astype(want.dtype)  # what is beyond is not read
    back = ran(map_kernel(shape, fold, dtype, folds=False), device, noisy)
    np.testing.assert_array_equal(back, np.where(x == 0, np.nan, x))


@examples(40)
@given(
    shape=st.tuples(*(st.integers(1, most) for most in (2, 40, 20, 40))),
    step=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    dtype=st.sampled_from([FP16, FP32]),
    device=st.sampled_from(DEVICES),
)
def test_maps_are_thinned_and_back(
    shape: tuple[int, ...], step: tuple[int, int], dtype: DType, device: str
) -> None:
    x, c0 = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy), 32 // dtype.bytes
    kept = np.zeros_like(x)
    kept[:, :, :: step[0], :: step[1]] = x[:, :, :: step[0], :: step[1]]
    want = to_6hd(x[:, :, None, :: step[0], :: step[1]], c0)
    shapes = (shape, thin_shape(shape, step, c0))
    made = ran(thin_kernel(step, dtype, shapes, thins=True), device, x)
    np.testing.assert_array_equal(made, want)
    back = ran(thin_kernel(step, dtype, shapes[::-1], thins=False), device, want)
    np.testing.assert_array_equal(back, kept)


def thin_kernel(
    step: tuple[int, int], dtype: DType, shapes: tuple[Any, ...], *, thins: bool
) -> ThinMap:
    """The kernel from the first shape to the second."""
    source, target = (Tensor(name, s, dtype) for name, s in zip("st", shapes, strict=True))
    how = Thinned(32 // dtype.bytes, thins, step)
    return ThinMap(how, source, replace(target, role="out"))


def test_planes_larger_than_ub_are_thinned_in_parts() -> None:
    device = npusim.load_device("ascend910b2").replace("memories.UB.size", "12KiB")
    x = np.random.default_rng(0).standard_normal((1, 20, 9, 33)).astype(np.float16)
    shapes = (x.shape, thin_shape(x.shape, (2, 3), 16))
    made = ran(thin_kernel((2, 3), FP16, shapes, thins=True), device, x)
    np.testing.assert_array_equal(made, to_6hd(x[:, :, None, ::2, ::3], 16))
    wide = (1, 20, 9, 3300), thin_shape((1, 20, 9, 3300), (2, 3), 16)
    with pytest.raises(CapacityError, match=r"memories\.UB\.size.*the smallest piece takes \d+ B"):
        npusim.simulate(thin_kernel((2, 3), FP16, wide, thins=True), device)


def test_rows_wider_than_ub_are_cut() -> None:
    device = npusim.load_device("ascend910b2").replace("memories.UB.size", "4KiB")
    x = np.random.default_rng(0).standard_normal((1, 3, 5, 333)).astype(np.float16)
    made = ran(map_kernel(x.shape, Fold(2, 2), FP16, folds=True), device, x)
    np.testing.assert_array_equal(made, folded(x, Fold(2, 2), 16))
    back = ran(map_kernel(x.shape, Fold(2, 2), FP16, folds=False), device, made)
    np.testing.assert_array_equal(back, x)


def unfolded_weights(z: Array, s: FoldedConvolution) -> Array:
    """Fractals of a folded convolution as (Cout, Cin, taps in rows, in columns)."""
    _, kh, kw = s.kernel
    lanes = z.reshape(s.plan.cin1_g, kh, kw, s.plan.cout_g, s.c0)
    plain = lanes.transpose(3, 0, 4, 1, 2).reshape(s.plan.cout_g, -1, kh, kw)
    return plain[: s.cout, : s.cin]


def pads_of(s: FoldedConvolution) -> list[tuple[int, int]]:
    """Padding of rows and columns: behind them as much as the outputs read, or less than none."""
    sizes = zip(s.padding, s.out, s.stride, s.kernel, s.spatial, strict=True)
    pads = [(p, (out - 1) * step + k - size - p) for (p, _), out, step, k, size in sizes]
    return pads[1:]


@st.composite
def layers(draw: st.DrawFn) -> Convolution:
    """Strided layers of planes and few channels."""
    stride = draw(st.sampled_from([(2, 2), (1, 2), (2, 1), (3, 2), (4, 4), (5, 8)]))
    kernel = (draw(st.integers(1, 7)), draw(st.integers(1, 7)))
    spatial = tuple(k + draw(st.integers(0, 12)) for k in kernel)
    padding = tuple(draw(st.integers(0, 4)) for _ in range(2))
    c0 = draw(st.sampled_from([8, 16]))
    return layer(
        n=draw(st.integers(1, 2)),
        cin=draw(st.integers(1, c0 // 2)),
        cout=draw(st.integers(1, 40)),
        **{"spatial": spatial, "kernel": kernel, "stride": stride, "padding": padding, "c0": c0},
    )


@examples(40)
@given(c=layers(), device=st.sampled_from(DEVICES), data=st.data())
def test_an_input_gradient_is_a_convolution_with_folded_weights(
    c: Convolution, device: str, data: st.DataObject
) -> None:
    folds = gradient_folds(c) if can_fold(c) else []
    if not folds:
        return
    fold = data.draw(st.sampled_from(folds))
    s, dtype = folded_gradient(c, fold), FP16 if c.c0 == 16 else FP32
    rng = np.random.default_rng(0)
    w = rng.integers(-4, 5, c.w_shape).astype(dtype.numpy)
    dy = rng.integers(-4, 5, c.dy_shape).astype(np.float64)
    weights = (Tensor("w", w.shape, dtype, "in"), fractals_of(s))
    kernel = FoldWeights(FoldedFilters(s), weights[0], Tensor("z", weights[1], dtype, "out"))
    if not kernel.fits(npusim.load_device(device)):
        return
    z = unfolded_weights(ran(kernel, device, w), s).astype(np.float64)
    flat = dy[:, :, 0]
    made = conv_forward(flat, z, s.stride[1:], pads_of(s), (1, 1), 1)
    want = conv_input_grad(
        flat, w[:, :, 0].astype(np.float64), (c.n, c.cin, *c.spatial[1:]), c.stride[1:],
        c.padding[1:], (1, 1), 1,
    )  # fmt: skip
    blocks = made.reshape(c.n, 1, -1, c.c0, *s.out[1:]).transpose(0, 1, 2, 4, 5, 3)
    there = folded(np.ones_like(want), fold, c.c0) > 0  # pixels beyond the plane have sums too
    np.testing.assert_array_equal(blocks[there], folded(want, fold, c.c0)[there])


@examples(40)
@given(c=layers(), device=st.sampled_from(DEVICES), data=st.data())
def test_a_filter_gradient_is_that_of_the_folded_input(
    c: Convolution, device: str, data: st.DataObject
) -> None:
    folds = input_folds(c) if can_fold(c) else []
    if not folds:
        return
    fold = data.draw(st.sampled_from(folds))
    s = folded_input(c, fold)
    rng = np.random.default_rng(0)
    x, dy = (rng.integers(-4, 5, shape).astype(np.float64) for shape in (c.x_shape, c.dy_shape))
    blocks = folded(x[:, :, 0], fold, c.c0)
    maps = blocks.transpose(0, 1, 2, 5, 3, 4).reshape(c.n, s.cin, *s.spatial[1:])
    dw = conv_filter_grad(maps, dy[:, :, 0], s.kernel[1:], s.stride[1:], pads_of(s), (1, 1), 1)
    z = np.full((s.plan.cin1_g, *s.kernel[1:], s.plan.cout_g, c.c0), np.nan, np.float32)
    lanes = dw.reshape(c.cout, -1, c.c0, *s.kernel[1:]).transpose(1, 3, 4, 0, 2)
    z[:, :, :, : c.cout] = lanes
    source = Tensor("z", fractals_of(s), FP32, "in")
    kernel = FoldWeights(FoldedFilters(s), source, Tensor("dw", c.w_shape, FP32, "out"))
    if not kernel.fits(npusim.load_device(device)):
        return
    made = ran(kernel, device, z.reshape(source.shape))
    want = conv_filter_grad(
        x[:, :, 0], dy[:, :, 0], c.kernel[1:], c.stride[1:], c.padding[1:], (1, 1), 1
    )
    np.testing.assert_array_equal(made[:, :, 0], want)


def test_a_folded_convolution_counts_what_the_whole_one_does() -> None:
    for s in (folded_input(CONV1, Fold(2, 2)), folded_gradient(CONV1, Fold(8, 2))):
        assert s.useful_macs == CONV1.useful_macs < s.macs
    first, second = folded_input(CONV1, Fold(2, 2)), folded_gradient(CONV1, Fold(8, 2))
    assert (first.kernel, first.stride, first.padding) == (
        (1, 4, 4), (1, 1, 1), ((0, 0), (2, 0), (2, 0)),
    )  # fmt: skip
    assert (second.kernel, second.stride, second.cout) == ((1, 7, 4), (1, 4, 1), 48)
    # Of three rows, two apart, a filter of one reads no other; all columns are read.
    one = layer(n=1, cin=1, cout=16, spatial=(5, 8), kernel=(1, 2), stride=(2, 2))
    size = prod(folded_shape((1, 1, 5, 8), Fold(2, 2), 16))
    assert folded_input(one, Fold(2, 2)).used("inputs", size) == size * 3 // 5
    assert folded_gradient(one, Fold(2, 2)).used("outputs", size) == size * 3 // 5
    assert folded_gradient(one, Fold(2, 2)).used("taps", 512) == 512


def test_what_can_be_thinned() -> None:
    sizes: dict[str, Any] = {"cin": 40, "cout": 8, "spatial": (9, 20), "kernel": (1, 1)}
    strided = layer(stride=(2, 3), **sizes)
    assert can_thin(strided)
    few = thinned(strided)
    assert (few.spatial, few.out, few.stride) == ((1, 5, 7), (1, 5, 7), (1, 1, 1))
    assert few.useful_macs == strided.useful_macs
    assert not can_thin(layer(**sizes))
    assert not can_thin(layer(stride=(2, 2), padding=(0, 1), **sizes))
    assert not can_thin(layer(stride=(2, 2), **sizes | {"kernel": (1, 2)}))
    assert not can_thin(layer(stride=(2, 2), outputs=(4, 10), **sizes))
    one = layer(stride=(2, 2), **sizes | {"cin": 3})
    assert can_thin(one)
    assert not can_fold(one)


def test_what_can_be_folded() -> None:
    assert can_fold(CONV1)
    assert input_folds(CONV1) == [(1, 2), (2, 1), (2, 2)]
    assert gradient_folds(CONV1) == [(2, 2), (4, 2), (8, 2)]
    sizes: dict[str, Any] = {"cout": 8, "spatial": (20, 20), "kernel": (3, 3), "stride": (2, 2)}
    assert can_fold(layer(cin=8, **sizes))
    assert not can_fold(layer(cin=9, **sizes))
    assert not can_fold(layer(cin=4, groups=2, **sizes))
    assert not can_fold(layer(cin=4, dilation=(1, 2), **sizes))
    assert not can_fold(layer(cin=4, **sizes | {"stride": (1, 1)}))
    deep = Convolution(cin=3, cout=8, spatial=(4, 20, 20), kernel=(1, 3, 3), stride=(1, 2, 2))
    assert not can_fold(deep)
    # Columns in threes do not divide a block.
    threes = layer(cin=3, **sizes | {"stride": (3, 3)})
    assert input_folds(threes) == [(3, 1)]
    assert gradient_folds(threes) == []


def test_mistakes_are_told() -> None:
    x, y = Tensor("x", (1, 20, 8, 8), FP16), Tensor("y", (1, 1, 2, 4, 4, 16), FP16, "out")
    wanted = r"one of 3x2 pixels: .*\(1, 1, 2, 3, 4, 16\) belongs to x"
    with pytest.raises(ArgumentError, match=wanted):
        ThinMap(Thinned(16, True, (3, 2)), x, y)
    with pytest.raises(ArgumentError, match="must be the same type"):
        ThinMap(Thinned(16, True, (2, 2)), x, replace(y, dtype=FP32))
    with pytest.raises(ArgumentError, match="depth must be 1"):
        ThinMap(Thinned(16, True, (2, 2)), replace(x, shape=(1, 20, 2, 8, 8)), y)
    with pytest.raises(ArgumentError, match=r"fold_map: 3 columns.*must divide c0, 16"):
        Folded(16, True, Fold(2, 3))
    few, one = replace(x, shape=(1, 3, 8, 8)), replace(y, shape=(1,))
    with pytest.raises(ArgumentError, match=r"y has shape \(1,\), \(1, 1, 1, 4, 4, 16\) belongs"):
        FoldMap(Folded(16, True, Fold(2, 2)), few, one)
    with pytest.raises(ArgumentError, match="depth must be 1"):
        FoldMap(Folded(16, True, Fold(2, 2)), replace(few, shape=(1, 3, 2, 8, 8)), one)
    s = folded_gradient(CONV1, Fold(2, 2))
    w = Tensor("w", CONV1.w_shape, FP16)
    with pytest.raises(ArgumentError, match=r"\(64, 1, 16, 16\) belongs to w"):
        FoldWeights(FoldedFilters(s), w, Tensor("z", (1,), FP16))
    with pytest.raises(ArgumentError, match=r"that of the layer is \(64, 3, 1, 7, 7\)"):
        FoldWeights(FoldedFilters(s), Tensor("w", (64, 3, 7, 6), FP16), Tensor("z", (1,), FP16))


def test_filters_too_large_for_ub_are_known_before() -> None:
    huge = layer(cin=3, cout=16, spatial=(90, 90), kernel=(80, 80), stride=(2, 2))
    device = npusim.load_device("ascend910b2")
    assert ceil(huge.taps * 3 * 32 / 2**16) > 2
    for s in (folded_gradient(huge, Fold(2, 2)), folded_input(huge, Fold(2, 2))):
        shapes = huge.w_shape, fractals_of(s)
        first, second = shapes if s.gradient else shapes[::-1]
        kernel = FoldWeights(
            FoldedFilters(s), Tensor("a", first, FP32), Tensor("b", second, FP32, "out")
        )
        assert not kernel.fits(device)
        with pytest.raises(CapacityError, match=r"fold_weights: ascend910b2 has \d+ B of UB"):
            npusim.simulate(kernel, device)
    s = folded_gradient(CONV1, Fold(8, 2))
    weights = Tensor("b", fractals_of(s), FP32, "out")
    assert FoldWeights(FoldedFilters(s), Tensor("a", CONV1.w_shape, FP32), weights).fits(device)
