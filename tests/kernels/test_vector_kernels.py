"""cast, bias_grad and bias_add against NumPy, on devices with and without bf16 and inf."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.kernels.layout.cast import cast as cast_kernel
from npusim.kernels.vector.bias_add import BiasAdd
from npusim.kernels.vector.bias_grad import BiasGrad, channel_parts
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.problem.reference import conv_bias_grad
from tests.sampled import examples
from tests.tables import rows

Array = npt.NDArray[Any]

TINY, A2, FIRST = load_device("tiny"), load_device("ascend910b2"), load_device("ascend910")
TYPES = {"fp16": FP16, "bf16": BF16, "fp32": FP32}
EPS = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}


def call_on(device: Device, **options: Any) -> Call:
    return Call("test", Options(device=device, **options), timing_only=False)


def cast(x: Array, kind: DType, to: DType, device: Device, *, saturate: bool = False) -> Array:
    call = call_on(device)
    source, target = call.input("x", x, kind), call.output("y", x.shape, to)
    call.launch(cast_kernel(source, target, saturate=saturate))
    return call.arrays["y"]


# -- cast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("count", [1, 255, 257, 40_001])
def test_cast_rounds_like_numpy(kind: str, to: str, count: int) -> None:
    if kind == to:
        return
    rng = np.random.default_rng(count)
    x = (rng.standard_normal(count) * 10.0 ** rng.integers(-9, 4, count)).astype(TYPES[kind].numpy)
    got = cast(x, TYPES[kind], TYPES[to], A2)
    want = x.astype(np.float32).astype(TYPES[to].numpy)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_cast_overflow_is_infinite_or_the_largest_value() -> None:
    x = np.array([1e6, -1e6, np.inf, 65504.0, np.nan], np.float32)
    free = cast(x, FP32, FP16, A2, saturate=A2.saturates)
    assert free[:4].tolist() == [np.inf, -np.inf, np.inf, 65504.0]
    kept = cast(x, FP32, FP16, FIRST, saturate=FIRST.saturates)
    assert kept[:4].tolist() == [65504.0, -65504.0, np.inf, 65504.0]
    assert np.isnan(free[4])


def test_cast_uses_all_vector_cores_and_moves_every_byte_once() -> None:
    x, y = Tensor("x", (1 << 22,), FP32), Tensor("y", (1 << 22,), FP16, "out")
    program = build(cast_kernel(x, y), A2, tuple(range(A2.groups)))
    assert program.moves == {("GM", "UB", "x"): 4 << 22, ("UB", "GM", "y"): 2 << 22}
    assert len(program.cores) == 48
    assert all(len(core.variants) for core in program.cores)


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (Tensor("x", (4,), FP16), Tensor("y", (5,), FP32), r"y \(5,\); both must hold the same"),
        (Tensor("x", (0,), FP16), Tensor("y", (0,), FP32), "at least one"),
        (Tensor("x", (4,), FP16), Tensor("y", (4,), FP16), "two different types"),
        (Tensor("x", (4,), INT8), Tensor("y", (4,), FP16), "x is int8, y fp16"),
    ],
)
def test_cast_refuses(x: Tensor, y: Tensor, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        cast_kernel(x, y)


def test_cast_refuses_a_type_the_device_lacks() -> None:
    with pytest.raises(ArgumentError, match="x is bf16, which ascend910 does not know"):
        cast(np.zeros(4, BF16.numpy), BF16, FP32, FIRST)


# -- bias_grad -------------------------------------------------------------------------------


def bias_grad(dy: Array, kind: DType, device: Device, parts: int, **options: Any) -> Array:
    call = call_on(device, **options)
    source, target = call.input("dy", dy, kind), call.output("db", dy.shape[1:2], kind)
    partial = call.output("parts", (dy.shape[1], parts), FP32) if parts > 1 else None
    call.launch(BiasGrad(source, target, partial, saturate=device.saturates))
    return call.arrays["db"]


@st.composite
def gradients(draw: st.DrawFn) -> tuple[tuple[int, ...], int, str]:
    shape = draw(st.lists(st.integers(1, 9), min_size=2, max_size=5))
    if draw(st.booleans()):
        shape.append(draw(st.sampled_from([17, 300, 1500])))
    return tuple(shape), draw(st.integers(1, 9)), draw(st.sampled_from(list(TYPES)))


@examples(80)
@given(gradients(), st.sampled_from([TINY, A2]))
def test_bias_grad_is_the_exact_sum_rounded_once(
    problem: tuple[tuple[int, ...], int, str], device: Device
) -> None:
    shape, parts, name = problem
    kind = TYPES[name]
    # Integers whose sums fp32 holds exactly: any order, one rounding.
    rng = np.random.default_rng(sum(shape))
    dy = rng.integers(-8, 9, shape).astype(kind.numpy)
    want = dy.astype(np.float64).sum(axis=(0, *range(2, len(shape)))).astype(kind.numpy)
    np.testing.assert_array_equal(bias_grad(dy, kind, device, parts), want)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("shape", [(2, 3, 20_011), (3, 70, 7, 7), (300, 5, 1), (1, 2000, 1)])
def test_bias_grad_rounds_the_fp32_sum_once(shape: tuple[int, ...], kind: str) -> None:
    dy = np.random.default_rng(1).uniform(-1, 1, shape).astype(TYPES[kind].numpy)
    parts = channel_parts(shape, 48)
    got = bias_grad(dy, TYPES[kind], A2, parts).astype(np.float64)
    want = conv_bias_grad(dy.astype(np.float64))
    terms = np.abs(dy.astype(np.float64)).sum(axis=(0, *range(2, dy.ndim)))
    assert (np.abs(got - want) <= EPS[kind] * np.abs(want) + 2.0**-18 * terms).all()


def test_bias_grad_overflow_follows_the_device() -> None:
    dy = np.full((1, 1, 4), 30_000.0, np.float16)
    assert bias_grad(dy, FP16, A2, 1).tolist() == [np.inf]
    assert bias_grad(dy, FP16, FIRST, 1).tolist() == [65504.0]


def test_bias_grad_may_stay_in_fp32() -> None:
    dy = np.full((2, 40), 2048.0, np.float16)
    dy[1] = 1.0
    call = call_on(A2)
    sums = call.output("db", (40,), FP32)
    call.launch(BiasGrad(call.input("dy", dy, FP16), sums))
    assert (call.arrays["db"] == 2049).all()


def test_bias_grad_parts_keep_all_cores_busy_and_repeat_bit_for_bit() -> None:
    shape = (4, 3, 64, 512)
    parts = channel_parts(shape, 48)
    assert parts == 16
    call = Call("test", Options(device=A2), timing_only=True)
    source = call.input("dy", Spec(shape, FP16), FP16)
    workspace = call.output("parts", (3, parts), FP32)
    call.launch(BiasGrad(source, call.output("db", (3,), FP16), workspace))
    call.launch(BiasGrad(source, call.output("db", (3,), FP16)))
    split, plain = call.runs
    assert split.cycles * 2 < plain.cycles  # one core per channel otherwise
    dy = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    first, second = (bias_grad(dy, FP32, A2, parts) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("dy", "db", "partial", "text"),
    [
        (Tensor("dy", (0, 3, 4), FP16), Tensor("db", (3,), FP16), None, "every size at least 1"),
        (Tensor("dy", (2, 3), INT8), Tensor("db", (3,), INT8), None, "dy is int8"),
        (Tensor("dy", (2, 3), FP16), Tensor("db", (2,), FP16), None, r"fp16 of shape \(3,\)"),
        (Tensor("dy", (2, 3), FP16), Tensor("db", (3,), BF16), None, "db is bf16"),
        (
            Tensor("dy", (2, 3), FP16),
            Tensor("db", (3,), FP16),
            Tensor("ws", (3, 2), FP16),
            r"ws is fp16 of shape \(3, 2\); it must be fp32 \(3, parts\)",
        ),
    ],
)
def test_bias_grad_refuses(dy: Tensor, db: Tensor, partial: Tensor | None, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        BiasGrad(dy, db, partial)


# -- bias_add --------------------------------------------------------------------------------


def bias_add(y: Array, bias: Array, kind: DType, device: Device) -> Array:
    call = call_on(device)
    target = call.output("y", y.shape, kind)
    call.arrays["y"][...] = y
    call.launch(BiasAdd(target, call.input("bias", bias, kind), saturate=device.saturates))
    return call.arrays["y"]


@examples(80)
@given(
    st.tuples(*(st.integers(1, 4) for _ in range(3)), st.integers(1, 400)),
    st.integers(0, 15),
    st.sampled_from([FP16, FP32]),
    st.sampled_from([TINY, A2, FIRST]),
)
def test_bias_add_adds_in_the_type_of_the_map(
    sizes: tuple[int, int, int, int], padding: int, kind: DType, device: Device
) -> None:
    n, d, c1, positions = sizes
    rng = np.random.default_rng(positions)
    channels = c1 * 16 - padding
    y = rng.standard_normal((n, d, c1, positions, 16)).astype(kind.numpy)
    bias = rng.standard_normal(channels).astype(kind.numpy)
    per_lane = np.zeros(c1 * 16, kind.numpy)
    per_lane[:channels] = bias
    want = y + per_lane.reshape(c1, 1, 16)
    np.testing.assert_array_equal(bias_add(y, bias, kind, device), want)


@examples(60)
@given(
    st.integers(1, 60), st.integers(1, 2500), st.sampled_from([FP16, FP32]),
    st.sampled_from([TINY, A2, FIRST]),
)  # fmt: skip
def test_bias_add_takes_rows_of_any_length(
    rows: int, channels: int, kind: DType, device: Device
) -> None:
    rng = np.random.default_rng(rows)
    y, bias = (rng.standard_normal(n).astype(kind.numpy) for n in ((rows, channels), channels))
    np.testing.assert_array_equal(bias_add(y, bias, kind, device), y + bias)


def test_bias_add_overflow_follows_the_device() -> None:
    y, bias = np.full((1, 1, 1, 2, 16), 60_000.0, np.float16), np.full(16, 60_000.0, np.float16)
    assert (bias_add(y, bias, FP16, A2) == np.inf).all()
    assert (bias_add(y, bias, FP16, FIRST) == 65504.0).all()


@rows("tests/data/mistakes/kernels.yaml", "bias_add_refuses", "y, bias, text")
def test_bias_add_refuses(y: list[int], bias: int, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        BiasAdd(Tensor("y", tuple(y), FP16, "inout"), Tensor("bias", (bias,), FP16))
