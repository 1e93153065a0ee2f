"""Estimates follow a core item by item until it repeats itself, and skip what only repeats."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from npusim.kernels.estimate.pipeline import plain_core, times
from npusim.kernels.estimate.work import Floats, Work

#: The longest pattern that drawn loads may have, of items.
EVERY = (1, 1, 2, 3, 5, 40, 1000)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., bool]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> bool:
        self.calls += 1
        return self.function(*arguments)


@pytest.fixture
def core() -> ModuleType:
    """A form of its own, whose constants a test may change."""
    return plain_core.__wrapped__()


@pytest.fixture
def item(core: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The function that follows an item, whose calls are counted."""
    counted = Counted(core._item)
    monkeypatch.setattr(core, "_item", counted)
    return counted


def drawn(seed: int, count: int, items: int) -> Work:
    """Work of ``count`` candidates on two cores, with up to so many ``items`` each."""
    draw = np.random.default_rng(seed)

    def among(*values: float) -> Floats:
        return draw.choice(np.array(values, np.float64), count)

    cycles = {
        name: draw.integers(1, 200, count).astype(np.float64)
        for name in Work._fields
        if name in {"a", "b", "m", "rest_l0", "rest_m", "a_head", "m_head", "drain", "first_start"}
    }
    sizes = {f"{name}_bytes": among(512, 4096, 30000) for name in ("first", "second")}
    return Work(
        **cycles | sizes,
        cores=among(2),
        items=2 * draw.integers(1, items + 1, count).astype(np.float64),
        firsts=among(1, 1, 2, 3),
        seconds=among(1, 2),
        steps=among(1, 2, 4, 7),
        second_start=among(10, 100),
        first_every=among(*EVERY),
        second_every=among(*EVERY),
        first_slots=among(1, 2, 3),
        second_slots=among(1, 2, 4),
        first_period=among(1, 2, 30),
        first_until=among(0, 7, 33, 1e9),
        first_copies=among(0, 1, 2),
        second_period=among(1, 3),
        second_until=among(0, 20, np.inf),
        second_copies=among(0, 2),
        run=among(1, 2, 4, 100),
        step_slots=among(1, 2, 3),
        issue=among(0, 3, 60),
        ahead=among(1, 8, 32, 96, 200),
        pace=among(5, 50),
        stall=among(0, 0, 40),
        drain_slots=among(1, 2),
        lag=among(-1, 0, 30),
        rate=among(64, 200),
        shared=among(100, 300),
        main=among(20, 200),
        least=among(0, 3000),
        beside=among(0, 500),
        first_beside=among(0, 30),
        second_beside=among(0, 30),
        first_alone=among(np.inf, 40),
        second_alone=among(np.inf, 40),
        missed=among(0, 0.5),
        drain_head=among(0, 20),
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_is_skipped_takes_as_long_as_if_it_were_followed(
    core: ModuleType, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    work = drawn(seed, 150, 120)
    skipped = times(work, 150, core=core)
    monkeypatch.setattr(core, "_LONGEST_PERIOD", 0)
    followed = times(work, 150, core=core)
    assert np.abs(skipped - followed).max() <= 1
    assert (skipped == followed).mean() > 0.98


def test_most_items_are_skipped(
    core: ModuleType, item: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = drawn(5, 40, 1200)
    few_steps = work._replace(steps=np.ones(40), firsts=np.ones(40), seconds=np.ones(40))
    times(few_steps, 40, core=core)
    with_skips = item.calls
    monkeypatch.setattr(core, "_LONGEST_PERIOD", 0)
    times(few_steps, 40, core=core)
    assert with_skips < (item.calls - with_skips) / 2


def test_one_that_is_too_slow_is_not_followed_to_its_end(
    core: ModuleType, item: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_LONGEST_PERIOD", 0)
    slow = drawn(6, 1, 1)._replace(
        items=np.full(1, 200.0), m=np.full(1, 100.0), run=np.full(1, 100.0), first_every=np.ones(1)
    )
    times(slow, 1, core=core)
    every = item.calls
    assert np.isinf(times(slow, 1, 2 * 100.0, core=core))
    assert item.calls - every < every / 10


def test_where_a_memory_takes_as_long_a_core_is_followed_for_what_decides(
    core: ModuleType, item: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All take 10^6 cycles for a memory; of a core's own time a ten-thousandth counts."""
    monkeypatch.setattr(core, "_LONGEST_PERIOD", 0)
    slow = drawn(6, 1, 1)._replace(
        items=np.full(1, 200.0),
        m=np.full(1, 100.0),
        run=np.full(1, 100.0),
        first_every=np.ones(1),
        least=np.full(1, 1e6),
        beside=np.zeros(1),
    )
    (alone,) = times(slow, 1, core=core)
    every = item.calls
    assert alone > 1e6 + 1
    assert times(slow, 1, alone + 1, core=core) == alone
    followed = item.calls
    assert np.isinf(times(slow, 1, 1e6 + 0.05, core=core))
    assert item.calls - followed < every / 2


@pytest.mark.parametrize("seed", range(4))
def test_the_best_are_the_same_whoever_is_dropped(core: ModuleType, seed: int) -> None:
    work = drawn(seed, 150, 60)._replace(least=np.full(150, 1e6))
    every, few = times(work, 150, core=core), times(work, 6, core=core)
    assert np.isfinite(every).all()
    found = np.isfinite(few)
    assert (few[found] == every[found]).all()
    assert (np.sort(few)[:6] == np.sort(every)[:6]).all()
