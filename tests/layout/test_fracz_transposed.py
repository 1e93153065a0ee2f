"""The transposed form of FRACTAL_Z_3D, against its index formula and the plain form."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError
from npusim.layout import (
    from_fracz_3d_transposed,
    group_plan,
    to_fracz_3d,
    to_fracz_3d_transposed,
)

Array = np.ndarray[Any, Any]


def counted(*shape: int) -> Array:
    """Return an array whose elements are 1, 2, 3, ... (so none equals the padding)."""
    return (np.arange(np.prod(shape)).reshape(shape) + 1).astype(np.float32)


def by_formula(w: Array, groups: int, c0: int) -> Array:
    """Return the transposed form element by element."""
    cout, cg, kd, kh, kw = w.shape
    plan = group_plan(cg * groups, cout, groups, c0)
    og, cout1, cin1 = cout // groups, plan.cout_g // c0, -(-plan.cin1_g * c0 // 16)
    z = np.zeros((plan.real_groups * kd * cout1 * kh * kw, cin1, 16, c0), w.dtype)
    for q, c, d, h, x in itertools.product(*map(range, w.shape)):
        real, e = divmod(q // og, plan.mag_factor)
        ci, co = e * cg + c, e * og + q % og
        row = (((real * kd + d) * cout1 + co // c0) * kh + h) * kw + x
        z[row, ci // 16, ci % 16, co % c0] = w[q, c, d, h, x]
    return z


@settings(deadline=None)
@given(
    og=st.integers(1, 20),
    cg=st.integers(1, 20),
    kernel=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3)),
    groups=st.integers(1, 5),
    c0=st.sampled_from([8, 16]),
)
def test_it_is_the_formula(
    og: int, cg: int, kernel: tuple[int, int, int], groups: int, c0: int
) -> None:
    w = counted(og * groups, cg, *kernel)
    z = to_fracz_3d_transposed(w, groups, c0)
    assert z.flags.c_contiguous
    np.testing.assert_array_equal(z, by_formula(w, groups, c0))
    np.testing.assert_array_equal(from_fracz_3d_transposed(z, w.shape, groups, c0), w)


def test_without_groups_it_is_the_plain_form_of_the_swapped_weight() -> None:
    w = counted(32, 48, 2, 3, 3)
    swapped = np.ascontiguousarray(w.swapaxes(0, 1))
    for c0 in (8, 16):
        want = to_fracz_3d(swapped, 1, c0)
        np.testing.assert_array_equal(to_fracz_3d_transposed(w, 1, c0), want)


def test_odd_blocks_of_eight_fill_whole_fractals() -> None:
    z = to_fracz_3d_transposed(counted(16, 20, 1, 1, 1), 1, 8)  # 3 blocks of 8: 24 of 32 rows
    assert z.shape == (2, 2, 16, 8)
    assert np.count_nonzero(z) == 320
    assert not z[:, 1, 4:].any()


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="expected 5 axes"):
        to_fracz_3d_transposed(np.zeros((4, 4, 3, 3)), 1, 16)
    with pytest.raises(ArgumentError, match=r"c0 is 32, which does not divide the 16 output"):
        to_fracz_3d_transposed(np.zeros((4, 4, 1, 1, 1)), 1, 32)
    with pytest.raises(ArgumentError, match=r"has shape \(1, 1, 16, 16\), expected \(9, 1, 16, 16"):
        from_fracz_3d_transposed(np.zeros((1, 1, 16, 16)), (4, 4, 1, 3, 3), 1, 16)
