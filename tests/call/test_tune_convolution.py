"""Tuning gradients of convolutions: bounds hold, and the optimum is found."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import NpusimError
from npusim.base.records import replace
from npusim.call.call import planning
from npusim.call.tilings.problem import TuningProblem, neighbours
from npusim.call.tune import tune
from npusim.kernels.estimate.pipeline import chosen, records, times
from npusim.machine.device.catalog import load_device
from npusim.machine.program.kernel import Kernel
from tests.sampled import slow_if

pytestmark = pytest.mark.compiled

#: (grad_output, input, weight) shapes, then stride, padding and groups.
LAYERS: dict[str, tuple[Any, ...]] = {
    "3x3": ((2, 32, 14, 14), (2, 32, 14, 14), (32, 32, 3, 3), 1, 1, 1),
    "strided": ((1, 48, 7, 7), (1, 32, 14, 14), (48, 32, 3, 3), 2, 1, 1),
    "1x1": ((4, 64, 7, 7), (4, 48, 7, 7), (64, 48, 1, 1), 1, 0, 1),
    "shortcut": ((2, 64, 7, 7), (2, 32, 14, 14), (64, 32, 1, 1), 2, 0, 1),
    "groups": ((1, 64, 9, 9), (1, 64, 9, 9), (64, 4, 3, 3), 1, 1, 16),
    "3d": ((1, 32, 4, 6, 6), (1, 16, 4, 6, 6), (32, 16, 3, 3, 3), 1, 1, 1),
    "nines": ((8, 128, 9, 9), (8, 128, 9, 9), (128, 128, 1, 1), 1, 0, 1),
    "images": ((8, 64, 7, 7), (8, 80, 7, 7), (64, 80, 3, 3), 1, 1, 1),
}

#: What bounds of single cores are tried on besides.
MORE: dict[str, tuple[Any, ...]] = {
    "odd": ((3, 40, 11, 13), (3, 24, 11, 13), (40, 24, 3, 3), 1, 1, 1),
    "first": ((2, 64, 16, 16), (2, 16, 32, 32), (64, 16, 7, 7), 2, 3, 1),
    "large": ((2, 32, 8, 8), (2, 20, 16, 16), (32, 20, 5, 5), 2, 2, 1),
    "apart": ((2, 32, 5, 5), (2, 32, 14, 14), (32, 32, 2, 2), 3, 0, 1),
    "halves": ((2, 96, 7, 7), (2, 64, 14, 14), (96, 32, 3, 3), 2, 1, 2),
    "slabs": ((2, 64, 28, 28), (2, 64, 28, 28), (64, 64, 3, 3), 1, 1, 1),
    "rests": ((7, 48, 7, 7), (7, 96, 7, 7), (48, 96, 3, 3), 1, 1, 1),
}

GRADIENTS = ("conv_backprop_input", "conv_backprop_filter")


def operands(layer: str, dtype: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    dy, x, w, stride, padding, groups = (LAYERS | MORE)[layer]
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


def any_kernel(kernel: Kernel) -> Any:
    """A kernel whose tiling a type checker need not know."""
    return kernel


MACHINES = [
    *(("ascend910b2", "fp16"), ("ascend910", "fp16"), ("ascend910b2", "fp32")),
    *(("ascend950pr", "fp16"), ("ascend310p", "fp16")),
]


@pytest.mark.parametrize(
    ("layer", "device", "dtype", "name"),
    [
        slow_if((place % len(MACHINES), place % 2) != (number, side), layer, *machine, name)
        for place, layer in enumerate(LAYERS | MORE)
        for number, machine in enumerate(MACHINES)
        for side, name in enumerate(GRADIENTS)
    ],
)
def test_bounds_are_below_the_simulation(layer: str, name: str, device: str, dtype: str) -> None:
    """Of random candidates, and of those whose first bound is nearest to their estimate.

    Bounds from their work, from programs, and the simulation; `make test` has a machine and
    a gradient for each layer, `make slow` the others.
    """
    machine = load_device(device)
    kernel = any_kernel(kernel_of(layer, name, device, dtype))
    problem = TuningProblem(kernel, machine, tuple(range(machine.groups)))
    every, near = list(problem.candidates()), dict[Any, float]()
    for space in kernel.spaces(machine, problem.cores, (False,) * 3):
        t = space.spread(space.rows)
        estimate = space.estimate(t)
        least_of, _ = space.bound(t)
        share = least_of / (times(estimate, len(t["cores"])) - estimate.beside)
        best = np.argsort(-share)[:6]
        near |= zip(map(space.tiling, records(chosen(t, best))), share[best].tolist(), strict=True)
    nearest = sorted(near, key=lambda tiling: -near[tiling])[:4]
    some = [one for one in every if any_kernel(one[0]).tiling in nearest]
    some += Random(f"{layer} {name} {device} {dtype}").sample(every, min(9, len(every)))
    checked = 0
    for candidate, least in some:
        bound = problem.bound(candidate)
        if bound.reason:
            continue
        time = problem.time(candidate).cycles
        assert least <= time, candidate
        assert bound.cycles <= time, candidate
        checked += 1
    assert checked > len(some) / 2


@pytest.mark.parametrize("name", GRADIENTS)
def test_leading_candidates_are_tried_with_a_third_slot_of_l0(name: str) -> None:
    """Searches try it with all, and around the best found with steps as much shorter."""
    kernel, machine = kernel_of("3x3", name, "ascend910b2"), load_device("ascend910b2")
    cores = machine.count("cube")
    every = [any_kernel(one).tiling for one in kernel.candidates(machine, cores)]
    slots = [tiling.l0_slots for tiling in every]
    assert {*slots} == {2, 3}
    assert slots.count(3) < slots.count(2)
    leading = [any_kernel(one) for _, one in kernel.ranked(machine, cores, 32)]
    deep = {replace(one.tiling, cores=0) for one in leading if one.tiling.l0_slots == 3}
    assert 0 < len(deep) < len(leading)
    assert deep <= {replace(tiling, cores=0) for tiling in every}
    two = next(one for one in leading if one.tiling.l0_slots == 2)
    one = replace(two, tiling=replace(two.tiling, base_k=80))
    around = {(n.tiling.l0_slots, n.tiling.base_k) for n in map(any_kernel, neighbours(one))}
    assert {(3, 80), (3, 48), (2, 96)} <= around


@pytest.mark.parametrize(
    ("layer", "name", "device"),
    [
        ("1x1", "conv_backprop_filter", "ascend910b2"),
        slow_if(True, "3x3", "conv_backprop_filter", "ascend910"),
        slow_if(True, "1x1", "conv_backprop_input", "ascend910"),
        slow_if(True, "3d", "conv_backprop_input", "ascend910b2"),
    ],
)
def test_the_exhaustive_optimum(layer: str, name: str, device: str) -> None:
    """Among 60 candidates drawn at random, each of which is simulated for comparison."""
    kernel, machine = kernel_of(layer, name, device), load_device(device)
    every = list(kernel.candidates(machine, machine.count("cube")))
    some = Random(1).sample(every, min(60, len(every)))
    tuned = tune(kernel, device=device, store=None, among=some)
    assert tuned.proved
    times, alike = {}, set()
    for candidate in (kernel, *some):
        finding = tuned.problem.time(candidate)
        if not finding.reason:
            times[candidate] = finding.cycles
            alike.add(finding.alike)
    assert tuned.cycles == min(times.values())
    assert tuned.counts["candidates"] - tuned.counts["illegal"] == len(alike)


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


@pytest.mark.parametrize(
    ("sizes", "device"),
    [
        ((33, 64, 33), "ascend910b2"),
        ((65, 200, 40), "ascend910b2"),
        ((50, 1000, 34), "ascend910"),
    ],
)
def test_tiles_that_differ_are_no_more_than_their_mean(
    sizes: tuple[int, int, int], device: str
) -> None:
    """Means of tiles were rounded up to blocks, of which the last tile may have one alone."""
    m, k, n = sizes
    machine = load_device(device)
    with planning() as kernels:
        a, b = npusim.spec((m, k), "fp16"), npusim.spec((k, n), "fp16")
        npusim.ops.matmul(a, b, out_dtype="fp32", device=device)
    (product,) = [kernel for kernel in kernels if kernel.name == "matmul"]
    (space,) = any_kernel(product).spaces(machine, machine.count("cube"), (False, False))
    t = space.spread(space.rows)
    sizes_of = space.mean(t)
    tiles_m, tiles_n = -(-m // t["m"]), -(-n // t["n"])
    blocks_m, blocks_n = -(-m // 16), -(-n // 16)
    assert (sizes_of.high * tiles_m <= 16 * blocks_m + 1e-6).all()
    assert (sizes_of.wide * tiles_n <= 16 * blocks_n + 1e-6).all()
    parts = t["items"] // (tiles_m * tiles_n)
    assert (sizes_of.depth * parts <= k + 1e-6).all()
    problem = TuningProblem(product, machine, tuple(range(machine.groups)))
    uneven = [
        (candidate, least)
        for candidate, least in problem.candidates()
        if m % any_kernel(candidate).ran.base_m or n % any_kernel(candidate).ran.base_n
    ]
    for candidate, least in Random(1).sample(uneven, 20):
        found = problem.time(candidate)
        assert found.reason or least <= found.cycles, candidate


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize(
    ("layer", "device"),
    [
        # batch, channels in and out, height, width, filter, strides, padding
        ((4, 72, 16, 18, 32, (5, 1), (3, 1), (2, 0)), "ascend910b2"),  # zeros between rows read
        ((1, 16, 100, 28, 15, (5, 1), (2, 1), (2, 0)), "ascend950pr"),  # no core has two tiles
        ((7, 100, 32, 25, 33, (1, 3), (3, 1), (0, 1)), "ascend910"),  # out over UB, odd rows
        ((5, 64, 48, 5, 8, (1, 1), (1, 1), (0, 0)), "ascend910b2"),  # images, the last one alone
        ((6, 72, 200, 27, 43, (5, 3), (2, 1), (2, 1)), "ascend910b2"),  # tails everywhere
        ((4, 16, 72, 29, 13, (3, 1), (1, 2), (0, 0)), "ascend910"),  # zeros that leave with it
        ((5, 200, 80, 9, 7, (1, 1), (1, 1), (0, 0)), "ascend910b2"),  # the last image is less
        ((8, 96, 200, 16, 16, (1, 1), (2, 2), (0, 0)), "ascend950pr"),  # cores start in turn
        ((3, 64, 144, 28, 27, (1, 1), (1, 1), (0, 0)), "ascend310p"),  # slabs that leave a rest
        ((2, 48, 32, 13, 14, (1, 1), (1, 1), (0, 0)), "tiny"),  # one memory for all
    ],
)
def test_bounds_hold_where_tiles_differ(layer: tuple[Any, ...], device: str, name: str) -> None:
    """Tails, borders and zeros: what a mean, a largest and a smallest tile have is not the same."""
    n, cin, cout, height, width, kernel, stride, padding = layer
    out = [
        (size + 2 * pad - taps) // step + 1
        for size, taps, step, pad in zip((height, width), kernel, stride, padding, strict=True)
    ]
    shapes = (n, cout, *out), (n, cin, height, width), (cout, cin, *kernel)
    specs: tuple[Any, ...] = tuple(npusim.spec(shape, "fp16") for shape in shapes)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "rules": "hardware"}
    options |= {"output_mask": (True, True, False), "device": device}
    with planning() as kernels:
        npusim.ops.convolution_backward(*specs, **options)
    (one,) = [kernel for kernel in kernels if kernel.name == name]
    machine = load_device(device)
    problem = TuningProblem(one, machine, tuple(range(machine.groups)))
    every = list(problem.candidates())
    for candidate, least in [*every[:5], *Random(str(layer)).sample(every, min(20, len(every)))]:
        found = problem.time(candidate)
        assert found.reason or least <= found.cycles, candidate
