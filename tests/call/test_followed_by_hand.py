"""Cores that are followed through their pipes, of a few instructions that are added up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.kernels.estimate.pipeline import followed, plain_core
from npusim.kernels.estimate.work import Course

#: One tile: a load of x and one of weights, one step, one drain. Loads take 10 + 2 * 5 and 10 + 1.
ONE = Course(
    items=1,
    first=0,
    across=1,
    along=1,
    slow=0,
    period=1,
    rest=0,
    over=0,
    planes_in=2,
    planes=2,
    parts=1,
    per=0,
    slabs=1,
    small=1,
    small_x=1,
    taps=1,
    columns=2,
    runs=1,
    k=2,
    x_every=1,
    w_every=1,
    x_slots=2,
    w_slots=2,
    l0_slots=2,
    c_slots=1,
    x_alone=0,
    w_alone=0,
    x_start=10,
    x=5,
    x_fresh=5,
    x_few=1,
    x_few_fresh=5,
    w_start=9,
    w=1,
    w_fresh=1,
    w_wide=3,
    w_wide_fresh=3,
    a=7,
    a_few=3,
    b=4,
    b_wide=6,
    a_waits=0,
    m=30,
    m_wide=50,
    m_few=20,
    m_few_wide=40,
    drain=100,
    drain_wide=120,
    drain_few=80,
    drain_few_wide=90,
    moves=1,
    direct=1,
    product_start=2,
    lag=-1,
)


def cycles(**changes: float) -> float:
    """Of the one tile with other figures."""
    course = ONE._replace(**changes)
    found = followed(course, core=plain_core("course_core"))
    return float(found[0])


def test_a_tile_alone_takes_all_that_follows_each_other() -> None:
    # x comes in 20 and weights in 11 more; a is in L0 at 27, b at 35, the product ends at 65.
    assert cycles() == 20 + 11 + 4 + 30 + 100
    assert cycles(a=20) == 20 + 20 + 4 + 30 + 100, "a began when x had come"
    assert cycles(a_waits=1) == 20 + 11 + 7 + 4 + 30 + 100, "and waits for what it reads"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 20 + 11 + 4 + 30 + 100 + 30 + 100),  # one slot of L0C: products and drains in turn
        ({"c_slots": 2}, 20 + 11 + 4 + 30 + 100 + 100),  # drains alone
        ({"lag": 1}, 35 + 2 + 100 + 100),  # its first product ends behind the first drain
        ({"x_every": 2, "w_every": 2, "m": 300}, 20 + 11 + 4 + 300 + 100 + 300 + 100),
        ({"rest": 1, "period": 2, "along": 2, "c_slots": 2}, 65 + 100 + 80),  # fewer images last
        ({"over": 1, "across": 2, "c_slots": 2}, 65 + 100 + 120),  # the second column is wide
    ],
)
def test_two_tiles_share_slots_and_pipes(changes: dict[str, float], expected: float) -> None:
    assert cycles(items=2, **changes) == expected


def test_one_slot_of_l1_lets_loads_and_steps_take_turns() -> None:
    several = {"planes_in": 8, "m": 1, "drain": 0, "b": 100}
    # Weights are read last: the next ones come when b was loaded.
    one = cycles(**several, w_slots=1)
    assert one == 20 + 11 + 100 + 3 * (11 + 100) + 1
    assert cycles(**several) == 20 + 11 + 100 + 3 * (7 + 100) + 1


def test_dy_that_stays_goes_to_l0_before_the_next_slab_comes() -> None:
    # The second slab is there at 51; a of dy was loaded behind the b of the first, from 42 to 49.
    several = {"items": 2, "x_every": 1, "w_every": 2, "a_waits": 1, "c_slots": 2}
    assert cycles(**several, m=1, drain=0) == 51 + 4 + 1


def test_the_first_loads_come_from_main_memory() -> None:
    assert cycles(x_fresh=50, x_few_fresh=50) == cycles() + 90
    assert cycles(w_fresh=50) == cycles() + 98
    # Others may have read fewer images, and fetched the same weights sooner.
    assert cycles(x_fresh=50, x_few_fresh=5, w_fresh=40) == cycles() + 90


def test_what_is_stopped_has_not_taken_more() -> None:
    course = ONE._replace(items=50)
    whole = followed(course, core=plain_core("course_core"))
    part = followed(course, np.array(500.0), core=plain_core("course_core"))
    assert 500 < part[0] < whole[0]
