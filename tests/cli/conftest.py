"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npusim.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fails(capsys: Capture) -> Callable[..., str]:
    """Runs a command line that must fail with status 2; returns its one line on stderr."""

    def run_it(*words: str) -> str:
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("npusim: error: ")
        assert err.count("\n") == 1, "one message, no traceback"
        return err.removeprefix("npusim: error: ").rstrip("\n")

    return run_it


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables with a line to a row, whatever the terminal; tests of narrow ones say how wide."""
    monkeypatch.setenv("COLUMNS", "1000")
