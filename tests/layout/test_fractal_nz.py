"""FRACTAL_NZ: the documented element positions, the exact inverse, clear errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError
from npusim.layout import from_nz, to_nz


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
