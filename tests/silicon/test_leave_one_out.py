"""Constants and their ranges, and fits whose answer is known.

Calls left out of a fit one by one, on a chip whose launches take a known time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from npusim.base.errors import ConfigError
from npusim.base.records import replace
from npusim.silicon.constants import STEPS, Constant, load_constants
from npusim.silicon.rows import CallRow, KernelRow, SimulatedRow
from npusim.silicon.simulate import RowOutcome, Task
from tests.tables import rows
from tools.scorecard.left_out import (
    CALL,
    FAMILY,
    SHAPE,
    SWITCH,
    LeftOut,
    Study,
    leave_one_out,
)
from tools.scorecard.tables import scorecard

Make = Callable[..., RowOutcome]

ENTRY = """
constants:
  - path: paths.L0C->GM.rate
    devices: [ascend910b1, ascend910b3]
    low: 60B/cycle
    high: 150B/cycle
"""


def test_the_list_that_ships_is_sound() -> None:
    for constant in load_constants():
        assert constant.low < constant.high


def test_an_entry_is_read_in_base_units() -> None:
    (constant,) = load_constants(ENTRY)
    assert [int(x) for x in (constant.low, constant.high, constant.shipped)] == [60, 150, 72]
    assert constant.devices == ("ascend910b1", "ascend910b3")
    assert constant.text(Fraction(225, 2)) == "112.5B/cycle"
    assert [constant.level(step) for step in (0, STEPS // 2, STEPS)] == [60, 105, 150]


def test_levels_of_whole_cycles_are_whole() -> None:
    text = ENTRY.replace("L0C->GM.rate", "L0C->GM.startup")
    text = text.replace("60B/cycle", "0cycle").replace("150B/cycle", "45cycle")
    (constant,) = load_constants(text)
    levels = [constant.level(step) for step in range(STEPS + 1)]
    assert all(level.denominator == 1 for level in levels)
    assert [int(levels[step]) for step in (0, 1, STEPS)] == [0, 1, 45]


@rows(
    "tests/data/mistakes/validation.yaml",
    "an_entry_that_cannot_be_refitted_is_an_error",
    "old, new, message",
)
def test_an_entry_that_cannot_be_refitted_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_constants(ENTRY.replace(old, new))
    assert str(caught.value).endswith(message)


def test_a_figure_belongs_to_one_entry() -> None:
    twice = ENTRY + ENTRY.replace("constants:\n", "").replace("ascend910b1, ", "")
    with pytest.raises(ConfigError, match="rate of ascend910b3 is there twice; keep one of them"):
        load_constants(twice)


RATE = Constant("rate", ("ascend910b1",), "rate", Fraction(50), Fraction(150), Fraction(100))
HEAD = Constant("head", ("ascend910b1",), "cycles", Fraction(0), Fraction(80), Fraction(10))


class Chip:
    """A chip whose kernels take head + N / rate, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Task] = []

    def time(self, n: int, rate: float, head: float) -> float:
        return head + n / rate

    def simulate(self, tasks: Sequence[Task]) -> list[RowOutcome]:
        self.asked += tasks
        return [self.outcome(*task) for task in tasks]

    def outcome(self, row: object, figures: object) -> RowOutcome:
        assert isinstance(row, KernelRow)
        assert isinstance(figures, dict)
        rate = float(Fraction(figures.get("rate", "100B/cycle").removesuffix("B/cycle")))
        head = float(figures.get("head", "10cycle").removesuffix("cycle"))
        return RowOutcome(row, SimulatedRow(self.time(row.N or 0, rate, head), {}))

    def outcomes(self, rows: Sequence[KernelRow]) -> list[RowOutcome]:
        return [self.outcome(row, {}) for row in rows]


def simulated_rows(rate: float, head: float, **columns: Any) -> list[KernelRow]:
    """Kernels of three families, as a chip with this rate and head would take."""
    chip = Chip()
    settings: dict[str, Any] = {"chip": "910B1", "op": "gemm", "trust": "A", **columns}
    return [
        KernelRow(
            id=f"{family}{n}", family=family, N=n, time_us=chip.time(n, rate, head), **settings
        )
        for family, sizes in (("a", (100, 9000)), ("b", (500, 20000)), ("c", (1000, 4000)))
        for n in sizes
    ]


def families(study: Study) -> list[LeftOut]:
    return [one for one in study.left_out if one.kind == FAMILY]


