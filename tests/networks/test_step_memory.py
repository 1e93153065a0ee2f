"""Memory of training steps over time: lives of values, peaks, and the largest batch."""

from __future__ import annotations

import json
from math import ceil, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import npusim
from npusim.machine.device.catalog import load_device
from npusim.networks.plan.l2_lines import L2Traffic
from npusim.networks.plan.tasks import PLAIN, StoredValue
from npusim.networks.rules.values import Training
from npusim.networks.run import step as steps
from npusim.networks.run.fitting import largest_fitting
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.run.memory import StepMemory
from npusim.networks.timed import Timed
from npusim.results.facts.memory_rows import HOLDS
from npusim.workloads import ConvLayer, LinearLayer, Workload, read_network
from npusim.workloads.graph import shape_out
from tests.networks.blocks import ONE_BLOCK, network

MIB = 2**20


def planned(workload: Any, batch: int, device: Any = "ascend910b2", **keywords: Any) -> StepMemory:
    """The memory of a step that nothing simulates."""
    mode = keywords.pop("mode", "graph")
    options = steps.options_of(steps.step, mode, {"device": device})
    asked: dict[str, Any] = dict.fromkeys(("layouts", "fusions", "norm"))
    asked |= {"optimizer": "momentum", "passes": "training", "dtype": "fp16", "cards": 1}
    how = steps.setting(options.machine, mode=mode, **(asked | keywords))
    return steps.planned_memory(read_network(workload, batch=batch), options, how)


def launched(
    reads: str, writes: str, phase: str = "forward", workspace: int = 0, value: str = ""
) -> LaunchedOperation:
    """An operation, or the conversion of a ``value``; ``name.F`` is a value in format F.

    Each has as many bytes as the number at its end says.
    """

    def stored(names: str) -> tuple[StoredValue, ...]:
        parts = (name.partition(".") for name in names.split())
        return tuple(StoredValue(name, format or PLAIN) for name, _, format in parts)

    read, written = stored(reads), stored(writes)
    result: Any = SimpleNamespace(
        cycles=1000,
        time_us=1.0,
        runs=(),
        workspace_bytes=workspace,
        device=load_device("ascend910"),
    )
    return LaunchedOperation(
        name=f"makes {writes}",
        kind="k",
        phase=phase,
        layer="l",
        timed=Timed(result),
        reads=read,
        l2=L2Traffic(),
        writes=written,
        sizes={each: int("".join(filter(str.isdigit, each.name))) for each in (*read, *written)},
        value=value,
    )


def memory(*launches: LaunchedOperation, **training: Any) -> StepMemory:
    """The memory of launches in order."""
    return StepMemory(load_device("ascend910"), launches, Training(**training))


def totals(of: StepMemory) -> list[int]:
    return [row.total_bytes for row in of.columns]


def test_each_write_of_a_value_begins_a_life_of_its_own() -> None:
    """A copy in another format dies with its reader, and is not there until it is made again."""
    of = memory(
        launched("x1", "a10"),
        launched("a10", "a10.F", value="a10"),
        launched("a10.F", "b100"),
        launched("b100", "c1000"),
        launched("a10", "a10.F", "backward", value="a10"),
        launched("a10.F c1000", "d1", "backward"),
        inputs=("x1",),
    )
    assert totals(of) == [11, 20, 120, 1110, 1020, 1011]
    lives = [life for life in of.lives if life.stored == StoredValue("a10", "F")]
    assert [(life.first, life.last) for life in lives] == [(1, 2), (4, 5)]


def test_a_value_whose_format_only_changes_is_no_copy() -> None:
    """The first conversion leaves the plain value to a later reader, the second does not."""
    of = memory(
        launched("x1", "a10"),
        launched("a10", "a10.F", value="a10"),
        launched("a10.F", "b100"),
        launched("a10", "a10.G", "backward", value="a10"),
        launched("a10.G b100", "d1000", "backward"),
        inputs=("x1",),
    )
    holds = {(life.stored.name, life.stored.format): life.holds for life in of.lives}
    assert holds["a10", "F"] == "copies"
    assert holds["a10", "G"] == "activations"
    assert holds["x1", PLAIN] == "data"
    assert holds["d1000", PLAIN] == "gradients"


