"""deconv_grad_filter against float64 loops, worked examples, and its own promises on time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim
from npusim.convolution import Convolution
from npusim.dtypes import FP16, FP32
from npusim.errors import ArgumentError
from npusim.kernels.tilings.deconv_grad_filter import Tiling, auto_tiling
from npusim.ops import deconv_grad_filter
from npusim.reference import conv_filter_grad
from npusim.results import Result

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The sizes in the words of the library; pairs are (height, width)."""

    batch: int
    in_size: tuple[int, int]
    in_c: int
    out_size: tuple[int, int]
    out_c: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]  # above and left; out_size says where dy ends
    dilation: tuple[int, int]
    group: int

    @property
    def icg(self) -> int:
        return self.in_c // self.group

    @property
    def ocg(self) -> int:
        return self.out_c // self.group

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def layer(self) -> Convolution:
        """The transposed layer that the kernel is told."""
        return Convolution(
            n=self.batch,
            cin=self.in_c,
            cout=self.out_c,
            spatial=self.in_size,
            kernel=self.kernel,
            stride=self.stride,
            padding=((self.pad[0], 0), (self.pad[1], 0)),
            dilation=self.dilation,
            groups=self.group,
            transposed=True,
            outputs=self.out_size,
        )


def shape(**sizes: Any) -> Problem:
    """A small problem with some sizes changed; dy has its natural size unless given."""
    s = Problem(
        **{"batch": 2, "in_size": (5, 6), "in_c": 4, "out_size": (0, 0), "out_c": 10,
           "kernel": (3, 2), "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1,
           **sizes}
    )  # fmt: skip
    if "out_size" in sizes:
        return s
    h, w = (
        max(1, (i - 1) * st_ - 2 * p + d * (k - 1) + 1)
        for i, st_, p, d, k in zip(s.in_size, s.stride, s.pad, s.dilation, s.kernel, strict=True)
    )
    return replace(s, out_size=(h, w))


def param(s: Problem, workspace: int = 0) -> list[int]:
    """The parameter array of a problem; a workspace has an address that is not 0."""
    return [
        s.batch, *s.in_size, s.in_c, s.batch, *s.out_size, s.out_c, *s.kernel, *s.stride, *s.pad,
        *s.dilation, s.group, workspace, 0, 0,
    ]  # fmt: skip


def operands(s: Problem, kind: Any = np.float32, seed: int = 0) -> tuple[Array, Array]:
    """Random dy and x."""
    rng = np.random.default_rng(seed)
    sizes = ((s.batch, *s.out_size, s.out_c), (s.batch, *s.in_size, s.in_c))
    dy, x = (rng.standard_normal(size).astype(kind) for size in sizes)
    return dy, x


def reads(s: Problem) -> Iterator[tuple[int, ...]]:
    """(kh, kw, ih, iw, r, c) of every place of dy that exists, as the definition has it."""
    (kh, kw), (h, w) = s.kernel, s.in_size
    for u, v, i, j in product(range(kh), range(kw), range(h), range(w)):
        r = i * s.stride[0] - s.pad[0] + u * s.dilation[0]
        c = j * s.stride[1] - s.pad[1] + v * s.dilation[1]
        if 0 <= r < s.out_size[0] and 0 <= c < s.out_size[1]:
            yield u, v, i, j, r, c


def oracle(s: Problem, dy: Array, x: Array) -> Array:
    """The definition, tap by tap and position by position, in float64."""
    grads = dy.astype(np.float64).reshape(s.batch, *s.out_size, s.group, s.ocg)
    maps = x.astype(np.float64).reshape(s.batch, *s.in_size, s.group, s.icg)
    dw = np.zeros((s.group, s.ocg, *s.kernel, s.icg))
    for kh, kw, ih, iw, r, c in reads(s):
        dw[:, :, kh, kw] += np.einsum("bgo,bgi->goi", grads[:, r, c], maps[:, ih, iw])
    return dw.reshape(s.group, s.ocg * s.taps, s.icg)


def run(s: Problem, kind: Any = np.float32, **options: Any) -> Result:
    """The operator on random operands."""
    return deconv_grad_filter(*operands(s, kind), param(s), **options)


