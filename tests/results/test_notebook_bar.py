"""Bars in notebooks: shown by a kernel of Jupyter alone, and only where nobody else is told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import npusim
from npusim.results.writers import progress as notebook_bar
from npusim.results.writers.progress import in_notebooks, of_layers, of_points

NET = """\
description: two layers
layers:
  a: {cin: 16, cout: 16, spatial: [4, 4], kernel: 1}
  b: {cin: 16, cout: 32, spatial: [4, 4], kernel: 1}
"""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a kernel of Jupyter is asked to show; a bar does not wait."""
    shown: list[str] = []

    def show(data: dict[str, str], **_: Any) -> Any:
        shown.append(data["text/html"])
        return SimpleNamespace(update=show)

    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook_bar, "DELAY_S", 0.0)
    monkeypatch.setattr(notebook_bar, "_EVERY_S", 0.0)
    return shown


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.yaml").write_text(NET, encoding="utf-8")
    return tmp_path / "net.yaml"


def test_a_network_a_sweep_and_a_search(net: Path, drawn: list[str]) -> None:
    npusim.network(net, device="tiny", every_input=True)
    assert any('value="1" max="2"></progress> 1 of 2 b' in one for one in drawn)
    assert drawn[-1] == ""
    drawn.clear()
    npusim.sweep(network=str(net), device="tiny", vary={"batch": "1,2"}, store=None, jobs=1)
    assert any('value="2" max="2"></progress> 2 of 2 points' in one for one in drawn)
    assert all(" points" in one for one in drawn[:-1]), "its networks have no bars of their own"
    assert drawn[-1] == ""
    drawn.clear()
    x = npusim.spec((64, 64), "fp16")
    npusim.tune(npusim.ops.matmul, x, x, device="tiny", store=None, jobs=1)
    assert any("tilings ruled out" in one for one in drawn)
    assert drawn[-1] == ""


def test_who_is_told_otherwise_sees_no_bar(net: Path, drawn: list[str]) -> None:
    told: list[tuple[Any, ...]] = []
    npusim.network(net, device="tiny", progress=lambda *words: told.append(words))
    assert told
    assert drawn == []


def test_a_bar_goes_when_the_run_fails(drawn: list[str]) -> None:
    def fails() -> None:
        with in_notebooks(None, of_points) as report:
            report(3, 7, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "3 of 7 points, 2 of them known" in drawn[0]
    assert drawn[-1] == ""


def test_nothing_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with in_notebooks(None, of_points) as report:
        assert report is None
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with in_notebooks(None, of_points) as report:
        assert report is None


def test_a_layer_says_which_it_is() -> None:
    assert of_layers("conv1 (3/24) cast", "timing", 40, 90) == ("conv1", 2, 24)
    assert of_layers("conv1 (3/24)", "layers", 5, 24) == ("conv1", 5, 24)
    assert of_layers("matmul", "timing", 1, 2) == ("matmul", 1, 2)
