"""Max-min sharing and the draining of transfers, against arithmetic done by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.machine.device.config import parse_device
from npusim.machine.timing.fabric import Fabric, Load, max_min_share
from npusim.machine.timing.links import (
    ATOMIC,
    EVICT,
    ONE,
    READ_HIT,
    READ_MISS,
    WRITE,
    Links,
    Part,
)

BUS = """
base: tiny
name: mine
description: tiny with a bus of main memory
links:
  bus:
    rate: 32B/cycle (assumed, HAND)
    scope: chip
    traffic: [read_miss, evict]
{turnaround}"""

LINKS = Links(npusim.load_device("tiny"), [0])

B = 1 << 16  # one byte per cycle, fixed point


def test_equal_shares_of_one_link() -> None:
    assert max_min_share([Load(4, 100 * B, ((0, ONE),))], [200 * B]) == [50 * B]


def test_what_a_capped_load_leaves_goes_to_the_others() -> None:
    # 2 at most 10 each leave 80 of 100 for the other 4: 20 each.
    loads = [Load(2, 10 * B, ((0, ONE),)), Load(4, 90 * B, ((0, ONE),))]
    assert max_min_share(loads, [100 * B]) == [10 * B, 20 * B]


def test_a_load_behind_two_links_is_held_by_the_tighter_one() -> None:
    # Misses use link 0 and link 1 (30): 3 of them get 10 each; hits share the rest of link 0.
    loads = [Load(3, 99 * B, ((0, ONE), (1, ONE))), Load(2, 99 * B, ((0, ONE),))]
    assert max_min_share(loads, [100 * B, 30 * B]) == [10 * B, 35 * B]


def test_weights_count_double() -> None:
    assert max_min_share([Load(2, 99 * B, ((0, 2 * ONE),))], [100 * B]) == [25 * B]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 64),
            st.integers(1, 500),
            st.lists(
                st.tuples(st.integers(0, 3), st.sampled_from((ONE, 2 * ONE))),
                min_size=1,
                max_size=3,
                unique_by=lambda use: use[0],
            ),
        ),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.integers(100, 5000), min_size=4, max_size=4),
)
def test_shares_are_feasible_and_nobody_can_get_more_for_free(
    drawn: list[tuple[int, int, list[tuple[int, int]]]], room: list[int]
) -> None:
    loads = [Load(count, cap * B, tuple(uses)) for count, cap, uses in drawn]
    capacities = [r * B for r in room]
    rates = max_min_share(loads, capacities)
    used = [0] * 4
    for load, rate in zip(loads, rates, strict=True):
        assert 1 <= rate <= load.cap
        for link, weight in load.uses:
            used[link] += load.count * weight * rate // ONE
    assert all(u <= c for u, c in zip(used, capacities, strict=True))
    for load, rate in zip(loads, rates, strict=True):
        # Held by its cap, or by a full link on which nobody gets more (up to integer rounding).
        full = [
            link
            for link, _ in load.uses
            if capacities[link] - used[link]
            < sum(o.count * w // ONE for o in loads for k, w in o.uses if k == link)
            and rate + 1
            >= max(r for o, r in zip(loads, rates, strict=True) if link in dict(o.uses))
        ]
        assert rate == load.cap or full


def fabric() -> Fabric:
    """`tiny`: L2 reads 128, writes 128 B/cycle; main memory reads 64."""
    return Fabric(LINKS.capacities, LINKS.turning)


def join(f: Fabric, transfer: int, traffic: int, size: int, cap: int) -> None:
    """Let a part of a transfer of core 0 join."""
    f.join(transfer, size, cap, LINKS.uses(Part(traffic, cap, ()), 0))


def drain(f: Fabric) -> list[tuple[int, list[int]]]:
    """(cycle, transfers finished) until nothing drains any more."""
    out = []
    f.rerate()
    while (now := f.next_finish()) is not None:
        done = f.advance(now)
        if done:
            out.append((now, done))
        f.rerate()
    return out


def test_a_transfer_alone_takes_its_own_rate() -> None:
    f = fabric()
    join(f, 1, READ_HIT, 6400, 64 * B)
    assert drain(f) == [(100, [1])]


def test_hits_and_misses_of_one_transfer_end_with_the_slower() -> None:
    # 640 B hit at 64, 640 B miss at 16 (its class is capped): 10 and 40 cycles.
    f = fabric()
    join(f, 1, READ_HIT, 640, 64 * B)
    join(f, 1, READ_MISS, 640, 16 * B)
    assert drain(f) == [(40, [1])]


def test_late_joiner_slows_the_first() -> None:
    # Transfer 1 alone for 10 cycles at 64: 640 of 1280 B. Then both at 32: the rest of 1 takes
    # 20 cycles (to 30), transfer 2 has 640 of 1280 B left and finishes alone at 64 by 40.
    f = fabric()
    join(f, 1, READ_MISS, 1280, 64 * B)
    f.rerate()
    assert f.advance(10) == []
    join(f, 2, READ_MISS, 1280, 64 * B)
    assert drain(f) == [(30, [1]), (40, [2])]


def test_atomic_adds_occupy_the_l2_twice() -> None:
    # Two writers of 1280 B at 64 fit 128 B/cycle; two atomic ones need 256 and get half.
    plain, atomic = fabric(), fabric()
    for i in (1, 2):
        join(plain, i, WRITE, 1280, 64 * B)
        join(atomic, i, ATOMIC, 1280, 64 * B)
    assert drain(plain) == [(20, [1, 2])]
    assert drain(atomic) == [(40, [1, 2])]


@pytest.mark.parametrize(
    ("turnaround", "cycles"), [("", [60, 80]), ("    turnaround: 25%\n", [80, 100])]
)
def test_a_bus_that_turns_around_loses_a_share_while_both_ways_drain(
    turnaround: str, cycles: list[int]
) -> None:
    # Both get half the bus of 32 B/cycle, 16, or 12 with a quarter lost: 960 B are written back by
    # cycle 60 or 80. The other 640 B of the read then have the bus alone, in 20 cycles.
    turnaround = turnaround.replace("%", "% (assumed, HAND)")
    links = Links(parse_device(BUS.format(turnaround=turnaround)), [0])
    f = Fabric(links.capacities, links.turning)
    f.join(1, 1600, 64 * B, links.uses(Part(READ_MISS, 64 * B, ()), 0))
    f.join(2, 960, 64 * B, links.uses(Part(EVICT, 64 * B, ()), 0))
    assert drain(f) == [(cycles[0], [2]), (cycles[1], [1])]


def test_reads_alone_lose_nothing_of_a_bus_that_turns_around() -> None:
    turnaround = "    turnaround: 25% (assumed, HAND)\n"
    links = Links(parse_device(BUS.format(turnaround=turnaround)), [0])
    f = Fabric(links.capacities, links.turning)
    f.join(1, 1600, 64 * B, links.uses(Part(READ_MISS, 64 * B, ()), 0))
    assert drain(f) == [(50, [1])]


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 64)), min_size=1, max_size=20))
def test_nothing_drains_faster_than_the_link(sizes: list[tuple[int, int]]) -> None:
    f = fabric()
    for i, (size, cap) in enumerate(sizes):
        join(f, i, READ_MISS, size, cap * B)
    last = drain(f)[-1][0]
    assert last >= Fraction(sum(size for size, _ in sizes), 64)
    assert last >= max(Fraction(size, cap) for size, cap in sizes)
