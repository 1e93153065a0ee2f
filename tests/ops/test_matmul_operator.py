"""matmul: random shapes and tilings on every device, both ways into L1, and what it refuses."""

from __future__ import annotations

import re
from math import ceil
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import replace
from npusim.kernels.filter_gradient.filter_gradient import Tiling as ConvTiling
from npusim.kernels.matmul.matmul import Tiling
from npusim.machine.device.catalog import load_device
from tests.sampled import examples

DEVICES = {name: load_device(name) for name in ("tiny", "ascend910", "ascend910b2")}
Array = np.ndarray[Any, Any]

TILINGS = st.builds(
    Tiling,
    base_m=st.sampled_from([16, 32, 48]), base_n=st.sampled_from([16, 32, 64]),
    base_k=st.sampled_from([16, 32, 64]), step_ka=st.integers(1, 4), step_kb=st.integers(1, 4),
    l1a_slots=st.integers(1, 3), l1b_slots=st.integers(1, 3), l0_slots=st.integers(1, 3),
    l0c_slots=st.integers(1, 2),
)  # fmt: skip


def operands(m: int, k: int, n: int, kind: Any = np.float16) -> tuple[Array, Array]:
    rng = np.random.default_rng(m + 100 * k + 10_000 * n)
    return rng.integers(-3, 4, (m, k)).astype(kind), rng.integers(-3, 4, (k, n)).astype(kind)


def product(result: npusim.Result) -> Array:
    assert result.outputs is not None
    assert result.outputs[0] is not None
    return result.outputs[0]


@examples(100)
@example(1, 68, 1, "tiny", "auto", 15)  # three cores add up parts of K
@given(
    st.integers(1, 130), st.integers(1, 150), st.integers(1, 130),
    st.sampled_from(sorted(DEVICES)), st.one_of(st.just("auto"), TILINGS), st.sampled_from([1, 15]),
)  # fmt: skip
def test_products_of_whole_numbers_are_exact(
    m: int, k: int, n: int, device: str, tiling: Any, cores: int
) -> None:
    a, b = operands(m, k, n)
    try:
        result = npusim.ops.matmul(a, b, device=DEVICES[device], tiling=tiling, cores=cores)
    except CapacityError:
        if tiling == "auto":
            raise
        reject()
    np.testing.assert_array_equal(product(result), a.astype(np.float64) @ b.astype(np.float64))
    kernel = result.runs[-1]  # behind what clears for parts of K
    assert all(sum(row.cycles) == kernel.cycles for row in kernel.pipes)
    assert all(bound.cycles <= kernel.cycles for bound in kernel.bounds)
    assert kernel.macs == m * k * n
    moved = {(row.src, row.dst, row.operand): row.bytes for row in kernel.traffic}
    assert moved["GM", "L1", "a"] >= a.nbytes
    assert moved["GM", "L1", "b"] >= b.nbytes
    parts = re.search(r"K in parts of (\d+)", kernel.tiling)  # each of which adds to the result
    times = ceil(k / int(parts[1])) if parts else 1
    assert sum(size for (_, dst, _), size in moved.items() if dst == "GM") == times * m * n * 4


#: Devices by the kernels of a product with a bias: cubes with a bias table, and others.
ADDED = {
    "ascend910b2": ["matmul"],
    "ascend950pr": ["matmul"],
    "ascend910": ["cast", "matmul", "bias_add"],
    "tiny": ["cast", "matmul", "bias_add"],
}


