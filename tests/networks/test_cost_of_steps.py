"""What a step costs whoever waits for it: nothing is built twice, and nothing absurd is tried."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import npusim
from npusim.base.records import collecting_seldom
from npusim.machine.program.build import build
from npusim.reuse import programs
from npusim.reuse.programs import LONG_PROGRAMS, PROGRAMS, content

torch = pytest.importorskip("torch")
nn = torch.nn


class Wide(nn.Module):  # type: ignore[misc, name-defined]
    """The largest number of each channel, of more positions than a buffer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 4, 1)

    def forward(self, x: Any) -> Any:
        return self.first(x).amax(-1, keepdim=True)


def test_maxima_of_long_windows_are_priced_by_their_bytes() -> None:
    step = npusim.step(Wide(), (1, 50_000), device="ascend910b2", batch=2)
    assert step.complete
    assert any("max_pool" in note and "traffic only" in note for note in step.notes)


def test_maxima_of_windows_that_fit_have_a_kernel() -> None:
    step = npusim.step(Wide(), (1, 500), device="ascend910b2", batch=2)
    assert step.complete
    assert not any("max_pool" in note and "traffic only" in note for note in step.notes)


def test_a_step_builds_each_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    PROGRAMS.clear()
    LONG_PROGRAMS.clear()
    built = []

    def noted(kernel: Any, device: Any, groups: Any) -> Any:
        built.append((content(kernel), groups))
        return of_library(kernel, device, groups)

    of_library = build
    monkeypatch.setattr(programs, "build", noted)
    layers: list[Any] = []
    for width in range(8, 40, 2):  # candidates of all of them come before the plan's launches
        layers += [nn.Conv2d(width, width + 2, 3, padding=1), nn.BatchNorm2d(width + 2), nn.ReLU()]
    npusim.step(nn.Sequential(*layers), (8, 8, 8), device="ascend910b2", batch=2)
    assert len(built) == len(set(built))
    assert len(PROGRAMS) == len(built) <= PROGRAMS.most


def test_the_search_for_garbage_is_as_it_was() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        with collecting_seldom():
            assert gc.get_threshold()[0] > 100_000
            many: list[list[int]] = [[] for _ in range(200_000)]
        assert gc.get_threshold() == (700, 10, 10)
        assert gc.get_count()[0] < 700, "what was made is looked at by the next object"
        assert len(many) == 200_000
        gc.set_threshold(0, 10, 10)  # a user who wants none gets none
        with collecting_seldom():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