def timed(s: Problem, kind: str = "fp32", **options: Any) -> Result:
    """The operator without numbers."""
    dy = npusim.spec((s.batch, *s.out_size, s.out_c), kind)
    x = npusim.spec((s.batch, *s.in_size, s.in_c), kind)
    return deconv_grad_filter(dy, x, param(s), **options)


def first(result: Result) -> Array:
    """The gradient."""
    assert result.outputs is not None
    dw = result.outputs[0]
    assert dw is not None
    return dw


def agrees(dw: Array, s: Problem, dy: Array, x: Array) -> None:
    """Within 1e-5 of the sum of magnitudes (fp32), and half an ulp besides (fp16)."""
    want, scale = oracle(s, dy, x), oracle(s, np.abs(dy), np.abs(x))
    assert dw.shape == want.shape
    slack = 1e-5 * scale
    if dw.dtype == np.float16:
        slack = slack + np.spacing(np.abs(want).astype(np.float16)).astype(np.float64) / 2
    assert (np.abs(dw.astype(np.float64) - want) <= slack).all()


def moved(result: Result, operand: str) -> int:
    """Bytes that crossed GM for an operand."""
    return sum(row.bytes for row in result.runs[0].traffic if row.operand == operand)


def test_micro_example() -> None:
    """x 1..4, dy 1..16, a 3 x 3 kernel, stride 2, padding 1, worked out elsewhere."""
    s = shape(batch=1, in_size=(2, 2), in_c=1, out_c=1, kernel=(3, 3), stride=(2, 2), pad=(1, 1),
              out_size=(4, 4))  # fmt: skip
    dy, x = (np.arange(1, n * n + 1, dtype=np.float32).reshape(1, n, n, 1) for n in (4, 2))
    got = first(deconv_grad_filter(dy, x, param(s)))
    assert got.tolist() == [[[v] for v in (24, 43, 50, 44, 78, 88, 68, 118, 128)]]


@pytest.mark.parametrize("device", ["ft78ne", "mt7004"])
@pytest.mark.parametrize("storage", ["shared", "private"])
def test_the_documented_program(device: str, storage: str) -> None:
    """4 x 4 dy and a 4 x 4 kernel: tap (kh, kw) sees (4 - kh)(4 - kw) positions of 16 images."""
    s = shape(batch=16, in_size=(4, 4), in_c=4, out_size=(4, 4), out_c=4, kernel=(4, 4))
    ones = np.ones((16, 4, 4, 4), np.float32)
    mask = 0b1111 if storage == "shared" else None
    result = deconv_grad_filter(ones, ones, param(s), mask, storage, device)
    count = 16 * np.outer([4, 3, 2, 1], [4, 3, 2, 1])
    want = np.broadcast_to(count[None, :, :, None], (4, 4, 4, 4)).reshape(1, 64, 4)
    np.testing.assert_array_equal(first(result), want)
    assert result.runs[0].cores == (4 if storage == "shared" else 1)


@pytest.mark.parametrize(("in_c", "out_c", "group"), [(3, 9, 1), (3, 9, 3), (12, 12, 12)])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_shapes_of_a_framework(in_c: int, out_c: int, group: int, kind: Any) -> None:
    s = shape(batch=2, in_size=(32, 32), in_c=in_c, out_c=out_c, group=group, kernel=(3, 3),
              stride=(2, 2), pad=(1, 1), dilation=(2, 2))  # fmt: skip
    dy, x = operands(s, kind)
    agrees(first(deconv_grad_filter(dy, x, param(s), device="mt7004")), s, dy, x)


