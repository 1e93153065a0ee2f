"""How kernels are launched is an option of a call: one by one, or as those of a replayed graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.dtypes import FP16
from npusim.base.errors import ArgumentError, ConfigError
from npusim.cli.main import main
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.ops import matmul
from npusim.results import Result
from npusim.reuse.answers import answers_in
from npusim.study.subject import measure, split
from tests.reuse.test_launches import forget

LINE = ("matmul", "--m", "64", "--k", "64", "--n", "64", "--device", "tiny", "--timing-only")
MODES = ("single", "graph")


def product(launch: str = "single", device: str | Device = "tiny", **options: Any) -> Result:
    a = npusim.spec((64, 64), "fp16")
    return matmul(a, a, device=device, launch=launch, **options)


def test_launches_by_hand() -> None:
    # tiny, one by one: 50 for the kernel and 30 to the first answer of GM, 20 for the tiling of a
    # cube kernel. In a graph: 5, 30, 2 for each core, and no tiling.
    single, graph = (product(mode, cores=0b11) for mode in MODES)
    assert [run.launch_cycles for run in single.runs] == [50 + 30 + 20]
    assert [run.launch_cycles for run in graph.runs] == [5 + 30 + 2 * 2]
    clear = MemSet(Tensor("y", (64,), FP16, "out"))
    vector = [npusim.simulate(clear, "tiny", launch=mode, cores=1).runs[0] for mode in MODES]
    assert [run.launch_cycles for run in vector] == [50 + 30, 5 + 30 + 2 * 1]


def test_cores_work_as_long_in_both() -> None:
    tilings = product().tilings
    single, graph = (product(mode, tiling=tilings["matmul"]) for mode in MODES)
    assert single.runs[0].cycles == graph.runs[0].cycles
    assert single.cycles - graph.cycles == 100 - (35 + 2 * graph.runs[0].cores)


def test_reports_say_which_mode_ran(capsys: pytest.CaptureFixture[str]) -> None:
    single, graph = (product(mode) for mode in MODES)
    assert "(replayed graph)" not in single.text()
    launched = f"{graph.runs[0].launch_cycles / 1000:.3f} us"
    assert f"of which launches {launched} (replayed graph)" in " ".join(graph.text().split())
    assert any("(launch='graph', --launch graph)" in note for note in graph.notes)
    assert [one.to_json()["launch"] for one in (single, graph)] == [*MODES]
    assert [one.explain(what_if=False).to_json()["launch"] for one in (single, graph)] == [*MODES]
    assert "(replayed graph)" in " ".join(graph.explain(what_if=False).text().split())
    assert npusim.compare(single, graph).to_json()["b"]["launch"] == "graph"
    assert main(["run", *LINE, "--launch", "graph", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_us"] == graph.time_us


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"launch": "grahp"},
            "launch is 'grahp'; it is 'single' or 'graph'; did you mean 'graph'?",
        ),
        ({"launch": 2}, "launch is 2; it is 'single' or 'graph'"),
        (
            {"launch": "graph", "device": npusim.load_device("tiny").replace("graph", "no")},
            "launch is 'graph'; tiny has no figures of replayed graphs: use 'single', or a device "
            "file with 'base: tiny' and a section 'graph'",
        ),
    ],
)
def test_other_modes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        product(**options)
    assert str(error.value) == message


def test_skew_is_a_part_of_the_cores_share_in_a_graph_too() -> None:
    with pytest.raises(ConfigError, match="skew is 3 cycles, part of core, which is 2"):
        npusim.load_device("tiny").replace("graph.skew", "3ns")


def test_a_graph_rests_on_its_own_figures() -> None:
    graph = product("graph")
    assert graph.replay is not None
    assert {name for name in graph.replay.figures if name.startswith(("launch", "graph"))} == {
        *("graph.kernel", "graph.first_access", "graph.core", "graph.tiling")
    }
    slower = graph.device.replace("graph.kernel", "105ns")
    assert slower.launch_mode == "graph"
    assert graph.time_us_on(slower) == graph.time_us + 0.1
    assert graph.time_us_on(npusim.load_device("tiny")) == graph.time_us
    ends = {one.figure: (one.low_us, one.high_us) for one in graph.time_range.effects}
    # 30 % of 30 cycles either way, whole ones.
    ends_us = pytest.approx((graph.time_us - 0.009, graph.time_us + 0.009))
    assert ends["graph.first_access"] == ends_us


def test_the_option_says_it_and_not_the_device() -> None:
    graph = product("graph")
    assert product(device=graph.device).time_us == product().time_us
    assert graph.device.digest() != npusim.load_device("tiny").digest()


def test_what_is_kept_is_of_its_mode(tmp_path: Path) -> None:
    times = []
    for mode in ("single", "graph", "single", "graph"):
        forget()
        with answers_in(tmp_path / "runs.db"):
            times.append(product(mode).cycles)
    assert times[:2] == times[2:]
    assert times[0] > times[1]
    settings = [
        {"operator": "matmul", "m": "64", "k": "64", "n": "64", "device": "tiny", "launch": mode}
        for mode in MODES
    ]
    assert len({split(one).content for one in settings}) == 2
    assert [measure(split(one))["cycles"] for one in settings] == times[:2]


def test_searches_count_launches_of_their_mode() -> None:
    single, graph = (
        npusim.tune(product, device="tiny", launch=mode, budget=3, store=None, cores=1)
        for mode in MODES
    )
    assert single.best == graph.best
    assert single.cycles - graph.cycles == 100 - (35 + 2)


def test_a_network_loses_launches() -> None:
    single, graph = (
        npusim.network("resnet18", device="ascend910", passes="forward", launch=mode)
        for mode in MODES
    )
    assert [one.to_json()["launch"] for one in (single, graph)] == [*MODES]
    assert 0.4 < graph.split["launches"] / single.split["launches"] < 0.6
    assert graph.time_us < single.time_us
    assert "cycles (replayed graph)" in graph.text()
    assert "(launch='graph', --launch graph)" in graph.notes[-2]
