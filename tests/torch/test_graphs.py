"""Graphs of PyTorch modules: edge for edge those of ONNX files and of the files that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.workloads import ElementwiseLayer, Workload, load_workload, read_network, workload_yaml
from tests.networks.graphs import canonical, edges
from tests.sampled import slow_if

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tests.networks.definitions import NETWORKS  # noqa: E402
from tests.networks.pieces import ChannelsLast, Residual, Scale, normal  # noqa: E402


def exported(model: Any, shape: tuple[int, ...], path: Path, **options: Any) -> Workload:
    """The network in a file that PyTorch exports with all its normalisations."""
    pytest.importorskip("onnx")
    usual: dict[str, Any] = {"dynamo": False, "opset_version": 20, "do_constant_folding": False}
    usual["training"] = torch.onnx.TrainingMode.PRESERVE
    torch.onnx.export(model, torch.zeros(2, *shape), str(path), **{**usual, **options})
    return read_network(path)


def written(workload: Workload, path: Path) -> Workload:
    """The network in a file that npusim writes."""
    path.write_text(workload_yaml(workload), encoding="utf-8")
    return load_workload(path)


#: Networks of which `make test` traces the module: each has operations that the others lack.
TRACED = ("resnet18", "mobilenet_v2", "poolformer_s12", "unet", "dcgan", "wavenet")


@pytest.mark.parametrize("name", [slow_if(name not in TRACED, name) for name in NETWORKS])
def test_a_network_that_ships_is_its_module_edge_for_edge(name: str) -> None:
    make, shape = NETWORKS[name]
    traced, shipped = read_network(make(), shape), load_workload(name)
    assert canonical(traced) == canonical(shipped)
    assert (traced.elementwise, traced.untimed) == (shipped.elementwise, shipped.untimed)
    assert traced.untimed == ()


class Tangle(nn.Module):  # type: ignore[misc, name-defined]
    """What edges must get right: operations in place, views, parts written in place, copies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.part = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(8 * 16, 5)

    def forward(self, x: Any) -> Any:
        kept = self.first(x)
        x = kept.relu_()
        x = x + kept  # both are the activation
        left, right = x.chunk(2, 1)
        out = torch.empty_like(x)
        out[:, :4] = self.part(left)
        out[:, 4:] = right.tanh()
        again = torch.ones_like(out)
        again.copy_(out.sigmoid())
        return self.fc(again.permute(0, 1, 3, 2).reshape(-1, 8 * 16))


def test_edges_pass_through_views_and_follow_what_is_written_in_place(tmp_path: Path) -> None:
    found = read_network(Tangle(), (3, 4, 4))
    assert edges(found) == {
        "first": ("input",),
        "Tangle.relu": ("first",),
        "Tangle.add": ("Tangle.relu", "Tangle.relu"),
        "Tangle.add.slice": ("Tangle.add",),
        "part": ("Tangle.add.slice",),
        "Tangle.concat": ("part", "Tangle.empty_like.part"),
        "Tangle.add.slice_2": ("Tangle.add",),
        "Tangle.tanh": ("Tangle.add.slice_2",),
        "Tangle.concat.slice": ("Tangle.concat",),
        "Tangle.concat_2": ("Tangle.concat.slice", "Tangle.tanh"),
        "Tangle.sigmoid": ("Tangle.concat_2",),
        "Tangle.sigmoid.permute": ("Tangle.sigmoid",),
        "fc": ("Tangle.sigmoid.permute",),
    }
    assert canonical(written(found, tmp_path / "net.yaml")) == canonical(found)


