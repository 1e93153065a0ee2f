"""What all results have in common: files by their suffix, tables, pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib import pyplot

import npusim
from npusim.base.errors import ArgumentError
from npusim.results import Result
from npusim.workloads import load_workload

pytestmark = pytest.mark.compiled


def product(cores: int = 1) -> Result:
    a, b = (npusim.spec(sizes, "fp16") for sizes in ((48, 64), (64, 48)))
    return npusim.ops.matmul(a, b, device="tiny", cores=cores)


def answers() -> dict[str, Any]:
    words: dict[str, Any] = {"device": "tiny", "m": 48, "k": 64, "n": 48}
    a, b = (npusim.spec(sizes, "fp16") for sizes in ((48, 64), (64, 48)))
    resnet = load_workload("resnet18")
    return {
        "call": product(),
        "network": npusim.network(replace(resnet, layers=resnet.layers[-1:]), device="ascend910b2"),
        "explanation": product().explain(what_if=False),
        "comparison": npusim.compare(product(), product(2)),
        "sweep": npusim.sweep(
            operator="matmul", vary={"cores": "1,2"}, store=None, jobs=1, **words
        ),
        "tuned": npusim.tune(
            npusim.ops.matmul, a, b, device="tiny", store=None, jobs=1, budget="1s"
        ),
    }


#: Suffixes that results have nothing for.
LACKING = {
    "explanation": {".csv", ".png", ".svg"},
    "sweep": {".txt"},
}


def test_the_suffix_says_what_is_written(tmp_path: Path) -> None:
    pyplot.close("all")
    for name, answer in answers().items():
        for suffix in (".txt", ".json", ".csv", ".png", ".svg", ".html"):
            path = tmp_path / f"{name}{suffix}"
            if suffix in LACKING.get(name, ()):
                with pytest.raises(ArgumentError, match="its files end in") as refused:
                    answer.save(path)
                assert suffix not in str(refused.value).partition("its files end in")[2]
                continue
            answer.save(path)
            content = path.read_bytes()
            if suffix == ".txt":
                assert content.decode() == answer.text()
            elif suffix == ".json":
                assert json.loads(content) == json.loads(json.dumps(answer.to_json()))
            elif suffix == ".csv":
                assert len(pd.read_csv(path)) == len(answer.table)
            elif suffix == ".html":
                assert content.startswith(b"<!doctype html>")
            else:
                assert b"PNG" in content[:8] or b"<svg" in content
    assert not pyplot.get_fignums(), "files leave no figure behind"


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"one\.xls: .* is not written so; its files end in"):
        product().save(tmp_path / "one.xls")
    with pytest.raises(ArgumentError, match="a table is written as"):
        product().write(tmp_path / "one.txt")
    assert not list(tmp_path.iterdir())
