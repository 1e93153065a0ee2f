"""Kernels between convolutions as frameworks launch them: biases with ReLU, gradients of parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, INT8
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.kernels.parts.ub_room import library_step
from npusim.kernels.vector.elementwise import TILE, Elementwise
from npusim.machine.device.catalog import load_device
from npusim.networks.plan.fusions import chosen, fused
from npusim.networks.plan.launch_order import Formats
from npusim.networks.plan.tasks import BLOCKED, PLAIN
from npusim.networks.rules.table import chain_of
from npusim.networks.rules.training import training
from npusim.networks.rules.values import SLICE, Operation
from npusim.networks.run.chains import elementwise
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.run.simulated import SimulatedTasks
from npusim.workloads import Workload
from npusim.workloads.repetition import for_batch
from tests.networks.blocks import network

FIRST = load_device("ascend910")

#: A bias and a ReLU behind a convolution without a normalisation.
BIASED = """
description: a bias

layers:
  one: {cin: 16, cout: 32, spatial: [8, 8], kernel: 3, padding: 1, bias: yes}
  two: {cin: 32, cout: 16, spatial: [8, 8], kernel: 3, padding: 1, bias: yes}
  fc: {cin: 16, cout: 10, rows: 1, bias: yes}

graph:
  - x = input > one > relu > two > relu > avg_pool
  - x > fc
"""

#: Two parts of 32 channels and of so many, side by side.
JOINED = """
description: a concatenation

layers:
  one: {{cin: 16, cout: 32, spatial: [8, 8], kernel: 3, padding: 1}}
  two: {{cin: 32, cout: {channels}, spatial: [8, 8], kernel: 3, padding: 1}}
  three: {{cin: {both}, cout: 16, spatial: [8, 8], kernel: 1}}
  fc: {{cin: 16, cout: 10, rows: 1, bias: yes}}

graph:
  - x = input > one > relu
  - y = x > two > relu
  - x = x, y > concat
  - x = x > three > relu > avg_pool
  - x > fc
