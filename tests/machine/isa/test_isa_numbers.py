"""What every instruction computes, against loops written from its definition alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from npusim.base.errors import ProgramError
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.cube import Drain, Mmad
from npusim.machine.isa.dma import DataMove, Fill, Load2d, Load3d, Nd2nz, Window
from npusim.machine.isa.operands import Buffer, Slot, SlotRegion, Tensor
from npusim.machine.numerics.memory import CoreMemory, GlobalMemory
from npusim.machine.program.program import Program
from tests.sampled import examples

Array = np.ndarray[Any, Any]
TINY = load_device("tiny")
MEMORIES = ("L1", "L0A", "L0B", "L0C", "UB")
BUFFERS = tuple(Buffer(name.lower(), name, 1 << 16, 1, i) for i, name in enumerate(MEMORIES))
L1, L0A, L0B, L0C, UB = (Slot(buffer, 0) for buffer in BUFFERS)


class Bench:
    """The private memories of one core (poisoned) and one GM tensor."""

    def __init__(self, gm: Array | None = None) -> None:
        gm = np.zeros(16, np.float16) if gm is None else gm
        kinds = {d.numpy: d for d in (FP16, FP32, BF16, INT8, INT32)}
        self.gm = Tensor("gm", gm.shape, kinds[gm.dtype], "inout")
        self.array = gm.copy()
        program = cast(Program, SimpleNamespace(buffers=BUFFERS))
        self.memory = CoreMemory(
            program, GlobalMemory({"gm": self.array.reshape(-1).view(np.uint8)})
        )

    def put(self, slot: Slot, values: Array, dtype: DType, offset: int = 0) -> SlotRegion:
        region = slot.at(offset, values.size * dtype.bytes)
        self.memory.write(region, values.reshape(1, -1).copy(), dtype)
        return region

    def get(self, region: SlotRegion, dtype: DType) -> Array:
        values: Array = self.memory.read(region, dtype)[0].copy()
        return values


# -- moves -------------------------------------------------------------------------------------


def test_data_move_gathers_and_scatters_rows() -> None:
    bench = Bench(np.arange(64, dtype=np.float16))
    bench.put(UB, np.zeros(32), FP16)
    target = UB.at(0, 8, rows=2, pitch=16)
    path = TINY.path("GM", "UB")
    DataMove(target, bench.gm.at(4, 4, rows=4, pitch=32), path, FP16).execute(bench.memory)
    seen = bench.get(UB.at(0, 32), FP16).ravel()
    assert seen.tolist() == [2, 3, 18, 19, 0, 0, 0, 0, 34, 35, 50, 51, 0, 0, 0, 0]
    back = DataMove(bench.gm.at(0, 16), UB.at(0, 16), TINY.path("UB", "GM"), FP16)
    back.execute(bench.memory)
    assert bench.array[:9].tolist() == [2, 3, 18, 19, 0, 0, 0, 0, 8]


@pytest.mark.parametrize(
    ("dtype", "old", "added", "want"),
    [
        (FP32, 1.0, 2.0**-25, 1.0),  # rounded to the 24 bits of fp32
        (FP32, 1.0, 0.5, 1.5),
        (FP16, 2048.0, 1.0, 2048.0),  # a tie goes to even
        (FP16, 2050.0, 1.0, 2052.0),
        (BF16, 256.0, 1.0, 256.0),
        (INT32, 2**24 + 1, 2**24, 2**25 + 1),  # exact where fp32 is not
        (INT32, 2**31 - 1, 1, -(2**31)),
    ],
)
def test_atomic_add_rounds_to_the_type_of_gm(
    dtype: DType, old: float, added: float, want: float
) -> None:
    bench = Bench(np.full(16, old, dtype.numpy))
    source = bench.put(UB, np.full(8, added), dtype)
    target = bench.gm.at(4 * dtype.bytes, 8 * dtype.bytes)
    with np.errstate(over="ignore"):
        DataMove(target, source, TINY.path("UB", "GM"), dtype, True).execute(bench.memory)
    assert bench.array.tolist() == [old] * 4 + [want] * 8 + [old] * 4


@pytest.mark.parametrize(("dtype", "c0"), [(FP16, 16), (FP32, 8)])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (16, 16), (15, 17), (33, 40)])
def test_nd2nz_makes_columns_of_c0_with_zeros_at_the_right(
    dtype: DType, c0: int, rows: int, columns: int
) -> None:
    pitch = columns + 3
    matrix = np.arange(1, rows * pitch + 1).reshape(rows, pitch).astype(dtype.numpy)
    bench = Bench(matrix)
    n1, m16 = -(-columns // c0), -(-rows // 16) * 16
    size = dtype.bytes
    target = L1.at(0, n1 * m16 * 32)
    source = bench.gm.at(0, columns * size, rows=rows, pitch=pitch * size)
    Nd2nz(target, source, TINY.path("GM", "L1", "nd2nz"), dtype).execute(bench.memory)
    got = bench.get(target, dtype).reshape(n1, m16, c0)
    for j in range(n1):
        for i in range(rows):
            for e in range(c0):
                inside = j * c0 + e < columns
                assert got[j, i, e] == (matrix[i, j * c0 + e] if inside else 0)
    assert np.isnan(got[:, rows:]).all()  # pad rows are not written


@pytest.mark.parametrize("transpose", [False, True])
def test_load2d_picks_fractals_and_swaps_their_axes(transpose: bool) -> None:
    fractals = np.random.default_rng(1).integers(0, 99, (8, 16, 16)).astype(np.float16)
    bench = Bench()
    bench.put(L1, fractals, FP16)
    source = L1.at(512, 512, rows=3, pitch=1024)
    path = TINY.path("L1", "L0B", "transpose" if transpose else "")
    Load2d(L0B.at(512, 1536), source, path, FP16, transpose).execute(bench.memory)
    got = bench.get(L0B.at(512, 1536), FP16).reshape(3, 16, 16)
    want = fractals[[1, 3, 5]]
    np.testing.assert_array_equal(got, want.swapaxes(1, 2) if transpose else want)
    assert np.isnan(bench.get(L0B.at(0, 512), FP16)).all()


def test_fill_writes_an_immediate() -> None:
    bench = Bench()
    Fill(L1.at(32, 64), 1.5, TINY.path("IMM", "L1"), BF16).execute(bench.memory)
    assert (bench.get(L1.at(32, 64), BF16) == 1.5).all()
    assert np.isnan(bench.get(L1.at(0, 32), BF16).astype(np.float32)).all()


# -- img2col -----------------------------------------------------------------------------------


def im2col(planes: Array, w: Window, c0: int) -> Array:
    """The img2col matrix (positions, C1 * KH * KW * C0) by five loops."""
    c1 = planes.shape[0]
    columns = c1 * w.kernel_h * w.kernel_w * c0
    out = np.zeros((w.out_h * w.out_w, columns), planes.dtype)
    for oy in range(w.out_h):
        for ox in range(w.out_w):
            row = []
            for c in range(c1):
                for kh in range(w.kernel_h):
                    for kw in range(w.kernel_w):
                        y = oy * w.stride_h - w.pad_top + kh * w.dilation_h
                        x = ox * w.stride_w - w.pad_left + kw * w.dilation_w
                        inside = 0 <= y < w.h and 0 <= x < w.w
                        row.append(planes[c, y, x] if inside else np.zeros(c0, planes.dtype))
            out[oy * w.out_w + ox] = np.concatenate(row)
    return out


WINDOWS = st.builds(
    Window,
    h=st.integers(1, 9), w=st.integers(1, 9),
    pad_left=st.integers(0, 4), pad_right=st.integers(0, 4),
    pad_top=st.integers(0, 4), pad_bottom=st.integers(0, 4),
    kernel_h=st.integers(1, 3), kernel_w=st.integers(1, 3),
    stride_h=st.integers(1, 3), stride_w=st.integers(1, 3),
    dilation_h=st.integers(1, 3), dilation_w=st.integers(1, 3),
)  # fmt: skip


@examples(300)
@given(
    WINDOWS, st.integers(1, 2), st.sampled_from(["L0A", "L0A^T", "L0B"]),
    st.sampled_from([FP16, FP32]), st.data(),
)  # fmt: skip
def test_load3d_cuts_the_img2col_matrix(
    window: Window, c1: int, form: str, dtype: DType, data: st.DataObject
) -> None:
    assume(min(window.out_h, window.out_w) >= 1)
    c0 = 32 // dtype.bytes
    planes = np.random.default_rng(5).integers(1, 99, (c1, window.h, window.w, c0))
    planes = planes.astype(dtype.numpy)
    matrix = im2col(planes, window, c0)
    m_start = 16 * data.draw(st.integers(0, (len(matrix) - 1) // 16))
    m_ext = data.draw(st.integers(1, 40))  # may run past the last position
    k_start = c0 * data.draw(st.integers(0, matrix.shape[1] // c0 - 1))
    k_ext = data.draw(st.integers(1, matrix.shape[1] - k_start))
    bench = Bench()
    source = bench.put(L1, planes, dtype)
    slot = L0B if form == "L0B" else L0A
    transpose = form == "L0A^T"
    # The contraction axis comes in blocks of C0, the other in blocks of 16.
    m_block, k_block = (16, c0) if form == "L0A" else (c0, 16)
    m1, k1 = -(-m_ext // m_block), -(-k_ext // k_block)
    target = slot.at(0, m1 * k1 * 512)
    path = TINY.path("L1", slot.buffer.memory, "load3d_transpose" if transpose else "load3d")
    Load3d(target, source, path, dtype, window, m_start, m_ext, k_start, k_ext, transpose).execute(
        bench.memory
    )
    flat = bench.get(target, dtype).ravel()
    for m in range(m1 * m_block):
        i, r = divmod(m, m_block)
        inside = m < m_ext and m_start + m < len(matrix)
        for k in range(k1 * k_block):
            j, e = divmod(k, k_block)
            place = {
                "L0A": ((i * k1 + j) * 16 + r) * c0 + e,  # Zz: row by row
                "L0A^T": ((j * m1 + i) * 16 + e) * c0 + r,  # Zz of the transpose
                "L0B": ((i * k1 + j) * 16 + e) * c0 + r,  # Zn: columns stand up
            }[form]
            whole = k < -(-k_ext // c0) * c0  # columns are cut in whole C0 blocks
            assert flat[place] == (matrix[m_start + m, k_start + k] if inside and whole else 0)


def test_load3d_to_ub_pads_with_a_value() -> None:
    window = Window(2, 2, 1, 1, 1, 1, 3, 3, 2, 2)
    bench = Bench()
    source = bench.put(L1, np.full((2, 2, 16), 7.0), FP16)
    target = UB.at(0, 9 * 512)
    path = load_device("ascend910").path("L1", "UB", "load3d")
    Load3d(target, source, path, FP16, window, 0, 1, 0, 144, padding=-9.0).execute(bench.memory)
    fractals = bench.get(target, FP16).reshape(9, 16, 16)
    assert fractals[:, 0, 0].tolist() == [-9, -9, -9, -9, 7, 7, -9, 7, 7]
    assert (fractals[:, 1:] == -9).all()  # beyond the last position


# -- cube --------------------------------------------------------------------------------------


def pack_a(a: Array, m1: int, k1: int, c0: int) -> Array:
    """Zz: row-major blocks, row-major inside; NaN beyond the matrix."""
    out = np.full((m1, k1, 16, c0), np.nan, a.dtype)
    for (m, k), value in np.ndenumerate(a):
        out[m // 16, k // c0, m % 16, k % c0] = value
    return out


def pack_b(b: Array, k1: int, n1: int, c0: int) -> Array:
    """Zn: row-major blocks, column-major inside; NaN beyond the matrix."""
    out = np.full((k1, n1, 16, c0), np.nan, b.dtype)
    for (k, n), value in np.ndenumerate(b):
        out[k // c0, n // 16, n % 16, k % c0] = value
    return out


@examples(40)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 40),
    st.sampled_from([FP16, BF16, FP32]), st.booleans(),
)  # fmt: skip
def test_mmad_multiplies_exactly_its_extents(
    m: int, k: int, n: int, dtype: DType, init: bool
) -> None:
    rng = np.random.default_rng(m * 1600 + k * 40 + n)
    a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
    c0 = 32 // dtype.bytes
    m1, k1, n1 = -(-m // 16), -(-k // c0), -(-n // 16)
    bench = Bench()
    operands = (
        bench.put(L0A, pack_a(a.astype(dtype.numpy), m1, k1, c0), dtype),
        bench.put(L0B, pack_b(b.astype(dtype.numpy), k1, n1, c0), dtype),
    )
    before = rng.integers(-9, 9, (n1, m1 * 16, 16)).astype(np.float32)
    c = bench.put(L0C, before, FP32)
    Mmad(c, *operands, m, k, n, dtype, init).execute(bench.memory)
    got = bench.get(c, FP32).reshape(n1, m1 * 16, 16).transpose(1, 0, 2).reshape(m1 * 16, -1)
    old = before.transpose(1, 0, 2).reshape(m1 * 16, -1)
    want = old.copy()
    want[:m, :n] = a @ b + (0 if init else old[:m, :n])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("bits", "value"), [(0, 1 + 2**-12), (11, 1.0), (10, 1.0)])
def test_hf32_operands_lose_mantissa_bits_on_the_way_into_the_cube(bits: int, value: float) -> None:
    bench = Bench()
    c = L0C.at(0, 1024)
    a = bench.put(L0A, np.full((1, 1, 16, 8), 1 + 2**-12), FP32)
    b = bench.put(L0B, np.ones((1, 1, 16, 8)), FP32)
    Mmad(c, a, b, 16, 8, 16, FP32, True, bits).execute(bench.memory)
    assert (bench.get(c, FP32) == 8 * value).all()


def test_mmads_accumulate_one_rounded_sum_each_in_program_order() -> None:
    bench = Bench()
    c = L0C.at(0, 1024)
    for i, value in enumerate((2.0**24, 1.0, 1.0)):  # fp32 drops each 1 on its own
        a = bench.put(L0A, np.full((1, 1, 16, 8), value), FP32)
        b = bench.put(L0B, np.ones((1, 1, 16, 8)), FP32)
        Mmad(c, a, b, 1, 1, 1, FP32, i == 0).execute(bench.memory)
    assert bench.get(c, FP32).ravel()[0] == 2.0**24


def nz(matrix: Array) -> Array:
    """A matrix with whole fractals as NZ columns."""
    return matrix.reshape(len(matrix), -1, 16).swapaxes(0, 1)


@pytest.mark.parametrize(("m", "n"), [(16, 16), (20, 40), (1, 1), (33, 16)])
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16])
def test_drain_converts_and_keeps_nz_or_writes_rows(m: int, n: int, dtype: DType) -> None:
    m16, n16 = -(-m // 16) * 16, -(-n // 16) * 16
    tile = np.random.default_rng(2).normal(size=(m16, n16)).astype(np.float32) * 1e4
    want = tile.astype(dtype.numpy)
    tile[0, 0] = 1e6 if dtype is FP16 else tile[0, 0]
    want[0, 0] = 65504 if dtype is FP16 else want[0, 0]  # leaving L0C saturates
    size = dtype.bytes

    bench = Bench(np.zeros((n16 // 16, m, 16), dtype.numpy))
    source = bench.put(L0C, nz(tile), FP32)
    columns = bench.gm.at(0, m * 16 * size, rows=n16 // 16, pitch=m * 16 * size)
    Drain(columns, source, m, n, TINY.path("L0C", "GM"), dtype).execute(bench.memory)
    np.testing.assert_array_equal(bench.array, nz(want[:m]))

    bench = Bench(np.zeros((m, n + 5), dtype.numpy))
    source = bench.put(L0C, nz(tile), FP32)
    rows = bench.gm.at(0, n * size, rows=m, pitch=(n + 5) * size)
    Drain(rows, source, m, n, TINY.path("L0C", "GM", "nz2nd"), dtype).execute(bench.memory)
    np.testing.assert_array_equal(bench.array[:, :n], want[:m, :n])
    assert not bench.array[:, n:].any()


@pytest.mark.parametrize("first", [0, 5])
def test_drain_writes_several_matrices_whose_rows_lie_apart(first: int) -> None:
    """Three columns of fractals as matrices of 16, every second row of which is another's."""
    m, tile = 7, np.random.default_rng(3).normal(size=(16, 48)).astype(np.float32)
    bench = Bench(np.zeros((3, 2 * m + 1, 16), np.float16))
    bench.put(L0C, nz(tile), FP32)
    source = L0C.at(first * 64, m * 64, rows=3, pitch=1024)
    plane = (2 * m + 1) * 32
    target = bench.gm.at(32, 32, rows=m, pitch=64)
    path = TINY.path("L0C", "GM", "nz2nd")
    drain = Drain(target, source, m, 16, path, FP16, matrices=3, apart=plane)
    drain.check(TINY)
    assert [region.offset for region in drain.writes()] == [32, 32 + plane, 32 + 2 * plane]
    assert drain.facts().move == ("L0C", "GM", "gm", 3 * m * 32)
    assert drain.cost(TINY).cycles == path.startup_cycles + -(-3 * m * 32 // 64)
    drain.execute(bench.memory)
    want = tile[first : first + m].astype(np.float16).reshape(m, 3, 16).swapaxes(0, 1)
    np.testing.assert_array_equal(bench.array[:, 1::2], want)
    assert not bench.array[:, ::2].any()


@pytest.mark.parametrize(
    ("path", "apart", "match"),
    [
        ("", 1024, "only nz2nd drains to GM write several"),
        ("nz2nd", 65536 * 2, "fields hold up to 65535 matrices and elements"),
        ("nz2nd", 33, "33 B apart"),
    ],
)
def test_several_matrices_lie_as_the_fields_hold(path: str, apart: int, match: str) -> None:
    bench = Bench(np.zeros(200_000, np.float16))
    source = L0C.at(0, 1024, rows=2, pitch=1024)
    target = bench.gm.at(0, 32, rows=16, pitch=32)
    way = TINY.path("L0C", "GM", path)
    with pytest.raises(ProgramError, match=match):
        Drain(target, source, 16, 16, way, FP16, matrices=2, apart=apart).check(TINY)


@pytest.mark.parametrize(("n", "columns"), [(32, 4), (20, 3), (7, 1)])
def test_drain_can_split_columns_of_16_into_two_of_8(n: int, columns: int) -> None:
    m, tile = 5, np.arange(16 * 32, dtype=np.float32).reshape(16, 32)[:, : -(-n // 16) * 16]
    bench = Bench(np.zeros((columns, m, 8), np.float32))
    source = bench.put(L0C, nz(tile), FP32)
    target = bench.gm.at(0, m * 32, rows=columns, pitch=m * 32)
    path = TINY.path("L0C", "GM")
    Drain(target, source, m, n, path, FP32, c0=8).execute(bench.memory)
    for j in range(columns):
        np.testing.assert_array_equal(bench.array[j], tile[:m, 8 * j : 8 * j + 8])


def test_drain_to_ub_keeps_nz_and_atomic_drains_add() -> None:
    tile = np.arange(256, dtype=np.float32).reshape(16, 16)
    bench = Bench(np.ones((1, 16, 16), np.float32))
    source = bench.put(L0C, nz(tile), FP32)
    target = UB.at(0, 1024)
    Drain(target, source, 16, 16, TINY.path("L0C", "UB"), FP32).execute(bench.memory)
    np.testing.assert_array_equal(bench.get(target, FP32).reshape(16, 16), tile)
    out = bench.gm.at(0, 1024)
    for _ in range(2):
        Drain(out, source, 16, 16, TINY.path("L0C", "GM"), FP32, True).execute(bench.memory)
    np.testing.assert_array_equal(bench.array[0], 2 * tile + 1)
