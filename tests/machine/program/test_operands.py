"""Operands that a chip would not take: each is an error with the kernel's line, also in timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ProgramError, RaceError
from npusim.machine.isa.operands import Tensor
from npusim.machine.program import recorder
from npusim.machine.program.kernel import Kernel, Plan
from npusim.machine.program.language import Language
from tests.scripts import tasks_of

X = Tensor("x", (4096,), FP16)
Y = Tensor("y", (2, 64), FP32, "inout")


@dataclass(frozen=True)
class Body(Kernel):
    """``body`` in each of two tasks of a core, with buffers in all memories."""

    body: Callable[..., None]
    x: Tensor = X
    y: Tensor = Y

    name: ClassVar[str] = "body"
    role: ClassVar[str] = "cube"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        sizes = {"L1": 4096, "L0A": 4096, "L0B": 4096, "L0C": 4096, "UB": 4096}
        buffers = {name: k.buffer(name, (size,), None, name=name) for name, size in sizes.items()}
        buffers["typed"] = k.buffer("UB", (64,), FP32, slots=2, name="typed")
        number = np.arange(2)
        tasks = tasks_of(number * 0, {"number": number}, {"at": number * 256})
        return Plan(tasks, lambda task: self.body(k, buffers, task))


def vector(k: Language, b: Any, task: Any) -> None:
    k.vec_scalar("muls", b["UB"].next().at(0, 64), b["UB"].last().at(2, 64), 2.0, FP16)


def vector_rows(k: Language, b: Any, task: Any) -> None:
    k.vec_dup(b["UB"].next().at(0, 32, rows=3, pitch=48), 0.0)


def behind(k: Language, b: Any, task: Any) -> None:
    k.vec_dup(b["UB"].next().behind(36).at(0, 32), 0.0)


def loaded(k: Language, b: Any, task: Any) -> None:
    k.data_move(b["UB"].next().at(0, 20, rows=3, pitch=20), X.at(0, 20, rows=3, pitch=24), FP16)


def burst(k: Language, b: Any, task: Any) -> None:
    k.data_move(b["UB"].next().at(0, 60), X.at(0, 20, rows=3, pitch=24), FP16)


def fractal(k: Language, b: Any, task: Any) -> None:
    k.load2d(b["L0A"].next().at(32, 512), b["L1"].next().fractals(0, 1), FP16)


def accumulator(k: Language, b: Any, task: Any) -> None:
    a, w, c = (b[name].next() for name in ("L0A", "L0B", "L0C"))
    k.mmad(c.at(64, 1024), a, w, 16, 16, 16, FP16, init=True)


def drained(k: Language, b: Any, task: Any) -> None:
    out, c = Y.at(0, 32, rows=16, pitch=32), b["L0C"].next()
    k.fixpipe(out, c.behind(32), 16, 8, FP32, staging=None, nd=True)


def typed(k: Language, b: Any, task: Any) -> None:
    k.vec_dup(b["typed"].next(), 1.0, FP16)


def endless(k: Language, b: Any, task: Any) -> None:
    while True:
        k.vec_dup(b["typed"].next(), 1.0)


def left_up(k: Language, b: Any, task: Any) -> None:
    if task.number:
        k.set_flag("V", "MTE3", 1)


kept: list[Any] = []


def of_another_task(k: Language, b: Any, task: Any) -> None:
    kept.append(b["typed"].next())
    k.vec_dup(kept[0], 1.0)


GRAIN = r"operands of {} in {} of \w+, and their rows, begin at multiples of {} B: lay it out at "
WRONG = {
    vector: r"UB#0\[2:64B\] begins at byte 2; " + GRAIN.format("vec_muls", "UB", 32) + "byte 32",
    vector_rows: "has rows 48 B apart; "
    + GRAIN.format("vec_dup", "UB", 32)
    + "byte 0 with rows 64 B",
    behind: "begins at byte 36; " + GRAIN.format("vec_dup", "UB", 32),
    loaded: "has rows 20 B apart; " + GRAIN.format("data_move", "UB", 32),
    burst: "has rows 20 B apart; " + GRAIN.format("data_move", "UB", 32),
    fractal: "begins at byte 32; " + GRAIN.format("load2d", "L0A", 512),
    accumulator: "begins at byte 64; " + GRAIN.format("mmad", "L0C", 1024),
    drained: "begins at byte 32; " + GRAIN.format("drain", "L0C", 64),
    typed: r"takes typed#0\[0:256B\] for fp16, buffer typed holds fp32; name that type, convert",
    endless: "^{line}1,000 instructions in one task; a loop of emit may not end",
    left_up: r'core core0 leaves the flag up, .* follow it by k.wait_flag\("V", "MTE3", 1\)',
    of_another_task: r"typed#0\[0:256B\] belongs to another task",
}


@pytest.mark.parametrize("body", WRONG, ids=lambda body: body.__name__)
@pytest.mark.parametrize("timing", [True, False], ids=["timing", "numbers"])
def test_what_no_chip_takes_is_an_error_with_its_line(
    body: Callable[..., None], timing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_INSTRUCTIONS", 1000)
    kept.clear()
    last = body.__code__.co_firstlineno + len(set(_lines(body))) - 1
    place = f"test_operands.py:{last}: "
    x, y = npusim.spec(X.shape, "fp16"), npusim.spec(Y.shape, "fp32")
    arrays = (x, y) if timing else (np.zeros(X.shape, np.float16), np.zeros(Y.shape, np.float32))
    with pytest.raises(ProgramError, match=WRONG[body].format(line=place)) as error:
        npusim.simulate(Body(body), "tiny", *arrays, engine="simpy")
    assert str(error.value).startswith(place)


def _lines(body: Callable[..., None]) -> list[int]:
    """Lines of a function, the first one included."""
    return [line for _, _, line in body.__code__.co_lines() if line]


def simulated(body: Callable[..., None]) -> npusim.Result:
    arrays = np.ones(X.shape, np.float16), np.zeros((2, 64), np.float32)
    return npusim.simulate(Body(body), "tiny", *arrays, engine="simpy")


def test_what_chips_take_is_no_error() -> None:
    """A drain from any row of a fractal, masked lanes of a row, bytes as elements of any type."""

    def body(k: Language, b: Any, task: Any) -> None:
        a, w, c = (b[name].next() for name in ("L0A", "L0B", "L0C"))
        for slot, source in ((a, b["L1"].next()), (w, b["L1"].last())):
            k.data_move(source, X.at(0, 4096), FP16)
            k.load2d(slot, source.fractals(1, 1), FP16)
        k.mmad(c, a, w, 16, 16, 16, FP16, init=True)
        k.fixpipe(Y.at(0, 64, base="at"), c.behind(64), 1, 16, FP32, staging=None, nd=True)
        row = b["UB"].next().at(0, 64)
        k.vec_dup(row, 0.0, FP32)
        k.vec_dup(b["UB"].last().at(12, 8), 5.0, FP32, masked=True)
        k.data_move(Y.at(64, 64, base="at"), row, FP32)

    (y,) = simulated(body).outputs or ()
    assert y is not None
    np.testing.assert_array_equal(y[:, :16], 16)
    np.testing.assert_array_equal(y[:, 16:32], [np.isin(np.arange(16), (3, 4)) * 5] * 2)


def test_an_interrupt_in_emit_names_the_line() -> None:
    def body(k: Language, b: Any, task: Any) -> None:
        raise KeyboardInterrupt

    line = body.__code__.co_firstlineno + 1
    with pytest.raises(KeyboardInterrupt, match=f"^test_operands.py:{line}: the kernel was being"):
        simulated(body)


def test_a_role_is_one_of_three() -> None:
    with pytest.raises(ProgramError, match="tensor y has role 'output'; it is one of in, out, ino"):
        Tensor("y", (4,), FP16, "output")


STEPS = {
    "store": lambda k, b: k.data_move(Y.at(0, 256, base="at"), b["typed"].last(), FP32),
    "set": lambda k, b: k.set_flag("MTE3", "MTE2", 0),
    "wait": lambda k, b: k.wait_flag("MTE3", "MTE2", 0),
    "load": lambda k, b: k.data_move(b["UB"].next().at(0, 256), Y.at(0, 256, base="at"), FP32),
}


@pytest.mark.parametrize("order", list(permutations(STEPS)), ids="-".join)
def test_hand_set_flags_order_a_load_behind_a_store_only_in_one_order(order: Any) -> None:
    """A load, a store and a flag in any order: what does not order them is found."""

    def body(k: Language, b: Any, task: Any) -> None:
        k.vec_dup(b["typed"].next(), 1.0)
        for step in order:
            STEPS[step](k, b)

    if order == ("store", "set", "wait", "load"):
        assert simulated(body).cycles > 0
        return
    unset = order.index("wait") < order.index("set")
    with pytest.raises(ProgramError if unset else RaceError, match="set_flag" if unset else "Y|y"):
        simulated(body)
