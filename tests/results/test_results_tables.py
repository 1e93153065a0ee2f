"""Column contracts of the tables, their sums, and the accessors of a result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npusim.base.errors import ArgumentError
from npusim.base.reasons import REASONS
from npusim.results import Result, tables


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
