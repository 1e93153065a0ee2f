"""Softmax with cross-entropy against NumPy in float64: losses, gradients, extremes and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError, CapacityError
from npusim.kernels.vector.elementwise import Elementwise
from npusim.kernels.vector.softmax_loss import softmax_loss as loss_of
from npusim.machine.isa.operands import Tensor
from tests.sampled import examples

Array = npt.NDArray[Any]


def softmax_loss(
    batch: int, classes: int, dtype: DType = FP32, to: DType | None = FP32, scale: float = 1.0
) -> Elementwise:
    """The kernel, with a gradient of type ``to`` if that is given."""
    x, labels = (Tensor(name, (batch, classes), dtype) for name in ("x", "labels"))
    grad = Tensor("grad", (batch, classes), to, "out") if to else None
    return loss_of(x, labels, Tensor("loss", (batch,), FP32, "out"), grad, scale)


def ran(kernel: Elementwise, device: str, x: Array, labels: Array) -> list[Array]:
    outputs = npusim.simulate(kernel, device, x, labels).outputs
    assert outputs is not None
    return [np.asarray(one) for one in outputs]


def reference(x: Array, labels: Array) -> tuple[Array, Array]:
    """Losses and gradients in float64."""
    z = x.astype(np.float64) - x.astype(np.float64).max(axis=1, keepdims=True)
    t = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return -(labels * t).sum(axis=1), np.exp(t) - labels


@examples(50)
@given(
    st.integers(1, 40),
    st.sampled_from([1, 2, 3, 7, 10, 16, 100, 257]),
    st.sampled_from([FP16, FP32]),
    st.sampled_from([FP16, FP32, None]),
    st.sampled_from(["tiny", "ascend310", "ascend310p", "ascend910", "ascend910b2", "ascend950pr"]),
)
def test_losses_and_gradients(
    batch: int, classes: int, dtype: DType, to: DType | None, device: str
) -> None:
    rng = np.random.default_rng(batch * classes)
    x = (rng.standard_normal((batch, classes)) * 8).astype(dtype.numpy)
    smooth = 0.9 * np.eye(classes)[rng.integers(0, classes, batch)] + 0.1 / classes
    labels = smooth.astype(dtype.numpy)
    loss, *grad = ran(softmax_loss(batch, classes, dtype, to, 1 / batch), device, x, labels)
    want, change = reference(x, labels.astype(np.float64))
    np.testing.assert_allclose(loss, want, 2e-6, 2e-6)
    assert len(grad) == (to is not None)
    for one in grad:
        eps = 2.0**-10 if to is FP16 else 2e-6
        np.testing.assert_allclose(one, change / batch, eps, 1e-6 / batch + eps * 2.0**-14)


def test_scores_of_any_size_neither_overflow_nor_vanish() -> None:
    x = np.array([[60_000, -60_000, 60_000], [0, -30, -60_000]], np.float16)
    labels = np.array([[0, 1, 0], [0, 1, 0]], np.float16)
    loss, grad = ran(softmax_loss(2, 3, FP16), "ascend910", x, labels)
    np.testing.assert_allclose(loss, np.array([120_000 + np.log(2), 30.0]), 1e-6)
    np.testing.assert_allclose(grad, np.array([[0.5, -1, 0.5], [1, -1, 0]]), atol=1e-6)


def test_imagenet_on_a_910_is_a_matter_of_start_ups() -> None:
    """One row of 1000 classes to a core: as long as launch, a load, 30 vector passes, a store."""
    (run,) = npusim.simulate(softmax_loss(32, 1000), "ascend910").runs
    bound = max(one.cycles for one in run.bounds)
    assert run.cores == 32
    assert bound <= run.cycles < 3 * bound
    stored = {row.operand: row.bytes for row in run.traffic if row.dst == "GM"}
    assert stored == {"loss": 128, "grad": 128_000}


def test_mistakes_are_told() -> None:
    x, loss = Tensor("x", (4, 8), FP32), Tensor("loss", (4,), FP32, "out")
    with pytest.raises(ArgumentError, match=r"softmax_loss: labels is int8 of shape \(4, 8\)"):
        loss_of(x, Tensor("labels", (4, 8), INT8), loss)
    with pytest.raises(ArgumentError, match=r"labels is fp32 of shape \(8, 4\)"):
        loss_of(x, Tensor("labels", (8, 4), FP32), loss)
    with pytest.raises(ArgumentError, match=r"loss is fp16 of shape \(4,\).*losses fp32 \(batch\)"):
        loss_of(x, x, Tensor("loss", (4,), FP16, "out"))
    with pytest.raises(ArgumentError, match=r"x is fp32 of shape \(4,\)"):
        loss_of(Tensor("x", (4,), FP32), Tensor("x", (4,), FP32), loss)
    with pytest.raises(CapacityError, match="softmax_loss: ascend910 has 262144 B of UB"):
        npusim.simulate(softmax_loss(2, 30_000), "ascend910")
