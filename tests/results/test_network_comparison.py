"""Two networks side by side: results, files, and what cannot be compared."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.results.network_comparison import NetworkComparison

pytestmark = pytest.mark.compiled


@cache
def facts() -> dict[str, Any]:
    return npusim.network("dcgan", device="ascend910").to_json()


def changed() -> dict[str, Any]:
    """The same with one layer 5 us longer, another that failed, and a kernel that is new."""
    other = copy.deepcopy(facts())
    first, second = other["layers"][:2]
    first["total_us"] += 5.0
    first["bottleneck"] = "pipe FIX"
    second |= {"total_us": None, "error": "no tiling fits"}
    other["kernels"].append(dict(other["kernels"][0], kernel="new", time_us=7.0))
    other["time_us"] += 5.0
    other["batch"] = 3
    return other


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, str]:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, one in zip(paths, (facts(), changed()), strict=True):
        path.write_text(json.dumps(one), encoding="utf-8")
    return str(paths[0]), str(paths[1])


def test_every_change_is_a_row() -> None:
    c = NetworkComparison(a=facts(), b=changed(), labels=("A", "B"))
    first, second = (row["layer"] for row in facts()["layers"][:2])
    rows = {(row["part"], row["name"], row["what"]): row for row in c.rows}
    assert rows["network", "", "batch"]["change"] == 2
    assert rows["network", "", "time_us"]["change"] == pytest.approx(5)
    assert rows["layer", first, "total_us"]["change"] == pytest.approx(5)
    assert rows["layer", first, "bottleneck"]["b"] == "pipe FIX"
    assert rows["layer", second, "total_us"]["b"] is None
    assert rows["layer", second, "error"]["b"] == "no tiling fits"
    assert rows["kernel", "new", "time_us"]["a"] is None
    assert {part for part, *_ in rows} == {"network", "layer", "kernel"}
    assert len(c.table) == len(c.rows)
    assert c.to_json()["changes"] == list(c.rows)
    assert c.speedup == pytest.approx(facts()["time_us"] / (facts()["time_us"] + 5))


def test_the_text_tells_the_largest_changes_first(written: tuple[str, str]) -> None:
    text = npusim.compare_networks(*written, labels=("one", "two")).text()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("LAYERS", "KERNELS", "+5.0", "batch: 1 -> 3", "error: none -> no tiling fits"):
        assert words in text
    names = [row["layer"] for row in facts()["layers"]]
    lines = [line for line in text.splitlines() if line.strip().startswith(tuple(names))]
    assert names[1] in lines[0], "the layer without a time lost most"


def test_layers_of_one_name_are_told_apart() -> None:
    twice = copy.deepcopy(facts())
    twice["layers"].append(dict(twice["layers"][0]))
    c = NetworkComparison(a=facts(), b=twice, labels=("A", "B"))
    assert {row["name"] for row in c.rows} == {f"{facts()['layers'][0]['layer']} #2"}


def test_a_number_is_no_network(written: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError, match="it is a result, or the file of one"):
        npusim.compare_networks(3, written[0])  # type: ignore[arg-type]
