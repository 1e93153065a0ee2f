"""From a kernel to a program: templates, units, cores, barriers, steady states, error places."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import CapacityError, ProgramError
from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel, Plan, Tasks
from npusim.machine.program.language import Language
from npusim.machine.program.link import Linker, State
from tests.scripts import Scripted, tasks_of
from tests.tables import rows

TINY, B2 = load_device("tiny"), load_device("ascend910b2")
Emit = Callable[["Script", Language, Any], None]


def copy(s: Script, k: Language, u: Any) -> None:
    """Load, double, store: the smallest kernel that has all of it."""
    ub = s.ub.next()
    k.data_move(ub.at(0, 512), s.x.at(0, 512, base="at"), FP16)
    k.vec_scalar("muls", ub.at(0, 512), ub.at(0, 512), 2.0, FP16)
    k.data_move(s.y.at(0, 512, base="at"), ub.at(0, 512), FP16)


class Script(Scripted):
    """A kernel from parts; counts how often it is emitted."""

    name = "script"
    role = "vector"

    def __init__(
        self, tasks: Tasks[Any], emit: Emit = copy, *, slots: int = 2, ub_bytes: int = 1024
    ) -> None:
        self.table, self.body, self.slots, self.ub_bytes = tasks, emit, slots, ub_bytes
        self.x = Tensor("x", (1 << 14,), FP16)
        self.y = Tensor("y", (1 << 14,), FP16, "out")
        self.emitted: list[Any] = []

    def tasks(self, cores: int) -> Tasks[Any]:
        return self.table

    def buffers(self, k: Language) -> None:
        self.ub = k.buffer("UB", (self.ub_bytes,), None, slots=self.slots, name="ub")

    def emit(self, k: Language, task: Any) -> None:
        self.emitted.append(task)
        self.body(self, k, task)


def table(cores: list[int], **columns: list[int]) -> Tasks[Any]:
    """Units with a base ``at`` that steps by 512 B."""
    core = np.array(cores, np.int64)
    signature = {name: np.array(values, np.int64) for name, values in columns.items()}
    return tasks_of(core, signature, {"at": np.arange(len(core)) * 512})


# -- templates and units -----------------------------------------------------------------------


def test_emit_runs_once_per_distinct_signature_in_order_of_first_use() -> None:
    kernel = Script(table([0, 0, 1, 1, 0], size=[7, 3, 7, 3, 3], last=[0, 0, 0, 1, 0]))
    program = build(kernel, TINY, (0, 1))
    assert [task._asdict() for task in kernel.emitted] == [
        {"size": 7, "last": 0},
        {"size": 3, "last": 0},
        {"size": 3, "last": 1},
    ]
    assert program.unit_counts.tolist() == [2, 2, 1]
    assert program.instructions == 15


def test_signatures_are_told_apart_however_far_their_numbers_spread() -> None:
    wide, far = [0, 1 << 61, 0, -(1 << 61), 0], [1 << 60, 0, 1 << 60, 0, 0]
    kernel = Script(table([0] * 5, a=wide, b=far, c=[0, 0, 0, 0, 1 << 40]))
    program = build(kernel, TINY, (0,))
    rows = [(0, 1 << 60, 0), (1 << 61, 0, 0), (-(1 << 61), 0, 0), (0, 0, 1 << 40)]
    assert [(u.a, u.b, u.c) for u in kernel.emitted] == rows
    assert program.unit_counts.tolist() == [2, 1, 1, 1]


def test_cores_are_named_after_their_kind_and_place_in_the_mask() -> None:
    program = build(Script(table([0, 3])), B2, (2, 5))
    assert [(c.name, c.group) for c in program.cores] == [
        ("aiv4", 2), ("aiv5", 2), ("aiv10", 5), ("aiv11", 5),
    ]  # fmt: skip
    assert [len(c.variants) for c in program.cores] == [1, 0, 0, 1]
    assert [c.name for c in build(Script(table([0])), TINY, (3,)).cores] == ["core3"]


def test_moves_macs_and_work_are_sums_over_all_units() -> None:
    program = build(Script(table([0, 0, 1])), TINY, (0, 1))
    assert program.moves == {("GM", "UB", "x"): 3 * 512, ("UB", "GM", "y"): 3 * 512}
    assert program.macs == 0
    work = dict(zip(program.pipes, program.pipe_work()[0].tolist(), strict=True))
    # per unit: 10 + 512/64 cycles each way, 2 repeats of 256 B, three instructions to issue
    assert work == {"S": 6, "V": 4, "M": 0, "MTE1": 0, "MTE2": 36, "MTE3": 36, "FIX": 0}


def test_waits_of_later_units_reach_back() -> None:
    program = build(Script(table([0] * 5)), TINY, (0,))
    mte2, v, mte3 = (program.pipes.index(p) for p in ("MTE2", "V", "MTE3"))
    loads = [[w[:2] for w in program.variants[i].waits[0]] for i in program.cores[0].variants]
    # Two slots: the third load waits until the slot's last write and read, two units ago.
    assert loads == [[], [], *[[(v, -1), (mte3, -1)]] * 3]
    assert [w[:2] for w in program.variants[-1].waits[1]] == [(mte2, 1)]
    assert [w[:2] for w in program.variants[-1].waits[2]] == [(v, 1)]


# -- size --------------------------------------------------------------------------------------


def seconds(kernel: Kernel) -> tuple[float, int]:
    began = time.perf_counter()
    program = build(kernel, TINY, (0,))
    return time.perf_counter() - began, len(program.variants)


@pytest.mark.parametrize("kind", ["equal", "alternating", "three in turn"])
def test_a_hundred_thousand_units_resolve_to_a_handful_of_variants(kind: str) -> None:
    n = 100_000
    period = {"equal": 1, "alternating": 2, "three in turn": 3}[kind]
    units = tasks_of(
        np.zeros(n, np.int64), {"kind": np.arange(n) % period}, {"at": np.arange(n) % 32 * 512}
    )
    took, variants = seconds(Script(units, slots=3))
    assert variants <= 3 + period
    assert took < 5  # a walk that is quadratic in the units takes minutes


def accumulate(s: Script, k: Language, u: Any) -> None:
    """Every unit loads into a slot of its own and adds to one slot kept for all of a run."""
    kept = s.ub.next() if u.first else s.ub.last()
    if u.first:
        k.vec_dup(kept.at(0, 512), 0.0, FP16)
    k.vec_scalar("adds", kept.at(0, 512), kept.at(0, 512), 1.0, FP16)
    if u.last:
        k.data_move(s.y.at(0, 512), kept.at(0, 512), FP16)


class Resident(Script):
    """One slot is loaded once in a run; every unit loads another and adds it to what it loads."""

    def buffers(self, k: Language) -> None:
        super().buffers(k)
        self.kept = k.buffer("UB", (512,), None, name="kept")

    def emit(self, k: Language, u: Any) -> None:
        kept = self.kept.next() if u.first else self.kept.last()
        if u.first:
            k.data_move(kept.at(0, 512), self.x.at(0, 512), FP16)
        ub = self.ub.next()
        k.data_move(ub.at(0, 512), self.x.at(0, 512), FP16)
        k.vec_binary("add", ub.at(0, 512), ub.at(0, 512), kept.at(0, 512), FP16)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The templates that linking resolves from now on, once per state they meet."""
    resolved: list[int] = []
    resolve = Linker._resolve

    def counting(linker: Linker, template: int, state: State) -> Any:
        resolved.append(template)
        return resolve(linker, template, state)

    monkeypatch.setattr(Linker, "_resolve", counting)
    return resolved


