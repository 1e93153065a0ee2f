"""A training step: its results, what it refuses, and numbers that no plan changes."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.records import replace
from npusim.call.options import Options
from npusim.machine.device.all_reduce import Cards
from npusim.networks.plan.tasks import task
from npusim.networks.rules.training import training
from npusim.networks.run.all_reduce import all_reduce
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.run.step_result import StepResult
from npusim.results.facts.number_text import us_text
from npusim.results.shown.network_words import plan_text
from npusim.workloads import Edge, ElementwiseLayer, GraphBuilder, Workload, load_workload
from tests.networks.blocks import ONE_BLOCK, TWO_BLOCKS, Array, images, network
from tests.networks.test_step_totals import launched
from tests.tables import rows
from tests.texts import text_of


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return network(ONE_BLOCK, tmp_path_factory.mktemp("block"))


@pytest.fixture(scope="module")
def graph(block: Workload) -> StepResult:
    return npusim.step(block, device="ascend910b2", batch=4)


@pytest.fixture(scope="module")
def eager(block: Workload) -> StepResult:
    return npusim.step(block, device="ascend910b2", batch=4, mode="eager")


# -- what the vendor's library does on a 910 ---------------------------------------------------

BIASED = text_of("biases.yaml")


def test_what_the_library_does_on_a_910_is_in_its_steps(tmp_path: Path) -> None:
    workload = network(BIASED, tmp_path)

    def runs(**options: Any) -> dict[str, list[tuple[str, int]]]:
        found = npusim.step(workload, batch=4, fusions="usual", **options).launched
        named = ("fc.weight", "one.bias")
        backward = [one for one in found if one.name in named and one.phase == "backward"]
        return {one.name: [(run.name, run.cores) for run in one.timed.runs] for one in backward}

    library, ours = runs(device="ascend910"), runs(device="ascend910", tiling="auto")
    other = runs(device="ascend910b2")
    parts = [("mem_set", 1), ("bias_add_grad", 32)]
    assert library["one.bias"] == parts, "16 x 16 numbers are whole blocks: 8 parts of 4 images"
    assert [name for name, _ in ours["one.bias"]] == ["bias_grad"]
    assert [name for name, _ in other["one.bias"]] == ["bias_grad"]
    assert [name for name, _ in library["fc.weight"]] == ["mem_set", "linear_backprop_weight"]
    assert [len(one["fc.weight"]) for one in (ours, other)] == [1, 1]


def test_a_drain_applies_gradients_by_mask_alone(tmp_path: Path) -> None:
    """The graph compiler's pass takes ReluGradV2; gradients that read values are kernels."""
    found = npusim.step(network(BIASED, tmp_path), device="ascend910", batch=4)
    kinds = {one.name: one.kind for one in found.launched}
    assert kinds["relu.gradient"] == "convolution input + activation gradient"
    assert kinds["silu.gradient"] == kinds["gelu.gradient"] == "activation gradient by value"


# -- numbers -------------------------------------------------------------------------------------

#: Ways to run a step, with both kinds of launches.
WAYS = {
    "eager": {"mode": "eager"},
    "graph": {"mode": "graph"},
    "best": {"mode": "graph", "layouts": "best"},
}


def trained(workload: Workload, count: int, **options: Any) -> npusim.Trainer:
    trainer = npusim.Trainer(workload, device="ascend910b2", batch=16, **options)
    xs, labels = images(16 * count)
    for i in range(count):
        trainer.step(xs[16 * i : 16 * i + 16], labels[16 * i : 16 * i + 16])
    return trainer


def test_numbers_are_the_same_to_the_bit_in_every_mode(tmp_path: Path) -> None:
    """Momentum begins at zero, so that one step leaves gradients in the parameters, and all do."""
    workload = network(TWO_BLOCKS, tmp_path)
    found = {name: trained(workload, 1, **options) for name, options in WAYS.items()}
    first = found["eager"]
    begun = npusim.Trainer(workload, device="ascend910b2", batch=16)
    assert len(first.parameters) == 7 + 2 * 6 + 1
    for name, other in found.items():
        assert other.losses == first.losses, name
        for one in first.parameters:
            np.testing.assert_array_equal(other[one], first[one], err_msg=f"{name} {one}")
    assert all((first[one] != begun[one]).any() for one in first.parameters)
    times = {name: one.steps[0].time_us for name, one in found.items()}
    assert times["best"] <= times["graph"] * 1.01 < times["eager"]


