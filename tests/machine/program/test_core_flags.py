"""Flags between cores of a group: a core waits for all that set one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP32
from npusim.base.errors import ProgramError, RaceError
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.numerics.executor import execute
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel, Plan
from npusim.machine.program.language import Language
from npusim.machine.program.races import Accesses, check_races
from npusim.results import Result
from tests.scripts import tasks_of

SIZE = 256
#: Three cores in one group.
DEVICE = load_device("tiny", {"cores.core.per_group": "3", "groups": "1"})

Body = Callable[[Any, Language, Any], None]


class Told(Kernel):
    """``body`` twice on each core of a group."""

    name, role = "told", "vector"

    def __init__(self, body: Body) -> None:
        self.body, self.y = body, Tensor("y", (8, SIZE // 4), FP32, "inout")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.y,)

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        self.ub = k.buffer("UB", (SIZE // 4,), FP32)
        core = np.repeat(np.arange(cores), 2)
        tasks = tasks_of(core, {"core": core, "number": np.tile([0, 1], cores)}, {})
        return Plan(tasks, partial(self.body, self, k))

    def load(self, k: Language, row: int) -> None:
        k.data_move(self.ub.next(), self.y.at(row * SIZE, SIZE), FP32)

    def store(self, k: Language, row: int) -> None:
        k.vec_dup(self.ub.next(), 1.0)
        k.data_move(self.y.at(row * SIZE, SIZE), self.ub.last(), FP32)


def run(body: Body, engine: str) -> Result:
    spec = npusim.spec((8, SIZE // 4), "fp32")
    return npusim.simulate(Told(body), DEVICE, spec, cores=1, engine=engine)


def race(body: Body) -> str:
    """What the search for races says; empty if nothing."""
    try:
        check_races(Accesses(build(Told(body), DEVICE, (0,))))
    except RaceError as error:
        return str(error)
    return ""


def handing(
    kernel: Any, k: Language, task: Any, *, scope: str = "group", count: int = 1, early: bool = True
) -> None:
    """Core 1 has little to do, core 2 reads a row again and again, which core 0 writes anew."""
    if task.core == 0:
        k.core_wait_flag("MTE3", 0, count)
        kernel.store(k, task.number)
    else:
        if task.core == 2:
            for _ in range(5):
                kernel.load(k, task.number)
        if task.core == 2 or early:
            k.core_set_flag("MTE2", 0, scope)


def ends(result: Result, core: int, op: str, column: str) -> list[int]:
    table = result.timeline
    return [int(at) for at in table[(table.core == f"core{core}") & (table.op == op)][column]]


@pytest.mark.compiled
@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_one_that_runs_ahead_does_not_stand_in_for_another(engine: str) -> None:
    result = run(handing, engine)
    early, late = (ends(result, core, "core_set_flag", "end") for core in (1, 2))
    assert early[1] < late[0]  # it has set the flag twice before the other has once
    assert ends(result, 0, "core_wait_flag", "start") == late


def test_the_search_for_races_knows_it() -> None:
    assert race(handing) == ""
    found = race(partial(handing, early=False))
    assert found == ""  # core 2 alone sets it then


def test_a_flag_for_all_cores_counts_whoever_sets_it() -> None:
    found = race(partial(handing, scope="all", count=2))
    assert "bytes 0..256 of y" in found
    assert "core core0, pipe MTE3" in found
    assert "core core2, pipe MTE2" in found


def test_a_wait_too_few_is_a_race() -> None:
    def body(kernel: Any, k: Language, task: Any) -> None:
        if task.core or not task.number:
            handing(kernel, k, task)
        else:
            kernel.store(k, 1)

    assert "bytes 256..512 of y" in race(body)


def test_sets_by_two_pipes_of_a_core_come_in_any_order() -> None:
    def body(kernel: Any, k: Language, task: Any, waits: int) -> None:
        if task.number:
            return
        if task.core == 0:
            k.core_wait_flag("MTE3", 0, waits)
            kernel.store(k, 0)
        elif task.core == 1:
            kernel.load(k, 0)
            k.core_set_flag("MTE2", 0, "group")
            k.core_set_flag("V", 0, "group")

    assert "bytes 0..256 of y" in race(partial(body, waits=1))
    assert race(partial(body, waits=2)) == ""


def uneven(kernel: Any, k: Language, task: Any) -> None:
    """Core 0 waits twice; core 1 sets the flag twice, core 2 once."""
    if task.core == 0:
        k.core_wait_flag("MTE3", 0)
    elif task.core == 1 or task.number:
        k.core_set_flag("MTE2", 0, "group")


@pytest.mark.compiled
@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_a_core_that_sets_it_too_seldom_hangs_who_waits(engine: str) -> None:
    with pytest.raises(ProgramError, match=r"hangs at cycle \d+: core0 pipe MTE3.*core_wait_flag"):
        run(uneven, engine)


def test_numbers_wait_for_all_too() -> None:
    y = np.zeros((8, SIZE // 4), np.float32)
    with pytest.raises(ProgramError, match="told hangs: core0 wait for a barrier or flag"):
        execute(build(Told(uneven), DEVICE, (0,)), {"y": y})


def test_a_flag_has_one_scope() -> None:
    def body(kernel: Any, k: Language, task: Any) -> None:
        k.core_set_flag("MTE2", 4, "group" if task.core else "all")

    line = body.__code__.co_firstlineno + 1
    match = (
        rf"^test_core_flags\.py:{line}: core_set_flag #4 \(group\) on MTE2: flag #4 is set with "
        r"scope 'all' too; give each scope a flag of its own$"
    )
    with pytest.raises(ProgramError, match=match):
        build(Told(body), DEVICE, (0,))


@pytest.mark.parametrize("more", [0, 1])
def test_a_flag_counts_to_fifteen(more: int) -> None:
    """Of two tasks that set it eight times each, the first may be done before core 0 waits."""

    def ahead(kernel: Any, k: Language, task: Any) -> None:
        if task.core == 0:
            k.core_wait_flag("MTE3", 0, 8 if task.number == 0 else 7 + more)
        elif task.core == 1:
            for _ in range(8 if task.number == 0 else 7 + more):
                k.core_set_flag("MTE2", 0, "group")

    def one_run() -> None:
        execute(build(Told(ahead), DEVICE, (0,)), {"y": np.zeros((8, SIZE // 4), np.float32)})

    if not more:
        one_run()
        return
    told = (
        r"test_core_flags\.py:\d+: .*core1 may set flag 0 16 times before core0 waits.*counts to "
        r"15 \(sync\.core_event_count\)"
    )
    with pytest.raises(ProgramError, match=told):
        one_run()
