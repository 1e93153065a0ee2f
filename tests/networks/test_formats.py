"""What a planned step reads was there before, or was written by a launch, in the same format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.machine.device.catalog import devices, load_device
from npusim.networks.plan.tasks import PLAIN
from npusim.networks.rules.table import tables
from npusim.networks.run import step as steps
from npusim.networks.run.step import LAYOUTS, MODES, PreparedStep, options_of, prepared, setting
from npusim.workloads import ConvLayer, ElementwiseLayer, LinearLayer, Workload, read_network
from npusim.workloads.kinds import KINDS
from npusim.workloads.repetition import for_batch
from tests import sampled

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tests.networks.drawn_networks import LAYERS, drawn, network  # noqa: E402  # they need PyTorch
from tests.networks.steps import same_as_torch  # noqa: E402

BATCH = 2


class Times:
    """Times of tasks by their text and a ``seed``: nothing is simulated.

    It stands for ``npusim.networks.run.simulated.SimulatedTasks``.
    """

    def __init__(self, seed: int, launcher: Any) -> None:
        self.seed, self.launcher = seed, launcher
        self.c0, self.fractals = launcher.c0, launcher.fractals
        self.as_product, self.replaced = launcher.as_product, launcher.replaced

    def all(self, tasks: Any) -> None:
        """Take tasks of which times will be asked."""

    def __getitem__(self, task: Any) -> Any:
        """Between 1 and 1,000 us, so far apart that any way of an operation may be the best."""
        share = crc32(repr((self.seed, task)).encode()) / 2**32
        return SimpleNamespace(us=1000**share)


def plans(
    workload: Workload,
    device: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    modes: Iterable[str] = MODES,
) -> dict[tuple[str, str, str], PreparedStep]:
    """The plan of a step for every mode, layout and fusion, at made-up times.

    ``make test`` plans a third of the pairs of a layout and a fusion, in which each layout and
    each fusion is once; which third, ``seed`` says.
    """
    monkeypatch.setattr(steps, "SimulatedTasks", lambda launcher, *_: Times(seed, launcher))
    rng = np.random.default_rng(seed)
    plans_by_way = {}
    for mode, (row, layouts), (column, fusions) in product(
        modes, enumerate(LAYOUTS), enumerate(("none", "usual", "all"))
    ):
        if not sampled.ALL and (row + column + seed) % 3:
            continue
        options = options_of(npusim.step, mode, {"device": device, "launch": "single"})
        how = setting(
            options.machine,
            mode=mode,
            layouts=layouts,
            fusions=fusions,
            optimizer=str(rng.choice([*tables().optimizers])),
            passes=str(rng.choice(["training", "training", "forward", "backward"])),
            dtype="fp16",
            norm=str(rng.choice(["fp16", "fp32"])),
            cards=1,
        )
        plans_by_way[mode, layouts, fusions] = prepared(for_batch(workload, BATCH), options, how)
    return plans_by_way


def missing(ready: PreparedStep) -> list[str]:
    """Values that a launch reads in a format in which nobody wrote them.

    A value that no operation makes is there before the step in one format, that in which it is
    first read; data are plain, and what an update takes the place of has its format.
    """
    made = {name for one in ready.step.operations for name in one.writes}
    there: set[tuple[str, str]] = set()
    before: dict[str, str] = {}
    faults = []
    for launch, *_ in ready.todo:
        for name, format in launch.reads:
            if name not in made and name not in before:
                before[name] = format
                there.add((name, format))
            if (name, format) not in there:
                faults.append(f"{launch.name} reads {name} in {format}")
        there.update(launch.writes)
    data = {"input", "labels"} & before.keys()
    faults += [f"{name} comes in {before[name]}" for name in data if before[name] != PLAIN]
    for name, old in ready.step.updates.items():
        if old in before and (name, before[old]) not in there:
            faults.append(f"{name} is not left in {before[old]}")
    return faults


def of_steps() -> list[str]:
    """The devices whose cube multiplies what steps are computed in."""
    found = []
    for name in devices():
        try:
            setting(
                load_device(name), mode="eager", layouts=None, fusions=None, optimizer="sgd",
                passes="training", dtype="fp16", norm=None, cards=1,
            )  # fmt: skip
        except ArgumentError:
            continue
        found.append(name)
    return found


DEVICES = of_steps()


def test_steps_run_on_all_devices_of_the_vendor() -> None:
    assert {name for name in devices() if name.startswith("ascend")} <= {*DEVICES}


@pytest.mark.drawn
@pytest.mark.parametrize("device", sampled.of_each_kind([(name,) for name in DEVICES]))
def test_a_launch_reads_what_was_given_or_written(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In random networks, others for each device, under every mode, layout and fusion."""
    first = 1000 * DEVICES.index(device)
    for seed in range(first, first + sampled.some(40, share=10, least=4)):
        module, shape = drawn(seed)
        for how, ready in plans(read_network(module, shape), device, seed, monkeypatch).items():
            assert not missing(ready), (seed, how)


