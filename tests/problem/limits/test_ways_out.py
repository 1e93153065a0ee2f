"""What refusals of paddings say to do: sides that differ, and pads that follow from others."""

from __future__ import annotations

import pytest

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.cli.main import main

RUN = (
    "run {} --device ascend910b2 --cin 1 --cout 1 --timing-only --padding {} --size {} --kernel {}"
)


@pytest.mark.parametrize("operator", ["convolution", "convolution_backward"])
@pytest.mark.parametrize(
    ("padding", "size", "kernel", "way_out"),
    [
        ("9,3", "40", "13", "state this layer in 2-D with a height of 1"),
        ("4,5,4,5,4,5", "10x11x12", "4x4x4", "and conv3d_backprop_input, which take six values"),
    ],
)
def test_sides_that_differ_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
    operator: str,
    padding: str,
    size: str,
    kernel: str,
    way_out: str,
) -> None:
    assert main(RUN.format(operator, padding, size, kernel).split()) != 0
    said = capsys.readouterr().err
    assert "in 2-D layers only: pad the input first and state no padding, or " in said
    assert way_out in said


def test_sides_that_differ_in_python() -> None:
    x, w = npusim.spec((1, 8, 9, 9, 9), "fp16"), npusim.spec((8, 8, 3, 3, 3), "fp16")
    padding, device = [1, 1, 1, 1, 1, 1], "ascend910b2"
    with pytest.raises(
        RuleError, match=r"pad the input before where both sides of a dimension differ$"
    ):
        npusim.ops.convolution_backward(x, x, w, padding=padding, device=device)
    with pytest.raises(ArgumentError, match="where both sides of an axis differ, pad the input"):
        npusim.ops.convolution(x, w, padding=padding, device=device)
    with pytest.raises(ArgumentError, match=r"or 3 of them$"):
        npusim.ops.convolution(x, w, padding=[1, 1], device=device)


def test_pads_that_follow_from_a_padding_beyond_the_reach_of_the_filter() -> None:
    """A filter of 1 with padding 1: what the input gradient's kernel pads would be negative."""
    filters = npusim.spec((1, 1, 16, 16), "fp16")
    dy = npusim.spec((1, 1, 8, 8, 16), "fp16")
    sizes = ([16, 1, 1, 1], [1, 16, 6, 6])
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    said = r"less than 0 where the padding is larger than the filter reaches"
    call = npusim.ops.depthwise_conv2d_backprop_input
    with pytest.raises(RuleError, match=said):
        call(filters, dy, *sizes, para, device="ascend910")
    result = call(filters, dy, *sizes, para, device="ascend910", rules="hardware")
    assert result.cycles > 0
