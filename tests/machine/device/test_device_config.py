"""Device files: every mistake is reported at its line, by its path, with a way out."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from npusim.base.errors import ArgumentError, ConfigError
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.config import figures, parse_device
from npusim.machine.device.parts import CubeRate, Provenance
from npusim.machine.device.spec import Device
from tests.tables import rows

DATA = Path(__file__).parents[2] / "data"
SMALL = (DATA / "small_device.yaml").read_text(encoding="utf-8")
MISTAKES = yaml.safe_load((DATA / "mistakes_in_devices.yaml").read_text(encoding="utf-8"))


def small(old: str = "", new: str = "") -> Device:
    """Parse ``SMALL`` with one occurrence of ``old`` replaced."""
    assert not old or SMALL.count(old) == 1, old
    return parse_device(SMALL.replace(old, new) if old else SMALL, "small.yaml")


def fails(old: str, new: str) -> str:
    """Return the message of the error a changed ``SMALL`` raises."""
    with pytest.raises(ConfigError) as caught:
        small(old, new)
    return str(caught.value)


def line_of(marker: str) -> int:
    """Return the line of ``SMALL`` that holds ``marker``, which occurs once."""
    lines = [i for i, line in enumerate(SMALL.splitlines(), 1) if marker in line]
    assert len(lines) == 1, marker
    return lines[0]


def test_every_section_is_read() -> None:
    device = small()
    assert (device.name, device.description) == ("small", "two kinds of core")
    assert (device.clock_hz, device.groups, device.dtypes) == (2 * 10**9, 2, ("fp16", "fp32"))
    assert device.cores["vec"].per_group == 2
    assert device.cores["mat"].pipes == ("S", "M", "MTE1")
    assert (device.memories["L0C"].size_bytes, device.memories["L0C"].align_bytes) == (32768, 1024)
    assert device.pipes["M"].queue_depth == 4
    path = device.paths["GM->UB"]
    assert (path.pipe, path.startup_cycles) == ("MTE2", 10)
    assert path.bytes_per_cycle == 50
    assert path.row_cycles == 0
    assert (path.floor_cycles, path.idle_head_cycles) == (0, 0)
    assert (path.issue_cycles, path.window_bytes) == (1, 0)
    assert device.cube is not None
    assert device.cube.rates == {"fp16": CubeRate(m=16, k=8, n=4, cycles=2)}
    assert device.cube.odd_block_conflict is False
    assert device.vector.ops == {"add": Fraction(3, 2)}
    assert device.sync.event_ids == 8
    assert device.l2 is not None
    assert (device.l2.block_bytes, device.l2.sector_bytes) == (4096, 512)
    assert device.main_memory.size_bytes == 1 << 30
    assert device.launch.cycles("cube", 24) == 2000 + 3 + 20
    assert device.sources == {"HAND": "chosen for the test"}


def test_provenance_is_kept_by_dotted_path() -> None:
    known = small().provenance
    assert known["clock"] == Provenance(confidence="assumed", source="HAND")
    assert known["memories.L0C.size"].confidence == "measured"
    assert known["paths.GM->UB.rate"].confidence == "published"
    assert {"vector.ops.add", "cube.rates.fp16", "cores.mat.per_group"} <= known.keys()
    assert "paths.GM->UB.row" not in known  # a default


def test_a_device_without_cube() -> None:
    text = re.sub(r"cube:\n(  .*\n)+", "", SMALL)
    with pytest.raises(ConfigError) as caught:
        parse_device(text, "x.yaml")
    assert str(caught.value) == (
        "x.yaml:11: cores.mat.roles: the role 'cube' needs a matrix unit; add the key 'cube' or "
        "drop the role"
    )
    text = re.sub(r"  mat:\n(    .*\n)+", "", text)
    device = parse_device(re.sub(r"  L1->L1.load3d:\n(    .*\n)+", "", text))
    assert device.cube is None


GEMM = """\
gemm:
  overhead: 26cycle (assumed, HAND)
  rates:
    fp32: 6x1x48/6cycle (assumed, HAND)
