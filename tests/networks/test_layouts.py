"""Plans of formats: equal to the best of all there are, and what is launched under them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from npusim.base.dtypes import FP16
from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.networks.plan.formats import FormatPlan, FormatProblem, FormatWay
from npusim.networks.plan.fusions import chosen, fused
from npusim.networks.plan.launch_order import Formats, each_call, planned, problem, tasks
from npusim.networks.plan.tasks import BLOCKED, FRACTAL, PLAIN
from npusim.networks.rules.training import training
from npusim.networks.rules.values import Operation
from npusim.workloads import ConvLayer, Workload, load_workload, workloads
from tests.networks.blocks import ONE_BLOCK, TWO_BLOCKS, network

DEVICE = load_device("ascend910b2")


# -- random graphs -------------------------------------------------------------------------------


def random_problem(seed: int) -> FormatProblem:
    """Up to six operations with up to three ways; some values no kernel converts."""
    rng = np.random.default_rng(seed)
    given = {f"g{i}": ["ND", "B"][: rng.integers(1, 3)] for i in range(2)}
    names, ways = list(given), []
    for i in range(rng.integers(2, 7)):
        reads = rng.choice(names, rng.integers(1, min(3, len(names)) + 1), replace=False)
        writes = [f"v{i}"] + [f"u{i}"] * int(rng.integers(0, 2))

        def formats(some: Sequence[str]) -> dict[str, str]:
            return {str(name): ["ND", "B"][rng.integers(0, 2)] for name in some}

        ways.append(
            [
                FormatWay(float(rng.integers(1, 20)), formats(reads.tolist()), formats(writes))
                for _ in range(rng.integers(1, 4))
            ]
        )
        names += writes
    costs: dict[tuple[str, str], float | None] = {
        (name, format): None if rng.random() < 0.1 else float(rng.integers(1, 15))
        for name in names
        for format in ("ND", "B")
    }
    tied = [("g0", names[-1])] if rng.random() < 0.3 else []
    return FormatProblem(ways, lambda name, format: costs[name, format], given, tied)


def exhaustive(problem: FormatProblem) -> FormatPlan:
    """The plan of least time of all there are."""
    plans = (
        problem.evaluated(chosen, dict(zip(problem.given, formats, strict=True)))
        for chosen in product(*(range(len(ways)) for ways in problem.ways))
        for formats in product(*problem.given.values())
    )
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.us)


def test_plans_of_random_graphs_are_the_best_of_all() -> None:
    done = 0
    for seed in range(130):
        one = random_problem(seed)
        try:
            best = exhaustive(one)
        except ValueError:  # no choice of formats is possible
            continue
        plan = one.best()
        assert plan.us == pytest.approx(best.us, abs=1e-9), seed
        assert plan.proved, seed
        done += 1
    assert done >= 100


def test_a_value_is_converted_once_for_all_its_readers() -> None:
    ways = [
        [FormatWay(1.0, {}, {"v": "B"})],
        *([FormatWay(1.0, {"v": "ND"}, {})] for _ in range(3)),
    ]
    plan = FormatProblem(ways, lambda *_: 5.0, {}).best()
    assert (plan.us, plan.conversions, plan.homes) == (9.0, (("v", "ND", 5.0),), {"v": "B"})


def test_tied_values_have_one_format() -> None:
    """The state of an optimizer is read as it was left; the cheap way would leave it otherwise."""
    ways = [
        [FormatWay(1.0, {"old": "ND"}, {"new": "B"}), FormatWay(9.0, {"old": "ND"}, {"new": "ND"})]
    ]
    free = FormatProblem(ways, lambda *_: None, {"old": ["ND"]})
    tied = replace(free, tied=[("old", "new")])
    assert (free.best().ways, free.best().us) == ((0,), 1.0)
    assert (tied.best().ways, tied.best().us) == ((1,), 9.0)
    assert free.evaluated([0], {"old": "ND"}) is not None
    assert tied.evaluated([0], {"old": "ND"}) is None, "a check of its own"


# -- networks ------------------------------------------------------------------------------------


class Costs:
    """Times of tasks by their text, as if they had been simulated."""

    c0, fractals = 16, True

    def as_product(self, operation: Operation, _: Any) -> bool:
        """Filters that are the whole input are multiplied."""
        layer = operation.layer
        return isinstance(layer, ConvLayer) and operation.chain is None and layer.one_window

    def replaced(self, *_: Any) -> None:
        """No gradient is that of another convolution."""

    def __getitem__(self, what: Any) -> Any:
        return SimpleNamespace(us=1 + crc32(repr(what).encode()) % 1000 / 100)


def planning(workload: Workload, *, passes: str = "training") -> tuple[Formats, FormatProblem]:
    step = training(workload, passes=passes)
    costs = Costs()
    fused(step, chosen("usual"), DEVICE, costs.as_product)
    formats = Formats(step, costs)  # type: ignore[arg-type]
    return formats, problem(step, formats, fixed=False)


def parts(one: FormatProblem) -> Iterator[tuple[list[int], list[str]]]:
    """Operations and given values with a choice, in groups that share no value."""
    free = [i for i, ways in enumerate(one.ways) if len(ways) > 1]
    open_values = [name for name, formats in one.given.items() if len(formats) > 1]
    touched: list[tuple[Any, set[str]]] = [
        (i, {*one.ways[i][0].reads, *one.ways[i][0].writes}) for i in free
    ]
    touched += [(name, {name}) for name in open_values]
    names = {value: {a, b} for a, b in one.tied for value in (a, b)}
    groups: list[tuple[list[Any], set[str]]] = []
    for item, own in touched:
        values = set[str]().union(own, *(names.get(value, set()) for value in own))
        joined = [group for group in groups if group[1] & values]
        groups = [group for group in groups if not group[1] & values]
        groups.append(
            ([item, *(i for g in joined for i in g[0])], values.union(*(g[1] for g in joined)))
        )
    for items, _ in groups:
        yield [i for i in items if isinstance(i, int)], [i for i in items if isinstance(i, str)]


def best_by_parts(one: FormatProblem, plan: FormatPlan) -> float:
    """The least time of all choices: groups that share no value are searched one by one."""
    chosen_ways = list(plan.ways)
    homes = {name: plan.homes[name] for name in one.given}
    for free, values in parts(one):
        assert len(free) + len(values) <= 14
        found = []
        for picked in product(*(range(len(one.ways[i])) for i in free)):
            for formats in product(*(one.given[name] for name in values)):
                tried = list(chosen_ways)
                for i, way in zip(free, picked, strict=True):
                    tried[i] = way
                at = homes | dict(zip(values, formats, strict=True))
                made = one.evaluated(tried, at)
                if made is not None:
                    found.append((made.us, tried, at))
        _, chosen_ways, homes = min(found, key=lambda entry: entry[0])
    made = one.evaluated(chosen_ways, homes)
    assert made is not None
    return made.us


SMALL = [n for n in workloads() if sum(x.count for x in load_workload(n).layers) <= 8]


@pytest.mark.parametrize("name", [*SMALL, "one block", "two blocks"])
def test_plans_of_small_networks_are_the_best_of_all(name: str, tmp_path: Path) -> None:
    own = {"one block": ONE_BLOCK, "two blocks": TWO_BLOCKS}
    workload = network(own[name], tmp_path) if name in own else load_workload(name)
    _, one = planning(workload)
    plan = one.best()
    assert plan.proved
    assert plan.us == pytest.approx(best_by_parts(one, plan))


def test_there_are_small_networks_that_ship() -> None:
    assert SMALL == ["dcgan"]


@pytest.mark.slow
def test_all_networks_that_ship_are_planned_in_a_minute() -> None:
    problems = {name: planning(load_workload(name))[1] for name in workloads()}
    begun = time.process_time()
    for name, one in problems.items():
        assert one.best().proved, name
    assert time.process_time() - begun < 60


# -- what is launched ----------------------------------------------------------------------------


@pytest.fixture
def block(tmp_path: Path) -> Workload:
    return network(ONE_BLOCK, tmp_path)


def test_each_call_takes_plain_values_and_leaves_plain_ones(block: Workload) -> None:
    formats, _ = planning(block, passes="forward")
    launches = list(each_call(formats.step, formats))
    at = [one.operation.name if one.operation else "" for one in launches].index("two.output")
    around = [(one.value, one.format) for one in launches[at - 2 : at + 2]]
    assert around == [("relu", BLOCKED), ("two.w.fp16", FRACTAL), ("", ""), ("two", PLAIN)]
    count = Counter(one.value for one in launches if one.operation is None)
    # Read by the sums and by the update, and made by the convolution.
    assert count["two"] == 3
    assert not any(value.endswith("bits") for value in count)


def test_formats_of_a_framework_convert_at_the_borders(block: Workload) -> None:
    formats, _ = planning(block)
    plan = problem(formats.step, formats, fixed=True).best()
    launches = list(planned(formats.step, formats, plan, fixed=True))
    found = [(one.value, one.format) for one in launches if one.operation is None]
    assert found == [
        ("input.fp16", BLOCKED),
        ("avg_pool", PLAIN),
        ("fc.w.fp16", FRACTAL),
        ("avg_pool.gradient.fc", BLOCKED),
    ]
    assert sum(one.us for one in plan.conversions) + sum(
        ways[0].us for ways in problem(formats.step, formats, fixed=True).ways
    ) == pytest.approx(plan.us)


def test_a_conversion_stands_just_before_who_first_needs_it(block: Workload) -> None:
    formats, one = planning(block)
    launches = list(planned(formats.step, formats, one.best(), fixed=False))
    for before, after in pairwise(launches):
        if before.operation is None and after.operation is not None:
            assert after.formats[before.value] == before.format


# -- the L2 --------------------------------------------------------------------------------------


def test_tasks_know_what_the_kernel_before_left(block: Workload) -> None:
    formats, one = planning(block)
    launches = list(planned(formats.step, formats, one.best(), fixed=False))
    for launch, what, sizes, _ in tasks(launches, formats, DEVICE):
        op = launch.operation
        if op is not None and op.name == "batch_norm.update":
            held = dict(zip(dict.fromkeys(op.reads), what.warm, strict=False))
            assert (held["one"], held["batch_norm.gamma"]) == (True, False)
            sizes_by_name = {value.name: size for value, size in sizes.items()}
            assert sizes_by_name["one"] == 8 * 8 * 16 * FP16.bytes
            assert sizes_by_name["batch_norm.sum"] == 16 * 4
