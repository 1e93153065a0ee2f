"""Web pages: what they say, and that a browser shows them without anything from outside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.base.records import replace
from npusim.machine.timing.trace import TrafficRow
from npusim.results import Result
from npusim.results.facts import metrics
from npusim.results.shown import palette, study
from npusim.results.shown.figure import Bars, Figure
from npusim.results.shown.figures import stacks, studies, timeline
from npusim.results.shown.report import Cell, Report, Section, Table
from npusim.results.writers.web import page, templates
from tests import browser, tooltips
from tests.browser import Page

# ---------------------------------------------------------------- what pages say


def called(result: Result) -> str:
    """The page of a call."""
    return page.page(result.as_report())


def studied(fixed: Mapping[str, str], rows: Sequence[studies.Row]) -> str:
    """The page of a study of ``a`` and ``b``."""
    names = [name for name in ("a", "b") if name in rows[0]]
    varied = {name: list(dict.fromkeys(row[name] for row in rows)) for name in names}
    return page.page(study.report(fixed, varied, rows))


def simple(*sections: Section) -> str:
    """A page with these sections."""
    return page.page(Report("</script><b>", (), "", (), sections, ""))


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


def test_scripts_cannot_be_ended_by_what_they_hold(result: Result) -> None:
    assert simple().count("</script>") == 1
    runs = tuple(replace(run, name="</script><b>") for run in result.runs)
    text = called(replace(result, runs=runs))
    assert text.count("</script>") == 2 + len(tooltips.charts(text))
    assert r"\u003c/script>\u003cb>" in text


def test_bars_too_many_for_a_page_become_one_where_gaps_are_short(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bars(shown: Figure) -> list[Bars]:
        return [mark for mark in shown.marks if isinstance(mark, Bars)]

    whole = timeline.interactive(result)
    assert "Gaps below" not in whole.caption
    assert all((np.asarray(one.more["number"]) == 1).all() for one in bars(whole))
    many = sum(len(one.left) for one in bars(whole))
    monkeypatch.setattr(timeline, "MAX_BARS", many // 2)
    fewer = timeline.interactive(result)
    assert "Gaps below" in fewer.caption
    assert sum(len(one.left) for one in bars(fewer)) <= many // 2
    for before, after in zip(bars(whole), bars(fewer), strict=True):
        assert before.name == after.name
        for name in ("number", "bytes"):
            sums = [np.asarray(one.more[name]).sum() for one in (before, after)]
            assert sums[0] == sums[1]
        for track in np.unique(before.low):
            here, there = before.low == track, after.low == track
            assert after.left[there].min() == before.left[here].min()
            assert after.right[there].max() == before.right[here].max()


def test_tooltips_ask_for_what_charts_have(result: Result, tmp_path: Path) -> None:
    net = npusim.network("resnet18", device="tiny", gradients=["weight"])
    net.report(tmp_path / "net.html")
    text = studied({"network": "resnet50"}, SPACE)
    (tmp_path / "study.html").write_text(text, encoding="utf-8")
    pages = (path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
    for told in (called(result), *pages):
        charts = tooltips.charts(told)
        assert len(charts) >= 2
        assert not any(tooltips.missing_fields(one) for one in charts)


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
    assert shown.run(_CUT) == []


#: Words of drawings that reach past them, and of boxes that hide what does not fit.
_CUT = """[
  ...[...document.querySelectorAll('figure svg text')].filter(text => {
    const [own, all] = [text, text.ownerSVGElement].map(one => one.getBoundingClientRect());
    return own.left < all.left - 1 || own.right > all.right + 1 || own.bottom > all.bottom + 1;
  }),
  ...[...document.querySelectorAll('body *')].filter(one =>
    getComputedStyle(one).overflowX === 'hidden' && one.textContent.trim() &&
    one.scrollWidth > one.clientWidth + 1),
].map(one => one.textContent)"""


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_call_in_the_browser(
    result: Result, shown: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    result.report(tmp_path / "run.html")
    shown.open(tmp_path / "run.html", width, dark=dark)
    checked(shown)
    assert shown.run("document.querySelectorAll('.chart > *').length") == 3
    ink = shown.run(_OF_AXIS)
    assert ink == ("#e6e9ec" if dark else "#1d2125")


_TIMELINE = "Bokeh.documents.map(d => d.get_model_by_name('timeline')).find(m => m)"
_RANGE = f"[{_TIMELINE}.x_range.start, {_TIMELINE}.x_range.end]"
_OF_AXIS = f"{_TIMELINE}.below[0].major_label_text_color"


def test_the_timeline_zooms(result: Result, shown: Page, tmp_path: Path) -> None:
    result.report(tmp_path / "run.html")
    shown.open(tmp_path / "run.html")
    us = 1e6 / result.device.clock_hz
    longest = max(
        (one for one in timeline.spans(result.runs, us) if not one.upright),
        key=lambda one: one.right - one.left,
    )
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
    shown.run("document.querySelector('[data-toggle=\"cube\"]').click()")
    cube = "Bokeh.documents.map(d => d.get_model_by_name('cube')).find(m => m)"
    assert shown.run(f"{cube}.visible") is False
    checked(shown)


#: Texts of the tooltips that are seen; those of charts are in shadow roots.
_TOOLTIPS = """(function seen(root) {
  return [...root.querySelectorAll('*')].flatMap(one => [
    ...(one.matches('.bk-Tooltip') && one.offsetHeight ? [one.shadowRoot.textContent] : []),
    ...(one.shadowRoot ? seen(one.shadowRoot) : []),
  ]);
})(document)"""


#: Middles, in the window, of the four widest bars of each kind that a chart shows.
_MIDDLES = """(name => {
  const model = Bokeh.documents.map(d => d.get_model_by_name(name)).find(m => m);
  const below = view => [view, ...(view.child_views ?? []).flatMap(below)];
  const view = Bokeh.index.roots.flatMap(below).find(view => view.model === model);
  view.el.scrollIntoView({block: 'center', behavior: 'instant'});
  const place = view.el.getBoundingClientRect();
  const {x_scale, y_scale} = view.frame;
  return model.renderers.filter(r => r.data_source.data.left).flatMap(renderer => {
    const bars = renderer.data_source.data;
    const shown = Array.from(bars.left, (left, i) => ({
      left: Math.max(left, model.x_range.start),
      right: Math.min(bars.right[i], model.x_range.end),
      height: bars.bottom ? (bars.bottom[i] + bars.top[i]) / 2 : renderer.glyph.y.value,
    }));
    shown.sort((a, b) => (b.right - b.left) - (a.right - a.left));
    return shown.slice(0, 4).filter(bar => bar.right > bar.left).map(bar => [
      place.x + x_scale.compute((bar.left + bar.right) / 2),
      place.y + y_scale.compute(bar.height),
    ]);
  });
})"""


def tooltips_of(shown: Page, chart: str) -> str:
    """Texts of the tooltips of a chart's widest bars of each kind."""
    texts: set[str] = set()
    for x, y in shown.run(f"{_MIDDLES}('{chart}')"):
        shown.hover(x, y)
        texts |= set(shown.run(_TOOLTIPS))
    return " ".join(texts)


