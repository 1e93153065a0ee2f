"""What a step on a 910 converts: maps by the library's kernel, and weights of products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npusim.base.dtypes import FP16
from npusim.base.records import replace
from npusim.call.options import Options
from npusim.networks.plan.launch_order import Formats
from npusim.networks.plan.tasks import conversion_task, task
from npusim.networks.rules.training import training
from npusim.networks.rules.values import Value
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.run.simulated import SimulatedTasks
from npusim.workloads.repetition import for_batch
from tests.networks.blocks import network
from tests.texts import text_of

LINEAR = text_of("linear_behind_convolution.yaml")


def test_maps_are_turned_as_by_the_library_on_a_910() -> None:
    """A published profile of AlexNet, 32 images, has 9 to 26 us for the gradients of its layers."""
    options = Options(device="ascend910", launch="graph", tiling="library")
    sizes = ((64, 57), (128, 28), (192, 13), (256, 13), (256, 13))
    values = [Value("dy", (32, channels, side, side), FP16) for channels, side in sizes]

    def us(value: Value, options: Options) -> float:
        return OperationLauncher(options).run(conversion_task(value, "ND", warm=True)).time_us

    times = [us(value, options) for value in values]
    assert min(times) == pytest.approx(9, rel=0.1)
    assert max(times) == times[0] == pytest.approx(26, rel=0.35)
    ours = [us(value, replace(options, tiling="auto")) for value in values]
    assert all(a < b for a, b in zip(ours, times, strict=True))
    dot = Value("dy", (32, 256, 1, 1), FP16)
    assert us(dot, options) < 4, "its bytes lie alike in both layouts"


@pytest.mark.parametrize("result", ["output", "input"])
def test_weights_of_products_lie_in_fractals_on_a_910(result: str, tmp_path: Path) -> None:
    """Which a profile has too, 141 us for 38 million; a 910B has a load that makes them of rows."""
    step = training(for_batch(network(LINEAR, tmp_path), 4))
    one = next(one for one in step.operations if one.name == f"fc.{result}")
    rng, arrays, options = np.random.default_rng(1), {}, Options(device="ascend910")
    launcher = OperationLauncher(options)
    (way, blocked), (other,) = (
        Formats(step, SimulatedTasks(OperationLauncher(Options(device=device)))).ways(one)
        for device in ("ascend910", "ascend910b2")
    )
    assert way == other
    assert blocked == way | {"fc.w.fp16": "FRACTAL_Z"}
    plain, made = (task(one, step.values, formats) for formats in (way, blocked))
    for value in plain.values:
        if value.name != plain.operation.outputs[0]:
            arrays[value.name] = rng.uniform(-1, 1, value.shape).astype(value.dtype.numpy)
    weights = step.values["fc.w.fp16"]
    turned = launcher.run(conversion_task(weights, "FRACTAL_Z"), {"v0": arrays["v1"]})
    first = launcher.run(plain, arrays)
    arrays["v1"] = np.asarray(next(iter(turned.outputs or ())))
    second = launcher.run(made, arrays)
    assert "trans_data" in [run.name for run in second.runs]
    for a, b in zip(first.outputs or (), second.outputs or (), strict=True):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=2e-3)
