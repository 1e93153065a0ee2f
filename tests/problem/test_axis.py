"""An axis of a convolution: what holds in closed form, against every output and tap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from npusim.problem.axis import Axis


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    insert = draw(st.sampled_from([1, 1, 2, 3]))
    return Axis(
        size=draw(st.integers(1, 6)),
        out=draw(st.integers(1, 8)),
        kernel=draw(st.integers(1, 5)),
        stride=1 if insert > 1 else draw(st.sampled_from([1, 2, 3, 5])),
        before=draw(st.integers(-6, 9)),
        dilation=draw(st.integers(1, 4)),
        insert=insert,
    )


@given(axes())
def test_whether_anything_is_read(axis: Axis) -> None:
    pairs = ((o, tap) for o in range(axis.out) for tap in range(axis.kernel))
    assert axis.reads_any == any(axis.real(o, tap) is not None for o, tap in pairs)
