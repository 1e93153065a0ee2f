"""Pooling and its gradient against NumPy in float64: numbers, masks, tiles, bytes and times."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import replace
from npusim.kernels.windows.pool import Pool, PoolGrad, Tiling, pooled
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.timing.trace import KernelRun
from npusim.problem.convolution import Convolution
from tests.sampled import examples, slow_if

Array = npt.NDArray[Any]

DEVICES = ("tiny", "ascend310", "ascend310p", "ascend910", "ascend910b2", "ascend950pr")
MEANS = ("sum", "mean", "mean_inside")


# -- the reference -----------------------------------------------------------------------------


def places(s: Convolution) -> list[tuple[Array, Array, Array, Array]]:
    """Per tap: rows and columns of the windows that read inside the map, and of what they read."""
    found = []
    for tap in product(*map(range, s.kernel)):
        sides = []
        for axis, k in enumerate(tap):
            window = np.arange(s.out[axis])
            pixel = window * s.stride[axis] + k * s.dilation[axis] - s.padding[axis][0]
            there = (pixel >= 0) & (pixel < s.spatial[axis])
            sides.append((window[there], pixel[there]))
        (oh, h), (ow, w) = sides
        found.append((oh[:, None], ow, h[:, None], w))
    return found


def maxima(x: Array, s: Convolution) -> tuple[Array, Array]:
    """The largest of each window, and (taps, ...) where each is the first that has it.

    In a window that reads padding only it is the first tap.
    """
    shape = (*x.shape[:2], *s.out, x.shape[-1])
    best, taken = np.full(shape, -np.inf), np.zeros(shape, np.int64)
    for tap, (oh, ow, h, w) in enumerate(places(s)):
        read = np.full(shape, -np.inf)
        read[:, :, oh, ow] = x[:, :, h, w]
        taken = np.where(read > best, tap, taken)
        best = np.maximum(read, best)
    return best, np.stack([taken == tap for tap in range(s.taps)])


def counts(s: Convolution, kind: str) -> Array:
    """What the sum of each window is divided by, with axes of rows, columns and lanes."""
    inside = np.zeros(s.out)
    for oh, ow, _, _ in places(s):
        inside[oh, ow] += 1
    inside = np.maximum(1, inside)
    if kind != "mean_inside":
        inside[...] = s.taps if kind == "mean" else 1
    return inside[:, :, None]


def sums(x: Array, s: Convolution, kind: str) -> Array:
    """The sum of each window or its mean."""
    total = np.zeros((*x.shape[:2], *s.out, x.shape[-1]))
    for oh, ow, h, w in places(s):
        total[:, :, oh, ow] += x[:, :, h, w]
    return total / counts(s, kind)


def gradient(dy: Array, s: Convolution, kind: str, taken: Array | None = None) -> Array:
    """The gradient of the map, of that of its windows."""
    dx = np.zeros((*dy.shape[:2], *s.spatial, dy.shape[-1]))
    share = dy if taken is not None else dy / counts(s, kind)
    for tap, (oh, ow, h, w) in enumerate(places(s)):
        given = share if taken is None else share * taken[tap]
        dx[:, :, h, w] += given[:, :, oh, ow]
    return dx


# -- the kernels -------------------------------------------------------------------------------


def windows_of(shape: tuple[int, ...], s: Convolution) -> tuple[int, ...]:
    """Shape of the windows of a map."""
    return (*shape[:2], *s.out, shape[-1])


def mask_of(shape: tuple[int, ...], s: Convolution, role: str) -> Tensor:
    """The mask of a map's windows."""
    return Tensor("mask", (s.taps, prod(windows_of(shape, s)) // 8), INT8, role)


def pool(shape: tuple[int, ...], s: Convolution, kind: str, dtype: DType, **more: Any) -> Pool:
    """The kernel for a map of ``shape``."""
    x, y = Tensor("x", shape, dtype), Tensor("y", windows_of(shape, s), dtype, "out")
    return Pool(s, x, y, kind, **more)


def pool_grad(
    shape: tuple[int, ...], s: Convolution, kind: str, dtype: DType, **more: Any
) -> PoolGrad:
    """The kernel of its gradient."""
    dy, dx = Tensor("dy", windows_of(shape, s), dtype), Tensor("dx", shape, dtype, "out")
    return PoolGrad(s, dy, dx, kind, **more)


def ran(kernel: Any, device: str | Device, *arrays: Array) -> list[Array]:
    """What the kernel writes; races and unwritten outputs are searched for."""
    outputs = npusim.simulate(kernel, device, *arrays).outputs
    assert outputs is not None
    return [np.asarray(one) for one in outputs]


def timed(kernel: Any, device: str, **options: Any) -> KernelRun:
    (run,) = npusim.simulate(kernel, device, **options).runs
    return run


def check(
    shape: tuple[int, ...], s: Convolution, dtype: DType, device: str | Device, **more: Any
) -> None:
    """All kinds on maps of small integers, whose sums any order makes alike."""
    rng, kind = np.random.default_rng(sum(shape)), dtype.numpy
    x = rng.integers(-9, 10, shape).astype(kind)
    dy = rng.integers(-9, 10, windows_of(shape, s)).astype(kind)
    want, taken = maxima(x.astype(np.float64), s)
    y, mask = ran(pool(shape, s, "max", dtype, mask=mask_of(shape, s, "out"), **more), device, x)
    np.testing.assert_array_equal(y, want.astype(kind))
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits.reshape(taken.shape), taken)
    (plain,) = ran(pool(shape, s, "max", dtype, **more), device, x)
    np.testing.assert_array_equal(plain, y)
    given = mask_of(shape, s, "in")
    (dx,) = ran(pool_grad(shape, s, "max", dtype, mask=given, **more), device, dy, mask)
    np.testing.assert_array_equal(dx, gradient(dy.astype(np.float64), s, "max", taken))
    for how in MEANS:
        (mean,) = ran(pool(shape, s, how, dtype, **more), device, x)
        eps = 2.0 ** (-10 if dtype is FP16 else -22)
        np.testing.assert_allclose(mean, sums(x.astype(np.float64), s, how), eps, 1e-6)
        (dx,) = ran(pool_grad(shape, s, how, dtype, **more), device, dy)
        exact = gradient(dy.astype(np.float64), s, how)
        np.testing.assert_allclose(dx, exact, eps, 16 * s.taps * 2.0**-23)


CASES = [
    ((2, 3, 13, 14), (3, 3), (2, 2), ((1, 1), (1, 1)), None),
    ((1, 1, 12, 9), (2, 2), (2, 2), ((0, 0), (0, 0)), None),
    ((3, 33, 5, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), None),
    ((1, 2, 40, 70), (3, 3), (2, 2), ((0, 1), (1, 0)), None),
    ((2, 1, 9, 9), (3, 2), (2, 3), ((0, 0), (0, 0)), (5, 3)),  # rounded up, beyond the map
    ((1, 1, 7, 7), (1, 1), (2, 2), ((0, 0), (0, 0)), None),  # pixels that no window reads
    ((2, 40, 7, 6), (7, 6), (1, 1), ((0, 0), (0, 0)), None),  # global
    ((1, 2, 4, 5), (2, 2), (3, 3), ((2, 0), (0, 2)), None),  # windows that read padding only
]


@pytest.mark.parametrize(
    ("dtype", "c0", "device"),
    [
        *(
            slow_if(one in ("ascend310", "ascend310p", "ascend950pr"), FP16, 16, one)
            for one in DEVICES
        ),
        (FP32, 8, "ascend910b2"),
        (FP32, 16, "ascend910"),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, case[0])))
