"""Figures that were fitted for another chip: counted by hand, and shown everywhere alike."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ConfigError
from npusim.cli.main import main
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.results.facts.other_chips import OTHER_CHIPS, figures_of_others, time_figures

KERNEL = Matmul(
    Tiling(base_m=16, base_n=16, base_k=16),
    Tensor("a", (16, 16), FP16),
    Tensor("b", (16, 16), FP16),
    Tensor("c", (16, 16), FP32, "out"),
)

CHILD = """
base: ascend910b2
name: mine
description: a chip that nobody measured
"""


def device(tmp_path: Path, text: str) -> Device:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return load_device(str(file))


def test_fitted_figures_of_a_base_are_another_chips(tmp_path: Path) -> None:
    """All that the base fitted, and what it has from a 910 itself."""
    base = load_device("ascend910b2")
    fitted = {
        path
        for path, provenance in base.provenance.items()
        if provenance.confidence in ("fitted", "hypothesis")
    }
    carried = {
        path: base.carried_over[provenance.source]
        for path, provenance in base.provenance.items()
        if provenance.source in base.carried_over
    }
    assert "ascend910" in carried.values()
    found = dict(figures_of_others(device(tmp_path, CHILD)))
    assert found == dict.fromkeys(fitted, "ascend910b2") | carried


def test_a_figure_of_ones_own_is_none(tmp_path: Path) -> None:
    before = dict(figures_of_others(device(tmp_path, CHILD)))
    stated = CHILD + "l2:\n  request: 64B (fitted, MINE)\nsources:\n  MINE: measured here\n"
    after = dict(figures_of_others(device(tmp_path, stated)))
    assert set(before) - set(after) == {"l2.request"}


def test_who_explains_a_source_anew_says_that_it_holds_here(tmp_path: Path) -> None:
    moves = {
        path
        for path, provenance in load_device("ascend910b2").provenance.items()
        if provenance.source == "MOVES" and provenance.confidence == "fitted"
    }
    assert moves
    explained = device(tmp_path, CHILD + "sources:\n  MOVES: measured here, too\n")
    assert not moves & set(dict(figures_of_others(explained)))


def test_assumed_figures_of_a_listed_source_are_another_chips(tmp_path: Path) -> None:
    text = (
        CHILD + "sources:\n  LENT: as another chip has it\ncarried_over: {LENT: someone}\n"
        "l2:\n  request: 64B (assumed, LENT)\n"
    )
    assert dict(figures_of_others(device(tmp_path, text)))["l2.request"] == "someone"
    with pytest.raises(ConfigError, match=r"unknown source 'LENT'.*explain new ones"):
        device(tmp_path, CHILD + "carried_over: {LENT: someone}\n")


@pytest.mark.parametrize("name", npusim.devices())
def test_sources_that_say_so_are_listed_as_carried_over(name: str) -> None:
    """A key whose explanation begins with the chip it is from is one of another chip."""
    machine = load_device(name)
    says_so = {
        key
        for key, about in machine.sources.items()
        if re.match(r"as (the|a|on|fitted on) |carried over |(not )?measured on .*this bin", about)
    }
    used = {machine.provenance[path].source for path in time_figures(machine)}
    assert says_so & used <= set(machine.carried_over)


def test_everything_shows_the_same_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = load_device("ascend310p")
    facts = OTHER_CHIPS.of(machine)
    line = OTHER_CHIPS.format(facts)
    count = f"{facts['of_other_chips']} of {facts['figures']} figures"
    assert line.startswith(f"{count} that cost time were fitted for another chip (ascend910b2 ")
    assert sum(facts["chips"].values()) == facts["of_other_chips"]
    a = npusim.spec((16, 16), "fp16")
    result = npusim.ops.matmul(a, a, device=machine)
    page = tmp_path / "page.html"
    result.report(page)
    assert line.partition(" figures ")[2] in page.read_text(encoding="utf-8")
    texts = [result.text()]
    texts.append(npusim.rank(KERNEL, [KERNEL.tiling], machine).text().replace("\n  ", " "))
    assert main(["devices", "show", "ascend310p"]) == 0
    texts.append(capsys.readouterr().out)
    for text in texts:
        assert line in " ".join(text.split())
    assert result.to_json()["other_chips"] == facts
    assert main(["devices", "show", "ascend310p", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["other_chips"] == facts


def test_a_chip_of_which_all_is_its_own_says_nothing() -> None:
    a = npusim.spec((16, 16), "fp16")
    assert "another chip" not in npusim.ops.matmul(a, a, device="tiny").text()
    assert OTHER_CHIPS.format(OTHER_CHIPS.of(load_device("tiny"))) == ""
