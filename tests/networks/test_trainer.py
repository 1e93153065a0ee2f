"""A small network trained on simulated kernels: as float64 would, but for what fp16 explains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.workloads import ConvLayer, Edge, ElementwiseLayer, GraphBuilder, LinearLayer, Workload
from npusim.workloads.graph import shape_in
from tests.networks.blocks import TWO_BLOCKS, images, network
from tests.networks.reference import Reference

BATCH, RATE = 16, 0.05


def compared(
    device: str, steps: int, folder: Path
) -> tuple[npusim.Trainer, dict[str, np.ndarray], Reference, Reference]:
    """The trainer after some steps, what it began with, and NumPy's in float64 and with fp16."""
    workload = network(TWO_BLOCKS, folder)
    trainer = npusim.Trainer(workload, device=device, batch=BATCH, settings={"rate": RATE})
    begun = {name: trainer[name].copy() for name in trainer.parameters}
    exact, half = (Reference(workload, begun, half=one) for one in (False, True))
    xs, labels = images(20 * BATCH)
    for at in range(0, steps * BATCH, BATCH):
        batch = xs[at : at + BATCH], labels[at : at + BATCH]
        assert trainer.step(*batch) == trainer.losses[-1]
        exact.step(*batch, RATE)
        half.step(*batch, RATE)
    return trainer, begun, exact, half


@pytest.mark.parametrize(
    ("device", "steps"),
    [
        ("ascend910b2", 2),
        pytest.param("ascend910b2", 20, marks=pytest.mark.slow),
        pytest.param("ascend910", 4, marks=pytest.mark.slow),
    ],
)
def test_training_follows_float64_as_closely_as_fp16_allows(
    device: str, steps: int, tmp_path: Path
) -> None:
    """Losses and weights are no further from float64 than NumPy's with maps stored in fp16."""
    trainer, begun, exact, half = compared(device, steps, tmp_path)
    losses, wanted = np.array(trainer.losses), np.array(exact.losses)
    explained = np.abs(np.array(half.losses) - wanted).max()
    assert np.abs(losses - wanted).max() <= 2 * explained + 1e-3
    for name, at in begun.items():
        moved = np.linalg.norm(exact.weights[name] - at)
        off, fp16 = (
            np.linalg.norm(one - exact.weights[name]) / moved
            for one in (trainer[name], half.weights[name])
        )
        assert moved > 0
        assert off <= 1.5 * fp16 + 0.01, name
    if steps == 20:
        assert losses[-1] < losses[0] / 3
    once = npusim.step(network(TWO_BLOCKS, tmp_path), device=device, batch=BATCH)
    assert {one.cycles for one in trainer.steps} == {once.cycles}


def grouped() -> Workload:
    """Groups that share fractals, of 7 and 4 channels, and a stride beyond the filter."""
    graph = GraphBuilder("grouped")
    x = graph.input("image", (3, 5, 13, 13))
    layers: tuple[ConvLayer | LinearLayer | ElementwiseLayer, ...] = (
        ConvLayer(name="a", n=3, cin=5, cout=35, spatial=(13, 13), kernel=(1, 1), groups=5),
        ElementwiseLayer(kind="batch_norm", shape=(3, 35, 13, 13)),
        ConvLayer(
            name="b", n=3, cin=35, cout=20, spatial=(13, 13), kernel=(2, 2), stride=(3, 3),
            groups=5, bias=True,
        ),
        ElementwiseLayer(kind="avg_pool", shape=(3, 20, 4, 4), out=(3, 20, 1, 1)),
        LinearLayer(name="f", n=3, cin=20, cout=7, bias=True),
    )  # fmt: skip
    for number, layer in enumerate(layers):
        x = graph.add(f"n{number}", layer, [Edge(x, shape_in(layer))])
    return graph.workload("groups that share fractals", batch=3)


def test_weights_in_groups_learn_the_same_in_both_formats() -> None:
    """Sums across groups, which a fractal has room for, must not reach the next step's weights."""
    data = np.random.default_rng(2).standard_normal((3, 5, 13, 13))
    blocked, plain = (
        npusim.Trainer(grouped(), device="ascend910b2", batch=3, seed=1, mode=mode, launch="graph")
        for mode in ("graph", "eager")
    )
    for _ in range(2):
        assert blocked.step(data, [0, 3, 6]) == pytest.approx(plain.step(data, [0, 3, 6]), rel=1e-4)
    for name in blocked.parameters:
        np.testing.assert_allclose(blocked[name], plain[name], atol=1e-5, err_msg=name)
    assert blocked["n2.b"].any()
    launched = [
        {run.name for one in trainer.steps[0].launched for run in one.timed.runs}
        for trainer in (blocked, plain)
    ]  # plain weights have no room for sums across groups: nothing reads them
    assert ["clear_blocks" in names for names in launched] == [True, False]
    for trainer in (blocked, plain):  # as frameworks do: sums of a plain map, converted before
        (one,) = (
            one for one in trainer.steps[0].launched
            if one.name == "n2.bias" and one.phase == "backward"
        )  # fmt: skip
        assert [run.name for run in one.timed.runs] == ["mem_set", "bias_grad"]
    converted = {one.value for one in blocked.steps[0].conversions}
    assert "n2.gradient.n3" in converted, converted


def test_a_number_for_each_channel_keeps_the_axes_of_its_module() -> None:
    """A term of shape (1, 3, 1, 1), read in front of maps of three channels, learns as PyTorch's.

    Its copy for kernels fills a block of channels, of which the others must stay zero.
    """
    torch = pytest.importorskip("torch")

    class Shifted(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.Linear(3, 4)
            self.term = torch.nn.Parameter(torch.tensor([0.4, 0.2, 0.5]).view(1, 3, 1, 1))
            self.register_buffer("mean", torch.tensor([0.1, 0.3, 0.2]).view(1, 3, 1, 1))

        def forward(self, x: Any) -> Any:
            return self.head((self.conv(x + self.mean) + self.term).mean((2, 3)))

    torch.manual_seed(0)
    model, x, labels = Shifted(), torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    trainer = npusim.Trainer(
        model, (3, 8, 8), device="ascend910b2", batch=4, optimizer="sgd", settings={"rate": RATE}
    )
    np.testing.assert_allclose(trainer["mean"], model.mean)
    for name, weight in model.named_parameters():
        trainer[name] = weight.detach().numpy()
    loss = torch.nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    assert trainer.step(x.numpy(), labels.numpy()) == pytest.approx(loss.item(), abs=1e-3)
    moved = (model.term.detach().numpy() - trainer["term"]) / RATE
    np.testing.assert_allclose(moved, model.term.grad, atol=1e-3, rtol=0.02)
