"""Rankings: estimates with intervals that hold, and what ``keep`` may drop.

Commands that measure tilings: from outside of the search, of other layers, and of proofs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from math import ceil
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.rank import ESTIMATES, PROGRAMS
from npusim.call.tilings.problem import TuningProblem
from npusim.compat.tuners import product
from npusim.kernels.matmul.matmul import Tiling
from npusim.kernels.parts.mem_set import MemSet
from npusim.language import FP16, Alike, Kernel, Language, Plan, Tasks, Tensor, in_runs
from npusim.machine.device.catalog import load_device
from tests.tables import rows
from tools.tilings import others, outside, proofs, ratios
from tools.tilings.larger_machines import Gradient, kernel_of, layers

pytestmark = pytest.mark.compiled

DEVICE = load_device("ascend910b2")
KERNEL = product(512, 768, 384)


def drawn(seed: int, count: int = 30) -> list[Any]:
    return ratios.tilings(KERNEL, Random(seed), count)


def time(tiling: Any) -> int:
    problem = TuningProblem(KERNEL, DEVICE, tuple(range(DEVICE.groups)))
    return problem.time(replace(KERNEL, tiling=tiling)).cycles


def test_what_is_given_is_ranked_or_left_out_with_the_reason() -> None:
    given = [
        Tiling(base_m=128, base_n=128, base_k=64),
        {"base_m": 16, "base_n": 16, "base_k": 16},
        Tiling(base_m=256, base_n=256, base_k=64, l0c_slots=2),
    ]
    ranking = npusim.rank(KERNEL, given, "ascend910b2")
    assert [row.place for row in ranking.rows] == [0, 1]
    assert ranking.rows[0].tiling is given[0] is ranking.best
    ((tiling, why),) = ranking.left_out
    assert tiling is given[2]
    assert "L0C" in why
    assert "90%" in str(ranking)
    for wrong in ({"base_q": 3}, 3):
        with pytest.raises(ArgumentError, match=r"is no tiling of matmul: .*base_m"):
            npusim.rank(KERNEL, [wrong], "ascend910b2")


def test_what_the_kernel_or_the_device_refuses_is_left_out() -> None:
    """A tiling that its checks refuse costs no other its estimate; a 910 multiplies no fp32."""
    kernel = product(256, 256, 256, "mxfp4")
    good = {"base_m": 64, "base_n": 64, "base_k": 64}
    ranking = npusim.rank(
        kernel, [good | {"base_k": 16}, good | {"base_m": 0}, good], "ascend950pr"
    )
    assert [row.place for row in ranking.rows] == [2]
    assert ["base_k is 16" in why or "base_m" in why for _, why in ranking.left_out] == [True] * 2
    of_fp32 = npusim.rank(product(256, 256, 256, "fp32"), [good], "ascend910")
    assert not of_fp32.rows
    assert "no fp32 mmad" in of_fp32.left_out[0][1]


@pytest.mark.parametrize("base", [(256, 256, 128), (128, 256, 64)])
def test_two_values_a_byte_take_the_cube_as_long_as_in_the_program(base: tuple[int, ...]) -> None:
    """Estimates of such products were 0.62 to 0.77 of their times: a byte counted as one value,
    and paths to L0 that count elements were not asked."""
    kernel, device = product(4096, 1024, 4096, "mxfp4"), load_device("ascend950pr")
    fields = dict(zip(("base_m", "base_n", "base_k"), base, strict=True))
    ranking = npusim.rank(kernel, [fields | {"step_ka": 2, "step_kb": 2}], device)
    (row,) = ranking.rows
    problem = TuningProblem(kernel, device, tuple(range(device.groups)))
    cycles = problem.time(replace(kernel, tiling=row.tiling)).cycles
    assert 0.95 < row.cycles / cycles < 1.05


@rows(
    "tests/data/rows/tuning.yaml",
    "bounds_of_given_tilings_are_below_their_times",
    "sizes, kind, device, fields",
)
def test_bounds_of_given_tilings_are_below_their_times(
    sizes: list[int], kind: str, device: str, fields: list[int]
) -> None:
    """They count pieces of all rows, no requests of what misses, no conflicts of halves of L1.

    Nor do they count what misses take of the L2, so that they are 84 % of a time at least.
    """
    names = ("base_m", "base_n", "base_k", "step_ka", "step_kb", "l1a_slots", "l1b_slots")
    tiling: dict[str, object] = dict(zip(names, fields[:-1], strict=True))
    tiling |= {"l0_slots": 2, "unit_flag": True, "l1_halves": bool(fields[-1])}
    m, k, n = sizes
    kernel, machine = product(m, k, n, kind), load_device(device)
    (row,) = npusim.rank(kernel, [tiling], machine).rows
    problem = TuningProblem(kernel, machine, tuple(range(machine.groups)))
    cycles = problem.time(replace(kernel, tiling=row.tiling)).cycles
    assert 0.82 * cycles < row.least <= cycles


@pytest.mark.parametrize("seed", range(4))
def test_estimates_and_bounds_hold_of_random_products(seed: int) -> None:
    """Of 4,254 on three devices nine in ten lie in the interval."""
    draw = Random(seed)
    for _ in range(3):
        kernel, device = ratios.product(draw)
        ranking = npusim.rank(kernel, ratios.tilings(kernel, draw, 30), device)
        assert ranking.probability == ESTIMATES.probability
        for row, cycles in ratios.simulated(ranking, draw, 4):
            assert row.most is not None
            assert row.least <= row.low <= row.high <= row.most
            assert 0.995 * row.least <= cycles <= row.most


def test_nine_simulations_make_the_intervals_of_all() -> None:
    ranking = npusim.rank(KERNEL, drawn(1, 60), DEVICE, simulate=19)
    known = [row for row in ranking.rows if row.simulated]
    assert len(known) == 19
    assert ranking.probability == 0.9
    assert all(row.cycles == row.low == row.high == row.most == time(row.tiling) for row in known)
    least = min(row.most for row in ranking.rows if row.most is not None)
    kept = ranking.kept(certain=True)
    assert all(row.cycles <= least for row in kept if row.simulated), "known to be slower"
    others = [row for row in ranking.rows if not row.simulated]
    for row in others:
        assert row.most is not None
        assert row.least <= row.low <= row.high <= row.most
    inside = [row.low <= time(row.tiling) <= row.high for row in others]
    assert sum(inside) >= 0.8 * len(inside) > 0


def test_what_keep_may_drop() -> None:
    """``certain`` keeps the best of all, in simulated time; a share is that of those that run."""
    for seed in range(3):
        ranking = npusim.rank(KERNEL, drawn(seed), DEVICE)
        best = min(ranking.rows, key=lambda row: time(row.tiling)).tiling
        kept = ranking.keep(certain=True)
        assert best in kept
        assert len(kept) < len(ranking.rows)
        leading = ranking.kept(0.25)
        assert len(leading) < len(ranking.rows) / 2
        last = ranking.rows[ceil(len(ranking.rows) / 4) - 1].cycles
        assert leading[-1].cycles <= 1.02 * last < ranking.rows[len(leading)].cycles, "alike"
    for share in (0, 1.5):
        with pytest.raises(ArgumentError, match="above 0 and at most 1"):
            ranking.keep(share)


#: A tiling of 256 x 512 x 1305 that takes 3.8 times what is the most on other devices, on tiny.
SLOW_ON_TINY = {
    **{"base_m": 16, "base_n": 64, "base_k": 16, "step_ka": 8, "step_kb": 2},
    **{"l1a_slots": 2, "l1b_slots": 2, "l0_slots": 2, "stagger_k": True},
}


def test_nothing_is_certain_where_no_estimate_was_ever_compared_with_a_simulation() -> None:
    kernel = product(256, 512, 1305)
    sizes = ((16, 16, 1), (16, 64, 1), (32, 32, 2), (32, 64, 1), (64, 64, 1), (64, 32, 4))
    tilings: list[Any] = [SLOW_ON_TINY]
    for m, n, step in sizes:
        tilings.append({"base_m": m, "base_n": n, "base_k": 16, "step_ka": step, "step_kb": step})
    ranking = npusim.rank(kernel, tilings, "tiny")
    assert {row.most for row in ranking.rows} == {None}
    assert ranking.keep(certain=True) == [row.tiling for row in ranking.rows]
    assert ranking.note.startswith("estimates were compared with simulations on ascend910b2, ")
    assert "keep(certain=True) keeps all; simulate=1" in " ".join(str(ranking).split())
    machine = load_device("tiny")
    problem = TuningProblem(kernel, machine, tuple(range(machine.groups)))
    known = {row.place: problem.time(replace(kernel, tiling=row.tiling)).cycles
             for row in ranking.rows}  # fmt: skip
    row = next(row for row in ranking.rows if row.place == 0)
    assert known[0] > 3 * ESTIMATES.most * row.cycles, "what was promised before"
    one = npusim.rank(kernel, tilings, "tiny", simulate=1)
    assert [row.most for row in one.rows if row.simulated] == [known[ranking.rows[0].place]]
    assert sum(row.most is not None for row in one.rows) == 1
    kept = one.kept(certain=True)
    assert min(known, key=lambda place: known[place]) in {row.place for row in kept}
    assert len(kept) < len(one.rows)
    assert "rests on 1 simulated tiling" in one.note


def test_a_device_with_another_figure_is_another_device() -> None:
    given = drawn(0)
    assert npusim.rank(KERNEL, given, DEVICE).note == ""
    for changed in (load_device("ascend910b2", {"clock": "1.7GHz"}), load_device("ascend910b3")):
        ranking = npusim.rank(KERNEL, given, changed)
        assert {row.most for row in ranking.rows} == {None}
        assert f"not on {changed.name} with its figures" in ranking.note


@pytest.mark.parametrize("which", ["dx", "dw"])
def test_bounds_from_programs_rank_what_closed_forms_do_not_know(which: str) -> None:
    kernel: Any = kernel_of(Gradient("", layers("resnet50")["res4_3x3"], which))
    given = [one.tiling for _, one in kernel.ranked(DEVICE, DEVICE.count("cube"), 6)]
    ranking = npusim.rank(kernel, given, DEVICE)
    assert len(ranking.rows) == 6
    for row, cycles in ratios.simulated(ranking, Random(0), 6):
        assert row.cycles == row.least <= cycles <= PROGRAMS.most * row.cycles


def test_a_kernel_without_a_tiling_is_given_as_kernels() -> None:
    clear = MemSet(KERNEL.c)
    assert len(npusim.rank(clear, [clear], DEVICE).rows) == 1
    with pytest.raises(ArgumentError, match="states no choices; give kernels in"):
        npusim.rank(clear, [Tiling(base_m=16, base_n=16, base_k=16)], DEVICE)
    assert npusim.rank(clear, [], DEVICE).keep(certain=True) == []
    with pytest.raises(ArgumentError, match="no tiling runs"):
        _ = npusim.rank(clear, [], DEVICE).best


@dataclass(frozen=True)
class Copied(Kernel):
    """y = x, in chunks."""

    x: Tensor
    y: Tensor
    chunk: int = 1024

    name, role = "copied", "vector"
    choices: ClassVar[Mapping[str, Sequence[int]]] = {"chunk": (256, 1024)}

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        room = k.buffer("UB", (self.chunk,), FP16, slots=2, name="room")

        def emit(task: Any) -> None:
            size = self.chunk * 2
            k.data_move(room.next(), self.x.at(0, size, base="at"), FP16)
            k.data_move(self.y.at(0, size, base="at"), room.last(), FP16)

        start = np.arange(0, self.x.shape[0], self.chunk)
        return Plan(Tasks(in_runs(len(start), cores), Alike, {}, {"at": start * 2}), emit)


def test_choices_of_a_kernel_of_ones_own_are_ranked_by_name() -> None:
    kernel = Copied(Tensor("x", (65_536,), FP16), Tensor("y", (65_536,), FP16, "out"))
    ranking = npusim.rank(kernel, [{"chunk": 256}, {"chunk": 4096}, {"chunk": 1 << 20}], DEVICE)
    assert [row.tiling for row in ranking.rows] == [{"chunk": 4096}, {"chunk": 256}]
    (left,) = ranking.left_out
    assert left.given == {"chunk": 1 << 20}
    assert "buffer room: UB holds" in left.reason
    assert "1 do not run, the first: " in ranking.text()
    with pytest.raises(ArgumentError, match="is no choice of copied: chunk"):
        npusim.rank(kernel, [{"rows": 4}], DEVICE)


def test_a_tiling_that_is_left_out_is_told_in_a_line() -> None:
    (left,) = npusim.rank(KERNEL, [Tiling(base_m=256, base_n=256, base_k=512)], DEVICE).left_out
    assert repr(left).startswith("<base 256x256x512")
    assert "deal_n" not in repr(left)


def gradient(which: str) -> Gradient:
    return Gradient("res5_1x1_in", replace(layers("resnet50")["res5_1x1_in"], n=1), which)


@pytest.mark.parametrize("which", ["dx", "dw"])
def test_a_draw_changes_a_few_fields_and_none_of_the_vendors(which: str) -> None:
    kernel: Any = kernel_of(gradient(which))
    rng, old, changed = Random(0), kernel.tiling, set[str]()
    for _ in range(200):
        with suppress(ArgumentError):
            new = outside.drawn(old, rng)
            differ = {f.name for f in fields(old) if getattr(old, f.name) != getattr(new, f.name)}
            assert len(differ) <= outside.CHANGES
            assert not differ & {*outside.FIXED}
            changed |= differ
    assert {"base_k", "l1_slots", "unit_flag"} <= changed


def test_outsiders_are_legal_and_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "BUDGET", 2)
    device = load_device("ascend910b2")
    found = list(outside.outsiders(gradient("dw"), 3, 0, device))
    assert len(found) == 3
    assert all(one.cycles > 0 and one.differs for one in found)
    assert "res5_1x1_in" in str(found[0])
    again = next(iter(outside.outsiders(gradient("dw"), 3, 0, device)))
    assert again.cycles == found[0].cycles, "the seed decides"


def test_a_search_begins_with_the_automatic_tiling() -> None:
    row = proofs.searched(gradient("dw"), load_device("ascend910b2"), 1, 1)
    assert row["tuned"] <= row["auto"]
    assert 0 <= row["gap"] < 1
    assert 1 <= row["simulated"] <= row["of"]


def test_an_automatic_tiling_is_held_against_a_search() -> None:
    row = others.measured("ascend910", "ResNet-50", gradient("dw"), 1)
    assert row["tuned"] <= row["auto"]
    assert (row["device"], row["layer"], row["batch"]) == ("ascend910", "res5_1x1_in", 1)
