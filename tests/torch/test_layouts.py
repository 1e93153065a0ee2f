"""Tensors that PyTorch lays out otherwise than row-major: copied as the vendor's host code does."""

from __future__ import annotations

from typing import Any

import pytest

import npusim.torch
from npusim.torch.log import Log

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.compiled


def traced(x: Any, loss: Any, *, check: bool = True) -> Log:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(16, 16, 3, padding=1, bias=False).to(x.device)
    with npusim.torch.trace(device="ascend910b2", check=check) as log:
        loss(layer(x.requires_grad_(True))).backward()
    return log


def copies(log: Log) -> tuple[int, int]:
    (result,) = log.results
    launched = [run.name for run in result.runs]
    return launched.count("contiguous"), launched.count("view_copy")


def squares(y: Any) -> Any:
    return y.square().sum()


def test_channels_last_costs_copies_and_changes_no_verdict() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 16, 12, 12)
    plain = traced(x.clone(), squares)
    turned = traced(x.clone(memory_format=torch.channels_last), squares)
    assert copies(plain) == (0, 0)
    # dy and x first; both gradients of a layer whose input is in channels last are so too
    assert copies(turned) == (2, 2)
    assert turned.time_us > plain.time_us
    assert turned.table().ok.all()
    assert plain.table().ok.all()


def test_a_gradient_of_a_sum_is_expanded() -> None:
    log = traced(torch.randn(2, 16, 12, 12), torch.sum)
    assert log.entries[0].call.strides == (("grad_output", (0, 0, 0, 0)),)
    assert copies(log) == (1, 0)
    assert log.table().ok.all()


def test_a_slice_is_copied_also_without_data() -> None:
    """Time alone, of meta tensors, is that with data; equal calls are simulated once."""
    times = []
    for device in ("cpu", "meta"):
        whole = torch.zeros(2, 32, 12, 12, device=device)
        log = traced(whole[:, ::2], squares, check=False)
        assert copies(log)[0] == 1
        times.append(log.time_us)
    assert times[0] == times[1]
    again = traced(torch.zeros(2, 16, 12, 12), squares, check=False)
    assert again.time_us < times[0]
