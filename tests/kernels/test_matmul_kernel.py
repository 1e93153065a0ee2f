"""The matmul kernel: every combination of its switches against float64, and who computes what."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import BF16, FP16, FP32, INT8, MXFP4, DType
from npusim.base.errors import ArgumentError, CapacityError, ProgramError
from npusim.base.records import replace
from npusim.call.call import Call, simulate
from npusim.call.options import Options
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.kernels.matmul.operands import LAYOUTS_A, LAYOUTS_B
from npusim.kernels.parts.sum_parts import SumParts
from npusim.kernels.parts.tile_order import Order, tiles
from npusim.language import Kernel, Language, Plan, Tasks
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.program import Program
from npusim.problem.layouts import to_nz
from tests.sampled import examples
from tests.tables import rows

Array = npt.NDArray[Any]

A2, A5 = load_device("ascend910b2"), load_device("ascend950pr")
DEVICES = {"ascend910b2": A2, "ascend950pr": A5}
FLAGS = (
    *("unit_flag", "preload", "b_before_a", "full_load_a", "stagger_k", "barrier", "paired"),
    *("l1_halves", "n_fastest", "snake", "strided", "n_inner"),
)


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    base_m, base_n, base_k = (draw(st.sampled_from([16, 32, 48])) for _ in range(3))
    values: dict[str, Any] = {name: draw(st.booleans()) for name in FLAGS}
    values |= {
        "base_m": base_m,
        "base_n": base_n,
        "base_k": base_k,
        "step_ka": draw(st.integers(1, 4)),
        "step_kb": draw(st.integers(1, 4)),
        "l1a_slots": draw(st.integers(1, 4)),
        "l1b_slots": draw(st.integers(1, 4)),
        "l0_slots": draw(st.integers(1, 3)),
        "l0c_slots": draw(st.integers(1, 3)),
        "window": draw(st.integers(0, 3)),
        "last_wide": draw(st.booleans()),
    }
    if draw(st.booleans()):
        values |= {"tail_m": draw(st.integers(1, 2)), "tail_n": draw(st.integers(1, 3))}
        values["strided"] = True
    else:
        values["single_core_m"] = draw(st.sampled_from([0, base_m, 2 * base_m, 40]))
        values["single_core_n"] = draw(st.sampled_from([0, base_n, 2 * base_n, 80]))
    values["single_core_k"] = draw(st.sampled_from([0, 0, base_k, 3 * base_k]))
    try:
        return Tiling(**values)
    except ArgumentError:
        reject()


def operands(m: int, k: int, n: int, kind: DType) -> tuple[Array, Array]:
    rng = np.random.default_rng(m + 100 * k + 10_000 * n)
    a, b = (rng.integers(-3, 4, shape) for shape in ((m, k), (k, n)))
    return a.astype(kind.numpy), b.astype(kind.numpy)


def multiply(
    tiling: Tiling, a: Array, b: Array, kind: DType, layouts: tuple[str, str], parts: bool,
    device: str, cores: int, bias: Array | None = None,
) -> Array:  # fmt: skip
    """Run the kernel on operands in their layouts; parts are summed by a kernel too."""
    call = Call("test", Options(device=DEVICES[device], cores=range(cores)), timing_only=False)
    c0 = 32 // kind.bytes
    stored = to_nz(a, c0) if layouts[0] == "NZ" else a.T if layouts[0] == "ND_km" else a
    right = b.T if layouts[1].endswith("nk") else b
    right = to_nz(right, c0) if layouts[1].startswith("NZ") else right
    shape = (a.shape[0], b.shape[1])
    count = -(-a.shape[1] // (tiling.single_core_k or a.shape[1]))
    first, second = call.input("a", stored, kind), call.input("b", right, kind)
    c = call.output("c", shape, FP32)
    row = None if bias is None else call.input("bias", bias, FP32)
    if count > 1 and parts:
        sums = call.workspace("parts", (count, *shape), FP32)
        call.launch(Matmul(tiling, first, second, sums, layouts=layouts, bias=row))
        call.launch(SumParts(sums, c))
    else:
        call.clear(c)
        call.launch(Matmul(tiling, first, second, c, layouts=layouts, bias=row))
    return call.arrays["c"]


@examples(200)
@given(
    st.integers(1, 130), st.integers(1, 300), st.integers(1, 130), tilings(),
    st.sampled_from(LAYOUTS_A), st.sampled_from(LAYOUTS_B), st.sampled_from([FP16, BF16, FP32]),
    st.sampled_from(sorted(DEVICES)), st.booleans(), st.booleans(), st.sampled_from([1, 5, 16]),
    st.booleans(),
)  # fmt: skip
def test_products_of_whole_numbers_are_exact(
    m: int, k: int, n: int, tiling: Tiling, layout_a: str, layout_b: str, kind: DType,
    device: str, parts: bool, through_ub: bool, cores: int, biased: bool,
) -> None:  # fmt: skip
    if layout_a == layout_b[:2] == "NZ":
        k = -(-k // 16) * 16  # nothing else tells K from its padding
    if tiling.single_core_m % 16:
        layout_a = "ND"
    if device == "ascend950pr" and through_ub:
        tiling = Tiling(**{**vars(tiling), "through_ub": True})
    a, b = operands(m, k, n, kind)
    bias = np.arange(n, dtype=np.float32) - n // 2 if biased else None
    got = multiply(tiling, a, b, kind, (layout_a, layout_b), parts, device, cores, bias)
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(got, want if bias is None else want + bias)


def test_sums_of_parts_are_rounded_once() -> None:
    rng = np.random.default_rng(3)
    parts = rng.normal(size=(3, 70, 90)).astype(np.float32)
    call = Call("test", Options(device=A2), timing_only=False)
    out = call.output("c", (70, 90), BF16)
    call.launch(SumParts(call.input("parts", parts, FP32), out))
    want = ((parts[0] + parts[1]) + parts[2]).astype(BF16.numpy)
    np.testing.assert_array_equal(call.arrays["c"], want)


def test_a_sum_of_parts_has_a_float_type() -> None:
    parts, out = Tensor("parts", (2, 4), FP32), Tensor("c", (4,), INT8, "out")
    with pytest.raises(ArgumentError, match="parts must be fp32 of"):
        SumParts(parts, out)


# -- who computes what, in which order ---------------------------------------------------------


def walk(shape: tuple[int, int], order: Order, cores: int) -> dict[int, list[tuple[int, int]]]:
    """(row, column) of tiles of 1 x 1 by core, in order."""
    table = tiles((shape[0], 1, shape[1]), (1, 1), order, cores)
    found: dict[int, list[tuple[int, int]]] = {}
    for core, m0, n0 in zip(table.core, table.m0, table.n0, strict=True):
        found.setdefault(int(core), []).append((int(m0), int(n0)))
    return found


def test_runs_go_along_m_core_after_core() -> None:
    assert walk((2, 3), Order(), 2) == {0: [(0, 0), (1, 0), (0, 1)], 1: [(1, 1), (0, 2), (1, 2)]}


def test_strides_deal_block_after_block() -> None:
    along_n = Order(strided=True, n_fastest=True)
    assert walk((2, 3), along_n, 4) == {
        0: [(0, 0), (1, 1)], 1: [(0, 1), (1, 2)], 2: [(0, 2)], 3: [(1, 0)],
    }  # fmt: skip


def test_windows_snake() -> None:
    order = walk((3, 2), Order(window=2, snake=True), 1)[0]
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (2, 0)]
    columns = walk((2, 3), Order(window=2, snake=True, n_fastest=True), 1)[0]
    assert columns == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (0, 2)]


def test_a_core_walks_its_block() -> None:
    order = Order(single_core_m=2, single_core_n=2, strided=True)
    assert walk((4, 3), order, 4)[1] == [(2, 0), (3, 0), (2, 1), (3, 1)]
    assert walk((4, 3), order, 4)[2] == [(0, 2), (1, 2)]
    inner = Order(single_core_m=2, single_core_n=2, strided=True, n_inner=True)
    assert walk((4, 3), inner, 4)[1] == [(2, 0), (2, 1), (3, 0), (3, 1)]


def test_the_last_round_is_cut_into_pieces_for_idle_cores() -> None:
    table = tiles((64, 64, 160), (64, 32), Order(strided=True, tail_m=2, tail_n=2), 4)
    last = table.n0 >= 128
    assert sorted(zip(table.core[last], table.m0[last], table.n0[last], strict=True)) == [
        (0, 0, 128), (1, 0, 144), (2, 32, 128), (3, 32, 144),
    ]  # fmt: skip
    assert set(zip(table.m[last], table.n[last], strict=True)) == {(32, 16)}
    assert (table.m[~last] == 64).all()


def test_the_last_window_takes_all_rows_that_remain() -> None:
    """Nine rows in windows of four are 4 + 5, and seven are one window."""
    order = Order(window=4, snake=True, strided=True)
    wide = replace(order, last_wide=True)
    for tile_rows, windows in ((9, [(0, 1, 2, 3), (4, 5, 6, 7, 8)]), (7, [tuple(range(7))])):
        table = tiles((tile_rows, 1, 2), (1, 1), wide, 1)
        there = [(m, n) for i, w in enumerate(windows) for n in (0, 1)[:: (-1) ** i] for m in w]
        assert list(zip(table.m0.tolist(), table.n0.tolist(), strict=True)) == there
    narrow = tiles((9, 1, 2), (1, 1), order, 1)
    assert narrow.m0[-2:].tolist() == [8, 8]


def test_parts_of_k_come_slowest() -> None:
    table = tiles((2, 5, 1), (1, 1), Order(single_core_k=3, strided=True), 2)
    assert table.core.tolist() == [0, 1, 0, 1]
    assert table.part.tolist() == [0, 0, 1, 1]
    assert (table.k0.tolist(), table.k.tolist()) == ([0, 0, 3, 3], [3, 3, 2, 2])


# -- what is issued ----------------------------------------------------------------------------


def program(tiling: Tiling, kind: DType = FP16, layout_b: str = "ND_nk", **more: Any) -> Program:
    """A 256 x 512 x 256 product on one core of a 950."""
    b = Tensor("b", (256, 512) if layout_b == "ND_nk" else (512, 256), kind)
    c = Tensor("c", (256, 256), FP32, "out")
    a = Tensor("a", (256, 512), kind)
    return build(Matmul(tiling, a, b, c, layouts=("ND", layout_b), **more), A5, (0,))


def issued(made: Program) -> Counter[tuple[str, str]]:
    return Counter(
        (i.pipe, i.op)
        for template, count in zip(made.templates, made.unit_counts, strict=True)
        for i in template.instructions
        for _ in range(count)
    )


@pytest.mark.parametrize(("layout", "load_b"), [("ND_nk", "load2d"), ("ND", "load3d")])
def test_a_base_block_is_one_load_of_each_operand_and_one_mmad(layout: str, load_b: str) -> None:
    counts = issued(program(Tiling(base_m=128, base_n=256, base_k=64, step_ka=2), layout_b=layout))
    want = Counter({("MTE2", "nd2nz"): 2 * (4 + 2), ("M", "mmad"): 16, ("FIX", "drain"): 2})
    want["MTE1", "load3d"] += 16
    want["MTE1", load_b] += 16
    assert counts == want


def test_block_scaled_operands_bring_their_scales() -> None:
    """mxfp4 packs two numbers in a byte: 512 stored elements are 1024 of K, 32 scales a row."""
    scales = tuple(Tensor(f"scale_{x}", (256, 32), INT8) for x in "mn")
    tiling = Tiling(base_m=256, base_n=256, base_k=128, step_ka=2, step_kb=2, step_scale=4)
    made = program(tiling, MXFP4, scales=scales)
    counts = issued(made)
    assert counts["MTE2", "nd2nz"] == 4
    assert counts["MTE2", "data_move"] == 2
    assert counts["MTE1", "data_move"] == 8
    assert made.macs == 256 * 1024 * 256
    mmads = [c.cycles for c in made.templates[0].costs if c.macs]
    assert mmads == [A5.cube.startup_cycles + 16 * 4 * 16] * 4  # type: ignore[union-attr]
    assert made.moves["GM", "L1", "scale_m"] == 256 * 32


def cycles(tiling: Tiling, shape: tuple[int, int, int] = (512, 2048, 512)) -> int:
    m, k, n = shape
    kernel = Matmul(
        tiling, Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16),
        Tensor("c", (m, n), FP16, "out"),
    )  # fmt: skip
    return simulate(kernel, A5, cores=1).cycles


BASE: dict[str, Any] = {"base_m": 128, "base_n": 256, "base_k": 64}


def test_a_resident_slab_is_copied_once_per_block_of_rows() -> None:
    whole: dict[str, Any] = {
        **{"base_m": 128, "base_n": 64, "base_k": 64, "l1a_slots": 1},
        **{"single_core_m": 128, "single_core_n": 256, "n_inner": True},
    }
    copied = {
        kept: program(Tiling(**whole, full_load_a=kept)).moves["GM", "L1", "a"]
        for kept in (False, True)
    }
    assert copied == {False: 4 * 256 * 512 * 2, True: 256 * 512 * 2}


def test_slots_in_halves_of_l1_avoid_bank_conflicts() -> None:
    """Where the device charges them, and only while another slot can be written."""
    device = A5.replace("paths.L1->L0B.conflict", "1cycle")

    def loads(**switches: Any) -> set[int]:
        tiling = Tiling(base_m=128, base_n=256, base_k=64, **switches)
        made = Matmul(
            tiling, Tensor("a", (128, 512), FP16), Tensor("b", (256, 512), FP16),
            Tensor("c", (128, 256), FP32, "out"), layouts=("ND", "ND_nk"),
        )  # fmt: skip
        template = build(made, device, (0,)).templates[0]
        pairs = zip(template.instructions, template.costs, strict=True)
        return {cost.cycles for i, cost in pairs if i.op == "load2d"}

    (apart,) = loads(l1_halves=True)
    assert loads() == {apart + 256 * 64 * 2 // 512}
    assert loads(l1a_slots=1, l1b_slots=1) == {apart}


# -- what is refused ---------------------------------------------------------------------------


@rows(
    "tests/data/mistakes/kernels.yaml",
    "switches_that_exclude_each_other_are_refused",
    "values, message",
)
def test_switches_that_exclude_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        Tiling(**{**BASE, **values})


def test_tails_of_larger_blocks_are_refused() -> None:
    order = Order(single_core_m=2, strided=True, tail_n=2)
    with pytest.raises(ArgumentError, match="only blocks of one tile are cut"):
        tiles((4, 1, 3), (1, 1), order, 4)


def kernel(tiling: Tiling, layouts: tuple[str, str] = ("ND", "ND"), kind: DType = FP16) -> Matmul:
    shape = (256, 256)
    return Matmul(
        tiling, Tensor("a", shape, kind), Tensor("b", shape, kind),
        Tensor("c", shape, FP32, "out"), layouts=layouts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        (
            {},
            {"layouts": ("NCHW", "ND")},
            "matmul operands are ('NCHW', 'ND'); A is one of ND, ND_km, NZ",
        ),
        ({"base_k": 48}, {"kind": INT8}, "base_k is 48; for int8 as ND and ND it must be a"),
        ({"base_n": 48}, {"kind": INT8, "layouts": ("ND", "NZ")}, "base_n is 48; for int8"),
        ({"single_core_m": 40}, {"layouts": ("NZ", "ND")}, "single_core_m is 40; for fp16 as NZ"),
        ({"single_core_k": 96}, {}, "single_core_k is 96; it must be a multiple of base_k = 64"),
    ],
)
def test_blocks_that_do_not_fit_the_type_are_refused(
    values: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        kernel(Tiling(**{**BASE, **values}), **more)


def test_a_staging_buffer_for_less_than_sixteen_rows_is_refused() -> None:
    k = Language(A5, A5.core_kind("cube"))
    c, staging = k.buffer("L0C", (16, 64), FP32), k.buffer("UB", (8, 64), FP32)
    out = Tensor("c", (16, 64), FP32, "out").at(0, 256, rows=16, pitch=256)
    with pytest.raises(ProgramError, match="holds 2048 B, 16 rows of 64 fp32 need 4096 B"):
        k.fixpipe_through_ub(out, c.next(), 16, 64, FP32, staging=staging)


def test_slabs_that_overfill_l1_are_refused_with_the_arithmetic() -> None:
    tiling = Tiling(**{**BASE, "step_ka": 8, "step_kb": 8})
    large = (1024, 1024)
    made = Matmul(
        tiling, Tensor("a", large, FP16), Tensor("b", large, FP16), Tensor("c", large, FP32, "out")
    )
    with pytest.raises(CapacityError) as caught:
        build(made, A2, (0,))
    assert "L1 holds 524288 B but a_l1 2x131072 + b_l1 2x262144 = 786432 B" in str(caught.value)


@dataclass(frozen=True)
class Biased(Kernel):
    """One mmad that begins with a bias; ``memory`` is where that lies, ``init`` whether C does."""

    memory: str
    init: bool

    name: ClassVar[str] = "biased"
    role: ClassVar[str] = "cube"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        c, a, b = (
            k.buffer(m, (16, 16), t) for m, t in (("L0C", FP32), ("L0A", FP16), ("L0B", FP16))
        )
        row = k.buffer(self.memory, (16,), FP32)

        def emit(_: Any) -> None:
            bias = row.next().at(0, 64)
            k.mmad(c.next(), a.next(), b.next(), 16, 16, 16, FP16, init=self.init, bias=bias)

        return Plan(Tasks(np.zeros(1, np.int64), One, {"of": np.zeros(1, np.int64)}, {}), emit)


class One(NamedTuple):
    of: int


@pytest.mark.parametrize(
    ("memory", "init", "message"),
    [("L1", True, "lies in L1, this operand must be in BT"), ("BT", False, "C begins with a bias")],
)
def test_a_bias_lies_in_the_table_and_begins_c(memory: str, init: bool, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        npusim.simulate(Biased(memory, init), "ascend910b2", check=False)


def test_a_chip_without_a_table_says_so() -> None:
    with pytest.raises(ArgumentError, match="no memory of role BT"):
        npusim.simulate(Biased("BT", init=True), "ascend910", check=False)
