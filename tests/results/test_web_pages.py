"""Web pages: what they say, and that a browser shows them without anything from outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.results import Result, metrics, palette
from npusim.results.web import bars, hierarchy, page, run
from npusim.timing.trace import TrafficRow
from tests import browser
from tests.browser import Page

# ---------------------------------------------------------------- what pages say


def test_names_of_a_call_are_told_apart_by_operands(result: Result) -> None:
    first, second = result.runs
    alike = tuple(
        replace(first, name="trans_data", traffic=(TrafficRow("GM", "UB", operand, 8, 0, 8),))
        for operand in ("weight", "input", "input")
    )
    writes = replace(first, name="trans_data", traffic=(TrafficRow("UB", "GM", "out", 8, 0, 0),))
    assert metrics.titles((*alike, writes, second)) == (
        *("trans_data weight", "trans_data input 1", "trans_data input 2", "trans_data out"),
        second.name,
    )
    assert metrics.titles(result.runs) == tuple(run.name for run in result.runs)


def test_one_colour_has_one_meaning() -> None:
    groups = (palette.CLASS_COLOURS, palette.REASON_COLOURS, palette.RESULT_COLOURS)
    meanings = [colour for group in groups for colour in group.values()]
    meanings += [palette.LAUNCH, palette.KERNEL, palette.READ_HIT]
    assert len(set(meanings)) == len(meanings)


def test_pages_are_the_same_bytes_every_time(result: Result) -> None:
    assert run.render(result) == run.render(result)


def test_scripts_cannot_be_ended_by_what_they_hold() -> None:
    text = page.page("title", [], [page.Chart("here", {"text": "</script><b>"}, "")])
    assert text.count("</script>") == 3
    assert r"\u003c/script>\u003cb>" in text


def test_bars_too_many_for_a_page_become_one_where_gaps_are_short(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bars.picture(result)
    assert whole.gap == 0
    assert all((one.number == 1).all() for one in whole.bars)
    many = sum(len(one.left) for one in whole.bars)
    monkeypatch.setattr(bars, "MAX_BARS", many // 2)
    fewer = bars.picture(result)
    assert fewer.gap > 0
    assert sum(len(one.left) for one in fewer.bars) <= many // 2
    for before, after in zip(whole.bars, fewer.bars, strict=True):
        assert before.name == after.name
        assert after.number.sum() == before.number.sum()
        assert after.bytes.sum() == before.bytes.sum()
        for track in np.unique(before.track):
            here, there = before.track == track, after.track == track
            assert after.left[there].min() == before.left[here].min()
            assert after.right[there].max() == before.right[here].max()


def test_the_drawing_of_memories_has_all_bytes(result: Result) -> None:
    totals = metrics.path_totals(result.runs)
    arrows = hierarchy.arrows(result.device, totals)
    assert sum(one.bytes for one in arrows) == sum(one.bytes for one in totals)
    assert not any("GM" in (one.src, one.dst) for one in arrows), "the device has an L2"
    drawn = hierarchy.draw(result.device, totals)
    assert drawn.count("<path d=") == len(arrows) + 1  # and the tip of all
    assert hierarchy.draw(result.device, ()) == ""


def test_rows_of_nothing_are_left_out(result: Result) -> None:
    changed = replace(result.runs[0], traffic=(TrafficRow("GM", "UB", "nobody_moved", 0, 0, 0),))
    assert "nobody_moved" not in run.render(replace(result, runs=(changed, result.runs[1])))


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def shown() -> Iterator[Page]:
    if browser.CHROMIUM is None:
        pytest.skip("there is no Chromium here to open pages in")
    with browser.browser() as opened:
        yield opened


def checked(shown: Page) -> None:
    """No message of the page, nothing asked for but the page, no wider than the window."""
    assert shown.errors == []
    outside = [url for url in shown.requests if not re.match(r"file:|data:|blob:", url)]
    assert outside == []
    assert shown.run("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_call_in_the_browser(
    result: Result, shown: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    result.report(tmp_path / "run.html")
    shown.open(tmp_path / "run.html", width, dark=dark)
    checked(shown)
    assert shown.run("document.querySelectorAll('.chart > *').length") == 2
    ink = shown.run(_OF_AXIS)
    assert ink == ("#e6e9ec" if dark else "#1d2125")


_TIMELINE = "Bokeh.documents.map(d => d.get_model_by_name('timeline')).find(m => m)"
_RANGE = f"[{_TIMELINE}.x_range.start, {_TIMELINE}.x_range.end]"
_OF_AXIS = f"{_TIMELINE}.below[0].major_label_text_color"


def test_the_timeline_zooms(result: Result, shown: Page, tmp_path: Path) -> None:
    result.report(tmp_path / "run.html")
    shown.open(tmp_path / "run.html")
    longest = max(
        (one for one in bars.spans(result.runs) if not one.launch),
        key=lambda one: one.right - one.left,
    )
    us = 1e6 / result.device.clock_hz
    first, last = shown.run(_RANGE)
    assert first <= longest.left * us
    assert longest.right * us <= last < result.time_us

    shown.run("document.querySelector('[data-zoom]').click()")  # the whole call
    assert shown.run(_RANGE) == pytest.approx([0, result.time_us])
    box = shown.run(
        "(r => [r.x + r.width / 2, r.y + r.height / 2])"
        "(document.getElementById('timeline').getBoundingClientRect())"
    )
    shown.run("scrollTo(0, 0)")
    shown.wheel(box[0], box[1], -240)
    shown.wait(f"({_RANGE})[1] - ({_RANGE})[0] < {result.time_us * 0.95}")
    shown.run("document.querySelector('[data-toggle=\"work-cube\"]').click()")
    cube = "Bokeh.documents.map(d => d.get_model_by_name('work-cube')).find(m => m)"
    assert shown.run(f"{cube}.visible") is False
    checked(shown)


def test_tables_sort_and_fold(shown: Page, tmp_path: Path) -> None:
    rows = [(f"row {at}", page.Cell(f"{at} things", -at)) for at in range(page.FOLD + 5)]
    (tmp_path / "table.html").write_text(page.page("t", [page.table(("name", "size"), rows, 1)]))
    shown.open(tmp_path / "table.html")
    seen = "[...document.querySelectorAll('tbody tr')].filter(r => r.offsetHeight).length"
    first = "document.querySelector('tbody tr').cells[0].textContent"
    assert shown.run(seen) == page.FOLD
    shown.run("document.querySelector('.scroll + button').click()")
    assert shown.run(seen) == page.FOLD + 5
    shown.run("document.querySelectorAll('th')[1].click()")
    assert shown.run(first) == "row 0", "numbers begin with the largest, by their keys"
    shown.run("document.querySelectorAll('th')[1].click()")
    assert shown.run(first) == f"row {page.FOLD + 4}"
    shown.run("document.querySelectorAll('th')[0].click()")
    assert shown.run(first) == "row 0"
    checked(shown)


def test_a_network_in_the_browser(shown: Page, tmp_path: Path) -> None:
    net = tmp_path / "net.yaml"
    net.write_text(
        "description: two alike and one the device refuses\nlayers:\n"
        "  twice: {cin: 16, cout: 32, spatial: [6, 5], kernel: 3, count: 2}\n"
        "  odd: {cin: 16, cout: 16, spatial: [9], kernel: 2, padding: [[0, 1]]}\n"
    )
    result = npusim.network(str(net), device="ascend910b2", every_input=True)
    result.report(tmp_path / "net.html")
    for width in (1280, 400):
        shown.open(tmp_path / "net.html", width)
        checked(shown)
    assert shown.run("document.body.innerText").count("2 \u00d7 twice") >= 1
    heads = "[...document.querySelectorAll('summary')].map(s => s.textContent)"
    assert "Not simulated" in shown.run(heads)
    assert shown.run(_RANGE) == pytest.approx([0, result.time_us])
    shown.run("document.querySelectorAll('[data-zoom]')[1].click()")
    shown.run(_RANGE)
    times = "[...document.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)"
    assert shown.run(times)[0] == "twice"
    checked(shown)
