"""Races through global memory: each kind is found with both lines; what is ordered is no race."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError, RaceError
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.mix import MatmulFinish
from npusim.kernels.matmul.tiling import Tiling
from npusim.kernels.parts.hand_over import HandOver
from npusim.kernels.vector.bias_grad import BiasGrad
from npusim.machine.isa.cube import Mmad
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Alike, Kernel, Plan, Tasks
from npusim.machine.program.language import BufferHandle, Language
from npusim.machine.program.order import Place, ProgramOrder
from npusim.machine.program.races import Accesses, check_races
from tests.scripts import tasks_of

SIZE = 256  # bytes of a row of y
B2 = npusim.load_device("ascend910b2")

Body = Callable[..., None]


class Meeting(Kernel):
    """Every core runs ``tasks`` tasks of ``body``, which gets the core's number and the task's."""

    name, role = "meeting", "vector"

    def __init__(self, body: Body, tasks: int = 1, cores: int = 2, slots: int = 2) -> None:
        self.body, self.count, self.cores, self.slots = body, tasks, cores, slots
        self.y = Tensor("y", (64, SIZE // 4), FP32, "inout")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.y,)

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        self.ub: BufferHandle = k.buffer("UB", (SIZE // 4,), FP32, slots=self.slots, name="ub")
        core = np.repeat(np.arange(self.cores), self.count)
        number = np.tile(np.arange(self.count), self.cores)
        tasks = tasks_of(core, {"core": core, "number": number}, {"own": core * SIZE})
        return Plan(tasks, partial(self.body, self, k))

    def load(self, k: Language, row: int = 0, *, base: str = "", first: int = 0) -> None:
        k.data_move(self.ub.next(), self.y.at(row * SIZE + first, SIZE, base=base), FP32)

    def store(
        self, k: Language, row: int = 0, *, base: str = "", atomic: bool = False, first: int = 0
    ) -> None:
        target = self.y.at(row * SIZE + first, SIZE, base=base)
        k.data_move(target, self.ub.last(), FP32, atomic=atomic)


def race(body: Any, device: Any = B2, groups: tuple[int, ...] = (0,), **options: Any) -> str:
    """What the error says; empty without one."""
    program = build(Meeting(body, **options), device, groups)
    try:
        check_races(Accesses(program))
    except RaceError as error:
        return str(error)
    return ""


def line(body: Any, text: str) -> str:
    """``file.py:line`` of the first line of a function with a text."""
    lines, start = inspect.getsourcelines(body)
    return f"test_races.py:{start + next(i for i, one in enumerate(lines) if text in one)}"


# -- between cores -----------------------------------------------------------------------------


def test_two_cores_write_the_same_bytes() -> None:
    def body(kernel: Meeting, k: Language, task: Any) -> None:
        k.vec_dup(kernel.ub.next(), 1.0)
        kernel.store(k, first=task.core * 128)  # rows overlap by half

    found = race(body)
    assert found.count(line(body, "kernel.store")) == 0  # the helper's own line is named
    assert found.count("test_races.py:") == 2
    assert "bytes 128..256 of y" in found
    assert "core aiv0, pipe MTE3" in found
    assert "core aiv1, pipe MTE3" in found
    assert "k.core_barrier()" in found
    assert "places of their own" in found


def test_a_core_reads_what_another_writes() -> None:
    def body(kernel: Meeting, k: Language, task: Any) -> None:
        if task.core == 0:
            k.vec_dup(kernel.ub.next(), 1.0)
            k.data_move(kernel.y.at(0, SIZE), kernel.ub.last(), FP32)
        else:
            k.data_move(kernel.ub.next(), kernel.y.at(64, SIZE), FP32)

    found = race(body)
    writes, reads = line(body, "kernel.y.at(0"), line(body, "kernel.y.at(64")
    assert found.startswith(f"{reads}: data_move ub#0[0:256B] <- y[64:256B] (core aiv1, pipe MTE2")
    assert f"{writes}: data_move y[0:256B] <- ub#0[0:256B] (core aiv0, pipe MTE3" in found
    assert "both access bytes 64..256 of y" in found
    assert "k.core_set_flag follow the one that has to come first, on its pipe (MTE3 or" in found
    assert "k.core_wait_flag precede the other" in found
    assert "places of their own" not in found


def test_atomic_adds_commute_with_each_other_only() -> None:
    def adds(kernel: Meeting, k: Language, task: Any) -> None:
        kernel.load(k, 1, base="own")
        kernel.store(k, 0, atomic=True)

    def mixed(kernel: Meeting, k: Language, task: Any) -> None:
        k.vec_dup(kernel.ub.next(), 1.0)
        kernel.store(k, 0, atomic=task.core == 1)

    def reads(kernel: Meeting, k: Language, task: Any) -> None:
        if task.core == 0:
            kernel.load(k, 0)
        else:
            k.vec_dup(kernel.ub.next(), 1.0)
            kernel.store(k, 0, atomic=True)

    assert race(adds) == ""
    assert "bytes 0..256 of y" in race(mixed)
    assert "bytes 0..256 of y" in race(reads)


def phases(kernel: Meeting, k: Language, task: Any, *, meet: bool) -> None:
    """Every core fills a row, then reads that of the other."""
    k.vec_dup(kernel.ub.next(), 1.0)
    kernel.store(k, 0, base="own")
    if meet:
        k.core_barrier()
    kernel.load(k, 1 - task.core)


def test_a_barrier_between_phases() -> None:
    assert race(partial(phases, meet=True)) == ""
    found = race(partial(phases, meet=False))
    assert "k.core_barrier()" in found
    assert "such pairs" not in found


def test_a_barrier_orders_what_comes_before_it_with_what_comes_after() -> None:
    def body(kernel: Meeting, k: Language, task: Any) -> None:
        """Core 1 writes before the last barrier, core 0 reads behind the first only."""
        k.vec_dup(kernel.ub.next(), 1.0)
        k.core_barrier()
        if task.core == 0:
            kernel.load(k, 0)
        k.core_barrier()
        if task.core == 1:
            kernel.store(k, 0)

    def late(kernel: Meeting, k: Language, task: Any) -> None:
        k.vec_dup(kernel.ub.next(), 1.0)
        k.core_barrier()
        if task.core == 0:
            kernel.load(k, 0)
        if task.core == 1:
            kernel.store(k, 0)
        k.core_barrier()

    assert race(body) == ""
    assert "bytes 0..256 of y" in race(late)


def handing(kernel: Meeting, k: Language, task: Any, *, give: bool, back: bool) -> None:
    """Core 0 stores a row again and again, core 1 loads it each time."""
    if task.core == 0:
        k.vec_dup(kernel.ub.next(), 1.0)
        if back and task.number:
            k.core_wait_flag("MTE3", 1)
        kernel.store(k, 0)
        if give:
            k.core_set_flag("MTE3", 0)
    else:
        if give:
            k.core_wait_flag("MTE2", 0)
        kernel.load(k, 0)
        if back:
            k.core_set_flag("MTE2", 1)


@pytest.mark.parametrize(
    ("give", "back"),
    [(True, True), (True, False), (False, True)],  # without a flag back a row is overwritten unread
)
def test_flags_between_cores(give: bool, back: bool) -> None:
    found = race(partial(handing, give=give, back=back), tasks=5)
    assert bool(found) == (not (give and back))
    if found:
        assert line(handing, "kernel.store(k, 0)") not in found
        assert found.count("test_races.py:") == 2
        assert "pipe MTE3" in found
        assert "pipe MTE2" in found


def test_a_flag_orders_only_what_its_pipe_has_seen() -> None:
    def body(kernel: Meeting, k: Language, task: Any) -> None:
        if task.core == 0:
            k.vec_dup(kernel.ub.next(), 1.0)
            kernel.store(k, 0)
            k.core_set_flag("V", 0)  # V does not wait for MTE3
        else:
            k.core_wait_flag("MTE2", 0)
            kernel.load(k, 0)

    assert "bytes 0..256 of y" in race(body)


def test_what_a_core_was_told_goes_on_to_a_third() -> None:
    def body(kernel: Meeting, k: Language, task: Any) -> None:
        if task.core == 0:
            k.vec_dup(kernel.ub.next(), 1.0)
            kernel.store(k, 0)
            k.core_set_flag("MTE3", 0)
        elif task.core == 1:
            k.core_wait_flag("MTE2", 0)
            k.core_set_flag("MTE2", 1)
        else:
            k.core_wait_flag("MTE2", 1)
            kernel.load(k, 0)

    assert race(body, groups=(0, 1), cores=3) == ""


def test_one_count_of_two_senders_tells_of_neither() -> None:
    def body(kernel: Meeting, k: Language, task: Any, counts: int) -> None:
        if task.core < 2:
            k.vec_dup(kernel.ub.next(), 1.0)
            kernel.store(k, 0, base="own")
            k.core_set_flag("MTE3", 0)
        else:
            k.core_wait_flag("MTE2", 0, counts)
            kernel.load(k, 0)

    assert race(partial(body, counts=2), groups=(0, 1), cores=3) == ""
    assert "y[0:256B]" in race(partial(body, counts=1), groups=(0, 1), cores=3)


# -- pipes of one core -------------------------------------------------------------------------


def again(kernel: Meeting, k: Language, task: Any, *, how: str) -> None:
    """A store, and a load of the same row into another slot."""
    k.vec_dup(kernel.ub.next(), 1.0)
    k.data_move(kernel.y.at(0, SIZE), kernel.ub.last(), FP32)
    if how == "flag":
        k.set_flag("MTE3", "MTE2", 0)
        k.wait_flag("MTE3", "MTE2", 0)
    if how == "other flag":
        k.set_flag("V", "MTE2", 0)
        k.wait_flag("V", "MTE2", 0)
    if how == "barrier":
        k.pipe_barrier()
    k.data_move(kernel.ub.next(), kernel.y.at(128, SIZE), FP32)


@pytest.mark.parametrize("how", ["flag", "barrier"])
def test_pipes_that_are_ordered(how: str) -> None:
    assert race(partial(again, how=how), cores=1) == ""


@pytest.mark.parametrize("how", ["", "other flag"])
def test_pipes_that_are_not(how: str) -> None:
    found = race(partial(again, how=how), cores=1)
    assert line(again, "kernel.y.at(0") in found
    assert line(again, "kernel.y.at(128") in found
    assert "bytes 128..256 of y" in found
    assert 'k.set_flag("MTE3", "MTE2", EVENT)' in found
    assert "core_" not in found


def test_a_shared_slot_orders_pipes() -> None:
    """With one slot the load waits for the store that reads the slot before."""
    assert race(partial(again, how=""), cores=1, slots=1) == ""


def test_a_race_between_tasks() -> None:
    def body(kernel: Meeting, k: Language, task: Any) -> None:
        kernel.load(k, 0)
        kernel.store(k, 0)

    assert "its unit 1" in race(body, cores=1, tasks=3)
    assert race(body, cores=1, tasks=3, slots=1) == ""
    assert race(body, cores=1, tasks=1) == ""  # the store waits for the slot


def test_rows_between_rows_do_not_meet() -> None:
    def body(kernel: Meeting, k: Language, task: Any) -> None:
        k.vec_dup(kernel.ub.next(), 1.0)
        rows = kernel.y.at(task.core * 32, 32, rows=8, pitch=64)
        k.data_move(rows, kernel.ub.last(), FP32)

    assert race(body) == ""


# -- the order itself --------------------------------------------------------------------------


def test_the_unit_flag_lets_neither_overtake() -> None:
    """The drain starts behind the mmad's start and so behind the load of its operands."""
    a, b = Tensor("a", (16, 16), FP32), Tensor("b", (16, 16), FP32)
    tiling = Tiling(base_m=16, base_n=16, base_k=16, unit_flag=True)
    kernel = Matmul(tiling, a, b, Tensor("c", (16, 16), FP32, "out"))
    order = ProgramOrder(build(kernel, B2, (0,)))
    (template,) = order.program.templates
    mmad = next(i for i, one in enumerate(template.instructions) if isinstance(one, Mmad))
    last = len(template.instructions) - 1
    assert order.before(Place(0, 0, 0), Place(0, 0, last))
    assert not order.before(Place(0, 0, mmad), Place(0, 0, last))


