"""Calls left out of a fit one by one, on a chip whose launches take a known time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from npusim.validation.constants import Constant, load_constants
from npusim.validation.leave_one_out import CALL, leave_one_out
from npusim.validation.rows import CallRow, KernelRow, Simulated
from npusim.validation.simulate import Outcome, Task
from npusim.validation.tables import scorecard

CORE = Constant(
    "launch.core", ("ascend910b2",), "duration", Fraction(90), Fraction(330), Fraction(180)
)
CYCLES_PER_US = 1800


def outcome(row: object, figures: object) -> Outcome:
    """As many launches on 48 cores as the call has groups, and 10 us."""
    assert isinstance(row, CallRow)
    assert isinstance(figures, dict)
    text = figures.get("launch.core", "180cycle")
    each = float(text.removesuffix("cycle")) / CYCLES_PER_US
    return Outcome(row, Simulated(10 + 48 * (row.groups or 0) * each, {}))


def simulate(tasks: Sequence[Task]) -> list[Outcome]:
    return [outcome(*task) for task in tasks]


def calls(cycles: int) -> list[Outcome]:
    """Calls of one to five kernels, as measured where a core takes so many cycles; one is odd."""
    each = cycles / CYCLES_PER_US
    times = [10 + 48 * count * each for count in range(1, 6)]
    times[2] *= 2
    rows = [
        CallRow(id=f"L{n}", chip="910B2", call="c", family="DW", groups=n, time_us=time, trust="A")
        for n, time in enumerate(times, 1)
    ]
    return [outcome(row, {}) for row in rows]


def test_a_call_is_predicted_by_what_the_others_tell() -> None:
    study = leave_one_out(calls(234), [CORE], simulate, CallRow)
    assert [(one.kind, one.name, one.others) for one in study.left_out] == [
        (CALL, f"L{n}", 4) for n in range(1, 6)
    ]
    assert {one.values for one in study.left_out} == {("234cycle",)}
    predicted = [one.predicted for one in study.left_out]
    assert predicted == [pytest.approx(0.5 if n == 2 else 0, abs=0.01) for n in range(5)]
    assert [len(one.rows) for one in study.determined] == [5]


def test_the_card_tells_both_errors_by_family() -> None:
    study = leave_one_out(calls(234), [CORE], simulate, CallRow)
    (table,) = [one for one in scorecard([], calls=study) if one.title.startswith("Calls left out")]
    ((family, chip, count, *_, mean, median),) = table.rows
    assert (family, chip, count, mean, median) == ("DW", "910B2", "5", "10.0 %", "0.0 %")


def test_kernels_are_left_out_of_a_study_of_calls() -> None:
    kernel = Outcome(
        KernelRow(id="k", chip="910B2", op="gemm", trust="A", time_us=1.0), Simulated(1.0, {})
    )
    assert len(leave_one_out([*calls(180), kernel], [CORE], simulate, CallRow).left_out) == 5
    assert leave_one_out(calls(180), [CORE], simulate).left_out == ()


def test_the_list_that_ships_is_sound() -> None:
    found = {(one.path, *one.devices) for one in load_constants(part="calls")}
    assert ("launch.core", "ascend910b2") in found
    assert load_constants("constants: []", "calls") == []


def test_transposes_are_predicted_and_no_constant_is_fitted_to_them() -> None:
    """No convolution launches one; they had drawn the share of a core in a launch to their side."""
    times = calls(234)
    row = times[0].row
    assert isinstance(row, CallRow)
    turned = replace(row, id="L6", call="transpose", family="TRANSPOSE", groups=5, time_us=90.0)
    study = leave_one_out([*times, outcome(turned, {})], [CORE], simulate, CallRow)
    assert {one.values for one in study.left_out} == {("234cycle",)}
    assert [one.name for one in study.left_out][-1] == "L6"


def test_calls_alone_have_a_card_without_fits_of_kernels() -> None:
    """``npusim validate --leave-one-out --data calls.csv`` ended in an IndexError."""
    kernels = leave_one_out(calls(234), [CORE], simulate)
    study = leave_one_out(calls(234), [CORE], simulate, CallRow)
    titles = [table.title for table in scorecard(calls(234), kernels, [CORE], (), study)]
    assert any(title.startswith("Calls left out of the fit") for title in titles)
