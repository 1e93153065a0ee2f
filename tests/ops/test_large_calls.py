"""Calls of many minutes: they run with progress, or say at once how large they are.

Operands, results and copies that main memory cannot hold are refused before any kernel runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import spec
from npusim.base import resources
from npusim.base.errors import CapacityError, RoomError, RuleError
from npusim.call import options
from npusim.call.call import Call
from npusim.cli.main import main
from npusim.kernels.matmul.matmul import Tiling
from npusim.machine.program.kernel import grid
from npusim.ops import CARDS
from tests.calls import Row, data
from tests.ops.small_calls import CALLS, called
from tests.tables import rows

#: Calls of some 10^15 multiply-adds, on devices with the memory for them.
LARGE = {name: Row(**row, timing=True) for name, row in data("large").items()}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_call_says_how_large_it_is_before_anything_is_planned(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = npusim.load_device("ascend910b2" if name == "convolution_backward" else "ascend910")
    monkeypatch.setattr(Call, "launch", lambda *_: pytest.fail("a kernel was launched"))
    words = rf"{name}: [\d.e+]+ multiply-adds in about [\d.e+]+ instructions take some [\d,]+ min"
    with pytest.raises(CapacityError, match=words + ".*give progress=.*or simulate a part"):
        LARGE[name](chip.replace("main_memory.size", "4TiB"))


def test_a_kernel_says_so_before_its_time_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bound of all products lets pass is known to the instruction once it is built."""
    monkeypatch.setattr(options, "SILENT_S", 1e-4)
    a = spec((16384, 16384), "fp16")  # too long to be simulated in order to choose a tiling
    words = r"matmul: matmul: 4.4e\+12 multiply-adds in about 7.3e\+06 instr"
    with pytest.raises(CapacityError, match=words):
        npusim.ops.matmul(a, a, device="ascend910b2")


def test_with_progress_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "SILENT_S", 1e-4)
    seen: list[tuple[str, str, int, int]] = []
    a = spec((512, 512), "fp16")
    result = npusim.ops.matmul(
        a, a, device="ascend910b2", progress=lambda *state: seen.append(state)
    )
    assert result.cycles > 0
    kernel, phase, done, total = seen[-1]
    assert (kernel, phase, done) == ("matmul", "timing", total)


def test_numbers_take_longer_than_time_alone() -> None:
    for engine in ("fast", "simpy"):
        alone, both = (
            options.seconds(10**6, engine, timing_only=timing_only) for timing_only in (True, False)
        )
        assert alone < both
    options.require_short("x", 10**8, 0, "fast", timing_only=True)
    with pytest.raises(CapacityError, match=r"some 17 minutes .*fewer images, or the time alone"):
        options.require_short("x", 10**8, 0, "fast", timing_only=False)


def test_a_table_that_this_computer_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "memory_bytes", lambda: 1 << 20)
    assert len(grid(np.arange(32), np.arange(64))[0]) == 2048
    with pytest.raises(CapacityError, match=r"4,096 tasks; a table of them takes some 0.0 GiB"):
        grid(np.arange(64), np.arange(64))


