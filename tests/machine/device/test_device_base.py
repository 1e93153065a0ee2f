"""Device files with a base: what is inherited, what is not, and what is refused.

Parts dropped and put in: what is left is a device like one of a file, or an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ConfigError
from npusim.base.records import replace
from npusim.cli.main import main
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import describe, parse_device
from npusim.machine.device.spec import Device
from npusim.study.space import make_axis
from tests.tables import rows

HEAD = "base: tiny\nname: mine\ndescription: one of mine\n"


def mine(text: str = "", head: str = HEAD) -> Device:
    """Parse a file that builds on ``tiny``."""
    return parse_device(head + text, "mine.yaml")


def fails(text: str, head: str = HEAD) -> str:
    """Return the message of the error that such a file raises."""
    with pytest.raises(ConfigError) as caught:
        mine(text, head)
    return str(caught.value)


def test_a_file_that_says_nothing_is_its_base() -> None:
    tiny, device = load_device("tiny"), mine()
    assert device.digest() == tiny.digest()
    assert device == replace(tiny, name="mine", base="tiny", description="one of mine")
    assert {known.inherited for known in device.provenance.values()} == {"tiny"}
    assert {known.inherited for known in tiny.provenance.values()} == {""}


def test_own_lines_take_the_place_of_the_base() -> None:
    tiny = load_device("tiny")
    device = mine(
        "sources:\n  OWN: measured by me\n"
        "dtypes: [fp16, fp32, int8]\n"
        "paths:\n  GM->L1:\n    rate: 32B/cycle (measured, OWN)\n"
        "cube:\n  rates:\n    int8: 16x32x16 (assumed, HAND)\n"
    )
    assert list(device.paths) == list(tiny.paths)
    path = device.paths["GM->L1"]
    assert path == replace(tiny.paths["GM->L1"], bytes_per_cycle=path.bytes_per_cycle)
    assert path.bytes_per_cycle == 32
    assert device.dtypes == ("fp16", "fp32", "int8")
    assert device.cube is not None
    assert list(device.cube.rates) == ["fp16", "fp32", "hf32", "int8"]
    known = device.provenance
    assert (known["paths.GM->L1.rate"].confidence, known["paths.GM->L1.rate"].inherited) == (
        "measured",
        "",
    )
    assert known["paths.GM->L1.startup"].inherited == "tiny"


def test_none_removes_what_the_base_has() -> None:
    device = mine(
        "cores:\n  core:\n    pipes: [S, V, M, MTE1, MTE2, MTE3]\npipes:\n  FIX: none\n"
        "paths:\n  L0C->GM: none\n  L0C->GM.nz2nd: none\nl2: none\n"
    )
    assert "FIX" not in device.pipes
    assert not device.has_path("L0C", "GM")
    assert device.l2 is None
    assert fails("paths:\n  L0C->GMM: none\n") == (
        "mine.yaml:5: paths.L0C->GMM: the base has no 'L0C->GMM' that could be removed; did you "
        "mean 'L0C->GM'?"
    )
    assert "mine.yaml:1: missing key 'groups'; add it here" in fails("groups: none\n")


def test_no_drops_a_part_or_unit_in_a_file_as_it_does_behind_set() -> None:
    """``l2: no`` was "expected a mapping" where ``--set l2=no`` worked."""
    dropped = mine("l2: no\npaths:\n  L1->GM: no\n")
    assert dropped.l2 is None
    assert not dropped.has_path("L1", "GM")
    for word in ("no", "none"):
        edited = load_device("tiny", {"l2": word, "paths.L1->GM": word})
        assert edited.l2 is None
        assert not edited.has_path("L1", "GM")
    text = _shipped("tiny").read_text(encoding="utf-8")
    whole = parse_device(re.sub(r"\nl2:\n( .*\n)+", "\nl2: no\n", text), "whole.yaml")
    assert whole.l2 is None, "nor does a file need a base for it"
    flags = mine("cube:\n  unit_flag: no (assumed, HAND)\n")
    assert flags.cube is not None
    assert not flags.cube.unit_flag, "a flag keeps its value"
    assert "GM->L1.nd2nz" not in mine("paths:\n  GM->L1.nd2nz: no\n").paths
    assert mine("cards: no\n").cards is None, "what the base lacks may be said to be absent"


def test_errors_name_the_file_in_which_a_figure_stands(tmp_path: Path) -> None:
    below, above = tmp_path / "below.yaml", tmp_path / "above.yaml"
    wrong = "pipes:\n  FIX: {queue_depth: 4 (assumed)}\n"
    below.write_text(HEAD + wrong, encoding="utf-8")
    above.write_text(HEAD.replace("tiny", "below.yaml"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_device(above)
    assert str(caught.value).startswith(f"{below}:5: pipes.FIX.queue_depth: expected a figure")
    assert fails("pipes:\n  MTE1: none\n").startswith(f"{_shipped('tiny')}:15: cores.core.pipes[3]")
    assert fails("memories:\n  L1:\n    size: 5 (assumed, HAND)\n").startswith(
        "mine.yaml:6: memories.L1.size: "
    )


def _shipped(name: str) -> Path:
    return Path(__file__).parents[3] / "configs" / "devices" / f"{name}.yaml"


def test_name_and_description_are_not_inherited() -> None:
    message = "mine.yaml:1: missing keys 'name', 'description'; add it here"
    assert fails("", "base: tiny\n") == message


def test_a_file_may_build_on_a_file_and_is_read_again_when_that_changes(tmp_path: Path) -> None:
    (tmp_path / "bins").mkdir()
    below, above = tmp_path / "below.yaml", tmp_path / "bins" / "above.yaml"
    below.write_text(HEAD.replace("mine", "below") + "groups: 3 (assumed, HAND)\n", "utf-8")
    above.write_text(HEAD.replace("tiny", "../below.yaml"), encoding="utf-8")
    device = load_device(above)
    assert (device.groups, device.provenance["groups"].inherited) == (3, "below")
    assert device.provenance["clock"].inherited == "tiny"
    assert load_device(above) is device
    below.write_text(HEAD.replace("mine", "below") + "groups: 2 (assumed, HAND)\n", "utf-8")
    assert load_device(above).groups == 2


def test_unknown_bases() -> None:
    assert fails("", HEAD.replace("tiny", "tinny")) == (
        "mine.yaml:1: base: unknown device 'tinny'; did you mean 'tiny'?; or give a .yaml file"
    )
    assert fails("", HEAD.replace("tiny", "parts/x.yaml")) == (
        "mine.yaml:1: base: there is no device file 'parts/x.yaml'; correct the path, which is "
        "relative to this file, or name a shipped device"
    )
    assert parse_device(HEAD.replace("tiny", "ascend910b"), "x.yaml").groups == 24


def test_a_circle_of_bases(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(HEAD.replace("tiny", "two.yaml"), encoding="utf-8")
    two.write_text(HEAD.replace("tiny", "./one.yaml"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_device(one)
    assert str(caught.value) == (
        f"{two}:1: base: the bases go round in a circle: one.yaml -> two.yaml -> one.yaml; remove "
        "'base' from one of the files and state its figures there"
    )
    one.write_text(HEAD.replace("tiny", "one.yaml"), encoding="utf-8")
    with pytest.raises(ConfigError, match="one.yaml -> one.yaml".replace(".", r"\.")):
        load_device(one)


def test_a_changed_figure_is_the_users_own() -> None:
    device = mine().replace("groups", "2").replace("paths.GM->L1.rate", "1B/cycle")
    assert device.groups == 2
    assert device.provenance["groups"].inherited == ""
    assert device.provenance["clock"].inherited == "tiny"


def test_figures_say_from_whom_they_are_inherited() -> None:
    by_path = {row[0]: row[3] for row in describe(load_device("ascend910b4"))}
    assert by_path["sync.flag"].endswith("(inherited from ascend910b2)")
    assert "inherited" not in by_path["clock"]


@pytest.mark.compiled
def test_a_sourced_figure_of_a_base_can_be_timed(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD + "cube:\n  rates:\n    fp16: 16x16x16/2cycle (assumed, HAND)\n", "utf-8")
    a, b = npusim.spec((64, 64), "fp16"), npusim.spec((64, 64), "fp16")
    tiny, slow = (npusim.ops.matmul(a, b, device=d, engine="simpy") for d in ("tiny", file))
    assert slow.cycles > tiny.cycles


def test_the_file_of_the_guide_is_a_device(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/guide/device.md").read_text(encoding="utf-8")
    (tmp_path / "my_bin.yaml").write_text(guide.split("```yaml\n")[1].split("```")[0])
    made = load_device(tmp_path / "my_bin.yaml")
    assert (made.groups, made.memory("L1").size_bytes) == (20, 1 << 20)
    assert made.provenance["main_memory.read"].source == "user"


PRODUCT: dict[str, Any] = {"operator": "matmul", "device": "ascend910b2", "m": 64, "k": 64, "n": 64}


def without(device: str, *parts: str) -> Device:
    return load_device(device, dict.fromkeys(parts, "no"))


def test_a_path_is_dropped() -> None:
    device = load_device("tiny")
    made = without("tiny", "paths.L0C->UB")
    assert list(made.paths) == [name for name in device.paths if name != "L0C->UB"]
    assert made.digest() != device.digest()
    with pytest.raises(npusim.ProgramError, match="cannot move L0C->UB"):
        made.path("L0C", "UB")
    assert load_device("tiny", {"paths.L0C->UB": "yes"}).digest() == device.digest()


def test_a_figure_of_what_is_left_can_be_changed_too() -> None:
    made = load_device("tiny", {"paths.L0C->UB": "no", "memories.L1.size": "128KiB"})
    assert made.memory("L1").size_bytes == 128 << 10
    assert "L0C->UB" not in made.paths
    assert "L0C->UB" not in made.replace("memories.L1.size", "32KiB").paths


def test_a_part_is_put_in_and_replaced() -> None:
    text = "{pipe: MTE2, startup: 7cycle, rate: 64B/cycle}"
    made = load_device("tiny", {"paths.GM->L0A": text, "paths.GM->L1": text})
    path = made.path("GM", "L0A")
    assert (path.pipe, path.startup_cycles, float(path.bytes_per_cycle)) == ("MTE2", 7, 64.0)
    assert made.path("GM", "L1").startup_cycles == 7
    assert made.provenance["paths.GM->L0A.startup"].confidence == "assumed"
    link = load_device("tiny", {"links.bus": "{rate: 32B/cycle, scope: chip, traffic: [write]}"})
    assert link.links["bus"].bytes_per_cycle == 32


def test_with_a_memory_go_its_paths() -> None:
    made = without("tiny", "memories.L0A")
    assert "L0A" not in made.memories
    assert not [name for name in made.paths if "L0A" in name.partition(".")[0].split("->")]
    assert all("L0A" not in kind.memories for kind in made.cores.values())


def test_a_kind_of_core_is_dropped() -> None:
    made = without("ascend910b2", "cores.aiv", "memories.UB")
    assert list(made.cores) == ["aic"]
    with pytest.raises(npusim.ArgumentError, match="has no core with role 'vector'"):
        made.core_kind("vector")


def test_a_unit_is_dropped() -> None:
    made = without("ascend910b2", "l2")
    assert made.l2 is None
    assert load_device("ascend910b2", {"l2": "yes"}).l2 is not None


@rows("tests/data/mistakes/device.yaml", "what_makes_no_device_is_refused", "path, text, told")
def test_what_makes_no_device_is_refused(path: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_device("tiny", {path: text})
    assert told in str(caught.value)


def test_what_empties_a_core_says_what_to_drop_with_it() -> None:
    told = r"ascend910b2 with memories\.UB=no: cores\.aiv\.memories: .*add one, or drop cores\.aiv"
    with pytest.raises(ConfigError, match=told):
        without("ascend910b2", "memories.UB")
    assert "UB" not in without("ascend910b2", "memories.UB", "cores.aiv").memories


@pytest.mark.compiled
def test_a_sweep_over_a_path() -> None:
    part = "{pipe: MTE2, startup: 10cycle, rate: 512B/cycle}"
    rows = npusim.sweep(
        vary={"paths.GM->L1.nd2nz": f"yes,no,{part}"}, store=None, jobs=1, **PRODUCT
    ).rows()
    assert [row["paths.GM->L1.nd2nz"] for row in rows] == ["yes", "no", part]
    own, none, faster = (row["time_us"] for row in rows)
    assert faster < own < none


def test_values_are_split_outside_of_parts() -> None:
    axis = make_axis("paths.A->B", "yes, {a: 1, b: 2},no", {"network": ""})
    assert axis.values == ("yes", "{a: 1, b: 2}", "no")


@pytest.mark.compiled
def test_a_command_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = "run matmul --m 64 --k 64 --n 64 --device tiny --timing-only --json"
    assert main([*words.split(), "--set", "paths.L1->GM=no"]) == 0
    capsys.readouterr()
    assert main([*words.split(), "--set", "paths.GM->L1=no", "--set", "paths.GM->L1.nd2nz=no"]) == 2
    assert "GM->L1" in capsys.readouterr().err