"""


def no_products(*_: object) -> bool:
    """No convolution is computed as a product of plain matrices."""
    return False


# -- a bias and its ReLU -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fusions", "device", "kinds"),
    [
        ("usual", "ascend910", {"convolution output": 2, "bias + activation": 2}),
        ("usual", "ascend910b2", {"convolution output": 2, "bias + activation": 2}),
        ("graph_engine", "ascend910", {"convolution output + bias + activation": 2}),
        ("all", "ascend910", {"convolution output + bias + activation": 2}),
        ("none", "ascend910", {"convolution output": 2, "bias": 2, "activation": 2}),
    ],
)
def test_a_bias_is_joined_to_what_its_maker_joins(
    fusions: str, device: str, kinds: dict[str, int], tmp_path: Path
) -> None:
    step = training(for_batch(network(BIASED, tmp_path), 4), passes="forward")
    fused(step, chosen(fusions), load_device(device), no_products)
    found = Counter(one.kind for one in step.operations)
    words = ("convolution output", "bias", "activation")
    assert {kind: count for kind, count in found.items() if kind.startswith(words)} == kinds


def test_an_own_kernel_for_the_bias_adds_up_alike(tmp_path: Path) -> None:
    """Sums of the convolution are rounded to fp16 before the bias there, and not in an epilogue."""
    workload = network(BIASED, tmp_path)
    images = np.random.default_rng(4).standard_normal((2, 16, 8, 8)).astype(np.float32)
    losses = [
        npusim.Trainer(workload, device="ascend910", batch=2, seed=3, fusions=fusions).step(
            images, [1, 2]
        )
        for fusions in ("usual", "graph_engine")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


# -- gradients of a concatenation ----------------------------------------------------------------


def joined(folder: Path, channels: int) -> Workload:
    text = JOINED.format(channels=channels, both=32 + channels)
    return for_batch(network(text, folder), 4)


def slices(workload: Workload) -> list[Operation]:
    return [one for one in training(workload).operations if one.core == SLICE]


def test_unequal_parts_have_a_slice_each(tmp_path: Path) -> None:
    found = slices(joined(tmp_path, 16))
    assert [one.name for one in found] == ["concat.gradient.1", "concat.gradient.2"]
    assert all(one.kind == "copies" and one.phase == "backward" for one in found)


def test_equal_parts_are_one_split(tmp_path: Path) -> None:
    step = training(joined(tmp_path, 32))
    assert not [one for one in step.operations if one.core == SLICE]
    (split,) = (one for one in step.operations if one.core == "split")
    assert len(split.writes) == 2


def test_a_framework_slices_plain_maps(tmp_path: Path) -> None:
    step = training(joined(tmp_path, 16))
    times = SimulatedTasks(OperationLauncher(Options(device=FIRST)))
    one = next(one for one in step.operations if one.core == SLICE)
    whole = one.inputs[0]
    framework = Formats(step, times, as_framework=True).ways(one)
    assert [way[whole] for way in framework] == [PLAIN]
    assert [way[whole] for way in Formats(step, times).ways(one)] == [PLAIN, BLOCKED]


def test_slices_of_plain_maps_cost_conversions(tmp_path: Path) -> None:
    """The gradient of the whole is converted once, whatever number of parts is cut out of it."""
    workload = joined(tmp_path, 16)
    steps = {
        layouts: npusim.step(workload, device="ascend910", batch=4, layouts=layouts)
        for layouts in ("as_framework", "best")
    }
    whole = next(one for one in steps["best"].step.operations if one.core == SLICE).inputs[0]
    names = [one.name for one in steps["as_framework"].launched if one.kind == "layouts"]
    assert names.count(f"{whole} to {PLAIN}") == 1
    assert not [one for one in steps["best"].launched if one.name == f"{whole} to {PLAIN}"]
    plan = steps["best"].plan
    assert plan is not None
    assert plan.framework_us is not None
    assert plan.framework_us > plan.us


# -- a gradient of ReLU by its bits --------------------------------------------------------------


def relu_gradient(call: Call, positions: int) -> Elementwise:
    """The kernel of a ReLU gradient of maps of 64 channels, batch 32, in blocks."""
    count = 32 * 64 * positions
    names = {name: name for name in ("dy", "bits", "dx")}
    chain = chain_of("relu_gradient", names, "relu", maps=FP16)
    tensors = {
        "dy": call.input("dy", Spec((count,), FP16), FP16),
        "bits": call.input("bits", Spec((count // 8,), INT8), INT8),
        "dx": call.output("dx", (count,), FP16),
    }
    return elementwise(
        Operation("a", "activation gradient", "backward", chain=chain), tensors, call
    )


def call_on(device: str, tiling: str = "library") -> Call:
    options = Options(device=load_device(device), tiling=tiling, launch="graph")
    return Call("test", options, timing_only=True)


def test_a_910_takes_what_a_profile_has_for_a_relu_gradient() -> None:
    """ReluGradV2 of 57x57x64 in a published profile of AlexNet, batch 32: 26.8 us for 27.4 MB."""
    call = call_on("ascend910")
    call.launch_spread(relu_gradient(call, 57 * 57))
    (run,) = call.runs
    assert call.device.time_us(run.cycles + run.launch_cycles) == pytest.approx(26.8, rel=0.1)


def test_the_size_of_its_steps_is_that_of_the_library_where_that_is_asked_for() -> None:
    assert [library_step(256 * 1024, width) for width in (3, 4, 8)] == [21760, 16384, 8192]
    assert relu_gradient(call_on("ascend910"), 49).tile == 8192
    assert relu_gradient(call_on("ascend910", "auto"), 49).tile == TILE
    assert relu_gradient(call_on("ascend910b2"), 49).tile == TILE