def test_tooltips_of_the_timeline_tell_what_is_below_the_pointer(
    result: Result, shown: Page, tmp_path: Path
) -> None:
    result.report(tmp_path / "run.html")
    shown.open(tmp_path / "run.html", height=2000)
    texts = tooltips_of(shown, "timeline")
    assert re.search(r"mmad\s*aic\d M, [\d.]+ to [\d.]+", texts)
    assert "waits for" in texts
    assert not re.search(r"\?\?\?|NaN|undefined", texts)


def test_tables_sort_and_fold(shown: Page, tmp_path: Path) -> None:
    rows = [(f"row {at}", Cell(f"{at} things", -at)) for at in range(templates.FOLD + 5)]
    table = Section("t", [Table("", ("name", "size"), rows, 1)])
    (tmp_path / "table.html").write_text(simple(table))
    shown.open(tmp_path / "table.html")
    seen = "[...document.querySelectorAll('tbody tr')].filter(r => r.offsetHeight).length"
    first = "document.querySelector('tbody tr').cells[0].textContent"
    assert shown.run(seen) == templates.FOLD
    shown.run("document.querySelector('.scroll + button').click()")
    assert shown.run(seen) == templates.FOLD + 5
    shown.run("document.querySelectorAll('th')[1].click()")
    assert shown.run(first) == "row 0", "numbers begin with the largest, by their keys"
    shown.run("document.querySelectorAll('th')[1].click()")
    assert shown.run(first) == f"row {templates.FOLD + 4}"
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


