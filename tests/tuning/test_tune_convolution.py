"""Tuning gradients of convolutions: bounds hold, and the optimum is found."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import npusim
from npusim.call.call import planning
from npusim.call.tune import tune
from npusim.device.catalog import load_device
from npusim.errors import NpusimError
from npusim.program.kernel import Kernel
from npusim.tuning.neighbours import neighbours
from npusim.tuning.problem import Problem

pytestmark = pytest.mark.compiled

#: (grad_output, input, weight) shapes, then stride, padding and groups.
LAYERS: dict[str, tuple[Any, ...]] = {
    "3x3": ((2, 32, 14, 14), (2, 32, 14, 14), (32, 32, 3, 3), 1, 1, 1),
    "strided": ((1, 48, 7, 7), (1, 32, 14, 14), (48, 32, 3, 3), 2, 1, 1),
    "1x1": ((4, 64, 7, 7), (4, 48, 7, 7), (64, 48, 1, 1), 1, 0, 1),
    "shortcut": ((2, 64, 7, 7), (2, 32, 14, 14), (64, 32, 1, 1), 2, 0, 1),
    "groups": ((1, 64, 9, 9), (1, 64, 9, 9), (64, 4, 3, 3), 1, 1, 16),
    "3d": ((1, 32, 4, 6, 6), (1, 16, 4, 6, 6), (32, 16, 3, 3, 3), 1, 1, 1),
}

GRADIENTS = ("conv_backprop_input", "conv_backprop_filter")


def operands(layer: str, dtype: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    dy, x, w, stride, padding, groups = LAYERS[layer]
    specs = [npusim.spec(shape, dtype) for shape in (dy, x, w)]
    dims = len(x) - 2
    options = {
        "stride": (stride,) * dims,
        "padding": (padding,) * dims,
        "groups": groups,
        "output_mask": (True, True, False),
    }
    return tuple(specs), options


def kernel_of(layer: str, name: str, device: str, dtype: str = "fp16") -> Kernel:
    given, options = operands(layer, dtype)
    with planning() as kernels:
        npusim.ops.convolution_backward(*given, device=device, rules="hardware", **options)
    return next(one for one in kernels if one.name == name)


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("device", "dtype"), [("ascend910b2", "fp16"), ("ascend910", "fp16"), ("ascend910b2", "fp32")]
)
def test_bounds_are_below_the_simulation(layer: str, name: str, device: str, dtype: str) -> None:
    """Of random candidates and tilings beside them: closed form, program, simulation."""
    machine = load_device(device)
    kernel = kernel_of(layer, name, device, dtype)
    problem = Problem(kernel, machine, tuple(range(machine.groups)))
    rng = Random(f"{layer} {name} {device} {dtype}")
    some = list(kernel.candidates(machine, problem.cores))
    some = rng.sample(some, min(6, len(some)))
    beside = [rng.choice(list(neighbours(one))) for one in some]
    checked = 0
    for candidate in (kernel, *some, *beside):
        bound = problem.bound(candidate)
        if bound.reason:
            continue
        time = problem.time(candidate).cycles
        assert problem.least(candidate) <= time, candidate
        assert bound.cycles <= time, candidate
        checked += 1
    assert checked > len(some) / 2


@pytest.mark.parametrize(
    ("layer", "name", "device"),
    [
        ("1x1", "conv_backprop_filter", "ascend910b2"),
        ("3x3", "conv_backprop_filter", "ascend910"),
        ("1x1", "conv_backprop_input", "ascend910"),
        ("3d", "conv_backprop_input", "ascend910b2"),
    ],
)
def test_the_exhaustive_optimum_with_few_simulations(layer: str, name: str, device: str) -> None:
    """Among 60 candidates drawn at random, each of which is simulated for comparison."""
    kernel, machine = kernel_of(layer, name, device), load_device(device)
    every = list(kernel.candidates(machine, machine.count("cube")))
    some = Random(1).sample(every, min(60, len(every)))
    tuned = tune(kernel, device=device, store=None, among=some)
    assert tuned.proved
    times, alike = {}, set()
    for candidate in (kernel, *some):
        bound = tuned.problem.bound(candidate)
        if not bound.reason:
            times[candidate] = tuned.problem.time(candidate).cycles
            alike.add(bound.alike)
    assert tuned.cycles == min(times.values())
    assert tuned.counts["simulated"] <= 0.15 * len(alike)


@pytest.mark.parametrize("name", GRADIENTS)
def test_tuned_is_never_slower_than_the_vendors_choice(name: str) -> None:
    given, options = operands("3x3", "fp16")
    options |= {"device": "ascend910b2", "kernel": name, "store": None}
    tuned = tune(npusim.ops.convolution_backward, *given, **options, budget=2)
    assert tuned.counts["simulated"] >= 2, "the vendor's choice too"
    with planning() as kernels:
        del options["kernel"], options["store"]
        tiling = {name: "production"}
        try:
            npusim.ops.convolution_backward(*given, **options, tiling=tiling)
        except NpusimError:
            return  # outside the vendor's rule
    vendors = next(one for one in kernels if one.name == name)
    assert tuned.cycles <= tuned.problem.time(vendors).cycles


def test_a_call_with_both_gradients_tuned(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    given, options = operands("1x1", "fp16")
    auto = npusim.ops.convolution_backward(*given, **options, device="ascend910b2")
    tuned = npusim.ops.convolution_backward(*given, **options, device="ascend910b2", tiling="tuned")
    assert tuned.cycles <= auto.cycles
    assert [note for note in tuned.notes if "proved best of" in note][1:]
    assert set(tuned.tilings) == set(GRADIENTS)
