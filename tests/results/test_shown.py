"""Every result has a form for notebooks: what it says, and its table."""

from __future__ import annotations

from html import escape
from typing import Any

import pytest

import npusim
from npusim.base.errors import NpusimError
from npusim.device.spec import Device
from npusim.networks.network import NetworkResult
from npusim.results.explanation import Explanation

pytestmark = pytest.mark.compiled

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