def test_it_is_the_transposed_convolutions_filter_gradient() -> None:
    """Against the shared reference: a transposed convolution exchanges the roles of x and dy."""
    s = shape(in_c=6, out_c=4, group=2, stride=(2, 1), dilation=(1, 2), pad=(1, 0))
    dy, x = operands(s)
    grad, read = (np.moveaxis(a, -1, 1) for a in (dy, x))  # channels first
    pads = [(s.pad[0], s.pad[0]), (s.pad[1], s.pad[1])]
    want = conv_filter_grad(grad, read, s.kernel, s.stride, pads, s.dilation, s.group)
    # (in_c, OCG, KH, KW) -> (group, OCG, KH, KW, ICG)
    by_group = want.reshape(s.group, s.icg, s.ocg, *s.kernel).transpose(0, 2, 3, 4, 1)
    got = first(deconv_grad_filter(dy, x, param(s)))
    np.testing.assert_allclose(got, by_group.reshape(got.shape), rtol=1e-5, atol=1e-5)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    group = draw(st.integers(1, 3))
    batch, icg, ocg = (draw(st.integers(1, most)) for most in (2, 3, 4))
    return Problem(
        batch=batch, in_size=pair(1, 6), in_c=group * icg, out_size=pair(1, 14),
        out_c=group * ocg, kernel=pair(1, 4), stride=pair(1, 3), pad=pair(0, 4),
        dilation=pair(1, 3), group=group,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(s=problems(), half=st.booleans(), mask=st.integers(1, 255))
def test_it_is_its_definition(s: Problem, half: bool, mask: int) -> None:
    dy, x = operands(s, np.float16 if half else np.float32)
    agrees(first(deconv_grad_filter(dy, x, param(s), mask, device="mt7004")), s, dy, x)


@settings(max_examples=40, deadline=None)
@given(s=problems(), data=st.data())
def test_any_tiling_gives_the_same_bits(s: Problem, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, s.in_size[1]))
    rows = data.draw(st.integers(1, s.in_size[0])) if width == s.in_size[1] else 1
    channels, taps, columns = (data.draw(st.integers(1, n)) for n in (s.ocg, s.taps, s.icg))
    tiling = Tiling(channels=channels, taps=taps, columns=columns, rows=rows, width=width)
    np.testing.assert_array_equal(first(run(s, tiling=tiling)), first(run(s)))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_the_mask_changes_no_bit(kind: Any) -> None:
    s = shape(batch=3, in_size=(7, 9), in_c=5, out_c=11, stride=(2, 1), pad=(1, 1))
    want = first(run(s, kind, device="mt7004"))
    for mask in (1, 0b10, 0b1010_0101, [0, 7], "0-4"):
        result = run(s, kind, core_mask=mask, device="mt7004")
        np.testing.assert_array_equal(first(result).view(np.uint8), want.view(np.uint8))
    private = run(s, kind, storage="private", device="mt7004")
    np.testing.assert_array_equal(first(private).view(np.uint8), want.view(np.uint8))


def test_dw_is_overwritten_where_nothing_is_summed() -> None:
    s = shape(batch=1, in_size=(2, 2), out_size=(1, 1), kernel=(4, 4), pad=(9, 9))
    np.testing.assert_array_equal(first(run(s)), 0)


def test_half_accumulates_in_fp32_and_says_so() -> None:
    s = shape(batch=1, in_size=(64, 64), in_c=1, out_c=1, kernel=(1, 1))
    ones = np.ones((1, 64, 64, 1), np.float16)
    result = deconv_grad_filter(ones, ones, param(s), device="mt7004")
    assert first(result).item() == 4096  # fp16 sums of ones stop at 2048
    assert first(result).dtype == np.float16
    assert any("accumulates in fp32 and rounds once" in note for note in result.notes)
    assert not any("rounds once" in note for note in run(s).notes)


WIDE_ROWS = shape(batch=1, in_size=(1, 3000), in_c=1, out_c=8, kernel=(1, 3))
MANY_TAPS = shape(batch=1, in_size=(2, 2), in_c=2, out_c=2, kernel=(90, 100), pad=(40, 40))
MANY_COLUMNS = shape(batch=1, in_size=(2, 3), in_c=3000, out_c=8, kernel=(3, 3))


@pytest.mark.parametrize("s", [WIDE_ROWS, MANY_TAPS, MANY_COLUMNS])
def test_what_does_not_fit_is_cut(s: Problem) -> None:
    dy, x = operands(s)
    agrees(first(deconv_grad_filter(dy, x, param(s), 1)), s, dy, x)


