"""What no program can beat: by hand on ``tiny``, in reports, in Python and on the command line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import ops
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError
from npusim.cli.main import main
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.timing.bounds import GmBytes, memory_bounds
from npusim.machine.timing.trace import Bound
from npusim.results import Result
from tests.results.verdicts import undercut


def product(m: int, k: int, n: int, device: Any = "tiny", **options: Any) -> Result:
    a, b = npusim.spec((m, k), "fp16"), npusim.spec((k, n), "fp16")
    return ops.matmul(a, b, device=device, **options)


def least(bounds: tuple[Bound, ...]) -> dict[str, int]:
    return {bound.resource: bound.least for bound in bounds}


def test_operands_in_the_l2_need_not_come_from_main_memory() -> None:
    r = product(32, 48, 16)
    assert least(r.problem_bounds) == {"HBM read": 0, "L2 read": 36, "L2 write": 16, "cube": 2}
    both = r.bound()
    assert both.problem.cached[:2] == (0.036, "L2 read")
    assert both.problem.cold[:2] == (0.072, "HBM read")
    assert (both.problem.cached.figure, both.problem.cold.figure) == ("l2.read", "main_memory.read")
    both_told = "at least    0.036 us (operands in the L2: L2 read, every operand once), 0.072"
    assert both_told in r.bound().text()
    assert "at least    0.072 us for any program (HBM read" in r.text()
    assert "operands in the L2" not in r.text()
    warm = product(32, 48, 16, start="warm")
    assert warm.at_least.cold.us == warm.at_least.cached.us == 0.036
    assert "operands in the L2" not in warm.text()


def test_what_the_l2_has_no_room_for_crosses_the_bus_with_what_it_has_to_write_back() -> None:
    """4 MiB are read and 5 written, of which an L2 of 1 MiB holds one each; 64 B a cycle."""
    mib = 1 << 20
    bus = "{rate: 48B/cycle, scope: chip, traffic: [read_miss, evict]}"
    device = load_device("tiny", {"links.bus": bus})
    needed = GmBytes({"a": 4 * mib}, {"c": 5 * mib})
    found = {one.resource: one for one in memory_bounds(device, needed)}
    assert (found["link bus"].cycles, found["link bus"].least) == (
        -(-8 * mib // 48), -(-7 * mib // 48),
    )  # fmt: skip
    assert (found["HBM read"].cycles, found["HBM read"].least) == (-(-4 * mib // 48), mib // 16)
    assert found["HBM write"].cycles == found["HBM write"].least == 4 * mib // 64
    assert found["link bus"].figure == found["HBM read"].figure == "links.bus.rate"


def test_an_array_given_twice_is_one_operand() -> None:
    a = np.ones((64, 64), np.float16)
    once, twice = ops.matmul(a, a, device="tiny"), ops.matmul(a, a.copy(), device="tiny")
    read = [next(b for b in r.problem_bounds if b.resource == "HBM read") for r in (once, twice)]
    assert [one.cycles for one in read] == [64 * 64 * 2 // 64, 2 * 64 * 64 * 2 // 64]
    assert once.cycles == twice.cycles
    s = npusim.spec((64, 64), "fp16")
    assert ops.matmul(s, s, device="tiny").problem_bounds == once.problem_bounds
    for whole in (once, twice):  # and so says the row of its kernel
        own = next(b for b in whole.runs[0].problem_bounds if b.resource == "HBM read")
        assert own.cycles == (64 if whole is once else 2 * 64) * 64 * 2 // 64


def test_bounds_take_the_most_that_a_memory_was_measured_to_give() -> None:
    """A 950 reads 1.63 TB/s at most and 1.62 in the mean; of another memory nobody knows more."""
    r = product(33, 4096, 4096, "ascend950pr")
    read = next(one for one in r.problem_bounds if one.resource == "HBM read")
    assert read.figure == "links.hbm.rate"  # 1.63 TB/s, too
    size = (33 * 4096 + 4096 * 4096) * 2
    assert r.device.time_us(read.cycles) == pytest.approx(size / 1.63e6, rel=1e-4)
    slow = load_device("ascend950pr", {"main_memory.read": "0.8TB/s"})
    assert slow.main_memory.read_at_most == slow.main_memory.read_bytes_per_cycle
    read = next(
        one for one in product(33, 4096, 4096, slow).problem_bounds if "HBM" in one.resource
    )
    assert read.figure == "main_memory.read"
    assert slow.time_us(read.cycles) == pytest.approx(size / 0.8e6, rel=1e-4)
    said = {"main_memory.read": "0.8TB/s", "main_memory.read_at_most": "0.9TB/s"}
    device = load_device("ascend950pr", said)
    (read, *_) = product(33, 4096, 4096, device).problem_bounds
    assert read.figure == "main_memory.read_at_most"


def test_a_figure_for_bounds_moves_no_cycle_and_no_note() -> None:
    fast = load_device("ascend910b2", {"main_memory.read_at_most": "1.6TB/s"})
    a, b = product(64, 64, 64, "ascend910b2"), product(64, 64, 64, fast)
    assert (a.cycles, a.notes) == (b.cycles, b.notes)
    assert a.problem_bounds[0].resource != "" != b.device.digest() != a.device.digest()


def test_a_schedule_counts_what_moves_at_its_rate_alone() -> None:
    """A tile of 16 columns for 32: A is read twice, through pipes that have no start-ups here."""
    a, b = Tensor("a", (32, 48), FP16), Tensor("b", (48, 32), FP16)
    tiling = Tiling(base_m=32, base_n=16, base_k=48)
    kernel = Matmul(tiling, a, b, Tensor("c", (32, 32), FP32, "out"))
    r = npusim.simulate(kernel, "tiny")
    (run,) = r.runs
    found = {one.resource: one for one in run.bounds}
    read = 2 * 32 * 48 * 2 + 48 * 32 * 2
    assert found["L2 read"].least == found["L2 read"].cycles == read // 128
    path = r.device.path("GM", "L1", "nd2nz")
    assert found["pipe MTE2"].least == int(read / path.bytes_per_cycle / 4)  # on four cores
    assert found["pipe MTE2"].figure == "paths.GM->L1.nd2nz.rate"
    assert found["pipe M"].least == 32 * 48 * 32 // 4096 // 4
    assert r.bound().program.cached.us <= r.bound().program.cold.us <= r.time_us
    assert npusim.bound(kernel, device="tiny") == r.bound() == npusim.bound(r)


def test_a_measured_time_has_a_share_and_a_rest() -> None:
    a, b = npusim.spec((512, 512), "fp16"), npusim.spec((512, 512), "fp16")
    found = npusim.bound(ops.matmul, a, b, device="ascend910b2", measured_us=30)
    share = found.problem.cold.us / 30
    assert (
        f"measured    30.000 us: any program needs {found.problem.cached.us / 30:.0%}".replace(
            "%", " %"
        )
        in found.text()
    )
    assert 0 < share < 1
    assert len(found.table) == 4
    fast = found.problem.cached.us / 2
    text = npusim.bound(ops.matmul, a, b, device="ascend910b2", measured_us=fast).text()
    figure = found.problem.cached.figure
    assert f"less than any program needs, unless {figure}" in " ".join(text.split())
    with pytest.raises(ArgumentError, match="measured_us is 0; it must be a positive time"):
        npusim.bound(ops.matmul, a, b, device="ascend910b2", measured_us=0)
    with pytest.raises(ArgumentError, match="bound takes an operator"):
        npusim.bound(ops.matmul, a, b)
    with pytest.raises(ArgumentError, match="bound takes an operator"):
        npusim.bound("matmul", device="tiny")  # type: ignore[arg-type]


def test_the_command_prints_what_python_has(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--m", "32", "--k", "48", "--n", "16")
    line = ["bound", "matmul", *sizes, "--device", "tiny", "--measured", "1us"]
    assert main(line) == 0
    found = product(32, 48, 16).bound(1)
    assert capsys.readouterr().out == found.text()
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_json()
    assert main([*line[:-1], "fast"]) == 2
    assert "--measured: expected a duration such as 5us" in capsys.readouterr().err


def test_calls_one_after_another_add_their_bounds() -> None:
    r = product(32, 48, 16)
    twice = r.problem_bounds[0].plus(r.problem_bounds[0])
    assert (twice.cycles, twice.least) == (144, 0)


def test_no_bound_is_longer_than_its_time_nor_than_its_least() -> None:
    assert undercut(product(256, 512, 128, "ascend910b2")) == []
    assert undercut(product(2048, 16, 2048, "tiny")) == []
