"""Playing with a design: answers while figures move, the page without a browser, and with one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models.widgets import Div

import npusim
from npusim.cli.main import main
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.results.shown import palette
from npusim.study.play import Play, knobs, page
from tests.browser import CHROMIUM, browser
from tests.tables import rows
from tests.tooltips import missing_fields

pytestmark = pytest.mark.compiled

NET = """description: two layers for tests
layers:
  wide: {cin: 32, cout: 48, spatial: [14, 14], kernel: 3, padding: 1, count: 2}
  deep: {cin: 64, cout: 64, spatial: [7, 7], kernel: 1}
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(NET, encoding="utf-8")
    return file


def played(net: Path, **options: Any) -> Play:
    return Play(str(net), "tiny", every_input=True, **options)


def finished(game: Play) -> Play:
    while game.step():
        pass
    return game


def test_what_is_played_is_what_the_network_takes(net: Path) -> None:
    game = finished(played(net))
    assert game.time_us == pytest.approx(game.base.time_us)
    game.move("main_memory.read", "4B/cycle")
    game.move("memories.L1.size", "32KiB")
    device = npusim.load_device("tiny", {"main_memory.read": "4B/cycle",
                                         "memories.L1.size": "32KiB"})  # fmt: skip
    assert len(game.remaining) == 2
    want = npusim.network(net, device=device, every_input=True)
    finished(game)
    assert game.time_us == pytest.approx(want.time_us)
    assert game.result.energy_uj == want.energy_uj
    assert game.detail is not None
    assert game.detail.runs[-1].timeline is not None


def test_answers_with_tilings_held_come_first(net: Path) -> None:
    game = finished(played(net))
    game.move("main_memory.read", "2B/cycle")
    before = game.base.time_us
    assert game.time_us == pytest.approx(before), "nothing is known yet"
    assert game.step()
    assert game.step()
    assert len(game.remaining) == 2, "both with their tilings held"
    held = game.time_us
    assert held > before
    assert finished(game).time_us <= held * 1.05


def test_a_layer_that_does_not_run_and_a_value_that_is_none_are_told(net: Path) -> None:
    game = finished(played(net))
    game.move("memories.L0A.size", "512B")
    assert finished(game).failed
    assert "deep" in " ".join(game.failed)
    game.move("memories.L0A.size", "17 bananas")
    assert "bananas" in game.problem
    assert "memories.L0A.size" in game.changed, "the last value that is one stays"


def test_what_is_saved_is_a_device(net: Path, tmp_path: Path) -> None:
    game = played(net)
    document = Document()
    view = page(game, document, tmp_path)
    slider = view.sliders["main_memory.read"]
    slider.value = 1
    view.sliders["groups"].value = 0
    view.name.value = "mine.yaml"
    view._saved()
    assert "wrote" in view.said.text
    made = npusim.load_device(str(tmp_path / "mine.yaml"))
    assert made.digest() == game.device.digest() != npusim.load_device("tiny").digest()
    assert made.provenance["groups"].confidence == "assumed"
    view._saved()
    assert "is there already" in view.said.text
    for name in ("../out.yaml", "mine.txt", ""):
        view.name.value = name
        view._saved()
        assert "choose another name" in view.said.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "small.yaml"]


def test_the_page_answers_without_a_browser(net: Path, tmp_path: Path) -> None:
    game = played(net)
    view = page(game, Document(), tmp_path)
    while view.acts.step():
        view.acts.show(view)
    places: Any = view.places["layers"].children
    layers, drawn = places
    assert list(drawn.yaxis[0].major_label_overrides.values()) == list(game.layers)
    first = view.head.text
    assert "about" not in first
    view.sliders["main_memory.read"].value = 0
    assert "main_memory.read: <b>" in view.labels["main_memory.read"].text
    while view.acts.step():
        view.acts.show(view)
    assert view.head.text != first
    assert missing_fields(view.document) == []
    assert "as it was" in view.head.text
    assert "<span>16GB/s</span><span>256GB/s</span>" in view.labels["main_memory.read"].text
    assert "weight" in layers.text
    assert "bias" not in layers.text
    assert "output" not in layers.text
    of_headline = {name for name in game.result.split if name in view.head.text}
    assert of_headline == {name for name in palette.PART_COLOURS if f"> {name}<" in layers.text}
    assert "launches" in of_headline
    before, *now = [bars.data_source.data for bars in drawn.renderers]
    ends = [sum(one["right"][at] - one["left"][at] for one in now) for at in (0, 1)]
    assert sum(ends) > sum(before["right"])
    assert len(view.places["timeline"].children) == 2
    view.select.value = "deep"
    while view.acts.step():
        view.acts.show(view)
    title = view.places["timeline"].children[0]
    assert isinstance(title, Div)
    assert "deep" in title.text
    assert "a row without bars is idle while that kernel runs" in title.text
    assert all(name in title.text for name in ("cube", "load"))
    assert game.again().changed == {}
    assert game.changed


