"""``npusim net``: the library's report, as text and JSON, and its exit status.

``npusim net --mode``: a step as the library times it, and options that it has not.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import npusim
from npusim.cli.main import main
from tests.networks.blocks import ONE_BLOCK

Capture = pytest.CaptureFixture[str]

GOOD = (
    "description: small\nlayers:\n  a: {cin: 16, cout: 32, spatial: [6, 5], kernel: 3, bias: yes}\n"
)
BAD = GOOD + "  b: {cin: 16, cout: 16, spatial: [9], kernel: 2, padding: [[0, 1]]}\n"


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "small.yaml").write_text(GOOD, encoding="utf-8")
    return str(tmp_path / "small.yaml")


@pytest.fixture
def bad(tmp_path: Path) -> str:
    (tmp_path / "gaps.yaml").write_text(BAD, encoding="utf-8")
    return str(tmp_path / "gaps.yaml")


def test_the_report_is_what_the_library_gives(good: str, capsys: Capture) -> None:
    assert main(["net", good, "--device", "ascend910b2"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (npusim.network(good, device="ascend910b2").text(), "")


def test_every_option_reaches_the_library(good: str, capsys: Capture) -> None:
    words = ["--batch", "2", "--dtype", "fp32", "--cube-math-type", "use_hf32", "--cores", "0-3",
             "--gradients", "bias,input", "--set", "clock=1GHz", "--start", "warm",
             "--rules", "hardware", "--engine", "simpy", "--json"]  # fmt: skip
    assert main(["net", good, "--device", "ascend910b2", *words]) == 0
    want = npusim.network(
        good,
        batch=2,
        dtype="fp32",
        cube_math_type="use_hf32",
        gradients=("input", "bias"),
        device=npusim.load_device("ascend910b2", {"clock": "1GHz"}),
        cores="0-3",
        start="warm",
        rules="hardware",
    )
    assert capsys.readouterr().out == json.dumps(want.to_json(), indent=2) + "\n"
    assert want.cycles != npusim.network(good, device="ascend910b2").cycles


def test_the_range_is_that_of_the_layers(bad: str, capsys: Capture) -> None:
    """Layers without a result are in neither end."""
    known = npusim.network(bad, device="ascend910b2")
    assert known.to_json()["time_range_us"] is None
    (layer,) = (one.result.time_range for one in known.timed if one.result)
    assert known.time_range_us == (layer.low_us, layer.high_us)
    assert known.to_json()["time_range_us"] == [layer.low_us, layer.high_us]
    assert layer.low_us < known.time_us < layer.high_us
    main(["net", bad, "--device", "ascend910b2", "--range"])
    ends = f"{known.time_us:,.3f} us ({layer.low_us:,.3f} to {layer.high_us:,.3f})"
    assert f"time        {ends} = {known.cycles:,} cycles" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [False, True])
def test_what_could_be_simulated_is_printed_and_the_status_says_that_it_is_not_all(
    as_json: bool, bad: str, capsys: Capture
) -> None:
    assert main(["net", bad, "--device", "ascend910b2", *["--json"][: int(as_json)]]) == 2
    out, err = capsys.readouterr()
    assert err == "npusim: error: 1 of 2 layers were not simulated: b; the totals are partial\n"
    result = npusim.network(bad, device="ascend910b2")
    assert result.cycles > 0
    if as_json:
        assert json.loads(out) == json.loads(json.dumps(result.to_json()))
    else:
        assert out == result.text()


def test_files(good: str, tmp_path: Path, capsys: Capture) -> None:
    names = {"--csv": "layers.csv", "--plot": "layers.png", "--report": "page.html"}
    words = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert main(["net", good, "--device", "ascend910b2", "--jobs", "2", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-3:] == [f"wrote {tmp_path / name}" for name in names.values()]
    assert (tmp_path / "layers.csv").read_text().startswith("layer,count,cin")
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.fixture
def block(tmp_path: Path) -> str:
    (tmp_path / "block.yaml").write_text(ONE_BLOCK, encoding="utf-8")
    return str(tmp_path / "block.yaml")


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_step_is_reported_as_by_the_library(mode: str, block: str, capfd: Capture) -> None:
    """Nothing else is printed, not even by the solver behind the plan of formats."""
    assert main(["net", block, "--device", "ascend910b2", "--mode", mode]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == (npusim.step(block, device="ascend910b2", mode=mode).text(), "")


def test_every_option_of_a_step_reaches_the_library(block: str, capfd: Capture) -> None:
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


def test_a_step_is_explained_and_bounded_as_by_the_library(block: str, capfd: Capture) -> None:
    """The network may stand behind its options, as an operator may."""
    words = ["--mode", "graph", "--batch", "2", "--device", "ascend910"]
    want = npusim.step(block, batch=2, device="ascend910")
    assert main(["explain", "net", block, *words, "--no-what-if"]) == 0
    assert capfd.readouterr() == (want.explain(what_if=False).text(), "")
    assert main(["explain", *words, "net", block, "--no-what-if", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads(json.dumps(want.explain(what_if=False).to_json()))
    assert main(["bound", "net", block, *words, "--measured", "2ms"]) == 0
    assert capfd.readouterr() == (want.bound(2000).text(), "")


def test_alternatives_take_the_place_of_the_explanation(
    block: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npusim.networks.run import alternatives  # noqa: PLC0415 - what the command imports late

    every = alternatives.changes

    def memories(*step: object) -> list[object]:
        return [change for change in every(*step) if change.figures]  # type: ignore[arg-type]

    monkeypatch.setattr(alternatives, "changes", memories)
    words = ["--mode", "graph", "--device", "ascend910b2", "--alternatives", "--json"]
    assert main(["explain", "net", block, *words]) == 0
    found = json.loads(capfd.readouterr().out)["alternatives"]
    want = npusim.step(block, device=npusim.load_device("ascend910b2", {"hbm": "x2"}))
    times = {row["option"]: row["time_us"] for row in found}
    assert set(times) == {"--set hbm=x2", "--set l2=x2", "--set l2.size=x2"}
    assert times["--set hbm=x2"] == want.time_us


def test_a_step_has_a_trace_and_tilings(block: str, capfd: Capture, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json.gz"
    words = ["--mode", "graph", "--device", "ascend910", "--tiling", "auto", "--batch", "8"]
    assert main(["net", block, *words, "--trace", str(trace)]) == 0
    want = npusim.step(block, device="ascend910", tiling="auto", batch=8)
    out = capfd.readouterr().out
    assert out.startswith(want.text())
    assert f"wrote {trace}: to open it, drag it into https://ui.perfetto.dev" in out
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X" and event["tid"] == 2]
    assert names == [operation.name for operation in want.launched]


def test_layers_take_tilings(block: str, capfd: Capture) -> None:
    words = ["--device", "ascend910", "--batch", "8", "--tiling", "library"]
    assert main(["net", block, *words]) == 0
    want = npusim.network(block, device="ascend910", tiling="library", batch=8)
    assert capfd.readouterr().out == want.text()


def test_an_operation_that_was_not_simulated_is_named(
    block: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npusim.networks.run.launches import OperationLauncher  # noqa: PLC0415 - what the command imports late

    run = OperationLauncher.run

    def without_sums(self: OperationLauncher, what: object, arrays: object = None) -> object:
        if getattr(what, "operation").kind == "loss":  # noqa: B009 - any task
            raise npusim.CapacityError("nothing fits")
        return run(self, what, arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(OperationLauncher, "run", without_sums)
    assert main(["net", block, "--device", "ascend910b2", "--mode", "eager"]) == 2
    out, err = capfd.readouterr()
    assert "NOT SIMULATED\n- loss: nothing fits" in out
    assert "operations were not simulated: loss; the totals are partial" in err


def test_the_largest_batch_is_that_of_the_library(
    block: str, tmp_path: Path, capfd: Capture
) -> None:
    page = tmp_path / "largest.html"
    words = ["--set", "main_memory.size=1MiB", "--largest-batch", "--mode", "eager"]
    line = ["net", block, "--device", "ascend910b2", *words]
    assert main([*line, "--report", str(page)]) == 0
    want = npusim.largest_batch(
        block, device=npusim.load_device("ascend910b2", {"main_memory.size": "1MiB"}), mode="eager"
    )
    out, err = capfd.readouterr()
    assert (out, err) == (f"{want.text()}wrote {page}\n", "")
    assert "fits 1.0 MiB" in page.read_text(encoding="utf-8")
    assert main([*line, "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == json.loads(json.dumps(want.to_json()))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--largest-batch", "--batch", "3"], "--largest-batch looks for the batch"),
        (["--largest-batch", "--gradients", "input"], "is of layers by themselves"),
        (["--largest-batch", "--set", "main_memory.size=64KiB"], "batch 1 needs"),
    ],
)
def test_what_no_largest_batch_has(
    words: list[str], error: str, block: str, capfd: Capture
) -> None:
    assert main(["net", block, "--device", "ascend910b2", *words]) == 2
    assert error in capfd.readouterr().err


def test_a_step_that_its_card_does_not_hold_says_which_batch_fits(
    block: str, capfd: Capture
) -> None:
    words = ["--mode", "graph", "--batch", "64", "--set", "main_memory.size=512KiB"]
    assert main(["net", block, "--device", "ascend910b2", *words]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert re.search(r"too large needs [\d.]+ [KM]iB, the card has 512.0 KiB: batch \d+ fits", out)
