"""``npusim.compare``: what differs between two calls, and nothing between a call and itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.kernels.matmul.matmul import Tiling
from npusim.results import Result
from npusim.results.comparison import Comparison
from tests.machine.timing.test_engines_agree import CALLS, operator_calls

SMALL = Tiling(base_m=16, base_n=16, base_k=16)


def product(device: Any = "tiny", **options: Any) -> Result:
    a, b = npusim.spec((64, 96), "fp16"), npusim.spec((96, 32), "fp16")
    return npusim.ops.matmul(a, b, device=device, timeline=True, **options)


def backward(device: str = "tiny", **options: Any) -> Result:
    dy, x, w = (npusim.spec(s, "fp16") for s in ((1, 24, 6, 6), (1, 20, 6, 6), (24, 20, 3, 3)))
    return npusim.ops.convolution_backward(dy, x, w, padding=1, device=device, **options)


def saved(result: Result, path: Path) -> Path:
    path.write_text(json.dumps(result.to_json()), encoding="utf-8")
    return path


def changed(comparison: Comparison, what: str) -> dict[tuple[str, str], tuple[Any, Any]]:
    return {
        (row["kernel"], row["name"]): (row["a"], row["b"])
        for row in comparison.rows
        if row["what"] == what
    }


@pytest.mark.parametrize(("device", "role", "name"), operator_calls()[::7])
def test_a_call_and_itself_do_not_differ(device: str, role: str, name: str, tmp_path: Path) -> None:
    result = CALLS[role][name](device=device)
    file = saved(result, tmp_path / "result.json")
    for a, b in ((result, result), (result, file), (file, str(file))):
        comparison = npusim.compare(a, b)
        assert comparison.empty, comparison.rows
        assert comparison.text().endswith("\nno difference\n")
        assert comparison.table.empty
        assert list(comparison.table.columns) == list(Comparison.columns)
        assert comparison.to_json()["changes"] == []
        assert comparison.speedup == 1


def test_a_tiling_changes_times_waits_and_traffic() -> None:
    a, b = product(), product(tiling=SMALL)
    comparison = npusim.compare(a, b)
    assert set(changed(comparison, "call")) == set()
    assert set(changed(comparison, "figure")) == set()
    tilings = changed(comparison, "size")["matmul", "tiling"]
    assert tilings == (a.runs[0].tiling, b.runs[0].tiling)
    assert changed(comparison, "time")["matmul", "time_us"] == (a.time_us, b.time_us)
    loads = {
        side: sum(row.bytes for row in r.runs[0].traffic if row[:3] == ("GM", "L1", "b"))
        for side, r in (("a", a), ("b", b))
    }
    assert changed(comparison, "traffic")["matmul", "GM->L1 b bytes"] == tuple(loads.values())
    frame = comparison.table
    rows = frame[(frame["kernel"] == "matmul") & (frame["name"] == "time_us")]
    assert list(rows["change"]) == [pytest.approx(b.time_us - a.time_us)]
    assert comparison.speedup == pytest.approx(a.time_us / b.time_us)


def test_waits_are_means_over_cores_that_run_in_microseconds() -> None:
    a, b = product(), product(tiling=SMALL)
    waits = changed(npusim.compare(a, b), "wait")
    for place, r in enumerate((a, b)):
        busy = r.pipes[r.pipes["pipe"] == "MTE2"]["busy"].sum() / r.runs[0].cores
        assert waits["matmul", "MTE2 busy"][place] == pytest.approx(busy / 1000)


def test_devices_differ_in_figures_where_they_are_known(tmp_path: Path) -> None:
    device = npusim.load_device("tiny")
    other = device.replace("main_memory.read", "32B/cycle").replace("groups", "2")
    a, b = product(device), product(other)
    assert changed(npusim.compare(a, b), "figure") == {
        ("", "groups"): ("4", "2"),
        ("", "main_memory.read"): ("64B/cycle (64GB/s)", "32B/cycle (32GB/s)"),
    }
    file = npusim.compare(a, saved(b, tmp_path / "b.json"))
    assert set(changed(file, "call")) == {("", "device_digest")}
    assert changed(file, "figure") == {}
    text = npusim.compare(a, b).text()
    assert "  main_memory.read: 64B/cycle (64GB/s) -> 32B/cycle (32GB/s)\n" in text


def test_kernels_of_one_name_are_told_apart_and_missing_ones_are_named() -> None:
    a, b = backward(), backward(output_mask=(True, True, False))
    comparison = npusim.compare(a, b)
    alone = changed(comparison, "kernel")
    ends = {name: times for (name, _), times in alone.items()}
    assert ends["bias_grad"][1] is None
    assert "trans_data #2" in comparison.names
    assert all(row["kernel"] == "bias_grad" or row["what"] != "kernel" for row in comparison.rows)
    assert len(comparison.names) == len(a.runs)


def test_the_text_fits_80_columns_and_says_what_is_largest() -> None:
    dy, x, w = (
        npusim.spec(s, "fp16") for s in ((32, 128, 56, 56), (32, 256, 56, 56), (128, 256, 1, 1))
    )
    large = [npusim.ops.convolution_backward(dy, x, w, device=f"ascend910b{n}") for n in (2, 4)]
    pairs = ((product(), product("ascend910")), (backward(), backward("ascend910b2")), large)
    for a, b in pairs:
        comparison = npusim.compare(a, b, labels=("before", "after"))
        lines = comparison.text().splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("A           before: ")
        assert any(line.startswith("KERNELS") for line in lines)
        assert any(line.startswith("TRAFFIC") for line in lines)
        assert f"{len(comparison.rows)} differences" in repr(comparison)


def test_a_trace_has_the_processes_of_both(tmp_path: Path) -> None:
    a, b = product(), product(tiling=SMALL)
    npusim.compare(a, b).save_trace(tmp_path / "both.json")
    value = json.loads((tmp_path / "both.json").read_text(encoding="utf-8"))
    names = {
        event["pid"]: event["args"]["name"]
        for event in value["traceEvents"]
        if event["name"] == "process_name"
    }
    cores = [f"core{i}" for i in range(a.device.count("cube"))]  # those left idle too
    assert sorted(names.values()) == sorted(
        f"{letter} {what}" for letter in "AB" for what in ("device tiny", *cores)
    )
    events = [event for event in value["traceEvents"] if event["ph"] == "X"]
    slices = [event for event in events if event.get("cat") != "wait"]
    of_a = [event for event in slices if names[event["pid"]].startswith("A ")]
    assert len(of_a) == a.runs[0].instructions + 2, "and the launch and the kernel"
    assert len(slices) - len(of_a) == b.runs[0].instructions + 2
    ends = [max(e["ts"] + e["dur"] for e in slices if names[e["pid"]][0] == x) for x in "AB"]
    assert ends == [pytest.approx(a.time_us), pytest.approx(b.time_us)]
    assert value["otherData"]["b"]["tilings"] == [["matmul", b.runs[0].tiling]]


def test_a_page_has_the_text_and_the_kernels_of_both(tmp_path: Path) -> None:
    comparison = npusim.compare(product(), product(tiling=SMALL))
    comparison.save(tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "BUSIEST PIPES" in page
    assert "Kernels of both" in page
    assert 'class="bokeh"' in page


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    result = product()
    file = saved(result, tmp_path / "result.json")
    with pytest.raises(ArgumentError, match=r"result\.json is a file of results, which has no"):
        npusim.compare(file, result).save_trace(tmp_path / "trace.json")
    with pytest.raises(ArgumentError, match="A is 3; it is a Result, or a file"):
        npusim.compare(3, result)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"none\.json: cannot be read: No such file"):
        npusim.compare(result, tmp_path / "none.json")
    (tmp_path / "odd.json").write_text('{"operator": "x"}', encoding="utf-8")
    with pytest.raises(ArgumentError, match="is no result of a call: it lacks problem, device"):
        npusim.compare(tmp_path / "odd.json", result)
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ArgumentError, match="is no result: it holds a list"):
        npusim.compare(tmp_path / "list.json", result)