def test_parameters_and_state_are_always_there_and_updated_in_place() -> None:
    """A gradient dies with the operation that updates its parameter, which takes no room."""
    of = memory(
        launched("x1 w1000", "a10"),
        launched("a10", "w1000.gradient", "backward"),
        launched("w1000 v2000 g10", "w1000_new v2000_new", "optimizer"),
        inputs=("x1",),
        parameters=["w1000"],
        state=["v2000"],
        updates={"w1000_new": "w1000", "v2000_new": "v2000"},
    )
    assert of.columns[0].bytes["weights"] == of.columns[2].bytes["weights"] == 1000
    assert of.columns[0].bytes["state"] == 2000
    assert totals(of)[2] == 3010
    assert {life.stored.name for life in of.lives if life.last == 2} == {"w1000", "v2000", "g10"}


def test_what_a_pass_does_not_read_is_there_if_it_is_a_parameter(tmp_path: Path) -> None:
    """A backward pass by itself reads casts of weights; results live to its end."""
    workload = network(ONE_BLOCK, tmp_path)
    alone = planned(workload, 4, passes="backward")
    whole = planned(workload, 4)

    def weights(of: StepMemory) -> set[str]:
        return {life.stored.name for life in of.lives if life.holds == "weights"}

    assert weights(alone) == weights(whole) == {*whole.step.parameters, *whole.step.fixed}
    last = len(alone.launched) - 1
    gradients = [life for life in alone.lives if life.stored.name.endswith("w.gradient")]
    assert gradients
    assert all(life.last == last for life in gradients)
    inference = planned(workload, 4, passes="forward")
    assert inference.peak_bytes < whole.peak_bytes
    assert not any(life.holds in ("state", "gradients") for life in inference.lives)


def test_workspace_is_there_while_its_operation_runs() -> None:
    of = memory(launched("x1", "a10", workspace=500), launched("a10", "b100"), inputs=("x1",))
    assert totals(of) == [511, 110]
    assert (of.values_bytes, of.peak_bytes) == (110, 511)
    assert of.peak.operation == "makes a10"


def test_a_view_keeps_its_value_alive() -> None:
    """A launch reads the value that a view lies in, so that no view has bytes of its own."""
    of = planned("convnext_tiny", 1)
    reading = [
        (place, operation)
        for place, operation in enumerate(of.launched)
        if any(name in of.step.views.values() for name, _ in operation.reads)
    ]
    assert reading
    assert not any(
        life.stored.name in of.step.views and life.stored.format == PLAIN for life in of.lives
    )
    for place, operation in reading:
        there = {life.stored for life in of.lives if life.first <= place <= life.last}
        assert {*operation.reads} <= there


def test_eager_memory_of_resnet18_is_that_of_the_graph_and_its_copies() -> None:
    """Conversions of each call are gone when it is done: 688 MiB, where a graph has 683.

    Both keep plain images: the gradient of the first filter makes pixels of them channels.
    """
    graph = planned("resnet18", 64)
    eager = planned("resnet18", 64, mode="eager")
    each_call = planned("resnet18", 64, layouts="each_call")
    assert graph.peak_bytes == pytest.approx(683 * MIB, rel=0.01)
    assert 0.9 * graph.peak_bytes < eager.peak_bytes < 1.1 * graph.peak_bytes
    assert each_call.peak_bytes == pytest.approx(eager.peak_bytes, rel=0.01)
    assert graph.peak.bytes["data"] == eager.peak.bytes["data"]
    assert eager.peak_bytes == pytest.approx(graph.peak_bytes, rel=0.02)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("name", ["resnet18", "unet", "mobilenet_v2"])
