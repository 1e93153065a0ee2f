"""Random edits, each followed by a command: what is kept is what a fresh run says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers.stale import Pair, pairs


def stale(count: int, seed: int) -> list[Pair]:
    return [pair for pair in pairs(count, seed) if pair.kept != pair.fresh]


def test_no_answer_is_stale() -> None:
    assert stale(12, 1) == []


@pytest.mark.slow
def test_no_answer_is_stale_after_many_edits() -> None:
    assert stale(500, 2) == []


#: A part of a key that is left out, and the command whose answers are stale then.
LEFT_OUT = {
    "npusim.reuse.launches.code_of": "launch",
    "npusim.call.tilings.problem.code_of": "tune",
    "npusim.study.subject.content_of": "point",
    "npusim.study.subject.limits": "point",
}


@pytest.mark.slow
@pytest.mark.parametrize("part", LEFT_OUT)
def test_a_key_that_lacks_a_part_is_found(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> str:
        return ""

    monkeypatch.setattr(part, nothing)
    found = ({pair.command for pair in stale(80, seed)} for seed in range(3, 10))
    assert next(filter(None, found)) == {LEFT_OUT[part]}
