"""How groups share real groups: the worked table, and what must hold for any numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError
from npusim.layout import GroupPlan, group_dict, group_plan

# cin, cout, groups -> mag_factor, real groups, cin1_g and cout_g with C0 = 16; cin1_g with C0 = 8
TABLE = [
    ((128, 256, 1), (1, 1, 8, 256), 16),
    ((20, 56, 4), (4, 1, 2, 64), 3),
    ((12, 9, 3), (3, 1, 1, 16), 2),
    ((24, 24, 24), (16, 2, 1, 16), 2),
    ((32, 32, 2), (1, 2, 1, 16), 2),
    ((48, 96, 3), (1, 3, 1, 32), 2),
    ((40, 20, 4), (4, 1, 3, 32), 5),
    ((512, 512, 512), (16, 32, 1, 16), 2),
]


@pytest.mark.parametrize(("conv", "want", "cin1_c8"), TABLE)
def test_worked_table(
    conv: tuple[int, int, int], want: tuple[int, int, int, int], cin1_c8: int
) -> None:
    plan = group_plan(*conv, 16)
    assert (plan.mag_factor, plan.real_groups, plan.cin1_g, plan.cout_g) == want
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 8, 4, 16), "cin = 10 is not a multiple of groups = 4; every group needs the same"),
        ((8, 10, 4, 16), "cout = 10 is not a multiple of groups = 4; every group needs the same"),
        ((8, 8, 0, 16), "groups is 0, it must be an integer above 0"),
        ((0, 8, 1, 16), "cin is 0, it must be an integer above 0"),
        ((8, 8, 1, 16.0), "c0 is 16.0, it must be an integer above 0"),
    ],
)
def test_errors(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        group_plan(*arguments)
    assert str(caught.value).startswith(f"group_plan: {message}")
