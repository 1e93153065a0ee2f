"""Measured framework calls as operators: shapes, launches that count, and what is declined."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.base.records import replace
from npusim.call.spec import spec
from npusim.machine.device.catalog import load_device
from npusim.ops import convolution_backward, matmul
from npusim.silicon.call_rows import simulate_call_row
from npusim.silicon.rows import CallRow, Declined

A2 = load_device("ascend910b2")

LAYER = {"dims": 2, "N": 2, "Cin": 32, "Cout": 48, "spatial": (20, 22), "kernel": (3, 3)}


def row(call: str, **columns: Any) -> CallRow:
    return CallRow(id="r", chip="910B2", call=call, **{"dtype": "float16", **columns})


def dw_row(**columns: Any) -> CallRow:
    mask = {"output_mask": (False, True, False)}
    return row("convolution_backward", **{**LAYER, **mask, **columns})


def dw_time(tiling: str = "auto", leave: tuple[str, ...] = ()) -> float:
    """The layer's filter gradient as a call of ours, without the kernels to ``leave``."""
    x, dy, w = (spec(s, "fp16") for s in ((2, 32, 20, 22), (2, 48, 18, 20), (48, 32, 3, 3)))
    result = convolution_backward(
        dy, x, w, output_mask=(False, True, False), device=A2, tiling=tiling
    )
    runs = [run for run in result.runs if run.name not in leave]
    return A2.time_us(sum(run.cycles + run.launch_cycles for run in runs))


def test_a_filter_gradient_is_the_operator_s() -> None:
    done = simulate_call_row(dw_row(), A2, "auto")
    assert done.time_us == pytest.approx(dw_time())
    assert done.kernels[-1] == "cast"
    assert not done.notes


def test_only_kernels_that_the_call_launched_count() -> None:
    named = ("TransDatax3", "Conv3DBackpropFilterx1")
    done = simulate_call_row(dw_row(kernels=named), A2, "auto")
    assert done.time_us == pytest.approx(dw_time(leave=("cast", "mem_set")))
    assert "not counted, as the call launched none: cast" in done.notes


def test_a_kernel_launched_more_often_than_the_call_did_counts_as_often() -> None:
    """A library whose convolution writes the plain layout converts two operands, no result."""
    columns = row("convolution_forward_as_transposed_dx", **LAYER)
    whole = simulate_call_row(columns, A2)
    fewer = simulate_call_row(replace(columns, kernels=("TransDatax2", "Conv2Dx1")), A2)
    assert whole.kernels[-1] == "trans_data"
    assert fewer.kernels == whole.kernels[:-1]
    assert fewer.time_us < whole.time_us - A2.time_us(A2.launch.kernel_cycles)
    assert fewer.notes == ("trans_data: launched 3 times here, 2 times by the call",)


def test_a_kernel_that_only_the_call_launched_is_a_launch() -> None:
    named = ("TransDatax4", "MemSetx9", "Castx1", "Conv3DBackpropFilterx1")
    done = simulate_call_row(dw_row(kernels=named), A2, "auto")
    here = done.kernels.count("mem_set")
    missing = (1 + 9 - here) * A2.time_us(A2.launch.cycles("vector", 48))
    assert done.time_us == pytest.approx(dw_time() + missing)
    assert "trans_data: launched 3 times here, 4 times by the call" in done.notes


def test_a_row_states_the_arithmetic_of_fp32() -> None:
    """A layer that the cube limits is faster in HF32; without the column it is kept in fp32."""
    sizes = {"Cin": 256, "Cout": 256, "spatial": (32, 32), "padding": (1, 1), "dtype": "float32"}
    layer = row("convolution_forward_as_transposed_dx", **LAYER | sizes)

    def time(name: str | None) -> float:
        return simulate_call_row(replace(layer, cube_math_type=name), A2).time_us

    assert time(None) == time("keep_dtype")
    assert time("allow_fp32_down_precision") == time("use_hf32") < time("keep_dtype") - 5


def test_a_cast_of_a_forward_convolution_is_that_of_its_bias() -> None:
    columns = row("convolution_forward_as_transposed_dx", **LAYER | {"dtype": "bfloat16"})
    plain = replace(columns, kernels=("TransDatax3", "Conv2Dx1"))
    cast = replace(columns, kernels=("TransDatax3", "Castx1", "Conv2Dx1"))
    done, before = simulate_call_row(cast, A2), simulate_call_row(plain, A2)
    assert done.kernels == (*before.kernels, "cast")
    # 48 numbers are work for one core.
    one, more = (A2.time_us(A2.launch.cycles("vector", cores)) for cores in (1, 2))
    assert before.time_us + one < done.time_us < before.time_us + more + 0.5


def test_where_the_library_s_rule_is_unknown_the_tiling_is_auto() -> None:
    done = simulate_call_row(dw_row(dilation=(3, 3), kernel=(5, 5)), A2)
    assert done.notes[0].startswith("tiling 'library' instead: ")