def test_windows_larger_than_ub_are_averaged_axis_by_axis() -> None:
    """The squeezed map of 112 x 112 of an EfficientNet, whose plane is larger than UB."""
    pool = ElementwiseLayer(kind="avg_pool", shape=(2, 16, 112, 112), out=(2, 16, 1, 1))
    graph = GraphBuilder("pool")
    image = graph.input("image", pool.shape)
    graph.add("p", pool, [Edge(image, pool.shape)])
    step = training(graph.workload("a pool", batch=2), passes="forward")
    one = step.operations[-1]
    what = task(one, step.values, dict.fromkeys(step.values, "NC1HWC0"))
    x = np.random.default_rng(0).uniform(-1, 1, (2, 1, 1, 112, 112, 16)).astype(np.float16)
    for device in ("ascend910", "ascend910b2"):
        result = OperationLauncher(Options(device=device)).run(what, {"v0": x})
        assert [run.name for run in result.runs] == ["pool", "pool"]
        found = np.asarray(list(result.outputs or ()), np.float64).reshape(2, 16)
        np.testing.assert_allclose(found, x.mean((1, 2, 3, 4), np.float64), atol=2e-5)


# -- results -------------------------------------------------------------------------------------


def test_parts_of_a_step_add_up(graph: StepResult, eager: StepResult) -> None:
    for result in (graph, eager):
        rows = result.operation_rows()
        assert result.complete
        assert result.cycles == sum(one.timed.cycles for one in result.launched)
        assert sum(result.split.values()) == pytest.approx(result.time_us)
        assert sum(row["share"] for row in result.kind_rows()) == pytest.approx(1)
        ends = [row["start_us"] + row["us"] for row in rows]
        assert [row["start_us"] for row in rows[1:]] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(result.time_us)
        assert result.images_per_second == pytest.approx(4 / result.time_us * 1e6)
        assert json.loads(json.dumps(result.to_json()))["complete"] is True
        assert (result.energy_uj or 0) > 0
    assert (graph.plan is not None, eager.plan) == (True, None)
    assert graph.plan is not None
    assert graph.plan.proved
    assert eager.time_us > graph.time_us
    assert len(eager.conversions) > len(graph.conversions) == 3


def test_a_trace_has_phases_operations_and_kernels(graph: StepResult, tmp_path: Path) -> None:
    graph.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    tracks = {at: [e for e in events if e["ph"] == "X" and e["tid"] == at] for at in (1, 2, 3)}
    assert [one["name"] for one in tracks[1]] == ["forward", "backward", "optimizer"]
    assert [one["name"] for one in tracks[2]] == [one.name for one in graph.launched]
    for slices in tracks.values():  # each track is full from the first launch to the last kernel
        assert sum(one["dur"] for one in slices) == pytest.approx(graph.compute_us)


def test_the_least_time_of_a_step_is_that_of_its_operations(graph: StepResult) -> None:
    ends = [one.timed.result.at_least for one in graph.launched if one.timed.result]
    conversions = [one.timed.result.at_least for one in graph.conversions if one.timed.result]
    cached, cold = (
        sum(one[i].us for one in ends) - sum(one[i].us for one in conversions) for i in (0, 1)
    )
    assert graph.at_least.cached.us == pytest.approx(cached)
    assert graph.at_least.cold.us == pytest.approx(cold)
    assert 0 < cached < cold
    assert cached < graph.time_us
    assert graph.to_json()["at_least_us"] == [graph.at_least.cached.us, graph.at_least.cold.us]
    assert f"\nat least    {us_text(cached)} us (operands in the L2), " in graph.text()


def test_formats_that_leave_no_choice_are_timed_when_somebody_asks(block: Workload) -> None:
    """Kernels that start with a cold L2 are simulated for the plan alone, and not for the step."""
    result = npusim.step(block, device="ascend910b2", batch=4)
    launched = {id(one.timed) for one in result.launched}
    assert {id(timed) for timed in result.simulated.values()} == launched
    assert result.plan is not None
    assert 0 < result.plan.us == result.to_json()["plan"]["us"] != result.time_us


def test_the_best_layouts_take_no_more_time_than_the_framework_s(
    block: Workload, graph: StepResult
) -> None:
    best = npusim.step(block, device="ascend910b2", batch=4, layouts="best")
    assert best.plan is not None
    assert graph.plan is not None
    assert best.plan.proved
    assert best.plan.us <= graph.plan.us
    assert "proved: no choice of formats takes less" in " ".join(best.text().split())
    assert best.plan.framework_us == pytest.approx(graph.plan.us)
    assert graph.plan.framework_us is None, "no other formats were open"


