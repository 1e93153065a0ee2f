"""A training step over designs and ways to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim
from tests.networks.blocks import ONE_BLOCK

pytestmark = pytest.mark.compiled


@pytest.fixture
def block(tmp_path: Path) -> str:
    (tmp_path / "block.yaml").write_text(ONE_BLOCK, encoding="utf-8")
    return str(tmp_path / "block.yaml")


def test_what_fusion_is_worth_is_a_sweep(block: str) -> None:
    swept = npusim.sweep(
        network=block,
        device="ascend910",
        batch="4",
        mode="graph",
        vary={
            "fusions": "none,usual,update+sum&update+activation",
            "main_memory.read": "0.2TB/s,1TB/s",
        },
        store=None,
        jobs=1,
    )
    rows = swept.rows()
    assert len(rows) == 6
    assert not swept.failed
    for row in rows:
        names = row["fusions"].replace("&", ",")
        device = npusim.load_device("ascend910", {"main_memory.read": row["main_memory.read"]})
        one = npusim.step(block, device=device, batch=4, fusions=names)
        assert (row["time_us"], row["cycles"]) == (one.time_us, one.cycles)
        phases = sum(row[f"{name}_us"] for name in ("forward", "backward", "optimizer"))
        assert phases == pytest.approx(row["time_us"])
        assert row["layout_us"] == pytest.approx(sum(x.timed.us for x in one.conversions))
        assert row["kept_bytes"] == one.kept_bytes
        assert row["peak_bytes"] == one.peak_bytes
        assert row["fetched_bytes"] == one.fetched_bytes
        assert row["written_back_bytes"] == one.written_back_bytes
        assert row["bottleneck"] == next(iter(one.split))
    assert {"forward_us", "kept_bytes", "peak_bytes"} <= set(swept.table.columns)
    assert "input_us" not in swept.table.columns


def test_what_a_step_has_not_is_refused(block: str) -> None:
    words: dict[str, Any] = {"network": block, "device": "ascend910", "store": None, "jobs": 1}
    with pytest.raises(npusim.ArgumentError, match="step: unknown keyword 'gradients'"):
        npusim.sweep(vary={"mode": "graph,eager"}, gradients="weight", **words)
    with pytest.raises(npusim.ArgumentError, match=r"mode: unknown 'graf' \(known: eager, graph\)"):
        npusim.sweep(vary={"mode": "graf"}, **words)
