"""Axes and points of studies: texts, ranges, combinations, and errors before the first point.

A design with more of everything is no slower: each point chooses its tilings anew.
"""

from __future__ import annotations

import random
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError, ConfigError, NpusimError
from npusim.machine.device.spec import Device
from npusim.study.space import Study, StudyAxis, load_study, make_axis, make_study
from tests.tables import rows
from tests.texts import text_of

ON = {"operator": "matmul", "device": "tiny", "m": "32", "k": "32", "n": "32"}


@rows("tests/data/rows/study.yaml", "values_of_an_axis", "name, values, want")
def test_values_of_an_axis(name: str, values: Any, want: list[str]) -> None:
    fixed = {key: value for key, value in ON.items() if key != name}
    assert make_axis(name, values, fixed) == StudyAxis(name=name, values=tuple(want))


@rows("tests/data/mistakes/study.yaml", "wrong_values_of_an_axis", "name, values, message")
def test_wrong_values_of_an_axis(name: str, values: str, message: str) -> None:
    with pytest.raises(NpusimError) as caught:
        make_axis(name, values, ON)
    assert message in str(caught.value)


def test_a_grid_is_every_combination_and_zip_goes_along() -> None:
    vary = {"m": "16,32", "k": [16, 48, 64]}
    fixed = {"operator": "matmul", "device": "tiny", "n": 32}
    grid = [(p["m"], p["k"]) for p in make_study(fixed, vary).points()]
    assert grid == [(m, k) for m in ("16", "32") for k in ("16", "48", "64")]
    pairs = make_study(fixed, {"m": "16,32", "k": "48,64"}, "zip")
    assert [(p["m"], p["k"]) for p in pairs.points()] == [("16", "48"), ("32", "64")]
    assert (len(pairs), pairs.varied) == (2, ("m", "k"))
    with pytest.raises(ArgumentError, match="m has 2, k has 3; make them equal"):
        make_study(fixed, vary, "zip")


FULL = text_of("study.yaml")


def test_a_study_file(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(FULL.replace("set: {launch.cycles: 0cycle}\n", ""), encoding="utf-8")
    study = load_study(path)
    assert study.description == "how large L1 should be"
    assert len(study) == 6
    assert list(study.points())[1] == {
        **{"device": "tiny", "operator": "matmul", "m": "64", "k": "64", "n": "64"},
        **{"memories.L1.size": "16KiB", "groups": "2"},
    }
    listed = path.with_name("listed.yaml")
    listed.write_text(
        "device: tiny\noperator: matmul\noptions: {k: 32, n: 32}\n"
        "points:\n- {m: 16}\n- {m: 32, memories.L1.size: 32KiB}\n",
        encoding="utf-8",
    )
    assert [point["m"] for point in load_study(listed).points()] == ["16", "32"]


@rows(
    "tests/data/mistakes/study.yaml",
    "a_malformed_study_names_file_and_line",
    "old, new, line, message",
)
def test_a_malformed_study_names_file_and_line(
    old: str, new: str, line: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.yaml"
    text = FULL.replace("set: {launch.cycles: 0cycle}\n", "")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        npusim.sweep(path, store=None)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


def test_a_study_is_of_one_thing() -> None:
    with pytest.raises(ArgumentError, match="a network or an operator"):
        Study(fixed={"network": "resnet50", "operator": "matmul"})
    with pytest.raises(ArgumentError, match="at most 10,000,000 run"):
        Study(
            fixed={"operator": "matmul"},
            axes=tuple(StudyAxis(name=n, values=("1",) * 1000) for n in "mkn"),
        )


#: How much slower a larger design may be, as tilings are chosen by estimates.
MARGIN = 1.02

L1 = ("256KiB", "512KiB", "1MiB")
HBM = ("0.8TB/s", "1.6TB/s")


@pytest.mark.slow
def test_more_l1_and_more_bandwidth_are_not_slower(tmp_path: Path) -> None:
    rows = npusim.sweep(
        network="resnet18",
        batch=8,
        device="ascend910b2",
        vary={"memories.L1.size": L1, "main_memory.read": HBM},
        store=tmp_path / "points.sqlite",
    ).rows()
    times = {(row["memories.L1.size"], row["main_memory.read"]): row["time_us"] for row in rows}
    assert len(times) == 6
    for less, more in product(times, times):
        if L1.index(less[0]) <= L1.index(more[0]) and HBM.index(less[1]) <= HBM.index(more[1]):
            assert times[more] <= MARGIN * times[less], (less, more)


NETWORKS = (
    "convnext_tiny",
    "dcgan",
    "mobilenet_v1",
    "mobilenet_v2",
    "r2plus1d_18",
    "resnet18",
    "resnet50",
    "unet",
    "unet_3d",
    "vgg16",
    "wavenet",
)
NPUS = (
    *("ascend310", "ascend310p", "ascend910", "ascend910b1", "ascend910b2", "ascend910b3"),
    *("ascend910b4", "ascend910c", "ascend950pr"),
)

#: Multiples of a device's own figure.
STEPS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3)


def rising(device: Device, name: str, steps: list[float]) -> list[str]:
    """Values of a figure that rise with ``steps``."""
    if name == "groups":
        return [str(max(1, round(device.groups * step))) for step in steps]
    if name == "clock":
        return [f"{device.clock_hz * step / 1e9:.3f}GHz" for step in steps]
    if name == "l2.size":
        assert device.l2 is not None
        return [f"{int(device.l2.size_bytes * step) // 2**20}MiB" for step in steps]
    part, figure = name.rsplit(".", 1)
    if figure == "size":
        size = device.memory(part.removeprefix("memories.")).size_bytes
        return [f"{int(size * step) // 4096 * 4}KiB" for step in steps]
    assert device.l2 is not None
    link = device.l2 if part == "l2" else device.main_memory
    return [f"{link.read_bytes_per_cycle * device.clock_hz * step / 1e9:.1f}GB/s" for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_networks_are_no_slower_on_larger_designs(seed: int) -> None:
    """Of three designs that differ in one figure of a device, none with more is slower."""
    rng = random.Random(seed)
    network, batch = rng.choice(NETWORKS), rng.choice((1, 2, 8))
    device = npusim.load_device(rng.choice(NPUS))
    buffers = [
        f"memories.{one}.size" for one in ("L1", "L0A", "L0C", "UB") if one in device.memories
    ]
    name = rng.choice(["groups", "clock", "main_memory.read", "l2.read", "l2.size", *buffers])
    times = []
    for value in rising(device, name, sorted(rng.sample(STEPS, 3))):
        try:
            larger = npusim.load_device(device.name, {name: value})
        except (
            NpusimError
        ):  # a quarter of a small buffer holds no fractal, or of an odd one no whole
            continue
        times.append((npusim.network(network, batch=batch, device=larger).time_us, value))
    assert len(times) > 1
    for less, more in pairwise(times):
        assert more[0] <= MARGIN * less[0], (network, batch, device.name, name, less, more)
