"""The PyTorch bridge where things go wrong: refusals, wrong numbers, defects, wrong options."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npusim.torch
import npusim.torch.log
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.results import Result
from npusim.torch.log import TOLERANCES

torch = pytest.importorskip("torch")
nn = torch.nn

from tests.torch.test_torch_trace import make_input  # noqa: E402  # it needs PyTorch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def step(model: Any, x: Any, scale: float = 1.0) -> None:
    (model(x).square().mean() * scale).backward()


def patched(monkeypatch: pytest.MonkeyPatch, change: Callable[[Result], Result]) -> None:
    real = npusim.ops.convolution_backward
    monkeypatch.setattr(
        npusim.torch.log, "convolution_backward", lambda *a, **k: change(real(*a, **k))
    )


def test_refusals_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Unflatten(1, (4, 1)), nn.Conv3d(4, 2, (1, 3, 2)))
    simulated: list[Result] = []

    def keep(result: Result) -> Result:
        simulated.append(result)
        return result

    patched(monkeypatch, keep)
    with npusim.torch.trace(device="ascend310p", model=model, check=True) as log:
        step(model, make_input(), 256)
        step(model, make_input(), 256)
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    deep, plain, *again = log.rows()
    assert again == [deep, plain]
    assert (deep["layer"], deep["count"], deep["result"]) == ("2", 2, None)
    assert "1-D and 2-D" in deep["reason"]
    assert (plain["reason"], plain["arithmetic"], plain["ok"]) == ("", "fp16", True)
    assert len(simulated) == 2
    assert list(log.table().cycles.isna()) == [True, False] * 2
    assert log.time_us == 2 * log.results[0].time_us
    text = log.summary()
    assert "2 refused" in text.splitlines()[0]
    assert "refused 2 x 2, input 2x4x1x6x4, weight 2x4x1x3x2, fp32: " in text
    assert max(map(len, text.splitlines())) <= 80
    json.dumps(log.to_json(), allow_nan=False)


def test_fp32_that_fp16_arithmetic_cannot_hold_is_found() -> None:
    """ascend310p computes fp32 in fp16: small gradients drown unless the loss is scaled."""
    conv = nn.Conv2d(3, 4, 3)
    with npusim.torch.trace(device="ascend310p", check=True) as log:
        step(conv, make_input(), 1e-4)
        step(conv, make_input(), 256)
    assert list(log.table().ok) == [False, True]
    small, scaled = log.table().error_grad_weight
    assert small > 2**-10 > 4 * scaled


def test_the_last_digits_of_small_fp16_gradients_do_not_count() -> None:
    """Below the smallest normal fp16 PyTorch has lost them too; a wrong gradient still shows."""
    conv = nn.Conv2d(3, 4, 3).half()
    x = make_input().half().requires_grad_()
    with npusim.torch.trace(device="ascend910b2", check=True) as log:
        conv(x).backward(1e-5 * make_input(2, 4, 6, 4).half())
    assert 0 < x.grad.abs().max() < np.finfo(np.float16).smallest_normal
    (row,) = log.rows()
    assert row["ok"] is True


@pytest.mark.parametrize(
    ("device", "kind", "reason"),
    [
        ("ascend910b2", "float64", "unknown dtype 'float64'"),
        ("ascend310p", "bfloat16", "bf16"),
    ],
)
def test_types_the_device_lacks_are_rows(device: str, kind: str, reason: str) -> None:
    conv = nn.Conv2d(2, 2, 1).to(getattr(torch, kind))
    with npusim.torch.trace(device=device, check=True) as log:
        step(conv, make_input(1, 2, 3, 3).to(getattr(torch, kind)))
    assert conv.weight.grad.abs().sum() > 0
    (row,) = log.rows()
    assert reason in row["reason"]
    assert row["ok"] is None
    assert row["dtype"] == {"float64": "float64", "bfloat16": "bf16"}[kind]


@pytest.mark.parametrize("wrong", ["grad_input", "grad_weight", "grad_bias"])
def test_wrong_gradients_are_found(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def spoil(result: Result) -> Result:
        outputs = dict(zip(result.output_names, result.outputs or (), strict=True))
        spoiled = np.array(outputs[wrong])
        spoiled.flat[0] += 0.01 * np.linalg.norm(spoiled)
        return replace(result, outputs=tuple((outputs | {wrong: spoiled}).values()))

    patched(monkeypatch, spoil)
    conv = nn.Conv2d(4, 4, 3)
    with npusim.torch.trace(device="ascend910b2", check=True) as log:
        step(conv, make_input(1, 4, 6, 6).requires_grad_())
    (row,) = log.rows()
    assert row["ok"] is False
    for name in ("grad_input", "grad_weight", "grad_bias"):
        assert (row[f"error_{name}"] > row["tolerance"]) == (name == wrong)
    assert 0.001 < row[f"error_{wrong}"] < 0.0101  # less than 1 % only where terms cancel
    assert "1 beyond tolerance" in log.summary()


def test_terms_that_cancel_are_held_against_their_noise() -> None:
    """A bias before a batch normalisation has no gradient but rounding noise, in PyTorch too."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    with npusim.torch.trace(device="ascend910b2", model=model, check=True) as log:
        model(make_input()).pow(3).mean().backward()
    (row,) = log.rows()
    got = log.results[0].grad_bias
    want = model[0].bias.grad.numpy()
    assert got is not None
    assert np.linalg.norm(got - want) > TOLERANCES["fp32"] * np.linalg.norm(want)
    assert row["error_grad_bias"] < 1e-6
    assert row["ok"] is True


