"""Workload files: what ships is ResNet-50 to the letter, what is wrong is told with its line."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import pytest

from npusim.base.errors import ArgumentError, ConfigError
from npusim.workloads import ConvLayer, Workload, find_layer, load_workload, workloads
from tests.tables import rows
from tests.texts import text_of

Shape = tuple[int, int, int, int, int]  # cin, cout, input side, kernel, stride


def resnet50_by_its_definition() -> Counter[Shape]:
    """Return every convolution of the network, built block by block as the network is."""
    convs: Counter[Shape] = Counter([(3, 64, 224, 7, 2)])
    channels, side = 64, 56  # after the 3x3 max pooling of stride 2
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and block == 0 else 1
            convs[(channels, width, side, 1, 1)] += 1
            convs[(width, width, side, 3, stride)] += 1
            if block == 0:
                convs[(channels, 4 * width, side, 1, stride)] += 1
            side //= stride
            convs[(width, 4 * width, side, 1, 1)] += 1
            channels = 4 * width
    return convs


def test_resnet50_is_the_network() -> None:
    workload = load_workload("resnet50")
    layers = workload.convolutions
    want = resnet50_by_its_definition()
    shapes = [(x.cin, x.cout, x.spatial[0], x.kernel[0], x.stride[0]) for x in layers]
    assert len(set(shapes)) == len(shapes), "each shape stands once"
    assert dict(zip(shapes, (x.count for x in layers), strict=True)) == dict(want)
    assert sum(x.count for x in layers) == 53
    for x in layers:
        assert (x.dims, x.groups, x.dilation) == (2, 1, (1, 1))
        assert len(set(x.spatial)) == len(set(x.kernel)) == len(set(x.stride)) == 1
        assert x.padding == ((x.kernel[0] // 2,) * 2,) * 2


def test_resnet50_has_the_published_number_of_multiply_adds() -> None:
    total = sum(
        x.count * x.cin * x.cout // x.groups * prod(x.kernel) * prod(x.out)
        for x in load_workload("resnet50").convolutions
    )
    assert total == 4_087_136_256
    assert load_workload("resnet50").macs == total + 2048 * 1000  # 4.09 G


def test_find_layer() -> None:
    assert find_layer("resnet50/res4_3x3") == ConvLayer(
        name="res4_3x3",
        cin=256,
        cout=256,
        spatial=(14, 14),
        kernel=(3, 3),
        stride=(1, 1),
        padding=((1, 1), (1, 1)),
        dilation=(1, 1),
        count=5,
    )
    assert find_layer("resnet50/conv1").out == (112, 112)


def test_what_ships_can_be_read() -> None:
    assert "resnet50" in workloads()
    for name in workloads():
        workload = load_workload(name)
        assert workload.name == name
        assert all(workload.layer(x.name) is x for x in workload.layers)


FULL = text_of("workload.yaml")


def test_every_form_of_every_field(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(FULL, encoding="utf-8")
    one = ConvLayer(
        name="one",
        cin=4,
        cout=6,
        spatial=(9,),
        kernel=(3,),
        stride=(1,),
        padding=((2, 1),),
        dilation=(1,),
        groups=2,
        count=7,
        input_gradient=False,
    )
    three = ConvLayer(
        name="three",
        cin=1,
        cout=2,
        spatial=(4, 5, 6),
        kernel=(1, 2, 3),
        stride=(2, 1, 1),
        padding=((0, 0), (1, 1), (2, 3)),
        dilation=(2, 2, 2),
    )
    want = Workload(name="net", description="every form of every field", layers=(one, three))
    assert load_workload(path) == load_workload(str(path)) == want
    assert find_layer(f"{path}/three") == three
    assert (one.dims, three.dims, three.out) == (1, 3, (2, 5, 7))


GOOD = "cin: 4, cout: 4, spatial: [5, 5], kernel: 3"


@rows("tests/data/mistakes/calls.yaml", "wrong_layers", "fields, message")
def test_wrong_layers(tmp_path: Path, fields: str, message: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(f"description: d\nlayers:\n  a: {{{fields}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}:3: {message}")


@rows("tests/data/mistakes/calls.yaml", "wrong_files", "text, message")
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_workload(path)
    assert str(caught.value) == f"{path}:{message}"


def test_wrong_names() -> None:
    with pytest.raises(ArgumentError) as caught:
        load_workload("resnet5")
    assert str(caught.value) == (
        "unknown workload 'resnet5' (a file of your own needs its path, which ends in .yaml, .csv "
        "or .onnx); did you mean 'resnet50'?"
    )
    with pytest.raises(ArgumentError) as caught:
        find_layer("resnet50/res4_3x4")
    assert str(caught.value) == (
        "workload resnet50 has no layer 'res4_3x4'; did you mean 'res4_3x3'?"
    )
    for place in ("conv1", "/conv1", "resnet50/", ""):
        with pytest.raises(ArgumentError, match="expected WORKLOAD/LAYER such as resnet50/conv1"):
            find_layer(place)