@examples(60)
@given(
    st.integers(1, 130), st.integers(1, 150), st.integers(1, 300), st.sampled_from([(), (3,)]),
    st.sampled_from(sorted(ADDED)), st.one_of(st.just("auto"), TILINGS),
    st.sampled_from([1, 15]),
)  # fmt: skip
def test_a_bias_is_added_to_every_row(
    m: int, k: int, n: int, stack: tuple[int, ...], device: str, tiling: Any, cores: int
) -> None:
    a, b = operands(m, k, n)
    a, b = np.broadcast_to(a, (*stack, m, k)), np.broadcast_to(b, (*stack, k, n))
    bias = np.arange(n, dtype=np.float16) - n // 2
    given = {"device": device, "tiling": tiling, "cores": cores, "check": True}
    try:
        result = npusim.ops.matmul(a, b, bias, **given)
    except CapacityError:
        if tiling == "auto":
            raise
        reject()
    expected = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
    np.testing.assert_array_equal(product(result), expected)
    assert [one.name for one in result.runs if one.name != "mem_set"] == ADDED[device]
    read = {row.operand for one in result.runs for row in one.traffic if row.src == "GM"}
    assert read >= {"a", "b", "bias"}
    timed = npusim.ops.matmul(a, b, npusim.spec((n,), "fp16"), **given | {"check": False})
    assert timed.cycles == result.cycles


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
def test_a_bias_is_added_before_the_sum_is_rounded(device: str) -> None:
    a, b = np.ones((20, 1), np.float16), np.full((1, 40), 2048.0, np.float16)
    got = product(npusim.ops.matmul(a, b, np.ones(40, np.float16), out_dtype="fp16", device=device))
    assert (got == 2048).all()  # 2049 ties to even
    bias = np.full(40, 1.25, np.float32)
    got = product(npusim.ops.matmul(a, b, bias, out_dtype="fp16", device=device))
    assert (got == 2050).all()  # 2049.25, where 1.25 in fp16 would be lost after rounding


def test_a_bias_of_integers_and_one_in_bf16() -> None:
    a, b = operands(33, 40, 70, np.int8)
    bias = np.arange(70, dtype=np.int32) + 2**24
    got = product(npusim.ops.matmul(a, b, bias, device="ascend910b2"))
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64) + bias)
    a, b = operands(33, 40, 70, ml_dtypes.bfloat16)
    result = npusim.ops.matmul(a, b, np.ones(70, ml_dtypes.bfloat16), device="ascend910b2")
    np.testing.assert_array_equal(product(result), a.astype(float) @ b.astype(float) + 1)
    assert [one.name for one in result.runs] == ["cast", "matmul"]


@pytest.mark.parametrize(("m", "n"), [(1, 4096), (256, 256), (512, 1000)])
@pytest.mark.parametrize("device", ["ascend910b2", "ascend950pr"])
def test_every_product_has_a_tiling_with_room_in_the_bias_table(
    m: int, n: int, device: str
) -> None:
    for kind in ("fp16", "fp32"):
        a, b, bias = (npusim.spec(shape, kind) for shape in ((m, 2048), (2048, n), (n,)))
        plain, added = (npusim.ops.matmul(a, b, *c, device=device) for c in ((), (bias,)))
        assert plain.cycles < added.cycles < 1.1 * plain.cycles


@pytest.mark.parametrize("device", DEVICES)
def test_fp16_results_are_rounded_once_and_saturate(device: str) -> None:
    a, b = np.full((20, 64), 60.0, np.float16), np.full((64, 30), 20.0, np.float16)
    a[0, :2] = [2048.0, 1.0]
    a[0, 2:] = 0
    b[:2] = 1.0
    got = product(npusim.ops.matmul(a, b, out_dtype="fp16", device=device))
    assert got.dtype == np.float16
    assert (got[1:] == 65504).all()  # 60 * (1 + 1 + 62 * 20) = 74520
    assert (got[0] == 2048).all()  # 2049 ties to even


def test_operands_reach_l1_by_nd2nz_or_by_strided_moves() -> None:
    """Where the device converts on the way it is one instruction, else one per 16 columns."""
    a, b = operands(64, 64, 64)
    ops = {}
    for name in ("ascend910", "ascend910b2"):
        result = npusim.ops.matmul(a, b, device=name, cores=1)
        timeline = result.timeline
        ops[name] = set(timeline[timeline["pipe"] == "MTE2"]["op"])
        np.testing.assert_array_equal(product(result), a.astype(np.float64) @ b)
    assert ops == {"ascend910": {"data_move"}, "ascend910b2": {"nd2nz"}}


