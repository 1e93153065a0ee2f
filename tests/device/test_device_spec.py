"""Queries of a device: core kinds, paths, time and the digest of its figures."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from npusim.base.errors import ArgumentError, ProgramError
from npusim.base.quantities import KINDS, format_quantity
from npusim.device.catalog import load_device
from npusim.device.config import figures, parse_device

TINY = Path(__file__).parents[2] / "configs" / "devices" / "tiny.yaml"


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
    code = "from npusim.device.catalog import load_device; print(load_device('tiny').digest())"
    root = Path(__file__).parents[2]
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
