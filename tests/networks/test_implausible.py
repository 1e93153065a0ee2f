"""Operations of a step that take many times their least: with better tilings, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from npusim.networks.run import implausible
from npusim.networks.run.step_result import StepResult
from npusim.results.facts.fact import names_of
from npusim.workloads import Workload
from tests.networks.blocks import ONE_BLOCK, network
from tests.texts import text_of


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> StepResult:
    """A step of layers of whose pictures a single row fills more than half of L1."""
    workload = network(text_of("wide_and_deep.yaml"), tmp_path_factory.mktemp("deep"))
    return npusim.step(workload, device="ascend910", passes="forward")


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return network(ONE_BLOCK, tmp_path_factory.mktemp("block"))


def test_both_totals_are_simulated(deep: StepResult) -> None:
    """The step as tuned is one whose operations have the better of two tilings, nothing else."""
    tuned = deep.tuned
    times = {row.launched.name: row for row in deep.plausibility.retiled}
    assert "rejected.output" in times
    assert tuned.time_us < 0.5 * deep.time_us
    automatic = {
        operation.name: operation.us
        for operation in npusim.step(
            deep.workload, device="ascend910", passes="forward", tiling="auto"
        ).launched
    }
    for before, after in zip(deep.launched, tuned.launched, strict=True):
        if before.name in times:
            assert after.us == min(before.us, times[before.name].tuned.us)
        else:
            assert after.us == before.us
    assert tuned.time_us == pytest.approx(sum(operation.us for operation in tuned.launched))
    # An automatic tiling of a library's step is that of a step with automatic tilings, but that it
    # does not know what the L2 holds.
    assert times["rejected.output"].tuned.us == pytest.approx(automatic["rejected.output"], rel=0.2)


def test_what_no_rule_covers_is_extrapolated(deep: StepResult) -> None:
    """Two buffers of four rows of 1,024 channels and a filter: 1,184 KiB of an L1 of 1,024."""
    (reason,) = deep.plausibility.extrapolated
    assert deep.plausibility.extrapolated[reason] == ["rejected.output"]
    assert "1,184 KiB of L1, of 1,024 KiB" in reason
    (launched,) = (one for one in deep.launched if one.name == "rejected.output")
    result = launched.timed.result
    assert result is not None
    row = result.kernels.iloc[-1]
    assert (row["name"], row["extrapolated"]) == ("conv_forward", reason)
    assert any("(extrapolated)" in note for note in result.notes)


def test_the_guilty_are_on_the_first_screen(deep: StepResult) -> None:
    head = deep.text().splitlines()[:12]
    (line,) = (line for line in head if line.startswith("as tuned"))
    text = " ".join(" ".join(head).split())
    assert "less than as the public rule tiles it: rejected.output" in text
    assert "as the public rule tiles it" in deep.as_report().lead
    assert "rejected.output" in deep.as_report().lead
    assert line


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_nothing_far_from_its_least_is_left_out(device: str, mode: str, block: Workload) -> None:
    """Operations of more than ten times their least have rows, and those that matter reasons."""
    step = npusim.step(block, device=device, batch=4, mode=mode)
    rows = {row["operation"]: row for row in step.to_json()["far_from_least"]}
    text = " ".join(step.text().split())
    assert rows
    for launched in step.launched:
        least_us = implausible.least_us(launched)
        if least_us == 0 or launched.us <= implausible.FAR_FROM * least_us:
            assert launched.name not in rows or launched.value
            continue
        row = rows[launched.name]
        assert tuple(row) == names_of(implausible.FAR)
        if launched.us - least_us >= implausible.WORTH_A_LOOK * step.compute_us:
            assert row["why"]
            assert launched.name in text


def test_a_step_with_automatic_tilings_is_as_tuned(block: Workload) -> None:
    step = npusim.step(block, device="ascend910", batch=4, tiling="auto")
    assert step.plausibility.retiled == ()
    assert step.tuned is step
    assert "as tuned" not in step.text()


def test_nothing_is_simulated_before_a_report_asks(
    block: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise AssertionError("an operation was tried")

    monkeypatch.setattr(implausible.AutomaticTilings, "timed", fails)
    step = npusim.step(block, device="ascend910", batch=4)
    assert step.time_us > 0
    assert len(step.operations) == len(step.launched)


def test_cards_exchange_the_gradients_of_the_tuned_step(tmp_path: Path) -> None:
    """Gradients are ready earlier: less of their exchange is hidden behind the backward pass."""
    step = npusim.step("resnet18", device="ascend910", cards=8, batch=4)
    assert step.tuned is not step
    assert step.reduced is not None
    assert step.tuned.reduced is not None
    assert step.tuned.reduced.us == pytest.approx(step.reduced.us)
    assert step.tuned.reduced.hidden_us < step.reduced.hidden_us
    assert step.tuned.time_us < step.time_us