@examples(60)
@given(
    st.integers(1, 90), st.integers(1, 150), st.integers(1, 90),
    st.sampled_from([(), (3,), (2, 2)]), st.sampled_from(["fp16", "bf16", "fp32", "int8"]),
    st.booleans(), st.booleans(),
    st.sampled_from(["tiny", "ascend910", "ascend910b2", "ascend950pr"]), st.sampled_from([0, 1]),
)  # fmt: skip
def test_every_type_batch_and_order_of_axes_is_exact(
    m: int, k: int, n: int, batch: tuple[int, ...], kind: str, turn_a: bool, turn_b: bool,
    device: str, math: int,
) -> None:  # fmt: skip
    rates = load_device(device).cube.rates  # type: ignore[union-attr]
    if kind not in rates and not (kind == "fp32" and math):
        reject()
    rng = np.random.default_rng(m + 100 * k + 10_000 * n)
    most, numpy_type = (127, np.int8) if kind == "int8" else (3, dtype(kind).numpy)
    a, b = (
        rng.integers(-most, most + 1, (*batch, *shape)).astype(numpy_type)
        for shape in ((m, k), (k, n))
    )
    result = npusim.ops.matmul(
        a.swapaxes(-1, -2) if turn_a else a, b.swapaxes(-1, -2) if turn_b else b,
        transpose_a=turn_a, transpose_b=turn_b, device=device, cube_math_type=math,
    )  # fmt: skip
    np.testing.assert_array_equal(product(result), a.astype(np.float64) @ b.astype(np.float64))
    assert product(result).dtype == (np.int32 if kind == "int8" else np.float32)
    assert all(bound.cycles <= run.cycles for run in result.runs for bound in run.bounds)


def test_sums_of_int8_wrap_around() -> None:
    """Beyond what 32 bits hold only whole numbers modulo 2^32 tell the exact sum."""
    a, b = np.full((1, 140_000), -128, np.int8), np.full((140_000, 1), -128, np.int8)
    got = product(npusim.ops.matmul(a, b, device="ascend910b2"))
    assert got.item() == 140_000 * 128**2 - 2**32


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("kind", "m", "k", "n"),
    [("mxfp8", 100, 64, 17), ("mxfp8", 3, 127, 63), ("mxfp4", 127, 128, 63), ("mxfp4", 65, 32, 1)],
)
def test_odd_sizes_of_block_scaled_types(kind: str, m: int, k: int, n: int, turned: bool) -> None:
    """Scales of a group begin at 32 B in L1 whatever the rows, and values are packed along K."""
    shapes = [(k, m), (n, k)] if turned else [(m, k), (k, n)]
    a, b = (npusim.spec(shape, kind) for shape in shapes)
    result = npusim.ops.matmul(a, b, device="ascend950pr", transpose_a=turned, transpose_b=turned)
    read = {row.operand: row.bytes for row in result.runs[0].traffic if row.dst == "L1"}
    values = 2 if kind == "mxfp4" else 1
    assert read["a"] >= m * k // values
    assert read["b"] >= n * k // values


def test_hf32_rounds_operands() -> None:
    a, b = np.full((16, 16), 1 + 2.0**-14, np.float32), np.eye(16, dtype=np.float32)
    kept, rounded = (
        product(npusim.ops.matmul(a, b, device="ascend910b2", cube_math_type=math))
        for math in ("keep_dtype", "use_hf32")
    )
    assert (kept == a).all()
    assert (rounded == 1).all()


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4"])
def test_block_scaled_types_are_timed(kind: str) -> None:
    """At their rates, with a byte of scale for 32 numbers along K."""
    shapes = (512, 2048), (2048, 512)
    found = {
        name: npusim.ops.matmul(*(npusim.spec(one, name) for one in shapes), device="ascend950pr")
        for name in ("fp16", kind)
    }
    bound = {name: one.problem_bounds[0].cycles for name, one in found.items()}
    assert found[kind].time_us < found["fp16"].time_us
    assert bound[kind] < bound["fp16"]
    read = {row.operand: row.bytes for row in found[kind].runs[0].traffic if row.dst == "L1"}
    assert read["scale_m"] >= 512 * 2048 // 32
    with pytest.raises(ArgumentError, match="input is mxfp8; convolution takes fp16, bf16, fp32"):
        npusim.ops.convolution(
            npusim.spec((1, 16, 8, 8), "mxfp8"), npusim.spec((16, 16, 1, 1), "mxfp8"),
            device="ascend950pr",
        )  # fmt: skip


