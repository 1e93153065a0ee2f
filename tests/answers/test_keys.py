"""What the keys of kept answers are made of: leave one part out and a test here fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import FP16
from npusim.base.records import replace
from npusim.call.tilings import choice
from npusim.call.tilings.choice import CHOICES, chosen
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.timing.outcome import Held
from npusim.reuse.launches import CachedLaunches
from npusim.reuse.programs import program_of
from npusim.reuse.tracked_device import KEYS, Name, TrackedDevice, named
from tests.call.test_tune import matmul
from tests.reuse.test_launches import forget

KERNEL: Matmul = matmul(64, 64, 64, FP16, "tiny")
DEVICE = load_device("tiny")
GROUPS = (0, 1)


def test_a_choice_is_of_its_cores_and_of_what_the_l2_holds() -> None:
    around = choice._with_before
    keys = {
        choice._key(KERNEL, around, groups, held)
        for groups in ((0,), (0, 1))
        for held in ((), (("a", 64),), (("a", 128),))
    }
    assert len(keys) == 6
    assert None not in keys


def test_a_choice_rests_on_what_estimates_and_simulations_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimates = choice._Trial(DEVICE, GROUPS, ())
    estimates.contenders(KERNEL, 4)
    told: list[frozenset[Name]] = []

    def keep(key: str, device: Device, names: Iterable[Name], answer: Any) -> None:
        told.append(frozenset(names))

    monkeypatch.setattr(CHOICES, "keep", keep)
    forget()
    best = chosen(KERNEL, DEVICE, GROUPS)
    simulations = choice._Trial(DEVICE, GROUPS, ())
    choice.TRIED.clear()
    simulations.run([best], choice.MOST_INSTRUCTIONS)
    assert estimates.names - simulations.names
    assert simulations.names - estimates.names
    (names,) = told
    assert estimates.names <= names
    assert simulations.names <= names


def test_launches_that_were_known_rest_on_the_figures_of_their_runs() -> None:
    forget()
    first = CachedLaunches(DEVICE, GROUPS)
    first.time(KERNEL, first.build(KERNEL))
    again = CachedLaunches(DEVICE, GROUPS)
    assert again.known(KERNEL) is not None
    assert named(again.names) == named(first.names) != ()


def test_contents_of_an_l2_are_of_certain_tensors_and_sizes() -> None:
    blocks = np.array([[0], [0], [1], [0]], np.int64)
    tensors = [(("a", 64),), (("b", 64),), (("a", 128),), (("a", 64), ("b", 64))]
    assert len({Held(sizes, blocks).digest for sizes in tensors}) == len(tensors)


def test_a_warm_start_is_of_a_size_and_a_tensor() -> None:
    keys = set()
    for tensor, size in (("a", 64), ("a", 4096), ("b", 64)):
        launches = CachedLaunches(DEVICE, GROUPS)
        launches.preload(tensor, size)
        keys.add(launches._key_now())
    assert len(keys) == 3


LOOKS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "through all": list,
    "how many": len,
    "one that is missing": lambda parts: parts.get("none"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_through_a_mapping_sees_its_keys(look: str) -> None:
    """A link or a path that a variant has in addition is another figure to them."""
    seen = TrackedDevice(DEVICE)
    LOOKS[look](seen.device.paths)
    assert ("paths", KEYS) in seen.names
    other = TrackedDevice(DEVICE)
    _ = other.device.paths[next(iter(DEVICE.paths))]
    assert ("paths", KEYS) not in other.names


def test_equal_kernels_of_other_code_have_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = MemSet(Tensor("a", (4,), FP16, "out"))
    before = program_of(clear, DEVICE, GROUPS)
    assert before.templates is program_of(replace(clear), DEVICE, GROUPS).templates
    plan = MemSet.plan

    def other(kernel: MemSet, k: Any, cores: int) -> Any:
        return plan(kernel, k, cores)

    monkeypatch.setattr(MemSet, "plan", other)
    assert before.templates is not program_of(clear, DEVICE, GROUPS).templates
