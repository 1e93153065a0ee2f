"""NaN that becomes a 16-bit float: 0 on the first generation, NaN where nobody wrote the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.language import FP16, FP32, Alike, Kernel, Language, Plan, Tasks
from npusim.machine.isa.operands import Tensor
from npusim.problem.reference import conv_bias_grad, conv_filter_grad, conv_input_grad

#: Devices without and with an infinity mode.
FIRST, LATER = ("ascend910", "ascend310p"), ("ascend910b2", "ascend950pr")
STRIDE = ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)


def gradients(device: str, kind: Any) -> tuple[Any, ...]:
    """Gradients of a layer with a NaN in dy and in x, and float64 ones that keep NaN."""
    rng = np.random.default_rng(1)
    dy, x = (rng.integers(-2, 3, (2, 16, 6, 5)).astype(kind) for _ in range(2))
    w = rng.integers(-2, 3, (16, 16, 3, 3)).astype(kind)
    dy[0, 3, 2, 2] = x[1, 5, 4, 1] = np.nan
    got = npusim.ops.convolution_backward(
        dy, x, w, (16,), padding=1, cube_math_type=1, device=device
    ).outputs
    assert got is not None
    dx = conv_input_grad(dy, w, x.shape, *STRIDE)
    dw = conv_filter_grad(x, dy, (3, 3), *STRIDE)
    return tuple(zip(got, (dx, dw, conv_bias_grad(dy)), strict=True))


@pytest.mark.parametrize("device", FIRST)
def test_results_that_are_nan_are_zero_on_the_first_generation(device: str) -> None:
    for got, want in gradients(device, np.float16):
        assert np.isnan(want).any()
        np.testing.assert_array_equal(got, np.nan_to_num(want, nan=0.0))


@pytest.mark.parametrize("device", LATER)
def test_results_that_are_nan_are_nan_later(device: str) -> None:
    for got, want in gradients(device, np.float16):
        np.testing.assert_array_equal(got, want.astype(np.float16))


def test_a_nan_that_is_cast_before_the_product_counts_as_zero() -> None:
    """The 910 computes fp32 operands in fp16: what was NaN is 0 before anything is summed."""
    (dx, _), (dw, _), (db, wanted) = gradients("ascend910", np.float32)
    assert np.isfinite(dx).all()
    assert np.isfinite(dw).all()
    np.testing.assert_array_equal(db, wanted.astype(np.float32))  # summed as it came


def test_patches_that_are_nan() -> None:
    patches = np.ones((1, 4, 4), np.float16)
    patches[0, 0, 0] = np.nan
    for device, want in (("ascend910", 0.0), ("ascend910b2", np.nan)):
        fold = npusim.ops.im2col_backward(
            patches, (3, 3), (2, 2), (1, 1), (0, 0), (1, 1), device=device
        )
        (image,) = fold.outputs or ()
        assert image is not None
        np.testing.assert_equal(float(image.reshape(-1)[0]), want)


@dataclass(frozen=True)
class Forgetful(Kernel):
    """Rounds 16 numbers, of which it loads only half."""

    x: Tensor
    y: Tensor

    name = "forgetful"
    role = "vector"

    def plan(self, k: Language, cores: int) -> Plan[Alike]:
        wide = k.buffer("UB", (16,), FP32, name="wide")
        narrow = k.buffer("UB", (16,), FP16, name="narrow")

        def emit(_: Alike) -> None:
            held, rounded = wide.next(), narrow.next()
            k.data_move(held.at(0, 32), self.x.at(0, 32), FP32)
            k.vec_scalar("muls", held.at(0, 64), held.at(0, 64), 0.5, FP32)
            k.vec_cast(rounded, held, FP32, FP16, saturate=k.device.saturates)
            k.data_move(self.y.at(0, 32), rounded, FP16)

        return Plan(Tasks(np.zeros(1, np.int64), Alike), emit)


@pytest.mark.parametrize("device", [*FIRST, *LATER])
def test_a_forgotten_load_shows_on_every_device(device: str) -> None:
    x = np.arange(16, dtype=np.float32)
    x[1] = np.nan
    kernel = Forgetful(Tensor("x", (16,), FP32, "in"), Tensor("y", (16,), FP16, "out"))
    result = npusim.simulate(kernel, device, x)
    (got,) = result.outputs or ()
    assert got is not None
    assert np.isnan(got[8:]).all()
    np.testing.assert_array_equal(got[2:8], np.arange(2, 8) / 2)
    np.testing.assert_equal(float(got[1]), 0.0 if device in FIRST else np.nan)


def test_operands_that_are_not_finite_are_noted() -> None:
    a, b = np.ones((16, 16), np.float16), np.ones((16, 16), np.float16)
    assert not [n for n in npusim.ops.matmul(a, b, device="tiny").notes if "not finite" in n]
    b[3, 4] = np.inf
    (note,) = [n for n in npusim.ops.matmul(a, b, device="tiny").notes if "not finite" in n]
    assert note.startswith("b has numbers that are not finite")
