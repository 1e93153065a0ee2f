"""Factors by channel and constants in a training step: numbers as PyTorch's, in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.workloads import ElementwiseLayer, load_workload, read_network, workload_yaml
from tests.networks.graphs import canonical
from tests.sampled import crossed

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tests.networks.steps import (  # noqa: E402  # they need PyTorch
    DEVICES,
    MODES,
    same_as_torch,
    traffic,
)


class Squeezed(nn.Module):  # type: ignore[misc, name-defined]
    """A gate by convolutions and one by a linear layer, activations written out and as layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, padding=1, bias=False)
        self.down, self.up = nn.Conv2d(24, 8, 1), nn.Conv2d(8, 24, 1)
        self.second = nn.Conv2d(24, 32, 3, stride=2)
        self.gate = nn.Linear(32, 32)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        x = x * F.relu6(x + 3.0) / 6.0
        s = F.relu(self.down(x.mean((2, 3), keepdim=True)))
        s = self.up(s)
        x = F.relu6(s + 3) * (1 / 6) * x + s
        x = F.leaky_relu(self.second(x), 0.2)
        x = x * F.hardsigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        x = F.hardswish(x) - F.hardtanh(x) / (x * x + 2)
        return self.fc(x.clamp(max=1.5).mean((2, 3)))


@pytest.mark.parametrize(("mode", "device"), crossed(MODES, DEVICES))
def test_a_step_is_that_of_pytorch(mode: str, device: str) -> None:
    step = same_as_torch(Squeezed, (3, 9, 9), device=device, mode=mode)
    assert not traffic(step)


def test_an_image_that_is_not_trained_has_no_gradient() -> None:
    class Masked(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.fc = nn.Conv2d(3, 3, 1), nn.Linear(3, 10)

        def forward(self, x: Any) -> Any:
            x = x * self.gate(x)
            return self.fc(x.mean((2, 3)))

    assert not traffic(same_as_torch(Masked, (3, 5, 5), device="ascend910b2"))


def test_numbers_are_written_and_read_back(tmp_path: Path) -> None:
    found = read_network(Squeezed(), (3, 9, 9))
    path = tmp_path / "net.yaml"
    path.write_text(workload_yaml(found), encoding="utf-8")
    assert canonical(load_workload(path)) == canonical(found)
    text = " ".join(path.read_text(encoding="utf-8").split())
    for step in ("> shift (3) > clip >", "> scale (0.16666666666666666)", "> leaky_relu (0.2)",
                 "> clip (-1, 1)", "> clip (-inf, 1.5)", "> hard_sigmoid >"):  # fmt: skip
        assert step.rstrip(" >") in text, step


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_an_exported_file_has_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    torch.onnx.export(Squeezed().eval(), torch.zeros(2, 3, 9, 9), str(path), dynamo=False)
    wanted, found = (
        numbers(one) for one in (read_network(Squeezed(), (3, 9, 9)), read_network(path))
    )
    assert found == wanted
    slopes = [one.numbers for one in read_network(path).elementwise if one.kind == "leaky_relu"]
    assert slopes == [(0.2,)], "as it was written, not as fp32 has it"


class Weight(nn.Module):  # type: ignore[misc, name-defined]
    """A factor or a term that is trained."""

    def __init__(self, operation: Any, *shape: int) -> None:
        super().__init__()
        self.operation, self.weight = operation, nn.Parameter(torch.ones(shape))

    def forward(self, x: Any) -> Any:
        return self.operation(x, self.weight)


class Weighted(nn.Module):  # type: ignore[misc, name-defined]
    """Factors and terms of channels, of the last axis, and of all elements of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3)
        self.scale, self.shift = Weight(torch.mul, 24, 1, 1), Weight(torch.add, 1, 24, 1, 1)
        self.rows, self.last = Weight(torch.mul, 8), Weight(torch.add, 8)
        self.places, self.every = Weight(torch.add, 1, 168, 8), Weight(torch.mul, 168, 8)
        self.fc = nn.Linear(24 * 7 * 8, 10)

    def forward(self, x: Any) -> Any:
        x = F.silu(self.shift(self.scale(self.first(x))))
        x = F.silu(self.last(self.rows(x))).reshape(-1, 168, 8)
        return self.fc(self.every(self.places(x)).flatten(1))


@pytest.mark.parametrize(("mode", "device"), crossed(MODES, DEVICES))
def test_weights_are_factors_and_terms(mode: str, device: str) -> None:
    assert not traffic(same_as_torch(Weighted, (3, 9, 10), device=device, mode=mode))


def test_weights_of_channels_of_turned_rows_are_those_of_rows() -> None:
    """A layer scale behind the linear layers of ConvNeXt, whose result is seen channels first."""

    class Turned(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.fc = nn.Conv2d(3, 24, 3), nn.Linear(24, 24)
            self.scale, self.last = Weight(torch.mul, 24, 1, 1), nn.Conv2d(24, 8, 1)

        def forward(self, x: Any) -> Any:
            y = self.fc(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return self.last(self.scale(y))

    step = npusim.step(Turned(), (3, 9, 9), device="ascend910b2", batch=2)
    assert step.complete
    assert not traffic(step)
    assert step.step.values["scale.weight"].kind == "vector"


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_weights_are_written_and_read_back(tmp_path: Path) -> None:
    found = read_network(Weighted(), (3, 9, 10))
    path = tmp_path / "net.yaml"
    path.write_text(workload_yaml(found), encoding="utf-8")
    assert canonical(load_workload(path)) == canonical(found)
    text = " ".join(path.read_text(encoding="utf-8").split())
    for step in ("> scale 24x1x1 > shift 24x1x1 >", "> scale 8 > shift 8 >", "> shift 168x8 >"):
        assert step in text, step
    pytest.importorskip("onnx")
    torch.onnx.export(
        Weighted(), torch.zeros(2, 3, 9, 10), str(tmp_path / "net.onnx"), dynamo=False
    )
    kinds = ("scale", "shift")
    exported = read_network(tmp_path / "net.onnx").elementwise
    wanted = {one for one in found.elementwise if one.kind in kinds}
    assert {one for one in exported if one.kind in kinds} == wanted


def numbers(workload: Any) -> list[tuple[str, tuple[float, ...]]]:
    return sorted(
        (layer.kind, tuple(round(one, 6) for one in layer.numbers))
        for layer in (node.layer for node in workload.nodes)
        if isinstance(layer, ElementwiseLayer) and layer.kind != "avg_pool"
    )


def test_a_difference_from_few_elements_is_a_sum_with_their_negatives() -> None:
    class Less(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 16, 1)

        def forward(self, x: Any) -> Any:
            x = self.conv(x)
            return 1 - (x - x.mean((2, 3), keepdim=True))

    found = read_network(Less(), (3, 5, 5))
    assert [(one.kind, one.shape, one.numbers) for one in found.elementwise] == [
        ("avg_pool", (1, 16, 5, 5), ()),
        ("scale", (1, 16, 1, 1), (-1.0,)),
        ("shift", (1, 16, 5, 5), ()),
        ("scale", (1, 16, 5, 5), (-1.0,)),
        ("shift", (1, 16, 5, 5), (1.0,)),
    ]
    step = npusim.step(found, device="ascend910b2")
    assert step.complete
    assert not traffic(step)
