"""Memories are known by role: under other names kernels run, or errors say which is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import npusim
from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.resources import configs
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device

pytestmark = pytest.mark.compiled

TINY = (configs() / "devices" / "tiny.yaml").read_text()


def device(tmp_path: Path, text: str) -> Device:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    return load_device(str(path))


def renamed(text: str, **names: str) -> str:
    """Every memory under another name, its role stated."""
    for role, name in names.items():
        text = re.sub(rf"\b{role}\b", name, text)
        text = text.replace(f"\n  {name}:\n", f"\n  {name}:\n    role: {role}\n")
    return text


def without(text: str, name: str) -> str:
    """The device without a memory and the paths that touch it."""
    text = re.sub(rf"(?m)^  {name}:\n(    .*\n)+", "", text)
    text = re.sub(rf"(?m)^  (\w+->{name}|{name}->\w+)(\.\w+)?:\n(    .*\n)+", "", text)
    return re.sub(rf"(\[[^\]]*), {name}\b", r"\1", text)


def product(on: Device) -> npusim.Result:
    a, b = npusim.spec((96, 64), "fp16"), npusim.spec((64, 80), "fp16")
    return npusim.ops.matmul(a, b, device=on)


def convolution(on: Device) -> npusim.Result:
    x, w = npusim.spec((1, 16, 8, 8), "fp16"), npusim.spec((16, 16, 3, 3), "fp16")
    return npusim.ops.convolution_backward(x, x, w, (16,), padding=1, device=on)


def test_renamed_memories_run_in_the_same_time(tmp_path: Path) -> None:
    names = {"L1": "SPM", "L0A": "LEFT", "L0B": "RIGHT", "L0C": "ACC", "UB": "VMEM"}
    own, tiny = device(tmp_path, renamed(TINY, **names)), load_device("tiny")
    assert {*names.values()} == {*own.memories}
    assert own.memory("L1").name == "SPM"
    for call in (product, convolution):
        assert [run.cycles for run in call(own).runs] == [run.cycles for run in call(tiny).runs]


def test_a_second_memory_of_a_role_is_refused_with_its_line(tmp_path: Path) -> None:
    second = "memories:\n  SPM:\n    size: 1KiB (assumed, HAND)\n    align: 32B (assumed, HAND)\n"
    text = TINY.replace("memories:\n", second + "    role: L1\n", 1)
    message = r"own\.yaml:\d+: memories\.L1: role L1 is held by memory 'SPM' already; kernels know"
    with pytest.raises(ConfigError, match=message):
        device(tmp_path, text)
    with pytest.raises(ConfigError, match=r"own\.yaml:\d+: .*role: unknown role 'L2'"):
        device(tmp_path, text.replace("role: L1", "role: L2"))
    # without a role it is a memory for kernels of one's own
    assert product(device(tmp_path, text.replace("    role: L1\n", ""))).cycles


def test_a_missing_role_is_refused_where_an_operator_needs_it(tmp_path: Path) -> None:
    message = (
        r"own has no memory of role {} \(its memories: [\w, ]+\); in .*own\.yaml give one of them "
        r"'role: {}', or take a device that has it"
    )
    nameless = TINY.replace("name: tiny", "name: own")
    unnamed = device(tmp_path, re.sub(r"\bL1\b", "SPM", nameless))
    for call in (product, convolution):
        with pytest.raises(ArgumentError, match=message.format("L1", "L1")):
            call(unnamed)
    bare = device(tmp_path, without(nameless, "UB"))
    assert product(bare).cycles  # its tiles leave L0C by the fixpipe
    with pytest.raises(ArgumentError, match=message.format("UB", "UB")):
        convolution(bare)
    patches = npusim.spec((1, 4, 4), "fp16")
    with pytest.raises(ArgumentError, match=message.format("UB", "UB")):
        npusim.ops.im2col_backward(patches, (3, 3), (2, 2), (1, 1), (0, 0), (1, 1), device=bare)


@pytest.mark.parametrize("size", ["8KiB", "2KiB"])
def test_tiles_are_no_higher_than_a_small_ub_can_drain(size: str) -> None:
    """The input gradient of the documentation took 14,336 B of 8,192."""
    small = load_device("ascend910").replace("memories.UB.size", size)
    result = npusim.ops.conv3d_backprop_input(
        npusim.spec((64, 16, 16, 16), "fp16"),
        npusim.spec((1, 2, 16, 15, 22, 16), "fp16"),
        [256, 128, 2, 2, 2],
        [1, 4, 30, 44, 128],
        {"strides": [1, 2, 2, 2, 1], "pads": [0] * 6, "dilations": [1] * 5},
        device=small,
    )
    assert result.cycles > 0
