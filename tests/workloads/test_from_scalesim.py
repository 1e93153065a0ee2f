"""SCALE-Sim's topologies as workloads: sizes, padding in three ways, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.cli.main import main
from npusim.workloads import ConvLayer, LinearLayer, find_layer, read_network
from npusim.workloads.from_scalesim import PADDINGS, workload
from tests.tables import rows

HEAD = (
    "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, "
    "Strides,\n"
)
ROWS = "Conv1, 30, 20, 3, 5, 16, 32, 1,\nConv/2, 26, 16, 1, 1, 32, 64, 2,\nConv1,7,7,7,7,64,10,1,\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "net.csv").write_text(HEAD + ROWS, encoding="utf-8")
    return tmp_path / "net.csv"


def convolutions(file: Path, padding: str | None = None) -> list[ConvLayer]:
    found = read_network(file, padding=padding).layers
    return [layer for layer in found if isinstance(layer, ConvLayer)]


def test_maps_are_taken_as_they_are_stated(file: Path) -> None:
    net = read_network(str(file))
    first, second, third = convolutions(file)
    assert [one.name for one in net.layers] == ["Conv1", "Conv_2", "Conv1_2"]
    assert (first.cin, first.cout, first.spatial, first.kernel) == (16, 32, (30, 20), (3, 5))
    assert first.padding == ((0, 0), (0, 0))
    assert first.out == (28, 16), "a valid convolution"
    assert (second.stride, second.out) == ((2, 2), (13, 8))
    assert third.out == (1, 1)
    assert [one.input_gradient for one in net.layers] == [False, True, True]
    assert net.macs == 28 * 16 * 32 * 16 * 15 + 13 * 8 * 64 * 32 + 49 * 64 * 10
    assert net.description == "net.csv (SCALE-Sim topology, padding none), one image"
    (note,) = net.notes
    assert note.startswith("net.csv: padding none, as nothing was asked for: maps have the sizes")
    assert find_layer(f"{file}/Conv1") == first


def test_padding_is_in_the_sizes_or_around_them(file: Path) -> None:
    plain = convolutions(file, "none")
    inside, around = convolutions(file, "included"), convolutions(file, "same")
    assert [one.out for one in inside] == [one.out for one in plain]
    assert inside[0].spatial == (28, 16)
    assert inside[0].padding == around[0].padding == ((1, 1), (2, 2))
    assert inside[2].spatial == (1, 1)
    assert [one.out for one in around] == [(30, 20), (13, 8), (7, 7)]
    assert [one.spatial for one in around] == [one.spatial for one in plain]
    for way in PADDINGS:
        (note,) = read_network(file, padding=way).notes
        assert note.startswith(f"net.csv: padding {way}: {PADDINGS[way]} (another way: --padding ")


def test_an_even_filter_has_the_longer_side_behind(tmp_path: Path) -> None:
    (tmp_path / "even.csv").write_text(f"{HEAD}a, 8, 8, 2, 4, 1, 1, 2,\n", encoding="utf-8")
    (layer,) = convolutions(tmp_path / "even.csv", "same")
    assert layer.padding == ((0, 1), (1, 2))
    assert layer.out == (4, 4)


def test_products_have_rows_and_no_padding(tmp_path: Path) -> None:
    file = tmp_path / "gemm.csv"
    file.write_text("Layer, M, N, K,\nqkv, 64, 192, 48,\n\nffn, 64, 256, 48\n", encoding="utf-8")
    net = read_network(file)
    assert net.layers == (
        LinearLayer(name="qkv", rows=64, cout=192, cin=48, input_gradient=False),
        LinearLayer(name="ffn", rows=64, cout=256, cin=48),
    )
    assert net.notes == ()
    with pytest.raises(ArgumentError, match="products of matrices, which have no padding"):
        read_network(file, padding="same")


def test_two_strides_and_other_spellings(tmp_path: Path) -> None:
    file = tmp_path / "net.txt"
    file.write_text(
        "layer_name,IFMAP_Height,ifmap width,Filter Height,Filter Width,Channels,Num Filters,"
        "Stride Height,Stride Width\na,9,9,3,3,1,1,2,1\n",
        encoding="utf-8-sig",
    )
    (layer,) = convolutions(file)
    assert (layer.stride, layer.out) == ((2, 1), (4, 7))


@rows("tests/data/mistakes/networks.yaml", "wrong_topologies", "text, said")
def test_mistakes_name_file_and_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "net.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError) as refused:
        workload(file)
    assert str(refused.value).startswith(f"{file}{said}")


def test_a_padding_must_be_known_and_have_a_meaning(file: Path) -> None:
    with pytest.raises(ArgumentError, match="padding is 'sane'; did you mean 'same'"):
        read_network(file, padding="sane")
    with pytest.raises(ArgumentError, match="only a SCALE-Sim topology leaves it open"):
        read_network("resnet50", padding="same")
    with pytest.raises(ArgumentError, match="a workload states its sizes"):
        read_network(file, (3, 4, 4))


@pytest.mark.compiled
def test_commands_take_it_and_say_what_the_padding_was(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["net", str(file), "--device", "tiny", "--pass", "forward"]
    assert main([*words, "--padding", "included"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "- net.csv: padding included: the sizes of maps that the file states contain" in told
    assert main([*words, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes[0].startswith("net.csv: padding none, as nothing was asked for")
    result = npusim.network(str(file), device="tiny", passes="forward")
    assert list(result.notes) == notes
    assert main(["workloads", "show", str(file), "--padding", "same"]) == 0
    assert "note: net.csv: padding same: " in capsys.readouterr().out