def test_every_kind_on_every_device(case: Any, dtype: DType, c0: int, device: str) -> None:
    shape, *window = case
    s = pooled((*shape, c0), *window)
    check((*shape, c0), s, dtype, device)


@examples(40)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 20), st.integers(1, 40)),
    st.tuples(*(st.integers(1, 4) for _ in range(2))),
    st.tuples(*(st.integers(1, 4) for _ in range(2))),
    st.tuples(*(st.tuples(st.integers(0, 3), st.integers(0, 3)) for _ in range(2))),
    st.sampled_from([(FP16, 16), (FP32, 8)]),
    st.sampled_from(["tiny", "ascend910", "ascend910b2"]),
)
def test_any_windows(
    sizes: tuple[int, ...], kernel: Any, stride: Any, pads: Any, kind: Any, device: str
) -> None:
    dtype, c0 = kind
    shape = (*(max(one) for one in zip(sizes, (1, 1, *kernel), strict=True)), c0)
    check(shape, pooled(shape, kernel, stride, pads), dtype, device)


@pytest.mark.parametrize(
    "tiling",
    [
        Tiling(rows=3, columns=11),
        Tiling(rows=1, columns=4),
        Tiling(rows=20, columns=40, planes=2, at_once=True),
        None,  # tiles that fit a UB of 5 KiB: parts of rows
    ],
)
def test_tiles_change_no_number(tiling: Tiling | None) -> None:
    shape = (1, 3, 9, 21, 16)
    s = pooled(shape, (3, 3), (2, 2), ((1, 1), (1, 1)))
    small = load_device("ascend910b2").replace("memories.UB.size", "5KiB")
    if tiling is None:
        check(shape, s, FP16, small)
    elif tiling.columns == 11:  # whole rows of windows, parts of those of the map
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
        want, _ = maxima(x.astype(np.float64), s)
        (y,) = ran(pool(shape, s, "max", FP16, tiling=tiling), "ascend910b2", x)
        np.testing.assert_array_equal(y, want)
    else:
        check(shape, s, FP16, "ascend910b2", tiling=tiling)


