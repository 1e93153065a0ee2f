"""Shipped devices: every figure sourced, and figures checked against their public sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

import npusim
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.config import describe, figures
from npusim.machine.device.parts import CONFIDENCES
from npusim.machine.device.spec import Device
from tests.tables import table

#: The operations every device's vector unit must know the cost of.
DEFAULTS = {
    *("align", "conflict", "elements", "floor", "hf32_bits", "idle_head", "issue", "row"),
    *("core", "odd_tile", "piece", "repeated", "request", "skew", "unaligned", "window"),
    *("library_rules", "library_multiplies"),  # elsewhere the library's are not known
    "private_formats",  # from the 910B on frameworks keep none
    *("crossbar", "phy", "l2_knee"),  # DSPs have no L2, and nothing is said of the way to DDR
    "read_at_most",  # elsewhere nobody has measured more than the mean
    *("memory_rate", "turnaround"),  # elsewhere no core was timed alone, and no bus both ways
    "missed",  # elsewhere no kernel tells what misses take of the L2
}


#: Beginnings of the figures that have a default.
PREFIXES = (
    *("paths.", "cube.", "gemm.", "launch.", "graph.", "l2.", "vector.", "silicon."),
    *("links.", "library_", "private_"),
)


@pytest.mark.parametrize("name", devices())
def test_every_figure_is_sourced(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    for path in figures(device).keys() - device.provenance.keys():
        assert path.startswith(PREFIXES) or path.endswith(".read_at_most"), path
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
    operations = load_device("tiny").vector.ops.keys()
    assert device.vector.ops.keys() | {"col2img"} == operations  # cores of the first 910's kind
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


TABLE: dict[str, dict[str, str]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "sourced_figures.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", TABLE)
def test_figures_are_those_of_the_sources(name: str) -> None:
    told = {path: value for path, value, *_ in describe(load_device(name))}
    assert {path: told.get(path) for path in TABLE[name]} == TABLE[name]


@pytest.mark.parametrize(
    ("name", "peaks"), [("ft78ne", {"fp32": 96.0}), ("mt7004", {"fp32": 345.6, "fp16": 691.2})]
)
def test_peaks_of_dsps(name: str, peaks: dict[str, float]) -> None:
    device = load_device(name)
    assert device.gemm is not None
    assert device.l2 is None
    for dtype, gflops in peaks.items():  # per core: 2 x lanes x 3 units x clock
        assert float(2 * device.gemm.macs_per_cycle(dtype) * device.clock_hz) / 1e9 == gflops
    assert device.vector.repeat_bytes == device.gemm.rates["fp32"].n // 3 * 4


FAMILY = {
    row["name"]: row
    for row in table(
        "tests/data/rows/device.yaml",
        "ascend_family",
        "name, product, mhz, cubes, vectors, events, l2_mib, tflops",
    )
}


@pytest.mark.parametrize("name", FAMILY)
def test_ascend_family(name: str) -> None:
    device = load_device(name)
    row = FAMILY[name]
    assert (device.product, device.clock_hz) == (row["product"], row["mhz"] * 10**6)
    for role in ("cube", "vector"):
        assert device.groups * device.core_kind(role).per_group == row[f"{role}s"]
    assert device.sync.event_ids == row["events"]
    assert device.l2 is not None
    assert device.l2.size_bytes == row["l2_mib"] << 20
    assert device.cube is not None
    peak = float(device.cube.macs_per_cycle("fp16")) * 2 * row["cubes"] * device.clock_hz
    assert peak == pytest.approx(row["tflops"] * 1e12, rel=0.01)


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
