"""Ranges that figures state: what the text means, and what every mistake in it says."""

from __future__ import annotations

import pytest

from npusim.device.parts import Provenance
from tests.device.test_device_config import fails, line_of, small


def test_a_figure_may_state_its_range() -> None:
    device = small("(published, HAND)", "(published, HAND, 80GB/s .. 60B/cycle)")
    known = device.provenance["paths.GM->UB.rate"]
    assert known == Provenance(confidence="published", source="HAND", range=(40, 60))
    assert device == small()  # how well a figure is known does not make another machine
    device = small("kernel: 1us (assumed, HAND)", "kernel: 1us (assumed, HAND, 0.2ns..2us)")
    assert device.provenance["launch.kernel"].range == (1, 4000)  # cycles, rounded up
    device = small("4/2cycle (assumed, HAND)", "4/2cycle (assumed, HAND, 16x8x4/4cycle..16x8x4)")
    assert device.provenance["cube.rates.fp16"].range == ((16, 8, 4, 4), (16, 8, 4, 1))


def test_a_figure_that_is_replaced_loses_its_range() -> None:
    device = small("(published, HAND)", "(published, HAND, 90GB/s..110GB/s)")
    path = "paths.GM->UB.rate"
    assert device.replace(path, 70).provenance[path].range is None
    assert device.replace("groups", 3).provenance[path].range == (45, 55)


# what is replaced, by what, text that marks the line of the error, path, message
ERRORS = [
    ("(published, HAND)", "(published, HAND, 90GB/s)", "published", "paths.GM->UB.rate",
     "expected a range such as 128B/cycle..128B/cycle, got '90GB/s'"),
    ("(published, HAND)", "(published, HAND,)", "published", "paths.GM->UB.rate",
     "expected a range such as 128B/cycle..128B/cycle, got ''"),
    ("(published, HAND)", "(published, HAND, 90..110GB/s)", "published", "paths.GM->UB.rate",
     "expected a rate such as 128B/cycle or 5TB/s, got 90"),
    ("(published, HAND)", "(published, HAND, 110GB/s..90GB/s)", "published", "paths.GM->UB.rate",
     "the range 110GB/s..90GB/s does not hold the value; write low..high around it"),
    ("(published, HAND)", "(published, HAND, 101GB/s..110GB/s)", "published", "paths.GM->UB.rate",
     "the range 101GB/s..110GB/s does not hold the value; write low..high around it"),
    ("16x8x4/2cycle (assumed, HAND)", "16x8x4/2cycle (assumed, HAND, 16x8x4..16x8x8)", "16x8x4",
     "cube.rates.fp16",
     "the range 16x8x4..16x8x8 does not hold the value; write low..high around it"),
    ("4KiB (assumed, HAND)\n  sector", "4KiB (assumed, HAND, 2KiB..8KiB)\n  sector", "block: 4KiB",
     "l2.block", "a size has no range; remove '2KiB..8KiB'"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "marker", "path", "message"), ERRORS)
def test_errors_by_place_and_text(old: str, new: str, marker: str, path: str, message: str) -> None:
    assert fails(old, new) == f"small.yaml:{line_of(marker)}: {path}: {message}"