A, B = np.zeros((4, 5), np.float16), np.zeros((5, 6), np.float16)
NO_BF16 = replace(
    DEVICES["tiny"],
    cube=replace(DEVICES["tiny"].cube, rates={"fp16": DEVICES["tiny"].cube.rates["fp16"]}),  # type: ignore[union-attr]
)
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "rank of a": (A[0], B, {}, "a has shape (5,); it must have 2 axes (M, K), or a batch"),
    "batch": (A, B[None], {}, "a is (4, 5), b is (1, 5, 6); a's columns must equal b's rows"),
    "inner sizes": (A, B[:4], {}, "a is (4, 5), b is (4, 6); a's columns must equal b's rows"),
    "transposed": (A, B, {"transpose_b": True}, "a is (4, 5), b is (5, 6); a's columns must"),
    "dtypes": (A, B.astype(np.float32), {}, "b is (5, 6) fp32; both must have one dtype"),
    "int64": (A, [[1, 2]], {}, "b is int64; matmul takes fp16, bf16, fp32, int8, and as npusim."),
    "empty": (A[:0], B, {}, "matmul of (0, 5) by (5, 6): every size must be at least 1"),
    "halves": (
        npusim.spec((4, 5), "mxfp4"), npusim.spec((5, 6), "mxfp4"), {"device": "ascend950pr"},
        "every size must be at least 1, and K a multiple of 2",
    ),
    "scaled": (
        npusim.spec((4, 64), "mxfp8"), npusim.spec((64, 6), "mxfp8"), {},
        "matmul: tiny cannot multiply mxfp8: its cube multiplies fp16, fp32, hf32; choose one",
    ),
    "int8": (np.int8(A), np.int8(B), {}, "tiny cannot multiply int8"),
    "int8 as fp16": (np.int8(A), np.int8(B), {"out_dtype": "fp16"}, "sums in int32 leave as int32"),
    "cube": (
        npusim.spec((4, 5), "bf16"), npusim.spec((5, 6), "bf16"), {"device": NO_BF16},
        "matmul: tiny cannot multiply bf16: its cube multiplies fp16",
    ),
    "matrix": (A, B, {"bias": B}, "bias is fp16 of shape (5, 6); it must be fp32 or"),
    "row": (A, B, {"bias": B[0, :5]}, "it must be fp32 or fp16 or bf16 of shape (6,)"),
    "bias for all": (A[None], B[None], {"bias": B[:1]}, "the same for all products of a batch"),
    "whole bias": (A, B, {"bias": [1, 2, 3, 4, 5, 6]}, "bias is int64 of shape (6,)"),
    "bias of int8": (np.int8(A), np.int8(B), {"bias": B[0], "device": "ascend910b2"},
                     "bias is fp16 of shape (6,); it must be int32 of shape (6,)"),
    "scaled bias": (A, B, {"bias": npusim.spec((6,), "mxfp8")}, "bias is mxfp8 of shape (6,)"),
    "out_dtype": (A, B, {"out_dtype": "complex"}, "unknown dtype 'complex'; use one of fp16"),
    "tiling": (
        A, B, {"tiling": ConvTiling(base_m=16, base_n=16, base_k=16, slab_k=16)},
        "it must be 'auto' or a npusim.kernels.matmul.tiling.Tiling",
    ),
}  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED)
def test_bad_arguments_are_refused(refused: str) -> None:
    a, b, options, message = REFUSED[refused]
    with pytest.raises(ArgumentError, match=re.escape(message)):
        npusim.ops.matmul(a, b, **{"device": "tiny", **options})


@pytest.mark.parametrize(
    ("field", "value"),
    [("base_m", 8), ("base_n", 40), ("base_k", -16), ("step_ka", 0), ("step_kb", 0),
     ("l1a_slots", 0),
     ("l0_slots", 0), ("l0c_slots", 0)],
)  # fmt: skip
def test_bad_tilings_are_refused(field: str, value: int) -> None:
    with pytest.raises(ArgumentError, match=rf"tiling {field} is {value}; it must be "):
        replace(Tiling(base_m=16, base_n=16, base_k=16), **{field: value})


def test_mistakes_are_looked_for_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        "npusim.machine.program.unwritten.check_mistakes", lambda one, _: seen.append(one.kernel)
    )
    a = np.ones((16, 16), np.float16)
    for check in (False, True):
        npusim.ops.matmul(a, a, device="tiny", engine="simpy", check=check)
    npusim.ops.matmul(npusim.spec((16, 16), "fp16"), a, device="tiny", engine="simpy", check=True)
    assert seen == ["matmul"]
    with pytest.raises(npusim.ArgumentError, match="check=True has no meaning"):
        npusim.network("resnet50", device="tiny", check=True)
