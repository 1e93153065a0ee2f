"""Verdicts of steps: what is tried and what that costs, advice, and what would shorten them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec import structs

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.resources import LAUNCHES, faster
from npusim.machine.device.spec import Device
from npusim.networks.run.alternatives import Change, changes, tried
from npusim.networks.run.step_result import StepResult
from npusim.results.alternatives import Alternatives
from npusim.results.facts import step_replay
from npusim.results.facts.replay import Retimed, time_on, time_with
from npusim.results.facts.step_verdict import StepTrials, halved_time
from npusim.results.facts.verdict import parts
from npusim.workloads import Edge, ElementwiseLayer, GraphBuilder, Workload, workloads
from tests.networks.blocks import ONE_BLOCK, network
from tests.networks.step_advice_followed import CHIPS, KEPT, NETWORKS, TOLERANCE, followed


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return network(ONE_BLOCK, tmp_path_factory.mktemp("block"))


@pytest.fixture(scope="module")
def graph(block: Workload) -> StepResult:
    return npusim.step(block, device="ascend910b2", batch=64)


@pytest.fixture(scope="module")
def eager(block: Workload) -> StepResult:
    return npusim.step(block, device="ascend910", batch=64, mode="eager")


def all_doubled(result: StepResult) -> dict[str, float]:
    """The time with each part of the device twice as fast, every operation simulated."""
    assert result.replay is not None
    current = figures(result.device)
    times = {}
    for name, paths in parts(result.device, result.replay.figures).items():
        doubled = faster(current, paths, Fraction(2))
        us = time_with(result.device, doubled, result.replay)
        if us is not None:
            times[name] = us
    return times


# -- timing again ----------------------------------------------------------------------------------


def test_a_step_timed_again_takes_as_long(graph: StepResult, eager: StepResult) -> None:
    for result in (graph, eager):
        assert result.replay is not None
        assert result.time_us_on(result.device) == pytest.approx(result.time_us)
        # Every call by itself, as if a figure had changed that all rest on.
        times = [call.replay.time_us(result.device) for call in result.replay.calls]
        assert result.replay.total_us(result.device, times) == pytest.approx(result.time_us)
        assert len(result.replay.calls) < len(result.launched)


def test_only_what_rests_on_a_figure_is_simulated_again(graph: StepResult) -> None:
    """A faster cube changes products alone; the sum is that of all simulated."""
    faster_cube = graph.device.replace("pipe.M", "x2")
    assert graph.replay is not None
    times = [call.replay.time_us(faster_cube) for call in graph.replay.calls]
    assert graph.time_us_on(faster_cube) == pytest.approx(graph.replay.total_us(faster_cube, times))
    assert graph.time_us_on(faster_cube) < graph.time_us


def test_other_groups_are_no_variant(graph: StepResult) -> None:
    with pytest.raises(ArgumentError, match="core groups, the operations of"):
        graph.time_us_on(graph.device.replace("groups", 2))


def test_traffic_alone_follows_main_memory() -> None:
    """Operations without a kernel take half as long with a memory twice as fast."""
    pool = ElementwiseLayer(kind="max_pool", shape=(2, 16, 400, 400), out=(2, 16, 1, 1))
    builder = GraphBuilder("pool")
    image = builder.input("image", pool.shape)
    builder.add("p", pool, [Edge(image, pool.shape)])
    workload = builder.workload("a pool", batch=2)
    result = npusim.step(workload, device="ascend910b2", batch=2, passes="forward")
    assert result.replay is not None
    alone = [call for call in result.replay.calls if call.runs[0].name == "traffic_only"]
    assert alone
    doubled = result.device.replace("hbm", "x2")
    for call in alone:
        launch_us = result.device.time_us(call.runs[0].launch_cycles)
        us = call.replay.time_us(doubled)
        assert us - launch_us == pytest.approx((call.us - launch_us) / 2, abs=0.001)
        assert call.replay.time_us(result.device) == pytest.approx(call.us)


# -- verdicts --------------------------------------------------------------------------------------


def test_no_part_saves_more_than_the_verdict_s(graph: StepResult, eager: StepResult) -> None:
    for result in (graph, eager):
        verdict = result.verdict
        assert verdict is not None
        assert result.bottleneck == verdict.name
        times = all_doubled(result)
        least_us = min(times.values())
        assert verdict.double_us is not None
        assert verdict.double_us == pytest.approx(times[verdict.name], rel=1e-2)
        assert verdict.double_us <= least_us + TOLERANCE * result.time_us


def test_most_parts_are_tried_on_few_operations(eager: StepResult) -> None:
    """Of eleven parts on all operations, less than half is simulated."""
    assert eager.replay is not None
    trials = StepTrials(eager.replay, eager.time_us)
    best = trials.next_best()
    assert best is not None
    instructions = sum(run.instructions for call in eager.replay.calls for run in call.runs)
    count = len(parts(eager.device, eager.replay.figures))
    assert trials.simulated < count * instructions / 2


def test_trials_end_at_their_limit(graph: StepResult) -> None:
    """Then the most promising part is tried on all operations, and the others are counted."""
    assert graph.replay is not None
    usual = StepTrials(graph.replay, graph.time_us).next_best()
    trials = StepTrials(graph.replay, graph.time_us)
    trials.limit = -1
    best = trials.next_best()
    assert best is not None
    assert usual is not None
    assert best.double_us is not None
    assert best.double_us >= usual.double_us
    assert trials.untried > 0
    verdict = replace(graph.verdict, untried=trials.untried)
    assert verdict is not None
    assert f"; {trials.untried} parts not tried)" in verdict.how


def test_half_a_kind_and_half_an_operation_save_half_their_share(graph: StepResult) -> None:
    verdict = graph.verdict
    assert verdict is not None
    assert verdict.kind.name == next(iter(graph.split))
    assert verdict.kind.saves == pytest.approx(verdict.kind.us / 2 / graph.time_us)
    longest = max(graph.launched, key=lambda operation: operation.us)
    assert verdict.operation.us == pytest.approx(longest.us)
    assert verdict.operation.name == f"{longest.name} ({longest.kind})"


def test_the_exchange_of_gradients_is_a_part(block: Workload) -> None:
    """Over slow links the cards hold a step up, and faster kernels hide less of the exchange."""
    device = load_device("ascend910").replace("cards.bus", "0.01GB/s")
    result = npusim.step(block, device=device, batch=4, cards=8)
    verdict = result.verdict
    assert verdict is not None
    assert verdict.name == "cards"
    doubled = npusim.step(block, device=device.replace("cards", "x2"), batch=4, cards=8)
    assert verdict.double_us == pytest.approx(doubled.time_us, rel=1e-6)
    assert result.replay is not None
    backward = {
        place: operation.us
        for place, operation in enumerate(result.launched)
        if operation.phase == "backward"
    }
    halved = halved_time(result.replay, result.time_us, {"backward": backward})
    assert halved.saves * result.time_us < halved.us / 2, "what kernels save is exposed"


def test_a_step_of_no_known_calls_has_no_verdict(graph: StepResult) -> None:
    first = graph.launched[0]
    unknown = replace(first.timed, result=replace(first.timed.result, replay=None))
    result = replace(graph, launched=(replace(first, timed=unknown), *graph.launched[1:]))
    assert (result.replay, result.verdict, result.bottleneck) == (None, None, "")
    assert result.advice == ()
    with pytest.raises(ArgumentError, match=r"was not made by npusim\.step"):
        result.explain()


# -- least times -----------------------------------------------------------------------------------


def test_operations_and_kinds_have_their_least_time(graph: StepResult, eager: StepResult) -> None:
    for result in (graph, eager):
        rows = result.operation_rows()
        assert all(0 <= row["least_us"] <= row["us"] for row in rows)
        assert all(row["least_by"] for row in rows if row["least_us"])
        kinds = result.kind_rows()
        assert sum(row["least_us"] for row in kinds) == pytest.approx(
            sum(row["least_us"] for row in rows)
        )
        without = sum(row["least_us"] for row in rows if not row["converts"])
        assert without == pytest.approx(result.at_least.cold.us)


def test_the_operations_that_lose_most_say_why(eager: StepResult) -> None:
    losses = eager.losses
    assert 0 < len(losses) <= 10
    lost = [loss.alike.lost_us(eager.device) for loss in losses]
    assert lost == sorted(lost, reverse=True)
    assert all("of its critical path are" in loss.reason or "launches" in loss.reason
               for loss in losses)  # fmt: skip
    text = eager.text()
    assert "\nLOSE MOST " in text
    assert losses[0].name in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_shares_of_the_peaks_are_what_the_sizes_say(graph: StepResult) -> None:
    device = graph.device
    assert device.cube is not None
    peak = float(device.cube.macs_per_cycle("fp16")) * device.count("cube") * device.clock_hz
    macs = sum(run.useful_macs for operation in graph.launched for run in operation.runs)
    assert graph.peak_share == pytest.approx(macs / (peak * graph.time_us / 1e6))
    assert 0 < (graph.peak_share or 0) < 1
    assert 0 <= (graph.main_memory_share or 0) < 1
    assert " of the cube's peak is useful (MFU); " in " ".join(graph.text().split())


# -- explanations and bounds -----------------------------------------------------------------------


def test_an_explanation_has_the_verdict_the_losses_and_the_advice(eager: StepResult) -> None:
    explanation = eager.explain(what_if=False)
    text = " ".join(explanation.text().split())
    assert eager.verdict is not None
    assert f"bottleneck {eager.verdict.text()} (same tilings and formats); " in text
    for advice in eager.advice:
        assert advice.text in text
    facts = json.loads(json.dumps(explanation.to_json()))
    assert facts["what_if"] is None
    assert [row["operation"] for row in facts["losses"]] == [loss.name for loss in eager.losses]


def test_figures_are_tried_at_half_and_at_twice_their_value(
    block: Workload, tmp_path: Path
) -> None:
    result = npusim.step(block, device="tiny", batch=2, passes="forward")
    seen: list[tuple[int, int]] = []
    explanation = result.explain(progress=lambda done, total: seen.append((done, total)))
    rows = {row.figure: row for row in explanation.what_if or ()}
    assert seen[0] == (0, len(seen))
    assert "launches" in rows
    doubled = result.time_us_on(result.device.replace("launches", "x2"))
    assert rows["launches"].double_us == pytest.approx(doubled)
    assert "\nWHAT IF" in explanation.text()
    explanation.save(tmp_path / "why.html")
    explanation.save(tmp_path / "figures.csv")


def test_several_processes_explain_a_step_alike(
    block: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed_here: list[Device] = []

    def time_here(device: Device, replay: Retimed) -> float | None:
        timed_here.append(device)
        return time_on(device, replay)

    monkeypatch.setattr(step_replay, "time_on", time_here)
    texts = []
    for jobs in (1, 2):
        timed_here.clear()
        result = npusim.step(block, device="ascend910", batch=4, cards=2, jobs=jobs)
        assert result.jobs == jobs
        texts.append(json.dumps(result.explain().to_json()))
        assert bool(timed_here) == (jobs == 1)
    assert texts[0] == texts[1]


def test_what_changes_of_figures_simulated_is_not_tried_again(block: Workload) -> None:
    result, other = (
        npusim.step(block, device="tiny", batch=64, passes="forward") for _ in range(2)
    )
    assert other.verdict is not None
    assert other.replay is not None
    assert other.replay.known_us, "trials"
    result.what_if()
    assert result.replay is not None
    known = set(result.replay.known_us)
    assert set(other.replay.known_us) <= known
    assert result.verdict == other.verdict
    assert set(result.replay.known_us) == known


def test_the_bound_of_a_step_is_compared_with_a_measured_time(graph: StepResult) -> None:
    bounded = graph.bound(2 * graph.time_us)
    assert bounded.problem == graph.at_least
    assert bounded.program.cold.us <= graph.time_us
    assert "any program needs" in bounded.text()
    with pytest.raises(ArgumentError, match="measured_us is 0"):
        graph.bound(0)
    assert graph.energy["uj"].sum() == pytest.approx(graph.energy_uj)


# -- advice ----------------------------------------------------------------------------------------


def test_advice_that_is_followed_saves_what_it_promises(block: Workload) -> None:
    result = npusim.step(block, device="ascend910b2", batch=8, mode="eager")
    promises = [advice for advice in result.advice if advice.changed_us is not None]
    assert any(advice.launch == "graph" for advice in promises)
    for advice in promises:
        device = load_device("ascend910b2", advice.figures)
        launch = advice.launch or "single"
        step = npusim.step(block, device=device, batch=8, mode="eager", launch=launch)
        assert 1 - step.time_us / result.time_us >= KEPT * advice.saves, advice.text


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", NETWORKS)
def test_advice_for_networks_that_ship_is_kept(name: str, chip: str) -> None:
    result = npusim.step(name, device=chip, batch=NETWORKS[name])
    for advice in followed(result, name, chip, NETWORKS[name]):
        assert advice.is_kept, advice


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads())
def test_steps_of_all_networks_are_explained(name: str) -> None:
    result = npusim.step(name, device="ascend910b2", batch=1, passes="forward")
    assert result.verdict is not None
    assert "\nLOSE MOST " in result.explain(what_if=False).text()
    assert result.bound().program.cold.us <= result.time_us


# -- what would shorten it -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(block: Workload) -> StepResult:
    return npusim.step(block, device="ascend910", batch=4)


@pytest.fixture(scope="module")
def shortened(small: StepResult) -> Alternatives:
    return npusim.alternatives(small)


def test_every_alternative_is_a_whole_new_step(
    block: Workload, small: StepResult, shortened: Alternatives
) -> None:
    rows = {row.option: row for row in shortened.rows if row.option}
    anew = {
        "--layouts each_call": npusim.step(block, device="ascend910", batch=4, layouts="each_call"),
        "--launch single": npusim.step(block, device="ascend910", batch=4, launch="single"),
        "--batch 8": npusim.step(block, device="ascend910", batch=8),
        "--cards 2": npusim.step(block, device="ascend910", batch=4, cards=2),
        "--tiling auto": npusim.step(block, device="ascend910", batch=4, tiling="auto"),
        "--set l2.size=x2": npusim.step(
            block, device=load_device("ascend910", {"l2.size": "x2"}), batch=4
        ),
    }
    for option, step in anew.items():
        assert rows[option].time_us == pytest.approx(step.time_us), option
        assert rows[option].images_per_second == pytest.approx(step.images_per_second), option
    saves = 1 - anew["--batch 8"].time_us / 8 / (small.time_us / 4)
    assert rows["--batch 8"].saves == pytest.approx(saves)
    assert len(shortened.table) == len(shortened.rows)
    text = shortened.text()
    assert all(len(line) <= 80 for line in text.splitlines())
    saved = [row.saves for row in shortened.rows if row.saves is not None]
    assert saved == sorted(saved, reverse=True)


def test_what_is_tried_is_what_the_step_and_its_chip_have(small: StepResult) -> None:
    assert small.request is not None
    options = {change.option for change in changes(small, small.request)}
    assert {"--layouts each_call", "--launch single", "--cards 2", "--set hbm=x2", "--set l2=x2",
            "--set l2.size=x2", "--tiling auto", "--batch 2", "--batch 8"} <= options  # fmt: skip
    without = replace(small, device=small.device.replace("cards", "no"))
    assert not any("--cards" in change.option for change in changes(without, small.request))
    tuned = structs.replace(small.request, options={"tiling": "auto"})
    assert not any("tiling" in change.name for change in changes(small, tuned))


def test_automatic_tilings_of_the_worst_are_no_more_than_of_all(shortened: Alternatives) -> None:
    rows = {row.change: row for row in shortened.rows}
    (worst,) = [row for name, row in rows.items() if "that lose most" in name]
    assert worst.time_us is not None
    assert worst.time_us >= (rows["automatic tilings of all"].time_us or 0.0)


def test_a_change_that_cannot_be_is_told_with_the_reason(small: StepResult) -> None:
    assert small.request is not None
    change = Change(name="no such type", option="--dtype fp8", request={"dtype": "fp8"})
    row = tried(small, small.request, change)
    assert row.time_us is None
    assert "unknown dtype 'fp8'" in row.error
    found = Alternatives(
        workload="w", description="d", asked="a", version="v", device="x", device_digest="y",
        time_us=1.0, images_per_second=1.0, rows=(row,),
    )  # fmt: skip
    assert "NOT POSSIBLE\n- no such type: unknown dtype" in found.text()


def test_a_result_that_nobody_asked_for_has_no_alternatives(graph: StepResult) -> None:
    with pytest.raises(ArgumentError, match=r"take the result of npusim\.step"):
        npusim.alternatives(replace(graph, request=None))


def test_launches_are_a_part_of_small_steps(block: Workload) -> None:
    result = npusim.step(block, device="ascend910b2", batch=1)
    assert result.bottleneck == LAUNCHES
