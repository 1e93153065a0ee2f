"""What kills commands at work sees what the command and its helpers do."""

from __future__ import annotations

import signal

import pytest

from tools.campaigns import kills
from tools.campaigns.kills import Kill
from tools.jobs import Run


@pytest.mark.compiled
@pytest.mark.parametrize("of_helper", [False, True])
def test_a_killed_command_answers_as_an_undisturbed_one(of_helper: bool) -> None:
    kill = Kill("tune", 2, signal.SIGKILL, of_helper)
    wanted, _ = kills.undisturbed(kill._replace(jobs=1))
    assert not wanted.failed
    assert kills.killed(kill, 0, wanted.answer) == ""


def test_what_is_wrong_is_said() -> None:
    right, other = Run(0, "answer", ""), Run(0, "another", "")
    known = Run(0, "answer, 17 known from before", "")
    ended = Run(-signal.SIGKILL, "", "")
    of_command = Kill("tune", 1, signal.SIGKILL, of_helper=False)
    assert kills._wrong(of_command, ended, known, "answer") == ""
    assert "another" in kills._wrong(of_command, ended, other, "answer")
    assert "ended with 0" in kills._wrong(of_command, right, right, "answer")
    of_helper = of_command._replace(jobs=2, of_helper=True)
    assert kills._wrong(of_helper, right, right, "answer") == ""
    assert "ended with -9" in kills._wrong(of_helper, ended, right, "answer")


def test_one_process_has_no_helper_to_kill() -> None:
    every = kills.kinds(["net"])
    assert len(every) == len({*every}) == 2 + 2 * 4
    assert not any(kill.of_helper for kill in every if kill.jobs == 1)
