"""AccelForge and npusim are asked for the same products; it need not be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench import peer_accelforge
from tools.bench.figures import Figure, NotAvailableError, Settings
from tools.bench.peers import Product

#: What stands for AccelForge: it needs two seconds for each product, and one is too large for it.
STAND_IN = """\
import json, sys
request = json.load(sys.stdin)
found = ["ValueError: too large" if n > 4000 else 1.0 for m, n, k in request["products"]]
seconds = [2.0] * len(found)
print(json.dumps({"cpu": sum(seconds), "seconds": seconds, "found": found}))
"""


def test_the_products_are_those_of_all_layers() -> None:
    every = peer_accelforge.products(32)
    assert len(every) == 53
    assert every[0] == Product(64, 147, 32 * 112 * 112)
    lists = peer_accelforge.rounds(every)
    assert [len({*one}) for one in lists] == [len(one) for one in lists]
    assert len(lists) == max(map(every.count, every))
    assert sorted((one for some in lists for one in some), key=str) == sorted(every, key=str)


def test_without_accelforge_it_is_said_what_is_missing() -> None:
    with pytest.raises(NotAvailableError, match="ACCELFORGE_PYTHON"):
        peer_accelforge.installed("no-such-python")


@pytest.mark.compiled
def test_both_are_compared_on_what_both_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "accelforge_products.py"
    stand_in.write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setattr(peer_accelforge, "SCRIPT", stand_in)
    monkeypatch.setattr(peer_accelforge, "installed", lambda _: "AccelForge 0")
    some = [Product(512, 4608, 1568), Product(64, 64, 100), Product(64, 64, 100)]
    monkeypatch.setattr(peer_accelforge, "products", lambda _: some)
    remark, failed, *more = peer_accelforge.accelforge(Settings(repeats=1))
    assert "AccelForge" in str(remark)
    assert failed == "AccelForge does not map Product(m=512, n=4608, k=1568): ValueError: too large"
    figures = {one.name: one for one in more if isinstance(one, Figure)}
    assert figures["accelforge.one"].value == 4
    assert "2 of 3 filter gradients" in figures["accelforge.one"].note
    assert figures["accelforge.each_one_one_core"].value > 0
    assert len(figures) == 2 * (1 + 2 * 2)