def test_the_first_of_equals_is_taken() -> None:
    shape = (1, 1, 6, 6, 16)
    s = pooled(shape, (3, 3), (2, 2), ((1, 1), (1, 1)))
    kernel = pool(shape, s, "max", FP16, mask=mask_of(shape, s, "out"))
    y, mask = ran(kernel, "tiny", np.full(shape, -3.0, np.float16))
    assert (y == -3).all()  # not the 0 of the padding
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little").reshape(9, 3, 3, 16)
    first = np.full((3, 3), 0)
    first[0], first[:, 0], first[0, 0] = 3, 1, 4  # taps 0 to 2 lie above, 0, 3 and 6 to the left
    assert (bits.argmax(axis=0) == first[:, :, None]).all()
    assert (bits.sum(axis=0) == 1).all()


def test_means_are_summed_in_fp32() -> None:
    shape = (1, 1, 40, 40, 16)
    s = pooled(shape, (40, 40), (40, 40))
    x = np.full(shape, 5.0, np.float16)  # fp16 sums of fives become multiples of four
    assert (ran(pool(shape, s, "mean", FP16), "ascend910", x)[0] == 5).all()
    narrow = pool(shape, s, "mean", FP16, sums=FP16)
    assert (ran(narrow, "ascend910", x)[0] < 4.5).all()


def test_overflow_follows_the_device() -> None:
    shape = (1, 1, 2, 2, 16)
    s, x = pooled(shape, (2, 2), (2, 2)), np.full(shape, 30_000.0, np.float16)
    assert np.isinf(ran(pool(shape, s, "sum", FP16), "ascend910b2", x)[0]).all()
    kept = pool(shape, s, "sum", FP16, saturate=True)
    assert (ran(kept, "ascend910", x)[0] == 65504).all()


def test_a_map_is_enlarged_and_its_gradient_summed() -> None:
    shape = (2, 2, 8, 15, 16)
    s, rng = pooled(shape, (2, 3), (2, 3)), np.random.default_rng(0)
    small = rng.standard_normal((2, 2, 4, 5, 16)).astype(np.float16)
    (large,) = ran(pool_grad(shape, s, "sum", FP16, sums=FP16), "ascend910", small)
    np.testing.assert_array_equal(large, small.repeat(2, axis=2).repeat(3, axis=3))
    dy = rng.integers(-9, 10, shape).astype(np.float16)
    (dx,) = ran(pool(shape, s, "sum", FP16), "ascend910", dy)
    np.testing.assert_array_equal(dx, dy.reshape(2, 2, 4, 2, 5, 3, 16).sum(axis=(3, 5)))


