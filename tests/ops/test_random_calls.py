"""Random calls of every operator against float64, a few of the campaign's."""

from __future__ import annotations

from functools import partial

import pytest

from npusim.base.records import replace
from npusim.cli.main import main as run
from npusim.ops import CARDS
from tests.sampled import some
from tools.campaigns import random_calls, random_tilings
from tools.campaigns.random_calls import campaign, main


@pytest.mark.drawn
@pytest.mark.parametrize("name", CARDS)
def test_any_call_of_an_operator_has_the_numbers_of_float64(name: str) -> None:
    count = some(40)
    found = campaign(2026, calls=count, draw=partial(random_calls.drawn, name=name))
    assert (found.wrong, found.ran.total()) == ([], count)
    assert found.refused.total() < 4 * count  # much of what is drawn can be called


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(some(20)))
def test_any_legal_tiling_has_the_numbers_of_float64(seed: int) -> None:
    found = campaign(seed, calls=5, draw=random_tilings.drawn)
    assert (found.wrong, found.ran.total()) == ([], 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_twenty_thousand_legal_tilings_have_the_numbers_of_float64(seed: int) -> None:
    assert campaign(seed, calls=500, draw=random_tilings.drawn).wrong == []


def test_bf16_results_of_fp16_products_pass_their_check() -> None:
    """They are rounded to bf16 last; they were once held to the limit of fp16."""
    words = "run convolution --device ascend910b2 --cin 34 --cout 17 --size 5 --kernel 2"
    assert run([*words.split(), "--dtype", "bf16", "--cube-math-type", "2", "--check"]) == 0


def test_a_wrong_number_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator whose results are all zero fails the campaign, which says how to call it."""
    card = CARDS["matmul"]
    call = card.call

    def zeros(problem: object, given: object, options: object) -> object:
        result = call(problem, given, options)  # type: ignore[arg-type]
        for one in result.outputs or ():
            assert one is not None
            one[...] = 0
        return result

    monkeypatch.setattr("tools.campaigns.random_calls.CARDS", {"matmul": card})
    assert main(["3", "--calls", "2"]) == 0
    monkeypatch.setattr("tools.campaigns.random_calls.CARDS", {"matmul": replace(card, call=zeros)})
    assert main(["3", "--calls", "2", "--refusals"]) == 1
    assert "WRONG Drawn(operator='matmul'" in capsys.readouterr().out
