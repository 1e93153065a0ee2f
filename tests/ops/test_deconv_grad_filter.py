"""deconv_grad_filter against float64 loops and worked examples, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.errors import ArgumentError
from npusim.kernels.tilings.deconv_grad_filter import Tiling
from npusim.ops import deconv_grad_filter
from tests.drawn import examples
from tests.ops.deconv import (
    Problem,
    first,
    operands,
    param,
    problems,
    run,
    shape,
    timed,
)


@examples(40)
@given(s=problems(), data=st.data())
def test_any_tiling_gives_the_same_bits(s: Problem, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, s.in_size[1]))
    rows = data.draw(st.integers(1, s.in_size[0])) if width == s.in_size[1] else 1
    channels, taps, columns = (data.draw(st.integers(1, n)) for n in (s.ocg, s.taps, s.icg))
    tiling = Tiling(channels=channels, taps=taps, columns=columns, rows=rows, width=width)
    np.testing.assert_array_equal(first(run(s, tiling=tiling)), first(run(s)))


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (entry(10, 0), "param[10] stride_h is 0; FT78NE permits 1 to 2147483647"),
        (entry(15, 1.5), "param[15] dilation_w is 1.5, no integer; FT78NE permits 1 to 2147483647"),
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
        (np.float32, {"storage": "private", "core_mask": 1}, "core_mask is 1: leave it out; "
         "FT78NE permits no mask (the _p form runs on the calling core)"),
        (np.float32, {"storage": "private", "cores": "0-3"}, "core_mask is 0-3: leave it out"),
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