def test_values_that_are_not_finite_on_both_sides_are_equal() -> None:
    conv = nn.Conv2d(2, 2, 1)
    with npusim.torch.trace(device="ascend910b2", check=True) as log:
        conv(make_input(1, 2, 3, 3)).backward(torch.full((1, 2, 3, 3), float("inf")))
    (row,) = log.rows()
    assert (row["ok"], row["error_grad_weight"], row["reason"]) == (True, 0.0, "")


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
def test_a_bias_that_overflows(device: str) -> None:
    """8,192 times 16 is infinite in PyTorch and on a 910B; a 910 has the largest number instead."""
    conv = nn.Conv2d(3, 4, 3, padding=1).half()
    y = conv(make_input(2, 3, 64, 64).half())
    with npusim.torch.trace(device=device, check=True) as log:
        y.backward(torch.full_like(y, 16.0))
    (row,) = log.rows()
    assert torch.isinf(conv.bias.grad).all()
    if device == "ascend910b2":
        assert (row["ok"], row["error_grad_bias"], row["reason"]) == (True, 0.0, "")
        return
    assert row["ok"] is False
    assert "beyond the range of fp16, 65,504; first at [0]: 65504 here, inf" in row["reason"]
    assert "beyond tolerance 1 x 4x3x3x3: grad_bias has 4 of 4" in log.summary()
    assert np.isnan(row["error_grad_bias"])
    assert "nan" in log.summary()
    assert '"error_grad_bias": null' in json.dumps(log.to_json(), allow_nan=False)


def test_a_defect_of_the_simulator_does_not_stop_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(result: Result) -> Result:
        raise KeyError(result.operator)

    patched(monkeypatch, broken)
    conv = nn.Conv2d(2, 2, 1)
    with (
        pytest.warns(UserWarning, match="npusim failed with KeyError"),
        npusim.torch.trace(device="ascend910b2") as log,
    ):
        step(conv, make_input(1, 2, 3, 3))
    assert conv.weight.grad.abs().sum() > 0
    assert "KeyError" in log.rows()[0]["reason"]
    assert log.results == []


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"device": "ascend910b9"}, ArgumentError, "ascend910b9"),
        ({"cube_math_type": 7}, ArgumentError, "cube_math_type is 7"),
        ({"model": "resnet"}, ArgumentError, "model is a str; it must be a torch.nn.Module"),
        ({"cores": "99"}, ArgumentError, "no core group 99"),
        ({"start": "hot"}, ArgumentError, "start is 'hot'"),
        ({"devise": "tiny"}, ArgumentError, "unknown keyword 'devise'; did you mean 'device'"),
    ],
)
def test_wrong_options_fail_before_the_training(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        npusim.torch.trace(**options)


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ArgumentError, match="pip install torch"):
        npusim.torch.trace()


def test_an_error_of_the_training_step_passes_through() -> None:
    def interrupted() -> None:
        with npusim.torch.trace(device="tiny"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
