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


def test_one_line_per_layer_and_distinct_call() -> None:
    rows = [row("a", 0), row("b", 1, time_us=20.0), row("a", 0)]
    head, blank, heads, first, sizes, second, _ = render("tiny", 40.0, rows).splitlines()
    assert (head, blank) == ("tiny: 3 convolution backwards, 2 distinct, 40.000 us", "")
    assert heads.split() == [
        "layer:",
        "type,",
        "input,",
        "weight",
        "count",
        "us",
        "each",
        "share",
        "error",
    ]
    assert first.split() == ["a", "2", "10.000", "50", "%"]
    assert sizes == "  fp32 2x3x8x8 4x3x3x3"
    assert second.split()[:4] == ["b", "1", "20.000", "50"]


def test_one_call_is_one() -> None:
    assert render("tiny", 10.0, [row("a", 0)]).startswith(
        "tiny: 1 convolution backward, 1 distinct"
    )


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


def test_refusals_are_counted_by_their_reason() -> None:
    rows = [row("a", None, reason="too " + "wide " * 30), row("b", 0)]
    rows.append(rows[0])
    text = render("tiny", 10.0, rows)
    assert ", 2 refused" in text.splitlines()[0]
    assert "refused 2 x a, input 2x3x8x8, weight 4x3x3x3, fp32: too wide" in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_is_not_timed_is_counted() -> None:
    text = render("tiny", 10.0, [row("a", 0), row("fc", 1, stride=())], {"mul": 1, "softmax": 2})
    assert "1 convolution backward, 1 product backward, 2 distinct" in text
    assert text.endswith("\n\nnot in the time: 2 x softmax, 1 x mul")
