"""Column contracts of the tables, their sums, and the accessors of a result.

The helper behind every table of text: what is aligned how, and what gives way on a terminal.

The summary of a PyTorch log, from plain rows: layers by name, shares, refusals.
"""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pytest

from npusim.base.errors import ArgumentError
from npusim.base.reasons import REASONS
from npusim.base.records import replace
from npusim.results import Result
from npusim.results.facts import tables
from npusim.results.writers import text_layout as lines
from npusim.results.writers.log_text import render


def test_totals_add_launches(result: Result) -> None:
    whole = sum(run.cycles + run.launch_cycles for run in result.runs)
    assert result.cycles == whole
    assert result.time_us == pytest.approx(whole / 1800)
    assert result.kernels["time_us"].sum() == pytest.approx(result.time_us)


def test_kernel_columns(result: Result) -> None:
    table = result.kernels
    assert tuple(table.columns) == tables.KERNEL_COLUMNS
    assert table["name"].tolist() == ["trans_data", "conv"]
    assert table["cycles"].tolist() == [run.cycles for run in result.runs]
    assert table["bound"].tolist() == ["main memory", "cube"]
    assert (table["bound_us"] <= table["time_us"] - table["launch_us"]).all()


def test_pipe_rows_sum_to_makespan(result: Result) -> None:
    table = result.pipes
    assert tuple(table.columns) == ("kernel", "core", "pipe", *REASONS)
    cycles = dict(zip(result.kernels["name"], result.kernels["cycles"], strict=True))
    assert (table[list(REASONS)].sum(axis=1) == table["kernel"].map(cycles)).all()
    conv = table[(table["kernel"] == "conv") & (table["core"] == "aic0")]
    assert conv["pipe"].tolist() == ["S", "MTE2", "MTE1", "M", "FIX"]


def test_cores_sort_by_number(result: Result) -> None:
    run = result.runs[1]
    rows = tuple(row._replace(core=row.core.replace("1", "10")) for row in run.pipes)
    extra = tuple(row._replace(core="aic2") for row in run.pipes if row.core == "aic0")
    table = replace(result, runs=(replace(run, pipes=rows + extra),)).pipes
    assert list(dict.fromkeys(table["core"])) == ["aic0", "aic2", "aic10"]


def test_traffic_columns_and_sums(result: Result) -> None:
    table = result.traffic
    assert tuple(table.columns) == tables.TRAFFIC_COLUMNS
    reads = table[table["src"] == "GM"]
    assert (reads["hit_bytes"] + reads["miss_bytes"] == reads["bytes"]).all()
    at_gm = table[(table["src"] == "GM") | (table["dst"] == "GM")]
    assert at_gm["bytes"].sum() == result.kernels["gm_bytes"].sum()


def test_bounds_are_shares_of_the_simulated_time(result: Result) -> None:
    table = result.bounds
    assert tuple(table.columns) == tables.BOUND_COLUMNS
    cube = table[table["resource"] == "cube"].iloc[0]
    assert cube["share"] == pytest.approx(cube["cycles"] / result.runs[1].cycles)


def test_timeline_is_in_cycles_of_the_call(result: Result) -> None:
    table = result.timeline
    first, second = result.runs
    assert tuple(table.columns) == tables.TIMELINE_COLUMNS
    assert len(table) == first.instructions + second.instructions
    by_kernel = table.groupby("kernel", observed=True)
    assert by_kernel["start"].min()["trans_data"] == first.launch_cycles
    assert by_kernel["start"].min()["conv"] == (
        first.launch_cycles + first.cycles + second.launch_cycles
    )
    assert table["end"].max() == result.cycles
    assert by_kernel["macs"].sum()["conv"] == second.macs
    mmad = table[table["op"] == "mmad"]
    assert set(mmad["pipe"]) == {"M"}
    assert set(mmad["line"]) == {"conv.py:57"}
    assert set(table[table["waited"] > 0]["reason"]) == {"data", "space"}


