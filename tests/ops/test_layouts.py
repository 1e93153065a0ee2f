"""Operands and results that do not lie contiguous, as ``npusim.ops`` takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.call.call import planning
from npusim.call.spec import elements_overlap, is_contiguous
from npusim.results import Result

pytestmark = pytest.mark.compiled

MAP, CHANNELS_LAST = (2, 16, 9, 8), (16 * 72, 1, 8 * 16, 16)
FILTER = (16, 16, 3, 3)


def gradients(x: Any, dy: Any, w: Any, **options: Any) -> Result:
    return npusim.ops.convolution_backward(
        dy, x, w, padding=1, device="ascend910b2", timeline=False, **options
    )


def integers(seed: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16)


def names(result: Result) -> list[str]:
    return [run.name for run in result.runs]


def test_a_spec_with_strides_is_copied_first() -> None:
    plain, weight = npusim.spec(MAP, "fp16"), npusim.spec(FILTER, "fp16")
    strided = npusim.spec(MAP, "fp16", CHANNELS_LAST)
    usual, result = gradients(plain, plain, weight), gradients(strided, plain, weight)
    assert sorted(names(result)) == sorted([*names(usual), "contiguous"])
    assert result.time_us > usual.time_us
    stated = gradients(plain, plain, weight, layouts={"input": strided})
    assert stated.cycles == result.cycles
    with planning():
        planned = gradients(strided, plain, weight)
    assert planned.workspace_bytes == result.workspace_bytes


def test_a_spec_with_the_usual_strides_is_one_without() -> None:
    assert npusim.spec((2, 3, 1), "fp16", (3, 1, 77)) == npusim.spec((2, 3, 1), "fp16")
    assert npusim.spec((0, 3), "fp16", (9, 9)) == npusim.spec((0, 3), "fp16")
    with pytest.raises(ArgumentError, match=r"strides are \(1,\) of shape \(2, 3\)"):
        npusim.spec((2, 3), "fp16", (1,))
    with pytest.raises(ArgumentError, match=r"strides are \(-3, 1\)"):
        npusim.spec((2, 3), "fp16", (-3, 1))
    with pytest.raises(ArgumentError, match="give elements for each axis"):
        npusim.spec((2, 3), "fp16", ["a", "b"])  # type: ignore[list-item]


def test_arrays_take_the_time_of_contiguous_ones_with_a_note() -> None:
    """Also Fortran order and slices; a layout that is stated has no note."""
    x, dy, w = integers(1, MAP), integers(2, MAP), integers(3, FILTER)
    usual = gradients(x, dy, w)
    assert not any("layouts" in note for note in usual.notes)
    result = gradients(np.asfortranarray(x), dy, w)
    assert result.cycles == usual.cycles
    (note,) = [note for note in result.notes if "layouts" in note]
    assert note.startswith("input is an array with strides (1, 2, 32, 288) in elements: ")
    strided = npusim.spec(MAP, "fp16", CHANNELS_LAST)
    stated = gradients(np.asfortranarray(x), dy, w, layouts={"input": strided})
    assert not any("layouts" in note for note in stated.notes)
    assert stated.cycles > usual.cycles
    for one, other in zip(usual.outputs or (), stated.outputs or (), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_operator_that_frameworks_call_copies() -> None:
    image, columns = (2, 16, 6, 6), (2, 64, 25)
    turned = npusim.spec(image, "fp16", (16 * 36, 1, 6 * 16, 16))
    rows = npusim.spec(columns, "fp16", (64 * 25 * 2, 50, 2))
    fold = [(2, 2), (1, 1), (0, 0), (1, 1)]
    keywords: dict[str, Any] = {"device": "ascend910b2", "timeline": False}
    ops = npusim.ops
    calls = [
        ops.im2col(turned, *fold, layouts={"out": rows}, **keywords),
        ops.im2col_backward(rows, (6, 6), *fold, layouts={"out": turned}, **keywords),
        ops.convolution(
            turned,
            npusim.spec((16, 16, 1, 1), "fp16"),
            layouts={"output": turned},
            **keywords,
        ),
        ops.matmul(
            npusim.spec((32, 64), "fp16", (128, 1)),
            npusim.spec((64, 48), "fp16"),
            out_dtype="fp16",
            layouts={"c": npusim.spec((32, 48), "fp16", (1, 32))},
            **keywords,
        ),
    ]
    for result in calls:
        assert names(result).count("contiguous") == names(result).count("view_copy") == 1


def test_operators_on_blocked_layouts_refuse_strides() -> None:
    x = npusim.spec((1, 1, 4, 4, 16), "fp16", (512, 512, 128, 16, 1))
    dy = npusim.spec((1, 1, 4, 4, 16), "fp16")
    para = {"strides": [1, 1], "padding": [0, 0, 0, 0], "dilations": [1, 1, 1, 1]}
    with pytest.raises(ArgumentError, match=r"for input_x; all of its tensors are contiguous"):
        npusim.ops.conv2d_backprop_filter(x, dy, [16, 16, 1, 1], para, device="ascend910")
    with pytest.raises(ArgumentError, match=r"layouts=.* has no meaning: its tensors are cont"):
        npusim.ops.conv2d_backprop_filter(
            dy, dy, [16, 16, 1, 1], para, layouts={"x": x}, device="ascend910"
        )


@pytest.mark.parametrize(
    ("layouts", "text"),
    [
        ({"bias": (MAP, "fp16", CHANNELS_LAST)}, "stated for bias; those of grad_output, input"),
        ({"input": ((2, 16, 8, 9), "fp16", (9, 9, 9, 9))}, r"for input, which is \(2, 16, 9, 8\)"),
        ({"grad_input": (MAP, "fp32", CHANNELS_LAST)}, "the call writes fp16 of 2304 elements"),
        ({"grad_weight": (MAP, "fp16", CHANNELS_LAST)}, "the call writes fp16 of 2304 elements"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(layouts: dict[str, Any], text: str) -> None:
    plain, weight = npusim.spec(MAP, "fp16"), npusim.spec(FILTER, "fp16")
    stated = {name: npusim.spec(*layout) for name, layout in layouts.items()}
    if "grad_weight" in stated:
        stated["grad_weight"] = npusim.spec((16, 16, 3, 4), "fp16", (1, 16, 1024, 256))
    with pytest.raises(ArgumentError, match=text):
        gradients(plain, plain, weight, layouts=stated)


def test_layouts_of_another_kind_are_refused() -> None:
    plain, weight = npusim.spec(MAP, "fp16"), npusim.spec(FILTER, "fp16")
    for wrong in ([1], {"input": CHANNELS_LAST}):
        with pytest.raises(ArgumentError, match=r"layouts is .*; it is a mapping such as"):
            gradients(plain, plain, weight, layouts=wrong)


def test_strides_that_are_contiguous_or_overlap() -> None:
    assert is_contiguous((4, 1, 3), (3, 99, 1))
    assert not is_contiguous((4, 3), (4, 1))
    assert not elements_overlap((4, 3), (1, 4))
    assert not elements_overlap((1, 3), (0, 1))
    assert elements_overlap((4, 3), (2, 1))
    assert elements_overlap((4, 3), (0, 1))


def test_a_warm_start_finds_the_view_in_the_l2() -> None:
    strided = npusim.spec((8, 64, 28, 28), "fp16", (64 * 784, 1, 28 * 64, 64))
    weight = npusim.spec((64, 64, 1, 1), "fp16")
    times = [
        npusim.ops.convolution(strided, weight, device="ascend910b2", start=start).runs[0].cycles
        for start in ("cold", "warm")
    ]
    assert times[1] < times[0]


def test_an_expanded_operand_bounds_no_call_by_more_than_it_reads() -> None:
    """What is repeated is read once: no bound is longer than the time."""
    plain, weight = npusim.spec((8, 64, 28, 28), "fp16"), npusim.spec((64, 64, 3, 3), "fp16")
    expanded = npusim.spec((8, 64, 28, 28), "fp16", (0, 0, 0, 0))
    result = gradients(plain, expanded, weight)
    assert max(bound.cycles for bound in result.problem_bounds) < result.cycles
    for run in result.runs:
        assert all(bound.cycles <= run.cycles for bound in run.problem_bounds)
