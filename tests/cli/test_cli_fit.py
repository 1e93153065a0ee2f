"""``npusim fit``: the card, the files it writes, interrupts and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from npusim.cli import fit
from npusim.cli.main import main
from npusim.machine.device.catalog import load_device
from npusim.results.writers import progress
from npusim.results.writers.progress import Bar
from tests.silicon.sample import product, write_profile
from tests.tables import rows

Capture = pytest.CaptureFixture[str]

FEW = "constants:\n- {path: l2.read, devices: [ascend910b2], low: 3TB/s, high: 5.2TB/s}\n"
KERNELS = (product(512, 1024, 768), product(1024, 512, 1024), product(768, 2048, 512))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line whose profile was taken where the L2 is slower."""
    monkeypatch.chdir(tmp_path)
    Path("few.yaml").write_text(FEW, encoding="utf-8")
    write_profile(Path("p.csv"), "ascend910b2", {"l2.read": "3.5TB/s"}, KERNELS)
    return ["fit", "--data", "p.csv", "--device", "ascend910b2", "--constants", "few.yaml",
            "--jobs", "1"]  # fmt: skip


def test_an_interrupt_writes_what_was_found(
    words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(bar: Bar, what: str, done: int, total: int) -> None:
        if what.startswith("round 2"):
            raise KeyboardInterrupt

    monkeypatch.setattr(fit, "_progress", stop)
    assert main([*words, "--output", "mine.yaml"]) == 130
    assert "interrupted; this is what was found until then" in capsys.readouterr().err
    assert load_device("mine.yaml").provenance["l2.read"].confidence == "fitted"


def test_progress_says_which_figure_and_row(
    words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    assert main(words) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [f"the figures as they are, {row} of 3 rows" for row in (1, 2, 3)]
    assert any(line.startswith("figure 1 of 1, l2.read") for line in lines)


@rows("tests/data/mistakes/cli.yaml", "refusals_come_before_the_long_run", "more, message")
def test_refusals_come_before_the_long_run(
    words: list[str], more: list[str], message: str, fails: Callable[..., str]
) -> None:
    assert fails(*words, *more) == message


def test_a_profile_is_validated_too(words: list[str], capsys: Capture) -> None:
    assert main([*words, "--output", "mine.yaml"]) == 0
    capsys.readouterr()
    assert main(["validate", "--data", "p.csv", "--device", "mine.yaml", "--jobs", "1"]) == 0
    assert "MatMulV3:2" in capsys.readouterr().out


def test_a_file_that_would_change_nothing_is_not_written(words: list[str], capsys: Capture) -> None:
    """The profile is of the device as it ships."""
    write_profile(Path("p.csv"), "ascend910b2", {}, KERNELS)
    assert main([*words, "--output", "mine.yaml"]) == 2
    out, err = capsys.readouterr()
    assert "Summary" in out
    assert err.startswith("npusim: error: --output mine.yaml was not written: none of 1 figures mo")
    assert not Path("mine.yaml").exists()


def test_json_says_which_figure_ended_where_and_what_else_could_be_fitted(
    words: list[str], capsys: Capture
) -> None:
    """The L2 of the profile is slower than the range allows."""
    write_profile(Path("p.csv"), "ascend910b2", {"l2.read": "2TB/s"}, KERNELS)
    assert main([*words, "--rounds", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["at_end"] for one in told["figures"]] == ["low"]
    assert "main_memory.write" in told["not_looked_at"]
