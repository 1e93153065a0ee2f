"""Automatic tilings: estimates near the simulation, few simulations, no loss by more hardware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP32
from npusim.base.records import replace
from npusim.call.tilings import choice
from npusim.call.tilings.choice import CHOICES, MOST_LEADING, MOST_SIMULATED, TRIED, chosen
from npusim.kernels.estimate import pipeline
from npusim.kernels.estimate.pipeline import Columns, records, table, times
from npusim.kernels.estimate.work import Work
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.machine.timing.run import new_l2, time_cycles
from npusim.reuse import programs
from npusim.reuse.programs import program_of
from tests.sampled import slow_if
from tools.tilings.larger_machines import (
    LIMIT,
    Gradient,
    Product,
    automatic,
    cycles_of,
    enlarged,
    kernel_of,
    layers,
    random_enlargements,
)

pytestmark = pytest.mark.compiled

#: Layers of ResNet-50 whose gradients differ most in what limits them.
LAYERS = (
    "res2_1x1_first",
    "res2_3x3",
    "res3_3x3_down",
    "res4_1x1_out",
    "res5_3x3",
    "res5_shortcut",
)

WHICH = ("dx", "dw")

#: Of 900 random enlargements those that are slower by more than ``LIMIT``, and the worst ratio.
MOST_SLOWER = 5
WORST = 1.11


def gradient(layer: str, which: str, batch: int) -> Gradient:
    return Gradient(layer, replace(layers("resnet50")[layer], n=batch), which)


@pytest.mark.parametrize("count", [1, 3])
def test_columns_of_candidates_can_be_written_to(count: int) -> None:
    """The compiled estimates take no others, and a column may be one number for all."""
    fields = Work._fields
    columns: Any = table(Work(np.ones(count), *(np.float64(3) for _ in fields[1:])))
    assert all(column.shape == (count,) and column.flags.writeable for column in columns)
    assert [float(column.sum()) for column in columns] == [count, *(3 * count for _ in fields[1:])]


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_leading_estimate_is_near_the_simulation(layer: str, which: str, device: str) -> None:
    machine = load_device(device)
    kernel = kernel_of(gradient(layer, which, 2))
    (estimate, best), *others = kernel.ranked(machine, machine.count("cube"), 8)
    assert estimate == pytest.approx(cycles_of(best, machine), rel=0.2)
    assert [estimate, *(time for time, _ in others)] == sorted(
        [estimate, *(time for time, _ in others)]
    )


@pytest.mark.parametrize("name", ["ascend910b2", "ascend910"])
@pytest.mark.parametrize("which", WHICH)
def test_estimates_know_that_cores_share_the_memories(which: str, name: str) -> None:
    """With a sixteenth of the bandwidth all cores together wait for it."""
    usual = load_device(name)
    assert usual.l2 is not None
    slow = usual.replace("l2.read", usual.l2.read_bytes_per_cycle / 16)
    slow = slow.replace("main_memory.read", usual.main_memory.read_bytes_per_cycle / 16)
    kernel = kernel_of(gradient("res5_3x3", which, 2))
    (estimate, best), *_ = kernel.ranked(slow, slow.count("cube"), 8)
    assert estimate == pytest.approx(cycles_of(best, slow), rel=0.2)


@pytest.mark.parametrize(("layer", "which"), [("res5_3x3", "dx")])
def test_estimates_know_a_third_slot_of_l0(layer: str, which: str) -> None:
    """A load to L0 that takes longer than a product makes no gap in the products after it.

    With three slots the estimate is 59,075 of 60,392 cycles.
    """
    machine = load_device("ascend910b2")
    kernel: Any = kernel_of(gradient(layer, which, 32))
    ranked: Any = kernel.ranked(machine, machine.count("cube"), MOST_LEADING)
    estimates = [min(t for t, k in ranked if k.tiling.l0_slots == slots) for slots in (2, 3)]
    best = [next(k for t, k in ranked if t == estimate) for estimate in estimates]
    cycles = [cycles_of(kernel, machine) for kernel in best]
    assert cycles[1] < 0.95 * cycles[0]
    assert estimates == pytest.approx(cycles, rel=0.025)


def of_unlike_columns(space: Any) -> Columns:
    """Candidates that go through all slabs for some columns first, of which cores have unlike."""
    t = space.spread(space.rows)
    passes = t["tiles_n"] // np.gcd(t["cores"], t["tiles_n"])
    return pipeline.chosen(t, np.flatnonzero((t["resident"] > 0) & (passes > 1)))


@pytest.mark.parametrize(("share", "rel"), [(1, 0.06), (4, 0.2)])
def test_estimates_know_cores_that_go_over_the_input_in_turn(share: int, rel: float) -> None:
    """A core has the widest columns alone, and a small L2 has lost the input at each pass.

    They were taken 12 % too short, and 62 % where the main memory is slow.
    """
    device = load_device("ascend310p")
    slow = device.replace("main_memory.read", device.main_memory.read_bytes_per_cycle / share)
    slow = slow.replace("l2.size", "2MiB") if share > 1 else slow
    shape = replace(layers("vgg16")["features.7"], n=2)
    kernel: Any = kernel_of(Gradient("features.7", shape, "dx"))
    (space,) = spaces(kernel, slow)
    some = of_unlike_columns(space)
    found = times(space.estimate(some), 3)
    best = np.argsort(found)[:3]
    for estimate, one in zip(found[best], records(pipeline.chosen(some, best)), strict=True):
        tried = replace(kernel, tiling=space.tiling(one))
        assert estimate == pytest.approx(cycles_of(tried, slow), rel=rel)


def test_estimates_know_that_write_backs_take_turns_with_reads() -> None:
    """The leading tiling was estimated at 255,353 cycles of 332,283, and 292,941 are enough."""
    machine = load_device("ascend910")
    (estimate, best), *_ = kernel_of(gradient("conv1", "dx", 32)).ranked(machine, 32, 8)
    assert estimate == pytest.approx(cycles_of(best, machine), rel=0.1)


def test_weights_of_a_group_stay_for_all_of_its_slabs() -> None:
    """They came anew for each slab, and a depth-wise gradient took 86,099 cycles."""
    layer = "features.14.conv.1.0"
    one = Gradient(layer, replace(layers("mobilenet_v2")[layer], n=32), "dx")
    assert automatic(kernel_of(one), load_device("ascend910b2"))[0] < 77_000


@pytest.mark.parametrize("device", ["ascend910", "ascend310p"])
def test_zeros_between_outputs_leave_with_these_where_ub_holds_both(device: str) -> None:
    """A kernel cleared them before, and gradients took 1.2 to 1.9 times as long."""
    best: Any
    cycles, best = automatic(kernel_of(gradient("res5_shortcut", "dx", 4)), load_device(device))
    assert not best.before
    cleared = replace(best, tiling=replace(best.tiling, zeros=False))
    assert cycles < 0.85 * cycles_of(cleared, load_device(device))


@pytest.mark.parametrize(
    ("device", "most", "near"), [("ascend910", 50_000, 0.1), ("ascend310p", 175_000, 0.12)]
)
def test_estimates_know_that_rows_leave_with_the_zeros_between(
    device: str, most: int, near: float
) -> None:
    """They took positions to leave one by one, and the gradient took 86,396 and 370,777 cycles.

    On the 310P stores wait 24,163 of 165,056 cycles for others and for what the L2 drives out,
    which the estimate, 151,869 of 170,356 cycles with launches, has of loads alone.
    """
    machine, kernel = load_device(device), kernel_of(gradient("res4_shortcut", "dx", 32))
    (estimate, best), *_ = kernel.ranked(machine, machine.count("cube"), 8)
    assert estimate == pytest.approx(cycles_of(best, machine), rel=near)
    assert automatic(kernel, machine)[0] < most


def test_of_several_images_outputs_without_input_are_cleared() -> None:
    """UB has room for the zeros of one: a candidate that was ranked far behind did not build."""
    machine = load_device("ascend910")
    kernel: Any = kernel_of(gradient("res5_shortcut", "dx", 2))
    (space,) = spaces(kernel, machine)
    some = space.spread(space.rows)
    several = np.flatnonzero(space.of_cut["images"][some["cut"]] > 1)[:1]
    tried = replace(kernel, tiling=space.tiling(*records(pipeline.chosen(some, several))))
    assert tried.before
    assert cycles_of(tried, machine)


@pytest.mark.parametrize(
    ("layer", "which", "batch"),
    [("res5_1x1_out", "dw", 4), ("res5_1x1_first", "dw", 2), ("res2_1x1_first", "dx", 32)],
)
def test_candidates_of_half_of_the_cores_are_among_those_of_all(
    layer: str, which: str, batch: int
) -> None:
    """Of 36 and 72 cores 16 or 17 are the fastest, in groups that share operands.

    As few candidates are simulated, the last is 0.3 % slower on 36, and the first 1.1 % on 72,
    where the fastest has an estimate above the time of the chosen one.
    """
    few, *more = (
        automatic(
            kernel_of(gradient(layer, which, batch)),
            load_device("ascend910b2").replace("groups", groups),
        )[0]
        for groups in (18, 36, 72)
    )
    assert max(more) <= 1.011 * few


def test_candidates_of_a_quarter_of_the_cores_are_too() -> None:
    """Of 128 cores those of 64 led nowhere, and 20 were chosen, which take 5.6 % longer than 16."""
    one, machine = gradient("res2_1x1_first", "dx", 32), load_device("ascend950pr")
    found = enlarged(one, machine, "groups", (Fraction(1), Fraction(4)))
    assert found is not None
    assert found.ratio <= 1.003


@pytest.mark.parametrize("sides", [(1024, 1024, 1024), (2048, 1024, 512)])
def test_a_faster_clock_is_no_loss(sides: tuple[int, int, int]) -> None:
    """Estimates of 11 cores were 15 % too short, and candidates of 16 taken to be like them."""
    machine = load_device("ascend910b2").replace("main_memory.read", "0.6TB/s")
    found = enlarged(Product(*sides), machine, "clock", (Fraction(13, 9), Fraction(5, 3)))
    assert found is not None
    assert found.ratio <= 1.005


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Cycles of the candidates simulated since, of which none are kept at first."""
    found: list[int] = []
    run = choice._Trial.run

    def counted(*given: Any) -> choice._Tried:
        tried = run(*given)
        found.append(tried.cycles or 0)
        return tried

    monkeypatch.setattr(choice._Trial, "run", counted)
    CHOICES.clear()
    return found


