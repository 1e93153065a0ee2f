"""deconv_grad_filter against float64 loops and worked examples, and what it refuses.

Time and traffic of deconv_grad_filter: by hand, by cores, and by where its operands lie.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.errors import ArgumentError
from npusim.kernels.dsp.filter_tiling import Tiling
from npusim.ops import deconv_grad_filter
from tests.ops.deconv import (
    Problem,
    first,
    moved,
    operands,
    param,
    problems,
    reads,
    run,
    shape,
    timed,
)
from tests.sampled import examples
from tests.tables import rows


@examples(40)
@given(s=problems(), data=st.data())
def test_any_tiling_gives_the_same_bits(s: Problem, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, s.in_size[1]))
    rows = data.draw(st.integers(1, s.in_size[0])) if width == s.in_size[1] else 1
    channels, taps, columns = (data.draw(st.integers(1, n)) for n in (s.ocg, s.taps, s.icg))
    tiling = Tiling(channels=channels, taps=taps, columns=columns, rows=rows, width=width)
    want = first(run(s, deterministic=True))
    np.testing.assert_array_equal(first(run(s, tiling=tiling)), want)


def test_dw_is_overwritten_where_nothing_is_summed() -> None:
    s = shape(batch=1, in_size=(2, 2), out_size=(1, 1), kernel=(4, 4), pad=(9, 9))
    np.testing.assert_array_equal(first(run(s)), 0)


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


@rows("tests/data/mistakes/ops.yaml", "wrong_parameters_are_named", "values, message")
def test_wrong_parameters_are_named(values: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        deconv_grad_filter(*operands(shape()), values)
    assert message in str(caught.value)


@rows("tests/data/mistakes/ops.yaml", "wrong_options_are_named", "kind, options, message")
def test_wrong_options_are_named(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        run(shape(), np.dtype(kind).type, **options)
    assert message in str(caught.value)


def test_misfits_between_operands_are_named() -> None:
    dy, x = operands(shape())
    with pytest.raises(ArgumentError, match="dy is fp32, x is fp16; deconv_grad_filter takes one"):
        deconv_grad_filter(dy, x.astype(np.float16), param(shape()), device="mt7004")
    big = shape(batch=64, in_size=(32, 32), in_c=8)
    with pytest.raises(ArgumentError, match=r"private'; x, dy and dw take \d+ B, the private mem"):
        timed(big, storage="private")
    tiling = Tiling(channels=1, taps=1, columns=1, rows=2, width=3)
    with pytest.raises(ArgumentError, match="2 rows of width 3; the input is 6 wide, use one row"):
        run(shape(), np.float32, tiling=tiling)


def test_a_tiling_too_large_for_the_memories_is_refused_with_the_arithmetic() -> None:
    s = shape(in_size=(64, 64), out_c=64)
    tiling = Tiling(channels=64, taps=6, columns=4, rows=64, width=64)
    with pytest.raises(npusim.CapacityError, match="SM holds 65536 B but im2row 2x6291456"):
        timed(s, tiling=tiling)


BUSY = shape(batch=2, in_size=(14, 14), in_c=48, out_c=64, kernel=(3, 3))


def test_timing_only_equals_full() -> None:
    for s, kind, name in ((BUSY, np.float32, "fp32"), (shape(group=2), np.float16, "fp16")):
        full, only = run(s, kind, device="mt7004"), timed(s, name, device="mt7004")
        assert only.outputs is None
        assert full.runs[0].cycles == only.runs[0].cycles
        assert full.runs[0].traffic == only.runs[0].traffic


@examples(25)
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


@examples(30)
@given(s=problems(), data=st.data())
def test_rows_through_a_workspace_are_paid_for_and_change_no_bit(
    s: Problem, data: st.DataObject
) -> None:
    dy, x = operands(s)
    cores, given_cores = data.draw(st.sampled_from([(1, 1), (0b110, 2), (None, 8)]))
    storage = data.draw(st.sampled_from(["shared", "gsm"]))
    without, through = (
        deconv_grad_filter(dy, x, param(s, at), cores, storage, deterministic=True)
        for at in (0, 0x10050000)
    )
    np.testing.assert_array_equal(first(without), first(through))
    assert (without.workspace_bytes > 0, through.workspace_bytes > 0) == (False, True)
    # One chunk for each core; each row of im2row is written once and read once.
    assert through.workspace_bytes % (given_cores * 4) == 0
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


#: 64 channels in sixths and sevenths are 11 and 10, which take as long to load as in fifths.
UNEVEN = shape(
    batch=4, in_size=(16, 16), in_c=32, out_c=64, kernel=(4, 4), stride=(2, 2), pad=(1, 1)
)


@pytest.mark.parametrize("storage", ["shared", "gsm"])
def test_more_cores_are_never_slower(storage: str) -> None:
    cycles = [timed(UNEVEN, cores=f"0-{n}", storage=storage).cycles for n in range(8)]
    for fewer, more in pairwise(cycles):
        assert more <= fewer