class Pools(nn.Module):  # type: ignore[misc, name-defined]
    """Poolings of every sort, and an operation that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x: Any) -> Any:  # (images, 3, 26, 26)
        x = F.max_pool2d(self.conv(x), 3, 2, 1, ceil_mode=True)
        x = F.avg_pool2d(x, (3, 1), padding=(1, 0), stride=1)
        x = F.interpolate(F.adaptive_avg_pool2d(torch.sin(x), (2, 1)), scale_factor=3)
        return F.adaptive_max_pool2d(F.pad(x, (0, 1, 2, 0)), (3, 3)).mean((2, 3))


def windows(found: Workload) -> list[tuple[Any, ...]]:
    """Output, kernel, stride and padding of every pooling."""
    pools = [x.layer for x in found.nodes if isinstance(x.layer, ElementwiseLayer)]
    return [(x.out, x.kernel, x.stride, x.padding) for x in pools if x.kind.endswith("_pool")]


def test_poolings_have_their_windows(tmp_path: Path) -> None:
    found = read_network(Pools(), (3, 26, 26))
    assert windows(found) == [
        ((1, 6, 13, 13), (3, 3), (2, 2), ((1, 1), (1, 1))),
        ((1, 6, 13, 13), (3, 1), (1, 1), ((1, 1), (0, 0))),
        ((1, 6, 2, 1), (), (), ()),  # 13 is not divided by 2
        ((1, 6, 3, 3), (), (), ()),
        ((1, 6, 1, 1), (), (), ()),
    ]
    assert found.untimed == (("sin", 1),)
    assert canonical(written(found, tmp_path / "net.yaml")) == canonical(found)
    even = read_network(nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(4)), (3, 10, 14))
    assert windows(even) == [((1, 6, 4, 4), (2, 3), (2, 3), ((0, 0), (0, 0)))]


SMALL: dict[str, tuple[Any, tuple[int, ...]]] = {
    "residual": (
        lambda: nn.Sequential(
            normal(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True)),
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            Residual(normal(nn.Conv2d(8, 8, 3, padding=1)), nn.Conv2d(8, 8, 1), nn.Hardswish()),
            nn.Upsample(scale_factor=2),
            nn.AvgPool2d(3, 2, 1, count_include_pad=True),
            nn.Dropout(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ),
        (3, 16, 16),
    ),
    "norms": (
        lambda: nn.Sequential(
            nn.BatchNorm2d(3),
            nn.Conv2d(3, 8, 3, padding=1),
            nn.InstanceNorm2d(8, affine=True),
            ChannelsLast(),
            nn.LayerNorm(8),
            nn.Linear(8, 12, bias=False),
            nn.GELU(),
            ChannelsLast(back=True),
            Scale(12),
            nn.LocalResponseNorm(5),  # a choice in the file, and a power
            nn.Softmax(1),
        ),
        (3, 6, 6),
    ),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_an_exported_file_is_its_module_edge_for_edge(
    name: str, train: bool, tmp_path: Path
) -> None:
    make, shape = SMALL[name]
    model = make().train(train)
    mode = torch.onnx.TrainingMode
    found = read_network(model, shape)
    training = mode.TRAINING if train else mode.PRESERVE
    assert canonical(exported(model, shape, tmp_path / "net.onnx", training=training)) == (
        canonical(found)
    )
    assert canonical(written(found, tmp_path / "net.yaml")) == canonical(found)
    kinds = {x.kind for x in found.elementwise}
    assert "batch_norm" in kinds
    assert ("dropout" in kinds) == (train and name == "residual")


def test_a_product_without_a_bias_and_what_is_added_are_two_nodes(tmp_path: Path) -> None:
    class Added(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:  # (images, 5, 8)
            return torch.baddbmm(x[:, :, :5], x, x.transpose(1, 2))

    found = read_network(Added(), (5, 8))
    assert edges(found) == {
        "Added.product": ("input", "input"),
        "input.slice": ("input",),
        "Added.add": ("Added.product", "input.slice"),
    }
    assert canonical(written(found, tmp_path / "net.yaml")) == canonical(found)


def test_the_second_product_of_a_fused_attention_reads_the_first() -> None:
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:  # (images, 2, 5, 8)
            return fused(x.tanh(), x.sin(), x.sigmoid())[0]

    assert edges(read_network(Attention(), (2, 5, 8))) == {
        "Attention.tanh": ("input",),
        "Attention.sin": ("input",),
        "Attention.sigmoid": ("input",),
        "Attention.product": ("Attention.tanh", "Attention.sin"),
        "Attention.scale": ("Attention.product",),
        "Attention.softmax": ("Attention.scale",),
        "Attention.product_2": ("Attention.softmax", "Attention.sigmoid"),
    }


def test_what_is_frozen_is_written_and_read_back(tmp_path: Path) -> None:
    frozen = nn.Conv2d(3, 8, 3, bias=False).requires_grad_(False)
    model = nn.Sequential(frozen, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    found = read_network(model, (3, 9, 9))
    assert [x.input_gradient for x in found.elementwise] == [False, True]
    again = written(found, tmp_path / "net.yaml")
    assert (again.layers, again.elementwise) == (found.layers, found.elementwise)


def test_names_are_words_of_chains(tmp_path: Path) -> None:
    model = nn.Sequential()
    for name in ("relu", "input", "a > b", "relu_2"):
        model.add_module(name, nn.Conv2d(3, 3, 3))
    found = read_network(model, (3, 19, 19))
    assert [node.name for node in found.nodes] == ["relu_2", "input_2", "a___b", "relu_2_2"]
    assert canonical(written(found, tmp_path / "net.yaml")) == canonical(found)


def test_a_network_of_a_module_has_its_graph() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3))
    result = npusim.network(model, (3, 16, 16), device="ascend910b2", batch=2)
    assert result.workload.nodes == read_network(model, (3, 16, 16), batch=2).nodes
    assert edges(result.workload) == {"0": ("input",), "1": ("0",), "2": ("1",)}


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_halves_of_shuffled_channels_are_slices_of_the_map(tmp_path: Path) -> None:
    """A module's were slices of its groups, a map with one axis more."""

    class Shuffled(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.behind = nn.Conv2d(3, 32, 3), nn.Conv2d(16, 8, 3)

        def forward(self, x: Any) -> Any:
            y = self.before(x)
            n, c, h, w = y.shape
            y = y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
            return self.behind(y.chunk(2, dim=1)[1])

    found = read_network(Shuffled(), (3, 9, 9))
    assert [(one.kind, one.shape, one.out) for one in found.elementwise] == [
        ("permute", (1, 2, 16, 7, 7), (1, 16, 2, 7, 7)),
        ("slice", (1, 32, 7, 7), (1, 16, 7, 7)),
    ]
    assert canonical(exported(Shuffled(), (3, 9, 9), tmp_path / "net.onnx")) == canonical(found)


#: Twenty networks of many kinds that others wrote.
STRANGERS = (
    *("alexnet", "zfnet", "vgg11", "bn_vgg13", "resnet34", "resnext50_32x4d", "seresnet18"),
    *("densenet121", "squeezenet_v1_1", "mobilenetv3_small_w1", "shufflenet_g3_w1", "darknet53"),
    *("shufflenetv2_w1", "mnasnet_b1", "efficientnet_b0", "xception", "inceptionv3", "wrn50_2"),
    *("dla34", "regnetx002"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_a_stranger_is_one_graph_from_every_source(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numpy.int", int, raising=False)  # the last package without torchvision
    model = pytest.importorskip("pytorchcv.model_provider").get_model(name).eval()
    shape = (3, *(getattr(model, "in_size", (224, 224))))
    found = read_network(model, shape)
    assert canonical(exported(model, shape, tmp_path / "net.onnx")) == canonical(found)
    assert canonical(written(found, tmp_path / "net.yaml")) == canonical(found)
