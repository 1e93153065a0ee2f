"""Files are known by what they hold, and every door refuses another kind as what it is."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.base.content import Content, content_of
from npusim.base.errors import ArgumentError
from npusim.base.resources import configs
from npusim.cli.main import main
from npusim.kernels.vendor.cann import load_cann_tiling
from npusim.kernels.vendor.imported import ascendc_tiling, catlass_tiling
from npusim.machine.device.catalog import load_device
from npusim.study.space import load_study
from npusim.workloads import read_network

TOPOLOGY = (
    "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, "
    "Strides,\nConv1, 6, 6, 3, 3, 16, 16, 1,\n"
)

#: A little of each kind of text.
TEXTS = {
    Content.WORKLOAD: "# mine\ndescription: d\nlayers:\n  a: {cin: 1, cout: 1, rows: 1}\n",
    Content.TOPOLOGY: TOPOLOGY,
    Content.DEVICE: "name: mine\nbase: tiny\ndescription: d\n",
    Content.STUDY: "network: resnet50\ndevice: tiny\nvary: {groups: '1,2'}\n",
    Content.TILING: '{"baseM": 16, "baseN": 16}',
    Content.GATE: "cases:\n  - run: matmul\n",
    Content.BASELINE: '{"npusim_gate": {"a": {"": 7}}}',
    Content.CONSTANTS: "constants:\n  - {path: l2.read}\n",
    Content.CHOICES: "kernels:\n  - {tiling: auto}\n",
    Content.RESULT: '{"operator": "matmul", "npusim_version": "0.1.0"}',
    Content.TRACE: '{"traceEvents": []}',
    Content.INSTRUCTIONS: '{"kernel": "k", "tensors": {}, "buffers": {}}\n{"core": "cube0"}\n',
    Content.MEASURED: "# rows\nid,chip,op,M\na,910B2,gemm,16\n",
    Content.PROFILE: "Op Name,OP Type,Task Duration(us)\nmm,MatMulV3,10\n",
    Content.PYTHON: '#!/usr/bin/env python\n"""A kernel."""\n\nimport numpy\n',
}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_are_known_by_keys_columns_and_statements(kind: Content, tmp_path: Path) -> None:
    file = tmp_path / "called.anything"
    file.write_text(TEXTS[kind], encoding="utf-8")
    assert content_of(file) is kind


def test_binary_files_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    array, pickled = tmp_path / "a.npy", tmp_path / "a.pkl"
    np.save(array, np.zeros(3))
    pickled.write_bytes(pickle.dumps([1]))
    many = tmp_path / "many.npz"
    np.savez(many, a=np.zeros(3))
    assert content_of(array) is Content.ARRAY
    assert content_of(pickled) is Content.PICKLE
    assert content_of(many) is Content.ARCHIVE
    for head, kind in (
        (b"\x08\x08\x12\x07pytorch", Content.ONNX),
        (b"\x89HDF\r\n\x1a\n", Content.HDF5),
        (b"\x1f\x8b\x08", Content.GZIP),
        (b"\x00\x01\x02", Content.BINARY),
    ):
        (tmp_path / "some").write_bytes(head)
        assert content_of(tmp_path / "some") is kind


def test_an_onnx_file_is_known_whatever_it_is_called(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    shape = [1, 3, 6, 6]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"])],
        "g",
        [value("x", 1, shape)],
        [value("y", 1, [1, 4, 4, 4])],
        [onnx.numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w")],
    )
    file = tmp_path / "net.model"
    file.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    assert content_of(file) is Content.ONNX
    assert read_network(str(file)).macs == 4 * 16 * 27
    with pytest.raises(ArgumentError, match=r"net\.model is an ONNX file, not a device file; "):
        load_device(str(file))


def test_what_ships_is_known() -> None:
    kinds = {"devices": Content.DEVICE, "workloads": Content.WORKLOAD, "gates": Content.GATE}
    for folder, kind in kinds.items():
        for file in Path(str(configs() / folder)).glob("*.yaml"):
            assert content_of(file) is kind, file


def test_what_is_not_known_goes_on_to_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for text in ("", "cube: {}\n", "just a sentence\n", "[1, 2]\n", "{broken"):
        file.write_text(text, encoding="utf-8")
        assert content_of(file) is None
        with pytest.raises(npusim.NpusimError, match=r"mine\.yaml:1: "):
            load_device(file)
    assert content_of(tmp_path / "none") is None
    assert content_of(tmp_path) is None


#: What each door takes, and how it asks for it.
DOORS: dict[str, tuple[set[Content], Callable[[Path], object]]] = {
    "a network": ({Content.WORKLOAD, Content.TOPOLOGY, Content.ONNX}, read_network),
    "a device file": ({Content.DEVICE}, load_device),
    "a study file": ({Content.STUDY}, load_study),
    "a tiling": ({Content.TILING}, load_cann_tiling),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_what_another_file_is(door: str, tmp_path: Path) -> None:
    takes, read = DOORS[door]
    for kind, text in TEXTS.items():
        if kind in takes:
            continue
        file = tmp_path / "given.yaml"  # the ending that a door would take
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ArgumentError) as refused:
            read(file)
        assert str(refused.value) == f"{file} is {kind.called}, not {door}; {kind.taken_by}"


def test_tilings_of_others_and_commands_say_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.txt").write_text(TEXTS[Content.WORKLOAD], encoding="utf-8")
    Path("mine.txt").write_text(TEXTS[Content.DEVICE], encoding="utf-8")
    for read in (ascendc_tiling, catlass_tiling):
        with pytest.raises(ArgumentError, match=r"net\.txt is a workload file, not a tiling"):
            read("net.txt")
    for words, said in (
        (["net", "mine.txt", "--device", "tiny"], "mine.txt is a device file, not a network"),
        (["sweep", "net.txt"], "net.txt is a workload file, not a study file"),
        (
            ["run", "matmul", "--m", "9", "--k", "9", "--n", "9", "--device", "net.txt"],
            "net.txt is a workload file, not a device file; `npusim net FILE` takes it",
        ),
        (
            ["run", "matmul", "--m", "9", "--k", "9", "--n", "9", "--device", "mine.txt"],
            "mine.txt is a file, and the name of a device file ends in .yaml; rename it",
        ),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert main(["workloads", "show", "net.txt"]) == 0, "a workload may be called anything"


@pytest.mark.compiled
def test_a_ranking_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npusim.compat.tuners import product  # noqa: PLC0415 - it imports the compiled engine

    monkeypatch.chdir(tmp_path)
    Path("net.txt").write_text(TEXTS[Content.WORKLOAD], encoding="utf-8")
    with pytest.raises(ArgumentError, match="is a workload file, not a device file"):
        npusim.rank(product(16, 16, 16), [], "./net.txt")