@pytest.fixture(scope="module")
def step_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small step."""
    path = tmp_path_factory.mktemp("step") / "step.html"
    npusim.step("dcgan", device="ascend910b2", batch=1, mode="graph").report(path)
    return path


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_step_in_the_browser(shown: Page, step_page: Path, width: int, dark: bool) -> None:
    shown.open(step_page, width, dark=dark)
    checked(shown)
    texts = tooltips_of(shown, "figure")
    assert re.search(r"convolution weight\s*[\d.,]+ \u00b5s, \d+ %", texts)
    assert re.search(r"others.*(normalisation|activation): [\d.,]+ \u00b5s", texts, re.S)


def test_kinds_of_a_step_have_their_shares_in_view_on_a_telephone(
    shown: Page, step_page: Path
) -> None:
    shown.open(step_page, 400)
    heads = "[...document.querySelectorAll('th')]"
    right = f"{heads}.find(head => head.textContent === 'share').getBoundingClientRect().right"
    assert shown.run(right) <= 400
    scrolls = "document.querySelector('.scroll').scrollWidth > document.querySelector('.scroll')"
    assert shown.run(f"{scrolls}.clientWidth"), "the rest is reached by scrolling the table"


def test_the_timeline_of_a_step_tells_operations_kernels_bytes_and_shares(
    shown: Page, step_page: Path
) -> None:
    shown.open(step_page, height=2400)
    texts = tooltips_of(shown, "timeline")
    span, share = r"[\d.,]+ to [\d.,]+ \u00b5s", r"[\d.,]+ \u00b5s, [\d.]+ %"
    assert re.search(rf"forward{span}\d+ operations\s*{share}", texts)
    moved = r"reads [\d.]+ \w+, writes [\d.]+ \w+"
    assert re.search(rf"up2\.output{span}convolution output\s*{moved}\s*{share}", texts)
    kernel = "conv_backprop_input of up2.output"
    assert re.search(rf"{re.escape(kernel)}{span}{share}\s*[\d.]+ \w+ of GM", texts)
    whole = shown.run(_RANGE)
    names = "[...document.querySelectorAll('[data-zoom]')].map(button => button.textContent)"
    assert shown.run(names)[:4] == ["whole step", "forward", "backward", "optimizer"]
    shown.run("document.querySelectorAll('[data-zoom]')[4].click()")
    longest = shown.run(_RANGE)
    assert longest[1] - longest[0] < (whole[1] - whole[0]) / 3
    checked(shown)


@pytest.mark.parametrize("dark", [False, True])
def test_the_memory_of_a_step_tells_what_there_is(shown: Page, tmp_path: Path, dark: bool) -> None:
    page = tmp_path / "step.html"
    step = npusim.step("dcgan", device="ascend910b2", batch=4, mode="eager")
    step.report(page)
    for width in (1280, 400):
        shown.open(page, width, height=4000, dark=dark)
        checked(shown)
        texts = tooltips_of(shown, "memory")
        assert re.search(r"weights\s*[\d.]+ MiB", texts)
        assert re.search(r"[\d.,]+ \u00b5s: [\d.]+ MiB in all", texts)
        assert not re.search(r"\?\?\?|NaN|undefined", texts)


# ---------------------------------------------------------------- studies


def row(time_us: float, error: str = "", **varied: str) -> dict[str, object]:
    figures = {"time_us": time_us, "bottleneck": "cube", "buffer_bytes": 1024 * time_us}
    return {**varied, **({} if error else figures), "retiled": "", "error": error}


SPACE = [row(10.0 * a + b, a=str(a), b=f"{b}KiB") for a in (2, 1) for b in (1, 2, 4)]


def test_two_modes_in_the_browser(shown: Page, tmp_path: Path) -> None:
    eager, graph = (
        npusim.step("dcgan", device="ascend910b2", mode=mode) for mode in ("eager", "graph")
    )
    npusim.compare_networks(eager, graph).report(tmp_path / "modes.html")
    for width in (1280, 400):
        for dark in (False, True):
            shown.open(tmp_path / "modes.html", width, height=2400, dark=dark)
            checked(shown)
    shown.open(tmp_path / "modes.html", height=2400)
    texts = tooltips_of(shown, "launched")
    assert re.search(r"launches\s*[\d.,]+ us", texts)
    assert re.search(r"kernels that convert\s*[\d.,]+ us", texts)
    assert not re.search(r"\?\?\?|NaN|undefined", texts)


def test_a_study_in_the_browser(shown: Page, tmp_path: Path) -> None:
    text = studied({"network": "resnet50"}, SPACE)
    (tmp_path / "study.html").write_text(text, encoding="utf-8")
    for width in (1280, 400):
        shown.open(tmp_path / "study.html", width)
        checked(shown)
    assert shown.run("document.querySelectorAll('.chart > *').length") == 2


# ---------------------------------------------------------------- notebooks


def test_a_column_of_figures_may_begin_with_an_empty_cell() -> None:
    """The input gradient of the first layer is none, and all others once vanished with it."""
    times = Table("", ("layer", "us"), [("a", Cell("", 0.0)), ("b", Cell("3.0", 3.0))], 1)
    assert times.kinds == ["", "n"]
    assert ">3.0<" in simple(Section("Layers", [times]))
    drawn = Table(
        "", ("layer", "us"), [("a", Cell("", 0.0)), ("b", Cell.bar([("x", 1, "")], 3))], 1
    )
    assert drawn.kinds == ["", "bars"]


def test_a_narrow_page_has_figures_in_view(shown: Page, tmp_path: Path) -> None:
    """Bars give way to the figures beside them, and words behind bars have room."""
    bar = Cell.bar([("x", 0.9, "#445566")], 9)
    name = "normalisation gradient sums of all the layers"
    rows = [("backward", name, bar, "123.4", "1,234 MiB")]
    table = Table("", ("phase", "kind", "time", "us", "bytes"), rows, 2)
    stack = stacks.stacked([stacks.Stack("one", "8,361.3, 47 %", {"a": 10.0})], {"a": "#445566"},
                           "us", 9, place="stack")  # fmt: skip
    file = tmp_path / "narrow.html"
    file.write_text(simple(Section("Kinds", [table, stack])), encoding="utf-8")
    ends = {}
    for width in (1280, 400):
        shown.open(file, width)
        last = "[...document.querySelectorAll('td')].at(-1).getBoundingClientRect().right"
        assert shown.run(last) <= width
        hidden = shown.run("getComputedStyle(document.querySelector('td.bars')).display")
        assert (hidden == "none") == (width == 400)
        ends[width] = shown.run("Bokeh.documents[0].get_model_by_name('stack').x_range.end")
    assert stack.x.ends is not None
    assert ends[1280] == stack.x.ends[1]
    assert ends[400] > ends[1280]


def test_notebooks_show_key_figures(result: Result, shown: Page, tmp_path: Path) -> None:
    told = result._repr_html_()
    assert "<script" not in told, "notebooks do not run scripts of results"
    assert all(f"<td>{name}</td>" in told for name in metrics.titles(result.runs))
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{told}", encoding="utf-8")
    shown.open(tmp_path / "cell.html", 700)
    assert shown.errors == []
    net = npusim.network("resnet18", device="tiny", gradients=["weight"])
    layers = net._repr_html_()
    assert all(f"<td>{one.layer.name}</td>" in layers for one in net.timed)


def test_what_is_printed_of_objects_is_short() -> None:
    net = npusim.network("resnet18", device="tiny", gradients=["weight"])
    operand = npusim.spec((64, 64), "fp16")
    call = npusim.ops.matmul(operand, operand, device="tiny")
    objects = (net, net.device, net.workload, net.timed[0], net.spent, call, call.replay,
               call.runs[0], call.time_range, call.explain(what_if=False))  # fmt: skip
    for shown_object in objects:
        assert len(repr(shown_object)) < 200, repr(shown_object)
        assert "\n" not in repr(shown_object)
    other = net.device.replace("clock", "2GHz")
    assert repr(other) != repr(net.device)
    assert repr(net.device.replace("main_memory.read", "1GB/s")) != repr(net.device)