def test_timeline_not_kept_says_how_to_keep_it(bare_result: Result) -> None:
    with pytest.raises(ArgumentError, match=r"trans_data, conv was not kept.*timeline=True"):
        _ = bare_result.timeline


def test_outputs_by_name(result: Result, bare_result: Result) -> None:
    assert result.grad_input is None
    assert result.grad_bias is None
    weight = result.grad_weight
    assert weight is not None
    assert weight.shape == (2, 3)
    assert replace(bare_result, outputs=None).grad_weight is None


def test_outputs_must_match_names(result: Result) -> None:
    with pytest.raises(ArgumentError, match="1 outputs for 2 names"):
        replace(result, outputs=(np.zeros(1),))


ROWS = [("name", "what it is", "us"), ("a", "one that is long enough to be wrapped twice", "1.0")]


def test_the_widest_text_is_wrapped_to_fit() -> None:
    found = lines.columns(ROWS, left=2, width=30)
    assert max(map(len, found)) <= 30
    assert found[1] == "a     one that is long     1.0"
    assert [line.strip() for line in found[2:]] == ["enough to be", "wrapped twice"]
    assert lines.columns(ROWS, left=2, width=100) == lines.columns(ROWS, left=2)


def test_what_cannot_be_narrowed_stays_whole() -> None:
    assert lines.columns([("name", "1" * 40)], width=20) == ["name  " + "1" * 40]


def test_long_heads_are_parted_before_columns_are() -> None:
    head, rows = ("groups", "memories.L1.size", "time_us"), [("12", "1MiB", "1.5")]
    assert lines.table(head, rows, (), 30) == [
        "        memories.",
        "groups    L1.size  time_us",
        "--------------------------",
        "    12       1MiB      1.5",
    ]
    assert len(lines.table(head, rows, (), 80)) == 3
    assert max(map(len, lines.table(head, [], (), 30))) <= 30


@pytest.mark.parametrize("width", [24, 40, 80])
def test_columns_without_room_follow_below(width: int) -> None:
    head = ["id", *(f"m{i}" for i in range(30))]
    rows = [[f"row {n}", *(str(n * i) for i in range(30))] for n in range(3)]
    told = lines.table(head, rows, 1, width)
    assert max(map(len, told)) <= width
    parts = "\n".join(told).split("\n\n")
    assert all(part.startswith("id") for part in parts)
    for at, row in enumerate(rows):
        cells = [part.splitlines()[2 + at].removeprefix(row[0]).split() for part in parts]
        assert [cell for part in cells for cell in part] == row[1:]


def row(layer: str, result: int | None, **changes: Any) -> dict[str, Any]:
    usual = {
        "layer": layer,
        "result": result,
        "time_us": 10.0,
        "dtype": "fp32",
        "stride": (1, 1),
        "input": (2, 3, 8, 8),
        "weight": (4, 3, 3, 3),
        "error_grad_input": None,
        "error_grad_weight": None,
        "error_grad_bias": None,
        "ok": None,
        "reason": "",
    }
    return {**usual, **changes}


def test_a_long_name_keeps_its_end_and_shows_that_it_had_a_beginning() -> None:
    name = "model.backbone.stages.3.blocks.17.branch.body.conv2"
    line = render("tiny", 10.0, [row(name, 0)]).splitlines()[3]
    shown = line.split()[0]
    assert shown == "..." + name[-45:]
    assert name.endswith(shown.removeprefix("..."))


def test_the_worst_error_is_shown_and_one_without_a_number_is_worse_than_any() -> None:
    rows = [row("a", 0, error_grad_input=1e-3, error_grad_weight=2e-2, ok=False)]
    assert "1 beyond tolerance" in render("tiny", 10.0, rows)
    assert " 2.0e-02" in render("tiny", 10.0, rows)
    rows.append(row("a", 0, error_grad_bias=nan, ok=False))
    assert " nan" in render("tiny", 20.0, rows)
