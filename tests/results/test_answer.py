"""What all results have in common: files by their suffix, tables, pages.

Every result has a form for notebooks: what it says, and its table.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib import pyplot

import npusim
from npusim.base.errors import ArgumentError, NpusimError
from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.networks.network import NetworkResult
from npusim.results import Result
from npusim.results.explanation import Explanation
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


#: Public classes that are given to npusim, or are one small record.
GIVEN = {npusim.CannTiling, npusim.Fit, npusim.Study}


def test_every_result_has_a_form_for_notebooks() -> None:
    named = (getattr(npusim, name) for name in npusim.__all__)
    public = {one for one in named if isinstance(one, type) and not issubclass(one, NpusimError)}
    results = public - GIVEN | {Device, Explanation, NetworkResult}
    assert len(results) > 8
    assert [one for one in results if not hasattr(one, "_repr_html_")] == []


def test_what_the_forms_say() -> None:
    words: dict[str, Any] = {"device": "tiny", "m": 48, "k": 64, "n": 48}
    a, b = (npusim.spec(sizes, "fp16") for sizes in ((48, 64), (64, 48)))
    one, two = (npusim.ops.matmul(a, b, device="tiny", cores=cores) for cores in (1, 2))
    swept = npusim.sweep(operator="matmul", vary={"cores": "1,2"}, store=None, jobs=1, **words)
    tuned = npusim.tune(npusim.ops.matmul, a, b, device="tiny", store=None, jobs=1, budget="1s")
    compared = npusim.compare(one, two, labels=("<one>", "two"))
    for result in (compared, one.explain(what_if=False), tuned):
        assert escape(result.text().rstrip()) in result._repr_html_()
    for tabled in (compared, swept, tuned, one.device):
        told = tabled._repr_html_()
        assert all(f"<th>{name}</th>" in told for name in tabled.table.columns)
        assert "<script" not in told
    assert "&lt;one&gt;" in compared._repr_html_()
    assert "<td>memories.L1.size</td>" in one.device._repr_html_()
    assert "&lt;" not in swept._repr_html_(), "the line of repr has its brackets taken off"
