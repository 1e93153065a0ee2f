"""What an L2 holds, put aside and put back: nothing that comes after can tell."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from npusim.machine.device.catalog import load_device
from npusim.machine.device.parts import L2Cache
from npusim.machine.device.spec import Device
from npusim.machine.timing.fast.l2 import FastL2, Place, touch
from npusim.machine.timing.fast.state import COST, empty
from npusim.machine.timing.outcome import Held
from npusim.reuse.answers import answers_in
from npusim.reuse.launches import CONTENTS

pytestmark = pytest.mark.compiled

SIZES = {"y": 40_000, "empty": 0, "x": 9_000, "last": 3_000, "none": 0}


@pytest.fixture
def device() -> Device:
    return load_device("tiny")


@pytest.fixture
def spec(device: Device) -> L2Cache:
    assert device.l2 is not None
    return device.l2


def used(l2: FastL2, rng: Random, times: int) -> list[tuple[int, ...]]:
    """Access the L2 at random; what every access cost."""
    costs, told = empty(COST, 1), []
    for _ in range(times):
        name = rng.choice([name for name, size in SIZES.items() if size])
        first = rng.randrange(SIZES[name])
        size = rng.randint(1, SIZES[name] - first)
        block = l2.place(name, SIZES[name])
        touch(l2.cache, Place(block, first, 1, size, 0), rng.random() < 0.5, costs)
        told.append(tuple(int(costs[0][field]) for field in ("hit", "fetched", "evicted")))
    return told


@pytest.mark.parametrize("seed", range(5))
def test_an_l2_goes_on_as_the_one_whose_content_it_was_given(spec: L2Cache, seed: int) -> None:
    one = FastL2(spec)
    for name, size in SIZES.items():
        one.place(name, size)
    used(one, Random(seed), 200)
    held = one.held()
    other = FastL2.of(spec, held)
    assert other.held().digest == held.digest
    assert other.content() == one.content() == held.content()
    assert used(one, Random(seed + 100), 200) == used(other, Random(seed + 100), 200)
    assert one.held().digest == other.held().digest


def test_what_tells_contents_apart(spec: L2Cache) -> None:
    def digest(*accesses: tuple[str, bool], order: Any = sorted) -> str:
        l2 = FastL2(spec)
        for name in order(SIZES):
            l2.place(name, SIZES[name])
        for name, write in accesses:
            touch(l2.cache, Place(l2.place(name, SIZES[name]), 0, 1, 512, 0), write, empty(COST, 1))
        return l2.held().digest

    first = digest(("x", False), ("y", True))
    assert first == digest(("x", False), ("y", True), order=list), "not the order of places"
    assert first == digest(("y", True), ("x", False), ("y", True)), "not how it came about"
    others = [
        digest(("y", True), ("x", False)),
        digest(("x", True), ("y", True)),
        digest(("x", False), ("last", True)),
        digest(("x", False)),
        digest(),
    ]
    assert len({first, *others}) == 6


def test_it_is_the_same_out_of_a_file(device: Device, spec: L2Cache, tmp_path: Any) -> None:
    fast = FastL2(spec)
    used(fast, Random(2), 100)
    held = fast.held()
    with answers_in(tmp_path / "runs.sqlite"):
        CONTENTS.keep(held.digest, device, (), held)
    CONTENTS.clear()
    assert CONTENTS.find(held.digest, device) is None
    with answers_in(tmp_path / "runs.sqlite"):
        found = CONTENTS.find(held.digest, device)
    assert found is not None
    assert found.answer.digest == held.digest
    assert json.dumps(found.answer.content()) == json.dumps(held.content())


def test_a_device_without_an_l2_holds_nothing() -> None:
    none = FastL2(None)
    none.place("x", 100)
    assert none.content() == []
    assert FastL2.of(None, none.held()).held().digest == none.held().digest
    assert Held.of([], {"x": 100}).digest == none.held().digest
