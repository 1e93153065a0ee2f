"""Advice: each sentence names a change, which saves what it says when the call is made with it."""

from __future__ import annotations

import pytest

import npusim
from npusim.base.objects import replace
from npusim.results import Result
from npusim.results.advice import Advice
from tests.results.advice_followed import broken
from tests.results.verdicts import results


def filter_gradient(
    name: str, batch: int, device: object = "ascend910", **options: object
) -> Result:
    layer = npusim.workloads.find_layer(name)
    problem = replace(layer, n=batch)
    return npusim.ops.conv2d_backprop_filter(problem, device=device, **options)


def by_word(result: Result, word: str) -> Advice:
    return next(one for one in result.advice if word in one.figures)


def test_advice_of_a_few_calls_saves_what_it_says() -> None:
    for call, result in results(2027, 4):
        assert broken(call, result) == [], call


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_advice_of_many_calls_saves_what_it_says(seed: int) -> None:
    wrong = [(call, text) for call, result in results(seed, 100) for text in broken(call, result)]
    assert wrong == []
