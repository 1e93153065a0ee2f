"""The range of a time: which figures have one, what it does to a call, and how it is told."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.cli.main import main
from npusim.machine.device.catalog import load_device, ranges
from npusim.machine.device.config import parse_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import Language
from npusim.results.facts.time_range import Effect, TimeRange
from tests.machine.timing.test_engines_agree import CALLS, operator_calls
from tests.scripts import Scripted, tasks_of

TINY = configs().joinpath("devices", "tiny.yaml").read_text(encoding="utf-8")
RATE = "paths.GM->UB.rate"
STARTUP = "paths.GM->UB.startup"
SIZE = 8192


class Load(Scripted):
    """One move of 8192 B from GM to UB, on the first core."""

    name = "load"
    role = "vector"

    def __init__(self) -> None:
        self.x = Tensor("x", (SIZE // 4,), FP32, "in")

    def tasks(self, cores: int) -> Tasks[Any]:
        return tasks_of(np.zeros(1, np.int64), {}, {})

    def buffers(self, k: Language) -> None:
        self.ub = k.buffer("UB", (SIZE // 4,), FP32, slots=1)

    def emit(self, k: Language, task: Any) -> None:
        k.data_move(self.ub.next().at(0, SIZE), self.x.at(0, SIZE), FP32)


class Multiply(Scripted):
    """256 products of blocks on the first core, and nothing else."""

    name = "multiply"
    role = "cube"
    tensors = (Tensor("x", (1,), FP32, "in"),)

    def tasks(self, cores: int) -> Tasks[Any]:
        return tasks_of(np.zeros(1, np.int64), {}, {})

    def buffers(self, k: Language) -> None:
        self.a, self.b = (k.buffer(name, (64, 64), FP16, slots=1) for name in ("L0A", "L0B"))
        self.c = k.buffer("L0C", (64, 64), FP32, slots=1)

    def emit(self, k: Language, task: Any) -> None:
        a, b, c = (buffer.next() for buffer in (self.a, self.b, self.c))
        for _ in range(4):
            k.mmad(c, a, b, 64, 64, 64, FP16, init=True)


def known(**figures: str) -> Device:
    """``tiny`` with every figure measured but some, at keys that occur once or by path and key."""
    text = TINY.replace("(assumed, HAND)", "(measured, HAND)")
    for key, figure in figures.items():
        old = {
            "rate": "  GM->UB:\n    pipe: MTE2\n    startup: 10cycle (measured, HAND)\n"
            "    rate: 64B/cycle (measured, HAND)",
            "startup": "  GM->UB:\n    pipe: MTE2\n    startup: 10cycle (measured, HAND)",
            "kernel": "  kernel: 50cycle (measured, HAND)",
            "clock": "\nclock: 1GHz (measured, HAND)",
            "fp16": "  fp16: 16x16x16 (measured, HAND)",
        }[key]
        assert text.count(old) == 1
        text = text.replace(old, old.rpartition(": ")[0] + f": {figure}")
    return parse_device(text, "known.yaml")


def loaded(device: Device) -> npusim.Result:
    """The move with its operand in L2, which gives it 128 B/cycle."""
    return npusim.simulate(Load(), device, start="warm")


# -- by hand -----------------------------------------------------------------------------------


def test_a_range_worked_out_by_hand() -> None:
    """Cycles of 1 ns: 1 to issue, 10 to start up, 8192 B / 64 = 128, and a launch of 80."""
    device = known(
        rate="64B/cycle (fitted, HAND, 32B/cycle..128B/cycle)", kernel="50cycle (fitted, HAND)"
    )
    result = loaded(device)
    t = result.time_us
    assert result.runs[0].launch_cycles == 80
    assert result.cycles == 1 + 138 + 80
    found = result.time_range
    rate, launch = found.effects  # all others are measured
    assert (rate.figure, rate.low, rate.high) == (
        RATE,
        "32B/cycle (32GB/s)",
        "128B/cycle (128GB/s)",
    )
    assert rate.low_us == pytest.approx(t + 0.128)
    assert rate.high_us == pytest.approx(t - 0.064)
    assert (launch.figure, launch.low, launch.high) == (
        "launch.kernel",
        "45cycle (0.045us)",
        "55cycle (0.055us)",
    )
    assert launch.low_us == pytest.approx(t - 0.005)
    assert launch.high_us == pytest.approx(t + 0.005)
    assert found.time_us == t
    assert found.low_us == pytest.approx(t - hypot(0.064, 0.005))
    assert found.high_us == pytest.approx(t + hypot(0.128, 0.005))


def test_the_clock_is_a_figure_like_others() -> None:
    result = loaded(known(clock="1GHz (assumed, HAND, 0.5GHz..2GHz)"))
    (clock,) = result.time_range.effects
    assert (clock.low_us, clock.high_us) == (2 * result.time_us, result.time_us / 2)


def test_a_rate_of_the_cube_varies_between_stated_blocks() -> None:
    """4 mmads of 64 blocks take 256 cycles at a block per cycle, twice that at half."""
    device = known(fp16="16x16x16 (assumed, HAND, 16x16x16/2cycle..16x16x16)")
    (cube,) = npusim.simulate(Multiply(), device).time_range.effects
    assert (cube.figure, cube.low) == ("cube.rates.fp16", "16x16x16/2cycle")
    assert cube.low_us - cube.high_us == pytest.approx(0.256)


def test_figures_that_are_known_leave_no_doubt() -> None:
    result = loaded(known())
    assert result.time_range.effects == ()
    assert (result.time_range.low_us, result.time_range.high_us) == (result.time_us,) * 2


def test_a_stated_range_counts_whatever_the_confidence() -> None:
    result = loaded(known(startup="10cycle (measured, HAND, 10cycle..15cycle)"))
    (effect,) = result.time_range.effects
    assert effect.figure == STARTUP
    assert effect.low_us == result.time_us
    assert effect.high_us == pytest.approx(result.time_us + 0.005)


def test_a_figure_the_call_does_not_use_has_no_effect() -> None:
    found = loaded(load_device("tiny")).time_range  # every figure assumed
    effects = {one.figure: one for one in found.effects}
    assert {RATE, STARTUP, "l2.read", "main_memory.read"} <= effects.keys()
    for part in ("paths.GM->L1.rate", "cube.idle_head", "sync.flag", "vector.ops.add", "l2.size"):
        assert part not in effects
    for unused in ("main_memory.read", "l2.write"):  # the operand comes from L2
        assert (effects[unused].low_us, effects[unused].high_us) == (found.time_us,) * 2
    assert not found.effects[-1].faster_us(found.time_us)


def test_a_move_rests_on_its_own_form_alone() -> None:
    a, b = npusim.spec((32, 48), "fp16"), npusim.spec((48, 16), "fp16")
    names = {one.figure for one in npusim.ops.matmul(a, b, device="tiny").time_range.effects}
    assert {"paths.L1->L0A.load3d.rate", "paths.GM->L1.nd2nz.rate", "cube.issue"} <= names
    assert not names & {"paths.L1->L0A.rate", "paths.L1->L0A.load3d_transpose.rate"}


def test_deviations_to_the_same_side_do_not_widen_the_other() -> None:
    def effect(low_us: float, high_us: float) -> Effect:
        return Effect(figure="x", low="", high="", low_us=low_us, high_us=high_us)

    found = TimeRange(time_us=10.0, effects=(effect(13.0, 11.0), effect(14.0, 10.0)))
    assert (found.low_us, found.high_us) == (10.0, 15.0)


# -- which figures have a range ----------------------------------------------------------------


def test_default_ranges_by_confidence_and_kind() -> None:
    device = known(rate="64B/cycle (assumed, HAND)", kernel="11cycle (fitted, HAND)")
    found = {path: (low.value, high.value) for path, (low, high) in ranges(device).items()}
    assert found == {RATE: (Fraction("44.8"), Fraction("83.2")), "launch.kernel": (9, 13)}
    every = ranges(load_device("tiny"))
    assert (every["clock"][0].value, every["clock"][1].value) == (700_000_000, 1_300_000_000)
    assert every["vector.ops.add"][1].value == Fraction("1.3")
    for path in ("groups", "l2.size", "l2.atomic_factor", "cube.unit_flag", "cube.rates.fp16",
                 "cube.startup"):  # 0 cycles: no share of it  # fmt: skip
        assert path not in every


def test_a_figure_set_by_the_user_is_assumed() -> None:
    device = known(rate="64B/cycle (fitted, HAND, 32B/cycle..128B/cycle)").replace(RATE, 100)
    low, high = ranges(device)[RATE]
    assert (low.value, high.value) == (70, 130)


# -- every operator ----------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "role", "name"), operator_calls())
def test_a_call_timed_again_takes_as_long(device: str, role: str, name: str) -> None:
    result = CALLS[role][name](device=device)
    assert result.replay is not None
    assert result.replay.time_us(result.device) == result.time_us
    slower = result.device.replace("clock", result.device.clock_hz // 2)
    assert result.replay.time_us(slower) != result.time_us


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_both_engines_give_the_same_range(engine: str) -> None:
    device = known(rate="64B/cycle (assumed, HAND)")
    result = npusim.simulate(Load(), device, engine=engine, cores="2")
    assert result.time_range == npusim.simulate(Load(), device, cores="1").time_range


def test_operands_in_private_memory_rest_on_its_figures() -> None:
    call = CALLS["dsp"]["deconv_grad_filter private"]
    result = call(device="mt7004")
    figures = {effect.figure: effect for effect in result.time_range.effects}
    assert "main_memory.read" not in figures
    assert figures["private_memory.read"].low_us > result.time_us
    slow = result.device.replace("private_memory.read", "1B/cycle")
    assert slow.main_memory.read_bytes_per_cycle == 1


def test_the_way_to_time_a_call_again_is_no_part_of_what_it_gave() -> None:
    one, two = (npusim.simulate(Load(), "tiny") for _ in range(2))
    assert replace(one, replay=None, runs=()) == replace(two, runs=())
    assert '"replay"' not in json.dumps(one.to_json())


# -- how it is told ----------------------------------------------------------------------------


def test_reports_show_the_range_once_it_is_known(tmp_path: Path) -> None:
    result = loaded(
        known(
            rate="64B/cycle (fitted, HAND, 32B/cycle..128B/cycle)", kernel="50cycle (fitted, HAND)"
        )
    )
    page = tmp_path / "r.html"
    result.report(page)
    assert result.known_time_range is None
    assert "range" not in result.text()
    assert "range of the time" not in page.read_text(encoding="utf-8")
    low, high = result.time_range.low_us, result.time_range.high_us
    t = result.time_us
    assert (
        f"range       {low:.3f} to {high:.3f} us, most from {RATE} ({t - 0.064:.3f} to "
        f"{t + 0.128:.3f}), launch.kernel ({t - 0.005:.3f} to {t + 0.005:.3f}) bottleneck"
    ) in re.sub(r"\n *", " ", result.text())
    result.report(page)
    assert f"{low:.3f} to {high:.3f} \u00b5s" in page.read_text(encoding="utf-8")


def test_the_table_has_a_row_per_figure() -> None:
    found = loaded(known(startup="10cycle (assumed, HAND)")).time_range
    table = found.table
    assert list(table.columns) == ["figure", "low", "high", "low_us", "high_us"]
    (row,) = table.to_dict("records")
    assert row == found.to_json()["figures"][0]
    assert (row["figure"], row["low"], row["high"]) == (STARTUP, "7cycle", "13cycle")


def test_a_result_not_made_by_a_call_has_none() -> None:
    bare = replace(loaded(known()), replay=None)
    with pytest.raises(ArgumentError, match="load: this result was not made by a call, so it"):
        _ = bare.time_range


MATMUL = ("run", "matmul", "--device", "tiny", "--m", "32", "--k", "48", "--n", "16",
          "--timing-only")  # fmt: skip


def test_the_command_line_gives_the_range_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    result = npusim.ops.matmul(
        npusim.spec((32, 48), "fp16"), npusim.spec((48, 16), "fp16"), device="tiny"
    )
    assert main([*MATMUL, "--json"]) == 0
    assert "time_range" not in json.loads(capsys.readouterr().out)
    assert main([*MATMUL, "--json", "--range"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["time_range"] == result.time_range.to_json()
    assert main([*MATMUL, "--range"]) == 0
    assert capsys.readouterr().out == result.text()
    assert "\nrange " in result.text()