@settings(max_examples=200, deadline=None)
@given(
    size=st.tuples(st.integers(1, 500), st.integers(1, 5000)), channels=st.integers(1, 5000),
    kernel=st.tuples(st.integers(1, 40), st.integers(1, 40)), half=st.booleans(),
    cores=st.integers(1, 8),
)  # fmt: skip
def test_auto_tiling_fits_its_memories(
    size: tuple[int, int], channels: int, kernel: tuple[int, int], half: bool, cores: int
) -> None:
    s = shape(in_size=size, in_c=channels, out_c=channels, kernel=kernel)
    device, kind, e = npusim.load_device("mt7004"), FP16 if half else FP32, 2 if half else 4
    t = auto_tiling(s.layer, kind, device, cores)
    m, positions = t.channels * t.taps, t.rows * t.width
    assert 2 * m * positions * e <= 64 << 10
    used = 2 * positions * t.columns * e + m * t.columns * (6 if half else 4)
    assert used <= 768 << 10
    assert t.width == size[1] or t.rows == 1
    assert t.columns == channels or t.columns % (192 if half else 96) == 0 or t.columns < 192


BUSY = shape(batch=2, in_size=(14, 14), in_c=48, out_c=64, kernel=(3, 3))


def test_more_cores_are_faster() -> None:
    cycles = [timed(BUSY, cores=f"0-{n - 1}").runs[0].cycles for n in (1, 2, 4, 8)]
    for slow, fast in pairwise(cycles):
        assert fast < 0.75 * slow


def test_timing_only_equals_full() -> None:
    for s, kind, name in ((BUSY, np.float32, "fp32"), (shape(group=2), np.float16, "fp16")):
        full, only = run(s, kind, device="mt7004"), timed(s, name, device="mt7004")
        assert only.outputs is None
        assert full.runs[0].cycles == only.runs[0].cycles
        assert full.runs[0].traffic == only.runs[0].traffic


@settings(max_examples=25, deadline=None)
@given(s=problems(), storage=st.sampled_from(["shared", "private"]))
def test_traffic_covers_the_operands(s: Problem, storage: str) -> None:
    natural = shape(**{k: getattr(s, k) for k in s.__dataclass_fields__ if k != "out_size"})
    result = timed(natural, storage=storage)
    assert moved(result, "x") >= natural.batch * np.prod(natural.in_size) * natural.in_c * 4
    reached = len({at[4:] for at in reads(natural)})  # no tap reads the rest, if any
    assert moved(result, "dy") >= natural.batch * reached * natural.out_c * 4
    assert moved(result, "dw") == natural.taps * natural.ocg * natural.in_c * 4


def test_traffic_by_hand() -> None:
    s = shape(batch=2, in_size=(4, 4), in_c=3, out_c=2, kernel=(2, 2), out_size=(4, 4))
    result = timed(s, cores=1)
    assert moved(result, "x") == 2 * 16 * 3 * 4
    assert moved(result, "dy") == 2 * (4 + 3) * (4 + 3) * 2 * 4  # positions inside dy, per tap
    assert moved(result, "dw") == 4 * 2 * 3 * 4
    zeros = 2 * (4 * 16 - 49) * 2 * 4
    rows = {(row.src, row.dst): row.bytes for row in result.runs[0].traffic}
    assert rows["IMM", "SM"] == zeros
    assert result.runs[0].macs == 2 * 16 * 8 * 3


def test_chunks_are_loaded_while_others_are_multiplied() -> None:
    run = timed(shape(batch=1, in_size=(28, 28), in_c=128, out_c=128, kernel=(3, 3))).runs[0]
    assert run.bounds[0].cycles <= run.cycles < 1.2 * run.bounds[0].cycles


def test_one_chunk_by_hand() -> None:
    """x, then dy of the one tap, then the product, then dw: nothing overlaps but issue."""
    s = shape(batch=1, in_size=(1, 16), in_c=8, out_c=6, kernel=(1, 1))
    cycles = timed(s, cores=1).runs[0].cycles
    x, dw = 60 + 16 * 8 * 4 // 32, 60 + 9  # dw: 6 frames of 1.5 cycles
    dy = 60 + 24  # 16 frames; 384 B would take 12
    assert cycles == 1 + x + dy + (26 + 6 * 16) + dw


