"""Shipped devices: every figure sourced, and figures checked against their public sources."""

from __future__ import annotations

from fractions import Fraction

import pytest

from npusim.device.catalog import describe, devices, load_device
from npusim.device.config import figures
from npusim.device.spec import CONFIDENCES, Path

#: The operations every device's vector unit must know the cost of.
VECTOR_OPS = {
    *("add", "sub", "mul", "max", "min", "adds", "muls", "maxs", "mins"),
    *("cast", "copy", "dup", "reduce_add", "reduce_max"),
}

DEFAULTS = {"row", "floor", "idle_head", "issue", "window", "hf32_bits"}


@pytest.mark.parametrize("name", devices())
def test_every_figure_is_sourced(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    for path in figures(device).keys() - device.provenance.keys():
        assert path.startswith(("paths.", "cube.")), path
        assert path.rpartition(".")[2] in DEFAULTS, path
    for path, text, confidence, source in describe(device):
        assert confidence in CONFIDENCES, path
        assert text, path
        assert len(source) > 10, path


@pytest.mark.parametrize("name", devices())
def test_every_source_is_used(name: str) -> None:
    device = load_device(name)
    assert {known.source for known in device.provenance.values()} == set(device.sources)


@pytest.mark.parametrize("name", devices())
def test_every_device_can_run_the_instruction_set(name: str) -> None:
    device = load_device(name)
    assert device.vector.ops.keys() == VECTOR_OPS
    for src, dst in (("GM", "L1"), ("GM", "UB"), ("UB", "GM"), ("IMM", "L1"), ("UB", "UB")):
        assert device.has_path(src, dst)
    for dst in ("L0A", "L0B"):
        for variant in ("", "transpose", "load3d"):
            assert device.has_path("L1", dst, variant)
    assert device.has_path("L0C", "GM") or device.has_path("L0C", "UB")
    assert not device.has_path("IMM", "L0C")


def cost(path: Path) -> tuple[int | Fraction, ...]:
    """Return startup, rate, row and floor of a path."""
    return path.startup_cycles, path.bytes_per_cycle, path.row_cycles, path.floor_cycles


def sizes(name: str) -> dict[str, int]:
    """Return the private memories of a device in KiB."""
    return {m.name: m.size_bytes // 1024 for m in load_device(name).memories.values()}


def test_tiny() -> None:
    device = load_device("tiny")
    assert (device.clock_hz, device.groups, device.launch.cycles) == (10**9, 4, 100)
    assert sizes("tiny") == {"L1": 64, "L0A": 8, "L0B": 8, "L0C": 32, "UB": 32}
    assert {pipe.queue_depth for pipe in device.pipes.values()} == {4}
    assert device.cores["core"].pipes == ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX")
    assert {path.bytes_per_cycle for path in device.paths.values()} == {64}
    for path in device.paths.values():
        gm = "GM" in (path.src, path.dst)
        assert path.startup_cycles == (10 if gm else 0), path.name
        assert path.row_cycles == (2 if path.variant == "nd2nz" else 0), path.name
    assert device.cube is not None
    assert (device.cube.startup_cycles, device.cube.idle_head_cycles) == (0, 4)
    assert set(device.vector.ops.values()) == {1}
    assert (device.l2.size_bytes, device.l2.block_bytes, device.l2.sector_bytes) == (
        1 << 20,
        4096,
        512,
    )
    assert device.l2.read_bytes_per_cycle == 128
    assert device.l2.write_bytes_per_cycle == 128
    assert device.main_memory.read_bytes_per_cycle == 64
    assert device.main_memory.write_bytes_per_cycle == 64
    assert device.sync.core_barrier_cycles == 10


def test_ascend910() -> None:
    device = load_device("ascend910")
    assert (device.clock_hz, device.groups, device.sync.event_ids) == (10**9, 32, 4)
    assert sizes("ascend910") == {"L1": 1024, "L0A": 64, "L0B": 64, "L0C": 256, "UB": 256}
    assert cost(device.path("GM", "L1")) == cost(device.path("GM", "UB")) == (200, 110, 0, 0)
    assert cost(device.path("UB", "GM"))[1] == 64
    assert cost(device.path("L1", "L0A")) == (10, 512, 0, 0)
    assert cost(device.path("L1", "L0B")) == (10, 256, 0, 0)
    for dst, rate in (("L0A", 512), ("L0B", 256)):
        load3d = device.path("L1", dst, "load3d")
        assert cost(load3d) == (15, rate, 0, 0)
        assert (load3d.issue_cycles, load3d.window_bytes) == (43, 512)
    assert device.path("L0C", "UB").pipe == device.path("UB", "L0C").pipe == "V"
    assert device.path("L0C", "UB").bytes_per_cycle == 256
    assert device.path("UB", "L1").bytes_per_cycle == device.path("L1", "UB").bytes_per_cycle == 128
    assert not device.has_path("L0C", "GM")
    assert not device.has_path("GM", "L1", "nd2nz")
    assert device.cube is not None
    assert device.cube.rates.keys() == {"fp16"}
    assert (device.cube.idle_head_cycles, device.cube.odd_block_conflict) == (15, True)
    assert device.l2.read_bytes_per_cycle == 3300
    assert device.l2.write_bytes_per_cycle == 86 * 32
    assert device.main_memory.read_bytes_per_cycle == 1100
    peak = device.cube.macs_per_cycle("fp16") * 2 * device.groups * device.clock_hz
    assert peak == 262_144 * 10**9  # 262 TFLOPS; 256 are published


def test_ascend910b2_memories_and_units() -> None:
    device = load_device("ascend910b2")
    assert (device.clock_hz, device.groups, device.sync.event_ids) == (1_800_000_000, 24, 8)
    assert (device.cores["aic"].per_group, device.cores["aiv"].per_group) == (1, 2)
    assert sizes("ascend910b2") == {"L1": 512, "L0A": 64, "L0B": 64, "L0C": 128, "UB": 192}
    cube = device.cube
    assert cube is not None
    assert (cube.startup_cycles, cube.idle_head_cycles, cube.odd_block_conflict) == (2, 21, False)
    assert cube.macs_per_cycle("fp16") == cube.macs_per_cycle("bf16") == 4096
    assert cube.macs_per_cycle("fp32") == 1024
    peak = float(cube.macs_per_cycle("fp16")) * 2 * device.groups * device.clock_hz
    assert peak == pytest.approx(353.9e12, rel=1e-3)
    vector = device.vector
    assert (vector.startup_cycles, vector.idle_head_cycles, vector.repeat_bytes) == (2, 24, 256)
    assert [vector.ops[op] for op in ("add", "adds", "cast", "reduce_add")] == [2, 1, 1, 3]


def test_ascend910b2_moves() -> None:
    device = load_device("ascend910b2")
    assert cost(device.path("GM", "L1")) == (187, 171, 0, 0)
    assert cost(device.path("GM", "L1", "nd2nz")) == (41, 171, Fraction(17, 5), 0)
    assert cost(device.path("GM", "UB")) == (192, Fraction(1263, 10), 0, 0)
    assert cost(device.path("UB", "GM")) == (124, Fraction(773, 10), 0, 0)
    assert cost(device.path("L0C", "GM")) == (18, 119, 0, 85)
    assert cost(device.path("L0C", "GM", "nz2nd")) == (45, 146, 0, 95)
    assert not device.has_path("L0C", "UB")
    for dst, rate in (("L0A", 256), ("L0B", 128)):
        assert cost(device.path("L1", dst)) == (2, rate, 0, 0)
        assert cost(device.path("L1", dst, "transpose")) == (2, rate, 0, 0)
        load3d = device.path("L1", dst, "load3d")
        assert cost(load3d) == (28, rate, 0, 0)
        assert load3d.window_bytes == 256


def test_ascend910b2_shared_memory_and_launch() -> None:
    device = load_device("ascend910b2")
    per_us = device.clock_hz // 10**6
    assert device.l2.size_bytes == 192 << 20
    assert (device.l2.block_bytes, device.l2.sector_bytes) == (32 << 10, 512)
    rates = {
        5_000_000: device.l2.read_bytes_per_cycle,
        3_000_000: device.l2.write_bytes_per_cycle,
        1_450_000: device.main_memory.read_bytes_per_cycle,
        1_400_000: device.main_memory.write_bytes_per_cycle,
    }
    for bytes_per_us, rate in rates.items():
        assert abs(rate - Fraction(bytes_per_us, per_us)) <= Fraction(1, 2048)
    launch = device.launch
    assert (launch.kernel_cycles, launch.first_access_cycles) == (2160, 2880)
    assert device.time_us(launch.cycles) == 5.0
