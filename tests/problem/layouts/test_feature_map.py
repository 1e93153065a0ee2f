"""5HD, 6HD and NHWC: the documented element positions, exact inverses, clear errors.

How groups share real groups: the worked table, and what must hold for any numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError
from npusim.problem.layouts import (
    GroupPlan,
    from_5hd,
    from_6hd,
    group_dict,
    group_plan,
    nchw_to_nhwc,
    nhwc_to_nchw,
    to_5hd,
    to_6hd,
)
from tests.tables import rows

size = st.integers(1, 5)
channel_count = st.integers(1, 40)
block = st.sampled_from([8, 16, 32])


def counted(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Return an array whose elements are 1, 2, 3, ... (so none equals the padding)."""
    return (np.arange(np.prod(shape)).reshape(shape) + 1).astype(dtype)


@given(n=size, c=channel_count, h=size, w=size, c0=block)
def test_5hd_places_every_channel(n: int, c: int, h: int, w: int, c0: int) -> None:
    x = counted(n, c, h, w)
    packed = to_5hd(x, c0)
    assert packed.shape == (n, -(-c // c0), h, w, c0)
    assert packed.flags.c_contiguous
    for channel in range(c):
        assert (packed[:, channel // c0, :, :, channel % c0] == x[:, channel]).all()
    assert np.count_nonzero(packed) == x.size  # the rest is zero padding
    back = from_5hd(packed, c)
    assert back.flags.c_contiguous
    np.testing.assert_array_equal(back, x)


@given(n=size, c=channel_count, d=size, h=size, w=size, c0=block)
def test_6hd_places_every_channel(n: int, c: int, d: int, h: int, w: int, c0: int) -> None:
    x = counted(n, c, d, h, w)
    packed = to_6hd(x, c0)
    assert packed.shape == (n, d, -(-c // c0), h, w, c0)
    for channel in range(c):
        assert (packed[:, :, channel // c0, :, :, channel % c0] == x[:, channel]).all()
    assert np.count_nonzero(packed) == x.size
    np.testing.assert_array_equal(from_6hd(packed, c), x)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int8])
def test_dtype_is_kept_bit_for_bit(dtype: Any) -> None:
    x = counted(1, 5, 2, 3, dtype=dtype)
    back = from_5hd(to_5hd(x, 16), 5)
    assert back.dtype == x.dtype
    assert back.tobytes() == x.tobytes()


def test_an_empty_batch_stays_empty() -> None:
    assert to_5hd(np.zeros((0, 20, 3, 4)), 16).shape == (0, 2, 3, 4, 16)
    assert from_5hd(np.zeros((0, 2, 3, 4, 16)), 20).shape == (0, 20, 3, 4)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: to_5hd(x, 1),
        nchw_to_nhwc,
        nhwc_to_nchw,
        lambda x: from_5hd(x[..., None], 1),
    ],
)
def test_result_never_shares_memory(convert: Callable[[Any], Any]) -> None:
    x = counted(1, 1, 1, 1)
    assert not np.shares_memory(convert(x), x)


@given(n=size, c=size, h=size, w=size)
def test_nhwc(n: int, c: int, h: int, w: int) -> None:
    x = counted(n, c, h, w)
    last = nchw_to_nhwc(x)
    assert last.shape == (n, h, w, c)
    for channel in range(c):
        assert (last[..., channel] == x[:, channel]).all()
    np.testing.assert_array_equal(nhwc_to_nchw(last), x)


def fails(convert: Callable[..., Any], shape: tuple[int, ...], *arguments: int) -> str:
    """Return the message of the error that converting an array of ``shape`` raises."""
    with pytest.raises(ArgumentError) as caught:
        convert(np.zeros(shape), *arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("convert", "shape", "arguments", "axes"),
    [
        (to_5hd, (2, 3), (16,), "4 axes (N, C, H, W)"),
        (from_5hd, (2, 3, 4, 5), (3,), "5 axes (N, C1, H, W, C0)"),
        (to_6hd, (2, 3, 4, 5), (16,), "5 axes (N, C, D, H, W)"),
        (from_6hd, (2, 3, 4, 5, 16), (3,), "6 axes (N, D, C1, H, W, C0)"),
        (nchw_to_nhwc, (3,), (), "4 axes (N, C, H, W)"),
        (nhwc_to_nchw, (3,), (), "4 axes (N, H, W, C)"),
    ],
)
def test_wrong_rank(
    convert: Callable[..., Any], shape: tuple[int, ...], arguments: tuple[int, ...], axes: str
) -> None:
    assert fails(convert, shape, *arguments) == (
        f"{convert.__name__}: the array has shape {shape}, expected {axes}; reshape it"
    )


def test_wrong_channel_blocks() -> None:
    assert fails(from_5hd, (1, 2, 4, 5, 16), 40) == (
        "from_5hd: the array has shape (1, 2, 4, 5, 16), expected (1, 3, 4, 5, 16) "
        "for 40 channels in blocks of 16; correct the array or the sizes"
    )
    assert fails(from_6hd, (1, 2, 2, 4, 5, 16), 16) == (
        "from_6hd: the array has shape (1, 2, 2, 4, 5, 16), expected (1, 2, 1, 4, 5, 16) "
        "for 16 channels in blocks of 16; correct the array or the sizes"
    )


def test_sizes_below_one() -> None:
    assert fails(to_5hd, (1, 2, 4, 5), 0) == "to_5hd: c0 is 0, it must be an integer above 0"
    assert fails(from_5hd, (1, 2, 4, 5, 16), -3) == (
        "from_5hd: channels is -3, it must be an integer above 0"
    )


@rows("tests/data/rows/layout.yaml", "worked_table", "conv, want, cin1_c8")
def test_worked_table(conv: list[int], want: list[int], cin1_c8: int) -> None:
    plan = group_plan(*conv, 16)
    assert [plan.mag_factor, plan.real_groups, plan.cin1_g, plan.cout_g] == want
    assert group_plan(*conv, 8).cin1_g == cin1_c8


def test_group_dict_has_the_documented_keys() -> None:
    assert group_dict(group_plan(20, 56, 4, 16)) == {
        "real_g": 1,
        "mag_factor": 4,
        "cin1_g": 2,
        "cout_g": 64,
        "cin_ori": 20,
        "cout_ori": 56,
    }


@given(
    cg=st.integers(1, 40),
    og=st.integers(1, 40),
    groups=st.integers(1, 40),
    c0=st.sampled_from([8, 16, 32]),
)
def test_any_plan(cg: int, og: int, groups: int, c0: int) -> None:
    plan: GroupPlan = group_plan(cg * groups, og * groups, groups, c0)
    assert (plan.cin, plan.cout) == (cg * groups, og * groups)
    e = plan.mag_factor
    assert 1 <= e <= groups
    assert (plan.real_groups - 1) * e < groups <= plan.real_groups * e
    assert 0 <= plan.cin1_g * c0 - e * cg < c0
    assert 0 <= plan.cout_g - e * og < 16
    if e < groups:  # feature maps need no rearranging: real groups start on whole blocks
        assert e * cg % c0 == 0
        assert e * og % 16 == 0


@rows("tests/data/mistakes/layout.yaml", "errors", "arguments, message")
def test_errors(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        group_plan(*arguments)
    assert str(caught.value).startswith(f"group_plan: {message}")
