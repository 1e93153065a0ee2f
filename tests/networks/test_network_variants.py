"""A network on variants of its device, with the tilings it had."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
import npusim.reuse.launches
from npusim.base.errors import ArgumentError
from npusim.networks.network import NetworkResult
from npusim.workloads import Workload, load_workload
from tests.texts import text_of

DEVICE = "ascend910b2"

NET = text_of("untimed_layers.yaml")


@pytest.fixture
def gaps(tmp_path: Path) -> Workload:
    path = tmp_path / "gaps.yaml"
    path.write_text(NET, encoding="utf-8")
    return load_workload(path)


def timed(net: Workload) -> NetworkResult:
    return npusim.network(net, device=DEVICE, batch=2)


def test_variants_of_the_device_are_timed_with_the_tilings_held(
    gaps: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = timed(gaps)
    assert result.time_us_on(result.device) == pytest.approx(result.time_us, rel=1e-12)
    figures = {
        "main_memory.read": "0.02TB/s",
        "l2.read": "2TB/s",
        "memories.L1.size": "1MiB",
        "clock": "1.5GHz",
        "cube.startup": "40cycle",
    }
    variants = [
        npusim.load_device(DEVICE, dict(list(figures.items())[:number]))
        for number in range(1, len(figures) + 1)
    ]
    times = [result.time_us_on(variant) for variant in variants]
    assert [result.time_us_on(variant) for variant in reversed(variants)] == times[::-1]
    assert times[0] > result.time_us
    assert times[2] == times[1]  # nothing is tiled anew for a larger L1
    assert times[4] > times[3]
    monkeypatch.setattr(npusim.reuse.launches, "recosted", lambda program, variant: None)
    assert [timed(gaps).time_us_on(variant) for variant in variants] == times  # built anew


def test_a_variant_with_other_core_groups_is_refused(gaps: Workload) -> None:
    with pytest.raises(ArgumentError, match=r"12 core groups, .* was tiled for 24; call it again"):
        timed(gaps).time_us_on(npusim.load_device(DEVICE, {"groups": "12"}))
