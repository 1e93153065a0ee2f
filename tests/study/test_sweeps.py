"""Sweeps: points are the calls they stand for, kept at once, found again, and lost by nobody."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.cli.main import main
from npusim.ops import CARDS
from npusim.ops.card import Stated
from npusim.results.shown import palette
from npusim.reuse.store import opened
from npusim.study.points import MeasuredPoint, stored_point
from npusim.study.result import SweepResult
from npusim.study.runner import here, look
from npusim.study.space import make_study
from npusim.study.subject import Split, split
from tests.tables import rows

PRODUCT: dict[str, Any] = {
    "operator": "matmul",
    "device": "tiny",
    "vary": {"m": "16:64:16", "memories.L1.size": "16KiB,64KiB", "groups": [1, 2]},
    "k": 64,
    "n": 48,
}


def swept(**options: Any) -> SweepResult:
    return npusim.sweep(**{"store": None, "jobs": 1, **PRODUCT, **options})


def test_a_point_of_an_operator_is_its_call() -> None:
    result = swept()
    frame = result.table
    assert result.frame is frame  # the name that it had
    assert list(frame.columns[:3]) == ["m", "memories.L1.size", "groups"]
    assert len(frame) == 16
    row = frame[(frame.m == "32") & (frame["memories.L1.size"] == "64KiB") & (frame.groups == "2")]
    device = npusim.load_device("tiny").replace("memories.L1.size", "64KiB").replace("groups", "2")
    a, b = npusim.spec((32, 64), "fp16"), npusim.spec((64, 48), "fp16")
    r = npusim.ops.matmul(a, b, device=device)
    assert (row.cycles.item(), row.time_us.item()) == (r.cycles, r.time_us)
    assert row.bottleneck.item() == r.bottleneck
    assert not frame.error.any()


def test_a_word_varies_all_figures_of_a_part_of_the_chip() -> None:
    vary = {"hbm": ["x1", "x2"], "l2": "x1,x1.5"}
    rows = swept(vary=vary, m=2048, k=2048, n=2048, device="ascend910b2").rows()
    assert [(row["hbm"], row["l2"]) for row in rows] == [
        *(("x1", "x1"), ("x1", "x1.5"), ("x2", "x1"), ("x2", "x1.5")),
    ]
    a = npusim.spec((2048, 2048), "fp16")
    device = npusim.load_device("ascend910b2")
    assert rows[0]["cycles"] == npusim.ops.matmul(a, a, device=device).cycles
    faster = device.replace("hbm", "x2").replace("l2", "x1.5")
    assert rows[3]["cycles"] == npusim.ops.matmul(a, a, device=faster).cycles < rows[0]["cycles"]
    with pytest.raises(ArgumentError, match="did you mean 'hbm'"):
        swept(vary={"hbn": ["x1", "x2"]})


def test_a_point_of_a_network_is_its_network(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "description: two\nlayers:\n"
        "  a: {cin: 16, cout: 16, spatial: [8, 8], kernel: 3, padding: 1, count: 2}\n"
        "  b: {cin: 16, cout: 32, spatial: [8, 8], kernel: 1}\n",
        encoding="utf-8",
    )
    vary = {"batch": "1,2", "main_memory.read": "400GB/s,800GB/s"}
    rows = npusim.sweep(
        network=str(path), device="ascend910b2", vary=vary, store=None, jobs=1
    ).rows()
    device = npusim.load_device("ascend910b2").replace("main_memory.read", "800GB/s")
    net = npusim.network(path, device=device, batch=2)
    last = rows[-1]
    assert (last["batch"], last["main_memory.read"]) == ("2", "800GB/s")
    assert (last["cycles"], last["time_us"]) == (net.cycles, net.time_us)
    parts = sum(last[f"{name}_us"] for name in ("input", "weight", "bias", "other"))
    assert parts == pytest.approx(net.time_us)


def test_points_are_found_again_by_what_they_depend_on(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    store = tmp_path / "store.sqlite"

    def progress(*told: int) -> None:
        seen.append(told)  # type: ignore[arg-type]

    first = swept(store=store, progress=progress)
    assert seen[-1] == (16, 16, 0)
    seen.clear()
    again = swept(store=store, progress=progress)
    assert seen == [(16, 16, 16)], "nothing is measured twice"
    assert again.rows() == first.rows()
    seen.clear()
    wider = {**PRODUCT["vary"], "m": "16:80:16"}
    swept(store=store, progress=progress, vary=wider)
    assert seen[0] == (16, 20, 16)
    with opened(store, "sweeps") as kept:
        assert len(kept) == 20 + 1, "and the device as it is"


def test_a_point_that_fails_is_told_and_stops_nothing(tmp_path: Path) -> None:
    vary = {"memories.L1.size": "1KiB,64KiB"}
    result = npusim.sweep(operator="matmul", device="tiny", m=64, k=64, n=64, vary=vary, store=None)
    bad, good = result.rows()
    assert bad["error"].startswith("CapacityError: ")
    assert "time_us" not in bad
    assert good["time_us"] > 0
    assert len(result.failed) == 1
    assert "1 failed" in repr(result)
    assert result.frame.time_us.isna().sum() == 1
    result.write(tmp_path / "points.csv")  # whole numbers stay so beside a row without any
    cells = [row.split(",")[2] for row in (tmp_path / "points.csv").read_text().splitlines()]
    assert cells == ["cycles", "", str(good["cycles"])]


def test_a_device_that_cannot_run_it_fails_before_the_first_point(tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(ArgumentError, match=r"ft78ne: .*it has no cube unit; use a device"):
        npusim.sweep(
            operator="matmul", m=64, k=64, n=64, vary={"device": "tiny,ft78ne"}, store=None,
            progress=lambda *told: seen.append(told[0]),
        )  # fmt: skip
    assert not seen


def test_what_changed_its_tiling_is_told() -> None:
    rows = swept(vary={"memories.L0C.size": "8KiB,2KiB"}, m=64).rows()
    assert [row["retiled"] for row in rows] == ["", "matmul"]


def test_processes_give_the_same_table() -> None:
    study = make_study(
        {"operator": "matmul", "device": "tiny", "k": 32, "n": 32}, {"m": "16:96:16"}
    )
    points = [(number, Split.of(setting, {})) for number, setting in enumerate(study.points())]
    chunks = [points[:2], points[2:3], points[3:]]
    spread = sorted(pair for done in here(iter(chunks), 2) for pair in done)
    assert spread == look(points)


def test_one_process_measures_points_beside_each_other() -> None:
    """Of a grid those that differ along the last axis, which changes fastest."""
    study = make_study(
        {"operator": "matmul", "device": "tiny"},
        {"m": "16,32", "l2.size": "64KiB,128KiB"},
    )
    assert [study.beside(setting) for setting in study.points()] == [("16",)] * 2 + [("32",)] * 2
    along = make_study({"operator": "matmul", "device": "tiny"}, {"m": "16,32"}, "zip")
    assert [along.beside(setting) for setting in along.points()] == [("16",), ("32",)]
    listed = replace(along, axes=(), listed=({"m": "16"}, {"n": "32"}))
    assert [listed.beside(setting) for setting in listed.points()] == [("16", ""), ("", "32")]


def test_two_processes_may_write_one_store(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    script = (
        "import sys; from npusim.reuse.store import opened\n"
        "with opened(sys.argv[1], 'sweeps') as kept:\n"
        "    for i in range(300): kept.put([(f'{sys.argv[2]}{i}', [{'i': i}])])\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", script, file, name]) for name in "ab"]
    assert [one.wait() for one in both] == [0, 0]
    with opened(file, "sweeps") as kept:
        assert len(kept) == 600
        assert stored_point(kept, "b299") == MeasuredPoint({"i": 299})


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    file.write_text("no database at all, but long enough to be looked at by sqlite" * 20)
    with pytest.raises(ArgumentError, match="name another file, or remove this one"):
        swept(store=file)
    assert file.read_text().startswith("no database")


def _table(result: SweepResult) -> str:
    return json.dumps(result.rows(), sort_keys=True)


@pytest.mark.slow
def test_a_killed_sweep_loses_nothing(tmp_path: Path) -> None:
    """Killed ten times at random moments, then run to its end: the table of one quiet run."""
    study = tmp_path / "study.yaml"
    study.write_text(
        "device: tiny\noperator: matmul\noptions: {k: 256, n: 256}\n"
        "vary: {m: 16:1024:16, groups: [1, 2], memories.L1.size: [16KiB, 32KiB, 64KiB]}\n",
        encoding="utf-8",
    )
    quiet = npusim.sweep(study, store=None, jobs=1)
    store, chance = tmp_path / "store.sqlite", random.Random(5)
    words = [
        sys.executable,
        "-m",
        "npusim",
        "sweep",
        str(study),
        "--store",
        str(store),
        "--jobs",
        "2",
    ]
    killed = 0
    for _ in range(10):
        run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.5, 6))
        killed += run.poll() is None
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert killed
    assert _table(npusim.sweep(study, store=store, jobs=2)) == _table(quiet)


@pytest.mark.slow  # test_processes_give_the_same_table compares tables of processes
def test_a_cluster_gives_the_same_table(tmp_path: Path) -> None:
    """Two workers in processes of their own, over TCP; one is killed in the middle."""
    distributed = pytest.importorskip("dask.distributed")
    options = {"vary": {"m": "16:128:16", "groups": [1, 2]}, "k": 64, "n": 64}
    quiet = swept(**options)
    seen: list[int] = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, protocol="tcp", dashboard_address=None
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]

        def progress(done: int, total: int, known: int) -> None:
            seen.append(done)
            if len(seen) == 3:
                os.kill(pids[0], signal.SIGKILL)

        spread = swept(**options, scheduler=cluster.scheduler_address, progress=progress)
    assert len(seen) > 3
    assert spread.rows() == quiet.rows()


def test_a_scheduler_that_does_not_answer_is_told() -> None:
    pytest.importorskip("dask.distributed")
    with pytest.raises(ArgumentError, match=r"the scheduler 'nonsense://x' does not answer"):
        swept(scheduler="nonsense://x")


def test_lines_that_coincide_are_all_seen() -> None:
    costs_nothing = {"m": "16:48:16", "cube.energy.fp16": "1pJ,2pJ"}
    ax = swept(vary=costs_nothing).plot(x="m")
    below, above = ax.lines
    assert np.array_equal(below.get_ydata(), above.get_ydata())
    assert below.get_linewidth() > above.get_linewidth()
    assert below.get_markersize() > above.get_markersize()
    assert palette.covered([1, 2, 1, 1], 0) == 2
    assert palette.covered([1, 2, 1, 1], 1) == 0


def test_a_table_that_nobody_can_write_is_refused_before_the_first_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    store = tmp_path / "s.sqlite"
    words = "sweep matmul --m 64 --k 64 --n 64 --device tiny --vary groups=1,2"
    files = ["--store", str(store), "--csv", str(tmp_path / "a.parquet")]
    assert main([*words.split(), *files]) != 0
    assert "Parquet needs the package pyarrow; `pip install pyarrow`" in capsys.readouterr().err
    assert not store.exists()


@rows("tests/data/mistakes/study.yaml", "wrong_commands_of_sweep", "words, message")
def test_wrong_commands(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *words.split(), "--store", str(tmp_path / "s.sqlite")]) == 2
    assert message in capsys.readouterr().err


def test_beside_a_layer_groups_are_those_of_the_device() -> None:
    options: dict[str, Any] = {"layer": "resnet18/layer4.0.conv2", "device": "ascend910b2"}
    options |= {"operator": "conv2d_backprop_filter", "store": None, "jobs": 1}
    found = npusim.sweep(vary={"groups": [6, 24]}, **options).table
    assert found.time_us[0] > found.time_us[1]
    assert found.area_mm2[0] < found.area_mm2[1]
    assert (found.energy_uj - found.dynamic_uj - found.static_uj).abs().max() < 1e-6


@pytest.mark.parametrize("operator", ["conv_grad_filter", "deconv_grad_filter"])
def test_a_switch_of_two_words_is_an_option_of_a_study(operator: str) -> None:
    """The name has an underscore, so that what reads the option finds it."""
    sizes = {"cin": "16", "cout": "32", "size": "16x16", "kernel": "3", "padding": "1"}
    workspaces = []
    for switch in ("no", "yes"):
        parts = split({"operator": operator, **sizes, "im2row_workspace": switch})
        stated = Stated(operator=operator, options=parts.options, arrays={}, files={})
        workspaces.append(CARDS[operator].problem(stated).workspace)
    assert workspaces == [0, 1]
    assert not [o.name for card in CARDS.values() for o in card.options if "-" in o.name]