@cache
def around(name: str) -> Workload:
    """A layer between a convolution, a normalisation and activations that leave bits."""
    names = ["biased convolution", "relu", name, "relu", "convolution", "batch_norm", "clip"]
    shape = (16, 6, 6)
    return read_network(network(names, shape, np.random.default_rng(0)), shape)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("seed", "name"),
    [sampled.slow_if(seed % 2 == 1, seed, name) for seed, name in enumerate(LAYERS)],
)
def test_a_launch_reads_what_was_given_or_written_around_each_layer(
    seed: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = [*MODES][seed % 2]
    for how, ready in plans(around(name), "ascend910", seed, monkeypatch, [mode]).items():
        assert not missing(ready), how


def test_these_layers_are_of_all_kinds_that_are_computed() -> None:
    kinds = {kind_of(node.layer) for name in LAYERS for node in around(name).nodes}
    products = {"convolution", "biased convolution", "linear", "product"}
    # PyTorch calls the first an ELU; the second is a mean and a factor where a module has it.
    rows = {row for row in tables().rules if row in KINDS} - {"selu", "reduce_sum"}
    assert kinds >= products | rows


def kind_of(layer: ConvLayer | LinearLayer | ElementwiseLayer) -> str:
    """What the table of rules calls a layer, but for what its numbers say."""
    if isinstance(layer, ConvLayer):
        return "biased convolution" if layer.bias else "convolution"
    if isinstance(layer, LinearLayer):
        return "product" if layer.products else "linear"
    return layer.kind


# -- numbers -------------------------------------------------------------------------------------


def activated() -> Any:
    """A convolution with an activation, which one kernel computes where L0C drains through UB."""
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(nn.Conv2d(5, 16, 2), nn.ReLU(), *pooled)


def gradients_activated() -> Any:
    """A gradient of a convolution with that of an activation, whose bits others leave."""
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(
        nn.Conv2d(5, 20, 3), nn.GELU(), nn.ReLU(), nn.Conv2d(20, 16, 3, bias=False), *pooled
    )


def normalised() -> Any:
    """A normalisation with an activation, which one kernel computes on all devices."""
    return nn.Sequential(
        nn.Conv2d(5, 20, 3, bias=False), nn.BatchNorm2d(20), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 10),
    )  # fmt: skip


class Views(nn.Module):  # type: ignore[misc, name-defined]
    """A sum of rows and of a map that is a view of them, whose activation has plain bits only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.along, self.fc = nn.Conv2d(5, 16, 5), nn.Linear(3, 4), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.along(self.conv(x))
        return self.fc(F.relu(x + torch.tanh(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("make", "device", "mode", "layouts", "fusions"),
    [
        (activated, "ascend910", "eager", "each_call", "usual"),
        (activated, "ascend910", "graph", "each_call", "all"),
        (activated, "ascend310p", "graph", "each_call", "usual"),
        (gradients_activated, "ascend910", "eager", "each_call", "usual"),
        (gradients_activated, "ascend310p", "eager", "each_call", "all"),
        (normalised, "ascend910", "graph", "each_call", None),
        (normalised, "ascend910b2", "eager", None, "usual"),
        (Views, "ascend910", "graph", None, None),
        (Views, "ascend910b2", "graph", "best", None),
    ],
)
def test_bits_are_read_as_they_were_left(
    make: Callable[[], Any], device: str, mode: str, layouts: str | None, fusions: str | None
) -> None:
    """The numbers of a step in which a kernel that makes or reads bits takes one format alone."""
    step = same_as_torch(
        make, (5, 7, 7), device=device, mode=mode, layouts=layouts, fusions=fusions
    )
    assert any("+" in kind for kind in step.fused)
