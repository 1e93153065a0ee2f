"""``npusim devices``, ``ops`` and ``workloads``: tables for people, JSON for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.cli.main import main
from npusim.device.catalog import describe, load_device
from npusim.limits.table import documented_operators, load_rules
from npusim.workloads import load_workload

Capture = pytest.CaptureFixture[str]


def _json(capsys: Capture, *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _lines(capsys: Capture, *words: str) -> list[str]:
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


def test_devices_lists_all_with_their_key_figures(capsys: Capture) -> None:
    lines = _lines(capsys, "devices")
    assert [line.split()[0] for line in lines[2:]] == npusim.devices()
    b2 = next(line for line in lines if line.startswith("ascend910b2"))
    assert "24 x 1 aic + 2 aiv" in b2
    # 24 cubes x 16*16*16 multiply-adds x 2 operations at 1.8 GHz.
    assert b2.split()[-5:] == ["aiv", "1.8GHz", "353.9", "192MiB", "64GiB"]
    (inference,) = (line for line in lines if line.startswith("ascend310p"))
    assert inference.split()[-2:] == ["16MiB", "24GB"]  # sold in decimal GB


def test_tables_of_devices_and_operators_are_short(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = _lines(capsys, "devices")
    assert len(lines) < 3 * len(npusim.devices())
    assert lines[2].split()[:5] == ["ascend310", "Ascend", "310", "2", "x"]
    lines = _lines(capsys, "ops")
    assert any(line.endswith("all but ft78ne, mt7004") for line in lines)
    assert max(map(len, lines)) <= 80


def test_devices_as_json(capsys: Capture) -> None:
    rows = {row["name"]: row for row in _json(capsys, "devices")}
    assert sorted(rows) == npusim.devices()
    tiny = load_device("tiny")
    assert rows["tiny"] == {
        "name": "tiny",
        "description": tiny.description,
        "groups": 4,
        "cores_per_group": {"core": 1},
        "clock_hz": 10**9,
        "peak_fp16_tflops": pytest.approx(4 * 4096 * 2 * 1e9 / 1e12),
        "l2_bytes": 2**20,
        "memory_bytes": 2**30,
        "digest": tiny.digest(),
    }


def test_devices_show_states_every_figure(capsys: Capture) -> None:
    device = load_device("ascend910")
    lines = _lines(capsys, "devices", "show", "ascend910")
    assert device.digest() in " ".join(lines[:2])
    head = next(at for at, line in enumerate(lines) if line.startswith("---"))
    end = lines.index("SOURCES")
    figures = [line for line in lines[head + 1 : end - 1] if not line.startswith(" ")]
    assert [row.split()[0] for row in figures] == [path for path, _, _, _ in describe(device)]
    keys = {row.rpartition(", ")[2].partition(" ")[0] for row in figures}
    told = " ".join(line.strip() for line in lines[end + 1 :])
    assert all(f"{key}: {device.sources[key]}" in told for key in keys)
    assert "A rate is the block m x k x n" in told


@pytest.mark.parametrize("name", npusim.devices())
def test_devices_show_fits_80_columns(
    name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, _lines(capsys, "devices", "show", name))) <= 80


@pytest.mark.parametrize(
    "words",
    [("devices", "show", "tiny", "--json"), ("devices", "--json", "show", "tiny")],
)
def test_devices_show_as_json(words: tuple[str, ...], capsys: Capture) -> None:
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    keys = ("path", "value", "confidence", "source")
    figures = [tuple(row[key] for key in keys) for row in value["figures"]]
    assert figures == describe(load_device("tiny"))


def test_devices_show_tells_the_range_a_figure_states_or_has_by_its_confidence(
    capsys: Capture,
) -> None:
    changed = ("--set", "paths.GM->L1.startup=200cycle")  # (assumed, user): 30 % either way
    words = ("devices", "show", "ascend910b2", *changed)
    rows = {row["path"]: row["range"] for row in _json(capsys, *words)["figures"]}
    assert rows["paths.GM->L1.startup"] == ["140cycle", "260cycle"]
    assert rows["groups"] is rows["vector.startup"] is None
    lines = {line.split()[0]: line for line in _lines(capsys, *words) if line.strip()}
    told = ["200cycle,", "140..260", "assumed,", "user"]
    assert lines["paths.GM->L1.startup"].split()[1:] == told
    assert lines["vector.startup"].split()[1:3] == ["2cycle", "measured,"]


def test_devices_show_with_a_figure_changed(capsys: Capture) -> None:
    value = _json(capsys, "devices", "show", "tiny", "--set", "memories.L1.size=2MiB")
    row = next(row for row in value["figures"] if row["path"] == "memories.L1.size")
    assert (row["value"], row["confidence"]) == ("2MiB", "assumed")
    assert value["digest"] != load_device("tiny").digest()


def test_ops_tells_what_each_computes_and_where(capsys: Capture) -> None:
    rows = {row["name"]: row for row in _json(capsys, "ops")}
    assert list(rows) == npusim.operators()
    assert all(row["computes"] for row in rows.values())
    dsps = ["ft78ne", "mt7004"]
    cubes = [name for name in npusim.devices() if name not in dsps]
    for name, row in rows.items():
        of_dsps = name in ("conv_grad_filter", "conv_grad_input") or name.startswith("deconv")
        assert row["devices"] == (dsps if of_dsps else cubes), name
    lines = _lines(capsys, "ops")
    first = rows[npusim.operators()[0]]
    assert lines[2].split() == f"{first['name']} {first['computes']} all but ft78ne, mt7004".split()


def test_ops_show_lists_the_limits_of_a_product(capsys: Capture) -> None:
    table = load_rules("310p", "convolution_backward")
    words = ("ops", "show", "convolution_backward", "--device", "ascend310p")
    lines = _lines(capsys, *words)
    assert lines[0] == (
        "convolution_backward on ascend310p: aclnnConvolutionBackward, "
        "limits of Atlas inference products (310P)"
    )
    assert len(lines) == 4 + len(table.rules)
    math = next(line for line in lines if line.startswith("cube_math_type (compute_dtype = fp32)"))
    assert math.split()[4:8] == ["1", "(allow_fp32_down_precision)", "or", "2"]
    assert "161002" in math
    assert math.endswith("the operator's documentation page")
    stride = [line.split() for line in lines if line.startswith("stride ")]
    assert ["stride", "up", "to", "63", "error"] in [words[:5] for words in stride]
    value = _json(capsys, *words)
    assert (value["product"], value["note"]) == ("310p", "")
    found = [(row["parameter"], row["permitted"], row["status"]) for row in value["rules"]]
    assert found == [(rule.parameter, rule.permitted, rule.status) for rule in table.rules]


@pytest.mark.parametrize("operator", documented_operators())
@pytest.mark.parametrize("device", npusim.devices())
def test_ops_show_works_everywhere(operator: str, device: str, capsys: Capture) -> None:
    table = load_rules(load_device(device).product, operator)
    value = _json(capsys, "ops", "--json", "show", operator, "--device", device)
    assert (value["device"], value["product"]) == (device, table.product)
    assert len(value["rules"]) == len(table.rules)
    lines = _lines(capsys, "ops", "show", operator, "--device", device)
    assert (f"note: {table.note}" in lines) == bool(table.note)


def test_workloads_count_shapes_and_layers(capsys: Capture) -> None:
    rows = {row.pop("name"): row for row in _json(capsys, "workloads")}
    assert list(rows) == npusim.workloads.workloads()
    assert rows["resnet50"] == {
        "shapes": 24,
        "layers": 54,
        "macs": 4_089_184_256,
        "description": load_workload("resnet50").description,
    }
    lines = _lines(capsys, "workloads")[2:]
    assert lines[list(rows).index("resnet50")].split()[:4] == ["resnet50", "24", "54", "4.09"]


def test_workloads_show_lists_the_layers(capsys: Capture) -> None:
    lines = _lines(capsys, "workloads", "show", "resnet50")
    net = load_workload("resnet50")
    names = [layer.name for layer in net.layers]
    end = lines.index("")
    others = lines.index("", end + 1)
    assert [line.split()[0] for line in lines[4:others]] == names
    assert lines[others + 1].split() == ["element-wise", "input", "output", "count"]
    assert lines[others + 5].split() == ["max_pool", "64x112x112", "64x56x56", "1"]
    assert len(lines[others + 3 :]) == len(net.elementwise)
    assert lines[4].split() == (
        "conv1 3 64 224x224 7/2 3 112x112 1".split()  # noqa: SIM905 - as printed
    )
    told = _json(capsys, "workloads", "show", "resnet50")
    layers = told["layers"]
    assert [row["kind"] for row in told["elementwise"]] == [one.kind for one in net.elementwise]
    assert [layer["name"] for layer in layers] == names
    assert layers[0]["output"] == [112, 112]
    first, second = told["nodes"][:2]
    assert (first["name"], first["layer"], first["inputs"]) == ("conv1", "conv1", ["input"])
    assert (second["name"], second["kind"], second["inputs"]) == (
        "batch_norm",
        "batch_norm",
        ["conv1"],
    )


@pytest.mark.parametrize("name", npusim.workloads.workloads())
def test_layers_of_a_workload_fit_80_columns(name: str, capsys: Capture) -> None:
    lines = _lines(capsys, "workloads", "show", name)
    assert [line for line in lines if len(line) > 80] == []
    of_several = {"convnext_tiny": "groups", "mobilenet_v1": "groups", "wavenet": "dilation"}
    for column in ("groups", "dilation"):
        assert (column in lines[2]) == (column in of_several.get(name, lines[2]))


def test_uneven_padding_is_written_as_the_option_takes_it(capsys: Capture, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "description: one\nlayers:\n"
        "  a: {cin: 1, cout: 1, spatial: [4, 4], kernel: 2, padding: [[0, 1], 2]}\n"
    )
    assert _lines(capsys, "workloads", "show", str(own))[4].split()[5] == "0,1,2,2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("devices", "show", "ascend91"), "unknown device 'ascend91'; did you mean 'ascend910'?"),
        (("devices", "show", "none.yaml"), "there is no device file 'none.yaml'; correct the path"),
        (("devices", "shw"), "argument ACTION: unknown 'shw'; did you mean 'show'?"),
        (("devices", "show"), "the following arguments are required: NAME; see 'npusim devices"),
        (("devices", "show", "tiny", "--sat", "a=b"), "unrecognized argument '--sat'; did you"),
        (("ops", "show", "matmul"), "the following arguments are required: --device; see 'npusim"),
        (
            ("ops", "show", "im2col_backwrd", "--device", "tiny"),
            "operator 'im2col_backwrd' has no documented limits; did you mean 'im2col_backward'?",
        ),
        (("workloads", "show", "resnet5"), "unknown workload 'resnet5'"),
    ],
)
def test_wrong_names_are_told(words: tuple[str, ...], message: str, capsys: Capture) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"npusim: error: {message}")


@pytest.mark.parametrize("words", ["devices", "ops", "workloads"])
def test_tables_that_are_piped_have_80_columns(
    words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