def kept_over(run: int, cores: list[int]) -> Tasks[Any]:
    """Units that accumulate over ``run`` of them."""
    i = np.arange(len(cores))
    ends = {"first": (i % run == 0).astype(np.int64), "last": (i % run == run - 1).astype(np.int64)}
    return tasks_of(np.array(cores, np.int64), ends)


def test_a_slot_kept_over_many_units_is_resolved_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved = counted(monkeypatch)
    took, variants = seconds(Script(kept_over(5_000, [0] * 20_000), accumulate))
    assert variants <= 6
    assert len(resolved) <= 8  # the slot not in use grows older, and nobody asks for its age
    assert took < 10


def test_an_operand_that_stays_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = counted(monkeypatch)
    _, variants = seconds(Resident(kept_over(5_000, [0] * 20_000)))
    assert variants <= 6
    # 10,000 where the load of what stays grew older with every unit.
    assert len(resolved) <= 12


def test_cores_with_equal_units_are_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = counted(monkeypatch)
    build(Script(kept_over(10, [0] * 30), accumulate), TINY, (0,))
    alone = len(resolved)
    build(Script(kept_over(10, [0] * 30 + [1] * 30 + [2] * 20), accumulate), TINY, (0, 1, 2))
    assert len(resolved) == 2 * alone


