"""The verdict on a call: what saves most twice as fast, and that no bound is undercut."""

from __future__ import annotations

import pytest

import npusim
from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.machine.device.resources import LAUNCHES
from npusim.machine.timing.trace import Bound
from npusim.results import Result
from npusim.results.comparison import compare
from npusim.results.facts import metrics
from npusim.results.facts import verdict as verdict_module
from npusim.results.facts.advice import slow_kernels
from npusim.results.facts.verdict import doubled_us, parts
from npusim.workloads import workloads
from tests.results.verdicts import of_network, refuted, results, undercut


def product(m: int, device: str = "ascend910b2") -> Result:
    a = npusim.spec((m, m), "fp16")
    return npusim.ops.matmul(a, a, device=device)


def test_a_large_product_waits_for_the_l2_and_not_for_more_cores() -> None:
    """Its cube works for 70 % of the time, the nearest bound, and still saves nothing."""
    r = product(3072)
    assert r.verdict is not None
    assert (r.bottleneck, r.verdict.figures) == ("L2", ("l2.missed", "l2.read", "l2.write"))
    assert r.verdict.saves == pytest.approx(0.14, abs=0.01)
    assert "bottleneck  L2: twice as fast saves 14 %" in r.text()
    assert "bottleneck: L2: twice as fast saves 14 %" in r.explain(what_if=False).text()
    assert r.to_json()["verdict"]["name"] == "L2"
    assert product(3072, "ascend910b2").verdict == r.verdict


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2", "tiny"])
def test_launches_save_what_a_simulation_says(device: str) -> None:
    r = product(32, device)
    assert r.verdict is not None
    assert r.replay is not None
    assert r.verdict.name == LAUNCHES
    names = parts(r.device, r.replay.figures)[LAUNCHES]
    tried = doubled_us(r.device, names, r.replay)
    assert tried == pytest.approx(r.verdict.double_us, abs=3 * r.device.time_us(1))


def test_a_result_that_cannot_be_timed_again_is_told_by_its_busiest_part() -> None:
    r = replace(product(64), replay=None)
    assert r.verdict is not None
    assert (r.bottleneck, r.verdict.double_us, r.verdict.saves) == (LAUNCHES, None, None)
    assert r.verdict.busy == pytest.approx(r.runs[0].launch_cycles / r.cycles)
    told = "launches: busy for 90 % of the time (by shares of the time, not tried)"
    assert told in " ".join(r.text().split())


def test_a_call_too_long_to_be_tried_again_has_a_bottleneck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was an empty text from four million instructions on, as 11 ms of a convolution have."""
    short = product(3072)
    monkeypatch.setattr(verdict_module, "TRACE_LIMIT", 1000)
    long = replace(short)
    assert long.verdict is not None
    assert (long.bottleneck, long.verdict.tried) == ("pipe M", ())
    cube = next(one for one in metrics.pipe_shares(long.runs[0]) if one.pipe == "M")
    assert long.verdict.busy == pytest.approx(cube.busiest[0] * long.runs[0].cycles / long.cycles)
    assert "pipe M: busy for" in long.text()
    assert "pipe M: busy for" in compare(short, long).text()


def test_memory_is_busy_as_long_as_its_bound_says() -> None:
    slow = load_device("ascend910b2").replace("main_memory.read", "100GB/s")
    a = npusim.spec((1024, 1024), "fp16")
    r = replace(npusim.ops.matmul(a, a, device=slow), replay=None)
    assert r.verdict is not None
    assert r.bottleneck == "HBM"
    assert 0.6 < r.verdict.busy < 1


def test_how_much_load3d_reads_at_once_is_a_speed_of_its_pipe() -> None:
    """Twice the window saved 26 % of a filter gradient whose verdict was its launches."""
    device = load_device("ascend950pr")
    window = "paths.L1->L0B.load3d.window"
    assert parts(device, [window]) == {"pipe MTE1": (window,)}


def test_a_pipe_saves_also_what_its_cores_wait_for_each_other() -> None:
    """Launches were named, which save 15 %: cores wait for loads that others have under way."""
    a, b = npusim.spec((992, 187), "fp16"), npusim.spec((992, 180), "fp16")
    r = npusim.ops.matmul(a, b, transpose_a=True, device="ascend310p")
    assert refuted(r) == []


def test_no_verdict_of_a_few_calls_is_refuted_and_no_bound_undercut() -> None:
    for call, result in results(2026, 3):
        assert refuted(result) == [], call
        assert undercut(result) == [], call


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_verdict_of_many_calls_is_refuted_and_no_bound_undercut(seed: int) -> None:
    wrong = [(call, text) for call, result in results(seed, 100)
             for text in (*refuted(result), *undercut(result))]  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize("name", ["dcgan", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_the_parts_of_a_network_are_its_time(name: str) -> None:
    assert of_network(name, batch=2) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads())
def test_the_parts_of_every_network_are_its_time(name: str) -> None:
    assert of_network(name, batch=32) == []


def test_conversions_leave_operands_in_the_l2_which_bounds_know() -> None:
    """The bound of the second conversion was 198 % of its time, as if it had to be read again."""
    shapes = ((2, 64, 14, 14), (2, 64, 14, 14), (64, 64, 1, 1))
    a, b, c = (npusim.spec(shape, "fp16") for shape in shapes)
    r = npusim.ops.convolution_backward(a, b, c, (64,), device="ascend910b2")
    assert undercut(r) == []
    read = [
        next((one.cycles for one in run.problem_bounds if one.resource == "HBM read"), 0)
        for run in r.runs
        if run.name == "conv_backprop_filter"
    ]
    assert read == [0]


def test_a_comparison_leaves_out_cores_that_do_not_run() -> None:
    a = npusim.ops.matmul(npusim.spec((16, 512), "fp16"), npusim.spec((512, 16), "fp16"),
                          device="ascend910b2")  # fmt: skip
    slow = a.device.replace("main_memory.read", "20GB/s")
    b = npusim.ops.matmul(npusim.spec((16, 512), "fp16"), npusim.spec((512, 16), "fp16"),
                          device=slow)  # fmt: skip
    assert a.runs[0].cores == b.runs[0].cores == 1
    (kernel,) = compare(a, b).a.kernels.values()
    waits = kernel.waits["MTE2"]
    assert waits["not_started"] < 0.1 * sum(waits.values())
    text = compare(a, b).text()
    assert "bottleneck  launches" in text
    assert "BOUNDS" in text
    assert "HBM" in text


def test_a_kernel_far_from_its_bound_says_what_it_is_spent_on() -> None:
    r = product(1024)
    near, far = (
        replace(r, runs=(replace(r.runs[0], problem_bounds=(Bound("cube", cycles, ""),)),))
        for cycles in (r.runs[0].cycles // 2, r.runs[0].cycles // 20)
    )
    assert slow_kernels(near, 0) == ()
    (line,) = slow_kernels(far, 0)
    assert line.startswith("matmul takes 20 times what any program for its problem needs (cube): ")
    assert "of its critical path" in line
    assert line in " ".join(far.text().replace("- ", "").split())
