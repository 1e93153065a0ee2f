"""The executor: poison for what was never loaded, order between cores, accesses that miss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import FP16, FP32, INT32, DType
from npusim.base.errors import ProgramError
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Slot, Tensor
from npusim.machine.numerics.executor import execute
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import BufferHandle, Language
from tests.scripts import Scripted, tasks_of

Array = np.ndarray[Any, Any]
TINY, B2 = load_device("tiny"), load_device("ascend910b2")
N = 64
SIZE = N * 4


class Script(Scripted):
    """``body`` is one unit; the units of all cores are numbered ``task.u`` in the table's order."""

    name = "script"
    role = "vector"

    def __init__(
        self, body: Callable[[Script, Language, Any], None], cores: list[int],
        *, slots: int = 2, dtype: DType = FP32,
    ) -> None:  # fmt: skip
        self.body, self.table, self.slots, self.dtype = body, cores, slots, dtype
        self.x, self.y = Tensor("x", (4 * N,), dtype), Tensor("y", (4 * N,), dtype, "out")

    def tasks(self, cores: int) -> Tasks[Any]:
        core = np.array(self.table, np.int64)
        u = np.arange(len(core))
        return tasks_of(core, {"u": u, "core": core}, {"at": u * SIZE})

    def buffers(self, k: Language) -> None:
        self.ub: BufferHandle = k.buffer(
            "UB", (SIZE // self.dtype.bytes,), self.dtype, slots=self.slots, name="ub"
        )

    def emit(self, k: Language, task: Any) -> None:
        self.body(self, k, task)

    def load(self, k: Language, where: int = 0, *, base: str = "") -> Slot:
        slot = self.ub.next()
        k.data_move(slot.at(0, SIZE), self.x.at(where, SIZE, base=base), self.dtype)
        return slot

    def store(
        self, k: Language, slot: Slot, where: int = 0, *, base: str = "", atomic: bool = False
    ) -> None:
        target = self.y.at(where, SIZE, base=base)
        k.data_move(target, slot.at(0, SIZE), self.dtype, atomic=atomic)


def run(kernel: Script, groups: tuple[int, ...] = (0, 1), x: Array | None = None) -> Array:
    """The y that the kernel leaves, as rows of N."""
    kind = kernel.dtype.numpy
    x = np.arange(4 * N).astype(kind) if x is None else x.astype(kind)
    y = np.zeros(4 * N, kind)
    execute(build(kernel, TINY, groups), {"x": x, "y": y})
    return y.reshape(4, N)


# -- poison ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FP32, INT32])
def test_a_forgotten_load_shows(dtype: DType) -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        s.store(k, s.ub.next())

    y = run(Script(body, [0], dtype=dtype))[0]
    assert np.isnan(y).all() if dtype is FP32 else (y == -1).all()


def test_a_slot_is_poisoned_again_each_time_it_is_acquired() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        slot = s.load(k) if u.u == 0 else s.ub.next()
        s.store(k, slot, base="at")

    y = run(Script(body, [0, 0], slots=1))
    assert y[0].tolist() == list(range(N))
    assert np.isnan(y[1]).all()


def test_slots_skipped_without_use_are_poisoned_too() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        s.load(k)
        s.ub.next()
        s.ub.next()  # the loaded slot's turn again
        s.store(k, s.ub.last())

    assert np.isnan(run(Script(body, [0], slots=2))[0]).all()


def test_the_last_slot_survives_into_later_units() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        if u.u == 0:
            s.load(k, SIZE)
        s.store(k, s.ub.last(), base="at")

    y = run(Script(body, [0, 0, 0], slots=3))
    assert (y[:3] == np.arange(N, 2 * N)).all()


def test_looking_back_finds_older_turns_across_units() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        s.load(k, base="at")
        if u.u >= 2:
            s.store(k, s.ub.last(2), base="at")

    y = run(Script(body, [0, 0, 0, 0], slots=3))
    assert y[2].tolist() == list(range(N))
    assert y[3].tolist() == list(range(N, 2 * N))


# -- order -------------------------------------------------------------------------------------


def test_atomics_apply_in_unit_order_core_after_core() -> None:
    """fp32 sums depend on order: 1 + 2**24 - 2**24 is 0 or 1."""
    big = 2.0**24
    x = np.repeat([big, 1.0, -big, 0.0], N)

    def body(s: Script, k: Language, u: Any) -> None:
        s.store(k, s.load(k, base="at"), atomic=True)

    assert (run(Script(body, [0, 0, 1]), x=x)[0] == 0.0).all()  # the 1 is lost first
    # units 0 and 2 on the first core: core 0 adds them before core 1 adds its 1
    assert (run(Script(body, [0, 1, 0]), x=x)[0] == 1.0).all()


def test_a_core_barrier_orders_cores_both_ways() -> None:
    """Each core stores its piece; after the barrier each reads the other's."""

    def body(s: Script, k: Language, u: Any) -> None:
        slot = s.load(k, base="at")
        s.store(k, slot, u.core * SIZE)
        k.core_barrier()
        other = s.ub.next()
        k.data_move(other.at(0, SIZE), s.y.at((1 - u.core) * SIZE, SIZE), FP32)
        s.store(k, other, (2 + u.core) * SIZE)

    y = run(Script(body, [0, 1]))
    np.testing.assert_array_equal(y[2], y[1])
    np.testing.assert_array_equal(y[3], y[0])
    assert y[1, 0] == N


def test_flags_between_cores_order_a_later_core_before_an_earlier_one() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        if u.core == 1:
            s.store(k, s.load(k, SIZE))
            k.core_set_flag("MTE3", 5)
        else:
            k.core_wait_flag("MTE2", 5)
            slot = s.ub.next()
            k.data_move(slot.at(0, SIZE), s.y.at(0, SIZE), FP32)
            s.store(k, slot, SIZE)

    assert run(Script(body, [0, 1]))[1].tolist() == list(range(N, 2 * N))


def test_flags_count_and_a_wait_takes_as_many_as_it_says() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        if u.core:
            s.store(k, s.load(k, base="at"), atomic=True)
            k.core_set_flag("MTE3", 0)
        else:
            k.core_wait_flag("MTE2", 0, count=3)
            slot = s.ub.next()
            k.data_move(slot.at(0, SIZE), s.y.at(0, SIZE), FP32)
            s.store(k, slot, SIZE)

    y = run(Script(body, [0, 1, 2, 3]), groups=(0, 1, 2, 3))
    assert y[1, 0] == N + 2 * N + 3 * N


def test_a_flag_of_group_scope_reaches_the_group_only() -> None:
    """The vector cores 0 and 1 of a 910B2 form group 0, 2 and 3 group 1."""

    def body(s: Script, k: Language, u: Any) -> None:
        if u.core == 0:
            k.core_set_flag("MTE3", 1, "group")
        elif u.core == s.waiting:  # type: ignore[attr-defined]
            k.core_wait_flag("MTE2", 1)

    for waiting in (1, 2):
        kernel = Script(body, [0, 1, 2])
        kernel.waiting = waiting  # type: ignore[attr-defined]
        program = build(kernel, B2, (0, 1))
        arrays = {"x": np.zeros(4 * N, np.float32), "y": np.zeros(4 * N, np.float32)}
        if waiting == 1:
            execute(program, arrays)
        else:
            with pytest.raises(ProgramError, match=r"script hangs: aiv2 wait for a barrier or fl"):
                execute(program, arrays)


# -- what cannot run ---------------------------------------------------------------------------


def test_a_flag_nobody_sets_is_a_hang_that_names_the_cores() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        k.core_wait_flag("MTE2", 2)

    with pytest.raises(
        ProgramError, match=r"^script hangs: core0, core1 wait for a barrier or fla"
    ):
        run(Script(body, [0, 1]))


def test_a_wait_for_more_flags_than_are_set_is_a_hang() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        if u.core:
            k.core_set_flag("MTE3", 0)
        else:
            k.core_wait_flag("MTE2", 0, count=s.count)  # type: ignore[attr-defined]

    for count in (3, 4):
        kernel = Script(body, [0, 1, 2, 3])
        kernel.count = count  # type: ignore[attr-defined]
        if count == 3:
            run(kernel, groups=(0, 1, 2, 3))
        else:
            with pytest.raises(ProgramError, match=r"script hangs: core0 wait"):
                run(kernel, groups=(0, 1, 2, 3))


def test_cores_stuck_at_a_barrier_that_another_never_reaches_hang() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        if u.core == 1:
            k.core_wait_flag("MTE2", 2)
        k.core_barrier()

    with pytest.raises(ProgramError, match=r"script hangs: core0, core1"):
        run(Script(body, [0, 1]))


@pytest.mark.parametrize(("where", "end"), [(4 * SIZE - 4, 4 * SIZE + SIZE - 4), (-4, SIZE - 4)])
def test_an_access_outside_a_tensor_names_the_kernel_line(where: int, end: int) -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        k.data_move(s.ub.next().at(0, SIZE), s.x.at(where, SIZE), FP32)

    line = body.__code__.co_firstlineno + 1
    match = (
        rf"^test_executor\.py:{line}: data_move .*: bytes {where}\.\.{end} of x\[.*\] lie outside "
        rf"its {4 * SIZE} B; check the task's base offset and extents"
    )
    with pytest.raises(ProgramError, match=match):
        run(Script(body, [0]))


def test_a_base_that_leads_outside_is_found_too() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        s.load(k, SIZE, base="at")

    with pytest.raises(ProgramError, match=rf"bytes {4 * SIZE}\.\.{5 * SIZE} of x\[at\+{SIZE}"):
        run(Script(body, [0, 0, 0, 0]))


def test_overflow_and_nan_are_results_without_warnings() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        slot = s.load(k)
        region = slot.at(0, SIZE)
        k.vec_binary("add", region, region, region, FP16)
        k.vec_binary("sub", region, region, region, FP16)  # inf - inf
        s.store(k, slot)

    kernel = Script(body, [0], dtype=FP16)
    execute_with = np.full(4 * N, 60000.0)
    assert np.isnan(run(kernel, x=execute_with)[:2]).all()
