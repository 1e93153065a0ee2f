"""The summary of a PyTorch log, from plain rows: layers by name, shares, refusals."""

from __future__ import annotations

from math import nan
from typing import Any

from npusim.results.log_text import render


def row(layer: str, result: int | None, **changes: Any) -> dict[str, Any]:
    usual = {
        "layer": layer,
        "result": result,
        "time_us": 10.0,
        "dtype": "fp32",
        "stride": (1, 1),
        "input": (2, 3, 8, 8),
        "weight": (4, 3, 3, 3),
        "error_grad_input": None,
        "error_grad_weight": None,
        "error_grad_bias": None,
        "ok": None,
        "reason": "",
    }
    return {**usual, **changes}


def test_a_long_name_keeps_its_end_and_shows_that_it_had_a_beginning() -> None:
    name = "model.backbone.stages.3.blocks.17.branch.body.conv2"
    line = render("tiny", 10.0, [row(name, 0)]).splitlines()[3]
    shown = line.split()[0]
    assert shown == "..." + name[-45:]
    assert name.endswith(shown.removeprefix("..."))


def test_the_worst_error_is_shown_and_one_without_a_number_is_worse_than_any() -> None:
    rows = [row("a", 0, error_grad_input=1e-3, error_grad_weight=2e-2, ok=False)]
    assert "1 beyond tolerance" in render("tiny", 10.0, rows)
    assert " 2.0e-02" in render("tiny", 10.0, rows)
    rows.append(row("a", 0, error_grad_bias=nan, ok=False))
    assert " nan" in render("tiny", 20.0, rows)
