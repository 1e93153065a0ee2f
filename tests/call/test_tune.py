"""Tuning finds the best of all candidates, proves it with few simulations, and can be resumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar, cast

import pytest

import npusim
from npusim.base.dtypes import DType
from npusim.base.records import replace
from npusim.call.tilings.problem import Found, TuningProblem, neighbours
from npusim.call.tilings.proof import PRUNED, SIMULATED, Budget, Progress
from npusim.call.tilings.tuned import Tuned
from npusim.call.tune import tune
from npusim.kernels.matmul.matmul import Matmul
from npusim.language import (
    FP16,
    FP32,
    ArgumentError,
    Kernel,
    Tensor,
)
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.program import build
from npusim.machine.timing.run import new_l2
from npusim.ops.linear import START
from tests.machine.program.test_tunable import Copy as Piecewise
from tests.sampled import slow_if

pytestmark = pytest.mark.compiled

#: Products whose candidates can all be simulated in a moment: sizes, result, device.
SMALL = [
    (160, 256, 192, FP16, "tiny"),
    (128, 64, 96, FP16, "ascend910"),
    (64, 256, 48, FP32, "ascend910"),
    (96, 96, 96, FP16, "ascend310p"),
    (160, 128, 64, FP16, "ascend910b2"),
    (80, 320, 64, FP32, "ascend910b2"),
    (64, 128, 112, FP16, "ascend950pr"),
]


def matmul(m: int, k: int, n: int, out: DType, device: str) -> Matmul:
    machine = load_device(device)
    a, b = Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16)
    start = Matmul(START, a, b, Tensor("c", (m, n), out, "out"))
    ((_, best),) = start.ranked(machine, machine.count("cube"), 1)
    return cast(Matmul, best)


@cache
def searched(m: int, k: int, n: int, out: DType, device: str) -> Tuned:
    """A search without a store and without a budget, of which several tests look at the result."""
    return tune(matmul(m, k, n, out, device), device=device, store=None)


def exhaustive(problem: TuningProblem, kernels: Sequence[Kernel]) -> list[Found]:
    return [problem.time(kernel) for kernel in kernels]


@pytest.mark.parametrize(
    ("m", "k", "n", "out", "device"),
    [slow_if(place != 1, *small) for place, small in enumerate(SMALL)],
)
def test_the_exhaustive_optimum(m: int, k: int, n: int, out: DType, device: str) -> None:
    """Candidates drawn at random are simulated for comparison, duplicates counted once."""
    kernel = matmul(m, k, n, out, device)
    machine = load_device(device)
    every = list(npusim.candidates(kernel, machine))
    all_of_them = Random(1).sample(every, min(60, len(every)))
    tuned = tune(kernel, device=machine, store=None, among=all_of_them)
    assert tuned.proved
    assert searched(m, k, n, out, device).cycles <= tuned.cycles
    findings = exhaustive(tuned.problem, [kernel, *all_of_them])
    assert tuned.cycles == min(finding.cycles for finding in findings)
    assert tuned.counts["candidates"] == len({finding.alike for finding in findings})


#: Rows that neither begin nor end with sectors of the L2.
RAGGED = [(112, 200, 72, FP16, "tiny"), (48, 136, 104, FP16, "ascend950pr")]


@pytest.mark.parametrize(("m", "k", "n", "out", "device"), SMALL + RAGGED)
def test_bounds_are_below_the_simulation(m: int, k: int, n: int, out: DType, device: str) -> None:
    """Of some candidates; from their work, then program, then simulation."""
    kernel, machine = matmul(m, k, n, out, device), load_device(device)
    problem = TuningProblem(kernel, machine, tuple(range(machine.groups)))
    for candidate, least in Random(2).sample(list(problem.candidates()), 20):
        if problem.bound(candidate).reason:
            continue
        bound, time = problem.bound(candidate).cycles, problem.time(candidate).cycles
        assert least <= time, candidate
        assert bound <= time, candidate


def test_cycles_are_those_of_a_call() -> None:
    """Of the operator, launches and clearing included, with the tiling found."""
    a, b = npusim.spec((80, 320), "fp16"), npusim.spec((320, 64), "fp16")
    tuned = tune(npusim.ops.matmul, a, b, out_dtype="fp32", device="ascend910b2", store=None)
    result = npusim.ops.matmul(a, b, out_dtype="fp32", device="ascend910b2", tiling=tuned.tiling)
    assert result.cycles == tuned.cycles
    auto = npusim.ops.matmul(a, b, out_dtype="fp32", device="ascend910b2")
    assert tuned.cycles <= auto.cycles


def test_a_budget_states_the_gap() -> None:
    kernel = matmul(512, 512, 512, FP16, "ascend910b2")
    tuned = tune(kernel, device="ascend910b2", store=None, budget=3)
    assert tuned.counts["simulated"] == 3
    assert not tuned.proved
    assert 0 < tuned.gap < 1
    whole = tune(kernel, device="ascend910b2", store=None, budget="0s")
    assert whole.counts["simulated"] == 1
    assert whole.gap >= tuned.gap
    assert tuned.cycles * (1 - tuned.gap) <= tuned.cycles
    assert "may take" in tuned.text()


class StoppedError(Exception):
    """What a test stops a search with."""


def test_a_killed_search_resumes_to_the_same_table(tmp_path: Path) -> None:
    """Stopped in the middle, then on: what was found is not looked at again."""
    product, steps = (160, 128, 64, FP16, "ascend910b2"), []
    kernel = matmul(*product)

    def stop(told: Progress) -> None:
        steps.append(told)
        if len(steps) == 2:
            raise StoppedError

    store = tmp_path / "tuned.sqlite"
    whole = searched(*product)
    with pytest.raises(StoppedError):
        tune(kernel, device="ascend910b2", store=store, progress=stop)
    resumed = tune(kernel, device="ascend910b2", store=store)
    assert 0 < resumed.from_store < whole.counts["simulated"]
    assert resumed.table.equals(whole.table)
    again = tune(kernel, device="ascend910b2", store=store)
    looked_at = sum(again.counts[state] for state in ("simulated", "same", "illegal"))
    assert again.from_store == looked_at
    assert again.table.equals(whole.table)


@pytest.mark.slow  # tests/cli/test_cli_jobs.py compares the command's tables
def test_two_processes_give_the_same_table() -> None:
    kernel = matmul(48, 64, 80, FP16, "tiny")
    alone, shared = (tune(kernel, device="tiny", store=None, jobs=jobs) for jobs in (1, 2))
    assert alone.table.equals(shared.table)


def test_nothing_one_step_from_the_best_is_better() -> None:
    """Whether candidates or not, all neighbours are in the table, and none is faster."""
    tuned = searched(80, 320, 64, FP32, "ascend910b2")
    around = list(neighbours(tuned.best))
    assert {one.clipped for one in around} <= {row.kernel.clipped for row in tuned.rows}
    for one in around:
        if npusim.fits(one, "ascend910b2"):
            assert tuned.problem.time(one).cycles >= tuned.cycles


def test_what_is_kept_is_kept_by_content(tmp_path: Path) -> None:
    """Another device figure, mask or shape is another problem."""
    kernel, device = matmul(48, 64, 80, FP16, "tiny"), load_device("tiny")
    problem = TuningProblem(kernel, device, (0, 1))
    other = matmul(48, 64, 96, FP16, "tiny")
    l2 = new_l2(device, "fast")
    l2.preload("a", kernel.a.size_bytes)
    keys = {
        problem.key,
        TuningProblem(kernel, device, (0,)).key,
        TuningProblem(other, device, (0, 1)).key,
        TuningProblem(kernel, device.replace("clock", "2GHz"), (0, 1)).key,
        TuningProblem(kernel, device, (0, 1), l2).key,
    }
    assert len(keys) == 5
    tiling = replace(kernel.tiling, preload=not kernel.tiling.preload)
    assert TuningProblem(replace(kernel, tiling=tiling), device, (0, 1)).key == problem.key


def test_a_warm_start_is_another_time() -> None:
    kernel = matmul(2048, 2048, 64, FP16, "ascend910b2")
    cold, warm = (
        tune(kernel, device="ascend910b2", store=None, start=start, among=[])
        for start in ("cold", "warm")
    )
    assert warm.cycles < cold.cycles


def test_the_table_has_fields_buffers_bounds_and_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once issued the instructions of every candidate: 130 s after a search of 2."""
    tuned = tune(matmul(96, 128, 64, FP32, "tiny"), device="tiny", store=None)
    with monkeypatch.context() as patch:
        patch.setattr(build, "_issue", lambda *_: pytest.fail("an instruction is issued"))
        frame = tuned.table
    assert len(frame) == tuned.counts["candidates"]
    assert frame.gm_bytes.count() <= frame.L1_bytes.count() < len(frame)
    assert {"base_m", "base_k", "unit_flag", "L1_bytes", "L0C_share", "bound"} <= set(frame)
    done = frame[frame.state == SIMULATED]
    assert done.cycles.is_monotonic_increasing
    assert (done.bound <= done.cycles).all()
    assert frame[frame.state == PRUNED].bound.min() >= tuned.cycles
    assert frame[frame.state == PRUNED].cycles.isna().all()
    best = tuned.tiling
    assert (done.iloc[0].base_m, done.iloc[0].base_n) == (best.base_m, best.base_n)
    assert done.iloc[0].L1_share == npusim.fits(tuned.best, "tiny").share["L1"]


