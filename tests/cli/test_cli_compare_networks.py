"""``npusim compare`` of two networks that ``npusim net --json`` wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import npusim
from npusim.cli.main import main

pytestmark = pytest.mark.compiled

Capture = pytest.CaptureFixture[str]
Fails = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path, capsys: Capture) -> tuple[str, str]:
    """The network in the guide for one image and for two."""
    paths = []
    for batch in ("1", "2"):
        assert main(["net", "dcgan", "--device", "ascend910", "--batch", batch, "--json"]) == 0
        paths.append(tmp_path / f"{batch}.json")
        paths[-1].write_text(capsys.readouterr().out, encoding="utf-8")
    return str(paths[0]), str(paths[1])


def test_two_files_on_a_command_line(written: tuple[str, str], capsys: Capture) -> None:
    assert main(["compare", *written]) == 0
    told = capsys.readouterr().out
    assert "LAYERS" in told
    assert "\nspeed  " in told.partition("\ntime  ")[0]
    picture, page = (Path(written[0]).with_suffix(suffix) for suffix in (".png", ".html"))
    assert main(["compare", *written, "--plot", str(picture), "--report", str(page)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "times as fast per image" in page.read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["compare", *written, "--json"]) == 0
    want = npusim.compare_networks(*written).to_json()
    assert json.loads(capsys.readouterr().out) == want


def test_what_is_refused(written: tuple[str, str], tmp_path: Path, fails: Fails) -> None:
    call, network = tmp_path / "call.json", written[0]
    a, b = npusim.spec((16, 16), "fp16"), npusim.spec((16, 16), "fp16")
    call.write_text(json.dumps(npusim.ops.matmul(a, b, device="tiny").to_json()), encoding="utf-8")
    assert "shows kernels of calls" in fails(
        "compare", *written, "--trace", str(tmp_path / "a.json")
    )
    assert "call.json is no result of a network" in fails("compare", network, str(call))
    call.write_text("[]", encoding="utf-8")
    assert "holds a list" in fails("compare", network, str(call))
