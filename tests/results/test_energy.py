"""Energy and area on `tiny`, worked out by hand, and what is said where figures are missing.

`tiny` spends 1 pJ on a byte along a path (2 pJ along img2col paths), 5 pJ on a byte in the L2 and
50 pJ on one in main memory, 1 pJ on an fp16 multiply-add and on a byte of vector operands, and 1 W
all the time.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import npusim
from npusim.base.errors import ConfigError
from npusim.machine.device.area import area_mm2, area_parts, buffer_bytes, static_watt
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.config import parse_device
from npusim.machine.device.scaling import supply
from npusim.results.facts.energy import energy_of
from tests.machine.timing.test_timing_by_hand import Script, three_stages
from tests.tables import rows


def moving(figure: str) -> Any:
    """A kernel that moves 1000 bytes at this energy each."""
    return SimpleNamespace(activity={figure: 1000})


def product(device: Any = "tiny") -> npusim.Result:
    """One block of the cube: A and B of 512 B each, C of 1 KiB in fp32."""
    block = npusim.spec((16, 16), "fp16")
    return npusim.ops.matmul(block, block, device=device)


def test_a_product_of_one_block_by_hand() -> None:
    result = product()
    amounts = {row.figure: (row.amount, row.each) for row in result.spent.rows}
    assert amounts == {
        "paths.GM->L1.nd2nz.energy": (1024, 1),
        "paths.L1->L0A.load3d.energy": (512, 2),
        "paths.L1->L0B.load3d.energy": (512, 2),  # a variant with a figure of its own
        "cube.energy.fp16": (16**3, 1),
        "paths.L0C->GM.nz2nd.energy": (1024, 1),
        "l2.energy": (1024 + 1024, 5),
        "main_memory.energy": (1024, 50),  # C stays in the L2
        "silicon.static": (result.time_us, pytest.approx(1)),
    }
    pj = 1024 + 2 * (512 + 512) + 4096 + 1024 + 5 * 2048 + 50 * 1024
    assert result.energy_uj == pytest.approx(pj / 1e6 + result.cycles / 1e3)  # 1 GHz, 1 W


def test_the_vector_unit_by_hand() -> None:
    # Four pieces of 2560 B are loaded, multiplied (read and written) and stored.
    result = npusim.simulate(Script(three_stages), "tiny", cores=0b1)
    assert result.runs[0].activity == {
        "paths.GM->UB.energy": 4 * 2560,
        "vector.energy": 2 * 4 * 2560,
        "paths.UB->GM.energy": 4 * 2560,
        "l2.energy": 2 * 4 * 2560,
        "main_memory.energy": 4 * 2560,
    }
    pj = 4 * 2560 * (1 + 2 + 1 + 2 * 5 + 50)
    assert result.energy_uj == pytest.approx(pj / 1e6 + result.time_us)


def test_energy_follows_its_figure_and_time_does_not() -> None:
    plain = product()
    dear = product(load_device("tiny", {"cube.energy.fp16": "3pJ"}))
    assert dear.cycles == plain.cycles
    assert plain.energy_uj is not None
    assert dear.energy_uj == pytest.approx(plain.energy_uj + 2 * 4096 / 1e6)
    assert plain.replay is not None
    assert not [name for name in plain.replay.figures if "energy" in name or "silicon" in name]


def test_a_device_without_a_figure_says_so(tmp_path: Path) -> None:
    file = tmp_path / "quiet.yaml"
    text = "base: tiny\nname: quiet\ndescription: no energy of the cube\ncube:\n  energy: none\n"
    file.write_text(text + "main_memory:\n  energy: none\nsilicon: none\n")
    result = product(str(file))
    assert result.energy_uj is None
    assert result.spent.missing == ("cube.energy.fp16", "main_memory.energy")
    assert len(result.energy) == 0
    assert result.to_json()["energy_uj"] is None
    assert "lacks cube.energy.fp16, main_memory.energy" in " ".join(result.text().split())
    assert area_mm2(result.device) is None


def test_the_energy_of_a_network_is_that_of_its_layers() -> None:
    result = npusim.network("resnet18", device="ascend910b2")
    layers = [
        one.layer.count * one.result.energy_uj
        for one in result.timed
        if one.result is not None and one.result.energy_uj is not None
    ]
    assert len(layers) == len(result.timed)
    assert result.energy_uj == pytest.approx(sum(layers))
    assert result.to_json()["energy"][0]["uj"] > 0
    assert "\nenergy " in result.text()


def test_the_area_by_hand() -> None:
    # 4 groups of one core with 64 + 8 + 8 + 32 + 32 KiB, an L2 of 1 MiB, 4 x 4096 multipliers of
    # fp16 with 100 um2; a quarter as many of fp32 with 400 um2 are no larger. Each core moves 768
    # bytes a cycle, all forms of a move counted once, the L2 reads and writes 256 GB/s, and main
    # memory reads 64 GB/s.
    device = load_device("tiny")
    assert sum(buffer_bytes(device).values()) == 4 * 144 * 1024
    rates = 4 * 768 * 100 / 1e6 + 0.256 * 1 + 0.064 * 10
    assert area_mm2(device) == pytest.approx(4 * 144 / 1024 + 1 + 4 * 4096 * 100 / 1e6 + rates)
    assert area_parts(device)[0].what == "cube fp16"


@rows(
    "tests/data/rows/results.yaml",
    "more_of_anything_costs_area_or_supply",
    "path, value, larger, supply, l2_byte",
)
def test_more_of_anything_costs_area_or_supply(
    path: str, value: str, larger: int, supply: float, l2_byte: float
) -> None:
    # At 2 GHz the supply is 0.5 + 0.5 * 2 of what it is at 1 GHz, dynamic energy its square.
    plain, more = load_device("tiny"), load_device("tiny", {path: value})
    areas = [area_mm2(device) or 0.0 for device in (plain, more)]
    assert (areas[1] > areas[0]) == bool(larger)
    grown = static_watt(more) / static_watt(plain)
    assert grown == pytest.approx(supply * areas[1] / areas[0])
    spent = [energy_of(d, [moving("l2.energy")], 1) for d in (plain, more)]
    assert spent[1].dynamic_uj == pytest.approx((spent[0].dynamic_uj or 0) * l2_byte)
    outside = energy_of(more, [moving("main_memory.energy")], 1)
    assert outside.dynamic_uj == pytest.approx(50 * 1000 / 1e6)  # a supply of its own


#: Watts of each shipped chip while it waits, as its file says them.
WATTS = {"ascend310": 2, "ascend310p": 15, "ascend910": 60, "ascend950pr": 100, "ft78ne": 2}
WATTS |= {"mt7004": 2, "tiny": 1} | {f"ascend910{one}": 80 for one in ("b1", "b2", "b3", "b4", "c")}


def test_a_shipped_chip_waits_at_the_power_and_the_supply_of_its_file() -> None:
    for name, watt in WATTS.items():
        assert static_watt(load_device(name)) == pytest.approx(watt, rel=1e-4), name
        assert supply(load_device(name)) == 1


def test_a_supply_that_falls_with_the_clock_is_refused() -> None:
    with pytest.raises(ConfigError, match="make threshold the lower"):
        load_device("tiny", {"silicon.threshold": "1V"})


def test_a_memory_that_two_kinds_of_core_reach_is_counted_once() -> None:
    device = load_device("ascend950pr")
    assert buffer_bytes(device)["UB"] == device.groups * 2 * device.memory("UB").size_bytes


@pytest.mark.parametrize("name", devices())
def test_every_shipped_device_has_energy_and_area(name: str) -> None:
    device = load_device(name)
    assert all(path.energy_pj for path in device.paths.values())
    for unit in (device.cube, device.gemm):
        assert unit is None or unit.rates.keys() == unit.energy_pj.keys()
    assert device.main_memory.energy_pj
    assert device.vector.energy_pj
    assert area_mm2(device)


def test_an_energy_of_a_type_without_a_rate_is_refused() -> None:
    text = "base: tiny\nname: a\ndescription: d\ncube:\n  energy:\n    int8: 1pJ (assumed, HAND)\n"
    with pytest.raises(ConfigError, match=r"odd.yaml:6: cube.energy.int8: there is no rate of"):
        parse_device(text, "odd.yaml")


def test_no_energy_is_left_out_and_not_zero() -> None:
    text = "base: tiny\nname: odd\ndescription: d\nl2:\n  energy: 0pJ/B (assumed, HAND)\n"
    with pytest.raises(ConfigError, match="expected an energy per byte such as"):
        parse_device(text, "odd.yaml")