def test_families_are_predicted_by_what_the_others_tell() -> None:
    chip = Chip()
    found = families(
        leave_one_out(chip.outcomes(simulated_rows(75, 20)), [RATE, HEAD], chip.simulate)
    )
    assert [(one.name, one.rows, one.others) for one in found] == [
        ("a", 2, 4), ("b", 2, 4), ("c", 2, 4),
    ]  # fmt: skip
    for one in found:
        assert one.shipped is not None
        assert one.predicted is not None
        assert one.shipped > 0.2
        assert one.predicted == pytest.approx(0)
        assert one.values == ("75B/cycle", "20cycle")


def test_the_family_left_out_has_no_say() -> None:
    chip = Chip()
    plain = simulated_rows(75, 20)
    odd = [row for row in plain if row.family != "c"] + [
        row for row in simulated_rows(140, 60) if row.family == "c"
    ]
    (_, _, before), (_, _, after) = (
        families(leave_one_out(chip.outcomes(one), [RATE, HEAD], chip.simulate))
        for one in (plain, odd)
    )
    assert before.values == after.values
    assert before.predicted != after.predicted


def test_only_trusted_kernels_of_the_constants_devices_take_part() -> None:
    chip = Chip()
    other = [*simulated_rows(75, 20, trust="C"), *simulated_rows(75, 20, chip="A3")]
    outcomes = chip.outcomes(other) + [
        RowOutcome(row, reason="declined") for row in simulated_rows(75, 20)
    ]
    assert leave_one_out(outcomes, [RATE], chip.simulate).left_out == ()
    assert chip.asked == []


def test_a_constant_that_nothing_tells_of_stays_in_the_middle_of_its_range() -> None:
    chip = Chip()
    outcomes = chip.outcomes([row for row in simulated_rows(75, 20) if row.family == "a"])
    (only,) = families(leave_one_out(outcomes, [RATE, HEAD], chip.simulate))
    assert (only.others, only.values) == (0, ("100B/cycle", "40cycle"))


def test_an_end_of_a_range_that_cannot_be_simulated_is_left_out() -> None:
    chip = Chip()

    def simulate(tasks: Sequence[Task]) -> list[RowOutcome]:
        return [
            RowOutcome(row, reason="no")
            if figures.get("head") == "80cycle"
            else chip.outcome(row, figures)
            for row, figures in tasks
        ]

    found = families(leave_one_out(chip.outcomes(simulated_rows(100, 5)), [HEAD], simulate))
    for one in found:
        assert float(one.values[0].removesuffix("cycle")) == pytest.approx(5, abs=2)


def test_busy_times_are_fitted_as_well() -> None:
    """The times fit any rate: only MTE1 tells it."""

    def simulate(tasks: Sequence[Task]) -> list[RowOutcome]:
        return [outcome(row, figures) for row, figures in tasks]

    def outcome(row: object, figures: object) -> RowOutcome:
        assert isinstance(row, KernelRow)
        assert isinstance(figures, dict)
        rate = float(Fraction(figures.get("rate", "100B/cycle").removesuffix("B/cycle")))
        return RowOutcome(row, SimulatedRow(10.0, {"mte1": 1000 / rate, "fixpipe": 1000 / rate}))

    kernels = [
        KernelRow(id=f, chip="910B1", op="gemm", family=f, trust="B", time_us=10.0,
                  mte1_us=8.0, fixpipe_us=80.0, switches=("unit_flag",))
        for f in "abcd"
    ]  # fmt: skip
    outcomes = [outcome(row, {}) for row in kernels]
    found = families(leave_one_out(outcomes, [RATE], simulate))
    assert [one.values for one in found] == [("125B/cycle",)] * 4, "fixpipe waits, and is not asked"


def test_a_constant_that_few_others_tell_of_stays_in_the_middle_of_its_range() -> None:
    """Of the two rows of each family only the small one tells of the head."""
    chip = Chip()
    kernels = [row for row in simulated_rows(75, 20) if row.N not in (500, 1000)]
    study = leave_one_out(chip.outcomes(kernels), [RATE, HEAD], chip.simulate)
    (_, head) = study.determined
    assert head.rows == ("a100", "a9000", "b20000", "c4000")
    b = next(one for one in families(study) if one.name == "b")
    assert b.values == ("75B/cycle", "20cycle"), "three others tell of it"
    a = next(one for one in families(study) if one.name == "a")
    assert a.values[1] == "40cycle", "two do"


@pytest.mark.parametrize("word", ["all_cores_same_order", "all_cores_rotated"])
def test_kernels_that_read_one_address_tell_of_no_constant(word: str) -> None:
    chip = Chip()
    one_address = [replace(row, family="d") for row in simulated_rows(140, 60, switches=(word,))]
    both = [*simulated_rows(75, 20), *one_address]
    study = leave_one_out(chip.outcomes(both), [RATE, HEAD], chip.simulate)
    assert [one.name for one in families(study)] == ["a", "b", "c", "d"], "they are predicted"
    assert {one.values for one in families(study)} == {("75B/cycle", "20cycle")}
    assert not any(name.startswith("d") for one in study.determined for name in one.rows)


