"""What a profiler reports: which cycles count as busy, over which cores, under which name."""

from __future__ import annotations

from npusim.base.reasons import BANDWIDTH, BUSY, DATA, FOLLOW, REASONS
from npusim.machine.device.catalog import load_device
from npusim.machine.timing.trace import KernelRun, PipeRow
from npusim.silicon.profiler import busy_us, launch_cycles
from tests.tables import rows

DEVICE = load_device("tiny")  # 1 GHz: 1000 cycles are 1 us


def row(core: str, pipe: str, **cycles: int) -> PipeRow:
    numbers = {"busy": BUSY, "bandwidth": BANDWIDTH, "data": DATA, "follow": FOLLOW}
    counts = [0] * len(REASONS)
    for name, count in cycles.items():
        counts[numbers[name]] = count
    return PipeRow(core, pipe, tuple(counts))


def run(*rows: PipeRow) -> KernelRun:
    return KernelRun(
        name="k", tiling="", cores=1, cycles=9000, launch_cycles=0, instructions=0, macs=0,
        gm_bytes=0, pipes=rows, traffic=(), bounds=(), timeline=None,
    )  # fmt: skip


def test_a_pipe_is_busy_while_it_holds_an_instruction() -> None:
    rows = (
        row("aic0", "M", busy=4000),
        row("aic0", "FIX", busy=1000, bandwidth=500, follow=250, data=7000),
    )
    assert busy_us(run(*rows), DEVICE) == {"cube": 4.0, "fixpipe": 1.75}


def test_every_core_launched_counts_whether_it_had_work_or_not() -> None:
    one = run(row("aic0", "M", busy=6000), row("aic1", "M", data=100), row("aic2", "M"))
    assert busy_us(one, DEVICE) == {"cube": 2.0}
    assert busy_us(one, DEVICE, cores=2) == {"cube": 3.0}
    assert busy_us(one, DEVICE, statistic="median") == {"cube": 0.0}
    assert busy_us(one, DEVICE, cores=1, statistic="median") == {"cube": 6.0}


def test_loads_of_cores_without_a_cube_have_two_names() -> None:
    alone = run(row("aiv0", "MTE2", busy=1000), row("aiv0", "V", busy=2000), row("aiv0", "MTE3"))
    assert busy_us(alone, DEVICE) == {"mte2": 1.0, "aiv_mte2": 1.0, "vec": 2.0}
    beside = run(row("aic0", "MTE2", busy=1000), row("aic0", "M", busy=1))
    assert "aiv_mte2" not in busy_us(beside, DEVICE)


@rows(
    "tests/data/rows/validation.yaml",
    "kinds_of_time_contain_parts_of_the_launch",
    "kind, role, parses, parts",
)
def test_kinds_of_time_contain_parts_of_the_launch(
    kind: str | None, role: str, parses: bool, parts: list[str]
) -> None:
    launch = load_device("ascend910b2").launch
    sizes = {
        "kernel": launch.kernel_cycles,
        "first_access": launch.first_access_cycles,
        "core": 5 * launch.core_cycles,
        "tiling": launch.tiling_cycles,
    }
    assert launch.tiling_cycles > 0 < launch.core_cycles
    expected = sum(sizes[p] for p in parts)
    assert launch_cycles(launch, kind, role, 5, parses=parses) == expected
    assert launch_cycles(launch, kind, role, 5, parses=parses, started=36) == expected - 36
