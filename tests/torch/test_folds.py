"""Gradients of ``F.unfold`` and ``F.fold`` in a training step: timed by the operators for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import npusim
import npusim.torch
from npusim.torch.log import Log

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = pytest.mark.compiled


def traced(tensor: Any, forward: Callable[[Any], Any], **options: Any) -> Log:
    usual: dict[str, Any] = {"device": "ascend910b2"}
    with npusim.torch.trace(**(usual | options)) as log:
        forward(tensor.requires_grad_(True)).square().sum().backward()
    return log


def test_a_step_of_unfold_and_fold_has_their_times() -> None:
    """Before, the table was empty, and both were counted as operations without a time."""
    settings = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)}
    numbers = (3, 2), (1, 2), (1, 0), (2, 1)

    def forward(x: Any) -> Any:
        patches = functional.unfold(x, **settings)
        return functional.fold(2 * patches, (12, 13), **settings)

    log = traced(torch.randn(2, 16, 12, 13), forward, check=True)
    image = npusim.spec((2, 16, 12, 13), "fp32")
    patches = npusim.spec((2, 96, 6 * 11), "fp32")
    device: dict[str, Any] = {"device": "ascend910b2", "timeline": False}
    want = [
        npusim.ops.im2col(image, *numbers, **device),
        npusim.ops.im2col_backward(patches, (12, 13), *numbers, **device),
    ]
    table = log.table()
    assert list(table.layer) == ["fold 3x2", "unfold 3x2"]
    assert list(table.cycles) == [result.cycles for result in want]
    assert list(table.input) == [(2, 96, 66), (2, 16, 12, 13)]
    assert not set(log.untimed) & {"im2col", "col2im"}
    assert "0 convolution backwards, 2 fold backwards, 2 distinct" in log.summary()
    assert [row["kernels"] for row in json.loads(json.dumps(log.to_json()))["calls"]] == [
        len(result.runs) for result in want
    ]


def test_an_image_without_a_batch_and_a_gradient_that_is_expanded() -> None:
    with npusim.torch.trace(device="ascend910b2") as log:
        image = torch.randn(16, 9, 9, requires_grad=True)
        functional.unfold(image, 3).sum().backward()
    (entry,) = log.entries
    assert entry.call.shapes == ((144, 49), (16, 9, 9), (3, 3))
    assert log.results[0].runs[0].name == "contiguous"


def test_equal_gradients_are_simulated_once() -> None:
    def forward(x: Any) -> Any:
        return functional.unfold(functional.fold(functional.unfold(x, 2), (8, 8), 2), 2)

    log = traced(torch.randn(1, 16, 8, 8, dtype=torch.float16), forward)
    assert list(log.table()["count"]) == [2, 1, 2]
    assert len(log.results) == 2


def test_what_the_operator_does_not_take_is_a_row_with_the_reason() -> None:
    log = traced(torch.randn(1, 16, 8, 8, dtype=torch.bfloat16), lambda x: functional.unfold(x, 2))
    (row,) = log.rows()
    assert row["result"] is None
    assert "grad_output.dtype is bf16" in row["reason"]
    log = traced(torch.randn(1, 16, 8, 8), lambda x: functional.unfold(x, 2), deterministic=True)
    assert log.time_us > 0
