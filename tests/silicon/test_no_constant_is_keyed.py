"""The model knows machines, not measurements: nothing in it is chosen by family, pair or row."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from npusim.silicon.rows import PARTS, CallRow, KernelRow, NetworkRow
from npusim.silicon.sheet import shipped_sheets, shipped_steps

ROOT = Path(__file__).parents[2]

#: What a simulation must not look at: it labels a row, or is what it has to find out. The id may
#: name a call, and remarks may state a condition that no column has.
LABELS = {
    "family", "pair", "trust", "anchor", "source", "input_bound",
    "time_us", "core_us", "busy_us", "cube_us", "mte1_us", "mte2_us", "mte3_us", "fixpipe_us",
    "vec_us", "scalar_us", "aiv_mte2_us", *(f"{part}_us" for part in PARTS),
}  # fmt: skip


@cache
def labels() -> set[str]:
    """Every family, pair and row of the files."""
    rows = [row for sheet in (*shipped_sheets(), shipped_steps()) for row in sheet.rows]
    found = {row.family for row in rows} | {row.id for row in rows}
    found |= {row.pair for row in rows if isinstance(row, KernelRow) and row.pair}
    return {label.lower() for label in found}


def modules() -> list[Path]:
    folders = ("npusim/machine", "npusim/call", "npusim/ops", "npusim/silicon", "kernels")
    found = {name: sorted((ROOT / name).rglob("*.py")) for name in folders}
    assert all(found.values()), "every folder is there"
    return [file for name in folders for file in found[name]]


#: Words of general use that happen to name a family, too.
WORDS = {"gemm", "transpose"}


def test_no_module_names_a_family_a_pair_or_a_row() -> None:
    texts = {
        (node.value.lower(), str(file.relative_to(ROOT)))
        for file in modules()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not [named for named in texts if named[0] in labels() - WORDS]


@pytest.mark.parametrize("name", ["gemm_rows.py", "stream_rows.py", "call_rows.py"])
def test_no_simulation_looks_at_a_rows_label_or_measured_figures(name: str) -> None:
    tree = ast.parse((ROOT / "npusim/silicon" / name).read_text(encoding="utf-8"))
    looked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "row"
    }
    assert looked & {"dtype", "dtype_in", "op", "network"}, "the walk finds what is looked at"
    assert not looked & LABELS


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs/devices").glob("*.yaml")), ids=lambda file: file.stem
)
def test_no_device_figure_is_named_after_measurements(file: Path) -> None:
    keys = {
        line.strip().partition(":")[0].lower()
        for line in file.read_text(encoding="utf-8").splitlines()
        if ":" in line
    }
    assert keys & {"clock", "base"}, "the file is read"
    assert not keys & (labels() - WORDS)


def test_the_schemas_still_have_the_labels() -> None:
    schemas = (KernelRow, CallRow, NetworkRow)
    known = {name for schema in schemas for name in schema.__dataclass_fields__} | {"busy_us"}
    assert known >= LABELS