# -- what is refused ---------------------------------------------------------------------------


def test_errors_of_emit_and_buffers_name_the_kernel_line() -> None:
    def illegal(s: Script, k: Language, u: Any) -> None:
        k.data_move(s.ub.next().at(0, 64), s.x.at(0, 32), FP16)

    line = illegal.__code__.co_firstlineno + 1
    with pytest.raises(ProgramError, match=rf"^test_build\.py:{line}: data_move .*32 B into 64 B"):
        build(Script(table([0]), illegal), TINY, (0,))
    line = Script.buffers.__code__.co_firstlineno + 1
    with pytest.raises(CapacityError, match=rf"^test_build\.py:{line}: tiny: buffer ub: UB holds"):
        build(Script(table([0]), ub_bytes=20_000), TINY, (0,))


def test_a_field_that_a_task_lacks_names_the_kernel_line() -> None:
    def misspelled(s: Script, k: Language, u: Any) -> None:
        k.vec_dup(s.ub.next().at(0, u.sise), 0.0, FP16)

    line = misspelled.__code__.co_firstlineno + 1
    match = rf"^test_build\.py:{line}: a Row has no field 'sise' \(it has: size, last\)"
    with pytest.raises(ProgramError, match=match):
        build(Script(table([0], size=[64], last=[1]), misspelled), TINY, (0,))


class Rows(NamedTuple):
    size: int


@pytest.mark.parametrize(
    ("sizes", "message"),
    [([0.9, 0.8], "'size' holds float64; give whole"), ([1], "'size' has 1 rows, core has 2")],
)
def test_columns_that_are_wrong_name_the_kernel_line(sizes: list[Any], message: str) -> None:
    class Wrong(Script):
        def plan(self, k: Language, cores: int) -> Plan[Any]:
            return Plan(Tasks(np.arange(2), Rows, {"size": np.array(sizes)}), lambda _: None)

    line = Wrong.plan.__code__.co_firstlineno + 1
    with pytest.raises(ProgramError, match=rf"^test_build\.py:{line}: task column {message}"):
        build(Wrong(table([0])), TINY, (0,))


def test_a_plan_that_is_none_is_told() -> None:
    class Forgets(Script):
        def plan(self, k: Language, cores: int) -> Plan[Any]:
            return None  # type: ignore[return-value]

    message = r"plan of Forgets returns None; it returns a Plan\(tasks, emit\)"
    with pytest.raises(ProgramError, match=message):
        build(Forgets(table([0])), TINY, (0,))


def test_a_word_that_the_language_lacks_names_the_kernel_line() -> None:
    def misspelled(s: Script, k: Language, u: Any) -> None:
        k.vec_dupe(s.ub.next())  # type: ignore[attr-defined]

    line = misspelled.__code__.co_firstlineno + 1
    match = rf"^test_build\.py:{line}: the kernel language has no 'vec_dupe'.*'vec_dup'"
    with pytest.raises(ProgramError, match=match):
        build(Script(table([0]), misspelled), TINY, (0,))


