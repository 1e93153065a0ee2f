"""``npusim validate``: which points it simulates, and what it prints and writes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npusim.base.errors import ProgramError
from npusim.cli import validate
from npusim.cli.main import main
from npusim.machine.device.spec import Device
from npusim.silicon import simulate
from npusim.silicon.rows import CallRow, Declined, KernelRow, NetworkRow, SimulatedRow
from tests.tables import rows
from tests.texts import text_of

Capture = pytest.CaptureFixture[str]

KERNELS = text_of("kernels.csv")
CALLS = "id,family,chip,call,M,time_us\nm,H,910B2,matmul,40,50\n"


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel takes M us at the device's own clock, its cube half of that; an add fails.

    A step takes a millisecond for each GHz of the clock.
    """

    def gemm(row: KernelRow, device: Device) -> SimulatedRow:
        time = float(row.M or 0)
        return SimulatedRow(time, {"cube": time / 2, "mte2": None}, ("matmul",), (device.name,))

    def stream(row: KernelRow, _: Device) -> SimulatedRow:
        if row.op == "add":
            raise ProgramError("too large")
        raise Declined(f"op: {row.op} is not simulated")

    def call(row: CallRow, device: Device) -> SimulatedRow:
        return SimulatedRow(float(row.M or 0) * 1e9 / device.clock_hz, {}, ("matmul",))

    def network(_: NetworkRow, device: Device) -> SimulatedRow:
        return SimulatedRow(device.clock_hz / 1e6, {})

    monkeypatch.setattr(simulate, "simulate_network_row", network)
    monkeypatch.setattr(simulate, "simulate_gemm_row", gemm)
    monkeypatch.setattr(simulate, "simulate_stream_row", stream)
    monkeypatch.setattr(simulate, "simulate_call_row", call)


@pytest.fixture
def kernels(tmp_path: Path) -> str:
    (tmp_path / "kernels.csv").write_text(KERNELS, encoding="utf-8")
    return str(tmp_path / "kernels.csv")


@pytest.fixture
def calls(tmp_path: Path) -> str:
    (tmp_path / "calls.csv").write_text(CALLS, encoding="utf-8")
    return str(tmp_path / "calls.csv")


def run(*words: str) -> int:
    return main(["validate", "--jobs", "1", *words])


def objects(capsys: Capture, *words: str, status: int = 0) -> list[dict[str, Any]]:
    assert run(*words, "--json") == status
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_an_object_per_row_in_the_order_of_the_files(
    kernels: str, calls: str, capsys: Capture
) -> None:
    found = objects(capsys, "--data", kernels, "--data", calls)
    assert [one["id"] for one in found] == ["a", "b", "c", "d", "e", "f", "g", "m"]
    assert [one["simulated_us"] for one in found[:-1]] == [100, 80, None, 60, None, None, None]
    a, b, c = found[:3]
    pipes = ("cube", "mte1", "mte2", "mte3", "fixpipe", "vec", "scalar", "aiv_mte2")
    assert a == {
        "id": "a", "family": "F", "chip": "910B1", "possible_chips": [],
        "measured_us": 100.0, "simulated_us": 100.0, "error": 0.0, "bound_us": None,
        **{f"{pipe}_us": None for pipe in pipes}, "cube_us": 50.0,
        "kernels": ["matmul"], "notes": ["ascend910b1"],
    }  # fmt: skip
    assert b["error"] == pytest.approx(80 / 90 - 1)
    assert (c["reason"], c["cube_us"]) == ("switches: the word 'nonsense' is not known", None)
    assert found[4]["reason"].endswith("M: expected an integer of at least 1, got '-1'")
    assert found[5]["reason"] == "ProgramError: too large"
    assert found[6]["reason"] == "op: attention is not simulated"
    assert found[7]["simulated_us"] == pytest.approx(40 / 1.8)
    assert "cube_us" not in found[7], "calls have no busy times"


def test_a_foreign_column_is_told_on_stderr(kernels: str, capsys: Capture) -> None:
    assert run("--data", kernels, "--json") == 0
    assert capsys.readouterr().err == f"npusim: note: {kernels}: ignored columns: split\n"


@rows("tests/data/rows/cli.yaml", "options_choose_points", "words, ids")
def test_options_choose_points(kernels: str, capsys: Capture, words: list[str], ids: str) -> None:
    compared = bool(set(ids) & set("abd"))
    found = objects(capsys, "--data", kernels, *words, status=0 if compared else 1)
    assert "".join(one["id"] for one in found) == ids


def test_quick_leaves_out_what_takes_long(
    kernels: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "_QUICK", 1)
    found = objects(capsys, "--data", kernels, "--quick")
    assert "".join(one["id"] for one in found) == "abcdeg", "f has thousands of blocks"


def test_a_score_card_of_nothing_says_so_and_has_a_status(
    tmp_path: Path, kernels: str, capsys: Capture
) -> None:
    assert run("--data", kernels, "--chip", "A3") == 1
    err = capsys.readouterr().err
    assert "npusim: nothing was compared: 3 rows not simulated, the first because " in err
    assert "M: expected an integer of at least 1, got '-1'; correct the rows" in err
    file = tmp_path / "untimed.csv"
    file.write_text("id,chip,op,M\na,910B1,gemm,100\nb,910B1,gemm,80\n", encoding="utf-8")
    assert run("--data", str(file)) == 1
    assert "nothing was compared: 2 rows without a measured time; " in capsys.readouterr().err
    file.write_text("id,chip,op,M,cube_us\na,910B1,gemm,100,40\n", encoding="utf-8")
    assert run("--data", str(file)) == 0, "a busy time is compared, too"


