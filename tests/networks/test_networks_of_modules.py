"""Networks from PyTorch modules and ONNX files: the same layers as the workloads that ship."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.workloads import ConvLayer, LinearLayer, Workload, load_workload, read_network
from tests.sampled import slow_if

torch = pytest.importorskip("torch")
nn = torch.nn

from tests.networks.definitions import NETWORKS  # noqa: E402  # it needs PyTorch

DEVICE = "ascend910b2"


def shapes(workload: Workload, **same: Any) -> list[str]:
    """The layers without their names, sorted: traces give them in the order of use.

    Fields that are the ``same`` do not count.
    """
    return sorted(str({**vars(layer), "name": "", **same}) for layer in workload.layers)


#: Networks of which the exporter computes one input, as three take it long.
LARGE = {"densenet121", "inception_v3", "r2plus1d_18", "unet", "unet_3d", "wavenet"}


#: Networks that `make test` exports: residuals, depth-wise filters, rows, transposed layers.
#: Other files are read in `test_against_the_framework.py` and `tests/workloads/test_from_onnx.py`.
EXPORTED = {"resnet18", "mobilenet_v2", "convnext_tiny", "dcgan"}


@pytest.mark.parametrize(
    "name",
    [slow_if(name not in EXPORTED, name) for name in NETWORKS if "vgg" not in name],  # 550 MB
)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_an_exported_file_has_the_layers_of_the_workload(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    make, shape = NETWORKS[name]
    path = tmp_path / f"{name}.onnx"
    inputs = torch.zeros(1 if name in LARGE else 3, *shape)
    torch.onnx.export(make().eval(), inputs, str(path), dynamo=False)
    exported, shipped = read_network(path), load_workload(name)
    # The exporter folds batch normalisations into convolutions, drops dropouts, spells GELU and
    # SiLU out, and writes a concatenation of concatenations as one.
    assert shapes(exported, bias=True) == shapes(shipped, bias=True)
    if name not in ("convnext_tiny", "poolformer_s12", "efficientnet_b0", "inception_v3"):
        assert alike(exported) == alike(shipped)


def alike(workload: Workload) -> set[Any]:
    """Element-wise layers that an export for inference leaves as they are."""
    return {x for x in workload.elementwise if x.kind not in ("batch_norm", "dropout")}


class Odd(nn.Module):  # type: ignore[misc, name-defined]
    """What a trace must get right: functional calls, a frozen start, a shared module, rows."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(3, 8, 3, bias=False).requires_grad_(False)
        self.twice = nn.Conv2d(8, 8, 3, padding="same")
        self.fc = nn.Linear(8, 5)
        self.weight = nn.Parameter(torch.zeros(8, 8, 1, 1))

    def forward(self, x: Any) -> Any:
        x = self.twice(self.twice(self.frozen(x)))
        x = nn.functional.conv2d(x, self.weight, groups=1)
        return self.fc(x.flatten(2).transpose(1, 2))


def test_what_a_trace_sees() -> None:
    model = Odd()
    before = copy.deepcopy(model.state_dict())
    first, early, late, functional, fc = read_network(model, (3, 10, 9)).layers
    assert (first.name, first.input_gradient, first.count) == ("frozen", False, 1)
    assert (early.name, early.input_gradient) == ("twice", False), "the frozen layer trains nothing"
    assert (late.name, late.input_gradient) == ("twice_2", True), "names are of one shape"
    assert isinstance(functional, ConvLayer)
    assert functional.kernel == (1, 1)
    assert isinstance(fc, LinearLayer)
    assert (fc.cin, fc.cout, fc.rows, fc.input_gradient) == (8, 5, 8 * 7, True)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before), "the model is as it was"


def test_a_network_from_a_module_is_that_of_its_workload() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2))
    result = npusim.network(model, (3, 16, 16), device=DEVICE, batch=2)
    again = npusim.network(read_network(model, (3, 16, 16)), device=DEVICE, batch=2)
    assert (result.cycles, [one.layer.name for one in result.timed]) == (again.cycles, ["0", "1"])
    assert result.workload.description == "Sequential (PyTorch), input 3x16x16"


