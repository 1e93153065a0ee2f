"""Laws of clock and size on `tiny`, by hand: at its own clock and sizes every law is 1.

`tiny` needs 0.5 V at no clock and 1 V at 1 GHz, has half as much logic again at twice the clock,
and a knee of 64 KiB for private memories (L1 has 64 KiB, L0A 8 KiB) and of 1 MiB for its L2 of
1 MiB.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest

import npusim
from npusim.base.errors import ConfigError
from npusim.machine.device.area import area_parts, logic_mm2
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.config import figures
from npusim.machine.device.parts import ENERGY
from npusim.machine.device.scaling import (
    energy_growth,
    energy_pj,
    energy_times,
    logic_growth,
    supply,
)
from npusim.machine.device.spec import Device


@pytest.mark.parametrize("name", devices())
def test_at_its_own_clock_and_sizes_every_law_is_one(name: str) -> None:
    device = load_device(name)
    assert supply(device) == logic_growth(device) == 1
    for path, figure in figures(device).items():
        if ENERGY in figure.keys:
            assert energy_times(device, path, figure) == 1, path


@pytest.mark.parametrize("name", devices())
def test_a_shipped_device_states_what_its_laws_need(name: str) -> None:
    device = load_device(name)
    law = device.silicon
    assert law is not None
    assert law.most_clock_hz is not None
    assert law.most_clock_hz > device.clock_hz
    assert law.clock_area_percent
    sizes = {name: memory.size_bytes for name, memory in device.memories.items()}
    if device.l2 is not None:
        sizes["l2"] = device.l2.size_bytes
        assert law.l2_knee_bytes
    if device.shared_memory is not None:
        sizes["shared_memory"] = device.shared_memory.size_bytes
    assert law.sizes == sizes
    assert law.buffer_knee_bytes


def grown(device: Device, path: str) -> float:
    """An energy as a multiple of what the file states, the supply apart."""
    return energy_growth(device, figures(device)[path])


def test_a_byte_of_a_larger_memory_takes_more() -> None:
    device = load_device("tiny", {"memories.L1.size": "256KiB", "l2.size": "4MiB"})
    # 1 + sqrt(256 / 64) over 1 + sqrt(64 / 64); a move into L1 has no other memory on the chip.
    assert grown(device, "paths.GM->L1.energy") == pytest.approx(3 / 2)
    # L0A has 1 + sqrt(8 / 64) in any case.
    l0a = 1 + sqrt(1 / 8)
    assert grown(device, "paths.L1->L0A.load3d.energy") == pytest.approx((3 + l0a) / (2 + l0a))
    assert grown(device, "l2.energy") == pytest.approx(3 / 2)
    for path in ("vector.energy", "cube.energy.fp16", "main_memory.energy", "paths.L0C->GM.energy"):
        assert grown(device, path) == 1
    wide = load_device("tiny", {"memories.UB.size": "64KiB"})
    assert grown(wide, "vector.energy") == pytest.approx(2 / (1 + sqrt(1 / 2)))
    assert energy_pj(device, "l2.energy") == pytest.approx(7.5)
    assert energy_pj(device, "nothing.energy") == 0


def test_a_byte_of_a_dsp_shared_memory_follows_its_size() -> None:
    larger = load_device("ft78ne", {"shared_memory.size": "24MiB"})
    inside = larger.with_operands_in("shared_memory")
    assert grown(inside, "shared_memory.energy") == pytest.approx(2, rel=0.01)


def test_logic_is_larger_at_a_faster_clock() -> None:
    plain, fast = load_device("tiny"), load_device("tiny", {"clock": "1.5GHz"})
    assert logic_growth(fast) == 1.25
    assert logic_growth(load_device("tiny", {"clock": "0.5GHz"})) == 0.75
    before = {part.what: part.mm2 for part in area_parts(plain)}
    after = {part.what: part.mm2 for part in area_parts(fast)}
    for what in ("cube fp16", "wires"):
        assert after[what] == pytest.approx(1.25 * before[what])
    for what in ("L1", "l2"):
        assert after[what] == before[what]
    assert logic_mm2(fast) == pytest.approx(1.25 * (logic_mm2(plain) or 0))


def test_the_reference_stays_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    text = "base: tiny\nname: small\ndescription: d\nclock: 2GHz\nl2:\n  size: 4MiB\n"
    file.write_text(text, encoding="utf-8")
    based = load_device(file)
    assert supply(based) == pytest.approx(1.5)
    assert energy_pj(based, "l2.energy") == pytest.approx(5 * 1.5 * 2.25)
    # Back at the sizes of its base a variant is as its base.
    back = based.replace("clock", "1GHz").replace("l2.size", "1MiB")
    assert energy_pj(back, "l2.energy") == 5
    # A file may state another reference with what it changes.
    file.write_text(text + "silicon:\n  clock: 2GHz\n  sizes:\n    l2: 4MiB\n", encoding="utf-8")
    assert energy_pj(load_device(file), "l2.energy") == 5
    without = load_device("tiny", {"l2": "no"})
    assert energy_pj(without, "l2.energy") == 0


def test_a_clock_beyond_the_supply_is_refused(tmp_path: Path) -> None:
    load_device("tiny", {"clock": "9GHz"})
    with pytest.raises(ConfigError) as caught:
        load_device("tiny", {"clock": "9.5GHz"})
    assert str(caught.value) == (
        "tiny with clock=9.5GHz: 9.5GHz needs a supply of 5.25 V, and silicon.voltage_limit is "
        "5 V, which it reaches at 9 GHz: lower the clock, or raise silicon.voltage_limit"
    )
    load_device("tiny", {"clock": "9.5GHz", "silicon.voltage_limit": "6V"})
    file = tmp_path / "hot.yaml"
    file.write_text("base: tiny\nname: hot\ndescription: d\nclock: 10GHz\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"hot.yaml:4: clock: 10GHz needs a supply of 5.5 V"):
        load_device(file)


def test_a_size_of_no_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    text = "base: tiny\nname: odd\ndescription: d\nsilicon:\n  sizes:\n    l1: 1MiB\n"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"odd.yaml:6: silicon.sizes.l1: there is no memory 'l1'"):
        load_device(file)


@pytest.mark.compiled
def test_energy_times_delay_is_least_within_a_sweep_of_sizes_and_clocks() -> None:
    """Larger and faster is better up to a point, and worse beyond it."""
    sizes, clocks = ["64KiB", "1MiB", "2MiB", "8MiB"], ["0.5GHz", "1GHz", "2GHz", "4GHz"]
    found = npusim.sweep(
        operator="matmul", device="tiny", m=512, k=512, n=512, store=None, jobs=1,
        vary={"l2.size": sizes, "clock": clocks},
    )  # fmt: skip
    rows = {(row["l2.size"], row["clock"]): row for row in found.rows()}
    best = min(rows, key=lambda point: rows[point]["energy_uj"] * rows[point]["time_us"])
    assert best[0] in sizes[1:-1]
    assert best[1] in clocks[1:-1]
    # The energy alone too, over the sizes.
    energies = [rows[size, "1GHz"]["energy_uj"] for size in sizes]
    assert min(energies) not in (energies[0], energies[-1])
    row = rows["1MiB", "2GHz"]
    assert (row["supply_v"], row["l2_pj_per_byte"]) == (1.5, pytest.approx(5 * 2.25))
    assert row["logic_mm2"] == pytest.approx(1.5 * rows["1MiB", "1GHz"]["logic_mm2"])
    assert row["l1_pj_per_byte"] == pytest.approx(2.25)


@pytest.mark.compiled
def test_the_sweep_in_the_guide_has_its_least_energy_times_time_inside() -> None:
    """A product on the 910B2, at 48 MiB and 1.2 GHz and at the four neighbours in the table."""
    best = ("48MiB", "1.2GHz")
    beside = [("24MiB", "1.2GHz"), ("96MiB", "1.2GHz"), ("48MiB", "0.9GHz"), ("48MiB", "1.5GHz")]
    block = npusim.spec((4096, 4096), "fp16")
    costs = {}
    for size, clock in (best, *beside):
        device = load_device("ascend910b2", {"l2.size": size, "clock": clock})
        result = npusim.ops.matmul(block, block, device=device)
        costs[size, clock] = (result.energy_uj or 0.0) * result.time_us / 1e6
    assert min(costs, key=lambda point: costs[point]) == best
    assert costs[best] == pytest.approx(58.4, abs=0.05)
