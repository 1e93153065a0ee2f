"""Rows of matrix products: every scored one runs, words become the tiling they mean."""

from __future__ import annotations

import re
from typing import Any

import pytest

from npusim.base.records import replace
from npusim.kernels.matmul.measured import window_tail
from npusim.machine.device.catalog import load_device
from npusim.silicon.gemm_rows import simulate_gemm_row
from npusim.silicon.rows import Declined, KernelRow, SimulatedRow
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import simulate_row
from tests.tables import rows

A5 = load_device("ascend950pr")

ROWS = {row.id: row for row in shipped_sheets()[0].rows if isinstance(row, KernelRow)}

PLAIN = KernelRow(
    id="x", chip="950PR", op="gemm", cores=32, M=2048, N=2048, K=1024, dtype_in="fp16",
    dtype_out="fp32", layout_a="ND", layout_b="ND_nk", base_m=128, base_n=256, base_k=64,
    step_ka=4, step_kb=4, buffers_l1=(2, 2), buffers_l0=2, buffers_l0c=1,
    order="strided", fastest="m", time_kind="task",
)  # fmt: skip


def simulated(*words: str, **columns: Any) -> SimulatedRow:
    return simulate_gemm_row(replace(PLAIN, switches=words, **columns), A5)


def time(*words: str, **columns: Any) -> float:
    return simulated(*words, **columns).time_us


#: A few of each way to write a row; all of them run in the score card.
SAMPLE = ("C001", "C016", "C034", "C028", "C032", "C083", "C088", "C098", "C109", "C137", "C153")


@pytest.mark.parametrize("name", SAMPLE)
def test_measured_rows_run_and_report_every_pipe_that_was_measured(name: str) -> None:
    outcome = simulate_row(ROWS[name], {})
    assert outcome.simulated is not None, outcome.reason
    assert outcome.simulated.time_us > 5
    for pipe in ROWS[name].busy_us:
        busy = outcome.simulated.busy_us[pipe]
        assert busy is not None
        assert 0 < busy < outcome.simulated.time_us


@pytest.mark.parametrize("name", ["C025", "C036"])
def test_the_order_of_tiles_decides_what_comes_from_main_memory(name: str) -> None:
    """A core of these goes along M and streams all of A from main memory six times.

    Along N it fetches less, and published products of this size and tile that go along N keep their
    cubes fed. Four cores read the same rows of B and six those of A at once, in both orders.
    """
    row = ROWS[name]
    along_m = simulate_row(row, {}).simulated
    along_n = simulate_row(replace(row, inner="n"), {}).simulated
    assert along_m is not None
    assert along_n is not None
    assert row.time_us is not None
    assert along_m.time_us == pytest.approx(row.time_us, rel=0.08)
    assert 1.03 * along_n.time_us < along_m.time_us
    plain = simulate_row(row, {"l2.missed": "5TB/s"}).simulated  # where misses take nothing
    assert plain is not None
    assert plain.time_us < 0.95 * row.time_us


@pytest.mark.parametrize("name", ["C001", "C002", "C021"])
def test_products_that_fetch_little_are_as_fast_as_measured(name: str) -> None:
    simulated_row = simulate_row(ROWS[name], {}).simulated
    assert simulated_row is not None
    assert simulated_row.time_us == pytest.approx(ROWS[name].time_us, rel=0.08)


def test_a_task_contains_the_launch_and_a_core_does_not() -> None:
    launch = A5.launch
    task, core = time(), time(time_kind="core_max")
    start = launch.kernel_cycles + launch.first_access_cycles + 32 * launch.core_cycles
    assert task - core == pytest.approx(A5.time_us(start))
    parsed = time("mdl_template", time_kind="core_max")
    assert parsed - core == pytest.approx(A5.time_us(launch.tiling_cycles))
    assert time("mdl_template", time_kind="compute_only") == pytest.approx(core)


def test_a_launch_starts_the_cores_of_both_kinds_whether_or_not_they_have_work() -> None:
    """One tile, for one cube core and its two vector cores, of 32 groups."""
    launch, row = A5.launch, {"M": 128, "N": 256}
    task = time("per_token_dequant_on_aiv", **row)
    core = time("per_token_dequant_on_aiv", time_kind="core_max", **row)
    start = launch.kernel_cycles + launch.first_access_cycles + 96 * launch.core_cycles
    assert task - core == pytest.approx(A5.time_us(start))


def test_a_result_that_vector_cores_finish_passes_through_memory() -> None:
    answer = simulated("per_token_dequant_on_aiv", M=512, N=512, K=4096)
    assert answer.kernels == ("matmul_finish",)
    assert answer.time_us > time(M=512, N=512, K=4096)
    assert "tiles are taken to go through 2 blocks of GM per core" in answer.notes
    assert all(answer.busy_us[pipe] for pipe in ("cube", "mte2", "fixpipe", "aiv_mte2", "vec"))


@rows(
    "tests/data/rows/validation.yaml",
    "tiles_of_the_last_round_are_cut_by_the_window_rule",
    "cores, rows, columns, parts",
)
def test_tiles_of_the_last_round_are_cut_by_the_window_rule(
    cores: int, rows: int, columns: int, parts: list[int]
) -> None:
    assert window_tail(cores, rows, columns) == tuple(parts)


def test_unstated_steps_of_the_library_fill_l1_and_are_noted() -> None:
    answer = simulated("mdl_template", step_ka=None, step_kb=None)
    assert answer.notes == ("steps are not stated: 5 base blocks, as many as fit L1 twice",)
    assert answer.time_us == time("mdl_template", step_ka=5, step_kb=5)
    # On a 910B 320 numbers of a row would be 512 B and a piece of 128.
    steps: dict[str, Any] = {"step_ka": None, "step_kb": None}
    base: dict[str, Any] = {"base_m": 128, "base_n": 256, "base_k": 64}
    there = simulate_gemm_row(
        replace(PLAIN, switches=("mdl_template",), chip="910B1", cores=24, **steps, **base),
        load_device("ascend910b1"),
    )
    assert there.notes == ("steps are not stated: 4 base blocks, as many as fit L1 twice",)


def test_an_unstated_order_is_noted() -> None:
    answer = simulated(order=None, fastest=None, swizzle="window")
    assert answer.notes == ("the order of tiles is not stated: along M first, core stride",)


@rows(
    "tests/data/rows/validation.yaml",
    "an_order_spelled_in_words_is_that_of_its_columns",
    "swizzle, columns",
)
def test_an_order_spelled_in_words_is_that_of_its_columns(
    swizzle: str, columns: dict[str, Any]
) -> None:
    blocks = {"single_core_m": 256, "single_core_n": 512}
    bare = {"order": None, "fastest": None, **blocks}
    answer = simulated(swizzle=swizzle, **bare)
    assert answer == simulated(**{**bare, **columns})
    assert not answer.notes
    assert answer.busy_us["cube"] == pytest.approx(simulated().busy_us["cube"], rel=0.05)


@rows(
    "tests/data/mistakes/validation.yaml",
    "what_cannot_be_simulated_is_declined_with_the_reason",
    "columns, reason",
)
def test_what_cannot_be_simulated_is_declined_with_the_reason(
    columns: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Declined, match=re.escape(reason)):
        simulate_gemm_row(replace(PLAIN, **columns), A5)