def test_kernels_of_unlisted_forward_convolutions() -> None:
    """With groups seven launches are taken for granted; on a 950 no conversions of either."""
    layer = row("convolution_forward_as_transposed_dx", **LAYER)
    plain = simulate_call_row(layer, load_device("ascend950pr"))
    assert plain.kernels == ("conv_forward",)
    assert "no conversions" in plain.notes[-1]
    in_groups = simulate_call_row(replace(layer, groups=16), load_device("ascend950pr"))
    assert "trans_data" not in in_groups.kernels
    assert "no conversions" in in_groups.notes[-1]
    dense, grouped = (simulate_call_row(replace(layer, groups=g), A2) for g in (1, 16))
    assert len(grouped.kernels) < 7
    assert "seven launches" in grouped.notes[-1]
    launch = A2.time_us(A2.launch.cycles("vector", A2.count("vector")))
    missing = (7 - len(grouped.kernels)) * launch
    assert grouped.time_us - missing == pytest.approx(dense.time_us, rel=0.35)


def test_a_matmul_is_the_operator_s_with_its_own_tiling() -> None:
    done = simulate_call_row(row("matmul", M=256, Ncols=384, K=512), A2)
    a, b = spec((256, 512), "fp16"), spec((512, 384), "fp16")
    assert done.time_us == matmul(a, b, out_dtype="fp16", device=A2).time_us


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (row("attention"), "call 'attention' is not known"),
        (dw_row(N=None), "N is empty: convolution_backward needs it"),
        (dw_row(dtype=None), "unknown dtype None"),
        (dw_row(spatial=(20,)), "spatial is (20,): 2 numbers are needed"),
        (dw_row(groups=5), "groups"),
        (dw_row(kernels=("Frobnicatex1",)), "kernels: 'Frobnicatex1' has no counterpart here"),
        (row("matmul", M=8, Ncols=8, K=8, dtype="int32"), "a is int32; matmul takes fp16, bf16"),
        (row("transpose", shape=(2, 3), perm=(0, 2)), "must name each of the 2 axes once"),
        (row("transpose", shape=(2, 3), perm=(1, 0), dtype="int4"), "unknown dtype 'int4'"),
    ],
)
def test_what_has_no_counterpart_is_declined(asked: CallRow, reason: str) -> None:
    with pytest.raises(Declined) as declined:
        simulate_call_row(asked, A2)
    assert reason in str(declined.value)


@pytest.mark.parametrize("launch", [None, "single", "graph"])
@pytest.mark.parametrize("start", [None, "cold", "warm"])
def test_a_call_is_launched_and_begins_as_its_row_states(
    launch: str | None, start: str | None
) -> None:
    product = row("matmul", M=512, Ncols=512, K=512, launch=launch, start=start)
    operand = spec((512, 512), "fp16")
    result = matmul(
        operand,
        operand,
        out_dtype="fp16",
        device=A2,
        launch=launch or "single",
        start=start or "cold",
    )
    assert simulate_call_row(product, A2).time_us == pytest.approx(result.time_us)


def test_every_kernel_of_a_replayed_graph_is_launched_so() -> None:
    """A kernel that only the call launched, and the cast of a bias, too."""
    named = ("TransDatax4", "MemSetx9", "Castx1", "Conv3DBackpropFilterx1")
    single = simulate_call_row(dw_row(kernels=named), A2, "auto")
    graph = simulate_call_row(dw_row(kernels=named, launch="graph"), A2, "auto")
    replayed = A2.launching("graph")
    extra = 1 + 9 - graph.kernels.count("mem_set")
    saved = extra * (
        A2.time_us(A2.launch.cycles("vector", 48))
        - A2.time_us(replayed.launch.cycles("vector", 48))
    )
    without = ("TransDatax3", f"MemSetx{graph.kernels.count('mem_set')}", "Castx1", named[-1])
    of_runs = [
        simulate_call_row(dw_row(kernels=without, launch=mode), A2, "auto").time_us
        for mode in ("single", "graph")
    ]
    assert single.time_us - graph.time_us == pytest.approx(of_runs[0] - of_runs[1] + saved)
    bias = row("convolution_forward_as_transposed_dx", **LAYER, kernels=("Conv2Dx1", "Castx1"))
    cast = [
        simulate_call_row(replace(bias, launch=mode), A2, "auto").time_us
        - simulate_call_row(replace(bias, launch=mode, kernels=("Conv2Dx1",)), A2, "auto").time_us
        for mode in ("single", "graph")
    ]
    assert cast[0] > cast[1] > 0


def test_launches_that_the_device_has_no_figures_of_are_declined() -> None:
    device = load_device("ft78ne")
    assert device.graph is None
    with pytest.raises(Declined, match="launch is 'graph'; ft78ne has no figures of replayed"):
        simulate_call_row(row("matmul", M=64, Ncols=64, K=64, launch="graph"), device)
