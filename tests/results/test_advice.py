"""Advice: each sentence names a change, which saves what it says when the call is made with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.language import FP16, Alike, Kernel, Language, Plan, Tasks, Tensor, in_runs
from npusim.results import Result
from npusim.results.facts.advice import Advice
from tests.results.advice_followed import KEPT, broken
from tests.results.verdicts import results, timed
from tools.campaigns.random_calls import Drawn


@dataclass(frozen=True)
class Doubled(Kernel):
    """y = 2 x in chunks; the first core does so many of them, the others share the rest."""

    x: Tensor
    y: Tensor
    first: int = 0

    name, role = "doubled", "vector"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        size = 4096
        a, b = (k.buffer("UB", (size,), FP16, slots=2, name=name) for name in "ab")

        def emit(task: Any) -> None:
            k.data_move(a.next(), self.x.at(0, 2 * size, base="at"), FP16)
            k.vec_scalar("muls", b.next(), a.last(), 2.0, FP16)
            k.data_move(self.y.at(0, 2 * size, base="at"), b.last(), FP16)

        start = np.arange(0, self.x.shape[0], size)
        core = in_runs(len(start), cores)
        core[: self.first] = 0
        return Plan(Tasks(core, Alike, {}, {"at": start * 2}), emit)


def doubled(chunks: int, first: int = 0, device: str = "ascend910b2") -> Result:
    shape = (4096 * chunks,)
    kernel = Doubled(Tensor("x", shape, FP16), Tensor("y", shape, FP16, "out"), first)
    return npusim.simulate(kernel, device)


def texts(result: Result) -> str:
    return "\n".join(one.text for one in result.advice)


def by_word(result: Result, word: str) -> Advice:
    return next(one for one in result.advice if word in one.figures)


def filter_gradient(batch: int, cin: int, cout: int, side: int, kernel: int) -> Drawn:
    """The filter gradient of a layer of ResNet-50 on the 910."""
    options = {
        "batch": batch,
        "cin": cin,
        "cout": cout,
        "size": (side, side),
        "kernel": (kernel, kernel),
        "stride": (1, 1),
        "padding": ((kernel // 2, kernel // 2),) * 2,
        "dilation": (1, 1),
        "groups": 1,
    }
    return Drawn(
        operator="conv2d_backprop_filter",
        options=options,
        dtype=FP16,
        device="ascend910",
        keywords={},
        seed=0,
    )


def test_advice_of_a_few_calls_saves_what_it_says() -> None:
    for call, result in results(2027, 4):
        assert broken(call, result) == [], call


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_advice_of_many_calls_saves_what_it_says(seed: int) -> None:
    wrong = [(call, text) for call, result in results(seed, 100) for text in broken(call, result)]
    assert wrong == []


def test_work_is_to_be_balanced_only_where_cores_differ() -> None:
    """All cores were equally busy, and the advice was to balance them."""
    even, uneven = doubled(480), doubled(480, first=100)
    assert "balance" not in texts(even)
    (advice,) = (one for one in uneven.advice if "balance" in one.text)
    assert "one core has 100 of the 480 tasks" in advice.text
    assert 1 - even.time_us / uneven.time_us >= KEPT * advice.saves > 0.3
    assert even.time_us == pytest.approx(advice.changed_us, rel=0.02)


def test_advice_on_the_demo_helps() -> None:
    """It was to balance the work over cores that are all as busy."""
    call = filter_gradient(2, 256, 256, 14, 3)
    result = timed(call)
    assert result.cycles == 8750
    assert "balance" not in texts(result)
    saving = [one for one in result.advice if one.saves]
    changes = [one.launch or next(iter(one.figures)) for one in saving]
    assert changes[:3] == ["graph", "launches", "pipe.MTE2"]
    assert broken(call, result) == []


def test_memory_is_told_with_all_figures_to_set_together() -> None:
    """Each of the three alone saves nothing, as the others hold it back."""
    call = filter_gradient(32, 64, 256, 56, 1)
    result = timed(call)
    advice = by_word(result, "hbm")
    together = "links.hbm.rate, main_memory.read and main_memory.write together"
    assert f"HBM: twice as fast saves 39 % with `--set hbm=x2` ({together})" in advice.text
    assert broken(call, result) == []
    alone = result.device.replace("main_memory.read", "x2")
    assert result.time_us_on(alone) == pytest.approx(result.time_us, rel=0.01)
    rows = {one.figure: one for one in result.explain().what_if or ()}
    assert rows["hbm"].double_us == pytest.approx(advice.changed_us, rel=1e-3)
    assert set(rows["hbm"].together) == {
        *("links.hbm.rate", "main_memory.read", "main_memory.write"),
    }
    assert max(rows[name].gain_us for name in rows["hbm"].together) < rows["hbm"].gain_us / 10
    text = " ".join(result.explain().text().split())
    assert re.search(r"\(hbm, launches[^:]*: all speeds of such a part together", text)


def test_idle_cores_are_explained() -> None:
    few = doubled(5)
    assert "doubled runs on 5 of 48 cores: it has 5 tasks, one for each of these" in texts(few)
    assert " cores:" not in texts(doubled(480))
    x = npusim.spec((2, 256, 14, 14), "fp16")
    w = npusim.spec((256, 256, 3, 3), "fp16")
    spread = npusim.ops.convolution_backward(x, x, w, padding=1, device="ascend950pr")
    told = texts(spread)
    assert "trans_data weight runs on 9 of 64 cores: left to all of them" in told
    assert re.search(r"left to all of them the call takes [\d.]+ us, \d+ % longer", told)


def test_a_call_that_nothing_alone_makes_faster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doubled(480)
    monkeypatch.setattr("npusim.results.facts.advice.WORTH_A_LINE", 10)
    assert texts(result) == "no part of the device saves 1000 % alone if it is twice as fast"