class Copy(Piecewise):
    """With more to choose from."""

    choices: ClassVar[Mapping[str, Sequence[Any]]] = {
        "piece": (16, 64, 256, 1024, 4096, 16384, 65536, 262144),
        "slots": (1, 2, 3),
    }


def copy() -> Copy:
    return Copy(Tensor("x", (1 << 18,), FP16), Tensor("y", (1 << 18,), FP16, "out"))


def test_a_kernel_with_choices_is_tuned_by_its_programs_alone() -> None:
    tuned = tune(copy(), device="ascend910b2", store=None)
    problem = tuned.problem
    legal = list(npusim.candidates(copy(), "ascend910b2"))
    assert tuned.proved
    assert tuned.cycles == min(finding.cycles for finding in exhaustive(problem, legal))
    assert not list(neighbours(copy()))
    assert tuned.counts["illegal"] == 24 - len(legal) > 0
    reasons = tuned.table.set_index("state").loc["illegal"].reason
    assert reasons.str.contains("UB holds 196608 B").all()
    assert tuned.tiling == {"piece": tuned.best.piece, "slots": tuned.best.slots}  # type: ignore[attr-defined]


def test_what_a_kernel_chooses_is_its_tiling_in_reports() -> None:
    a, b = (npusim.simulate(replace(copy(), slots=n), "tiny") for n in (1, 2))
    assert a.runs[0].tiling == "piece 64, slots 1"
    assert "tiling      copy: piece 64, slots 1" in a.text()
    changed = npusim.compare(a, b).table.query("name == 'tiling'")
    assert changed[["a", "b"]].to_numpy().tolist() == [["piece 64, slots 1", "piece 64, slots 2"]]


