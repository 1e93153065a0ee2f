"""Naming devices and cores, and what describing a device lists."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.device.catalog import devices, load_device, parse_core_mask
from npusim.device.config import describe


def test_shipped_names() -> None:
    assert {"tiny", "ascend910", "ascend910b2"} <= set(devices())
    assert devices() == sorted(devices())


def test_a_family_means_its_commonest_bin() -> None:
    assert load_device("ascend910b") == load_device("ascend910b2")
    assert "ascend910b" not in devices()
    with pytest.raises(ArgumentError, match="did you mean 'ascend910b'"):
        load_device("ascen910b")


def test_names_files_and_devices_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = load_device("tiny")
    assert load_device(tiny) is tiny
    shipped = Path(__file__).parents[2] / "configs" / "devices" / "tiny.yaml"
    file = tmp_path / "mine.yaml"
    file.write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    assert load_device(file) == load_device(str(file)) == tiny
    monkeypatch.chdir(tmp_path)
    assert load_device("mine.yaml") == tiny


def test_overrides_apply_together() -> None:
    device = load_device("tiny", {"memories.L1.size": "1MiB", "clock": "2GHz"})
    assert (device.memories["L1"].size_bytes, device.clock_hz) == (1 << 20, 2 * 10**9)
    assert load_device(device, {"groups": "2"}).groups == 2


def test_unknown_names() -> None:
    known = f"{', '.join(devices())}, ascend910b = ascend910b2"
    with pytest.raises(ArgumentError) as caught:
        load_device("tinny")
    assert str(caught.value) == (
        f"unknown device 'tinny'; did you mean 'tiny'? (known: {known}); or give a .yaml file"
    )
    with pytest.raises(ArgumentError) as caught:
        load_device("zzz")
    assert str(caught.value) == f"unknown device 'zzz'; known: {known}; or give a .yaml file"


@pytest.mark.parametrize("name", ["nowhere.yaml", "nowhere/tiny"])
def test_missing_files(name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        load_device(name)
    assert str(caught.value) == (
        f"there is no device file {name!r}; correct the path or use one of the names "
        f"{', '.join(devices())}, ascend910b = ascend910b2"
    )


def test_describe_states_value_confidence_and_source() -> None:
    rows = describe(load_device("ascend910b2"))
    assert rows[0][:3] == ("clock", "1.8GHz", "vendor table")
    by_path = {path: (text, confidence) for path, text, confidence, _ in rows}
    assert by_path["memories.L1.size"] == ("512KiB", "vendor table")
    assert by_path["paths.GM->L1.rate"] == ("171B/cycle (307.8GB/s)", "fitted")
    assert by_path["paths.GM->L1.nd2nz.row"] == ("3.4cycle", "fitted")
    assert by_path["cube.rates.fp32"] == ("16x8x16/2cycle", "vendor table")
    assert by_path["cube.odd_block_conflict"] == ("no", "vendor table")
    assert by_path["launch.kernel"] == ("2160cycle (1.2us)", "published")


def test_describe_shows_overrides() -> None:
    rows = describe(load_device("tiny", {"groups": "3"}))
    assert ("groups", "3", "assumed", "set by the user") in rows


@pytest.mark.parametrize(
    ("cores", "indices"),
    [
        (None, (0, 1, 2, 3)),
        (0b1, (0,)),
        (0b1010, (1, 3)),
        (np.int64(0b110), (1, 2)),
        ("0-3", (0, 1, 2, 3)),
        ("0-1,3", (0, 1, 3)),
        (" 3 , 1 ", (1, 3)),
        ("2", (2,)),
        (range(1, 3), (1, 2)),
        ([3, 0, 3], (0, 3)),
        (np.array([2, 1]), (1, 2)),
    ],
)
def test_core_masks(cores: int | str | Iterable[int] | None, indices: tuple[int, ...]) -> None:
    assert parse_core_mask(cores, load_device("tiny")) == indices


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        (0, "core mask 0 chooses no core group; tiny has groups 0-3, the mask of all is 0xf"),
        (-1, "core mask -1 chooses no core group; tiny has groups 0-3, the mask of all is 0xf"),
        (0x15, "core mask 0x15 has bit 4 set; tiny has groups 0-3, the mask of all is 0xf"),
        ("0-5", "there is no core group 5; tiny has groups 0-3"),
        ([0, 4], "there is no core group 4; tiny has groups 0-3"),
        ([-1], "there is no core group -1; tiny has groups 0-3"),
        ([], "no core group is chosen; tiny has groups 0-3, use at least one"),
        ("", "expected core groups such as 0-3,5, got ''; tiny has groups 0-3"),
        ("3-1", "expected core groups such as 0-3,5, got '3-1'; tiny has groups 0-3"),
        ("all", "expected core groups such as 0-3,5, got 'all'; tiny has groups 0-3"),
    ],
)
def test_core_mask_errors(cores: int | str | Iterable[int], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_core_mask(cores, load_device("tiny"))
    assert str(caught.value) == message


def test_durations_are_told_in_both_units() -> None:
    texts = {row[0]: row[1] for row in describe(load_device("ascend910b2"))}
    assert texts["launch.kernel"] == "2160cycle (1.2us)"
    slow = {row[0]: row[1] for row in describe(load_device("ascend910b2", {"clock": "900MHz"}))}
    assert slow["launch.kernel"] == "1080cycle (1.2us)"
    assert slow["paths.GM->L1.startup"] == texts["paths.GM->L1.startup"]


@pytest.mark.compiled
def test_a_result_names_the_file_that_lists_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "my chip.yaml"
    file.write_text("base: tiny\nname: mine\ndescription: of my own\n", encoding="utf-8")
    assert load_device(file).shown_by == f"'{file}'"
    assert load_device(file).replace("groups", "2").shown_by == f"'{file}'"
    assert load_device("ascend910b").shown_by == "ascend910b2"
    maps = npusim.spec((16, 16), "fp16")
    notes = npusim.ops.matmul(maps, maps, device=str(file)).notes
    assert any(f"`npusim devices show '{file}'` lists every figure" in note for note in notes)
