"""Parts dropped and put in: what is left is a device like one of a file, or an error."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim.base.errors import ConfigError
from npusim.cli.main import main
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.study.space import make_axis

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


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("paths.A->B", "no", "tiny with paths.A->B=no: there is none"),
        ("cores.core", "no", "at least one kind of core"),
        ("paths.GM->L1", "{pipe: MTE2}", "startup"),
        ("paths.GM->L1", "{pipe: MTE2, startup: 3 bananas, rate: 1B/cycle}", "bananas"),
        ("paths.GM->L1", "{pipe: MTE2", "paths.GM->L1"),
        ("paths.GM->L1", "maybe", "tiny with paths.GM->L1=maybe: unknown figure"),
        ("l2", "maybe", "tiny with l2=maybe: unknown figure"),
        ("gemm", "no", "tiny with gemm=no: there is none"),
        ("cube", "no", "cube=no: cores.core.roles: the role 'cube' needs a matrix unit"),
        ("memories.UB", "1", "tiny with memories.UB=1: unknown figure; did you mean 'memories.UB."),
        ("pipes.MTE1", "no", "MTE1"),
        ("memories.UB.size", "1", "tiny with memories.UB.size=1: expected a size"),
        ("UB", "1KiB", "did you mean 'memories.UB.size'?"),
    ],
)
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
