"""A program on a variant of its device: equal to one built anew, or built anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

import npusim
import npusim.call.call
import npusim.reuse.launches
from npusim.base.dtypes import FP16
from npusim.base.errors import ConfigError
from npusim.base.quantities import format_quantity
from npusim.base.records import replace
from npusim.machine.device.catalog import load_device, ranges
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel, Tasks
from npusim.machine.program.language import Language
from npusim.machine.program.program import Program
from npusim.machine.program.recost import _on, _value, recosted
from npusim.reuse.launches import RUNS
from tests.machine.isa.test_isa_contract import EXAMPLES, homes
from tests.machine.timing.test_engines_agree import CALLS
from tests.sampled import some
from tests.scripts import Scripted, tasks_of

pytestmark = pytest.mark.compiled

TINY = load_device("tiny")


def other(device: Device, path: str) -> Device | None:
    """The device with a figure changed, None where no other value is legal."""
    figure = figures(device)[path]
    value: Any = figure.value
    if isinstance(value, bool):
        new: Any = "no" if value else "yes"
    elif isinstance(value, tuple):
        m, k, n, cycles = value
        new = f"{m}x{k}x{n}/{cycles + 1}cycle"
    else:
        new = value * 2 if isinstance(value, Fraction) else value + 1
    try:
        return device.replace(path, new)
    except (ConfigError, npusim.ArgumentError):
        return None


@cache
def variants(name: str) -> dict[str, Device]:
    """The device with another value of a figure, by figures."""
    device = load_device(name)
    made = {path: other(device, path) for path in figures(device)}
    return {path: variant for path, variant in made.items() if variant is not None}


# -- figures() and cost() ----------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_cost_moves_with_the_figures_it_names_and_no_others(name: str) -> None:
    device, instruction = homes(name)[0], EXAMPLES[name](7)
    before, moved = instruction.cost(device), set()
    for path, variant in variants(device.name).items():
        if _on(instruction, variant).cost(variant) != before:
            moved.add(path)
    named = {path for path in moved for own in instruction.figures()
             if path == own or path.rpartition(".")[0] == own}  # fmt: skip
    assert moved
    assert moved - named - {"clock"} == set()  # durations are cycles of the clock
    for own in instruction.figures():
        assert _value(device, own) is not None


# -- programs ----------------------------------------------------------------------------------


def strided(device: str) -> npusim.Result:
    """A call whose kernels choose between drains by what these cost."""
    x, dy = npusim.spec((1, 20, 6, 7), "fp16"), npusim.spec((1, 18, 3, 4), "fp16")
    w = npusim.spec((18, 20, 3, 3), "fp16")
    return npusim.ops.convolution_backward(
        dy, x, w, stride=2, padding=1, device=device, rules="hardware", cores="0"
    )


def launched(monkeypatch: pytest.MonkeyPatch, device: str) -> Iterator[tuple[Kernel, Program]]:
    """The kernels of some calls that use every kind of instruction, and their programs."""
    found = []

    def building(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> Program:
        found.append((kernel, build(kernel, device, groups)))
        return found[-1][1]

    monkeypatch.setattr(npusim.call.call, "program_of", building)
    calls: list[Callable[..., npusim.Result]] = (
        [CALLS["cube"]["matmul"], CALLS["cube"]["2-D"], strided]
        if load_device(device).cube is not None
        else [CALLS["dsp"]["deconv_grad_filter shared"]]
    )
    RUNS.clear()
    for call in calls:
        call(device=device)
    yield from found


@pytest.mark.drawn
@pytest.mark.parametrize("device", ["tiny", "ascend910b2", "ft78ne"])
def test_a_variant_gets_the_program_it_would_be_built(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    every = [*variants(device).values()]
    some_of_them = every[:: len(every) // some(len(every))]
    kept = 0
    for kernel, program in launched(monkeypatch, device):
        groups = tuple(sorted({core.group for core in program.cores}))
        for variant in some_of_them:
            again = recosted(program, variant)
            if again is None:
                continue
            want = build(kernel, variant, groups)
            assert again.device is variant
            assert again.templates == want.templates
            assert again.variants == want.variants
            for one, two in zip(again.cores, want.cores, strict=True):
                assert one.name == two.name
                assert np.array_equal(one.variants, two.variants)
                assert np.array_equal(one.bases, two.bases)
            kept += 1
    assert kept > len(some_of_them) // 2


@pytest.mark.parametrize(
    "path",
    [
        *("memories.UB.size", "memories.L1.align", "cube.unit_flag", "cube.hf32_bits"),
        *("sync.event_ids", "sync.core_event_ids"),
    ],
)
def test_what_a_program_is_made_of_makes_another_program(path: str) -> None:
    program = build(Copy(), TINY, (0,))
    variant = other(TINY, path) or TINY.replace(path, "1MiB")
    assert recosted(program, variant) is None
    without = replace(TINY, paths={n: p for n, p in TINY.paths.items() if n != "L0C->GM"})
    assert recosted(program, without) is None


class Copy(Scripted):
    """One row in and out; with ``curious`` as many as a repeat of the vector unit has bytes."""

    name = "copy"
    role = "vector"

    def __init__(self, *, curious: bool = False) -> None:
        self.curious = curious
        self.x = Tensor("x", (1 << 14,), FP16)
        self.y = Tensor("y", (1 << 14,), FP16, "out")

    def tasks(self, cores: int) -> Tasks[Any]:
        return tasks_of(np.zeros(1, np.int64), {})

    def buffers(self, k: Language) -> None:
        self.ub = k.buffer("UB", (4096,), FP16)
        self.size = k.device.vector.repeat_bytes if self.curious else 512

    def emit(self, k: Language, task: Any) -> None:
        k.data_move(self.ub.next(), self.x.at(0, self.size), FP16)
        k.data_move(self.y.at(0, self.size), self.ub.last(), FP16)


def test_a_kernel_that_looks_at_figures_is_built_again() -> None:
    variant = TINY.replace("vector.repeat", TINY.vector.repeat_bytes * 4)
    assert recosted(build(Copy(), TINY, (0,)), variant) is not None
    assert recosted(build(Copy(curious=True), TINY, (0,)), variant) is None
    result = npusim.simulate(Copy(curious=True), TINY)
    assert result.replay is not None
    assert result.replay.time_us(variant) == npusim.simulate(Copy(curious=True), variant).time_us


class Deciding(Copy):
    """One row of at most 512 B, and at most of as many as a repeat of the vector unit has."""

    def buffers(self, k: Language) -> None:
        super().buffers(k)
        self.size = k.decided(lambda device: min(512, device.vector.repeat_bytes))


def test_a_kernel_that_decides_alike_is_not_built_again() -> None:
    wide, wider, narrow = (TINY.replace("vector.repeat", size) for size in (1024, 2048, 256))
    program = build(Deciding(), wide, (0,))
    assert recosted(program, wider) is not None
    assert recosted(program, narrow) is None
    result = npusim.simulate(Deciding(), wide)
    assert result.replay is not None
    for variant in (wider, narrow):
        assert result.replay.time_us(variant) == npusim.simulate(Deciding(), variant).time_us


# -- calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["tiny"])
def test_a_range_of_times_is_the_same_to_the_last_digit(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    def call() -> npusim.Result:
        result: npusim.Result = CALLS["cube"]["2-D"](device=device)
        return result

    built: list[str] = []

    def building(kernel: Kernel, where: Device, groups: tuple[int, ...]) -> Program:
        built.append(kernel.name)
        return build(kernel, where, groups)

    result = call()
    monkeypatch.setattr(npusim.reuse.launches, "build", building)
    quick = result.time_range
    assert not built  # for any figure: programs are those of the call
    monkeypatch.setattr(npusim.reuse.launches, "recosted", lambda program, variant: None)
    assert call().time_range == quick
    assert len(built) > 20 * len(result.runs)
    for path, (low, _) in list(ranges(result.device).items())[:5]:
        variant = result.device.replace(path, format_quantity(low.value, low.kind))
        assert call().replay.time_us(variant) == result.replay.time_us(variant)  # type: ignore[union-attr]
