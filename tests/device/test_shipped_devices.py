"""Shipped devices: every figure sourced, and figures checked against their public sources."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import npusim
from npusim.device.catalog import devices, load_device
from npusim.device.config import describe, figures
from npusim.device.parts import CONFIDENCES, Path
from npusim.device.spec import Device

#: The operations every device's vector unit must know the cost of.
DEFAULTS = {
    *("align", "conflict", "elements", "floor", "hf32_bits", "idle_head", "issue", "row"),
    *("core", "odd_tile", "piece", "repeated", "request", "skew", "unaligned", "window"),
    "library_rules",  # elsewhere the library's are not known
    *("crossbar", "phy"),  # DSPs have no L2, and nothing is said of their interface to DDR
    "read_at_most",  # elsewhere nobody has measured more than the mean
}


@pytest.mark.parametrize("name", devices())
def test_every_figure_is_sourced(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    for path in figures(device).keys() - device.provenance.keys():
        known = ("paths.", "cube.", "gemm.", "launch.", "graph.", "l2.", "vector.", "silicon.")
        assert path.startswith((*known, "library_")) or path.endswith(".read_at_most"), path
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
    if "dsp" in {role for kind in device.cores.values() for role in kind.roles}:
        check_dsp(device)
        return
    assert device.vector.ops.keys() == load_device("tiny").vector.ops.keys()
    for src, dst in (("GM", "L1"), ("GM", "UB"), ("UB", "GM"), ("IMM", "L1"), ("UB", "UB")):
        assert device.has_path(src, dst)
    for dst in ("L0A", "L0B"):
        for variant in ("", "transpose", "load3d"):
            assert device.has_path("L1", dst, variant)
    assert device.has_path("L0C", "GM") or device.has_path("L0C", "UB")
    assert not device.has_path("IMM", "L0C")


def check_dsp(device: Device) -> None:
    """Assert that a DSP can feed its micro-kernel and has no way between AM and SM."""
    assert device.gemm is not None
    assert device.cube is None
    assert device.vector.ops.keys() == {"cast"}
    assert set(device.gemm.rates) == set(device.dtypes)
    for src, dst in (("GM", "AM"), ("GM", "SM"), ("AM", "GM"), ("IMM", "SM")):
        assert device.has_path(src, dst)
    assert not device.has_path("AM", "SM")
    assert not device.has_path("SM", "AM")


def cost(path: Path) -> tuple[int | Fraction, ...]:
    """Return startup, rate, row and floor of a path."""
    return path.startup_cycles, path.bytes_per_cycle, path.row_cycles, path.floor_cycles


def sizes(name: str) -> dict[str, int]:
    """Return the private memories of a device in KiB."""
    return {m.name: m.size_bytes // 1024 for m in load_device(name).memories.values()}


def test_tiny() -> None:
    device = load_device("tiny")
    assert (device.clock_hz, device.groups, device.launch.cycles("cube", 4)) == (10**9, 4, 100)
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
    assert device.l2 is not None
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
    assert device.l2 is not None
    assert device.l2.read_bytes_per_cycle == 3300
    assert device.l2.write_bytes_per_cycle == 86 * 32
    assert device.main_memory.read_bytes_per_cycle == 1100
    peak = device.cube.macs_per_cycle("fp16") * 2 * device.groups * device.clock_hz
    assert peak == 262_144 * 10**9  # 262 TFLOPS; 256 are published


def test_ascend910b2_memories_and_units() -> None:
    device = load_device("ascend910b2")
    assert (device.clock_hz, device.groups, device.sync.event_ids) == (1_800_000_000, 24, 8)
    assert (device.cores["aic"].per_group, device.cores["aiv"].per_group) == (1, 2)
    assert sizes("ascend910b2") == {
        **{"L1": 512, "L0A": 64, "L0B": 64, "L0C": 128, "BT": 1, "UB": 192}
    }
    cube = device.cube
    assert cube is not None
    assert (cube.startup_cycles, cube.idle_head_cycles, cube.odd_block_conflict) == (2, 60, False)
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
    assert cost(device.path("L0C", "GM")) == (18, 72, 0, 85)
    assert cost(device.path("L0C", "GM", "nz2nd")) == (45, 72, 1, 95)
    assert not device.has_path("L0C", "UB")
    for dst, rate in (("L0A", 256), ("L0B", 128)):
        assert cost(device.path("L1", dst)) == (2, rate, 0, 0)
        assert device.path("L1", dst).idle_head_cycles == 17
        assert device.path("L1", dst).conflict_cycles == Fraction(21, 50)
        assert cost(device.path("L1", dst, "transpose")) == (2, rate, 0, 0)
        load3d = device.path("L1", dst, "load3d")
        assert cost(load3d) == (28, rate, 0, 0)
        assert load3d.window_bytes == {"L0A": 256, "L0B": 64}[dst]


def test_ascend910b2_shared_memory_and_launch() -> None:
    device = load_device("ascend910b2")
    per_us = device.clock_hz // 10**6
    assert device.l2 is not None
    assert device.l2.size_bytes == 192 << 20
    assert (device.l2.block_bytes, device.l2.sector_bytes) == (32 << 10, 512)
    rates = {
        4_300_000: device.l2.read_bytes_per_cycle,
        3_000_000: device.l2.write_bytes_per_cycle,
        1_450_000: device.main_memory.read_bytes_per_cycle,
        1_400_000: device.main_memory.write_bytes_per_cycle,
    }
    for bytes_per_us, rate in rates.items():
        assert abs(rate - Fraction(bytes_per_us, per_us)) <= Fraction(1, 2048)
    launch = device.launch
    assert (launch.kernel_cycles, launch.first_access_cycles) == (2160, 1260)
    # Tasks exceed the cores' own time by about 5 us; the smallest vector kernel seen takes 2.9 us.
    assert device.time_us(launch.cycles("cube", 24)) == pytest.approx(5.653, abs=0.001)
    assert device.time_us(launch.cycles("vector", 4)) == pytest.approx(2.309, abs=0.001)
    assert launch.skew_cycles == 9
    bus = device.links["hbm"]
    assert (bus.scope, bus.traffic) == ("chip", ("read_miss", "evict"))
    assert abs(bus.bytes_per_cycle - Fraction(1_600_000, per_us)) <= Fraction(1, 2048)


@pytest.mark.parametrize(
    ("name", "clock", "peaks"),
    [("ft78ne", 10**9, {"fp32": 96.0}), ("mt7004", 1_800_000_000, {"fp32": 345.6, "fp16": 691.2})],
)
def test_dsps(name: str, clock: int, peaks: dict[str, float]) -> None:
    device = load_device(name)
    assert (device.clock_hz, device.groups, device.dtypes) == (
        clock,
        8,
        tuple(sorted(peaks, key=peaks.__getitem__, reverse=True)),
    )
    assert sizes(name) == {"SM": 64, "AM": 768}
    assert device.l2 is None
    assert device.gemm is not None
    assert device.gemm.overhead_cycles == 14 + 12
    for dtype, gflops in peaks.items():  # per core: 2 x lanes x 3 units x clock
        assert float(2 * device.gemm.macs_per_cycle(dtype) * clock) / 1e9 == gflops
    assert device.vector.repeat_bytes == device.gemm.rates["fp32"].n // 3 * 4
    assert abs(float(device.main_memory.read_bytes_per_cycle) * clock / 1e9 - 42.6) < 1e-2
    assert cost(device.path("GM", "SM"))[0] == 60
    assert device.private_memory is not None
    assert device.private_memory.size_bytes == 768 << 10


#: device -> product, clock in MHz, cube cores, vector cores, event ids, L2 in MiB, peak fp16 TFLOPS
FAMILY = {
    "ascend310": ("310", 680, 2, 2, 8, 8, 11.1),
    "ascend310p": ("310p", 1060, 8, 8, 8, 16, 69.5),
    "ascend910": ("910", 1000, 32, 32, 4, 32, 262),
    "ascend910b1": ("a2", 1850, 24, 48, 8, 192, 364),
    "ascend910b2": ("a2", 1800, 24, 48, 8, 192, 354),
    "ascend910b3": ("a2", 1800, 20, 40, 8, 192, 295),
    "ascend910b4": ("a2", 1500, 20, 40, 8, 96, 246),
    "ascend910b4-1": ("a2", 1500, 20, 40, 8, 168, 246),
    "ascend910c": ("a3", 1850, 24, 48, 8, 192, 364),
    "ascend950pr": ("950", 1650, 32, 64, 8, 128, 433),
}


@pytest.mark.parametrize("name", FAMILY)
def test_ascend_family(name: str) -> None:
    device = load_device(name)
    product, mhz, cubes, vectors, events, l2_mib, tflops = FAMILY[name]
    assert (device.product, device.clock_hz) == (product, mhz * 10**6)
    for role, count in (("cube", cubes), ("vector", vectors)):
        assert device.groups * device.core_kind(role).per_group == count
    assert device.sync.event_ids == events
    assert device.l2 is not None
    assert device.l2.size_bytes == l2_mib << 20
    assert device.cube is not None
    peak = float(device.cube.macs_per_cycle("fp16")) * 2 * cubes * device.clock_hz
    assert peak == pytest.approx(tflops * 1e12, rel=0.01)


@pytest.mark.parametrize("name", FAMILY)
def test_generations(name: str) -> None:
    device = load_device(name)
    cube = device.cube
    assert cube is not None
    if name in ("ascend310", "ascend310p", "ascend910"):
        assert device.dtypes == ("fp16", "fp32")
        assert cube.rates.keys() == {"fp16"}
        assert not device.has_path("L0C", "GM")
        assert device.path("L0C", "UB").pipe == "V"
        assert cube.odd_block_conflict == (name != "ascend310p")
        assert device.has_path("L1", "L0A", "load3d_transpose") == (name == "ascend310p")
        assert not device.has_path("GM", "L1", "nd2nz")
        return
    block_scaled = ("mxfp8", "mxfp4") if name == "ascend950pr" else ()
    assert device.dtypes == ("fp16", "bf16", "fp32", "int8", *block_scaled)
    assert cube.macs_per_cycle("int8") == 2 * cube.macs_per_cycle("fp16")
    quarter = cube.macs_per_cycle("fp16") / 4
    assert (cube.macs_per_cycle("fp32"), cube.macs_per_cycle("hf32")) == (quarter, 2 * quarter)
    assert cube.hf32_bits == (10 if name == "ascend950pr" else 11)
    assert device.path("L0C", "GM").pipe == device.path("L0C", "GM", "nz2nd").pipe == "FIX"
    assert device.has_path("L1", "L0A", "load3d_transpose")
    assert device.has_path("GM", "L1", "nd2nz")
    assert device.has_path("UB", "L1") == device.has_path("L0C", "UB") == (name == "ascend950pr")
    assert not device.has_path("L1", "UB")


def test_the_310_and_310p_move_at_their_own_widths() -> None:
    small, large = load_device("ascend310"), load_device("ascend310p")
    assert sizes("ascend310")["UB"] == 248
    assert sizes("ascend310p") == {"L1": 1024, "L0A": 64, "L0B": 64, "L0C": 256, "UB": 256}
    for device, read, write, drain in ((small, 128, 64, 256), (large, 114, 114, 512)):
        assert cost(device.path("GM", "L1"))[1] == cost(device.path("GM", "UB"))[1] == read
        assert cost(device.path("UB", "GM"))[1] == write
        assert cost(device.path("L0C", "UB"))[1] == drain
    assert gigabytes(small) == pytest.approx((174.08, 87.04, 51.2, 51.2), rel=1e-3)
    assert gigabytes(large) == pytest.approx((1300, 966.72, 204.8, 204.8), rel=1e-3)


def test_shared_memory_of_the_910b_family_and_950() -> None:
    expected = {
        "ascend910b1": (4300, 3100, 1450, 1400),
        "ascend910b3": (4300, 2500, 1450, 1400),
        "ascend910b4": (5000, 2100, 580, 560),
        "ascend910b4-1": (5000, 2100, 1440, 1400),
        "ascend910c": (5000, 3100, 1450, 1400),
        "ascend950pr": (5280, 4000, 1620, 1600),
    }
    for name, totals in expected.items():
        assert gigabytes(load_device(name)) == pytest.approx(totals, rel=1e-3), name
    assert load_device("ascend910b4").main_memory.size_bytes == 32 << 30


def test_ascend950pr() -> None:
    device = load_device("ascend950pr")
    assert sizes("ascend950pr") == {
        **{"L1": 512, "L0A": 64, "L0B": 64, "L0A_MX": 4, "L0B_MX": 4, "L0C": 256, "BT": 4},
        "UB": 248,
    }
    assert device.cube is not None
    fp16, fp8, fp4 = (device.cube.macs_per_cycle(kind) for kind in ("fp16", "mxfp8", "mxfp4"))
    assert (fp8, fp4) == (2 * fp16, 4 * fp16)
    assert device.overlap_sums == "fp32"
    for dst in ("L0A", "L0B"):
        assert cost(device.path("L1", dst)) == (2, 256, 0, 0)
    for dst in ("UB", "L1"):
        assert device.path("L0C", dst).pipe == "FIX"
        assert device.path("L0C", dst).bytes_per_cycle == 128
    assert device.path("UB", "GM").bytes_per_cycle == 256


def gigabytes(device: Device) -> tuple[float, float, float, float]:
    """Return L2 read and write, main memory read and write, in GB/s."""
    l2, memory = device.l2, device.main_memory
    assert l2 is not None
    a, b, c, d = (
        float(rate) * device.clock_hz / 1e9
        for part in (l2, memory)
        for rate in (part.read_bytes_per_cycle, part.write_bytes_per_cycle)
    )
    return a, b, c, d


@pytest.mark.compiled
@pytest.mark.parametrize("name", FAMILY)
def test_every_cube_computes_a_filter_gradient(name: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((2, 1, 6, 5, 16)).astype(np.float16)
    dy = rng.standard_normal((2, 2, 6, 5, 16)).astype(np.float16)
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    result = npusim.ops.conv2d_backprop_filter(x, dy, [32, 16, 3, 3], para, device=name)
    assert result.outputs is not None
    (dw,) = result.outputs
    assert dw is not None
    # (1, C1 * KH * KW, Cout, 16) back to (Cout, C, KH, KW)
    found = dw.reshape(3, 3, 32, 16).transpose(2, 3, 0, 1)
    wide = [a.astype(np.float64).transpose(0, 1, 4, 2, 3).reshape(2, -1, 6, 5) for a in (x, dy)]
    padded = np.pad(wide[0], ((0, 0), (0, 0), (1, 1), (1, 1)))
    for kh in range(3):
        for kw in range(3):
            window = padded[:, :, kh : kh + 6, kw : kw + 5]
            want = np.einsum("nchw,nohw->oc", window, wide[1])
            np.testing.assert_allclose(found[:, :, kh, kw], want, rtol=0, atol=2e-5)
