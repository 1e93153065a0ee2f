"""Text report, advice, plots and web page."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.reasons import REASONS
from npusim.base.records import replace
from npusim.machine.device.pipes import PIPES
from npusim.machine.timing.trace import Bound, KernelRun, PipeRow, TrafficRow
from npusim.results import Result
from npusim.results.facts import metrics
from npusim.results.shown.figures import timeline as of_timeline
from npusim.results.writers import plots


def test_text_fits_the_page(result: Result) -> None:
    lines = result.text().splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith(" ") for line in lines)


def test_text_fits_with_every_reason_and_long_names(result: Result) -> None:
    cycles = tuple(1000 * (i + 1) for i in range(len(REASONS)))
    run = replace(
        result.runs[1],
        name="conv_backprop_filter",
        cycles=sum(cycles),
        pipes=tuple(PipeRow("aic23", pipe, cycles) for pipe in PIPES),
    )
    text = replace(result, runs=(run,), notes=("word " * 60,)).text()
    assert max(map(len, text.splitlines())) <= 80
    head, *rows = text[text.index("  pipe  core") :].splitlines()
    shown = set(head.split()) - {"pipe", "core", "rest"}
    assert "rest" in head
    assert shown < set(REASONS), "the smallest are added up"
    assert set(REASONS) - shown == set(REASONS[: len(REASONS) - len(shown)])
    assert sum(float(cell) for cell in rows[1].split()[2:]) == pytest.approx(100, abs=0.5)


def with_useful(result: Result, macs: int) -> Result:
    """The call with other multiply-adds that the product needs."""
    first, conv = result.runs
    return replace(result, runs=(first, replace(conv, useful_macs=macs)))


def test_useful_work_and_executed_work_have_the_time_beside_them(result: Result) -> None:
    """TFLOPS times us is the work, of the problem or with its padding; launches are apart."""
    conv = result.runs[1]
    useful = with_useful(result, conv.macs // 4)
    us = conv.cycles / 1800
    (line,) = (line for line in useful.text().splitlines() if line.startswith("conv  "))
    cells = line.split()
    assert cells[1:3] == [f"{us:.3f}", f"{conv.launch_cycles / 1800:.3f}"]
    assert float(cells[5]) * us == pytest.approx(2 * (conv.macs // 4) / 1e6, rel=0.01)
    peak = 2 * 8192 * 1.8e9 / 1e12  # of two cores
    assert float(cells[6]) / 100 * peak * us == pytest.approx(2 * conv.macs / 1e6, rel=0.01)
    (speed,) = (line for line in useful.text().splitlines() if line.startswith("speed"))
    whole = [2 * macs / result.time_us / 1e6 for macs in (conv.macs // 4, conv.macs)]
    said = [float(text) for text in re.findall(r"[\d.]+", speed)[:2]]
    assert said == pytest.approx(whole, rel=0.01)


def test_work_of_unknown_use_is_said_to_be_executed(result: Result) -> None:
    text = with_useful(result, 0).text()
    assert "speed       executed 14.2 TFLOPS over the call; peak" in text
    assert result.kernels.useful_macs.notna().all()
    assert list(with_useful(result, 0).kernels.useful_macs.isna()) == [False, True]


def test_what_is_useful_adds_up_over_kernels_of_one_name(result: Result) -> None:
    first, second = result.runs
    runs = (replace(second, useful_macs=1500), first, replace(second, useful_macs=500))
    assert replace(result, runs=runs).useful_macs == {"conv": 2000}


def test_text_of_a_call_without_kernels_cube_or_notes(result: Result) -> None:
    empty = replace(result, runs=(), notes=())
    assert "bottleneck" not in empty.text()
    no_cube = replace(result, device=replace(result.device, cube=None))
    assert "(float16," in result.text()
    assert "(float16," not in no_cube.text()


def _run(result: Result, **changes: object) -> KernelRun:
    return replace(result.runs[1], launch_cycles=0, **changes)


def _only(result: Result, run: KernelRun) -> list[str]:
    return [one.text for one in replace(result, runs=(run,)).advice]


def test_what_was_not_timed_again_is_told_by_its_busiest_part(result: Result) -> None:
    cycles = tuple({"busy": 500, "data": 400}.get(one, 10) for one in REASONS)
    other = tuple({"busy": 100, "done": sum(cycles) - 100}.get(one, 0) for one in REASONS)
    pipes = (PipeRow("aic0", "M", cycles), PipeRow("aic1", "M", other))
    run = _run(result, cycles=sum(cycles), pipes=pipes, bounds=())
    (line,) = _only(result, run)
    assert line == (
        "pipe M: busy for 51 % of the time; the call was not timed again to try changes"
    )


def test_advice_near_a_bound_is_less_work(result: Result) -> None:
    run = _run(result, cycles=1000, bounds=(Bound("cube", 950, ""), Bound("L2", 10, "")))
    (sentence,) = _only(result, run)
    assert sentence.startswith("conv: at 95 % of its cube bound; only less work for cube")
    assert "problem" not in _only(result, replace(run, problem_bounds=()))[0]
    near = replace(run, problem_bounds=(Bound("cube", 930, ""),))
    assert "problem" not in _only(result, near)[0]
    far = replace(run, problem_bounds=(Bound("HBM read", 300, ""), Bound("cube", 475, "")))
    assert _only(result, far)[0].endswith(
        "helps; it is at 48 % of the bound of its problem (cube), so that another tiling or "
        "program could be up to 2.1 times as fast"
    )


def test_launches_may_be_the_busiest_part(result: Result) -> None:
    run = replace(result.runs[1], launch_cycles=2 * result.runs[1].cycles)
    one = replace(result, runs=(run,))
    assert one.bottleneck == "launches"
    assert "bottleneck  launches: busy for 67 % of the time (by shares" in one.text()


def test_main_memory_bytes_prefers_its_own_rows(result: Result) -> None:
    run = result.runs[1]
    assert metrics.main_memory_bytes(run)[0] == run.traffic[0].miss_bytes
    rows = (TrafficRow("HBM", "L2", "", 640, 0, 0), TrafficRow("L2", "HBM", "", 320, 0, 0))
    own = metrics.main_memory_bytes(replace(run, traffic=(*run.traffic, *rows)))
    assert own == (640, 320)


@pytest.mark.parametrize(("fetched", "share"), [(512, 0.875), (1024, 0.75), (8192, 0.0)])
def test_what_a_miss_fetched_for_others_is_no_hit(
    result: Result, fetched: int, share: float
) -> None:
    row = TrafficRow("GM", "L1", "b", 4096, 3584, 512, fetched)
    (path,) = metrics.path_totals((replace(result.runs[1], traffic=(row,)),))
    assert path.hit_share == share
    assert path.kept_bytes + path.missed_bytes == path.bytes


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_an_operand_that_is_read_once_from_a_cold_l2_has_no_hits(engine: str) -> None:
    """Three of four of its requests hit the sector that the first of them fetched."""
    a, b = npusim.spec((256, 64), "fp16"), npusim.spec((64, 16), "fp16")
    r = npusim.ops.matmul(a, b, device="ascend910b2", engine=engine)
    (row,) = (row for row in r.runs[0].traffic if row.operand == "a")
    assert row.bytes == row.fetched_bytes == 256 * 64 * 2
    assert row.hit_bytes == 3 * row.miss_bytes > 0
    (path,) = (path for path in metrics.path_totals(r.runs) if path.operand == "a")
    assert path.hit_share == 0
    (line,) = (line for line in r.text().splitlines() if line.startswith("  GM->L1   a "))
    assert " 0 % " in line


def test_peak_follows_dtype_and_cores(result: Result) -> None:
    cube = result.device.cube
    assert cube is not None
    half = replace(cube.rates["float16"], cycles=2)
    device = replace(result.device, cube=replace(cube, rates={**cube.rates, "float32": half}))
    full = metrics.cube_peak(device, result.runs[1], None)
    slow = metrics.cube_peak(device, result.runs[1], "float32")
    assert full == metrics.Peak(2 * 4096 * 1.8e9 * 2 / 1e12, "float16", 2)
    assert slow is not None
    assert slow.tflops == full.tflops / 2


def _spent(**cycles: int) -> tuple[int, ...]:
    return tuple(cycles.get(reason, 0) for reason in REASONS)


def test_peak_counts_the_cores_that_multiply(result: Result) -> None:
    """Cores that only move data add nothing to what the cube could do."""
    rows = (
        PipeRow("aic0", "M", _spent(busy=60, done=40)),
        PipeRow("aic0", "MTE2", _spent(busy=80, done=20)),
        PipeRow("aic1", "M", _spent(not_started=100)),
        PipeRow("aic1", "MTE2", _spent(bandwidth=50, done=50)),
        PipeRow("aic2", "MTE2", _spent(busy=50, done=50)),
    )
    peak = metrics.cube_peak(result.device, replace(result.runs[1], pipes=rows), None)
    assert peak == metrics.Peak(2 * 4096 * 1.8e9 / 1e12, "float16", 1)


def test_shares_are_of_the_cores_that_run(result: Result) -> None:
    """A core that idles would hide what the others wait for; the shares add up to one."""
    rows = (
        PipeRow("aic0", "M", _spent(busy=60, done=40)),
        PipeRow("aic1", "M", _spent(busy=20, bandwidth=10, data=30, done=40)),
        PipeRow("aic2", "M", _spent(not_started=100)),
        PipeRow("aic3", "M", _spent(not_started=100)),
    )
    (shares,) = metrics.pipe_shares(replace(result.runs[1], cycles=100, pipes=rows))
    assert shares.mean == tuple(
        n / 200 for n in map(sum, zip(*(r.cycles for r in rows[:2]), strict=True))
    )
    assert sum(shares.mean) == pytest.approx(1)
    assert shares.busiest_core == "aic0"
    assert sum(shares.busiest) == pytest.approx(1)


# ---------------------------------------------------------------- plots


def test_plots_without_axes_are_current_figures(result: Result) -> None:
    """What a notebook displays at the end of a cell, and ``plt.show()`` in a script."""
    for draw in (result.plot_timeline, result.plot_roofline, result.plot_traffic):
        ax = draw()
        assert pyplot.gcf() is ax.figure
    assert len(pyplot.get_fignums()) == 3


class OldAxes:
    """Axes as before matplotlib 3.10, whose ``get_figure`` takes no argument."""

    def __init__(self, ax: Axes) -> None:
        self.figure = ax.figure

    def get_figure(self) -> object:
        return self.figure


def test_a_figure_is_found_by_every_matplotlib_and_from_a_part_of_it(result: Result) -> None:
    parts: Any = Figure().subfigures(1, 2)
    left, right = parts
    axes = [result.plot_roofline(left.subplots()), result.plot_traffic(right.subplots())]
    axes += [cast("Axes", OldAxes(ax)) for ax in axes]
    assert len({plots.figure_bytes(ax, "png") for ax in axes}) == 1, "each is the whole figure"
    lost = cast("Axes", SimpleNamespace(figure=None))
    with pytest.raises(ArgumentError, match="the Axes is on no figure"):
        plots.figure_bytes(lost, "png")


def test_timeline_window_and_cores(result: Result) -> None:
    ax = result.plot_timeline(cores=("aic1",), window=(9, 11))
    assert ax.get_xlim() == (9, 11)
    assert {label.get_text().split()[0] for label in ax.get_yticklabels()} == {"kernel", "aic1"}
    with pytest.raises(ArgumentError, match=r"core 'aic7' did not run.*aic0 to aic1"):
        result.plot_timeline(cores=("aic7",))
    with pytest.raises(ArgumentError, match=r"window 20 to 30 us shows nothing.*14\.801"):
        result.plot_timeline(window=(20, 30))


def test_default_cores_are_first_and_slowest(result: Result) -> None:
    run = result.runs[1]
    done = REASONS.index("done")

    def idle(core: str, cycles: int) -> PipeRow:
        row = [0] * len(REASONS)
        row[0], row[done] = run.cycles - cycles, cycles
        return PipeRow(core, "M", tuple(row))

    rows = (idle("aic10", 5), idle("aic2", 90), idle("aic0", 70), idle("aic3", 60))
    assert of_timeline.default_cores((replace(run, pipes=rows),)) == ("aic0", "aic10")


def test_dense_tracks_show_shares_of_time(large_result: Result) -> None:
    ax = large_result.plot_timeline()
    assert "share of that time" in ax.get_xlabel()
    bars = sum(len(batch.get_paths()) for batch in ax.collections)
    assert 1000 < bars <= 2 * 10 * of_timeline.BINS


# ---------------------------------------------------------------- page


def test_page_is_self_contained_and_escaped(result: Result, tmp_path: Path) -> None:
    result.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "rates of &lt;MTE2&gt; &amp; FIX are assumed" in page
    assert "<MTE2>" not in page
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # the library names its site
    assert re.findall(r'(?:src|href)="(?!data:)', body) == []
    assert page.count('class="chart"') == 3
    assert "prefers-color-scheme:dark" in page


def test_the_page_explains_and_lists_only_what_occurs(result: Result, tmp_path: Path) -> None:
    run = result.runs[1]
    nothing = TrafficRow("UB", "GM", "never", 0, 0, 0)
    bounds = (*run.bounds, Bound("idle link", 0, "nothing moved"))
    changed = replace(run, traffic=(*run.traffic, nothing), bounds=bounds)
    replace(result, runs=(changed,)).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    key = page[page.index('<div class="key">') :].partition("</div>")[0]
    seen = {
        reason for reason in REASONS if result.pipes[result.pipes.kernel == "conv"][reason].any()
    }
    told = {name.partition(" (")[0] for name in re.findall(r"</i>([^<]+)</span>", key)}
    assert told == seen != set(REASONS)
    assert "never" not in page
    assert "idle link" not in page


def test_page_without_timeline_says_so(bare_result: Result, tmp_path: Path) -> None:
    bare_result.report(str(tmp_path / "bare.html"))
    page = (tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "run with timeline=True" in page
    assert page.count('class="chart"') == 2


# ---------------------------------------------------------------- short launches


def test_launches_do_not_fill_a_timeline(result: Result) -> None:
    """Kernels have nearly all of the width, in the proportion of their times."""
    slow = tuple(replace(run, launch_cycles=20 * run.cycles) for run in result.runs)
    call = replace(result, runs=slow)
    ax = call.plot_timeline()
    left, right = ax.get_window_extent().x0, ax.get_window_extent().x1

    def at(cycle: int) -> float:
        x = float(ax.transData.transform((call.device.time_us(cycle), 0))[0])
        return float((x - left) / (right - left))

    starts = metrics.kernel_starts(slow)
    widths = [at(start + run.cycles) - at(start) for start, run in zip(starts, slow, strict=True)]
    assert 0.9 < sum(widths) < 1
    assert widths[0] / widths[1] == pytest.approx(slow[0].cycles / slow[1].cycles)
    ticks = [at(round(tick * 1800)) for tick in ax.get_xticks()]
    assert all(two - one > 0.04 for one, two in pairwise(ticks))
    said = {text.get_text() for text in ax.texts}
    assert all(any(run.name in text for text in said) for run in slow)
