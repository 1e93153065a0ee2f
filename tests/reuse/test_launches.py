"""Runs and choices that are kept: what a changed figure touches is simulated anew, nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import npusim
from npusim.base.dtypes import FP16
from npusim.base.records import replace
from npusim.call.tilings.choice import CHOICES, TRIED
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.program import Program
from npusim.machine.timing.run import new_l2, time_program
from npusim.machine.timing.trace import KernelRun, random_starts, starting
from npusim.reuse import programs
from npusim.reuse.answers import Answers, answers_in
from npusim.reuse.launches import CONTENTS, LEFT, RUNS, CachedLaunches
from npusim.reuse.programs import LONG_PROGRAMS, PROGRAMS, content
from npusim.reuse.store import opened
from npusim.reuse.tracked_device import TrackedDevice, value_of
from tests.machine.program.test_recost import Copy, other, variants
from tests.machine.timing import test_engines_agree as engines
from tests.sampled import some

pytestmark = pytest.mark.compiled


def convolution(device: Device, **options: Any) -> npusim.Result:
    """Both gradients of a small layer: conversions, clearing, automatic tilings, casts."""
    x, dy = npusim.spec((2, 32, 9, 9), "fp16"), npusim.spec((2, 48, 9, 9), "fp16")
    w = npusim.spec((48, 32, 3, 3), "fp16")
    given: dict[str, Any] = {"timeline": False, "rules": "hardware", **options}
    return npusim.ops.convolution_backward(dy, x, w, padding=1, device=device, **given)


def product(device: Device, **options: Any) -> npusim.Result:
    a, b = npusim.spec((200, 130), "fp16"), npusim.spec((130, 90), "fp16")
    return npusim.ops.matmul(a, b, device=device, timeline=False, **options)


def on_dsp(device: Device, **options: Any) -> npusim.Result:
    call: Callable[..., npusim.Result] = engines.CALLS["dsp"]["deconv_grad_filter shared"]
    return call(device=device, timeline=False, **options)


CALLS: dict[str, tuple[Callable[..., npusim.Result], str]] = {
    "convolution": (convolution, "ascend910b2"),
    "convolution of one kind of core": (convolution, "ascend910"),
    "product": (product, "tiny"),
    "dsp": (on_dsp, "ft78ne"),
}


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    forget()


def forget() -> None:
    """Forget all that this process keeps in memory."""
    for kept in (RUNS, LEFT, CONTENTS, CHOICES, TRIED, PROGRAMS, LONG_PROGRAMS):
        kept.clear()


@contextmanager
def forgetful() -> Iterator[None]:
    """Nothing is found while it lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Answers, "find", lambda *_: None)
        yield