def stem(c1: int = 4) -> tuple[tuple[int, ...], Convolution]:
    """The pooling behind the first layer of ResNet-50, batch 32."""
    shape = (32, c1, 112, 112, 16)
    return shape, pooled(shape, (3, 3), (2, 2), ((1, 1), (1, 1)))


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_bytes_and_bounds(device: str) -> None:
    shape, s = stem()
    x, y, mask = (prod(shape), prod(windows_of(shape, s)), s.taps * prod(windows_of(shape, s)) // 8)
    run = timed(pool(shape, s, "max", FP16, mask=mask_of(shape, s, "out")), device)
    stored = {row.operand: row.bytes for row in run.traffic if row.dst == "GM"}
    assert stored == {"y": 2 * y, "mask": mask}
    (read,) = (row.bytes for row in run.traffic if row.src == "GM")
    assert 2 * x <= read < 1.15 * 2 * x  # rows that two tiles read
    assert max(bound.cycles for bound in (*run.bounds, *run.problem_bounds)) <= run.cycles
    run = timed(pool_grad(shape, s, "max", FP16, mask=mask_of(shape, s, "in")), device)
    stored = {row.operand: row.bytes for row in run.traffic if row.dst == "GM"}
    assert stored == {"dx": 2 * x}
    assert max(bound.cycles for bound in run.bounds) <= run.cycles


def test_mistakes_are_told() -> None:
    shape = (2, 3, 8, 8, 16)
    s = pooled(shape, (2, 2), (2, 2))
    with pytest.raises(ArgumentError, match="kind is 'min'; it is one of max, sum, mean"):
        pool(shape, s, "min", FP16)
    with pytest.raises(ArgumentError, match=r"y is fp16 of shape .* makes it fp16 of 6 x 256"):
        Pool(s, Tensor("x", shape, FP16), Tensor("y", (2, 3, 4, 5, 16), FP16, "out"), "max")
    with pytest.raises(ArgumentError, match="x is fp16 in blocks of 8"):
        pool((*shape[:4], 8), replace(s, cin=8, cout=8, c0=8), "max", FP16)
    with pytest.raises(ArgumentError, match="x is int8 in blocks of 16"):
        pool(shape, s, "max", INT8)
    with pytest.raises(ArgumentError, match=r"mask is int8 of shape .*int8, 768 of them"):
        pool(shape, s, "max", FP16, mask=Tensor("mask", (4, 767), INT8, "out"))
    with pytest.raises(ArgumentError, match=r"a maximum has a bit .* others none"):
        pool(shape, s, "mean", FP16, mask=mask_of(shape, s, "out"))
    with pytest.raises(ArgumentError, match="a maximum has no mask; give the one of its pooling"):
        pool_grad(shape, s, "max", FP16)
    with pytest.raises(ArgumentError, match="a tile of several rows has whole ones"):
        pool(shape, s, "max", FP16, tiling=Tiling(rows=2, columns=2))
    with pytest.raises(ArgumentError, match="at_once needs whole images"):
        pool(shape, s, "max", FP16, tiling=Tiling(rows=2, columns=2, at_once=True))


def test_planes_larger_than_ub_are_averaged_in_two() -> None:
    shape = (1, 2, 112, 112, 16)
    x = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float16)
    (rows,) = ran(pool(shape, pooled(shape, (1, 112), (1, 112)), "mean", FP16), "ascend910b2", x)
    (mean,) = ran(
        pool(rows.shape, pooled(rows.shape, (112, 1), (112, 1)), "mean", FP16), "ascend910b2", rows
    )
    exact = x.astype(np.float64).mean(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(mean, exact, 2.0**-10)


def test_windows_larger_than_ub_are_refused() -> None:
    shape = (1, 1, 112, 112, 16)
    kernel = pool(shape, pooled(shape, (112, 112), (112, 112)), "mean", FP16)
    with pytest.raises(CapacityError, match="UB holds 196608 B but image_ub 2x401408"):
        npusim.simulate(kernel, "ascend910b2")
