"""Queries of a device: core kinds, paths, time and the digest of its figures.

Naming devices and cores, and what describing a device lists.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError, ProgramError
from npusim.base.quantities import KINDS, format_quantity
from npusim.machine.device.catalog import devices, load_device, parse_core_mask
from npusim.machine.device.config import describe, figures, parse_device
from tests.tables import rows

TINY = Path(__file__).parents[3] / "configs" / "devices" / "tiny.yaml"


def test_core_kinds_by_role() -> None:
    split, joint = load_device("ascend910b2"), load_device("ascend910")
    assert (split.core_kind("cube").name, split.core_kind("vector").name) == ("aic", "aiv")
    assert joint.core_kind("cube") is joint.core_kind("vector")
    with pytest.raises(ArgumentError) as caught:
        split.core_kind("scalar")
    assert str(caught.value) == (
        "ascend910b2 has no core with role 'scalar' (roles here: cube, vector); "
        "choose a device that has one"
    )


def test_paths_are_found_by_ends_and_variant() -> None:
    device = load_device("tiny")
    path = device.path("GM", "L1", "nd2nz")
    assert (path.src, path.dst, path.variant) == ("GM", "L1", "nd2nz")
    assert path.row_cycles == 2
    assert device.path("GM", "L1").variant == ""
    assert device.has_path("GM", "L1")
    assert not device.has_path("GM", "L0C")
    assert not device.has_path("GM", "L1", "transpose")


def test_a_missing_form_names_the_forms_there_are() -> None:
    with pytest.raises(ProgramError) as caught:
        load_device("ascend910").path("GM", "L1", "nd2nz")
    assert str(caught.value) == (
        "ascend910 has no nd2nz form of GM->L1 (it has: plain); use one of these"
    )


def test_a_missing_path_names_the_ways_there_are() -> None:
    with pytest.raises(ProgramError) as caught:
        load_device("ascend910").path("L0C", "GM")
    assert str(caught.value) == (
        "ascend910 cannot move L0C->GM (L0C reaches: UB; GM is reached from: UB); "
        "go through another memory or take another device"
    )
    with pytest.raises(ProgramError, match="X reaches: nothing; Y is reached from: nothing"):
        load_device("tiny").path("X", "Y", "z")


def test_time_is_cycles_of_the_clock() -> None:
    assert load_device("tiny").time_us(1500) == 1.5
    assert load_device("ascend910b2").time_us(9000) == 5.0


def test_macs_per_cycle() -> None:
    cube = load_device("tiny").cube
    assert cube is not None
    assert cube.macs_per_cycle("fp16") == 4096
    assert cube.macs_per_cycle("fp32") == 1024


def test_devices_travel_between_processes() -> None:
    device = load_device("tiny")
    copy = pickle.loads(pickle.dumps(device))
    assert copy == device
    assert copy.replace("groups", 2).groups == 2


def test_the_digest_ignores_names_comments_sources_and_place() -> None:
    text = TINY.read_text(encoding="utf-8")
    digest = load_device("tiny").digest()
    other = text.replace("name: tiny", "name: other # x").replace("HAND", "H2")
    assert parse_device("# a comment\n" + other, "elsewhere.yaml").digest() == digest
    assert len(digest) == 12
    assert int(digest, 16) >= 0


def test_the_digest_is_the_same_in_another_process() -> None:
    code = (
        "from npusim.machine.device.catalog import load_device; print(load_device('tiny').digest())"
    )
    root = Path(__file__).parents[3]
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {load_device("tiny").digest()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_changes_with_every_kind_of_figure(kind: str) -> None:
    device = load_device("tiny")
    path, figure = next((p, f) for p, f in figures(device).items() if f.kind == kind)
    if kind == "bool":
        changed = "yes"
    elif kind == "block":
        changed = "8x8x8"
    else:
        assert not isinstance(figure.value, tuple)
        changed = format_quantity(figure.value * 2 + 2, kind)
    assert device.replace(path, changed).digest() != device.digest()


def test_the_digest_returns_when_a_change_is_undone() -> None:
    device = load_device("tiny")
    assert device.replace("clock", "2GHz").replace("clock", "1GHz").digest() == device.digest()


@pytest.mark.parametrize("path", ["clock", "paths.GM->L1.startup", "memories.L1.size"])
def test_a_variant_of_a_variant_is_what_reading_all_of_it_gives(path: str) -> None:
    values = {"clock": "1.5GHz", "paths.GM->L1.startup": "77cycles", "memories.L1.size": "2MiB"}
    device = load_device("ascend910b2")
    fresh = pickle.loads(pickle.dumps(device))  # which keeps nothing that was read before
    for other in (path, *values):
        device, fresh = device.replace(other, values[other]), fresh.replace(other, values[other])
        fresh = pickle.loads(pickle.dumps(fresh))
        assert device == fresh
        assert device.provenance == fresh.provenance
        assert list(device.provenance) == list(fresh.provenance)


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
    shipped = Path(__file__).parents[3] / "configs" / "devices" / "tiny.yaml"
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


@rows("tests/data/mistakes/device.yaml", "core_mask_errors", "cores, message")
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