def test_a_few_are_simulated_once_and_the_fastest_is_chosen(timed: list[int]) -> None:
    machine = load_device("ascend910b2")
    counts = []
    for layer in LAYERS:
        kernel = kernel_of(gradient(layer, "dx", 4))
        before = len(timed)
        best = chosen(kernel, machine, tuple(range(machine.groups)))
        counts.append(len(timed) - before)
        assert 1 <= counts[-1] <= MOST_SIMULATED
        assert cycles_of(best, machine) == min(timed[before:])
        assert chosen(kernel, machine, tuple(range(machine.groups))) == best
        assert len(timed) - before == counts[-1], "what was chosen is kept"


def test_of_tilings_that_are_alike_one_is_simulated(
    timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A depth-wise input gradient had fourteen leading estimates of one tile, and all were slow."""
    looked_at: list[Any] = []
    run = choice._Trial.run

    def noted(trial: choice._Trial, kernels: Any, left: int) -> choice._Tried:
        looked_at.append(kernels[-1].tiling)
        return run(trial, kernels, left)

    monkeypatch.setattr(choice._Trial, "run", noted)
    machine = load_device("ascend910b2")
    most = 0
    for layer in LAYERS:
        looked_at.clear()
        chosen(kernel_of(gradient(layer, "dx", 4)), machine, tuple(range(machine.groups)))
        plain = {"base_k": 16, "unit_flag": False, "l0c_slots": 1}
        plain |= dict.fromkeys(("l1_slots", "weight_slots", "l0_slots"), 2)
        shapes = [replace(one, **plain) for one in looked_at]
        assert len(set(shapes)) == len(looked_at)
        most = max(most, len(looked_at))
    assert most > 1


def test_what_is_too_long_to_simulate_wins_over_nothing_that_was(
    timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its estimate was once held against simulated times, and it took 8 % longer than these."""
    monkeypatch.setattr(choice, "MOST_INSTRUCTIONS", 200_000)
    shape = replace(layers("vgg16")["features.24"], n=32)
    problem, rates = Gradient("features.24", shape, "dx"), (Fraction(1), Fraction(2))
    found = enlarged(problem, load_device("ascend910"), "paths.GM->L1.rate", rates)
    assert found is not None
    assert found.ratio <= LIMIT
    assert 0 in timed, "some were too long"
    assert found.before in timed
    assert found.after in timed


def test_the_program_of_the_choice_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_device("ascend910b2")
    groups = tuple(range(machine.groups))
    CHOICES.clear()
    TRIED.clear()
    best = chosen(kernel_of(gradient("res5_3x3", "dw", 1)), machine, groups)
    monkeypatch.setattr(programs, "build", None)
    first, second = (program_of(best, machine, groups) for _ in range(2))
    assert first.templates is second.templates
    assert first.device is not second.device, "each notes what is asked for its own time"


def test_a_program_is_taken_over_where_building_asked_for_no_other_figure() -> None:
    """A sweep of the main memory built every program anew at each point."""
    machine = load_device("ascend910b2")
    groups = tuple(range(machine.groups))
    best = chosen(kernel_of(gradient("res5_3x3", "dw", 1)), machine, groups)
    first = program_of(best, machine, groups)
    for path, value, same in (
        ("main_memory.read", "0.8TB/s", True),
        ("memories.L1.size", "2MiB", True),
        ("paths.GM->L1.startup", "100cycle", False),
    ):
        other = machine.replace(path, value)
        found, want = program_of(best, other, groups), build(best, other, groups)
        assert (found.templates is first.templates) == same, path
        assert found.device.digest() == other.digest()
        assert [*found.text()] == [*want.text()], path
        assert time_cycles(found, new_l2(other, "fast")) == time_cycles(want, new_l2(other, "fast"))


def spaces(kernel: Any, device: Device) -> list[Any]:
    """The candidates of a gradient of either kind."""
    return [*kernel.spaces(device, device.count("cube"), (False,) * len(kernel.tensors))]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("device", ["ascend910b2", slow_if(True, "ascend910")])
def test_more_l1_makes_no_gradient_slower(layer: str, device: str) -> None:
    for which in WHICH:
        kernel, times = kernel_of(gradient(layer, which, 4)), []
        for size in ("128KiB", "256KiB", "512KiB", "1MiB"):
            machine = load_device(device).replace("memories.L1.size", size)
            times.append(automatic(kernel, machine)[0])
        worst = max(after / before for before, after in pairwise(times))
        assert worst <= 1.02, (which, times)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
@pytest.mark.parametrize("layer", LAYERS)
def test_half_or_a_quarter_of_l1_is_never_faster(layer: str, device: str, batch: int) -> None:
    whole = load_device(device)
    size = whole.memory("L1").size_bytes
    for which in WHICH:
        for share in (2, 4):
            part = whole.replace("memories.L1.size", size // share)
            kernel = kernel_of(gradient(layer, which, batch))
            assert automatic(kernel, whole)[0] <= LIMIT * automatic(kernel, part)[0], which


def test_a_few_random_enlargements() -> None:
    """The first 20 of the 900 that the slow test goes through.

    One is slower by 2.6 %: the tilings of a strided filter gradient that lead are 10 to 13 % faster
    than estimated, so that only the first is simulated, 85,173 cycles; the second takes 83,093.
    """
    slower = [one for one in random_enlargements(20, 0) if one.ratio > LIMIT]
    text = "\n".join(map(str, slower))
    assert [str(one.problem) for one in slower] in ([], ["dw of res5_3x3_down, batch 32"]), text
    assert max((one.ratio for one in slower), default=1.0) <= 1.03, text


@pytest.mark.slow
def test_random_enlargements() -> None:
    """900 of them; docs/model/tilings.md says which are slower, by how much and why."""
    slower = [one for one in random_enlargements(900, 0) if one.ratio > LIMIT]
    found = "\n".join(map(str, slower))
    assert len(slower) <= MOST_SLOWER, found
    assert max((one.ratio for one in slower), default=1.0) <= WORST, found


def test_clearing_takes_as_few_cores_as_are_the_fastest() -> None:
    """As a chosen tiling needs it; the library clears on all cores."""
    target = Tensor("t", (200_000,), FP32, "out")
    few, all_cores = (
        npusim.simulate(MemSet(target, few=few), "ascend910b2").runs[0] for few in (True, False)
    )
    assert few.cores < all_cores.cores == 48
    assert few.cycles + few.launch_cycles < 0.6 * (all_cores.cycles + all_cores.launch_cycles)
    for cores in (few.cores - 2, few.cores + 2):
        other = npusim.simulate(MemSet(target), "ascend910b2", cores=range(cores // 2)).runs[0]
        assert few.cycles + few.launch_cycles <= 1.03 * (other.cycles + other.launch_cycles)


@pytest.mark.parametrize(("tiling", "cores"), [("auto", range(2, 24)), ("library", [48])])
def test_who_clears_on_all_cores(tiling: str, cores: Sequence[int]) -> None:
    x = npusim.spec((8, 64, 56, 56), "fp16")
    result = npusim.ops.convolution_backward(
        x, x, npusim.spec((64, 64, 3, 3), "fp16"), padding=1, device="ascend910b2",
        output_mask=(False, True, False), tiling={"conv_backprop_filter": tiling})  # fmt: skip
    (run,) = (run for run in result.runs if run.name == "mem_set")
    assert run.cores in cores


def test_estimates_know_what_the_call_left_in_the_l2() -> None:
    """All converted operands came from main memory, which made all tilings as slow as another."""
    x, dy = npusim.spec((32, 64, 56, 56), "fp16"), npusim.spec((32, 256, 56, 56), "fp16")
    w = npusim.spec((256, 64, 1, 1), "fp16")
    least = 60_000
    for size in ("256KiB", "512KiB", "2MiB"):
        device = npusim.load_device("ascend910b2", {"memories.L1.size": size})
        result = npusim.ops.convolution_backward(
            dy, x, w, output_mask=(False, True, False), device=device, timeline=False
        )
        (run,) = (run for run in result.runs if run.name == "conv_backprop_filter")
        cycles = run.cycles + run.launch_cycles
        assert cycles <= 1.02 * least, size
        least = min(least, cycles)
    assert least < 45_000, "it took 63,965 cycles with 512 KiB, 52,350 with 256 KiB"


def test_more_are_simulated_where_estimates_were_too_short(timed: list[int]) -> None:
    """The best estimates of a strided gradient are too short, that of the other is not."""
    machine = load_device("ascend910b2")
    counts = []
    for layer in ("res5_3x3_down", "res4_3x3"):
        timed.clear()
        chosen(kernel_of(gradient(layer, "dx", 1)), machine, tuple(range(machine.groups)))
        counts.append(len(timed))
    assert 1 <= counts[1] < counts[0] <= MOST_SIMULATED


def test_a_large_choice_takes_no_more_than_three_times_its_first() -> None:
    machine = load_device("ascend910b2")
    spent: list[tuple[int, int]] = []

    class Noted(choice._Trial):
        def run(self, kernels: Any, left: int) -> choice._Tried:
            tried = super().run(kernels, left)
            spent.append((left, tried.work))
            return tried

        def contenders(
            self, kernel: Kernel, few: int
        ) -> tuple[Iterable[tuple[float, Kernel]], Iterable[tuple[float, Kernel]]]:
            """Estimates that promise more than comes true."""
            leaders, of_lesser = super().contenders(kernel, few)
            return [(time / 2, one) for time, one in leaders], of_lesser

    trial = Noted(machine, tuple(range(machine.groups)), ())
    kernel = kernel_of(Product(8192, 4096, 4096))
    choice._best(kernel, trial, choice._with_before, simulated=True)
    first = spent[0][1]
    assert first > choice.FREE_INSTRUCTIONS
    assert spent[1][0] == min(choice.MOST_INSTRUCTIONS - first, choice.TIMES_FIRST * first)


def test_candidates_that_were_timed_are_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_device("ascend910b2")
    groups, kernel = tuple(range(machine.groups)), kernel_of(gradient("res5_3x3", "dw", 1))
    best = chosen(kernel, machine, groups)
    CHOICES.clear()
    monkeypatch.setattr(choice, "program_of", None)
    assert chosen(kernel, machine, groups) == best