# -- where it is looked for --------------------------------------------------------------------


def test_simulate_looks_unless_told_not_to() -> None:
    kernel = Meeting(partial(phases, meet=False))
    y = np.zeros(kernel.y.shape, np.float32)
    with pytest.raises(RaceError, match=r"nothing orders them"):
        npusim.simulate(kernel, B2, y, cores=1, engine="simpy")
    npusim.simulate(kernel, B2, y, cores=1, engine="simpy", check=False)
    npusim.simulate(kernel, B2, cores=1, engine="simpy")  # no numbers
    with pytest.raises(ArgumentError, match="check is 'yes'; it is True or False"):
        npusim.simulate(kernel, B2, y, check="yes")


def test_tasks_with_addresses_alone_share_a_template() -> None:
    class Copies(Kernel):
        name, role = "copies", "vector"
        x = Tensor("x", (1024, 8), FP32)
        y = Tensor("y", (1024, 8), FP32, "out")

        def __init__(self, step: int) -> None:
            self.step = step

        @property
        def tensors(self) -> tuple[Tensor, ...]:
            return self.x, self.y

        def plan(self, k: Language, cores: int) -> Plan[Any]:
            ub = k.buffer("UB", (8,), FP32)

            def emit(_: Any) -> None:
                k.data_move(ub.next(), self.x.at(0, 32, base="at"), FP32)
                k.data_move(self.y.at(0, 32, base="at"), ub.last(), FP32)

            at = np.arange(0, 1024 * 32, 32) // self.step * self.step
            return Plan(Tasks(np.arange(1024) % cores, Alike, bases={"at": at}), emit)

    check_races(Accesses(build(Copies(32), B2, (0, 1))))
    with pytest.raises(RaceError, match=r"bytes 0\.\.32 of y"):
        check_races(Accesses(build(Copies(64), B2, (0, 1))))