@pytest.mark.parametrize(
    ("framework_us", "said"),
    [
        (70.0, "takes less: as_framework is already best"),
        (70.1, "takes less"),
        (None, "takes less"),
    ],
)
def test_a_plan_says_where_the_formats_of_a_framework_are_as_fast(
    framework_us: float | None, said: str
) -> None:
    plan = {"us": 70.0, "bound_us": 70.0, "proved": True, "framework_us": framework_us}
    text = plan_text({"plan": plan, "layouts": "best"})
    assert text == f"70.000 us with every kernel by itself; proved: no choice of formats {said}"


def test_what_a_fusion_is_worth_is_two_runs(block: Workload, graph: StepResult) -> None:
    without = npusim.step(block, device="ascend910b2", batch=4, fusions="none")
    assert without.fused == {}
    assert dict(graph.fused) == {"update+sum": 1, "update+activation": 2}
    assert len(without.launched) == len(graph.launched) + 3
    assert without.time_us > graph.time_us


def test_two_steps_are_compared_by_kinds_and_operations(
    block: Workload, graph: StepResult, eager: StepResult, tmp_path: Path
) -> None:
    found = npusim.compare_networks(graph, eager, labels=("graph", "eager"))
    rows = {(row["part"], row["name"], row["what"]): row for row in found.rows}
    assert rows["network", "", "mode"]["b"] == "eager"
    sums = rows["kind", "normalisation sums", "us"]
    assert sums["change"] == pytest.approx(sums["b"] - sums["a"])
    assert rows["operation", "one.output", "us"]["a"] == next(
        one.timed.us for one in graph.launched if one.name == "one.output"
    )
    text = found.text()
    assert "KINDS (us, with launches" in text
    assert "mode: graph -> eager" in text
    assert "none -> none" not in text
    files = [tmp_path / f"{name}.json" for name in ("a", "b")]
    for file, one in zip(files, (graph, eager), strict=True):
        one.save(file)
    assert npusim.compare_networks(*files).rows == found.rows
    assert npusim.compare_networks(graph, graph).empty
    layers = npusim.network(block, device="ascend910b2", batch=4)
    with pytest.raises(npusim.ArgumentError, match="of A and B one is a whole step"):
        npusim.compare_networks(graph, layers)


def test_a_part_of_a_step(block: Workload, graph: StepResult) -> None:
    forward = npusim.step(block, device="ascend910b2", batch=4, passes="forward")
    assert {one.phase for one in forward.launched} == {"forward"}
    whole = sum(one.timed.us for one in graph.launched if one.phase == "forward")
    assert forward.time_us == pytest.approx(whole)


