"""Layouts of single calls: as frameworks have them on a chip, unless asked for otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.networks.run.step import usual_layouts
from npusim.silicon.rows import NetworkRow
from npusim.silicon.simulate import simulate_row
from npusim.workloads import Workload
from tests.networks.blocks import ONE_BLOCK, network
from tests.texts import text_of


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return network(ONE_BLOCK, tmp_path_factory.mktemp("block"))


@pytest.mark.parametrize(
    ("device", "layouts"),
    [
        ("ascend910", "as_framework"),
        ("ascend310", "as_framework"),
        ("ascend310p", "as_framework"),
        ("ascend910b2", "each_call"),
        ("ascend910b4-1", "each_call"),
        ("ascend910c", "each_call"),
        ("ascend950pr", "each_call"),
    ],
)
def test_single_calls_keep_private_formats_before_the_910b(device: str, layouts: str) -> None:
    assert usual_layouts("eager", load_device(device)) == layouts
    assert usual_layouts("graph", load_device(device)) == "as_framework"


def test_an_eager_step_runs_as_frameworks_do_on_its_chip(block: Workload) -> None:
    on_a_910 = npusim.step(block, device="ascend910", batch=4, mode="eager")
    stated = npusim.step(block, device="ascend910", batch=4, mode="eager", layouts="as_framework")
    assert on_a_910.setting == stated.setting
    assert on_a_910.setting.fusions == ()
    assert on_a_910.device.launch_mode == "single"
    assert on_a_910.time_us == stated.time_us
    assert on_a_910.to_json()["layouts"] == "as_framework"
    assert "eager mode, layouts as_framework, fusions: none" in on_a_910.text()
    assert any("(private_formats); with layouts each_call" in note for note in on_a_910.notes)

    on_a_910b = npusim.step(block, device="ascend910b2", batch=4, mode="eager")
    assert on_a_910b.setting.layouts == "each_call"
    assert len(on_a_910b.conversions) > len(on_a_910.conversions)
    assert not any("private_formats" in note for note in on_a_910b.notes)


def test_layouts_that_are_asked_for_win(block: Workload) -> None:
    usual = npusim.step(block, device="ascend910", batch=4, mode="eager")
    converting = npusim.step(block, device="ascend910", batch=4, mode="eager", layouts="each_call")
    assert converting.setting.layouts == "each_call"
    assert len(converting.conversions) > len(usual.conversions)
    assert converting.time_us > usual.time_us
    kept = npusim.step(block, device="ascend910b2", batch=4, mode="eager", layouts="as_framework")
    assert kept.setting.layouts == "as_framework"
    assert any("(no private_formats)" in note for note in kept.notes)


def test_a_device_file_says_whether_formats_are_kept(block: Workload) -> None:
    device = load_device("ascend910").replace("private_formats", "no")
    assert npusim.step(block, device=device, batch=4, mode="eager").setting.layouts == "each_call"


def test_a_measured_eager_step_has_the_layouts_of_its_chip(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(text_of("network.yaml"), encoding="utf-8")
    row = NetworkRow(id="a", chip="910", network=str(file), mode="eager", batch=4, cards=1)
    for chip, device, layouts in (
        ("910", "ascend910", "as_framework"),
        ("910B", "ascend910b1", "each_call"),
    ):
        simulated = simulate_row(replace(row, chip=chip), {}).simulated
        step = npusim.step(str(file), device=device, batch=4, mode="eager", layouts=layouts)
        assert simulated is not None
        assert simulated.time_us == step.time_us