def scored(rate: float, head: float, words: dict[str, tuple[str, ...]]) -> list[KernelRow]:
    """Scored kernels of one family: a shape per letter of the id, switches by id."""
    chip = Chip()
    return [
        KernelRow(
            id=name, family="f", pair=name[0], chip="910B1", op="gemm", trust="A", base_m=16,
            N=1000 * ord(name[0]), time_us=chip.time(1000 * ord(name[0]), rate, head),
            switches=switches,
        )
        for name, switches in words.items()
    ]  # fmt: skip


def test_shapes_and_switches_are_left_out_whole() -> None:
    chip = Chip()
    words: dict[str, tuple[str, ...]] = {"a1": (), "a2": ("unit_flag",), "b1": (), "c1": ()}
    words["d1"] = ()
    study = leave_one_out(chip.outcomes(scored(75, 20, words)), [RATE], chip.simulate)
    found = {(one.kind, one.name): (one.rows, one.others) for one in study.left_out}
    assert found[SWITCH, "unit_flag"] == (1, 4)
    assert [key for key in found if key[0] == SHAPE] == [
        (SHAPE, f"f 910B1 Nonex{1000 * ord(letter)}xNone") for letter in "abcd"
    ]
    assert [found[key] for key in found if key[0] == SHAPE] == [(2, 3), (1, 4), (1, 4), (1, 4)]
    assert study.predicted.shapes == 4
    assert study.predicted.mean == pytest.approx(0, abs=0.01)
    assert [(pair.first, pair.second) for pair in study.predicted.pairs] == [("a1", "a2")]


def test_fewer_than_three_telling_rows_make_a_hypothesis() -> None:
    chip = Chip()
    few, many = (
        leave_one_out(
            chip.outcomes(simulated_rows(75, 20)[:n]), [RATE, HEAD], chip.simulate
        ).determined
        for n in (2, 6)
    )
    assert [one.rows for one in few] == [("a100", "a9000"), ("a100", "a9000")]
    assert all(one.is_hypothesis for one in few)
    assert not any(one.is_hypothesis for one in many)


def test_shapes_weigh_alike_however_often_they_were_measured() -> None:
    """Three rows of one shape that ask for 60 B/cycle lose against two other shapes."""
    chip = Chip()
    words: dict[str, tuple[str, ...]] = {"a1": (), "a2": (), "a3": (), "b1": (), "c1": (), "d1": ()}
    kernels = [
        replace(row, time_us=chip.time(row.N or 0, 60 if row.id[0] == "a" else 140, 10))
        for row in scored(75, 20, words)
    ]
    study = leave_one_out(chip.outcomes(kernels), [RATE], chip.simulate)
    without = {one.name: one.values for one in study.left_out if one.kind == SHAPE}
    assert without[f"f 910B1 Nonex{1000 * ord('d')}xNone"] == ("140B/cycle",)


CORE = Constant(
    "launch.core", ("ascend910b2",), "duration", Fraction(90), Fraction(330), Fraction(180)
)
CYCLES_PER_US = 1800


def outcome(row: object, figures: object) -> RowOutcome:
    """As many launches on 48 cores as the call has groups, and 10 us."""
    assert isinstance(row, CallRow)
    assert isinstance(figures, dict)
    text = figures.get("launch.core", "180cycle")
    each = float(text.removesuffix("cycle")) / CYCLES_PER_US
    return RowOutcome(row, SimulatedRow(10 + 48 * (row.groups or 0) * each, {}))


def simulate(tasks: Sequence[Task]) -> list[RowOutcome]:
    return [outcome(*task) for task in tasks]


def calls(cycles: int) -> list[RowOutcome]:
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
    kernel = RowOutcome(
        KernelRow(id="k", chip="910B2", op="gemm", trust="A", time_us=1.0), SimulatedRow(1.0, {})
    )
    assert len(leave_one_out([*calls(180), kernel], [CORE], simulate, CallRow).left_out) == 5
    assert leave_one_out(calls(180), [CORE], simulate).left_out == ()


def test_the_list_of_choices_that_ships_is_sound() -> None:
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
    """The score card of a file of calls alone ended in an IndexError."""
    kernels = leave_one_out(calls(234), [CORE], simulate)
    study = leave_one_out(calls(234), [CORE], simulate, CallRow)
    titles = [table.title for table in scorecard(calls(234), kernels, [CORE], (), study)]
    assert any(title.startswith("Calls left out of the fit") for title in titles)