@dataclass(frozen=True)
class Led(Copy):
    """With an opinion of what is fast."""

    def ranked(
        self, device: Device, cores: int, few: int, warm: Collection[str] = ()
    ) -> list[tuple[float, Kernel]]:
        return [(1.0, replace(self, piece=piece, slots=3)) for piece in (256, 1024)]


def test_a_search_that_may_end_begins_with_the_best_estimates() -> None:
    """As far as its budget goes; without one, bounds alone decide."""
    kernel = Led(*(getattr(copy(), name) for name in ("x", "y")))
    led = tune(kernel, device="ascend910b2", store=None, budget=3)
    done = {row.kernel for row in led.rows if row.state == SIMULATED}
    assert done == {kernel, *(replace(kernel, piece=piece, slots=3) for piece in (256, 1024))}
    whole = tune(kernel, device="ascend910b2", store=None)
    assert whole.proved
    assert whole.cycles == tune(copy(), device="ascend910b2", store=None).cycles


def test_a_search_looks_at_what_is_one_step_from_the_best() -> None:
    """Also where these are no candidates of the kernel's own."""
    kernel = matmul(512, 512, 512, FP16, "ascend910b2")
    tuned = tune(kernel, device="ascend910b2", store=None, budget=300)
    around = {one.clipped for one in neighbours(tuned.best)}
    assert around <= {row.kernel.clipped for row in tuned.rows}


def test_refusals() -> None:
    kernel = matmul(48, 64, 80, FP16, "tiny")
    with pytest.raises(ArgumentError, match="budget is 'soon'"):
        tune(kernel, device="tiny", budget="soon")
    with pytest.raises(ArgumentError, match="jobs is 0"):
        tune(kernel, device="tiny", jobs=0)
    with pytest.raises(ArgumentError, match="start is 'hot'"):
        tune(kernel, device="tiny", start="hot")
    with pytest.raises(ArgumentError, match="have no meaning for a kernel"):
        tune(kernel, device="tiny", out_dtype="fp32")
    a, b = npusim.spec((48, 64), "fp16"), npusim.spec((64, 80), "fp16")
    with pytest.raises(ArgumentError, match=r"launches no kernel 'conv' to tune \(it has: matmul"):
        tune(npusim.ops.matmul, a, b, device="tiny", kernel="conv")


def test_a_broken_store_says_so(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database " * 100)
    with pytest.raises(ArgumentError, match="cannot be used"):
        tune(copy(), device="tiny", store=file)


@pytest.mark.parametrize(
    ("text", "budget"),
    [("30s", (None, 30.0)), ("2min", (None, 120.0)), ("200", (200, None)), (7, (7, None))],
)
def test_budgets(text: int | str, budget: tuple[int | None, float | None]) -> None:
    assert Budget.of(text) == budget


def test_a_call_asks_for_the_fastest_tiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the call's own words; its result has the tiling as an object, which a call takes again."""
    monkeypatch.setenv("NPUSIM_CACHE", str(tmp_path))
    a, b = npusim.spec((160, 128), "fp16"), npusim.spec((128, 64), "fp16")
    auto = npusim.ops.matmul(a, b, device="ascend910b2")
    tuned = npusim.ops.matmul(a, b, device="ascend910b2", tiling="tuned")
    assert tuned.cycles < auto.cycles
    assert "matmul: proved best of" in tuned.notes[0]
    assert (tmp_path / "tuned.sqlite").exists()
    again = npusim.ops.matmul(a, b, device="ascend910b2", tiling=tuned.tilings)
    assert again.cycles == tuned.cycles
    assert again.tilings == tuned.tilings
    named = {"matmul": "tuned"}
    warm = npusim.ops.matmul(a, b, device="ascend910b2", tiling=named, start="warm")
    assert warm.cycles <= tuned.cycles
