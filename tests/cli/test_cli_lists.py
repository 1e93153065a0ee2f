"""``npusim devices``, ``ops`` and ``workloads``: tables for people, JSON for machines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.cli.main import main
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import describe
from npusim.problem.limits.table import documented_operators, load_rules
from npusim.workloads import workloads

Capture = pytest.CaptureFixture[str]


def _json(capsys: Capture, *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _lines(capsys: Capture, *words: str) -> list[str]:
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


def test_devices_show_states_every_figure(capsys: Capture) -> None:
    device = load_device("ascend910")
    lines = _lines(capsys, "devices", "show", "ascend910")
    assert device.digest() in " ".join(lines[:2])
    head = next(at for at, line in enumerate(lines) if line.startswith("---"))
    end = lines.index("SOURCES")
    last = next(at for at, line in enumerate(lines) if line.startswith("AREA AND ENERGY"))
    figures = [line for line in lines[head + 1 : last - 1] if not line.startswith(" ")]
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


def test_devices_show_says_what_the_clock_and_sizes_cost(capsys: Capture) -> None:
    words = ("devices", "show", "tiny", "--set", "clock=2GHz", "--set", "l2.size=4MiB")
    costs = _json(capsys, *words)["costs"]
    plain = _json(capsys, *words[:3])["costs"]
    assert (costs["supply_v"], costs["dynamic_times"], costs["logic_times"]) == (1.5, 2.25, 1.5)
    assert costs["logic_mm2"] == pytest.approx(1.5 * plain["logic_mm2"])
    assert {m["memory"]: m["byte_times"] for m in costs["memories"]}["l2"] == 1.5
    assert {m["byte_times"] for m in plain["memories"]} == {1}
    told = " ".join(" ".join(_lines(capsys, *words)).split())
    assert "for which energies and areas are stated; here 1.5 V; at most 5 V, 9 GHz" in told
    assert "l2 1MiB 4MiB 1.500" in told


def test_devices_show_counts_what_was_fitted_for_another_chip(
    capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: ascend910b2\nname: mine\ndescription: d\n", encoding="utf-8")
    base = load_device("ascend910b2")
    known = base.provenance.values()
    fitted = sum(
        one.confidence in ("fitted", "hypothesis") or one.source in base.carried_over
        for one in known
    )
    told = " ".join(" ".join(_lines(capsys, "devices", "show", str(file))).split())
    assert re.search(rf"{fitted} of \d+ figures that cost time were fitted for another", told)
    shown = _json(capsys, "devices", "show", str(file))["other_chips"]
    assert shown["of_other_chips"] == fitted
    assert "fitted for another chip" not in " ".join(_lines(capsys, "devices", "show", "tiny"))


def test_devices_show_with_a_figure_changed(capsys: Capture) -> None:
    value = _json(capsys, "devices", "show", "tiny", "--set", "memories.L1.size=2MiB")
    row = next(row for row in value["figures"] if row["path"] == "memories.L1.size")
    assert (row["value"], row["confidence"]) == ("2MiB", "assumed")
    assert value["digest"] != load_device("tiny").digest()


def test_ops_show_lists_the_limits_of_a_product(capsys: Capture) -> None:
    table = load_rules("310p", "convolution_backward")
    words = ("ops", "show", "convolution_backward", "--device", "ascend310p")
    lines = _lines(capsys, *words)
    assert lines[0] == (
        "convolution_backward on ascend310p: aclnnConvolutionBackward, "
        "limits of Atlas inference products (310P)"
    )
    math = next(line for line in lines if line.startswith("cube_math_type if compute_dtype = fp32"))
    assert math.split()[5:9] == ["1", "(allow_fp32_down_precision)", "or", "2"]
    assert math.endswith("161002 PAGE")
    assert "PAGE: the operator's documentation page" in lines
    stride = [line.split() for line in lines if line.startswith("stride ")]
    assert ["stride", "up", "to", "63", "error", "TBE"] in stride
    value = _json(capsys, *words)
    assert (value["product"], value["note"]) == ("310p", "")
    found = [(row["parameter"], row["permitted"], row["status"]) for row in value["rules"]]
    assert found == [(rule.parameter, rule.permitted, rule.status) for rule in table.rules]


def test_ops_show_is_short_in_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = _lines(capsys, "ops", "show", "convolution_backward", "--device", "ascend910b2")
    assert max(map(len, lines[1:])) <= 80
    assert len(lines) < 2.5 * len(load_rules("a2", "convolution_backward").rules)


def test_ops_show_without_a_device_has_the_limits_of_all_products(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    lines = _lines(capsys, "ops", "show", "convolution_backward")
    assert "  910: Atlas training products (910) (ascend910)" in lines
    rows = {line.partition("  ")[0]: line for line in lines}
    assert "fp16 or fp32 or bf16 [a2]" in "".join(lines)
    assert "fp16 or fp32 [310p, 910]" in "".join(lines)
    assert "[" not in rows["output_mask"]
    value = _json(capsys, "ops", "--json", "show", "convolution_backward")
    sizes = {row["product"]: len(row["rules"]) for row in value["products"]}
    assert sizes == {
        name: len(load_rules(name, "convolution_backward").rules) for name in ("310p", "910", "a2")
    }


@pytest.mark.parametrize("operator", documented_operators())
def test_ops_show_without_a_device_works_for_every_operator(operator: str, capsys: Capture) -> None:
    assert len(_lines(capsys, "ops", "show", operator)) > 5


@pytest.mark.parametrize("operator", documented_operators())
@pytest.mark.parametrize("device", npusim.devices())
def test_ops_show_works_everywhere(operator: str, device: str, capsys: Capture) -> None:
    table = load_rules(load_device(device).product, operator)
    value = _json(capsys, "ops", "--json", "show", operator, "--device", device)
    assert (value["device"], value["product"]) == (device, table.product)
    assert len(value["rules"]) == len(table.rules)
    lines = _lines(capsys, "ops", "show", operator, "--device", device)
    assert (f"note: {table.note}" in lines) == bool(table.note)


@pytest.mark.parametrize("name", workloads())
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


@pytest.mark.parametrize("words", ["devices", "ops", "workloads"])
def test_tables_that_are_piped_have_80_columns(
    words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