def test_what_something_else_lacks_is_its_own_error() -> None:
    def wrong(s: Script, k: Language, u: Any) -> None:
        s.ub.first()  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'BufferHandle' object has no attribute 'first'"):
        build(Script(table([0]), wrong), TINY, (0,))


class Piece(NamedTuple):
    size: int
    last: bool


def test_columns_are_the_fields_of_the_record_and_come_as_their_types() -> None:
    core, sizes = np.zeros(3, np.int64), np.array([7, 7, 3])
    last = np.array([False, False, True])
    with pytest.raises(ProgramError, match=r"the columns are size, lost, a Piece has size, last;"):
        Tasks(core, Piece, {"size": sizes, "lost": last})
    kernel = Script(Tasks(core, Piece, {"last": last, "size": sizes}))
    build(replaced(kernel), TINY, (0,))
    assert kernel.emitted == [Piece(7, False), Piece(3, True)]
    assert [type(task.last) for task in kernel.emitted] == [bool, bool]


def replaced(kernel: Script) -> Script:
    """The kernel with a body that does nothing but what every task must."""
    kernel.body = lambda s, k, u: k.vec_dup(s.ub.next(), 0.0, FP16)
    return kernel


def fp32_reduce(s: Script, k: Language, u: Any) -> None:
    k.vec_reduce("max", s.ub.next().at(0, 4), s.ub.last().at(0, 64), 1, 16, FP32)


def test_an_operation_without_a_cost_names_the_kernel_line() -> None:
    ops = {name: cost for name, cost in TINY.vector.ops.items() if name != "reduce_max"}
    device = replace(TINY, vector=replace(TINY.vector, ops=ops))
    line = fp32_reduce.__code__.co_firstlineno + 1
    match = rf"^test_build\.py:{line}: vec_reduce_max .*: tiny has no vector cost for 'reduce_max'"
    with pytest.raises(ProgramError, match=match):
        build(Script(table([0]), fp32_reduce), device, (0,))


def test_unknown_bases_and_tensors_name_the_kernel_line() -> None:
    def base(s: Script, k: Language, u: Any) -> None:
        k.data_move(s.ub.next().at(0, 64), s.x.at(0, 64, base="z"), FP16)

    def tensor(s: Script, k: Language, u: Any) -> None:
        k.data_move(s.ub.next().at(0, 64), Tensor("other", (64,), FP16).at(0, 64), FP16)

    with pytest.raises(ProgramError, match=r"^test_build\.py:\d+: .*no base 'z' \(it has: at\)"):
        build(Script(table([0]), base), TINY, (0,))
    with pytest.raises(ProgramError, match=r"^test_build\.py:\d+: .*other is not among .* x, y"):
        build(Script(table([0]), tensor), TINY, (0,))


@rows("tests/data/mistakes/program.yaml", "unit_tables_must_fit_the_cores", "cores, message")
def test_unit_tables_must_fit_the_cores(cores: list[int], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        build(Script(table(cores)), TINY, (0, 1))


def meet(s: Script, k: Language, u: Any) -> None:
    for _ in range(u.barriers):
        k.core_barrier()


def test_cores_that_meet_different_numbers_of_barriers_would_hang() -> None:
    assert build(Script(table([0, 1, 1], barriers=[2, 1, 1]), meet), TINY, (0, 1)).instructions == 4
    with pytest.raises(
        ProgramError,
        match=r"kernel script would hang: core0 meets 2 core barriers, core1 only 1; give every",
    ):
        build(Script(table([0, 1], barriers=[2, 1]), meet), TINY, (0, 1))
    alone = build(Script(table([0], barriers=[1]), meet), TINY, (0, 1))
    assert alone.instructions == 1, "a core without tasks is not launched, and nobody waits for it"
