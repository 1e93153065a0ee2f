"""The command that makes the score card of developers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.machine.device.spec import Device
from npusim.silicon import simulate
from npusim.silicon.constants import load_constants
from npusim.silicon.rows import KernelRow, SimulatedRow
from tests.texts import text_of
from tools.scorecard import __main__ as command

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel takes M us on every device, its cube half of that."""

    def gemm(row: KernelRow, device: Device) -> SimulatedRow:
        time = float(row.M or 0)
        return SimulatedRow(time, {"cube": time / 2, "mte2": None}, ("matmul",), (device.name,))

    monkeypatch.setattr(simulate, "simulate_gemm_row", gemm)
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def kernels(tmp_path: Path) -> str:
    (tmp_path / "kernels.csv").write_text(text_of("kernels.csv"), encoding="utf-8")
    return str(tmp_path / "kernels.csv")


def cells(text: str, title: str) -> list[list[str]]:
    """The cells of the table under a title, head and rule left out."""
    lines = text[text.index(title) :].split("\n\n")[1].splitlines()
    return [line.split() for line in lines[2:]]


def test_families_are_left_out_in_turn(
    kernels: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cube's time is half the kernel's on every device, so no constant changes anything."""
    entry = (
        "constants:\n- {path: paths.L0C->GM.rate, devices: [ascend910b1], low: 60B/cycle, "
        "high: 150B/cycle}"
    )
    listed = {"constants": load_constants(entry), "calls": load_constants(part="calls")}
    monkeypatch.setattr(command, "load_constants", lambda part="constants": listed[part])
    assert command.main(["--data", kernels, "--jobs", "1"]) == 0
    text = capsys.readouterr().out
    assert cells(text, "Kernels left out of the fit")[0] == [
        *("family", "F", "2", "0", "5.6", "%", "5.6", "%")
    ]
    assert cells(text, "Constants and the rows")[0][2:4] == ["0", "hypothesis"]
    assert cells(text, "Constants: allowed range") == [
        ["paths.L0C->GM.rate", "ascend910b1", "60B/cycle", "150B/cycle", "72B/cycle",
         "105B/cycle", "105B/cycle"]
    ]  # fmt: skip


def test_without_constants_it_is_the_card_of_validate(
    kernels: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_constants", lambda part="constants": [])
    page = tmp_path / "card.html"
    assert command.main(["--data", kernels, "--jobs", "1", "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "Families: absolute error of time" in text
    assert "left out of the fit" not in text
    assert "Simulated against measured" in page.read_text(encoding="utf-8")


def test_a_file_of_no_measurements_is_refused(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "no.csv"
    file.write_text(json.dumps({}), encoding="utf-8")
    assert command.main(["--data", str(file), "--jobs", "1"]) == 2
    assert "tools.scorecard:" in capsys.readouterr().err
