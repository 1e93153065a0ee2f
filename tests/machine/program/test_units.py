"""Loops and what is issued once: how little is issued, and each mistake with its line."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP32
from npusim.base.errors import ProgramError
from npusim.base.records import growing
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Slot, Tensor
from npusim.machine.isa.vector import VecDup
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel, Plan
from npusim.machine.program.language import BufferHandle, Language
from npusim.machine.program.unwritten import _Written, check_slots
from tests.scripts import tasks_of

pytestmark = pytest.mark.compiled

ROWS, N = 7, 64  # of x, and elements in a row
TINY = load_device("tiny")


@dataclass(frozen=True)
class Sums(Kernel):
    """y = the sum of the rows of x, as ``body`` has it, twice on one core."""

    x: Tensor
    y: Tensor
    body: Callable[..., None]

    name: ClassVar[str] = "sums"
    role: ClassVar[str] = "vector"

    @classmethod
    def of(cls, body: Callable[..., None]) -> Sums:
        x, y = Tensor("x", (2 * ROWS, N), FP32), Tensor("y", (2, N), FP32, "out")
        return cls(x, y, body)

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        ub, total = (k.buffer("UB", (N,), FP32, slots=2, name=name) for name in ("ub", "total"))
        number = np.arange(2)
        bases = {"x": number * ROWS * N * 4, "y": number * N * 4}
        tasks = tasks_of(number * 0, {"number": number}, bases)
        return Plan(tasks, lambda task: self.body(k, ub, total, *self.tensors))


def simulated(body: Callable[..., None], **options: Any) -> npusim.Result:
    data = np.arange(2 * ROWS * N, dtype=np.float32).reshape(2 * ROWS, N)
    return npusim.simulate(Sums.of(body), "tiny", data, cores="0", **options)


def line(body: Any, text: str) -> str:
    """``file.py:line`` of the first line of a function with a text."""
    lines, start = inspect.getsourcelines(body)
    return f"test_units.py:{start + next(i for i, one in enumerate(lines) if text in one)}: "


def add(k: Language, ub: BufferHandle, sums: Slot, x: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, N * 4, base="x"), FP32)
    k.vec_binary("add", sums, sums, ub.last(), FP32)


def looped(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    sums = total.next()
    k.vec_dup(sums, 0.0)
    for _ in k.loop(ROWS, x=N * 4):
        add(k, ub, sums, x)
    k.data_move(y.at(0, N * 4, base="y"), sums, FP32)


def first_apart(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    for step in k.loop(ROWS, x=N * 4):
        sums = total.next() if step.first else total.last()
        if step.first:
            k.data_move(sums, x.at(0, N * 4, base="x"), FP32)
        else:
            add(k, ub, sums, x)
        if step.last:
            k.data_move(y.at(0, N * 4, base="y"), sums, FP32)


def once(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    sums = total.next()
    k.vec_dup(sums, 0.0)
    for _ in k.loop(ROWS, x=N * 4):
        k.once(add, k, ub, sums, x)
    k.once(k.data_move, y.at(0, N * 4, base="y"), sums.at(0, N * 4), FP32)


def last_behind(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    k.vec_dup(total.next(), 0.0)
    for _ in k.loop(ROWS, x=N * 4):
        k.data_move(ub.next(), x.at(0, N * 4, base="x"), FP32)
        before = total.last()
        k.vec_binary("add", total.next(), before, ub.last(), FP32)
    k.data_move(y.at(0, N * 4, base="y"), total.last(), FP32)


@pytest.mark.parametrize("body", [looped, first_apart, once, last_behind])
@pytest.mark.parametrize("engine", ["simpy", "fast"])
def test_a_loop_sums_rows(body: Callable[..., None], engine: str) -> None:
    result = simulated(body, engine=engine)
    data = np.arange(2 * ROWS * N, dtype=np.float32).reshape(2, ROWS, N)
    assert result.outputs is not None
    np.testing.assert_array_equal(result.outputs[0], data.sum(axis=1))


@pytest.mark.parametrize(
    ("body", "emitted", "most"),
    [
        (looped, [1, 2, 1, 1, 2, 1], ROWS + 2),
        (first_apart, [1, 2, 3, 1, 2, 3], ROWS),
        (once, [1, 2, 1, 1], ROWS + 2),  # the sums of the second task are those of the first
    ],
)
def test_the_body_is_issued_once_for_iterations_that_are_alike(
    body: Callable[..., None], emitted: list[int], most: int
) -> None:
    program = build(Sums.of(body), TINY, (0,))
    assert [len(template.instructions) for template in program.templates] == emitted
    assert [len(one) for one in program.tasks] == [most, most]
    assert program.instructions == 2 * sum(emitted[unit] for unit in program.tasks[0].tolist())


def test_what_was_issued_once_goes_with_the_program() -> None:
    """Python need not look for circles of objects to be rid of it."""

    def issued(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
        held.append(weakref.ref(k))
        once(k, ub, total, x, y)

    held: list[weakref.ref[Language]] = []
    with growing():
        build(Sums.of(issued), TINY, (0,))
        assert held
        assert all(ref() is None for ref in held)


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (np.float32(0), np.float32(-0.0)), (1, 1.0), (True, 1)]
)
def test_what_is_issued_once_tells_numbers_apart_that_python_holds_to_be_equal(
    one: Any, other: Any
) -> None:
    seen: list[Any] = []

    def body(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
        for value in (one, other, one, float("nan"), float("nan")):
            k.once(filled_with, k, total.next(), value)
        k.data_move(y.at(0, N * 4, base="y"), total.last().at(0, N * 4), FP32)

    def filled_with(k: Language, slot: Slot, value: Any) -> None:
        seen.append(value)
        k.vec_dup(slot, float(value))

    program = build(Sums.of(body), TINY, (0,))
    assert [str(value) for value in seen] == [str(one), str(other), "nan"]
    issued = [i for template in program.templates for i in template.instructions]
    filled = [str(i.value) for i in issued if isinstance(i, VecDup)]
    assert filled == [str(float(value)) for value in (one, other, np.nan)]


def test_a_long_loop_of_several_units_is_checked_like_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
        sums = total.next()
        k.vec_dup(sums, 0.0)
        for _ in k.loop(7):
            for _ in k.loop(count):
                k.once(add, k, ub, sums, x)
                k.once(add, k, ub, sums, x)
                k.vec_binary("add", sums, sums, sums, FP32)
            k.vec_scalar("muls", sums, sums, 2.0, FP32)
        k.data_move(y.at(0, N * 4, base="y"), sums if filled else ub.next(), FP32)

    checked: list[int] = []
    check = _Written._check

    def counted(self: _Written, template: Any) -> None:
        checked[-1] += 1
        check(self, template)

    monkeypatch.setattr(_Written, "_check", counted)
    for filled, count in ((True, 5), (True, 5000), (False, 5000)):
        program = build(Sums.of(body), TINY, (0,))
        assert len(program.tasks[0]) == 7 * (3 * count + 1) + 2
        checked.append(0)
        if filled:
            check_slots(program)
        else:
            with pytest.raises(ProgramError, match=r"nothing has written ub#\d+"):
                check_slots(program)
    assert checked[1] <= checked[0] < 100
    assert checked[2] < checked[0]  # the first of two tasks has the mistake


def of_before(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    slot = ub.next()
    k.data_move(slot, x.at(0, N * 4, base="x"), FP32)
    for _ in k.loop(ROWS, x=N * 4):
        k.vec_scalar("adds", total.next(), slot, 1.0, FP32)
        k.data_move(ub.next(), x.at(0, N * 4, base="x"), FP32)


def too_far(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    for _ in k.loop(ROWS, x=N * 4 + 64):
        k.data_move(ub.next(), x.at(0, N * 4, base="x"), FP32)


def no_base(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    for _ in k.loop(ROWS, z=N * 4):
        k.vec_dup(ub.next(), 0.0)


def left(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    for _ in k.loop(ROWS):
        k.vec_dup(ub.next(), 0.0)
        break


def no_operand(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    sums = total.next()
    k.once(lambda: k.vec_dup(sums, 0.0))


def unwritten(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    sums = total.next()
    for _ in k.loop(ROWS, x=N * 4):
        add(k, ub, sums, x)


def of_an_iteration(k: Language, ub: BufferHandle, total: Any, x: Tensor, y: Tensor) -> None:
    for _ in k.loop(2, x=N * 4):
        row = ub.next()
        k.data_move(row, x.at(0, N * 4, base="x"), FP32)
    k.data_move(y.at(0, N * 4, base="y"), row, FP32)


def known_before(k: Language, ub: BufferHandle, total: Any, x: Tensor, y: Tensor) -> None:
    slot = total.next()
    k.once(k.vec_dup, slot.at(), 1.0)
    for step in k.loop(ROWS):
        if step.first:
            k.vec_dup(ub.next(), 1.0)
        k.once(k.vec_dup, slot.at(), 1.0)
        total.next()


def half(k: Language, ub: BufferHandle, total: Any, x: Tensor, y: Tensor) -> None:
    for _ in k.loop(ROWS, x=N * 4.0):  # type: ignore[arg-type]
        k.vec_dup(ub.next(), 0.0)


def listed(k: Language, ub: BufferHandle, total: Any, x: Tensor, y: Tensor) -> None:
    k.once(lambda slots: k.vec_dup(slots[0], 0.0), [ub.next()])


def endless(k: Language, ub: BufferHandle, total: BufferHandle, x: Tensor, y: Tensor) -> None:
    for _ in k.loop(10**7):
        k.vec_dup(ub.next(), 0.0)


@pytest.mark.parametrize(
    ("body", "where", "says"),
    [
        (of_before, "for _", r"ub#0.*, used at test_units.py:\d+, was taken before the iteration, "
         r"which takes 1 of the 2 slots of ub: in iteration 2 of 7 it would be another; take it "
         r"with last\(\)"),
        (too_far, "k.data_move", r"lie outside its 3584 B, in iteration 6 of its loop"),
        (no_base, "for _", r"the task table has no base 'z' for a loop to move.*has: x, y"),
        (left, "for _", r"a loop was left before its end"),
        (of_an_iteration, "y.at", r"ub#0\S* was taken in an iteration that stands for several; "
         r"take it with last\(\) behind them"),
        (known_before, "for step", r"total#0\S*, used at test_units.py:\d+, was taken before the "
         r"iteration, which takes 1 of the 2 slots of total: in iteration 3 of 7 it would be"),
        (half, "for _", r"x of a loop is 256.0; it must be a whole number"),
        (listed, "k.once", r"unhashable type: 'list': operands of once are compared; give a tuple"),
        (no_operand, "k.once", r"total#0\S* was taken before what is issued once, and is none"),
        (unwritten, "", r"test_units.py:\d+: vec_add .*nothing has written total#0"),
        (endless, "for _", r"10,000,000 iterations of 1 units in one task, more than 2,000,000"),
    ],
)  # fmt: skip
def test_a_bad_loop_is_an_error_with_its_line(body: Any, where: str, says: str) -> None:
    with pytest.raises(ProgramError, match=says) as error:
        simulated(body)
    if where:
        assert str(error.value).startswith(line(body, where))
