"""The passes of a network: forward, backward, and both for a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.networks.network import NetworkResult
from npusim.ops.conv_backward import arguments
from npusim.problem.convolution import Convolution
from npusim.workloads import LinearLayer, Workload, load_workload
from tests.texts import text_of

DEVICE = "ascend910b2"

NET = text_of("kinds_of_layers.yaml")


@pytest.fixture
def net(tmp_path: Path) -> Workload:
    path = tmp_path / "net.yaml"
    path.write_text(NET, encoding="utf-8")
    return load_workload(path)


def timed(net: Workload, passes: str, **options: Any) -> NetworkResult:
    return npusim.network(net, **{"device": DEVICE, "batch": 2, "passes": passes, **options})


def test_a_training_step_is_the_forward_and_the_backward_pass(net: Workload) -> None:
    there, back, step = (timed(net, name) for name in ("forward", "backward", "training"))
    assert step.cycles == there.cycles + back.cycles
    assert (there.layers["output_us"] > 0).all()
    assert (there.layers["input_us"] == 0).all()
    assert (back.layers["output_us"] == 0).all()
    assert list(step.layers["output_us"]) == list(there.layers["output_us"])
    assert list(step.layers["weight_us"]) == list(back.layers["weight_us"])
    assert step.layers["problem_us"].sum() > back.layers["problem_us"].sum()
    assert there.results == ("output",)
    assert step.to_json()["results"] == ["output", "input", "weight"]
    assert step.text().splitlines()[1] == "training    batch 2, fp16, gradients of input, weight"
    assert there.text().splitlines()[1] == "forward     batch 2, fp16"
    assert step.energy_uj is not None
    both = (there.energy_uj or 0) + (back.energy_uj or 0)
    assert step.energy_uj == pytest.approx(both)
    assert sum("the time rests on" in note for note in step.notes) <= 1


def test_a_layer_going_forward_is_its_convolution(net: Workload) -> None:
    for one in timed(net, "forward").timed:
        assert isinstance(one.layer, Convolution)
        c = replace(one.layer, n=2)
        x, w = npusim.spec(c.x_shape, "fp16"), npusim.spec(c.w_shape, "fp16")
        alone = npusim.ops.convolution(x, w, device=DEVICE, timeline=False, **arguments(c))
        assert one.result is not None
        assert one.result.cycles == alone.cycles


def test_a_step_is_timed_again_like_its_parts(net: Workload) -> None:
    one = timed(net, "training").timed[0].result
    assert one is not None
    assert one.replay is not None
    assert one.replay.time_us(one.device) == pytest.approx(one.time_us)


def test_a_linear_layer_goes_forward() -> None:
    fc = LinearLayer(name="fc", cin=512, cout=1000)
    result = timed(Workload(name="one", description="", layers=(fc,)), "forward", batch=4)
    (one,) = result.timed
    assert one.result is not None
    (run,) = one.result.runs
    assert (run.name, run.computes) == ("linear_forward", "output")
    assert run.macs == 4 * 512 * 1000


def test_pages_and_sweeps_know_the_passes(net: Workload, tmp_path: Path) -> None:
    step = timed(net, "training")
    step.report(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text(encoding="utf-8")
    assert "training on ascend910b2" in page
    assert "both passes" in page
    file = tmp_path / "net.yaml"
    vary = {"pass": "forward,training"}
    rows = npusim.sweep(
        network=str(file), device=DEVICE, batch=2, vary=vary, store=None, jobs=1
    ).rows()
    assert rows[1]["time_us"] == pytest.approx(step.time_us)
    assert rows[0]["output_us"] == pytest.approx(rows[1]["output_us"])
    assert rows[0]["weight_us"] == 0


def test_another_pass_is_refused(net: Workload) -> None:
    with pytest.raises(ArgumentError, match="passes is 'both'; it is one of forward, backward"):
        timed(net, "both")
