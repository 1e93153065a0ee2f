"""FRACTAL_Z and FRACTAL_Z_3D, against the element formulas written as loops.

FRACTAL_NZ: the documented element positions, the exact inverse, clear errors.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError
from npusim.problem.layouts import (
    fracz_grouped_to_oihw,
    from_fracz,
    from_fracz_3d,
    from_nz,
    group_plan,
    to_fracz,
    to_fracz_3d,
    to_nz,
)
from tests.problem.layouts.exchanged import to_fracz_3d_transposed

Array = np.ndarray[Any, Any]


def counted(*shape: int) -> Array:
    """Return an array whose elements are 1, 2, 3, ... (so none equals the padding)."""
    return (np.arange(np.prod(shape)).reshape(shape) + 1).astype(np.float32)


def by_formula(w: Array, groups: int, c0: int) -> Array:
    """Return FRACTAL_Z_3D element by element from the documented index formula."""
    cout, cg, kd, kh, kw = w.shape
    plan = group_plan(cg * groups, cout, groups, c0)
    og, e_count = cout // groups, plan.mag_factor
    rows = plan.real_groups * kd * plan.cin1_g * kh * kw
    z = np.zeros((rows, plan.cout_g // 16, 16, c0), w.dtype)
    for q, c, d, h, x in itertools.product(*map(range, w.shape)):
        real, e = divmod(q // og, e_count)
        ci, co = e * cg + c, e * og + q % og
        row = (((real * kd + d) * plan.cin1_g + ci // c0) * kh + h) * kw + x
        z[row, co // 16, co % 16, ci % c0] = w[q, c, d, h, x]
    return z


@settings(deadline=None)
@given(
    og=st.integers(1, 20),
    cg=st.integers(1, 20),
    kernel=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3)),
    groups=st.integers(1, 5),
    c0=st.sampled_from([8, 16]),
)
def test_3d_is_the_formula(
    og: int, cg: int, kernel: tuple[int, int, int], groups: int, c0: int
) -> None:
    w = counted(og * groups, cg, *kernel)
    z = to_fracz_3d(w, groups, c0)
    assert z.flags.c_contiguous
    np.testing.assert_array_equal(z, by_formula(w, groups, c0))
    np.testing.assert_array_equal(from_fracz_3d(z, w.shape, groups, c0), w)


@pytest.mark.parametrize("groups", [1, 3, 24])
def test_2d_is_3d_with_one_depth(groups: int) -> None:
    w = counted(2 * groups, 3, 2, 3)
    z = to_fracz(w, groups, 16)
    np.testing.assert_array_equal(z, to_fracz_3d(w[:, :, None], groups, 16))
    np.testing.assert_array_equal(from_fracz(z, w.shape, groups, 16), w)


def test_worked_example_without_groups() -> None:
    w = np.zeros((256, 128, 2, 2, 2), np.float16)
    w[37, 21, 1, 0, 1] = 7
    z = to_fracz_3d(w, 1, 16)
    assert z.shape == (64, 16, 16, 16)
    assert z[37, 2, 5, 5] == 7


@pytest.mark.parametrize(
    ("element", "place"),
    [
        ((15, 3, 1, 0, 1), (5, 0, 15, 8)),
        ((55, 4, 1, 0, 1), (7, 3, 7, 3)),
        ((28, 2, 0, 0, 0), (0, 1, 12, 12)),
    ],
)
def test_worked_example_with_groups(element: tuple[int, ...], place: tuple[int, ...]) -> None:
    w = counted(56, 5, 2, 1, 2)
    z = to_fracz_3d(w, 4, 16)
    assert z.shape == (8, 4, 16, 16)
    assert np.count_nonzero(z) == w.size == 1120
    assert z[place] == w[element]


def test_filter_gradient_worked_example() -> None:
    w = counted(16, 16, 1, 1)
    assert to_fracz(w, 1, 16).shape == (1, 1, 16, 16)
    plan = group_plan(16, 16, 1, 16)
    assert (plan.real_groups, plan.cin1_g, plan.cout_g, plan.c0) == (1, 1, 16, 16)
    result = to_fracz(w, 1, 16).reshape(1, 1, 16, 16)
    np.testing.assert_array_equal(fracz_grouped_to_oihw(result, 16, 16, (1, 1), 1, 16), w)


GROUPED = [(1, 20, 18), (4, 14, 5), (3, 3, 4), (24, 1, 1), (2, 16, 16), (20, 2, 1)]


@pytest.mark.parametrize(("groups", "og", "cg"), GROUPED)
@pytest.mark.parametrize("c0", [8, 16])
def test_grouped_gradient_round_trip(groups: int, og: int, cg: int, c0: int) -> None:
    w = counted(og * groups, cg, 3, 2)
    plan = group_plan(cg * groups, og * groups, groups, c0)
    shape = (plan.real_groups, plan.cin1_g * 6, plan.cout_g, c0)
    clean = to_fracz(w, groups, c0).reshape(shape)
    noisy = np.where(clean == 0, np.float32(-9), clean)  # cross-group sums where no weight is
    back = fracz_grouped_to_oihw(noisy, og * groups, cg, (3, 2), groups, c0)
    np.testing.assert_array_equal(back, w)


def fails(call: Any, *arguments: Any) -> str:
    """Return the message of the ``ArgumentError`` a call raises."""
    with pytest.raises(ArgumentError) as caught:
        call(*arguments)
    return str(caught.value)


def test_errors_of_weights() -> None:
    assert fails(to_fracz, np.zeros((4, 4, 3)), 1, 16) == (
        "to_fracz: the array has shape (4, 4, 3), expected 4 axes (Cout, Cin/groups, KH, KW); "
        "reshape it"
    )
    assert fails(to_fracz, np.zeros((4, 4, 3, 3)), 3, 16) == (
        "to_fracz: weights of shape (4, 4, 3, 3) have 4 output channels, "
        "not a multiple of groups = 3"
    )
    assert fails(to_fracz_3d, np.zeros((4, 4, 1, 3, 3)), 0, 16) == (
        "to_fracz_3d: groups is 0, it must be an integer above 0"
    )
    assert "expected 5 axes (Cout, Cin/groups, KD, KH, KW)" in fails(
        to_fracz_3d, np.zeros((4, 4, 3, 3)), 1, 16
    )


def test_errors_of_inverses() -> None:
    z = np.zeros((9, 1, 16, 16))
    assert fails(from_fracz, z, (16, 20, 3, 3), 1, 16) == (
        "from_fracz: the array has shape (9, 1, 16, 16), expected (18, 1, 16, 16) for "
        "20 -> 16 channels in 1 group(s), C0 = 16, 1x3x3 taps; correct the array or the sizes"
    )
    assert fails(from_fracz, z, (16, 16, 3), 1, 16) == (
        "from_fracz: expected the sizes (Cout, Cin/groups, KH, KW), got (16, 16, 3)"
    )
    assert fails(from_fracz_3d, z, (16, 16, 1, 3, 0), 1, 16) == (
        "from_fracz_3d: KW is 0, it must be an integer above 0"
    )


def test_errors_of_gradients() -> None:
    message = fails(fracz_grouped_to_oihw, np.zeros((1, 2, 64, 16)), 56, 5, (2, 1), 4, 16)
    assert "expected (1, 4, 64, 16) for 20 -> 56 channels in 4 group(s)" in message


def test_exchanged_without_groups_it_is_the_plain_form_of_the_swapped_weight() -> None:
    """Of the form in tests of kernels that take exchanged weights."""
    w = counted(32, 48, 2, 3, 3)
    swapped = np.ascontiguousarray(w.swapaxes(0, 1))
    for c0 in (8, 16):
        want = to_fracz_3d(swapped, 1, c0)
        np.testing.assert_array_equal(to_fracz_3d_transposed(w, 1, c0), want)


@given(
    lead=st.sampled_from([(), (2,), (2, 3)]),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    c0=st.sampled_from([8, 16, 32]),
)
def test_positions_and_inverse(lead: tuple[int, ...], rows: int, columns: int, c0: int) -> None:
    shape = (*lead, rows, columns)
    m = (np.arange(np.prod(shape)).reshape(shape) + 1).astype(np.float32)
    z = to_nz(m, c0)
    assert z.shape == (*lead, -(-columns // c0), -(-rows // 16), 16, c0)
    assert z.flags.c_contiguous
    h, w = np.indices((rows, columns))
    assert (z[..., w // c0, h // 16, h % 16, w % c0] == m).all()
    assert np.count_nonzero(z) == m.size
    np.testing.assert_array_equal(from_nz(z, rows, columns), m)


def test_worked_example() -> None:
    m = np.zeros((20, 40), np.float16)
    m[17, 35] = 7
    z = to_nz(m, 16)
    assert z.shape == (3, 2, 16, 16)
    assert z[2, 1, 1, 3] == 7


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"^to_nz: .* shape \(3,\), expected \(\.\.\., H, W\)"):
        to_nz(np.zeros(3), 16)
    with pytest.raises(ArgumentError, match=r"^to_nz: c0 is -1, it must be an integer above 0$"):
        to_nz(np.zeros((3, 3)), -1)
    with pytest.raises(ArgumentError, match=r"expected \(\.\.\., W1, H1, 16, C0\)"):
        from_nz(np.zeros((2, 16, 16)), 16, 16)
    with pytest.raises(
        ArgumentError,
        match=r"expected \(3, 2, 16, 16\) for a 20 x 40 matrix with C0 = 16; correct",
    ):
        from_nz(np.zeros((2, 3, 16, 16)), 20, 40)