def test_memory_never_falls_as_the_batch_grows(name: str, mode: str) -> None:
    sizes = [planned(name, batch, mode=mode).peak_bytes for batch in (1, 2, 3, 7, 64)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


#: What the backward pass of a kind reads: the operand "x", the result "y", or bits of the result,
#: and for pooling by the maximum bits for each tap of its window.
_READ_BACKWARD = {
    "batch_norm": "x",
    "relu": "bits",
    "clip": "bits",
    "max_pool": "taps",
    "silu": "x",
    "sigmoid": "y",
    "scale": "x",
    "tanh": "y",
}


def counted(workload: Workload) -> float:
    """Bytes by hand: of what the backward pass reads, parameters in fp32 and fp16, and momentum.

    Maps have channels in blocks of 16, but images of which a strided filter's gradient makes pixels
    channels.
    """
    shapes = {item.name: item.shape for item in workload.inputs}
    shapes |= {node.name: node.shape for node in workload.nodes}
    numbers: dict[str, float] = {}  # 16-bit numbers of each kept value, by its name
    parameters = 0.0
    weights = 0.0

    def elements(name: str) -> int:
        n, c, *rest = shapes[name]
        return n * (16 * ceil(c / 16) if rest else c) * prod(rest)

    for node in workload.nodes:
        layer = node.layer
        if isinstance(layer, ConvLayer | LinearLayer):
            numbers[node.inputs[0]] = elements(node.inputs[0])
            if isinstance(layer, ConvLayer) and layer.cin < 4 and max(layer.stride) > 1:
                numbers[node.inputs[0]] = prod(shapes[node.inputs[0]])
            count = prod(layer.w_shape) if isinstance(layer, ConvLayer) else layer.cout * layer.cin
            weights += count
            parameters += count + layer.cout * bool(layer.bias)
            continue
        assert shape_out(layer)
        read = _READ_BACKWARD.get(layer.kind, "")
        if layer.kind == "batch_norm":
            parameters += 2 * layer.shape[1]
        if read == "x":
            numbers |= {name: elements(name) for name in node.inputs}
        elif read == "y":
            numbers[node.name] = elements(node.name)
        elif read:
            taps = prod(layer.kernel) if read == "taps" else 1
            numbers[f"{node.name} bits"] = taps * elements(node.name) / 16
    return 2 * sum(numbers.values()) + 8 * parameters + 2 * weights


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet34", "resnet50", "vgg13", "densenet121", "mobilenet_v2"]
)
def test_a_graph_keeps_what_a_count_over_its_nodes_says(name: str) -> None:
    """The peak has gradients besides, of which those behind the last layers are small."""
    of = planned(name, 64)
    gradients = of.peak.bytes["gradients"]
    assert of.peak_bytes - gradients == pytest.approx(
        counted(read_network(name, batch=64)), rel=0.1
    )