# -- shipped kernels without what orders them --------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "pipes"),
    [("", ""), ("take", "FIX MTE2"), ("reuse", "FIX MTE2")],
)
def test_a_hand_over_needs_each_of_its_flags(
    broken: str, pipes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cube cores hand 4 tiles each to the vector cores of their group in two blocks."""
    if broken:
        monkeypatch.setattr(HandOver, broken, lambda *_: None)
    shape, tiling = (64, 32, 64), Tiling(base_m=16, base_n=32, base_k=32, strided=True)
    a, b = Tensor("a", shape[:2], FP16), Tensor("b", shape[1:], FP16)
    work = Tensor("work", (4, 16, 32), FP32, "out")
    product = Matmul(tiling, a, b, work, handed=HandOver(64, 64, 2, 2))
    program = build(MatmulFinish(product, Tensor("out", (64, 64), FP16, "out")), B2, (0, 1))
    if not broken:
        check_races(Accesses(program))
        return
    with pytest.raises(RaceError, match="of work in kernel matmul_finish") as error:
        check_races(Accesses(program))
    assert all(f"pipe {pipe}" in str(error.value) for pipe in pipes.split())


def test_a_sum_in_two_phases_needs_its_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    dy, db = Tensor("dy", (8, 4, 512), FP16), Tensor("db", (4,), FP16, "out")
    partial = Tensor("partial", (4, 8), FP32, "out")
    kernel = BiasGrad(dy, db, partial)
    check_races(Accesses(build(kernel, B2, (0, 1, 2, 3))))
    monkeypatch.setattr(Language, "core_barrier", lambda _: None)
    with pytest.raises(RaceError, match="of partial in kernel bias_grad"):
        check_races(Accesses(build(kernel, B2, (0, 1, 2, 3))))