def test_the_page_says_why_nothing_moves(net: Path, tmp_path: Path) -> None:
    game = played(net, vary={"vector.ops.exp": "77cycle,78cycle"})
    view = page(game, Document(), tmp_path)
    slider = view.sliders["vector.ops.exp"]
    slider.value = slider.end
    while view.acts.step():
        view.acts.show(view)
    told = view.head.text
    assert ", no change (" in told
    assert "launches do not depend on vector.ops.exp; more images make them less" in told


def test_figures_are_chosen(net: Path) -> None:
    game = played(
        net, vary={"vector.startup": "1cycle:9cycle:4cycle", "memories.UB.size": "64KiB,128KiB"}
    )
    assert [knob.path for knob in game.knobs] == ["vector.startup", "memories.UB.size"]
    device = npusim.load_device("tiny")
    for knob in game.knobs:
        assert device.replace(knob.path, knob.texts[knob.own]).digest() == device.digest()
    with pytest.raises(npusim.ArgumentError, match=r"vector\.starup is no figure of tiny"):
        played(net, vary={"vector.starup": "1,2"})
    with pytest.raises(npusim.NpusimError, match="64 bananas"):
        played(net, vary={"memories.UB.size": "64 bananas"})
    usual = played(net).knobs
    assert {knob.path for knob in usual} <= set(figures(device))
    assert {"memories.L1.size", "clock"} <= {knob.path for knob in usual}


def test_a_faster_clock_is_played_and_the_area_is_told(net: Path) -> None:
    game = played(net)
    clock = next(knob for knob in game.knobs if knob.path == "clock")
    for text in clock.texts:
        assert device_of(game, "clock", text).clock_hz > 0
    view = page(game, Document(), net.parent)
    game.move("memories.L1.size", "128KiB")
    while game.step():
        view.acts.show(view)
    assert re.search(
        r"area: [\d.]+ mm\u00b2, [+-][\d.]+% \(4\.4 mm\u00b2 as it was\)", view.head.text
    )


def device_of(game: Play, path: str, text: str) -> Device:
    """The device after one move, which must not be refused."""
    game.move(path, text)
    assert not game.problem
    return game.device


@contextmanager
def served(net: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = [sys.executable, "-m", "npusim", "play", "net", str(net), "--device", "tiny"]
    words += ["--every-input", "--port", "0", "--folder", str(folder)]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.search(r"http://localhost:\d+/", line)
        assert found, line
        yield running, found[0]
    finally:
        running.kill()
        running.communicate()


def test_it_ends_on_an_interrupt(net: Path, tmp_path: Path) -> None:
    with served(net, tmp_path) as (running, _):
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
        assert running.returncode == 0
        assert "Traceback" not in told


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_in_a_browser(net: Path, tmp_path: Path) -> None:
    with served(net, tmp_path) as (_, address), browser() as shown:
        shown.call("Page.navigate", url=address)
        shown.wait("window.Bokeh && Bokeh.documents.length > 0")
        model = "[...Bokeh.documents[0].all_models].find(m => m.type == {0!r} && {1})"
        slider = model.replace("{0!r}", "'Slider'").replace("{1}", "m.end == 8")
        head = model.replace("{0!r}", "'Div'").replace("{1}", "m.text.includes('<h1')")
        shown.wait(f"{head} && !{head}.text.includes('about')")
        shown.run(f"({slider}).value = 0")
        shown.wait(f"{head}.text.includes('as it was') && !{head}.text.includes('about')")
        outside = [one for one in shown.requests if not one.startswith((address, "data:"))]
        assert (shown.errors, outside) == ([], [])
        shown.run(f"({model.format('Select', 'true')}).value = 'deep'")
        figures = "[...Bokeh.documents[0].all_models].filter(m => m.type == 'Figure')"
        ink = f"{figures}.every(m => m.below[0].axis_label_text_color == '#e6e9ec')"
        shown.call("Emulation.setDeviceMetricsOverride", width=400, height=800,
                   deviceScaleFactor=1, mobile=True)  # fmt: skip
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        shown.call("Emulation.setEmulatedMedia", features=dark)
        shown.wait(f"{figures}.length == 3 && {ink}")
        shown.wait("document.documentElement.scrollWidth <= innerWidth && innerWidth == 400")


@rows("tests/data/mistakes/study.yaml", "wrong_commands_of_play", "words, told")
def test_wrong_commands(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err


def test_clocks_end_where_the_supply_does() -> None:
    device = npusim.load_device("ascend910b2")  # 1.8 GHz; 1.1 V are reached at 3.2 GHz
    clocks = next(knob for knob in knobs(device, device.name, {}) if knob.path == "clock")
    assert clocks.texts[-1] == "2.7GHz"
    for text in clocks.texts:
        device.replace("clock", text)
