"""Files of measured points: the ones that ship, and what is wrong with others."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from npusim.base.errors import ArgumentError
from npusim.kernels.matmul.measured import spelled_order, table
from npusim.silicon.rows import CallRow, KernelRow, NetworkRow, Unreadable
from npusim.silicon.sheet import SCHEMAS, Schema, Sheet, read_sheet, shipped_sheets, shipped_steps
from tests.tables import rows

HEAD = "id,chip,op,M,buffers_l1,switches,time_us,time_kind,trust\n"


def sheet(tmp_path: Path, text: str) -> Sheet:
    file = tmp_path / "points.csv"
    file.write_text(text, encoding="utf-8")
    return read_sheet(file)


#: Types of fields by what the cells of their column hold.
TYPES = {
    "text": str | None,
    "count": int | None,
    "number": float | None,
    "time": float | None,
    "flag": bool | None,
    "words": tuple[str, ...],
    "slots": tuple[int, int] | None,
    "sizes": tuple[int, ...] | None,
    "mask": tuple[bool, bool, bool] | None,
}


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.file)
def test_fields_are_the_columns_and_hold_what_cells_do(schema: Schema) -> None:
    lines = [line for line in table("columns.csv") if line["file"] in (schema.file, "all")]
    columns = {line["column"]: TYPES[line["holds"]] for line in lines}
    names = {"id": str, "chip": str, "family": str, schema.column: str}
    hints = get_type_hints(schema.row)
    derived = {"possible_chips": tuple[str, ...]}  # of the cells of chip
    assert {f.name: hints[f.name] for f in fields(schema.row)} == columns | names | derived
    assert {f"{part}_us" for part in schema.row.parts} <= columns.keys()


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.file)
def test_an_empty_cell_is_none_or_no_words(schema: Schema) -> None:
    cells: dict[str, Any] = {"id": "a", "chip": "910B1", schema.column: "a"}
    row = schema.row(**cells)
    for line in table("columns.csv"):
        if line["file"] in (schema.file, "all"):
            assert getattr(row, line["column"]) == (() if line["holds"] == "words" else None)


def test_what_ships_is_read_whole() -> None:
    kernels, calls = shipped_sheets()
    assert (len(kernels.rows), len(calls.rows)) == (166, 93)
    assert all(isinstance(row, KernelRow) for row in kernels.rows)
    assert all(isinstance(row, CallRow) for row in calls.rows)
    assert kernels.ignored == calls.ignored == ()
    for row in (*kernels.rows, *calls.rows):
        assert isinstance(row, KernelRow | CallRow)
        assert row.source, f"{row.id} names no source"


def test_the_steps_that_ship_are_read_whole() -> None:
    steps = shipped_steps()
    assert (len(steps.rows), steps.ignored) == (32, ())
    assert all(isinstance(row, NetworkRow) and row.source and row.time_us for row in steps.rows)


def test_parts_of_a_step_are_the_sums_of_its_profile() -> None:
    """The profile lists the kernels of the step N001 by type."""
    (step,) = (row for row in shipped_steps().rows if row.id == "N001")
    assert isinstance(step, NetworkRow)
    file = Path(shipped_steps().file).with_name("step_profile.csv")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    sums: Counter[str] = Counter()
    for kernel in csv.DictReader(lines):
        sums[kernel["part"]] += round(1000 * float(kernel["time_us"]))  # nanoseconds
    assert sums.pop("") == 665_693  # poolings, products, a ReLU by itself, the loss
    assert {part: ns / 1000 for part, ns in sums.items()} == dict(step.busy_us)


def test_a_spelled_order_is_told_by_its_form() -> None:
    assert spelled_order("<20,1>") == {
        "order": "strided", "fastest": "n", "inner": "m", "window": 20, "snake": True
    }  # fmt: skip
    assert spelled_order("grid 4x6") == {"order": "strided", "fastest": "m", "inner": "n"}
    assert spelled_order("window") == {}, "known, and says nothing"
    assert spelled_order("grid 4x") is spelled_order("") is None


def test_columns_may_be_missing_reordered_or_surrounded_by_remarks(tmp_path: Path) -> None:
    text = "\ufeff# mine\n\nop,chip,id\n# remark\n gemm ,910B1, one \n"
    assert sheet(tmp_path, text).rows == (KernelRow(id="one", chip="910B1", op="gemm"),)


@rows(
    "tests/data/mistakes/validation.yaml", "a_bad_cell_costs_its_row_and_no_other", "line, message"
)
def test_a_bad_cell_costs_its_row_and_no_other(tmp_path: Path, line: str, message: str) -> None:
    found = sheet(tmp_path, f"{HEAD}good,A3,gemm,16,2,,1.5,task,A\n{line}\nlast,A3,gemm,,,,,,\n")
    good, bad, last = found.rows
    assert isinstance(good, KernelRow)
    assert isinstance(last, KernelRow)
    assert (good.M, good.time_us, last.M, last.time_us) == (16, 1.5, None, None)
    reason = f"{tmp_path / 'points.csv'}:{message}"
    assert bad == Unreadable(id="r", family="", chip="A3", reason=reason)


def test_a_row_whose_name_is_there_already_is_refused_by_its_line(tmp_path: Path) -> None:
    first, again, other, third = sheet(
        tmp_path,
        f"{HEAD}a,A3,gemm,16,2,,1.5,task,A\n# a comment\na,A3,gemm,16,2,,2,task,A\n"
        "b,A3,gemm,16,2,,0.5e0,task,A\na,A3,gemm,16,2,,x,task,A\n",
    ).rows
    assert [type(row) for row in (first, other)] == [KernelRow, KernelRow]
    file = tmp_path / "points.csv"
    way_out = "in line 2; give each row an id of its own"
    for row, line in ((again, 4), (third, 6)):
        reason = f"{file}:{line}: id: 'a' is there already, {way_out}"
        assert row == Unreadable(id="a", family="", chip="A3", reason=reason)


@rows("tests/data/mistakes/validation.yaml", "a_header_of_no_schema_is_an_error", "head, message")
def test_a_header_of_no_schema_is_an_error(tmp_path: Path, head: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        sheet(tmp_path, head + "\n")
    assert str(caught.value) == f"{tmp_path / 'points.csv'}:{message}"


def test_foreign_columns_are_told_and_ignored(tmp_path: Path) -> None:
    found = sheet(tmp_path, "id,chip,call,split\na,910B2,matmul,test\n")
    assert found.ignored == ("split",)
    assert found.rows == (CallRow(id="a", chip="910B2", call="matmul"),)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"none\.csv: cannot be read: No such file"):
        read_sheet(tmp_path / "none.csv")


def test_a_cell_beyond_the_limit_of_csv(tmp_path: Path) -> None:
    """It ended in an error of the CSV reader; so did a NUL before Python 3.11."""
    row = f"C900,910B1,matmul,{'1' * 200_000},2,,1,kernel,measured\n"
    with pytest.raises(ArgumentError, match=r"line 2 of the table is no CSV: field larger than"):
        sheet(tmp_path, HEAD + row)


def test_launch_and_start_of_a_call_are_words(tmp_path: Path) -> None:
    head = "id,chip,call,M,Ncols,K,dtype,launch,start,time_us\n"
    lines = (
        "a,910B2,matmul,64,64,64,fp16,graph,warm,9",
        "b,910B2,matmul,64,64,64,fp16,,,9",
        "c,910B2,matmul,64,64,64,fp16,replayed,,9",
        "d,910B2,matmul,64,64,64,fp16,,hot,9",
    )
    stated, usual, launch, start = sheet(tmp_path, head + "\n".join(lines)).rows
    assert isinstance(stated, CallRow)
    assert (stated.launch, stated.start) == ("graph", "warm")
    assert isinstance(usual, CallRow)
    assert (usual.launch, usual.start) == (None, None)
    assert isinstance(launch, Unreadable)
    assert launch.reason.endswith("launch: expected one of single, graph, got 'replayed'")
    assert isinstance(start, Unreadable)
    assert start.reason.endswith("start: expected one of cold, warm, got 'hot'")
