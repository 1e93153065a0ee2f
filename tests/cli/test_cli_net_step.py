"""``npusim net --mode``: a step as the library times it, and options that it has not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import npusim
from npusim.cli.main import main
from tests.networks.blocks import ONE_BLOCK

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def block(tmp_path: Path) -> str:
    (tmp_path / "block.yaml").write_text(ONE_BLOCK, encoding="utf-8")
    return str(tmp_path / "block.yaml")


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_report_is_what_the_library_gives(mode: str, block: str, capfd: Capture) -> None:
    """Nothing else is printed, not even by the solver behind the plan of formats."""
    assert main(["net", block, "--device", "ascend910b2", "--mode", mode]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == (npusim.step(block, device="ascend910b2", mode=mode).text(), "")


def test_every_option_reaches_the_library(block: str, capfd: Capture) -> None:
    words = ["--mode", "graph", "--batch", "2", "--dtype", "fp16", "--pass", "training",
             "--layouts", "best", "--fusions", "update+sum,decay+update", "--optimizer", "adam",
             "--normalisation", "fp32", "--cards", "8", "--set", "cards.pieces=3",
             "--launch", "single", "--rules", "hardware", "--cores", "0-7", "--json"]  # fmt: skip
    assert main(["net", block, "--device", "ascend910", *words]) == 0
    want = npusim.step(
        block,
        mode="graph",
        batch=2,
        layouts="best",
        fusions=("update+sum", "decay+update"),
        optimizer="adam",
        normalisation="fp32",
        cards=8,
        device=npusim.load_device("ascend910", {"cards.pieces": "3"}),
        launch="single",
        rules="hardware",
        cores="0-7",
    )
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads(json.dumps(want.to_json()))
    told = {key: found[key] for key in ("mode", "layouts", "optimizer", "cards", "launch")}
    assert told == {
        "mode": "graph", "layouts": "best", "optimizer": "adam", "cards": 8, "launch": "single",
    }  # fmt: skip
    assert (found["pass"], found["normalisation_dtype"]) == ("training", "fp32")
    assert found["fusions"] == ["update+sum", "decay+update"]
    assert set(found["fused"]) == {"decay+update"}, "casts stand behind normalisations in fp32"
    assert found["all_reduce"]["pieces"] == 3


def test_an_operation_that_was_not_simulated_is_named(
    block: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npusim.networks.launches import Launcher  # noqa: PLC0415 - what the command imports late

    run = Launcher.run

    def without_sums(self: Launcher, what: object, arrays: object = None) -> object:
        if getattr(what, "operation").kind == "loss":  # noqa: B009 - any task
            raise npusim.CapacityError("nothing fits")
        return run(self, what, arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(Launcher, "run", without_sums)
    assert main(["net", block, "--device", "ascend910b2", "--mode", "eager"]) == 2
    out, err = capfd.readouterr()
    assert "NOT SIMULATED\n- loss: nothing fits" in out
    assert "operations were not simulated: loss; the totals are partial" in err