def test_tiles_that_this_computer_cannot_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger tiles are no way out for who chose none, and no line of a kernel is to blame."""
    monkeypatch.setattr(resources, "memory_bytes", lambda: 4 << 20)

    def refused_text(a: Any, b: Any, **options: Any) -> str:
        with pytest.raises(RoomError) as error:
            npusim.ops.matmul(a, b, device="ascend910b2", **options)
        return str(error.value)

    chosen = refused_text(spec((65536, 512), "fp16"), spec((512, 8192), "fp16"))
    words = r"matmul: matmul: [\d,]+ tasks; a table of them takes .* has 0.0 GiB: simulate a part"
    assert re.match(words, chosen)
    assert chosen.endswith(", such as fewer images")
    tiny = Tiling(base_m=16, base_n=16, base_k=16)
    given = refused_text(*(spec((2048, 2048), "fp16"),) * 2, tiling=tiny)
    assert given.startswith("matmul: matmul: ")
    assert given.endswith("fewer images, or give a tiling with larger tiles")


def test_numbers_that_this_computer_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "memory_bytes", lambda: 1 << 20)
    a = np.zeros((512, 512), np.float16)
    with pytest.raises(CapacityError, match=r"tensors .* take some 0\.0 GiB, .*npusim\.spec"):
        npusim.ops.matmul(a, a, device="ascend910b2")
    alone = spec(a.shape, "fp16")
    assert npusim.ops.matmul(alone, alone, device="ascend910b2").cycles > 0


def test_random_operands_that_this_computer_cannot_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resources, "memory_bytes", lambda: 1 << 20)
    sizes = ["run", "matmul", "--device", "ascend910b2", "--m", "512", "--k", "512", "--n", "512"]
    assert main(sizes) == 2
    assert "random operands take some 0.0 GiB" in (message := capsys.readouterr().err)
    assert "choose --timing-only, or smaller sizes" in message
    assert main([*sizes, "--timing-only", "--json"]) == 0


def refused(call: Callable[[Any], Any], device: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a call that must launch nothing."""
    monkeypatch.setattr(Call, "launch", lambda *_: pytest.fail("a kernel was launched"))
    with pytest.raises(CapacityError) as error:
        call(device)
    return str(error.value)


@rows(
    "tests/data/rows/ops.yaml", "operands_beyond_main_memory_are_refused_by_name", "name, operand"
)
def test_operands_beyond_main_memory_are_refused_by_name(
    name: str, operand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest one is named."""
    device = CARDS[name].device or "ascend910"
    small = npusim.load_device(device).replace("main_memory.size", "1KiB")
    text = refused(lambda chip: called(name, device=chip), small, monkeypatch)
    assert text.startswith(f"{name}: {device} has 1.0 KiB of main memory, but tensors with copies")
    assert f"use a smaller {operand}, or a device with more" in text


@pytest.mark.parametrize("name", CALLS)
def test_main_memory_holds_just_what_is_counted(name: str) -> None:
    """With all the bytes that a call counts it runs, with one byte less it does not."""
    chip = npusim.load_device(CARDS[name].device or "ascend910")
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            called(name, device=chip.replace("main_memory.size", f"{middle}B"), timeline=False)
            high = middle
        except CapacityError:
            low = middle
    alone = {"matmul": 2 * 2048 + 4096, "deconv_grad_filter": 4096 + 2304 + 9216}
    assert high == alone.get(name, high)  # nothing between operands and results
    assert 1024 < high < 1 << 20


def test_results_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = npusim.load_device("ascend910b2").replace("main_memory.size", "1MiB")
    a, b = spec((1024, 1), "fp16"), spec((1, 1024), "fp16")
    text = refused(lambda device: npusim.ops.matmul(a, b, device=device), chip, monkeypatch)
    assert "take 4.0 MiB: a 2.0 KiB, b 2.0 KiB, c 4.0 MiB; use a smaller a" in text


def test_copies_in_other_layouts_count_before_the_first_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One channel takes the room of sixteen."""
    one, weight = spec((1, 1, 64, 64), "fp16"), spec((1, 1, 1, 1), "fp16")
    chip = npusim.load_device("ascend910b2").replace("main_memory.size", "256KiB")
    text = refused(
        lambda device: npusim.ops.convolution_backward(one, one, weight, (1,), device=device),
        chip,
        monkeypatch,
    )
    assert "grad_output 136.0 KiB, input 272.0 KiB" in text


def test_a_broken_rule_comes_first() -> None:
    chip = npusim.load_device("ascend910b2").replace("main_memory.size", "1KiB")
    with pytest.raises(RuleError, match="groups"):
        called("convolution_backward", device=chip, groups=3)