def test_private_storage_leaves_main_memory_alone() -> None:
    s = shape()
    result, shared = timed(s, storage="private"), timed(s, core_mask=1)
    names = {row.src for row in result.runs[0].traffic} | {
        row.dst for row in result.runs[0].traffic
    }
    assert {"DDR", "private memory"} & names == {"private memory"}
    assert any("private memory of one core" in note for note in result.notes)
    slow = npusim.load_device("ft78ne").replace("main_memory.read", 1)
    assert timed(s, storage="private", device=slow).runs[0].cycles == result.runs[0].cycles
    assert timed(s, core_mask=1, device=slow).runs[0].cycles > shared.runs[0].cycles


def test_the_problem_in_one_line() -> None:
    assert run(shape(group=2, dilation=(2, 1))).problem == (
        "dw of transposed 4 -> 10 channels, 3x2, stride [1, 1], pad [0, 0], dilation [2, 1], "
        "groups 2; x 2x5x6, dy 2x9x7; fp, shared"
    )
    assert run(shape(), np.float16, device="mt7004").dtype == "fp16"


@settings(max_examples=30, deadline=None)
@given(s=problems(), data=st.data())
def test_rows_through_a_workspace_are_paid_for_and_change_no_bit(
    s: Problem, data: st.DataObject
) -> None:
    dy, x = operands(s)
    cores = data.draw(st.sampled_from([1, 0b110, None]))
    storage = data.draw(st.sampled_from(["shared", "gsm"]))
    without, through = (
        deconv_grad_filter(dy, x, param(s, at), cores, storage) for at in (0, 0x10050000)
    )
    np.testing.assert_array_equal(first(without), first(through))
    assert (without.workspace_bytes > 0, through.workspace_bytes > 0) == (False, True)
    # One chunk for each core; each row of im2row is written once and read once.
    assert through.workspace_bytes % (through.runs[0].cores * 4) == 0
    assert moved(without, "im2row") == 0
    assert moved(through, "im2row") == 2 * s.batch * np.prod(s.in_size) * s.taps * s.out_c * 4
    assert through.runs[0].cycles > without.runs[0].cycles