@contextmanager
def simulated() -> Iterator[list[str]]:
    """The names of the kernels that are simulated while it lasts."""
    found: list[str] = []

    def counted(program: Program, *given: Any, **named: Any) -> KernelRun:
        found.append(program.kernel)
        return time_program(program, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npusim.machine.timing.run.time_program", counted)
        yield found


def told(call: Callable[..., npusim.Result], device: Device) -> str:
    """All that a call says, or why it cannot run."""
    try:
        return json.dumps(call(device).to_json(), sort_keys=True)
    except npusim.NpusimError as error:
        return f"{type(error).__name__}: {error}"


# -- what is found is what a simulation says -----------------------------------------------------


@pytest.mark.drawn
@pytest.mark.parametrize("name", CALLS)
def test_what_is_kept_equals_a_simulation_whatever_figures_change(name: str) -> None:
    """A walk through devices: a figure changes, or goes back to what it was."""
    call, base = CALLS[name]
    rng = Random(name)
    start = load_device(base)
    changed: list[str] = []
    found = 0
    for _ in range(some(16)):
        if changed and rng.random() < 0.4:
            changed.remove(rng.choice(changed))
        else:
            changed.append(rng.choice([one for one in variants(base) if one not in changed]))
        device = start
        for path in changed:
            device = other(device, path) or device
        with simulated() as names:
            have = told(call, device)
        found += not names
        with forgetful():
            assert have == told(call, device), changed
    assert found > 1, "some of the figures are touched by nothing"


@pytest.mark.drawn
@pytest.mark.parametrize("name", CALLS)
def test_a_figure_that_nothing_asked_for_changes_nothing(name: str) -> None:
    """Each figure by itself: known again or not, the call says what a simulation says."""
    call, base = CALLS[name]
    device = load_device(base)
    call(device)
    again = set()
    for path in Random(name).sample([*variants(base)], some(24)):
        variant = variants(base)[path]
        with simulated() as names:
            have = told(call, variant)
        if names:
            continue
        again.add(path)
        with forgetful():
            assert have == told(call, variant), path
    assert again, "energies and moves that no instruction makes, to begin with"


@pytest.mark.parametrize(
    "path", ["l2.energy", "main_memory.size", "paths.L0C->L1.startup", "sync.core_barrier"]
)
def test_what_a_call_does_not_touch_costs_no_simulation(path: str) -> None:
    device = load_device("ascend910b2")
    first = convolution(device)
    variant = other(device, path)
    assert variant is not None
    with simulated() as names:
        assert convolution(variant).cycles == first.cycles
        assert not names
        slower = device.replace("paths.GM->UB.startup", 9999)
        assert convolution(slower).cycles > first.cycles
        assert "trans_data" in names


# -- what a run depends on besides figures -------------------------------------------------------


def test_kernels_launched_before_count() -> None:
    device = load_device("tiny").replace("main_memory.read", "1B/cycle")
    with simulated() as names:
        cold = product(device)
        known = len(names)
        warm = product(device, start="warm")
        assert len(names) > known
        known = len(names)
        assert product(device, start="warm").cycles == warm.cycles
        assert len(names) == known
    assert cold.cycles > warm.cycles


def launched(device: Device, kernels: list[MemSet]) -> CachedLaunches:
    launches = CachedLaunches(device, tuple(range(device.groups)))
    for kernel in kernels:
        if launches.known(kernel) is None:
            launches.time(kernel, launches.build(kernel))
    return launches


CLEARS = [MemSet(Tensor(name, (64, 64), FP16, "out")) for name in "abc"]


def test_a_kernel_begins_with_the_l2_that_is_kept_of_those_before() -> None:
    device = load_device("tiny")
    launched(device, CLEARS[:2])
    with simulated() as names:
        full = launched(device, CLEARS)
        assert names == ["mem_set"] * 2, "the second once more, as nobody asked what it leaves"
        full.known(CLEARS[0])  # asks what the third leaves
        names.clear()
        last = launched(device, [*CLEARS, MemSet(Tensor("d", (64,), FP16, "out"))])
        assert names == ["mem_set"]
        CONTENTS.clear()
        again = launched(device, [*CLEARS, MemSet(Tensor("e", (64,), FP16, "out"))])
        assert names == ["mem_set"] * 5, "without what the L2 held all of them run"
    with forgetful():
        assert last.l2.content()[:-1] == again.l2.content()[:-1]
        assert last.l2.content()[:-1] == launched(device, CLEARS).l2.content()


def test_another_l2_before_a_kernel_is_another_run() -> None:
    """Of a smaller L2 the room counts: what fits it is known, the first that does not is new."""
    device = load_device("tiny")
    launched(device, CLEARS)
    smaller = device.replace("l2.size", "16KiB")
    with simulated() as names:
        found = launched(smaller, CLEARS)
    assert names == ["mem_set"]
    with forgetful():
        assert found.l2.content() == launched(smaller, CLEARS).l2.content()
    resident = sum(mask.bit_count() for _, _, mask, _ in found.l2.content())
    assert smaller.l2 is not None
    assert resident * smaller.l2.sector_bytes <= 16 * 1024


def test_an_l2_with_room_for_all_is_as_good_as_any_other() -> None:
    """Nothing that a larger L2 would drop or keep otherwise is simulated again, or chosen anew."""
    device = load_device("ascend910b2").replace("l2.size", "96MiB")
    first = convolution(device)
    for size in ("48MiB", "384MiB"):
        with simulated() as names:
            found = convolution(device.replace("l2.size", size))
        assert not names
        assert found.runs == first.runs
    with simulated() as names:
        convolution(device.replace("l2.size", "32KiB"))
    assert names, "operands have no room"


def test_other_starts_and_the_reference_engine_are_always_simulated() -> None:
    device = load_device("tiny")
    product(device)
    with simulated() as names:
        product(device)
        assert not names
        with starting(random_starts(3)):
            product(device)
        assert names
        names.clear()
        product(device, engine="simpy")
        assert names


def test_kernels_of_ones_own_are_not_known_by_their_content() -> None:
    assert content(MemSet(Tensor("a", (4,), FP16, "out"))) is not None
    own: Kernel = Copy()
    assert content(own) is None
    launches = CachedLaunches(load_device("tiny"), (0,))
    launches.time(own, launches.build(own))
    assert len(RUNS) == 0


# -- devices that note what is asked -------------------------------------------------------------


def test_a_device_that_notes_says_what_the_device_says() -> None:
    device = load_device("ascend910b2")
    seen = TrackedDevice(device)
    watched = seen.device
    assert watched.name == device.name
    assert seen.names == frozenset()
    assert watched.path("L1", "L0A", "load3d").rate == device.path("L1", "L0A", "load3d").rate
    assert watched.digest() == device.digest()
    assert watched.cube is not None
    assert "fp16" in watched.cube.rates
    assert watched.cube.rates.get("fp64") is None
    assert ("cube", "rates", "*") in seen.names
    assert ("paths", "L1->L0A.load3d", "bytes_per_cycle") in seen.names
    assert ("paths", "L1->L0A.load3d", "startup_cycles") not in seen.names
    for name in seen.names:
        assert value_of(device, name) == value_of(load_device("ascend910b2"), name)
    without = replace(device, cube=None)
    assert value_of(without, ("cube", "rates", "*")) == "missing"


def test_a_memory_that_stands_for_main_memory_is_known_by_its_place() -> None:
    device = load_device("ft78ne")
    there = device.with_operands_in("shared_memory")
    seen = TrackedDevice(there)
    assert seen.device.main_memory_name == there.main_memory_name != device.main_memory_name
    assert ("main_memory_key",) in seen.names
    new_l2(seen.device, "fast")


# -- on disk -------------------------------------------------------------------------------------


def test_what_is_kept_in_a_file_is_found_by_another_process(tmp_path: Path) -> None:
    file, device = tmp_path / "runs.sqlite", load_device("ascend910b2")
    with answers_in(file):
        first = convolution(device)
        with answers_in(tmp_path / "other.sqlite"):
            assert not (tmp_path / "other.sqlite").exists()
    with opened(file, "runs") as kept:
        assert len(kept) > 10
    forget()
    with answers_in(file), simulated() as names:
        again = convolution(device)
        assert names == []
    assert again.to_json() == first.to_json()
    forget()
    with answers_in(file), simulated() as names:
        convolution(device.replace("cube.startup", "3cycle"))
    assert set(names) == {"conv_backprop_input", "conv_backprop_filter"}, "the L2s are in the file"
    forget()
    with simulated() as names:
        convolution(device)
    assert names, "the file is left alone outside"


def test_a_short_run_is_known_with_its_timeline() -> None:
    """A tuner that asks for the same product again waited for a second simulation."""
    forget()
    device, kernel = load_device("tiny"), MemSet(Tensor("x", (64, 16), FP16, "out"))
    first = CachedLaunches(device, (0,))
    made = first.time(kernel, first.build(kernel), timeline=None)
    assert made.run.timeline is not None
    again = CachedLaunches(device, (0,)).known(kernel, timeline=None)
    assert again is not None
    assert again.run.timeline is made.run.timeline
    assert CachedLaunches(device, (0,)).known(kernel, timeline=True) is None
    plain = CachedLaunches(device, (0,)).known(kernel, timeline=False)
    assert plain is not None
    assert plain.run.timeline is None
    other = device.replace("launch.kernel", "9us")
    assert CachedLaunches(other, (0,)).known(kernel, timeline=None) is None


def test_a_call_timed_again_takes_over_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a variant of other costs nothing is built; what is sent elsewhere has no programs."""
    for answers in (RUNS, CHOICES, PROGRAMS):
        answers.clear()
    device = load_device("ascend910b2")
    variant = device.replace("pipe.V", "x2")
    result = product(device)
    assert result.replay is not None

    def build(*_: Any) -> Program:
        raise AssertionError("built again")

    with monkeypatch.context() as patched:
        patched.setattr(programs, "build", build)
        us = result.replay.time_us(variant)
    sent = pickle.dumps(result.replay)
    assert b"npusim.machine.program.program" not in sent
    PROGRAMS.clear()
    assert pickle.loads(sent).time_us(variant) == us
