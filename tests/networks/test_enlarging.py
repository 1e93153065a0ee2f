"""Maps of other sizes in a training step: numbers as PyTorch's, and what stays traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.dtypes import FP16
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.networks.rules.values import Operation
from npusim.networks.run import interpolation
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


class Up(nn.Module):  # type: ignore[misc, name-defined]
    """A map is enlarged by 2 and by 3 times 4, with channels that fill no block."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.second, self.third = nn.Conv2d(24, 16, 3), nn.Conv2d(16, 16, 5, stride=4)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.second(F.interpolate(self.first(x), scale_factor=2, **self.how))
        x = self.third(F.interpolate(x, scale_factor=(3, 4), **self.how))
        return self.fc(F.relu(x).mean((2, 3)))


@pytest.mark.parametrize(("mode", "device"), crossed(MODES, DEVICES))
def test_a_step_is_that_of_pytorch(mode: str, device: str) -> None:
    assert not traffic(same_as_torch(Up, (3, 9, 7), device=device, mode=mode))


class Between(nn.Module):  # type: ignore[misc, name-defined]
    """Something that gives a map other sizes, between two convolutions."""

    def __init__(self, change: Any, conv: Any) -> None:
        super().__init__()
        self.change = change
        self.first, self.second, self.fc = conv(3, 24, 3), conv(24, 16, 3), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.second(self.change(self.first(x)))
        return self.fc(F.silu(x).mean(tuple(range(2, x.dim()))))


#: Maps and volumes: factors that are not whole, corners that stay, smaller maps, means.
CHANGES: dict[str, Any] = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "corners": lambda x: F.interpolate(x, (15, 11), mode="bilinear", align_corners=True),
    "smaller": lambda x: F.interpolate(x, (5, 17), mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, (11, 13)),
    "shares": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
}
DEEP: dict[str, Any] = {
    "trilinear": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=(2, 1, 2)),
    "means": lambda x: F.avg_pool3d(x, (1, 2, 2)),
    "padded": lambda x: F.avg_pool3d(x, 3, 1, 1, count_include_pad=False),
    "shares": lambda x: F.adaptive_avg_pool3d(x, (3, 3, 4)),
}


@pytest.mark.parametrize(("device", "change", "mode"), crossed(DEVICES, [*CHANGES], MODES))
def test_maps_change_their_sizes_as_in_pytorch(device: str, change: str, mode: str) -> None:
    def made() -> Between:
        return Between(CHANGES[change], nn.Conv2d)

    assert not traffic(same_as_torch(made, (3, 9, 10), device=device, mode=mode))


@pytest.mark.parametrize("change", DEEP)
def test_volumes_change_their_sizes_as_in_pytorch(change: str) -> None:
    def made() -> Between:
        return Between(DEEP[change], nn.Conv3d)

    assert not traffic(same_as_torch(made, (3, 8, 9, 10), device="ascend910b2"))


def test_other_ways_to_enlarge_are_known_by_name() -> None:
    cubic = Between(lambda x: F.interpolate(x, (9, 9), mode="bicubic"), nn.Conv2d)
    largest = Between(lambda x: F.adaptive_max_pool2d(x, (4, 5)), nn.Conv2d)
    found = read_network(cubic, (3, 9, 10))
    assert dict(found.untimed) == {"upsample_bicubic2d": 1}
    for net in (found, read_network(largest, (3, 9, 10))):
        assert traffic(npusim.step(net, device="ascend910b2")) == {"Between": 2}


def test_enlarging_is_written_and_read_back(tmp_path: Path) -> None:
    for name in ("bilinear", "corners", "smaller"):
        found = read_network(Between(CHANGES[name], nn.Conv2d), (3, 9, 10))
        path = tmp_path / "net.yaml"
        path.write_text(workload_yaml(found), encoding="utf-8")
        assert canonical(load_workload(path)) == canonical(found), name


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
@pytest.mark.parametrize(
    "how", [{}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}], ids=str
)
def test_an_exported_file_enlarges_alike(how: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    torch.onnx.export(Up(**how).eval(), torch.zeros(2, 3, 9, 7), str(path), dynamo=False)
    wanted, found = read_network(Up(**how), (3, 9, 7)), read_network(path)
    assert found.elementwise == wanted.elementwise


class Longer(nn.Module):  # type: ignore[misc, name-defined]
    """A signal is enlarged by a large factor."""

    def __init__(self, factor: int, **how: Any) -> None:
        super().__init__()
        self.factor, self.how = factor, how
        self.first, self.second = nn.Conv1d(9, 9, 1), nn.Conv1d(9, 9, 1)
        self.fc = nn.Linear(9, 10)

    def forward(self, x: Any) -> Any:
        x = F.interpolate(self.first(x), scale_factor=self.factor, mode="linear", **self.how)
        return self.fc(F.silu(self.second(x)).mean(2))


@pytest.mark.parametrize(
    ("device", "how"), crossed(["ascend910", "ascend910b2"], [{}, {"align_corners": True}])
)
def test_a_signal_is_enlarged_by_a_large_factor(device: str, how: dict[str, Any]) -> None:
    assert not traffic(same_as_torch(lambda: Longer(40, **how), (9, 21), device=device))


@pytest.mark.parametrize("back", [False, True], ids=["forward", "gradient"])
def test_instructions_follow_periods_and_not_outputs(back: bool) -> None:
    # A term of each of 155,400 outputs in an instruction of its own took 466,000 of them.
    small, large = (1, 1, 1, 1, 518, 16), (1, 1, 1, 1, 518 * 300, 16)
    layer = ElementwiseLayer(kind="interpolate", shape=(9, 518), out=(9, 518 * 300))
    call = Call("enlarging", Options(device="ascend910b2"), timing_only=True)
    read, written = (large, small) if back else (small, large)
    tensors = {
        "x": call.input("x", npusim.spec(read, "fp16"), FP16),
        "y": call.output("y", written, FP16),
    }
    core = "interpolate_gradient" if back else "interpolate"
    interpolation.launch(call, Operation("", "", "", layer, core, ("x",), ("y",)), tensors)
    assert sum(run.instructions for run in call.runs) < 90_000