def test_all_ways_to_show_a_step(graph: StepResult, tmp_path: Path) -> None:
    text = graph.text()
    assert text.startswith(
        "network     blocks: one residual block\ntraining    batch 4, fp16, momentum"
    )
    assert max(map(len, text.splitlines())) <= 80
    graph.report(tmp_path / "step.html")
    graph.save_plot(tmp_path / "step.png")
    graph.write(tmp_path / "step.csv")
    page = (tmp_path / "step.html").read_text(encoding="utf-8")
    for words in ("Conversions that remain", "avg_pool.gradient.fc", "blocks training step"):
        assert words in page
    lines = (tmp_path / "step.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(graph.launched)
    assert list(graph.operations.columns) == lines[0].split(",")


def test_an_operation_without_a_time_is_named(graph: StepResult) -> None:
    failed = launched("odd", "", "", {})
    result = replace(graph, launched=(*graph.launched, failed))
    assert (graph.complete, result.complete, result.failed) == (True, False, (failed,))
    assert "1 not simulated" in repr(result)
    assert "NOT SIMULATED\n- odd: no time" in result.text()


def test_an_operation_without_a_kernel_is_named_and_has_its_traffic(tmp_path: Path) -> None:
    text = ONE_BLOCK.replace("relu\n  - y", "erf\n  - y", 1)
    result = npusim.step(network(text, tmp_path), device="ascend910b2", batch=4)
    only = [one for one in result.launched if one.kind == "traffic only"]
    assert [one.phase for one in only] == ["forward", "backward"]
    assert all(one.timed.us > 0 for one in only)
    assert any("traffic only" in note and "erf" in note for note in result.notes)
    with pytest.raises(npusim.ArgumentError, match="no kernel computes the numbers of erf"):
        npusim.Trainer(network(text, tmp_path), device="ascend910b2", batch=4)


# -- several cards -------------------------------------------------------------------------------


def device_with(**figures: Any) -> Any:
    """A device with a bus of 2 B a cycle, of which a cycle is a microsecond."""
    cards = Cards(**{"bus_bytes_per_cycle": Fraction(2), **figures})
    return SimpleNamespace(cards=cards, time_us=float, name="d", shown_by="d.yaml")


def test_the_arithmetic_of_an_all_reduce() -> None:
    """Two cards move each byte once: 2 (n - 1) / n over the bus, here half a microsecond a byte."""
    ready = [(10.0, 40), (20.0, 40), (30.0, 80)]
    whole = all_reduce(device_with(), 2, ready, 50.0)
    assert (whole.us, whole.hidden_us, whole.exposed_us, whole.bytes) == (80.0, 20.0, 60.0, 160)
    cut = all_reduce(device_with(pieces=2, latency_cycles=3, slowdown_percent=10), 2, ready, 50.0)
    # 80 B from 20 on take 3 + 40, until 63; then 80 B that were ready at 30, until 106.
    assert (cut.us, cut.exposed_us, cut.hidden_us) == (86.0, 56.0, 30.0)
    assert cut.added_us == pytest.approx(56 + 3.0)
    eight = all_reduce(device_with(), 8, ready, 50.0)
    assert eight.us == pytest.approx(160 * 2 * 7 / 8 / 2)
    assert all_reduce(device_with(), 2, ready, 500.0).exposed_us == 0


@pytest.mark.parametrize(
    ("cards", "us"),
    [
        (2, 5 + 160 / (2 / 3)),  # one link of three
        (3, 5 + 160 * 4 / 3 / (4 / 3)),  # two of them
        (4, 5 + 160 * 3 / 2 / 2),
        (8, 5 + 160 * 3 / 2 / 2 + 160 / 4 / 0.5),  # a quarter of the bytes between two nodes
        (16, 5 + 160 * 3 / 2 / 2 + 160 / 4 * 3 / 2 / 0.5),
    ],
)
def test_cards_within_and_between_nodes(cards: int, us: float) -> None:
    """Nodes of four cards with three links each, a quarter of whose rate leads to other nodes."""
    device = device_with(links=3, node=4, network_bytes_per_cycle=Fraction(1, 2), latency_cycles=5)
    assert all_reduce(device, cards, [(0.0, 160)], 0.0).us == pytest.approx(us)


def test_each_card_may_be_a_node() -> None:
    device = device_with(node=1, network_bytes_per_cycle=Fraction(1, 2))
    assert all_reduce(device, 2, [(0.0, 160)], 0.0).us == 160 / 0.5


def test_more_cards_than_a_node_need_a_rate_between_nodes() -> None:
    with pytest.raises(npusim.ArgumentError, match=r"a node of d has 8 .* network: 25GB/s"):
        all_reduce(device_with(), 16, [(0.0, 160)], 0.0)
    with pytest.raises(npusim.ArgumentError, match="must be whole nodes, such as 16 or 24"):
        all_reduce(device_with(network_bytes_per_cycle=Fraction(1)), 20, [(0.0, 160)], 0.0)


def test_the_line_that_is_suggested_is_a_device_file(block: Workload, tmp_path: Path) -> None:
    with pytest.raises(npusim.ArgumentError) as error:
        npusim.step(block, device="ascend310p", cards=8)
    line = re.search(r"\{base.*\}\}", str(error.value))
    assert line is not None
    file = tmp_path / "mine.yaml"
    file.write_text(line[0], encoding="utf-8")
    step = npusim.step(block, device=str(file), cards=8)
    assert step.reduced is not None
    assert step.reduced.us > 400


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2", "ascend910b4", "ascend910c"])
def test_an_exchange_of_a_few_bytes_takes_its_start(device: str) -> None:
    reduced = all_reduce(npusim.load_device(device, {"cards.pieces": "1"}), 4, [(0.0, 64)], 0.0)
    assert reduced.us == pytest.approx(400, rel=1e-3)


def test_a_full_mesh_is_faster_with_more_cards_and_slower_across_nodes() -> None:
    """Each card of a 910B2 sends an n-th of the bytes to each other one over a link of its own."""
    device = npusim.load_device("ascend910b2")
    two, four, eight, sixteen = (
        all_reduce(device, cards, [(0.0, 100_000_000)], 0.0).us - 400 for cards in (2, 4, 8, 16)
    )
    assert two == pytest.approx(2 * four) == pytest.approx(4 * eight)
    assert sixteen > eight


def test_a_step_on_several_cards(block: Workload) -> None:
    alone, eight = (
        npusim.step(block, device="ascend910", batch=4, cards=n, tiling="auto") for n in (1, 8)
    )
    assert eight.reduced is not None
    assert eight.compute_us == alone.time_us
    gradients = 4 * (16 * 3 * 9 + 16 * 16 * 9 + 10 * 16 + 10 + 4 * 16)
    assert eight.reduced.bytes >= gradients, "in blocks of channels there is more"
    assert eight.time_us == pytest.approx(alone.time_us + eight.reduced.added_us)
    assert eight.images_per_second == pytest.approx(8 * 4 / eight.time_us * 1e6)
    assert "all-reduce" in eight.text()
    assert sum(eight.split.values()) == pytest.approx(eight.time_us)


# -- what is wrong -------------------------------------------------------------------------------


USUAL: dict[str, Any] = {"device": "ascend910b2", "batch": 4, "passes": "training"}


@rows("tests/data/mistakes/networks.yaml", "what_is_wrong_is_said", "options, message")
def test_what_is_wrong_is_said(options: dict[str, Any], message: str, block: Workload) -> None:
    with pytest.raises(npusim.ArgumentError) as error:
        npusim.step(block, **USUAL | options)
    assert message in str(error.value)


def test_a_step_of_which_nothing_runs_is_an_error(
    block: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise npusim.CapacityError("nothing fits")

    monkeypatch.setattr(OperationLauncher, "run", refuse)
    message = "no operation of blocks can be simulated; .*: nothing fits"
    with pytest.raises(npusim.ArgumentError, match=message):
        npusim.step(block, device="ascend910b2", mode="eager")


def test_a_trainer_needs_classes_and_a_mode(block: Workload) -> None:
    with pytest.raises(npusim.ArgumentError, match="Trainer: unknown keyword 'rate'"):
        npusim.Trainer(block, device="ascend910b2", batch=4, rate=0.1)
    with pytest.raises(npusim.ArgumentError, match="mode is 'grph'; did you mean 'graph'"):
        npusim.Trainer(block, device="ascend910b2", batch=4, mode="grph")
    with pytest.raises(npusim.ArgumentError, match="dcgan ends in a map; a Trainer needs a linear"):
        npusim.Trainer("dcgan", device="ascend910b2", batch=4, mode="eager")


def test_a_list_of_layers_is_refused() -> None:
    listed = Workload(name="plain", description="", layers=load_workload("dcgan").layers)
    with pytest.raises(npusim.ArgumentError, match="workload plain only lists layers"):
        npusim.step(listed, device="ascend910b2")


@pytest.fixture
def begun(block: Workload) -> npusim.Trainer:
    return npusim.Trainer(block, device="ascend910b2", batch=4)


def test_parameters_go_by_name(begun: npusim.Trainer) -> None:
    new: Array = np.arange(16.0, dtype=np.float32)
    begun["batch_norm.gamma"] = new
    np.testing.assert_array_equal(begun["batch_norm.gamma"], new)
    weights = np.arange(16 * 16 * 9, dtype=np.float32).reshape(16, 16, 3, 3)
    begun["two.w"] = weights
    np.testing.assert_array_equal(begun["two.w"], weights)
    with pytest.raises(npusim.ArgumentError, match=r"no parameter 'two'; did you mean 'two\.w'"):
        begun["two"]
    with pytest.raises(
        npusim.ArgumentError, match=r"two\.w has shape \(16, 16, 3, 3\), got \(3,\)"
    ):
        begun["two.w"] = np.zeros(3)


@rows("tests/data/mistakes/networks.yaml", "a_batch_has_its_shape", "shape, labels, message")
def test_a_batch_has_its_shape(
    shape: list[int], labels: list[float], message: str, begun: npusim.Trainer
) -> None:
    with pytest.raises(npusim.ArgumentError, match=message):
        begun.step(np.zeros(shape), labels)
    assert begun.steps == []
    assert repr(begun) == "<Trainer of blocks: 0 steps>"
