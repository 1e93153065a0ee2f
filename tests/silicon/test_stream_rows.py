"""Measured copies, streams and convolutions as kernels: what is read from a row, what declined."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.base.dtypes import FP16
from npusim.call.call import simulate
from npusim.kernels.vector.stream import CopyIn, CopyTiling
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.silicon.profiler import busy_us
from npusim.silicon.rows import Declined, KernelRow
from npusim.silicon.stream_rows import simulate_stream_row

A2, A5 = load_device("ascend910b1"), load_device("ascend950pr")


def row(op: str, **columns: Any) -> KernelRow:
    settings = {
        "chip": "910B1",
        "M": 768,
        "N": 1024,
        "dtype_in": "fp16",
        "dtype_out": "fp16",
        "base_m": 16,
        "base_n": 512,
        "time_kind": "task",
    }
    return KernelRow(id="r", op=op, **{**settings, **columns})


def test_a_task_has_its_launch_and_other_times_do_not() -> None:
    task = simulate_stream_row(row("add"), A2).time_us
    own = simulate_stream_row(row("add", time_kind="core_max"), A2).time_us
    launch = A2.time_us(A2.launch.cycles("vector", 48))
    assert task == pytest.approx(own + launch)


def test_pieces_may_be_left_to_us() -> None:
    done = simulate_stream_row(row("relu", base_m=None, base_n=None), A2)
    assert done.notes == ("base_n is empty: pieces of 1024 elements, the most of a row that fits",)


def test_a_stand_in_says_so_and_hides_its_vector_time() -> None:
    done = simulate_stream_row(row("gelu"), A2)
    assert done.busy_us["vec"] is None
    assert "gelu is simulated without exponentials" in done.notes[0]


CONV = "N=2 C1=2 H=8 W=16 C0=16; 3x3 stride 1 pad 1 dilation 1; cout=64"


def conv_row(**columns: Any) -> KernelRow:
    sizes = {
        "conv": CONV,
        "N": 64,
        "base_m": 32,
        "base_n": 64,
        "base_k": 48,
        "step_ka": 3,
        "step_kb": 3,
    }
    slots = {"buffers_l1": (2, 2), "buffers_l0": 2, "buffers_l0c": 1}
    return row("conv2d_fwd", **{**sizes, **slots, **columns})


def test_a_convolution_runs_its_tiling() -> None:
    done = simulate_stream_row(conv_row(), A2)
    assert done.kernels == ("conv_forward",)
    assert not done.notes
    macs = 2 * 128 * 64 * 288  # positions x channels x (C1, taps, C0)
    least = A2.time_us(macs / 4096 / 8)  # 2 images x 4 slabs on 8 cores
    assert done.busy_us["cube"] is not None
    assert done.busy_us["cube"] >= least


def test_a_tile_that_is_no_whole_rows_is_noted() -> None:
    done = simulate_stream_row(conv_row(base_m=40), A2)
    assert done.notes == ("a tile holds 32 positions, not 40: it is whole rows of the output",)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (row("topk"), "op 'topk': the sorting instructions"),
        (row("attention"), "op 'attention': this library has no kernel of attention"),
        (row("frobnicate"), "op 'frobnicate' is not known; there are add, "),
        (row("add", switches=("scalar_loop",)), "scalar_loop is not simulated for add"),
        (row("copy_gm_ub", base_n=None), "base_n is empty: a copy_gm_ub needs it"),
        (row("copy_gm_ub", batch=4), "batch is 4: no word tells what is read again"),
        (row("add", dtype_out="fp32"), "dtype_in fp16, dtype_out fp32: they must be the same"),
        (row("add", dtype_in="fp9", dtype_out="fp9"), "unknown dtype 'fp9'"),
        (row("add", cores=64), "cores is 64, but ascend910b1 has 48 vector cores"),
        (row("add", base_n=65536), "UB holds 196608 B"),
        (conv_row(conv="3x3"), "conv is '3x3'; expected N="),
        (conv_row(step_kb=None), "step_kb is empty"),
    ],
)
def test_what_has_no_counterpart_is_declined(asked: KernelRow, reason: str) -> None:
    with pytest.raises(Declined) as declined:
        simulate_stream_row(asked, A2)
    assert reason in str(declined.value)


def test_busy_is_work_and_bandwidth() -> None:
    x = Tensor("x", (4096, 1024), FP16)
    run = simulate(CopyIn(CopyTiling(rows=16, columns=512), x), A2).runs[0]
    rows = [r for r in run.pipes if r.pipe == "MTE2"]
    want = A2.time_us(sum(sum(r.cycles[:2]) for r in rows) / len(rows))
    assert busy_us(run, A2)["mte2"] == pytest.approx(want)
