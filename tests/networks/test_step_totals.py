"""Totals of a step that is put together by hand: nothing is simulated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npusim.machine.device.catalog import load_device
from npusim.networks.plan.l2_lines import L2Traffic
from npusim.networks.plan.tasks import PLAIN, StoredValue
from npusim.networks.rules.values import Training
from npusim.networks.run.all_reduce import Reduced
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.networks.run.step import setting
from npusim.networks.run.step_result import StepResult
from npusim.networks.timed import Timed
from tests.networks.blocks import ONE_BLOCK, network


def launched(
    name: str,
    reads: str,
    writes: str,
    sizes: dict[str, int],
    timed: Timed | None = None,
    l2: L2Traffic | None = None,
    count: int = 1,
) -> LaunchedOperation:
    """An operation that reads and writes values, whose bytes are ``sizes``."""
    read = tuple(StoredValue(value, PLAIN) for value in reads.split())
    written = tuple(StoredValue(value, PLAIN) for value in writes.split())
    return LaunchedOperation(
        name=name,
        kind="k",
        phase="forward",
        layer="",
        timed=timed or Timed(None, "no time"),
        reads=read,
        writes=written,
        sizes={value: sizes[value.name] for value in (*read, *written)},
        l2=l2 or L2Traffic(),
        count=count,
    )


def step_of(
    launches: tuple[LaunchedOperation, ...],
    folder: Path,
    cards: int = 1,
    reduced: Reduced | None = None,
    training: Training | None = None,
) -> StepResult:
    """A step of three images a card on a 910."""
    device = load_device("ascend910")
    how: dict[str, Any] = dict.fromkeys(("layouts", "fusions", "norm"))
    return StepResult(
        workload=network(ONE_BLOCK, folder),
        device=device,
        batch=3,
        setting=setting(
            device,
            mode="graph",
            optimizer="sgd",
            passes="training",
            dtype="fp16",
            cards=cards,
            **how,
        ),
        step=training or Training(),
        launched=launches,
        fused={},
        planned=None,
        reduced=reduced,
    )


@pytest.mark.parametrize(
    ("steps", "most"),
    [
        # w is a parameter and stays, x goes once it is read; then of a, b and c two are there.
        ([("x w", "a"), ("a", "b"), ("b", "c"), ("c w", "d")], 1100 + 10),
        ([("w", "x"), ("x w", "a"), ("a", "b"), ("b", "e"), ("e w", "d")], 1100 + 10),
        # a and b go together when the third operation has read both; then e stands beside c.
        ([("x", "a"), ("x", "b"), ("a b", "c"), ("c", "e")], 100 + 10 + 20),
        ([("x", "a"), ("a", "b"), ("a b", "e"), ("e", "e2")], 100 + 10),
        # The largest moment is the first, not the last.
        ([("x", "e"), ("e", "a"), ("a", "d")], 100 + 50),
        # What nobody reads goes at once.
        ([("x", "e"), ("x", "e2"), ("x", "a")], 100 + 51),
    ],
)
def test_kept_bytes_are_those_of_values_that_somebody_still_reads(
    steps: list[tuple[str, str]], most: int, tmp_path: Path
) -> None:
    """Parameters stay all the time; data and maps go once their last reader has run."""
    sizes = {"w": 1000, "x": 100, "a": 10, "b": 20, "c": 5, "d": 1, "e": 50, "e2": 51}
    launches = tuple(launched(f"o{i}", *pair, sizes) for i, pair in enumerate(steps))
    reading_w = any("w" in reads.split() for reads, _ in steps)
    training = Training(inputs=("x",), parameters=["w"] if reading_w else [])
    assert step_of(launches, tmp_path, training=training).kept_bytes == most


def test_images_per_second_are_those_of_all_cards(tmp_path: Path) -> None:
    """Three images on each of four cards in 2 us of kernels and 1 us that the exchange adds."""
    result: Any = SimpleNamespace(
        cycles=2000, time_us=2.0, runs=(), device=load_device("ascend910")
    )
    launches = (launched("o", "x", "a", {"x": 1, "a": 1}, Timed(result)),)
    reduced = Reduced(4, 1, 8, us=5.0, hidden_us=4.25, exposed_us=0.75, slowed_us=0.25)
    step = step_of(launches, tmp_path, cards=4, reduced=reduced)
    assert step.time_us == pytest.approx(3.0)
    assert step.images_per_second == pytest.approx(4 * 3 / 3e-6)
    assert step_of(launches, tmp_path).images_per_second == pytest.approx(3 / 2e-6)
