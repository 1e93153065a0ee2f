"""Vector kernels leave cores idle where launching them takes longer than they save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.records import replace
from npusim.kernels.estimate.streams import times
from npusim.kernels.layout.cast import cast
from npusim.kernels.layout.conversion import Conversion
from npusim.kernels.layout.thin_map import ThinMap, Thinned
from npusim.kernels.layout.trans_data import TransData
from npusim.kernels.layout.transpose import Transpose
from npusim.kernels.parts.spread import Spread
from npusim.kernels.windows.pool import pooled
from npusim.language import Kernel, Language, Plan, Tasks, Tensor
from npusim.machine.device.catalog import load_device
from tests.calls import Row, data
from tests.kernels.test_concat import concat
from tests.kernels.test_pool import pool
from tests.kernels.test_softmax_loss import softmax_loss
from tests.sampled import slow_if


def conversion(kind: str, shape: tuple[int, ...]) -> TransData:
    how = Conversion(kind=kind, c0=16)
    plain = Tensor("plain", shape, FP16, "in" if how.loads_plain else "out")
    role = "out" if how.loads_plain else "in"
    blocked = Tensor("blocked", how.blocked_shape(shape), FP16, role)
    pair = (plain, blocked) if how.loads_plain else (blocked, plain)
    return TransData(how, *pair)


SMALL: list[Spread] = [
    conversion("to_blocked", (1, 32, 112, 112)),
    conversion("from_blocked", (1, 96, 56, 56)),
    conversion("to_blocked", (1, 2048, 7, 7)),
    conversion("to_fracz", (512, 512, 3, 3)),
    conversion("from_fracz", (576, 96, 1, 1)),
    conversion("to_blocked", (8, 64, 56, 56)),
    cast(Tensor("x", (300_000,), FP32, "in"), Tensor("y", (300_000,), FP16, "out")),
    Transpose((1, 0), Tensor("x", (512, 256), FP16, "in"), Tensor("y", (256, 512), FP16, "out")),
    concat([(64, 160), (64, 160)], 1),
    pool((1, 4, 14, 14, 16), pooled((1, 4, 14, 14, 16), (2, 2), (2, 2)), "mean", FP16),
    softmax_loss(64, 10),
]


def cycles(kernel: Kernel, device: str) -> int:
    (run,) = npusim.simulate(kernel, device).runs
    return run.cycles + run.launch_cycles


@pytest.mark.parametrize("device", ["ascend910b2", slow_if(True, "ascend950pr")])
@pytest.mark.parametrize("kernel", SMALL, ids=lambda kernel: f"{kernel.name}-{kernel.tensors[0]}")
def test_it_takes_about_as_many_cores_as_are_the_fastest(kernel: Spread, device: str) -> None:
    cores = npusim.load_device(device).count("vector")
    counts = [n for n in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64) if n <= cores]
    times = {n: cycles(replace(kernel, cores=n), device) for n in counts}
    few = kernel.on_few(npusim.load_device(device), cores)
    assert cycles(few, device) <= 1.07 * min(times.values())
    assert cycles(few, device) < times[max(counts)]


def test_all_cores_work_where_launching_them_costs_nothing() -> None:
    device = npusim.load_device("ascend910")
    assert device.launch.core_cycles == 0
    assert SMALL[0].on_few(device, 32).used(32) == 32


CALLS = {name: Row(**row, timing=True) for name, row in data("spread").items()}


@pytest.mark.parametrize("name", ["ascend910b2", slow_if(True, "ascend950pr")])
@pytest.mark.parametrize("call", CALLS)
def test_more_cores_never_make_a_small_call_slower(call: str, name: str) -> None:
    """Some took two and a half times as long on 48 groups as on 4, for the sake of launches."""
    least = float("inf")
    for groups in (8, 16, 24, 32, 48):
        time = CALLS[call](npusim.load_device(name, {"groups": str(groups)})).time_us
        assert time <= 1.02 * least
        least = min(least, time)


class Nothing(NamedTuple):
    """A task."""

    place: int


@dataclass(frozen=True)
class Meeting(Kernel):
    """The first cores write a block each, meet, and read what their neighbours wrote."""

    out: Tensor
    copy: Tensor
    few: int

    name: ClassVar[str] = "meeting"
    role: ClassVar[str] = "vector"

    def plan(self, k: Language, cores: int) -> Plan[Nothing]:
        assert cores > self.few
        held = k.buffer("UB", (8,), FP32, slots=2, name="held")

        def emit(task: Nothing) -> None:
            mine = held.next()
            k.vec_dup(mine, float(task.place), FP32)
            k.data_move(self.out.at(0, 32, base="own"), mine, FP32)
            k.core_barrier()
            other = held.next()
            k.data_move(other, self.out.at(0, 32, base="next"), FP32)
            k.data_move(self.copy.at(0, 32, base="own"), other, FP32)

        core = np.arange(self.few)
        bases = {"own": core * 32, "next": (core + 1) % self.few * 32}
        return Plan(Tasks(core, Nothing, {"place": core}, bases), emit)


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_cores_without_work_meet_nobody(engine: str) -> None:
    """They are not launched: neither engine waits for them, nor do the numbers."""
    out, copy = (Tensor(name, (3, 8), FP32, "out") for name in ("out", "copy"))
    result = npusim.simulate(Meeting(out, copy, 3), "ascend910b2", engine=engine, check=True)
    assert result.runs[0].cores == 3
    assert result.outputs is not None
    assert [row[0] for row in np.asarray(result.outputs[1])] == [1, 2, 0]


def test_both_engines_agree_on_cores_that_meet_without_others() -> None:
    out, copy = (Tensor(name, (3, 8), FP32, "out") for name in ("out", "copy"))
    times = {
        engine: npusim.simulate(Meeting(out, copy, 3), "ascend910b2", engine=engine).runs[0].cycles
        for engine in ("fast", "simpy")
    }
    assert times["fast"] == times["simpy"]


def test_pieces_that_move_inside_ub_count() -> None:
    """640 lanes of 20 channels at 20x16 of 40x32 positions take 2 cycles each on one core."""
    change = Thinned(16, True, (2, 2))
    x = Tensor("x", (1, 20, 40, 32), FP16)
    y = Tensor("y", (1, 1, 2, 20, 16, 16), FP16, "out")
    free = load_device("ascend910b2", {"paths.UB->UB.row": "0cycle"})
    dear = load_device("ascend910b2", {"paths.UB->UB.row": "2cycle"})
    stream = ThinMap(change, x, y).stream(dear, 1)
    assert stream.rows == 640
    few = stream._replace(tasks=1)
    more = times(dear, 1, few)[0] - times(free, 1, few)[0]
    assert more == pytest.approx(2 * 640, rel=0.01)