def test_counts_are_found_with_few_sizes() -> None:
    """A line, a bend, a flat piece and steps; the answer fits and the next count does not."""
    for size_of in (
        lambda n: 100 + 7 * n,
        lambda n: max(100 + 7 * n, 50 * n - 1000),
        lambda n: 100 + 3 * (n // 10),
        lambda n: n * n,
        lambda n: 10 if n < 40 else 10_000,
    ):
        asked: list[int] = []

        def size(n: int, size_of: Any = size_of, asked: list[int] = asked) -> int:
            asked.append(n)
            return int(size_of(n))

        room = 5000
        fits = largest_fitting(size, room)
        assert size_of(fits) <= room < size_of(fits + 1)
        assert len(asked) < 50
    assert largest_fitting(lambda n: 10 * n, 9) == 0
    assert largest_fitting(lambda n: 10 * n, 1000, 7) == 7
    assert largest_fitting(lambda _: 1, 1000, 99) == 99


def small_card(size: str) -> Any:
    return load_device("ascend910", {"main_memory.size": size})


def test_the_largest_batch_fits_and_the_next_does_not(tmp_path: Path) -> None:
    workload = network(ONE_BLOCK, tmp_path)
    device = small_card("3MiB")
    answer = npusim.largest_batch(workload, device=device)
    assert answer.step.fits
    assert answer.step.batch == answer.batch
    assert answer.next_batch.batch == answer.batch + 1
    assert answer.next_batch.peak_bytes > device.main_memory.size_bytes
    following = npusim.step(workload, device=device, batch=answer.batch + 1)
    assert not following.fits
    assert following.peak_bytes >= answer.next_batch.peak_bytes
    # It leaves room for the largest workspace, which the peak need not have.
    assert following.fitting_batch is not None
    assert 0.95 * answer.batch < following.fitting_batch <= answer.batch
    assert f"batch {following.fitting_batch} fits" in following.text()
    assert "needs" in repr(following)
    facts = json.loads(json.dumps(answer.to_json()))
    assert facts["batch"] == answer.batch
    assert facts["next_peak_bytes"] > facts["card_bytes"] >= facts["peak_bytes"]
    text = answer.text()
    assert f"batch {answer.batch:,} fits 3.0 MiB" in text
    assert "not counted" in text
    assert f"{answer.batch} images" in repr(answer)
    answer.report(tmp_path / "largest.html")
    assert "Largest batch" in (tmp_path / "largest.html").read_text(encoding="utf-8")


def test_a_file_of_fixed_sizes_has_multiples_of_its_batch(tmp_path: Path) -> None:
    pairs = read_network(network(ONE_BLOCK, tmp_path), batch=2)
    answer = npusim.largest_batch(pairs, device=small_card("3MiB"), mode="eager")
    assert answer.batch % 2 == 0
    assert answer.next_batch.batch == answer.batch + 2


def test_a_card_too_small_for_one_image_is_refused(tmp_path: Path) -> None:
    workload = network(ONE_BLOCK, tmp_path)
    with pytest.raises(npusim.CapacityError, match=r"batch 1 needs .* has 64.0 KiB .*main_memory"):
        npusim.largest_batch(workload, device=small_card("64KiB"))
    none_fits = npusim.step(workload, device=small_card("64KiB"), batch=2)
    assert none_fits.fitting_batch == 0
    assert "no batch fits" in none_fits.text()
    with pytest.raises(npusim.ArgumentError, match="batch is what is looked for"):
        npusim.largest_batch(workload, device="ascend910", batch=3)


def test_a_batch_beyond_all_that_are_tried_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = "npusim.networks.run.largest_batch"
    monkeypatch.setattr(f"{search}.MAX_BATCH", 7)
    monkeypatch.setattr(f"{search}.largest_fitting", lambda size_of, room: 7)
    with pytest.raises(npusim.ArgumentError, match="batch 7 fits ascend910 too"):
        npusim.largest_batch(network(ONE_BLOCK, tmp_path), device="ascend910")


def test_operations_without_a_time_make_the_answer_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = OperationLauncher.run

    def without_sums(self: OperationLauncher, what: Any, arrays: Any = None) -> Any:
        if what.operation.kind == "loss":
            raise npusim.CapacityError("nothing fits")
        return run(self, what, arrays)

    monkeypatch.setattr(OperationLauncher, "run", without_sums)
    answer = npusim.largest_batch(network(ONE_BLOCK, tmp_path), device=small_card("1MiB"))
    text = " ".join(answer.text().split())
    assert "partial 1 operations not simulated; their workspace is not counted" in text


def test_a_step_tells_its_memory_over_time(tmp_path: Path) -> None:
    step = npusim.step(network(ONE_BLOCK, tmp_path), device="ascend910b2", batch=8)
    frame = step.memory
    assert len(frame) == len(step.launched)
    assert frame["bytes"].max() == step.peak_bytes >= step.kept_bytes
    assert (frame["bytes"] == sum(frame[f"{holds}_bytes"] for holds in HOLDS)).all()
    assert list(frame["start_us"]) == list(step.operations["start_us"])
    assert step.held["bytes"].is_monotonic_decreasing
    peak = frame.iloc[int(frame["bytes"].argmax())]
    held = step.held.groupby("holds")["bytes"].sum()
    assert held.sum() + peak["workspace_bytes"] == step.peak_bytes
    assert all(peak[f"{holds}_bytes"] == size for holds, size in held.items())
    facts = step.to_json()
    assert facts["peak"]["operation"] == peak["operation"]
    assert f"at most, in {peak['operation']}" in " ".join(step.text().split())
    figure = step.plot_memory()
    assert figure.get_ylabel().startswith("memory")
