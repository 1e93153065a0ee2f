"""The networks that ship, against counts made from PyTorch implementations (tests/data)."""

from __future__ import annotations

import csv
from math import prod
from pathlib import Path

import pytest

from npusim.workloads import ConvLayer, Workload, load_workload, workload_yaml, workloads

TABLE = Path(__file__).parent.parent / "data" / "networks.csv"


def rows() -> dict[str, dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["network"]: row for row in csv.DictReader(file)}


def weights(workload: Workload) -> int:
    """Elements of all weights, biases left out."""
    return sum(
        x.count * (prod(x.w_shape) if isinstance(x, ConvLayer) else x.cin * x.cout)
        for x in workload.layers
    )


def test_every_network_is_counted() -> None:
    assert sorted(rows()) == workloads()


@pytest.mark.parametrize("name", workloads())
def test_a_network_is_the_published_one(name: str) -> None:
    workload, row = load_workload(name), rows()[name]
    assert sum(layer.count for layer in workload.layers) == int(row["layers"])
    assert workload.macs == int(row["macs"])
    assert weights(workload) == int(row["weights"])
    others = workload.elementwise
    assert sum(x.count for x in others) == int(row["elementwise"])
    assert sum(x.count * (prod(x.shape) + prod(x.out)) for x in others) == int(row["elements"])


@pytest.mark.parametrize("name", workloads())
def test_only_the_first_layer_has_no_input_gradient(name: str) -> None:
    first, *others = load_workload(name).layers
    assert not first.input_gradient
    assert first.count == 1
    assert all(layer.input_gradient for layer in others)


@pytest.mark.parametrize("name", workloads())
def test_a_workload_is_written_as_it_is_read(name: str, tmp_path: Path) -> None:
    workload = load_workload(name)
    path = tmp_path / f"{name}.yaml"
    path.write_text(workload_yaml(workload), encoding="utf-8")
    assert load_workload(path) == workload
    assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 100