def test_a_device_of_ones_own_takes_the_rows_of_the_chip_that_it_builds_on(
    tmp_path: Path, kernels: str, capsys: Capture
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "name: mine\ndescription: faster\nbase: ascend910b1\nclock: 1.9GHz (assumed, GUESS)\n"
        "sources: {GUESS: a guess}\n",
        encoding="utf-8",
    )
    found = objects(capsys, "--data", kernels, "--device", str(mine))
    by_id = {one["id"]: one for one in found}
    assert [by_id[name]["notes"] for name in "ab"] == [["mine"], ["mine"]]
    assert by_id["a"]["chip"] == str(mine)
    assert by_id["d"]["simulated_us"] is None
    assert by_id["d"]["reason"] == (
        "measured on 950PR, which is not mine; leave out --device, or give a device file that "
        "builds on that chip"
    )
    found = objects(capsys, "--data", kernels, "--device", "ascend950pr", status=0)
    assert [one["simulated_us"] is None for one in found if one["id"] in "abd"] == [1, 1, 0]


def test_a_device_of_a_file_must_exist(calls: str, fails: Callable[..., str]) -> None:
    told = fails("validate", "--data", calls, "--device", "nowhere.yaml")
    assert told.startswith("there is no device file 'nowhere.yaml'; correct the path")
    assert "unknown device 'ascnd'" in fails("validate", "--data", calls, "--device", "ascnd")
    assert "name the file with --data" in fails("validate", "--device", "ascend910b2")


def test_figures_of_every_device_can_be_changed(calls: str, capsys: Capture) -> None:
    (found,) = objects(capsys, "--data", calls, "--set", "clock=1GHz")
    assert found["simulated_us"] == pytest.approx(40)


def test_without_a_file_the_points_that_ship_are_run(capsys: Capture) -> None:
    assert len(objects(capsys)) == 166 + 93


def test_steps_are_simulated_where_they_are_asked_for(capsys: Capture) -> None:
    found = json_of_steps(capsys, "--chip", "910B", "--family", "STEP-CARDS")
    assert [row["id"] for row in found] == ["N018", "N020", "N025"]
    assert {row["simulated_us"] for row in found} == {1850}
    assert {row["forward_us"] for row in found} == {None}


OPEN = ["N028", "N029", "N030", "N031", "N032"]


def json_of_steps(capsys: Capture, *words: str) -> list[dict[str, Any]]:
    assert run("--networks", "--json", *words) == 0
    points: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return points


def test_a_row_whose_chip_is_open_is_simulated_on_each(capsys: Capture) -> None:
    points = [point for point in json_of_steps(capsys) if point["possible_chips"]]
    assert [(point["id"], point["chip"]) for point in points] == [
        (name, chip) for name in OPEN for chip in ("910", "910B")
    ]
    assert {point["chip"]: point["simulated_us"] for point in points} == {"910": 1e3, "910B": 1850}
    assert {tuple(point["possible_chips"]) for point in points} == {("910", "910B")}
    points = json_of_steps(capsys, "--chip", "910B", "--family", "STEP-INPUT")
    assert [point["id"] for point in points] == ["N016", "N022", *OPEN]


def test_a_row_whose_chip_is_open_counts_in_no_mean(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "steps.csv"
    head = "id,chip,network,mode,batch,time_us\n"
    file.write_text(f"{head}a,910,resnet18,graph,1,1250\n", encoding="utf-8")
    assert run("--data", str(file)) == 0
    alone = capsys.readouterr().out
    assert re.search(r"^all +1 +1 +0 +0 +20.0 % +20.0 %", alone, re.M)
    file.write_text(
        f"{head}a,910,resnet18,graph,1,1250\nb,910 or 910B,resnet18,eager,1,2000\n",
        encoding="utf-8",
    )
    assert run("--data", str(file)) == 0
    out = capsys.readouterr().out
    assert re.search(r"^all +3 +1 +0 +0 +20.0 % +20.0 %", out, re.M), "means stay"
    assert "Chip left open by the source: a figure for each, none counts in a mean" in out
    assert re.search(
        r"(?m)^b +2,000.0 +1,000.0 on a 910 \(-50.0 %\); 1,850.0 on a 910B \(-7.5 %\)", out
    )


def test_a_device_takes_a_row_that_may_be_of_its_chip(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(
        "id,chip,network,mode,batch,time_us\nb,910 or 910B,resnet18,eager,1,2000\n",
        encoding="utf-8",
    )
    (found,) = objects(capsys, "--data", str(file), "--device", "ascend910")
    assert (found["simulated_us"], found["possible_chips"]) == (1000, ["910", "910B"])
    (found,) = objects(capsys, "--data", str(file), "--device", "ascend950pr", status=1)
    assert found["reason"].startswith(
        "measured on 910, which is not ascend950pr; measured on 910B, which is not ascend950pr; "
    )