"""


def dsp_text() -> str:
    """``SMALL`` with its vector cores turned into DSPs and without an L2."""
    text = re.sub(r"l2:\n(  .*\n)+", "", SMALL)
    text = text.replace("roles: [vector]", "roles: [dsp]").replace("[S, V, MTE2]", "[S, VPU, MTE2]")
    text = text.replace("  V: {queue", "  VPU: {queue")
    return text.replace("vector:\n  repeat", f"{GEMM}vector:\n  repeat")


def test_a_dsp_without_an_l2() -> None:
    device = parse_device(dsp_text(), "x.yaml")
    assert device.l2 is None
    assert device.private_memory is None
    assert device.gemm is not None
    assert device.gemm.overhead_cycles == 26
    assert device.gemm.macs_per_cycle("fp32") == 48
    assert not any(path.startswith("l2") for path in figures(device))


@rows("tests/data/mistakes/device.yaml", "mistakes_in_a_dsp", "old, new, message")
def test_mistakes_in_a_dsp(old: str, new: str, message: str) -> None:
    assert dsp_text().count(old) == 1
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_device(dsp_text().replace(old, new), "x.yaml")


CONFIDENCES = "measured, vendor table, published, fitted, hypothesis, assumed"


@pytest.mark.parametrize("wrong", MISTAKES["small_device"])
def test_errors_by_place_and_text(wrong: dict[str, str]) -> None:
    place = f"small.yaml:{line_of(wrong['marker'])}: {wrong['path']}"
    assert fails(wrong["old"], wrong["new"]) == f"{place}: {wrong['message']}"


def test_no_cores_at_all() -> None:
    text = re.sub(r"cores:\n(  .*\n)+", "cores: {}\n", SMALL)
    with pytest.raises(ConfigError) as caught:
        parse_device(text, "x.yaml")
    assert str(caught.value) == (
        "x.yaml:8: cores: a device needs at least one kind of core; add one"
    )


def test_several_missing_keys_are_named_together() -> None:
    message = fails("clock: 2GHz (assumed, HAND)\ngroups: 2 (assumed, HAND)\n", "")
    assert message == "small.yaml:1: missing keys 'clock', 'groups'; add it here"


def test_replace_takes_text_and_base_units() -> None:
    device = small()
    assert device.replace("memories.L1.size", "2MiB").memories["L1"].size_bytes == 2 << 20
    assert device.replace("memories.L1.size", 4096).memories["L1"].size_bytes == 4096
    l2 = device.replace("l2.read", Fraction(1, 3)).l2
    assert l2 is not None
    assert l2.read_bytes_per_cycle == Fraction(1, 3)
    assert device.replace("vector.ops.add", 2).vector.ops["add"] == 2
    assert device.replace("clock", 10**9).clock_hz == 10**9
    cube = device.replace("cube.odd_block_conflict", True).cube
    assert cube is not None
    assert cube.odd_block_conflict is True
    cube = device.replace("cube.rates.fp16", "8x8x8").cube
    assert cube is not None
    assert cube.rates["fp16"] == CubeRate(m=8, k=8, n=8, cycles=1)
    assert device == small()
    with pytest.raises(ConfigError, match=r"expected a size such as 512KiB, got 0\.5B"):
        device.replace("memories.L1.size", Fraction(1, 2))


def test_replace_reaches_keys_with_arrows_and_dots() -> None:
    device = small().replace("paths.L1->L1.load3d.rate", "32B/cycle")
    assert device.paths["L1->L1.load3d"].bytes_per_cycle == 32


def test_replace_can_state_a_default() -> None:
    device = small().replace("paths.GM->UB.floor", "85cycle")
    assert device.paths["GM->UB"].floor_cycles == 85
    assert device.provenance["paths.GM->UB.floor"].source == "user"


def test_replaced_figures_are_set_by_the_user() -> None:
    device = small().replace("memories.L0C.size", "64KiB").replace("groups", 3)
    for path in ("memories.L0C.size", "groups"):
        assert device.provenance[path] == Provenance(confidence="assumed", source="user")
    assert device.sources["user"] == "set by the user"
    assert device.provenance["memories.L1.size"].source == "HAND"
    assert (device.memories["L0C"].size_bytes, device.groups) == (65536, 3)


def test_a_new_clock_keeps_times_and_moves_cycles() -> None:
    device = small().replace("clock", "1GHz")
    assert device.paths["GM->UB"].bytes_per_cycle == 100  # 100 GB/s
    assert device.paths["L1->L1.load3d"].bytes_per_cycle == 64  # given per cycle
    assert device.launch.kernel_cycles == 1000


def test_figures_replaced_together_are_checked_together() -> None:
    values = {"l2.block": "2KiB", "l2.size": "2KiB"}
    l2 = load_device(small(), values).l2
    assert l2 is not None
    assert l2.size_bytes == 2048
    with pytest.raises(ConfigError, match="exceeds the cache"):
        load_device(small(), {"l2.size": "2KiB"})


@rows("tests/data/mistakes/device.yaml", "replace_errors", "path, value, message")
def test_replace_errors(path: str, value: str | int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        small().replace(path, value)
    assert str(caught.value) == message


def test_a_bare_quantity_is_the_users_own() -> None:
    device = small("  block: 4KiB (assumed, HAND)", "  block: 2KiB")
    assert device.l2 is not None
    assert device.l2.block_bytes == 2048
    known = device.provenance["l2.block"]
    assert (known.confidence, known.source, device.sources["user"]) == (
        *("assumed", "user"),
        "set by the user",
    )
    for name in devices():
        assert "user" not in load_device(name).sources


def test_replace_refuses_floats() -> None:
    with pytest.raises(ArgumentError) as caught:
        small().replace("l2.read", 2.5)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "l2.read: expected a rate as text such as 128B/cycle or 5TB/s, as an int or as a "
        "Fraction, got 2.5"
    )


def test_figures_lists_defaults_too() -> None:
    known = figures(small())
    assert known["paths.GM->UB.row"].value == 0
    assert known["cube.rates.fp16"].value == (16, 8, 4, 2)
    assert known["paths.L1->L1.load3d.window"].keys == ("paths", "L1->L1.load3d", "window")


def test_errors_name_the_file_that_was_loaded(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL.replace("16KiB", "16"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_device(file)
    assert str(caught.value) == (
        f"{file}:22: memories.UB.size: expected a size such as 512KiB, got 16"
    )


def test_a_figure_may_state_its_range() -> None:
    device = small("(published, HAND)", "(published, HAND, 80GB/s .. 60B/cycle)")
    known = device.provenance["paths.GM->UB.rate"]
    assert known == Provenance(confidence="published", source="HAND", range=(40, 60))
    assert device == small()  # how well a figure is known does not make another machine
    device = small("kernel: 1us (assumed, HAND)", "kernel: 1us (assumed, HAND, 0.2ns..2us)")
    assert device.provenance["launch.kernel"].range == (1, 4000)  # cycles, rounded up
    device = small("4/2cycle (assumed, HAND)", "4/2cycle (assumed, HAND, 16x8x4/4cycle..16x8x4)")
    assert device.provenance["cube.rates.fp16"].range == ((16, 8, 4, 4), (16, 8, 4, 1))


def test_a_figure_that_is_replaced_loses_its_range() -> None:
    device = small("(published, HAND)", "(published, HAND, 90GB/s..110GB/s)")
    path = "paths.GM->UB.rate"
    assert device.replace(path, 70).provenance[path].range is None
    assert device.replace("groups", 3).provenance[path].range == (45, 55)