def test_a_workspace_by_hand() -> None:
    """The one chunk of ``test_one_chunk_by_hand`` goes out and comes back before the product."""
    s = shape(batch=1, in_size=(1, 16), in_c=8, out_c=6, kernel=(1, 1))
    x = npusim.spec((1, 1, 16, 8), "fp32")
    dy = npusim.spec((1, 1, 16, 6), "fp32")
    without, through = (
        deconv_grad_filter(dy, x, param(s, at), 1).runs[0].cycles for at in (0, 0x10050000)
    )
    assert through - without == 2 * (60 + 16 * 6 * 4 // 32)


def test_operands_in_the_memory_that_cores_share() -> None:
    shared, gsm = timed(BUSY), timed(BUSY, storage="gsm")
    names = {name for row in gsm.runs[0].traffic for name in (row.src, row.dst)}
    assert {"DDR", "shared memory"} & names == {"shared memory"}
    assert gsm.runs[0].cores == 8
    assert gsm.runs[0].cycles < shared.runs[0].cycles  # eight engines outrun one channel of DDR
    slow = npusim.load_device("ft78ne").replace("shared_memory.read", "1B/cycle")
    assert timed(BUSY, storage="gsm", device=slow).runs[0].cycles > shared.runs[0].cycles
    assert any("memory that all cores share" in note for note in gsm.notes)
    assert "shared_memory.read" in {e.figure for e in gsm.time_range.effects}
    with pytest.raises(
        ArgumentError, match=r"'gsm'; x, dy and dw take .* shared memory of ft78ne holds 6291"
    ):
        timed(shape(batch=64, in_size=(64, 64), in_c=8), storage="gsm")


def test_unused_entries_change_nothing() -> None:
    s = shape()
    dy, x = operands(s)
    base = deconv_grad_filter(dy, x, param(s))
    other = deconv_grad_filter(dy, x, np.array([*param(s)[:18], -7, 1 << 60]))
    short = deconv_grad_filter(dy, x, param(s)[:18])  # the table of the page ends there
    for same in (other, short):
        np.testing.assert_array_equal(first(base), first(same))
        assert base.runs[0].cycles == same.runs[0].cycles


def entry(i: int, value: Any) -> list[Any]:
    """The parameters of the plain problem with one entry changed."""
    return [*param(shape())[:i], value, *param(shape())[i + 1 :]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (entry(10, 0), "param[10] stride_h is 0; FT78NE permits 1 to 2147483647"),
        (entry(15, 1.5), "param[15] dilation_w is 1.5; FT78NE permits 1 to 2147483647"),
        (entry(8, True), "param[8] kernel_h is yes; "),
        (entry(9, 1 << 31), "param[9] kernel_w is 2147483648; "),
        (entry(16, 3), "param[3] in_c is 4 and param[7] out_c is 10 with group 3; "),
        (entry(1, 6), "x.shape is (2, 5, 6, 4): param[0] to param[3] make it (2, 6, 6, 4); "),
        (param(shape())[:17], "permits 18 entries, and up to two more that are not read"),
        (7, "param is 7; FT78NE permits 18 entries"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(values: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        deconv_grad_filter(*operands(shape()), values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (np.float16, {}, "dtype is fp16; FT78NE permits fp32"),
        (np.float16, {"rules": "hardware"}, "ft78ne has no hp (fp16) form; it has fp32: use "
         "float32, or device mt7004"),
        (np.int32, {"device": "mt7004", "rules": "hardware"}, "mt7004 has no int32 form; it has"),
        (np.float32, {"device": "tiny"}, "tiny has no core with role 'dsp'"),
        (np.float32, {"storage": "global"},
         "storage is 'global'; it is 'shared', 'gsm' or 'private'"),
        (np.float32, {"storage": "private", "core_mask": 1}, "core_mask is 1: leave it away; "
         "FT78NE permits no mask (the _p form runs on the calling core)"),
        (np.float32, {"storage": "private", "cores": "0-3"}, "core_mask is 0-3: leave it away"),
        (np.float32, {"cores": "0-9"}, "there is no core group 9"),
        (np.float32, {"core_mask": 1, "cores": 1}, "core_mask is 1 and cores is 1; they mean"),
        (np.float32, {"core_mask": 0}, "core_mask is 0: the device has 8 cores, the mask of "
         "all is 0xff; FT78NE permits at least one bit"),
        (np.float32, {"core_mask": 256}, "core_mask is 256: the device has 8 cores"),
        (np.float32, {"start": "warm"}, "start is 'warm'; ft78ne has no L2"),
        (np.float32, {"tiling": 3}, "tiling is 3; it must be 'auto' or a"),
        (np.float32, {"tiling": Tiling(channels=1, taps=1, columns=1, rows=2, width=3)},
         "tiling has 2 rows of width 3; the input is 6 wide, use one row or the full width"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        run(shape(), kind, **options)
    assert message in str(caught.value)


def test_misfits_between_operands_are_named() -> None:
    dy, x = operands(shape())
    with pytest.raises(ArgumentError, match="dy is fp32, x is fp16; deconv_grad_filter takes one"):
        deconv_grad_filter(dy, x.astype(np.float16), param(shape()), device="mt7004")
    big = shape(batch=64, in_size=(32, 32), in_c=8)
    with pytest.raises(ArgumentError, match=r"private'; x, dy and dw take \d+ B, the private mem"):
        timed(big, storage="private")


def test_a_tiling_too_large_for_the_memories_is_refused_with_the_arithmetic() -> None:
    s = shape(in_size=(64, 64), out_c=64)
    tiling = Tiling(channels=64, taps=6, columns=4, rows=64, width=64)
    with pytest.raises(npusim.CapacityError, match="SM holds 65536 B but im2row 2x6291456"):
        timed(s, tiling=tiling)