@pytest.mark.parametrize(
    ("source", "shape", "message"),
    [
        (nn.Conv2d(3, 8, 3), None, "a torch.nn.Module needs input_shape"),
        (nn.Conv2d(3, 8, 3), (4, 9, 9), "Conv2d does not run on inputs [1, 4, 9, 9]"),
        (nn.ReLU(), (3, 9, 9), "ReLU has no convolution and no product of matrices"),
        (3, (3, 9, 9), "model is a int; it must be a torch.nn.Module"),
        ("resnet50", (3, 9, 9), "input_shape is (3, 9, 9), but a workload states its sizes"),
    ],
)  # fmt: skip
def test_wrong_sources(source: Any, shape: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_network(source, shape)
    assert str(caught.value).startswith(message)


#: Twenty networks of many kinds that others wrote.
STRANGERS = (
    *("alexnet", "zfnet", "vgg11", "bn_vgg13", "resnet34", "resnext50_32x4d", "seresnet18"),
    *("densenet121", "squeezenet_v1_1", "mobilenetv3_small_w1", "shufflenet_g3_w1", "darknet53"),
    *("shufflenetv2_w1", "mnasnet_b1", "efficientnet_b0", "xception", "inceptionv3", "wrn50_2"),
    *("dla34", "regnetx002"),
)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Those networks; the last package of them that goes without torchvision says ``np.int``."""
    monkeypatch.setattr("numpy.int", int, raising=False)
    return pytest.importorskip("pytorchcv.model_provider")


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_has_the_calls_of_a_training_step(name: str, provider: Any) -> None:
    """Every convolution backward that PyTorch dispatches, and no other, is a layer."""
    model = provider.get_model(name)
    size = (3, *(getattr(model, "in_size", (224, 224))))
    found = read_network(model, size)
    calls: dict[tuple[Any, ...], int] = {}
    aten = torch.ops.aten.convolution_backward.default
    base = torch.utils._python_dispatch.TorchDispatchMode

    def dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten:
            dy, x, w = (tuple(t.shape) for t in args[:3])
            key = (dy[1:], x[1:], w, tuple(args[4]), tuple(args[6]), args[9], bool(args[10][0]))
            calls[key] = calls.get(key, 0) + 1
        return func(*args, **(kwargs or {}))

    mode = type("Backward", (base,), {"__torch_dispatch__": dispatch})
    with mode():
        model.to("meta")(torch.zeros(2, *size, device="meta")).sum().backward()
    layers: dict[tuple[Any, ...], int] = {}
    for one in found.convolutions:
        key = (
            *(one.dy_shape[1:], one.x_shape[1:], one.w_shape, one.stride, one.dilation),
            *(one.groups, one.input_gradient),
        )
        layers[key] = layers.get(key, 0) + one.count
    assert layers == calls


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_an_exported_stranger_has_the_layers_of_the_module(
    name: str, provider: Any, tmp_path: Path
) -> None:
    """The same layers and multiply-adds, whatever the exporter folds or renames.

    It folds normalisations into the convolutions before them, which then have a bias.
    """
    pytest.importorskip("onnx")
    model = provider.get_model(name).eval()
    size = (3, *(getattr(model, "in_size", (224, 224))))
    path = tmp_path / f"{name}.onnx"
    torch.onnx.export(model, torch.zeros(1, *size), str(path), dynamo=False)
    found, want = read_network(path), read_network(model, size)
    assert shapes(found, bias=True) == shapes(want, bias=True)
    assert total(found) == total(want) > 0


def total(workload: Workload) -> int:
    """Multiply-adds of one image, going forward."""
    return sum(one.count * one.useful_macs for one in workload.convolutions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet34", "shufflenetv2_w1", "regnetx002"])
def test_a_trace_of_a_stranger_takes_the_time_of_its_network(name: str, provider: Any) -> None:
    bridge = pytest.importorskip("npusim.torch")
    model = provider.get_model(name)
    options: dict[str, Any] = {"device": DEVICE, "cube_math_type": "keep_dtype"}
    every: dict[str, Any] = {"gradients": ["input", "weight", "bias"], **options}
    found = npusim.network(model, (3, 224, 224), batch=2, dtype="fp32", **every)
    with bridge.trace(model=model, **options) as log:
        model.to("meta")(torch.zeros(2, 3, 224, 224, device="meta")).sum().backward()
    assert not found.failed
    assert log.time_us == pytest.approx(found.time_us)
