"""Reading msprof's op_summary: columns, units, launches that are alike, and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.base.errors import ArgumentError, ConfigError
from npusim.silicon.choices import Choices, read_choices
from npusim.silicon.profile import read_data, read_profile
from npusim.silicon.rows import ProfiledOperand, ProfiledRow, Unreadable
from tests.tables import rows

HEAD = (
    "Op Name,OP Type,Task Type,Task Duration(us),Block Dim,Input Shapes,Input Data Types,"
    "Input Formats,Output Shapes,Output Data Types,Output Formats,aic_mac_time(us),aic_mac_ratio,"
    "aic_mte2_time(us),aiv_mte2_time(us),Task Wait Time(us)"
)
PRODUCT = (
    'mm_1,MatMulV3,AI_CORE,{time},24,"""64,32;32,16""",FLOAT16;DT_BF16,ND;ND,"""64,16""",FLOAT,'
    "ND,{cube},0.5,6,0,1"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "op_summary.csv"


def profile_of(file: Path, *lines: str, head: str = HEAD) -> list[ProfiledRow]:
    file.write_text("\n".join((head, *lines)) + "\n", encoding="utf-8")
    sheet = read_profile(file, "ascend910b2", Choices())
    assert sheet.ignored == ()
    found = [row for row in sheet.rows if isinstance(row, ProfiledRow)]
    assert len(found) == len(sheet.rows)
    return found


def broken(file: Path, line: str) -> str:
    """The reason why the only launch of a profile is not read."""
    file.write_text(f"{HEAD}\n{line}\n", encoding="utf-8")
    (row,) = read_profile(file, "ascend910b2", Choices()).rows
    assert isinstance(row, Unreadable)
    assert row.reason.startswith(f"{file}:2: ")
    return row.reason


def test_a_launch_becomes_a_row_with_operands_and_busy_times(file: Path) -> None:
    (row,) = profile_of(file, PRODUCT.format(time=10, cube=4))
    assert (row.op, row.task, row.cores, row.chip) == ("MatMulV3", "AI_CORE", 24, "ascend910b2")
    assert row.operands == (
        ProfiledOperand((64, 32), "fp16", "ND"),
        ProfiledOperand((32, 16), "bf16", "ND"),
    )
    assert row.results == (ProfiledOperand((64, 16), "fp32", "ND"),)
    assert (row.time_us, row.time_kind, row.launches) == (10, "task", 1)
    assert row.busy_us == {"cube": 4, "mte2": 6}  # a pipe that did nothing has no time
    assert row.where == f"{file}:2"


def test_launches_that_are_alike_are_one_row_with_their_medians(file: Path) -> None:
    lines = [PRODUCT.format(time=time, cube=time / 2) for time in (10, 30, 11)]
    other = PRODUCT.format(time=50, cube=4).replace("64,", "128,")
    first, second = profile_of(file, *lines, other)
    assert (first.launches, first.time_us, first.cube_us) == (3, 11, 5.5)
    assert (second.launches, second.time_us, second.id) == (1, 50, "MatMulV3:5")


def test_columns_have_the_names_of_other_versions_too(file: Path) -> None:
    head = "Name,Type,Accelerator Core,Duration(us),Block Num,Input Shapes,Input Data Types,"
    head += "Output Shapes,mac_time(us)"
    line = 'a,MatMul,AI_CORE,9,8,"""4,4;4,4""",FLOAT;FLOAT,"""4,4""",3'
    (row,) = profile_of(file, line, head=head)
    assert (row.time_us, row.cores, row.cube_us, row.task) == (9, 8, 3, "AI_CORE")
    assert row.operands[0] == ProfiledOperand((4, 4), "fp32", "ND")


def test_an_operand_that_a_call_left_out_is_no_operand(file: Path) -> None:
    line = PRODUCT.format(time=9, cube=1).replace("64,32;32,16", "64,32;32,16;;")
    (row,) = profile_of(file, line)
    assert len(row.operands) == 2


def test_loads_of_vector_cores_are_those_of_mte2(file: Path) -> None:
    line = 'a,Add,AI_VECTOR_CORE,9,48,"""4;4""",FLOAT;FLOAT,ND;ND,"""4""",FLOAT,ND,0,0,0,3,1'
    assert profile_of(file, line)[0].busy_us == {"mte2": 3, "aiv_mte2": 3}


@rows(
    "tests/data/mistakes/validation.yaml",
    "what_is_wrong_with_one_launch_costs_that_launch",
    "old, new, message",
)
def test_what_is_wrong_with_one_launch_costs_that_launch(
    file: Path, old: str, new: str, message: str
) -> None:
    line = PRODUCT.format(time=10, cube=4)
    assert old in line
    assert message in broken(file, line.replace(old, new))


@rows(
    "tests/data/mistakes/validation.yaml",
    "what_is_wrong_with_the_file_is_an_error",
    "text, message",
)
def test_what_is_wrong_with_the_file_is_an_error(file: Path, text: str, message: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError) as error:
        read_data(file, "ascend910b2")
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_a_profile_needs_the_name_of_its_chip(file: Path) -> None:
    file.write_text(HEAD, encoding="utf-8")
    with pytest.raises(ArgumentError, match="does not name its chip; give --device"):
        read_data(file, None)


# -- the file beside a profile ---------------------------------------------------------------------


def read_beside(file: Path, text: str) -> ProfiledRow:
    """The row of one launch, with a file of choices beside the profile."""
    file.write_text(f"{HEAD}\n{PRODUCT.format(time=10, cube=4)}\n", encoding="utf-8")
    file.with_suffix(".yaml").write_text(text, encoding="utf-8")
    (row,) = read_data(file, "ascend910b2").rows
    assert isinstance(row, ProfiledRow)
    return row


def test_the_first_entry_that_fits_a_launch_holds_for_it(file: Path) -> None:
    row = read_beside(
        file,
        "kernels:\n"
        "  - {op_name: mm_*, lines: 2-9, input_shapes: '64, 32; 32, 16', transpose_b: yes}\n",
    )
    assert row.choice.get("transpose_b") is True
    assert row.choice.where == f"{file.with_suffix('.yaml')}:2"


def test_a_tiling_is_a_rule_fields_or_the_vendors_words(file: Path) -> None:
    row = read_beside(file, "kernels:\n  - {tiling: {base_m: 64, preload: yes}}\n")
    assert row.choice.tiling == (("base_m", 64), ("preload", True))
    assert read_beside(file, "kernels:\n  - {tiling: vendor}\n").choice.tiling == "vendor"


@rows(
    "tests/data/mistakes/validation.yaml",
    "what_is_wrong_beside_a_profile_has_file_and_line",
    "entry, message",
)
def test_what_is_wrong_beside_a_profile_has_file_and_line(
    file: Path, entry: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read_beside(file, f"kernels:\n  - {entry}\n")
    assert f"{file.with_suffix('.yaml')}:2" in str(error.value)
    assert message in str(error.value)


def test_choices_that_are_no_list_are_refused(file: Path) -> None:
    path = file.with_suffix(".yaml")
    path.write_text("kernels: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="expected a list"):
        read_choices(path)
