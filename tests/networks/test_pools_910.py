"""The kernels of pooling in a step on a 910: the library's, or npusim's own."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from tests.networks.blocks import network

TEXT = """description: two kinds of pooling
layers:
  one: {cin: 3, cout: 32, spatial: [16, 16], kernel: 3, padding: 1}
  fc: {cin: 32, cout: 10, rows: 1, bias: yes}
graph:
  - input > one > relu > max_pool 3/2 p1 > avg_pool 3/1 p1 > avg_pool > fc
"""


@pytest.mark.parametrize(
    ("device", "tiling", "library"),
    [
        ("ascend910", "library", True),
        ("ascend910", "auto", False),
        ("ascend910b2", "library", False),
    ],
)
def test_notes_say_who_pools(device: str, tiling: str, library: bool, tmp_path: Path) -> None:
    step = npusim.step(network(TEXT, tmp_path), batch=2, device=device, tiling=tiling)
    notes = "\n".join(step.notes)
    for words in (
        "max_pool_with_argmax: pooling as the vendor's library",
        "max_pool_grad_with_argmax: pooling as the vendor's library",
        "average pooling is a depth-wise convolution",
    ):
        assert (words in notes) is library
