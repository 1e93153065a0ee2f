"""Layers are computed by the same kernels in operators, networks and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.workloads import ConvLayer, Workload
from tests.networks.blocks import images, network
from tests.networks.reference import Reference
from tests.texts import text_of

TEXTS = {name: text_of(f"{name}.yaml") for name in ("odd_ways", "patches")}


def kernels_of_network(workload: Workload, device: str, tiling: str) -> dict[str, object]:
    """The kernels that multiply of each result of each convolution, with their tilings."""
    network_result = npusim.network(
        workload, device=device, batch=2, tiling=tiling, passes="training"
    )
    return {
        f"{timed.layer.name}.{result}": [
            (run.name, run.tiling) for run in timed.runs if run.computes == result
        ]
        for timed in network_result.timed
        for result in ("output", "input", "weight")
        if isinstance(timed.layer, ConvLayer)
    }


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
@pytest.mark.parametrize("tiling", ["library", "auto"])
def test_steps_launch_what_networks_do(text: str, device: str, tiling: str, tmp_path: Path) -> None:
    """Folds, thinned maps and products of matrices; first layers have the same tilings."""
    workload = network(TEXTS[text], tmp_path)
    expected = kernels_of_network(workload, device, tiling)
    step = npusim.step(workload, device=device, batch=2, tiling=tiling, mode="eager")
    compared = 0
    for launched in step.launched:
        result = launched.kind.removeprefix("convolution ")
        name = f"{launched.layer}.{result}"
        if launched.kind == result or not expected.get(name):
            continue
        found = [(run.name, run.tiling) for run in launched.timed.runs if run.macs]
        names = [kernel for kernel, _ in found]
        assert names == [kernel for kernel, _ in expected[name]], name  # type: ignore[attr-defined]
        if launched.layer == "few":
            assert found == expected[name], name
        compared += 1
    assert compared >= 2


LARGE = """
description: first layers of a residual network and of a transformer
layers:
  few: {cin: 3, cout: 64, spatial: [112, 112], kernel: 7, stride: 2, padding: 3}
  patch: {cin: 3, cout: 384, spatial: [224, 224], kernel: 16, stride: 16}
  fc: {cin: LAST, cout: 10, rows: 1, bias: yes}
graph:
  - input > FIRST > relu > avg_pool > fc
"""


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(("first", "last"), [("few", 64), ("patch", 384)])
def test_first_layers_are_folded_under_the_library_s_tilings(
    device: str, mode: str, first: str, last: int, tmp_path: Path
) -> None:
    """Filter gradients have pixels as channels; going forward a patch embedding is a product."""
    lines = LARGE.replace("FIRST", first).replace("LAST", str(last)).splitlines()
    other = {"few": "patch", "patch": "few"}[first]
    text = "\n".join(line for line in lines if not line.startswith(f"  {other}:"))
    step = npusim.step(network(text, tmp_path), device=device, batch=8, mode=mode)
    named = {launched.kind: launched for launched in step.launched if launched.layer == first}
    assert "fold_map" in named["convolution weight"].kernel_names
    assert named["convolution weight"].us < 100
    if first == "patch":
        assert "linear_forward" in named["convolution output"].kernel_names


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("device", "mode", "tiling"),
    [
        ("ascend910", "eager", "auto"),
        ("ascend910b2", "graph", "library"),
        ("ascend910b2", "eager", "auto"),
    ],
)
def test_numbers_do_not_depend_on_the_way(
    text: str, device: str, mode: str, tiling: str, tmp_path: Path
) -> None:
    """Weights after two steps, against NumPy in float64."""
    workload = network(TEXTS[text], tmp_path)
    trainer = npusim.Trainer(
        workload, device=device, batch=4, mode=mode, tiling=tiling, settings={"rate": 0.05}
    )
    begun = {name: trainer[name].copy() for name in trainer.parameters}
    exact = Reference(workload, begun, half=False)
    xs, labels = images(8)
    for start in (0, 4):
        batch = xs[start : start + 4], labels[start : start + 4]
        trainer.step(*batch)
        exact.step(*batch, 0.05)
    for name in trainer.parameters:
        off = np.linalg.norm(trainer[name] - exact.weights[name])
        assert off <= 5e-3 * np.linalg.norm(exact.weights[name]), name


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_first_layer_takes_as_long_in_a_step_as_its_operators_do(
    device: str, mode: str, tmp_path: Path
) -> None:
    """Kernels, tilings and times under the library's tilings; operands in the L2 save little."""
    workload = network(TEXTS["odd_ways"], tmp_path)
    step = npusim.step(workload, device=device, batch=8, mode=mode, launch="single", fusions="none")
    x, w = npusim.spec((8, 3, 16, 16), "fp16"), npusim.spec((16, 3, 3, 3), "fp16")
    dy = npusim.spec((8, 16, 8, 8), "fp16")
    how: Any = {"stride": 2, "padding": 1, "device": device, "tiling": "library"}
    for start in ("cold", "warm"):
        forward = npusim.ops.convolution(x, w, **how, start=start)
        weight = npusim.ops.convolution_backward(
            dy, x, w, **how, output_mask=(False, True, False), start=start
        )
        for kind, result in (("output", forward), ("weight", weight)):
            (launched,) = [
                operation
                for operation in step.launched
                if operation.layer == "few" and operation.kind == f"convolution {kind}"
            ]
            (expected,) = [run for run in result.runs if run.macs]
            (kernel,) = [run for run in launched.timed.runs if run.macs]
            assert (kernel.name, kernel.tiling) == (expected.name, expected.tiling)
            assert kernel.cycles == pytest.approx(expected.cycles, rel=0.1)
