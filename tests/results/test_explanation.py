"""``r.explain()``: every cycle of a call accounted for, and told in 80 columns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.kernels.matmul.matmul import Tiling
from npusim.machine.timing import run as timing
from npusim.results import Result
from npusim.results.explanation import Explanation
from npusim.results.facts.explanation import KernelExplanation
from npusim.results.writers.explanation_text import chapters
from tests.machine.timing.test_engines_agree import CALLS, operator_calls
from tests.tables import rows


def product(m: int = 48, k: int = 64, n: int = 32, **options: Any) -> Result:
    a, b = npusim.spec((m, k), "fp16"), npusim.spec((k, n), "fp16")
    return npusim.ops.matmul(a, b, **{"device": "tiny", **options})


def backward(cin: int, cout: int, **options: Any) -> Result:
    dy, x, w = ((1, cout, 8, 8), (1, cin, 8, 8), (cout, cin // options.get("groups", 1), 1, 1))
    a, b, c = (npusim.spec(shape, "fp16") for shape in (dy, x, w))
    return npusim.ops.convolution_backward(
        a, b, c, output_mask=(False, True, False), device="ascend910b2", **options
    )


def of(result: Result, name: str) -> KernelExplanation:
    return next(one for one in result.explain(what_if=False).kernels if one.run.name == name)


@pytest.mark.parametrize(("device", "role", "name"), operator_calls())
def test_the_parts_of_every_operator_add_up_on_every_device(
    device: str, role: str, name: str
) -> None:
    result = CALLS[role][name](device=device)
    explanation = result.explain(what_if=False)
    assert explanation.cycles == result.cycles
    kernels = explanation.kernels
    assert explanation.launch_cycles + sum(one.run.cycles for one in kernels) == result.cycles
    for one, run in zip(kernels, result.runs, strict=True):
        assert one.trace.cycles == one.run.cycles == run.cycles
        for sums in (one.parts, one.pipes, one.reasons, one.busiest):
            assert sum(sums.values()) == run.cycles, run.name
        assert sum(step.cycles for step in one.path) == run.cycles


def test_what_if_are_the_times_of_such_devices() -> None:
    tiling = Tiling(base_m=16, base_n=32, base_k=64)
    result = product(tiling=tiling)
    effects = {one.figure: one for one in result.explain().what_if or ()}
    device = result.device
    for figure, half, double in (
        ("main_memory.read", "32B/cycle", "128B/cycle"),
        ("paths.GM->L1.nd2nz.startup", "5cycle", "20cycle"),
        ("cube.rates.fp16", "16x16x16/2cycle", "16x32x16"),
        ("launch.kernel", "25cycle", "100cycle"),
    ):
        one = effects[figure]
        times = {
            text: product(device=device.replace(figure, text), tiling=tiling).time_us
            for text in (half, double)
        }
        assert (one.half_us, one.double_us) == (times[half], times[double])
    gains = [one.gain_us for one in effects.values()]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0


def test_figures_without_half_or_double_are_left_out_or_half_told() -> None:
    device = npusim.load_device("tiny", {"pipes.MTE2.queue_depth": "1"})
    effects = {one.figure: one for one in product(device=device).explain().what_if or ()}
    assert "cube.startup" not in effects, "twice nothing is nothing"
    assert effects["pipes.MTE2.queue_depth"].half_us is None
    assert effects["pipes.MTE2.queue_depth"].double_us is not None
    assert "cube.odd_block_conflict" not in effects


@rows(
    "tests/data/rows/results.yaml",
    "sizes_that_fill_no_blocks_are_called_out",
    "channels, options, waste",
)
def test_sizes_that_fill_no_blocks_are_called_out(
    channels: list[int], options: dict[str, Any], waste: list[str]
) -> None:
    one = of(backward(*channels, **options), "conv_backprop_filter")
    assert one.useful_share is not None
    assert list(one.waste) == [*waste, f"{100 * one.useful_share:.0f} % of what the cube has time "
                               "for is useful"]  # fmt: skip


def test_full_blocks_waste_nothing_and_zeros_are_told() -> None:
    assert of(backward(64, 32), "conv_backprop_filter").waste == ()
    assert of(product(), "matmul").useful_share == 1
    dy, x, w = (npusim.spec(s, "fp16") for s in ((1, 16, 4, 4), (1, 16, 4, 4), (16, 16, 3, 3)))
    # One core, as two would share the 16 places in halves of a block.
    result = npusim.ops.convolution_backward(dy, x, w, padding=1, device="tiny", cores="0")
    one = of(result, "conv_backprop_input")
    # Of 3 x 3 taps over 4 x 4 places, 10 of 12 either way are not on padding.
    assert one.useful_share == pytest.approx(100 / 144)
    assert one.waste[0].startswith("31 % of the cube's time goes to zeros of padding")


def test_channels_of_a_transposed_layer_keep_their_names() -> None:
    dy, x, w = (npusim.spec(s, "fp16") for s in ((1, 33, 8, 8), (1, 64, 8, 8), (64, 33, 1, 1)))
    result = npusim.ops.convolution_backward(dy, x, w, transposed=True, device="ascend910b2")
    assert any("Cout = 33" in text for text in of(result, "conv_backprop_filter").waste)


def shown(explanation: Explanation) -> list[str]:
    """What a terminal of 120 columns shows."""
    console = Console(width=120, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(explanation)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().replace("\u00a0", " ").splitlines()


@pytest.mark.parametrize("device", ["tiny", "ascend910b2"])
def test_both_forms_fit_80_columns_and_say_the_same(device: str) -> None:
    dy, x, w = (npusim.spec(s, "fp16") for s in ((4, 33, 20, 20), (4, 64, 20, 20), (33, 64, 3, 3)))
    explanation = npusim.ops.convolution_backward(dy, x, w, padding=1, device=device).explain()
    text, rich = explanation.text().splitlines(), shown(explanation)
    assert max(map(len, text)) <= 80
    assert max(len(line.rstrip()) for line in rich) <= 80
    for one in chapters(explanation)[0]:
        step = one.path[0]
        for lines in (text, rich):
            cells = [line.split() for line in lines]
            assert any(f"{step.cycles:,}" in row and step.work.op in row for row in cells)
    assert any("wastes 31 %" in line for line in text)
    assert any("wastes 31 %" in line for line in rich)
    assert explanation.verdict is not None
    for lines in (text, rich):
        assert any(f"bottleneck: {explanation.verdict.text()}" in line for line in lines)
    best = (explanation.what_if or ())[0].figure
    assert best in explanation.text()


def test_progress_is_told_and_what_cannot_be_explained_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    product().explain(progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == list(range(told[0][1]))
    with pytest.raises(ArgumentError, match="this result was not made by a call"):
        replace(product(), replay=None).explain()
    monkeypatch.setattr(timing, "TRACE_LIMIT", 10)
    with pytest.raises(ArgumentError, match="the critical path is looked for among up to 10"):
        product().explain()


def test_operands_in_the_l2_stay_there() -> None:
    warm = product(start="warm")
    assert warm.explain(what_if=False).kernels[0].run.cycles == warm.runs[0].cycles
    assert warm.explain(what_if=False).kernels[0].trace.cycles < product().runs[0].cycles
