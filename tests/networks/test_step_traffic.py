"""Bytes to and from main memory of a step: in its traffic, operations, energy, bounds and words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import npusim
from npusim.machine.timing.trace import TrafficRow
from npusim.networks.plan.l2_lines import L2Traffic
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.networks.run.step_result import StepResult
from npusim.networks.timed import Timed
from npusim.results.facts.number_text import bytes_text, us_text
from npusim.workloads import Workload
from tests.networks.blocks import ONE_BLOCK, network
from tests.networks.test_step_totals import launched


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return network(ONE_BLOCK, tmp_path_factory.mktemp("block"))


@pytest.fixture(scope="module")
def step(block: Workload) -> StepResult:
    """A step whose values do not fit an L2 of 32 KiB."""
    device = npusim.load_device("ascend910b2", {"l2.size": "32KiB"})
    return npusim.step(block, device=device, batch=4)


def crossed(step: StepResult, src: str, dst: str) -> int:
    """Bytes of a path in the traffic of a step."""
    rows = step.traffic
    return int(rows[(rows.src == src) & (rows.dst == dst)].bytes.sum())


def test_what_leaves_the_l2_is_in_traffic_operations_and_energy(step: StepResult) -> None:
    read, written = crossed(step, "HBM", "L2"), crossed(step, "L2", "HBM")
    assert min(read, written) > 0
    assert (read, written) == (step.fetched_bytes, step.written_back_bytes)
    table = step.operations
    assert (table.fetched_bytes.sum(), table.written_back_bytes.sum()) == (read, written)
    amounts = {row.figure: row.amount for row in step.spent.rows}
    assert amounts["main_memory.energy"] == read + written
    facts = step.to_json()
    assert (facts["fetched_bytes"], facts["written_back_bytes"]) == (read, written)
    assert facts["dirty_bytes"] == step.launched[-1].l2.dirty <= 32 * 1024
    phases = step.traffic[step.traffic.dst == "HBM"]
    assert [*phases.phase] == ["forward", "backward", "optimizer"]


def test_other_paths_are_those_of_the_kernels(step: StepResult) -> None:
    runs = [run for operation in step.launched for run in operation.runs]
    loads = sum(row.bytes for run in runs for row in run.traffic if row[:2] == ("GM", "L1"))
    assert crossed(step, "GM", "L1") == loads > 0


def test_most_of_what_is_written_leaves_a_small_l2_and_nothing_a_large_one(
    block: Workload, step: StepResult
) -> None:
    written = sum(operation.written_bytes for operation in step.launched)
    assert 0.5 * written < step.written_back_bytes + step.dirty_bytes < written
    large = npusim.step(block, device="ascend910b2", batch=4)
    assert large.written_back_bytes == 0
    once = step.written_back_bytes + step.dirty_bytes
    assert large.dirty_bytes < once, "memory that is used again is dirty once, and written once"
    assert large.fetched_bytes < step.fetched_bytes
    assert crossed(large, "L2", "HBM") == 0


def test_words_say_what_is_counted_and_what_is_not(step: StepResult, tmp_path: Path) -> None:
    written = bytes_text(step.written_back_bytes)
    text = " ".join(step.text().split())
    assert f"{bytes_text(step.fetched_bytes)} read, {written} written" in text
    assert f"{written} are written back to HBM as later kernels need their room" in text
    assert f"{bytes_text(step.unread_bytes)} of it values that nothing reads any more" in text
    waiting = us_text(step.waiting_us)
    assert (f"{waiting} us of the step are waits for HBM" in text) == (step.waiting_us > 0)
    assert f"{bytes_text(step.dirty_bytes)} are dirty in the L2 at the end" in text
    page = tmp_path / "step.html"
    step.report(page)
    assert "L2\u2192HBM" in page.read_text(encoding="utf-8")


def test_bounds_of_main_memory_count_the_whole_step(step: StepResult) -> None:
    table = step.bounds.set_index("resource")
    memory = step.device.main_memory
    least = float(step.written_back_bytes / memory.write_bytes_per_cycle)
    assert table.cycles["HBM write"] == pytest.approx(least, abs=1)
    both = step.fetched_bytes + step.written_back_bytes
    bus = float(both / step.device.links["hbm"].bytes_per_cycle)
    assert table.cycles["link hbm"] == pytest.approx(bus, abs=1)
    pipes = sum(
        bound.cycles
        for operation in step.launched
        for run in operation.runs
        for bound in run.bounds
        if bound.resource == "pipe M"
    )
    assert (table.cycles["pipe M"], table.of["pipe M"]) == (pipes, "kernels")
    assert [*step.bounds.cycles] == sorted(step.bounds.cycles, reverse=True)


def test_no_operation_is_shorter_than_main_memory_takes_for_its_bytes(block: Workload) -> None:
    """Main memory that hardly takes writes: kernels by themselves write nothing back."""
    slow = {"l2.size": "64KiB", "main_memory.write": "2MB/s"}
    step = npusim.step(block, device=npusim.load_device("ascend910b2", slow), batch=4)
    (share,) = step.bounds[step.bounds.resource == "HBM write"].share
    assert 0.9 < share <= 1
    assert 0.9 * step.time_us < step.waiting_us < step.time_us
    for operation in step.launched:
        assert operation.us >= operation.main_memory_us
        runs = sum(run.cycles + run.launch_cycles for run in operation.runs)
        assert operation.cycles == runs + operation.waiting_cycles
    assert step.kinds.us.sum() == pytest.approx(step.time_us)
    assert step.operations.us.sum() == pytest.approx(step.time_us)
    assert step.operations.waiting_us.sum() == pytest.approx(step.waiting_us)
    text = " ".join(step.text().split())
    assert f"{us_text(step.waiting_us)} us of the step are waits for HBM" in text
    assert step.replay is not None
    assert step.replay.time_us(step.device) == pytest.approx(step.time_us)
    fast = npusim.load_device("ascend910b2", slow | {"main_memory.write": "1TB/s"})
    assert step.time_us_on(fast) < 0.5 * step.time_us


# -- what a kernel moves by itself -----------------------------------------------------------------


def ran(evicted: int, fetched: int, l2: L2Traffic, *, count: int = 1) -> LaunchedOperation:
    """An operation that writes 100 bytes each time, and evicted and fetched bytes by itself."""
    rows = (
        TrafficRow("HBM", "L2", "", fetched, 0, 0),
        TrafficRow("L2", "HBM", "", evicted, 0, 0),
    )
    run: Any = SimpleNamespace(traffic=rows)
    result: Any = SimpleNamespace(runs=(run,))
    sizes = {"a": 100 * count, "x": 1000}
    return launched("o", "x", "a", sizes, Timed(result), l2, count)


@pytest.mark.parametrize(
    ("evicted", "count", "written_back"),
    [
        (0, 1, 70),  # lines of others, and of its own
        (60, 1, 70),  # its results do not fit: they are among these lines
        (100, 1, 70),
        (130, 1, 100),  # 30 bytes of its results were written back twice
        (60, 3, 70),
        (130, 3, 160),
    ],
)
def test_nothing_that_a_kernel_writes_back_is_counted_twice(
    evicted: int, count: int, written_back: int
) -> None:
    assert ran(evicted, 0, L2Traffic(0, 70), count=count).written_back_bytes == written_back


def test_what_kernels_fetch_again_counts_and_what_is_not_simulated_counts_once() -> None:
    assert ran(0, 1500, L2Traffic(1000)).fetched_bytes == 1500
    assert ran(0, 250, L2Traffic(1000), count=2).fetched_bytes == 500, "half of x is read"
    alone: Any = SimpleNamespace(runs=(SimpleNamespace(traffic=()),))
    only_bytes = launched("o", "x", "a", {"a": 1, "x": 1000}, Timed(alone), L2Traffic(1000, 5))
    assert (only_bytes.fetched_bytes, only_bytes.written_back_bytes) == (1000, 5)
    refused = launched("o", "x", "a", {"a": 1, "x": 1000}, None, L2Traffic(1000, 5))
    assert (refused.fetched_bytes, refused.written_back_bytes) == (1000, 5)
