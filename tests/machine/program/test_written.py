"""Mistakes of a kernel of one's own that would only show as wrong numbers: each names its line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ProgramError
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel, Plan
from npusim.machine.program.language import BufferHandle, Language
from tests.scripts import tasks_of

N = 64  # elements of a task


@dataclass(frozen=True)
class Double(Kernel):
    """y = 2 x in two tasks of one core, as ``body`` has it."""

    x: Tensor
    y: Tensor
    body: Callable[..., None]

    name: ClassVar[str] = "double"
    role: ClassVar[str] = "vector"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        ub = k.buffer("UB", (4 * N,), None, slots=2, name="ub")
        number = np.arange(2)
        tasks = tasks_of(number * 0, {"number": number}, {"at": number * N * self.x.dtype.bytes})
        return Plan(tasks, lambda task: self.body(k, ub, task, *self.tensors))


def simulated(body: Callable[..., None], dtype: Any = FP16, **options: Any) -> npusim.Result:
    x, y = Tensor("x", (2 * N,), dtype), Tensor("y", (2 * N,), dtype, "out")
    data = np.arange(2 * N).astype(dtype.numpy)
    return npusim.simulate(Double(x, y, body), "tiny", data, engine="simpy", **options)


def line(body: Any, text: str) -> str:
    """``file.py:line`` of the first line of a function with a text."""
    lines, start = inspect.getsourcelines(body)
    return f"test_written.py:{start + next(i for i, one in enumerate(lines) if text in one)}: "


def right(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    size = N * x.dtype.bytes
    k.data_move(ub.next(), x.at(0, size, base="at"), x.dtype)
    k.vec_scalar("muls", ub.last().at(0, size), ub.last(), 2.0, x.dtype)
    k.data_move(y.at(0, size, base="at"), ub.last(), x.dtype)


def nothing(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, 2 * N, base="at"), FP16)


def half(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, 2 * N, base="at"), FP16)
    if task.number:
        k.data_move(y.at(0, 2 * N, base="at"), ub.last(), FP16)


def elements(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, 2 * N), FP16)
    k.data_move(y.at(0, 2 * N), ub.last(), FP16)


def elements_loaded(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next().at(0, N), x.at(0, N, base="at"), FP16)
    k.vec_scalar("muls", ub.last().at(0, 2 * N), ub.last(), 2.0, FP16)
    k.data_move(y.at(0, 2 * N, base="at"), ub.last(), FP16)


def elements_apart(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next().at(0, N), x.at(3, N, base="at"), FP16)


def rows_apart(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next().at(0, 16, rows=2, pitch=32), x.at(0, 16, rows=2, pitch=33), FP16)


def added(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, 4 * N, base="at"), FP32)
    k.data_move(y.at(0, 4 * N, base="at"), ub.last(), FP32, atomic=True)


def unread(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, 2 * N, base="at"), FP16)
    k.data_move(y.at(0, 2 * N, base="at"), ub.next(), FP16)


def untaken(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(y.at(0, 2 * N, base="at"), ub.last(), FP16)


def older(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, 2 * N, base="at"), FP16)
    k.data_move(y.at(0, 2 * N, base="at"), ub.last(), FP16)
    k.data_move(y.at(0, 2 * N, base="at"), ub.last(1), FP16)


def other_type(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, 2 * N, base="at"), FP32)


def unknown_field(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub.next(), x.at(0, task.size, base="at"), FP16)


def a_list(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move([1, 2], x.at(0, 2 * N, base="at"), FP16)  # type: ignore[arg-type]


def the_buffer(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
    k.data_move(ub, x.at(0, 2 * N, base="at"), FP16)  # type: ignore[arg-type]


WRONG = {
    nothing: ("", "nothing is written to y, a tensor of role 'out'; store it"),
    half: ("k.data_move(y", r"128 of 256 B of y, a tensor of role 'out', are not written, from"),
    elements: (
        "k.data_move(y",
        r"128 of 256 B of y, .* from byte 128 on; .* bytes: 128 elements of fp16 are 256 B\)",
    ),
    elements_loaded: (
        "k.vec_scalar",
        r"only the first 64 B of ub#0\[0:128B\] are written; .* 64 elements of fp16 are 128 B",
    ),
    elements_apart: (
        "k.data_move",
        r"from byte 3 of x on, rows 0 B apart, are no whole elements of fp16; offsets, bases and",
    ),
    rows_apart: ("k.data_move", r"from byte 0 of x on, rows 33 B apart, are no whole elements"),
    unread: ("ub.next(), FP16", r"nothing has written ub#1\[0:128B\] since the slot was taken"),
    untaken: ("k.data_move", r"reads a slot of ub that no earlier task of core core0 has taken"),
    older: ("ub.last(1)", r"reads a slot of ub that no earlier task of core core0 has taken"),
    other_type: ("k.data_move", r"moves fp32, x holds fp16; name the tensor's type"),
    unknown_field: ("k.data_move", r"a Row has no field 'size' \(it has: number\)"),
    a_list: ("k.data_move", r"a list \[1, 2\] is no operand; an operand is a slot"),
    the_buffer: ("k.data_move", r"is no operand; an operand is a slot \(buffer.next\(\)"),
}  # fmt: skip


@pytest.mark.parametrize("body", WRONG, ids=lambda body: body.__name__)
def test_each_mistake_is_one_error_with_its_line(body: Callable[..., None]) -> None:
    text, message = WRONG[body]
    with pytest.raises(ProgramError, match=message) as error:
        simulated(body)
    where = line(body, text) if text else line(Double, "def plan")
    assert str(error.value).startswith(where)


def test_an_output_that_is_only_added_to() -> None:
    with pytest.raises(
        ProgramError, match=r"^test_written\.py.*: y, .* is only added to from byte 0"
    ):
        simulated(added, FP32)


def test_what_is_right_or_not_checked_passes() -> None:
    (y,) = simulated(right).outputs or ()
    assert y is not None
    assert np.array_equal(y, 2 * np.arange(2 * N))
    for body in (nothing, half, unread):
        assert simulated(body, check=False).outputs is not None


def test_a_workspace_may_be_larger_than_its_use() -> None:
    def body(k: Language, ub: BufferHandle, task: Any, x: Tensor, y: Tensor) -> None:
        k.data_move(ub.next(), x.at(0, 2 * N), FP16)
        k.data_move(y.at(0, 2 * N), ub.last(), FP16)
        k.pipe_barrier()
        k.data_move(ub.next(), y.at(0, 2 * N), FP16)
        k.pipe_barrier()

    assert simulated(body).cycles > 0
